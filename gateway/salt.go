package gateway

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// takesSalt are the APIs whose requests have a cache_salt in the engines' own classes: vLLM's
// from 0.11 (messages from 0.28), SGLang's from 0.5.3.
var takesSalt = [...]bool{apiOther: false, apiCompletions: true, apiChat: true, apiEmbeddings: false, apiResponses: true, apiMessages: true}

// checkSalted refuses a client with a salt what engines answer without it. It allows only the
// APIs that have a place for it, and pages about an engine and not about requests. It refuses
// headers by which a request reaches what others have sent, too.
func checkSalted(of api, r *http.Request) error {
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if namesEngine(name) {
			return forbidden(strings.ToLower(name), "it names an engine to work with, whose blocks may be another's")
		}
	}
	switch {
	case takesSalt[of]:
		return nil
	case r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "":
		return errUnsalted
	case !tellsOfNone(r.URL.Path):
		return errOfOthers
	}
	return nil
}

// namesEngine reports whether a header names another engine to have blocks or encoded media
// from. The sidecar of llm-d, which may stand before an engine, reads x-prefiller-host-port,
// x-kv-cache-source-host-port, x-encoder-hosts-ports and x-data-parallel-host-port. It reads
// these also behind x-llm-d-, and before them x-prefiller-url.
func namesEngine(header string) bool {
	return strings.HasSuffix(header, "-Host-Port") || strings.HasSuffix(header, "-Hosts-Ports") || strings.HasSuffix(header, "-Prefiller-Url")
}

// tellsOfNone reports whether an engine's page reports no requests: its health, its version and
// its models. A name of a model may have slashes in it, and nothing that another server could
// read as a way to another page.
func tellsOfNone(page string) bool {
	switch page {
	case "/health", "/ping", "/version", "/v1/models":
		return true
	}
	model, ok := strings.CutPrefix(page, "/v1/models/")
	return ok && model != "" && path.Clean(page) == page && !strings.ContainsAny(model, "\\%;?#")
}

// ofOthers are fields by which a request reaches what others have sent, or could be taken for
// theirs, whatever its cache salt is. Each has the reason.
var ofOthers = map[string]string{
	"previous_response_id": "it names a response, which may be another's",
	"conversation":         "it names a conversation, which may be another's",
	"session_params":       "it names a session of the engine, which may be another's",
	"extra_key":            "an engine puts it behind the salt, and takes the two for one",
	"kv_transfer_params":   "it names blocks of an engine, which may be another's",
	"ec_transfer_params":   "it names what an engine has encoded, which may be another's",
	"bootstrap_host":       "it names an engine to have blocks from, which may be another's",
	"bootstrap_port":       "it names an engine to have blocks from, which may be another's",
	"bootstrap_room":       "it names blocks of an engine, which may be another's",
	"request_id":           "another may have a request of that name; the header X-Request-Id is kept apart",
	"rid":                  "another may have a request of that name; the header X-Request-Id is kept apart",
}

// checkField refuses a field of ofOthers that says anything, also in vllm_xargs, where vLLM has
// what its APIs have no field for.
func checkField(name string, v gjson.Result) (err error) {
	if name == "vllm_xargs" {
		v.ForEach(func(key, value gjson.Result) bool {
			err = checkOther(key.String(), value)
			return err == nil
		})
		return err
	}
	return checkOther(name, v)
}

func checkOther(name string, v gjson.Result) error {
	if why, known := ofOthers[name]; known && v.Type != gjson.Null {
		return forbidden(name, why)
	}
	return nil
}

// withSalt returns a copy of the body with the cache salt that it is to have, made of the one
// that it asks for. The body must be JSON by the letter and have the field once at the most. So
// no parser of an engine finds another salt in it. It may have no field of ofOthers.
func withSalt(body []byte, saltOf func(asked string) string) ([]byte, error) {
	top := gjson.ParseBytes(body)
	if !top.IsObject() || !json.Valid(body) {
		return nil, errSalt
	}
	var asked gjson.Result
	found, members := 0, 0
	var other error
	top.ForEach(func(key, value gjson.Result) bool {
		if members++; key.String() == "cache_salt" {
			found, asked = found+1, value
		}
		other = checkField(key.String(), value)
		return other == nil
	})
	if other != nil {
		return nil, other
	}
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
