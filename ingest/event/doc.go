// Package event has the KV-cache events of inference engines: what vLLM, SGLang,
// TensorRT-LLM, LMCache and Mooncake say of the blocks they keep, in one form.
//
// A [Decoder] reads what engines publish. It reads every form that vLLM 0.9 to
// 0.33 and SGLang 0.4.6 to 0.5.23 have on the wire, Dynamo's TensorRT-LLM
// publisher, TensorRT-LLM's own and Mooncake's. They are arrays with the kind
// first, of any length, and maps by name. What is not known of a map is passed
// over. It reads a message once, and allocates nothing once a [Batch] has grown to
// the messages it is used for. It believes no size in a message unless the bytes
// for it are there and an operator's [Limits] allow it.
//
//	var (
//		d event.Decoder
//		b event.Batch
//	)
//	for payload := range messages {
//		if err := d.Decode(payload, &b); err != nil {
//			// nothing of the message can be used: it counts as lost
//		}
//		for i := range b.Events {
//			// b.Events[i] is valid until the next Decode into b
//		}
//	}
//
// An event that cannot be used is left out, counted and told with its reason; the
// others of its message are there. Only a message whose structure is broken has
// none, for where its next event begins cannot be known.
//
// [AppendJSON] writes events as JSON with the engines' names, [Decoder.Pushes] reads
// what is sent over HTTP.
//
// What the engines' fields mean, and since when each sends which, is in
// docs/events.md.
package event
