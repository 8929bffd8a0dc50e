package ingest

import (
	"context"
	"errors"
	"time"

	"github.com/kvatlas/kvatlas/ingest/zmq"
)

// actions are what a follower makes others do.
type actions interface {
	// now is the time.
	now() time.Time
	// replayable reports whether there is a replay socket.
	replayable() bool
	// replay returns what the engine has from a sequence on, or the first part of it, and
	// how long it took. A nil error says that it was all, as far as the engine says. limit
	// bounds the time, 0 does not. The wait for a turn counts where a gap is known.
	replay(ctx context.Context, from uint64, limit time.Duration, gap bool) (messages []zmq.Message, took time.Duration, err error)
	// accept takes the next message of the life.
	accept(ctx context.Context, m zmq.Message, mark uint64) error
	// begin ends the life and begins another one.
	begin(ctx context.Context, reason Reason) error
	// gap receives the sequences that are missing, from first to before next.
	gap(first, next uint64)
	// doubt is told, once until it agrees again, that the replay contradicts the live
	// stream. The last number that was heard is live; the one that was to come is next.
	doubt(live, next uint64)
	// pause waits before the n-th try in a row that has brought nothing, 1 or more. It
	// waits at most limit, where that is above 0. Error errStale says that the connection
	// has ended meanwhile. The next one will begin with a question to the replay socket
	// anyway.
	pause(ctx context.Context, n int, limit time.Duration) error
}

// errStale says that the socket to ask is gone.
var errStale = errors.New("ingest: the connection has ended")

// follower brings a stream into its order, by asking for what is missing. It has no
// clock and does no I/O but by its actions. After an error its life is in doubt:
// resync makes it whole.
//
// The live stream is the truth, and a replay fills its holes. What a rank holds is not
// credited for longer than patience while it is not known to be whole, whatever the
// replay does. Then a new life begins with what comes live.
type follower struct {
	order
	act actions
	// tries is how often in a row a replay may bring nothing of what is missing.
	tries int
	// patience bounds the time of all questions that a life which is not whole may take.
	// It also bounds for how long live messages may stay behind what a replay has told.
	patience time.Duration
	// spent is how much of it was, since the life was whole or began.
	spent time.Duration
	// since is when the live messages fell behind, zero while they are not.
	since time.Time
}

// question is why a replay is asked.
type question struct {
	// gap says that a live message is there and those before it are not. It has the
	// number upto and the fingerprint mark: the answer must have the same message.
	gap  bool
	upto uint64
	mark uint64
	// probing says that nothing is known to be missing.
	probing bool
}

// connect follows a new connection.
func (f *follower) connect(ctx context.Context) error {
	f.connected()
	if !f.act.replayable() {
		return f.giveUp(ctx, NoReplay, 0)
	}
	return f.catchUp(ctx, question{})
}

// resync begins a new life and follows it from what the engine still has.
func (f *follower) resync(ctx context.Context, reason Reason) error {
	if err := f.act.begin(ctx, reason); err != nil {
		return err
	}
	f.fresh()
	f.spent = 0
	if !f.act.replayable() {
		f.open = true
		return nil
	}
	return f.catchUp(ctx, question{})
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
			err = f.catchUp(ctx, question{gap: true, upto: m.Seq, mark: mark})
		} else {
			err = f.giveUp(ctx, Lost, m.Seq)
		}
		if err != nil {
			return err
		}
		v = f.judge(m.Seq, mark)
	}
	if f.behind && f.since.IsZero() {
		f.since = f.act.now()
	}
	if v == missing || v == contradicted || f.behindLong() {
		if err := f.contradict(ctx, m.Seq); err != nil {
			return err
		}
		v = f.judge(m.Seq, mark)
	}
	if !f.behind {
		f.since = time.Time{}
	}
	if v != take {
		return nil
	}
	if err := f.act.accept(ctx, m, mark); err != nil || !f.joined || f.doubted {
		return err
	}
	// The numbers fit, and those of another engine may by chance.
	return f.catchUp(ctx, question{probing: true})
}

// behindLong reports whether live messages have been behind what a replay has told for so
// long that they are not what it told, read late.
func (f *follower) behindLong() bool {
	return f.behind && f.act.now().Sub(f.since) >= f.patience
}

// review ends a life that live messages have contradicted, when it is time and no further
// one comes.
func (f *follower) review(ctx context.Context) error {
	if !f.behindLong() {
		return nil
	}
	return f.contradict(ctx, 0)
}

// probe asks whether there is more, after a silence. A missing answer means nothing then.
func (f *follower) probe(ctx context.Context) error {
	if !f.act.replayable() {
		return nil
	}
	return f.catchUp(ctx, question{probing: true})
}

// giveUp begins a new life with the live message seq or a later one. Where nothing has
// been taken of the life there is, it will do.
func (f *follower) giveUp(ctx context.Context, reason Reason, seq uint64) error {
	if err := f.restart(ctx, reason, seq); err != nil {
		return err
	}
	f.spent = 0
	return nil
}

// restart is giveUp in the middle of a question, of which the patience goes on.
func (f *follower) restart(ctx context.Context, reason Reason, seq uint64) error {
	if f.known {
		if err := f.act.begin(ctx, reason); err != nil {
			return err
		}
	}
	f.skipTo(seq)
	f.since = time.Time{}
	return nil
}

// doubt notes that the replay contradicts the live stream.
func (f *follower) doubt() {
	if !f.doubted {
		f.doubted = true
		f.act.doubt(f.live, f.next)
	}
}

