package server

import "github.com/kvatlas/kvatlas/prompt"

// valueBytes is what a JSON value of a chat takes while its template is rendered, at most:
// measured are 33 of a number, 105 of an empty object and 152 of an array in another. It is
// up to 80 bytes for each of the body, which madeOfBody does not know.
const valueBytes = 160

// holdChat holds what the JSON values of a chat take, and refuses those that take more than
// all requests may.
func (c *call) holdChat(q *prompt.Chat) error {
	want := valueBytes * int64(chatValues(q))
	if want <= uncounted {
		return nil
	}
	limit := c.s.cfg.Limits.MaxInFlightBytes
	if want > limit {
		return tooLarge("", "the chat has %d JSON values, which take %d bytes each while it is rendered; all requests together may take %d", want/valueBytes, valueBytes, limit)
	}
	// As with bodies, one that takes more than all with its body is let in alone.
	if more := min(want, limit-c.held.Load()); more > 0 {
		return c.hold(more)
	}
	return nil
}

// chatValues is how many JSON values a chat has about, and not less.
func chatValues(q *prompt.Chat) (n int) {
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
