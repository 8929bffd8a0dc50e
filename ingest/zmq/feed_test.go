package zmq

import (
	"errors"
	"reflect"
	"testing"
)

func TestFeed(t *testing.T) {
	done := make(chan struct{})
	f := &Feed{To: make(chan Heard, 4), Done: done}
	f.Connected("peer")
	f.Message(Message{Seq: 7})
	f.Malformed(errors.New("two frames"))
	f.Disconnected(errors.New("reset"))
	for _, want := range []Heard{{News: "connected to peer"}, {Message: Message{Seq: 7}}, {News: "two frames"}, {News: "reset"}} {
		if got := <-f.To; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	// A feed without a reader blocks no subscriber.
	close(done)
	for range 10 {
		f.Message(Message{})
	}
}