// contradict is giveUp of a life that has what a replay of another engine has told.
func (f *follower) contradict(ctx context.Context, seq uint64) error {
	f.doubt()
	return f.giveUp(ctx, Contradicted, seq)
}

// disown deals with an answer of which the last message that was taken is no part. It
// reports whether all that the replay has is to be asked for, as of a new life. If not,
// the question is done with. Argument verified says that the answer is of the process
// that is heard, again that the question led here before.
func (f *follower) disown(ctx context.Context, q question, verified, again bool) (ask bool, err error) {
	switch {
	case again, q.gap && !verified:
		return false, f.contradict(ctx, q.upto)
	case verified:
	case q.probing && f.joined:
		return false, f.contradict(ctx, 0)
	case q.probing && (f.sure || f.doubted):
		f.doubt() // what we have is heard, and it is not
		f.spent = 0
		return false, nil
	case f.doubted:
		return false, f.giveUp(ctx, NoReplay, 0)
	}
	return true, f.giveUp(ctx, Restarted, 0)
}

// has reports whether an answer has the message of the question, and whether it has
// another one in its place.
func (q *question) has(messages []zmq.Message) (it, other bool) {
	for i := range messages {
		if q.gap && messages[i].Seq == q.upto {
			if fingerprint(messages[i].Payload) != q.mark {
				return false, true
			}
			it = true
		}
	}
	return it, false
}

// catchUp asks for what there is, again from the first hole, until all before q.upto has
// come. In any case it asks until the engine says that there is no more. What does not
// come begins a new life.
func (f *follower) catchUp(ctx context.Context, q question) error {
	if q.probing {
		f.spent = 0
	}
	reborns, why := 0, NoReplay
	for tries := 0; ; {
		if f.doubted && !f.known {
			// It is ignored, since nothing can show that it agrees.
			f.skipTo(q.upto)
			return nil
		}
		known, next := f.known, f.next
		limit := time.Duration(0)
		if known || q.gap {
			if limit = f.patience - f.spent; limit <= 0 {
				return f.lose(ctx, q, why)
			}
		}
		messages, took, err := f.act.replay(ctx, f.ask(), limit, q.gap)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if known || q.gap {
			f.spent += took
		}
		last := tries >= f.tries || f.spent >= f.patience
		verified, strange := q.has(messages)
		if strange {
			messages = nil
		}
		hole, disowned := strange, strange
		for i := 0; i < len(messages) && !hole; i++ {
			m := messages[i]
			mark := fingerprint(m.Payload)
			if q.gap && !verified && m.Seq > q.upto {
				break // it may be any engine's
			}
			switch f.replayed(m.Seq, mark) {
			case take:
				if err := f.act.accept(ctx, m, mark); err != nil {
					return err
				}
			case pass, contradicted: // the second is of live messages alone
			case missing:
				hole = true
				q.probing = false // now it is known
				if !last {
					break
				}
				// It does not come, and what is behind it will do.
				if err := f.restart(ctx, Lost, m.Seq); err != nil {
					return err
				}
				hole, tries = false, 0
				i-- // it begins the new life
			case unproven:
				if q.gap && !verified {
					hole = true
					break
				}
				if f.doubted {
					_, err := f.disown(ctx, q, verified, false)
					return err
				}
				q.probing = false
				if err := f.restart(ctx, Lost, m.Seq); err != nil {
					return err
				}
				i-- // it begins the new life
			case reborn:
				hole, disowned = true, true
			}
		}
		if verified && f.known && f.next > q.upto {
			f.agreed()
		}
		if disowned && (tries >= min(f.tries, 1) || !q.gap && !f.sure) {
			ask, err := f.disown(ctx, q, verified, reborns > 0)
			if err != nil || !ask {
				return err
			}
			// All that it has, not just from where we have asked.
			q.probing, tries = false, 0
			reborns++
			continue
		}
		why = NoReplay
		if err == nil || hole {
			why = Lost
		}
		if !disowned && f.known && (!known || f.next != next) {
			tries = 0
			if hole || err != nil {
				continue
			}
		}
		switch {
		case hole:
			if last {
				return f.lose(ctx, q, why)
			}
		case err != nil && q.probing:
			f.spent = 0
			return nil
		case err != nil:
			if last {
				return f.giveUp(ctx, NoReplay, q.upto)
			}
		case f.known && !f.proved:
			// It says that it has nothing from our last message on: it is another
			// process, or its answer was cut.
			if tries >= min(f.tries, 1) {
				ask, err := f.disown(ctx, q, verified, reborns > 0)
				if err != nil || !ask {
					return err
				}
				q.probing, tries = false, 0
				reborns++
				continue
			}
		case f.next >= q.upto:
			// A life that has said nothing yet begins with 0.
			f.open = false
			f.spent = 0
			return nil
		case last:
			return f.giveUp(ctx, Lost, q.upto)
		}
		tries++
		limit = 0
		if f.known || q.gap {
			limit = max((f.patience-f.spent)/2, 1) // the rest is the next question's
		}
		began := f.act.now()
		err = f.act.pause(ctx, tries, limit)
		if f.known || q.gap {
			f.spent += f.act.now().Sub(began)
		}
		if err != nil {
			return err
		}
	}
}

// lose ends a question that has used up the patience: what is not whole begins anew,
// unless nothing is known to be missing.
func (f *follower) lose(ctx context.Context, q question, reason Reason) error {
	if q.probing {
		f.spent = 0
		return nil
	}
	return f.giveUp(ctx, reason, q.upto)
}
