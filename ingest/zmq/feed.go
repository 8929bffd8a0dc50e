package zmq

// Heard is what a Feed gives: a message, or news of the connection.
type Heard struct {
	Message Message
	// News is "connected to" and the peer, or the text of an error; it is empty for a
	// message.
	News string
}

// Feed is a Handler that gives what it gets to the reader of To. While there is no
// room it waits, and the publisher with it.
type Feed struct {
	To   chan Heard
	Done <-chan struct{} // closed when the reader has gone
}

var _ Handler = (*Feed)(nil)

func (f *Feed) give(h Heard) {
	select {
	case f.To <- h:
	case <-f.Done:
	}
}

// Connected implements Handler.
func (f *Feed) Connected(peer string) { f.give(Heard{News: "connected to " + peer}) }

// Message implements Handler.
func (f *Feed) Message(m Message) { f.give(Heard{Message: m}) }

// Malformed implements Handler.
func (f *Feed) Malformed(err error) { f.give(Heard{News: err.Error()}) }

// Disconnected implements Handler.
func (f *Feed) Disconnected(err error) { f.give(Heard{News: err.Error()}) }
