package server

import (
	_ "embed"
	"fmt"
	"html"
	"net/http"
	"strings"
)

// frontPage is the page at /, as text and as HTML. Both are made once.
type frontPage struct{ text, html []byte }

// aboutServer says what answers here, to visitors by chance.
const aboutServer = "This is kvatlas, a distributed index of KV-cache blocks: it tells a scheduler which engine holds the longest prefix of a prompt."

// tries are calls that a newcomer can begin with, relative to where the page is.
var tries = []struct{ Path, Does string }{
	{"openapi.json", "describes the API (OpenAPI 3.1)"},
	{"readyz", "says whether this server is ready"},
	{"v1/pods", "lists the engines that are registered; so does kvatlas pods"},
	{"v1/models", "lists the models and tokenizers; so does kvatlas models"},
	{"v1/loads", "lists what runs where; so does kvatlas loads"},
	{"metrics", "has the metrics for Prometheus"},
}

// frontHead and frontRoutes are what stands around the lists of the page as HTML.
const (
	frontHead = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>kvatlas</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:50em;margin:3em auto;padding:0 1em}td{padding-right:1.5em}code{font-size:.95em}</style>
<h1>kvatlas</h1>
<p>%s</p>
<p>Version %s, index: %s.</p>
<ul>
`
	frontRoutes = `</ul>
<h2>Routes</h2>
<p>Where callers have credentials, each needs the role beside it: <code>Authorization: Bearer TOKEN</code>. Routes for admins may be at an address of their own.</p>
<table>
`
)

// makeFront makes the page out of the table of routes. It is written by hand: html/template, which
// calls methods by name, has the linker keep all methods of all packages.
func (s *Server) makeFront() (page frontPage) {
	var text, markup strings.Builder
	safe := html.EscapeString
	fmt.Fprintf(&markup, frontHead, safe(aboutServer), safe(s.cfg.Version), safe(s.cfg.Backend))
	fmt.Fprintf(&text, "%s\n\nVersion %s, index: %s.\n\n", aboutServer, s.cfg.Version, s.cfg.Backend)
	for _, t := range tries {
		fmt.Fprintf(&markup, "<li><a href=\"%[1]s\">/%[1]s</a> %[2]s</li>\n", safe(t.Path), safe(t.Does))
		fmt.Fprintf(&text, "  GET /%-13s %s\n", t.Path, t.Does)
	}
	markup.WriteString(frontRoutes)
	text.WriteString("\nAll routes, and the role that a caller with credentials needs:\n\n")
	for _, r := range s.routeTable() {
		fmt.Fprintf(&markup, "<tr><td><code>%s</code><td><code>%s</code><td>%s</tr>\n", safe(r.method), safe(r.pattern), safe(r.role.String()))
		fmt.Fprintf(&text, "  %-6s %-36s %s\n", r.method, r.pattern, r.role)
	}
	markup.WriteString("</table>\n</html>\n")
	return frontPage{text: []byte(text.String()), html: []byte(markup.String())}
}

// front is GET /: what this is, and where to go. It says no more than /healthz and
// /openapi.json do, so it is for everyone.
func (c *call) front() error {
	h := c.w.Header()
	h.Set("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	// Browsers ask for HTML by name; others take the text.
	if strings.Contains(c.r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		c.reply(http.StatusOK, c.s.page.html)
		return nil
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	c.reply(http.StatusOK, c.s.page.text)
	return nil
}

// document is the OpenAPI description of every route of this package; a test
// holds the two against each other.
//
//go:embed openapi.json
var document []byte

// openAPI is GET /openapi.json.
func (c *call) openAPI() error {
	c.reply(http.StatusOK, document)
	return nil
}
