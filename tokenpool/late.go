package tokenpool

import "sync"

// late is an encoder that is read when it is first needed: the reference of a tokenizer
// whose proof is at hand. Where it cannot be read, it encodes nothing, which is a failure
// (tokenize).
type late struct {
	read func() (encoder, error)

	once  sync.Once // makes the rest
	enc   encoder
	err   error
	bytes int64 // as Model.MemoryBytes
}

// load reads the encoder, or waits for the goroutine that reads it.
func (l *late) load() error {
	l.once.Do(func() {
		before := memoryBytes()
		l.enc, l.err = l.read()
		l.bytes = max(memoryBytes()-before, 0)
		l.read = nil // and what it holds
	})
	return l.err
}

func (l *late) encode(text string, special bool) ([]uint32, []int) {
	if l.load() != nil {
		return nil, nil
	}
	return l.enc.encode(text, special)
}

func (l *late) check(string) error { return nil }

func (l *late) decode(ids []uint32, skipSpecial bool) string {
	if l.load() != nil {
		return ""
	}
	return l.enc.decode(ids, skipSpecial)
}

func (l *late) vocabulary() int {
	if l.load() != nil {
		return 0
	}
	return l.enc.vocabulary()
}

func (l *late) close() {
	l.once.Do(func() {}) // it is not read any more
	if l.enc != nil {
		l.enc.close()
	}
}
