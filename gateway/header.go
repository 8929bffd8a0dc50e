package gateway

import (
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
)

// The headers by which clients name their requests and sessions.
const (
	headerRequest = "X-Request-Id"
	headerSession = "X-Session-Id"
)

// The headers of answers that are the gateway's own.
const (
	headerPrefix    = "X-Kvatlas-"
	headerPod       = "X-Kvatlas-Pod"
	headerRank      = "X-Kvatlas-Rank"
	headerWhy       = "X-Kvatlas-Why"
	headerAttempts  = "X-Kvatlas-Attempts"
	headerPrompt    = "X-Kvatlas-Prompt-Tokens"
	headerPredicted = "X-Kvatlas-Predicted-Tokens"
	headerDelivered = "X-Kvatlas-Delivered-Tokens"
)

// rewrite makes the headers that engines get. They are those of the client and the X-Forwarded
// ones. Left out are ours, and the hop-by-hop ones, which the ReverseProxy has dropped.
func rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it is, also what does not parse
	dropOwn(pr.Out.Header)
	if from := pr.In.Header["X-Forwarded-For"]; from != nil {
		pr.Out.Header["X-Forwarded-For"] = from
	}
	pr.SetXForwarded()
	if x := exchangeOf(pr.In); x.salted {
		for _, name := range scopedHeaders {
			pr.Out.Header.Del(name)
			if own := pr.In.Header.Get(name); own != "" {
				pr.Out.Header.Set(name, x.g.c.Scoped(x.ctx, own))
			}
		}
	}
}

// scopedHeaders name a request or a session, and an engine knows one by its name. One of the
// client with a salt is changed, so that no other client can name it.
var scopedHeaders = [...]string{headerRequest, headerSession}

func dropOwn(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, headerPrefix) {
			delete(h, name)
		}
	}
}

// mark writes into the header of an answer where it comes from. How many tokens were cached is
// known at its end: a stream has it as a trailer.
func (x *exchange) mark(resp *http.Response) {
	h := resp.Header
	dropOwn(h)
	if x.salted && x.id != "" && h.Get(headerRequest) != "" {
		h.Set(headerRequest, x.id) // the engine has been told another
	}
	if x.client.leavesRest() && resp.StatusCode != http.StatusSwitchingProtocols {
		h.Set("Connection", "close")
	}
	h[headerPod] = []string{x.place.Pod}
	h[headerWhy] = []string{x.place.why}
	if x.place.ranked {
		h[headerRank] = []string{strconv.Itoa(x.place.Rank)}
	}
	if len(x.tried) > 0 {
		h[headerAttempts] = []string{strconv.Itoa(len(x.tried) + 1)}
	}
	if x.tokens >= 0 {
		h[headerPrompt] = []string{strconv.Itoa(x.tokens)}
	}
	if x.predicted >= 0 {
		h[headerPredicted] = []string{strconv.Itoa(x.predicted)}
	}
	switch {
	case x.delivered >= 0:
		h[headerDelivered] = []string{strconv.Itoa(x.delivered)}
	case x.of != apiOther && resp.ContentLength < 0 && resp.StatusCode == http.StatusOK:
		if resp.Trailer == nil {
			resp.Trailer = http.Header{}
		}
		resp.Trailer[headerDelivered] = nil
	}
}
