package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"
)

// takesSalt are the APIs whose requests have a cache_salt in the engines' own classes: vLLM's
// from 0.11 (messages from 0.28), SGLang's from 0.5.3.
var takesSalt = [...]bool{apiOther: false, apiCompletions: true, apiChat: true, apiEmbeddings: false, apiResponses: true, apiMessages: true}

// withSalt returns a copy of the body with the cache salt that it is to have, made of the one
// that it asks for. The body must be JSON by the letter and have the field once at the most:
// no parser of an engine may find another salt in it.
func withSalt(body []byte, saltOf func(asked string) string) ([]byte, error) {
	top := gjson.ParseBytes(body)
	if !top.IsObject() || !json.Valid(body) {
		return nil, errSalt
	}
	var asked gjson.Result
	found, members := 0, 0
	top.ForEach(func(key, value gjson.Result) bool {
		if members++; key.String() == "cache_salt" {
			found, asked = found+1, value
		}
		return true
	})
	text := oneText(asked)
	if found > 1 || found == 1 && asked.Type != gjson.Null && text == "" {
		return nil, errSalt
	}
	salt, err := json.Marshal(saltOf(text))
	if err != nil {
		return nil, err
	}
	if found == 1 {
		return splice(body, asked.Index, asked.Index+len(asked.Raw), string(salt)), nil
	}
	field := `"cache_salt":` + string(salt)
	if members > 0 {
		field = "," + field
	}
	end := bytes.LastIndexByte(body, '}')
	return splice(body, end, end, field), nil
}
