// Package gateway is an OpenAI-compatible reverse proxy in front of engines. It sends each
// request where package route books it, and reports to the router what becomes of it.
//
//	g, err := gateway.New(gateway.Config{Router: router, Index: index})
//	defer g.Close()
//	http.ListenAndServe("127.0.0.1:8000", g)
//
// A request whose prompt is understood is read whole before it is sent. So it can be sent
// again to a place of the decision's fallback list, until the first byte of an answer has
// come. All else is passed on as it comes, to a pod that is chosen without the prompt. An
// answer is passed on as it comes, byte for byte. Only one thing is taken out of it: the chunk
// with the usage of a stream that the client did not ask for.
//
// The forwarding itself is httputil.ReverseProxy's. A Gateway is its Transport: it chooses the
// pod, repeats, watches the answer pass, and keeps the clocks.
//
// A fault of the router, of the tokenizer or of what they depend on never refuses a request.
// The request goes to the pod with the fewest requests of this gateway.
package gateway
