// Package chat renders conversations into prompts with the chat templates of
// models, as the engines that serve the models do it.
//
// A Renderer is made from the files of one model and renders Requests: the
// messages, tools and other fields of a chat completion, as JSON. It guarantees:
//
//   - The text is the engine's, byte for byte: messages are prepared as vLLM
//     prepares them, and templates see Python's values, string methods, str,
//     repr and json.dumps. What differs is listed in docs/chat-templates.md and
//     in the tests.
//   - The order of keys in the request's JSON is kept, and so is the form of its
//     numbers: 1.0 stays 1.0, and whole numbers of any size stay exact.
//   - A template is not trusted. It sees nothing but the context that it is
//     given, and its work, memory, output and nesting have limits (Limits), so
//     that a hostile one ends in an error within a fraction of a second.
//   - An error says whose fault it is: ErrRequest, ErrNoTemplate, ErrCompile,
//     ErrRaised, ErrTemplate, ErrLimit, ErrTooLarge.
//
// Templates are rendered by minijinja, which is compiled into the tokenizer
// library (rust/hftmpl.rs); no Python is involved.
//
//	files, err := chat.ReadFiles("/models/org/model")
//	r, err := chat.NewRenderer(files, chat.Options{})
//	p, err := r.Render(chat.Request{Messages: messages, Tools: tools})
//
// Everything exported is safe for concurrent use. The text has all special
// tokens that the template puts: it is to be tokenized without adding more.
package chat
