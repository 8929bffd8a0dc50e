package ingest

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// actions are what a follower makes others do.
type actions interface {
	// replayable tells whether there is a replay socket.
	replayable() bool
	// replay returns what the engine has from a sequence on, or the first part of it.
	// A nil error says that it was all, as far as the engine says.
	replay(ctx context.Context, from uint64) ([]zmq.Message, error)
	// accept takes the next message of the life.
	accept(ctx context.Context, m zmq.Message, mark uint64) error
	// begin ends the life and begins another one.
	begin(ctx context.Context, reason Reason) error
	// gap is told of sequences that are missing, from first to before next.
	gap(first, next uint64)
	// pause waits before the n-th try in a row that has brought nothing, 1 or more.
	// errStale says that the connection has ended meanwhile, and the next one will
	// begin with a question to the replay socket anyway.
	pause(ctx context.Context, n int) error
}

// errStale says that there is nobody any more to ask.
var errStale = errors.New("ingest: the connection has ended")

// follower brings a stream into its order, by asking for what is missing. It has no
// clock and does no I/O but by its actions. After an error its life is in doubt:
// resync makes it whole.
type follower struct {
	order
	act actions
	// tries is how often in a row a replay may bring nothing of what is missing.
	tries int
}

// connect follows a new connection.
func (f *follower) connect(ctx context.Context) error {
	f.connected()
	if f.act.replayable() {
		return f.catchUp(ctx, 0, false)
	}
	return f.giveUp(ctx, NoReplay, 0)
}

// resync begins a new life and follows it from what the engine still has.
func (f *follower) resync(ctx context.Context, reason Reason) error {
	if err := f.act.begin(ctx, reason); err != nil {
		return err
	}
	f.fresh()
	if !f.act.replayable() {
		f.open = true
		return nil
	}
	return f.catchUp(ctx, 0, false)
}

// receive follows a live message.
func (f *follower) receive(ctx context.Context, m zmq.Message) error {
	mark := fingerprint(m.Payload)
	v := f.hear(m.Seq, mark)
	if v == missing {
		f.act.gap(f.next, m.Seq)
	}
	if v == reborn {
		if err := f.giveUp(ctx, Restarted, 0); err != nil {
			return err
		}
		f.open = !f.act.replayable()
		v = f.judge(m.Seq, mark)
	}
	if v == missing {
		var err error
		if f.act.replayable() {
			err = f.catchUp(ctx, m.Seq, false)
		} else {
			err = f.giveUp(ctx, Lost, m.Seq)
		}
		if err != nil {
			return err
		}
		// What was asked for may turn out to be of another life than the message;
		// then it is that life which counts, and the next connection tells.
		v = f.judge(m.Seq, mark)
	}
	if v == take {
		return f.act.accept(ctx, m, mark)
	}
	return nil
}

// probe asks whether there is more, after a silence. That nobody answers means
// nothing then.
func (f *follower) probe(ctx context.Context) error {
	if !f.act.replayable() {
		return nil
	}
	return f.catchUp(ctx, 0, true)
}

// giveUp begins a new life with the live message seq or a later one. Where nothing has
// been taken of the life there is, it will do.
func (f *follower) giveUp(ctx context.Context, reason Reason, seq uint64) error {
	if f.known {
		if err := f.act.begin(ctx, reason); err != nil {
			return err
		}
	}
	f.skipTo(seq)
	return nil
}

// catchUp asks for what there is, again from the first hole, until all before upto has
// come, and, whatever upto is, until the engine says that there is no more. What does
// not come begins a new life.
func (f *follower) catchUp(ctx context.Context, upto uint64, probing bool) error {
	for tries := 0; ; {
		known, next := f.known, f.next
		messages, err := f.act.replay(ctx, f.ask())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		hole, again := false, false
		for i := 0; i < len(messages) && !hole && !again; i++ {
			m := messages[i]
			mark := fingerprint(m.Payload)
			switch f.replayed(m.Seq, mark) {
			case take:
				if err := f.act.accept(ctx, m, mark); err != nil {
					return err
				}
			case pass:
			case missing:
				hole = true
				if tries < f.tries {
					break
				}
				// It does not come, and what is behind it will do.
				if err := f.giveUp(ctx, Lost, m.Seq); err != nil {
					return err
				}
				hole, tries = false, 0
				i-- // it begins the new life
			case unproven:
				if err := f.giveUp(ctx, Lost, m.Seq); err != nil {
					return err
				}
				i-- // it begins the new life
			case reborn:
				if err := f.giveUp(ctx, Restarted, 0); err != nil {
					return err
				}
				// All that it has, not just from where we have asked. And what was heard
				// may be of the life before.
				again, upto, tries = true, 0, 0
			}
		}
		if f.known && (!known || f.next != next) {
			tries = 0
			again = again || hole || err != nil
		}
		switch {
		case again:
			continue
		case hole:
		case err != nil && probing:
			return nil
		case err != nil:
			if tries >= f.tries {
				return f.giveUp(ctx, NoReplay, upto)
			}
		case f.known && !f.proved:
			// It says that it has nothing from our last message on: it is another
			// process, or its answer was cut.
			if tries >= min(f.tries, 1) {
				if err := f.giveUp(ctx, Restarted, 0); err != nil {
					return err
				}
				upto, tries = 0, 0
				continue
			}
		case f.next >= upto:
			// A life that has said nothing yet begins with 0.
			f.open = false
			return nil
		case tries >= f.tries:
			return f.giveUp(ctx, Lost, upto)
		}
		tries++
		if err := f.act.pause(ctx, tries); err != nil {
			return err
		}
	}
}
