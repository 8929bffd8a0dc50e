// Package look is the commands that look at a running server: pods, models, loads and prefixes.
package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
)

// page is one of the commands: what it asks for, and how it shows it.
type page struct {
	name, short, usage string
	path               string
	key                string // what the answer has its list under
	byModel            string // what --model says of it; empty where there is no such flag
	next               string // what to do where there are none
	write              func(t *table, answer []byte, model string) error
}

var pages = []page{
	{"pods", "list the pods of a running server", podsUsage, "/v1/pods", "pods", "only pods that are registered for this `model`",
		"name engines with --pods when the server starts, or register one with POST /v1/pods; the log says why pods that were named are missing", writePods},
	{"models", "list the models of a running server, and their tokenizers", modelsUsage, "/v1/models", "models", "",
		"a model is indexed with its first pod, and its tokenizer loaded with its first text", writeModels},
	{"loads", "list what runs where, as a running server has booked it", loadsUsage, "/v1/loads", "models", "only loads of this `model`",
		"a load begins with POST /v1/route that has \"reserve\":true, with a request through the gateway, or with what an engine says", writeLoads},
	{"prefixes", "list the prefixes that requests are routed with most, and their holders", prefixesUsage, "/v1/prefixes", "models", "only prefixes of this `model`",
		"one is listed once two requests that are routed begin with it, by POST /v1/route or through the gateway", writePrefixes},
}

// Commands are the commands.
func Commands(p *cli.Program) (out []cli.Command) {
	for i := range pages {
		out = append(out, cli.Command{Name: pages[i].name, Short: pages[i].short, Run: func(ctx context.Context, args []string) int { return pages[i].run(ctx, p, args) }})
	}
	return out
}

// run is one of the commands.
func (g *page) run(ctx context.Context, p *cli.Program, args []string) int {
	fs := flag.NewFlagSet("kvatlas "+g.name, flag.ContinueOnError)
	server := fs.String("server", cmp.Or(p.Getenv("KVATLAS_SERVER"), cli.DefaultServer), "the server's `URL` [$KVATLAS_SERVER]")
	timeout := fs.Duration("timeout", 30*time.Second, "how long to wait for the answer")
	asJSON := fs.Bool("json", false, "write the server's JSON as it is")
	model := new(string)
	if g.byModel != "" {
		fs.StringVar(model, "model", "", g.byModel)
	}
	if status, done := p.ParseFlags(g.name, g.usage, fs, args); done {
		return status
	}
	switch {
	case *timeout <= 0:
		return p.Misuse(g.name, fmt.Errorf("--timeout is %v, it must be positive", *timeout))
	case *asJSON && *model != "":
		return p.Misuse(g.name, errors.New("--json writes the answer as it is: --model is for the table"))
	}
	c, err := p.Client(g.name, *server, *timeout)
	if err != nil {
		return p.Misuse(g.name, err)
	}
	defer c.Close()
	var answer json.RawMessage
	if err := c.Call(ctx, http.MethodGet, g.path, nil, &answer); err != nil {
		return p.Fail(g.name, terminal.ServerError(*server, err))
	}
	if err := g.check(answer); err != nil {
		return p.Fail(g.name, fmt.Errorf("%s: %w", *server, err))
	}
	if *asJSON {
		fmt.Fprintf(p.Stdout, "%s\n", strings.TrimSpace(string(answer)))
		return cli.ExitOK
	}
	t := &table{to: tabwriter.NewWriter(p.Stdout, 0, 0, 2, ' ', 0)}
	if err := g.write(t, answer, *model); err != nil {
		return p.Fail(g.name, fmt.Errorf("the answer of %s cannot be read: %w", *server, err))
	}
	none := "no " + g.name
	if *model != "" {
		none += " of model " + terminal.Printable(*model)
	}
	if err := t.end(p.Stdout, none+": "+g.next); err != nil {
		return p.Fail(g.name, err)
	}
	return cli.ExitOK
}

// check returns an error for JSON that something else than kvatlas has answered with, such as
// the list of models of an engine. The list of a server that has none is there, and empty.
func (g *page) check(answer []byte) error {
	if len(answer) == 0 {
		return fmt.Errorf("not an answer of kvatlas: GET %s gives nothing", g.path)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(answer, &fields); err != nil || len(fields[g.key]) == 0 || string(fields[g.key]) == "null" {
		return fmt.Errorf("not an answer of kvatlas: GET %s gives JSON without %q", g.path, g.key)
	}
	return nil
}

// table is written with aligned columns. What a server says is in it, so nothing steers the
// terminal.
type table struct {
	to   *tabwriter.Writer
	rows int // below the head
}

// row writes a row; the first one is the head. A cell that is empty is a dash.
func (t *table) row(cells ...string) {
	t.rows++
	for i, c := range cells {
		cells[i] = cmp.Or(terminal.Printable(c), "-")
	}
	fmt.Fprintln(t.to, strings.Join(cells, "\t"))
}

// end writes the table, or the sentence where it has a head alone.
func (t *table) end(w io.Writer, none string) error {
	if t.rows < 2 {
		_, err := fmt.Fprintln(w, none)
		return err
	}
	return t.to.Flush()
}

// count is a number, "" for 0, which stands for what is not known.
func count[N int | int64](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// mebibytes is a size.
func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
