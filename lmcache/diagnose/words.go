package diagnose

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/lmcache"
)

// releases are the first and the last release of each line.
var releases = map[lmcache.Version][2]string{
	lmcache.V01: {"0.1", "0.1"}, lmcache.VFork: {"fork", "fork"}, lmcache.V031: {"0.3.1", "0.3.2"}, lmcache.V033: {"0.3.3", "0.3.3"},
	lmcache.V034: {"0.3.4", "0.3.5"}, lmcache.V036: {"0.3.6", "0.3.9"}, lmcache.V0310: {"0.3.10", "0.3.12"}, lmcache.V0313: {"0.3.13", "0.3.15"},
	lmcache.V041: {"0.4.1", "0.4.5"}, lmcache.V046: {"0.4.6", "0.5.6"},
}

// line names the releases that are of a line.
func line(v lmcache.Version) string {
	if r := releases[v]; r[0] != r[1] {
		return r[0] + " to " + r[1]
	}
	return v.String()
}

// describe is a config in words.
func describe(c lmcache.Config) string {
	parts := []string{"LMCache " + line(c.Version)}
	if c.MP {
		parts[0] += " in MP mode"
	}
	if c.MP || c.Version > lmcache.V031 {
		parts = append(parts, algorithm(c))
		switch {
		case seeded(c):
			parts = append(parts, "PYTHONHASHSEED="+c.Seed)
		case algorithm(c) == "builtin":
			parts = append(parts, "not inside vLLM")
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("chunks of %d", c.ChunkSize)), ", ")
}

// algorithm is the name of what hashes, with defaults filled in.
func algorithm(c lmcache.Config) string {
	switch {
	case !c.MP && c.Version <= lmcache.V031:
		return "sha256 in a chain of hex"
	case c.Algorithm != lmcache.Default:
		return c.Algorithm.String()
	case c.MP:
		return lmcache.Blake3.String()
	}
	return lmcache.Builtin.String()
}

// seeded reports whether the seed counts.
func seeded(c lmcache.Config) bool {
	return c.VLLM && algorithm(c) != "blake3" && (c.MP || c.Version > lmcache.V031)
}

// Spell is a profile of a model as kvatlas doctor and the settings take it.
func Spell(model string, p lmcache.Profile) string {
	c := p.Config
	params := []string{"version=" + releases[c.Version][1]}
	add := func(name, value string) {
		if value != "" {
			params = append(params, name+"="+url.QueryEscape(value))
		}
	}
	if c.MP {
		add("mp", "true")
	}
	if c.MP || c.Version > lmcache.V031 {
		if a := algorithm(c); a != algorithm(lmcache.Config{Version: c.Version, MP: c.MP}) {
			add("algorithm", a)
		}
		builtin := algorithm(c) == lmcache.Builtin.String()
		switch {
		case seeded(c):
			add("seed", c.Seed)
		case builtin && !c.VLLM:
			add("vllm", "false")
		}
		if builtin && c.Python != 0 && (c.VLLM || c.Version < lmcache.V041) {
			add("python", fmt.Sprintf("3.%d", c.Python))
		}
	}
	if size := cmp.Or(c.ChunkSize, blockkey.DefaultChunkSize); size != blockkey.DefaultChunkSize {
		add("chunk_size", strconv.Itoa(size))
	}
	add("name", p.Model)
	add("fmt", p.Fmt)
	add("dtype", p.DType)
	for _, n := range p.WorldSizes {
		add("world_size", strconv.Itoa(n))
	}
	if p.Remote != lmcache.NoRemote {
		add("remote", p.Remote.String())
	}
	return (&url.URL{Path: model}).EscapedPath() + "?" + strings.Join(params, "&")
}
