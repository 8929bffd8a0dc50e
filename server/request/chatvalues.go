package request

import "github.com/kvatlas/kvatlas/prompt"

// ChatValues is how many JSON values a chat has about, and not less.
func ChatValues(q *prompt.Chat) (n int) {
	for _, raw := range [][]byte{q.Messages, q.Tools, q.Documents, q.ChatTemplateKwargs, q.System, q.Thinking, q.OutputConfig, q.Input, q.Reasoning} {
		n += valuesOf(raw)
	}
	return n
}

// valuesOf counts the values in JSON by what begins and what separates them.
func valuesOf(raw []byte) (n int) {
	if len(raw) > 0 {
		n = 1
	}
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '[', '{', ',':
			n++
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++ // what is escaped ends no string
				}
			}
		}
	}
	return n
}
