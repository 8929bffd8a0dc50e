package prompt_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/prompt"
)

// TestChatHasAllItsMemory clones a chat with each of its fields set. The copy shares none of
// the memory, and Size counts all of it.
func TestChatHasAllItsMemory(t *testing.T) {
	kinds := reflect.TypeFor[prompt.Chat]()
	for i := range kinds.NumField() {
		var c prompt.Chat
		field := reflect.ValueOf(&c).Elem().Field(i)
		switch name := kinds.Field(i).Name; field.Interface().(type) {
		case json.RawMessage:
			field.SetBytes([]byte("[1]"))
			copied := c.Clone()
			clear(field.Bytes())
			if got := reflect.ValueOf(copied).Field(i).Bytes(); string(got) != "[1]" {
				t.Errorf("%s: the copy has %q", name, got)
			}
			if c.Size() != 3 {
				t.Errorf("%s: the size is %d", name, c.Size())
			}
		case *bool:
			value := true
			field.Set(reflect.ValueOf(&value))
			copied := c.Clone()
			if got := reflect.ValueOf(copied).Field(i); got.IsNil() || got.Pointer() == field.Pointer() {
				t.Errorf("%s: the copy has the same bool, or none", name)
			}
		case string:
			field.SetString("abc")
			if c.Size() != 3 {
				t.Errorf("%s: the size is %d", name, c.Size())
			}
		}
	}
}
