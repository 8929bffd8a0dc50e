package ingest

// order is where the stream of a rank stands. It is a pure state machine. It is told
// numbers and fingerprints of messages, in the order in which they come over the
// wire, and says what to do with each.
//
// A fingerprint is a hash of a message's bytes, which have the time in them. So two
// processes hardly ever have the same message under one number.
type order struct {
	// known is true when a message of this life has been taken. Then next is the
	// sequence that comes next, and mark the fingerprint of the one before. When it is
	// not known, next is from where on to ask.
	known bool
	next  uint64
	mark  uint64
	// open lets a life begin with any live message, because what is before it cannot
	// be got.
	open bool
	// heard is true when this connection has brought a message; live is its number.
	heard bool
	live  uint64
	// proved is true when the answer to the last ask is of the same life as what was
	// taken.
	proved bool
	// sure is true when the last message that was taken is of the process that is heard. It
	// came over this connection, or with an answer that has a message which did.
	sure bool
	// behind is true while live messages have lower numbers than what was taken or given
	// up. Nothing proves then that this was of the process that is heard.
	behind bool
	// joined is true when a live message was taken behind what a replay has told.
	// Nothing has shown yet that both are of one process.
	joined bool
	// doubted is true when what a replay has told contradicts the live stream, until a
	// replay agrees with it again.
	doubted bool
}

// verdict is what to do with a message.
type verdict uint8

const (
	// take it: it is the next.
	take verdict = iota
	// pass over it: it has been taken.
	pass
	// missing: those from next on, before this one, are missing.
	missing
	// reborn: it is of another life of the engine than what was taken.
	reborn
	// unproven: the engine does not have the last message that was taken, so that it is open whether this one
	// is of the same life.
	unproven
	// contradicted: under the number of a live message something else was taken, which a
	// replay has told.
	contradicted
)

// connected notes a new connection, perhaps to a new process: what was learnt of holes
// in the numbers of the last one is void.
func (o *order) connected() {
	o.heard, o.sure, o.behind = false, false, false
	if !o.known {
		o.next, o.open = 0, false
	}
}

// fresh begins a new life, of which nothing is known: what the engine still has of it
// is asked for from 0 on.
func (o *order) fresh() { *o = order{heard: o.heard, live: o.live, doubted: o.doubted} }

// skipTo begins a new life behind a hole that cannot be filled: with the message seq,
// or a later one.
func (o *order) skipTo(seq uint64) {
	o.fresh()
	o.next, o.open = seq, true
}

// ask returns the sequence to ask a replay from: that of the last message, whose bytes show whether it is
// still the same life.
func (o *order) ask() uint64 {
	o.proved = !o.known
	if o.known {
		return o.next - 1
	}
	return o.next
}

// hear judges a live message. Within a connection numbers only ascend.
func (o *order) hear(seq, mark uint64) verdict {
	before, heard := o.live, o.heard
	o.heard, o.live = true, seq
	if heard && seq <= before {
		return reborn
	}
	return o.judge(seq, mark)
}

// judge is hear of a message that has been heard before.
func (o *order) judge(seq, mark uint64) verdict {
	switch {
	case o.known && seq == o.next-1:
		if mark != o.mark {
			return contradicted
		}
		o.agreed()
		return pass
	case seq < o.next:
		o.behind = !o.sure
		return pass
	case seq == o.next || !o.known && o.open:
		o.joined = o.joined || o.known && !o.sure
		o.took(seq, mark)
		o.sure, o.behind = true, false
		return take
	}
	return missing
}

// replayed judges a message of the answer to the last ask.
func (o *order) replayed(seq, mark uint64) verdict {
	switch {
	case !o.known && seq >= o.next:
		// What the engine still has of a life begins here.
		o.took(seq, mark)
		return take
	case !o.known || seq < o.next-1:
		return pass
	case seq == o.next-1:
		if mark != o.mark {
			return reborn
		}
		o.proved, o.doubted = true, false
		o.joined = o.joined && !o.sure
		return pass
	case !o.proved:
		return unproven
	case seq == o.next:
		o.took(seq, mark)
		return take
	}
	return missing
}

func (o *order) took(seq, mark uint64) {
	o.known, o.open, o.proved, o.sure = true, false, true, false
	o.next, o.mark = seq+1, mark
}

// agreed notes that what was taken is of the process that is heard.
func (o *order) agreed() { o.sure, o.behind, o.joined, o.doubted = true, false, false, false }
