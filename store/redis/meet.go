package redis

import (
	"bytes"
	"net"
	"slices"

	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
	"github.com/kvatlas/kvatlas/store/redis/roster"
)

// meet returns the texts that name no pod in what has been read of open models, ascending.
// There are none where queries name pods.
func (l *lookup) meet(queries []*store.Query) (met []string) {
	if slices.ContainsFunc(queries, func(q *store.Query) bool { return q.Named != nil }) {
		return nil
	}
	most := 0
	for i := range l.open {
		most = max(most, l.open[i].n)
	}
	for block := range most { // the first blocks of all chains before the second ones
		for i := range l.open {
			c := &l.open[i]
			switch {
			case block >= c.n || !l.snap.Opens(c.q.Model):
			case c.entries != nil:
				met = l.meetEntry(met, c, block)
			default:
				met = l.meetValue(met, c, block)
			}
			if len(met) == roster.MaxMet {
				return met
			}
		}
	}
	return met
}

// meetValue is meet of a block's value.
func (l *lookup) meetValue(met []string, c *chain, block int) []string {
	s := l.snap
	v, held := l.batch.Value(c.from + block)
	if !held || !s.AllSwept() || l.x.config.TextAge < 0 {
		return met
	}
	if block > 0 {
		if last, _ := l.batch.Value(c.from + block - 1); bytes.Equal(last, v) {
			return met
		}
	}
	if _, ids := keyspace.AppendHolders(l.ids[:0], v); ids || !keyspace.IsText(v) {
		return met
	}
	for text := range bytes.SplitSeq(bytes.TrimPrefix(v, []byte{','}), []byte{','}) {
		if !s.Knows(string(text)) {
			met = meeting(met, string(text))
		}
	}
	return met
}

// meetEntry is meet of an entry of LMCache. The port is that of LMCache's own server, so
// that a host is enough to be known by.
func (l *lookup) meetEntry(met []string, c *chain, block int) []string {
	l.entries.EachText(c.from, block, func(text string) {
		if l.snap.Knows(text) {
			return
		}
		if host, _, err := net.SplitHostPort(text); err != nil || !l.snap.Knows(host) {
			met = meeting(met, text)
		}
	})
	return met
}

// meeting returns met with a text, if there is room.
func meeting(met []string, text string) []string {
	at, there := slices.BinarySearch(met, text)
	if there || len(met) == roster.MaxMet {
		return met
	}
	return slices.Insert(met, at, text)
}
