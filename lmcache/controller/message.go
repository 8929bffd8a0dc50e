package controller

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvatlas/kvatlas/internal/jsonpack"
	"github.com/kvatlas/kvatlas/lmcache"
)

// errMalformed is wrapped by errors about frames that are no messages.
var errMalformed = errors.New("controller: malformed message")

// Limits of what is in a message.
const (
	// maxText bounds the bytes of a text.
	maxText = 1024
	// maxList bounds the operations and keys; LMCache puts 2,000 keys in a batch of a
	// full sync. A frame of 4 MiB could have millions that say nothing.
	maxList = 1 << 16
	// maxTokens bounds the tokens of a look-up.
	maxTokens = 1 << 20
)

// message is any message of LMCache 0.3.1 to 0.5.6 that a controller gets. It is the
// union of their fields by name, as msgspec writes them: a map that begins with "type".
type message struct {
	Type     string
	Instance string
	// worker is -1 when there is none.
	Worker   int
	IP       string
	Port     int
	PeerURL  string
	Location string
	Key      *key
	Seq      *uint64
	Ops      []kvOp

	SyncID  string
	Total   int
	Batches int
	Batch   int
	Keys    []key
	Actual  int

	Hashes  []key
	EventID string
	Tokens  []uint32
}

// kvOp is an admission or an eviction.
type kvOp struct {
	Op  string
	Key *key
	Seq *uint64
}

// key is the hash of a chunk in a message: a Python int from 0.3.3 on, before that its
// 64 hex digits. Workers of 0.3.13 to 0.4.5 with vLLM's hash functions send bytes, which
// is what kills LMCache's own controller.
type key struct{ lmcache.Hash }

// decode reads a frame: JSON when it begins with a brace, MessagePack else.
func decode(frame []byte) (*message, error) {
	m := &message{Worker: -1}
	var err error
	if len(frame) > 0 && frame[0] == '{' {
		frame, err = jsonpack.Append(make([]byte, 0, len(frame)), frame)
	}
	if err == nil {
		err = m.unpack(frame)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m.Type == "" {
		return nil, fmt.Errorf("%w: it has no type", errMalformed)
	}
	return m, nil
}

func (k *key) text(s string) error {
	if len(s) != 64 {
		return fmt.Errorf("a key of %d characters; as a text it has 64 hex digits", len(s))
	}
	var err error
	k.Hash, err = lmcache.ParseHash(strings.ToLower(s))
	return err
}

// unpack reads MessagePack.
func (m *message) unpack(b []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return err
	}
	for range n {
		var name []byte
		if name, b, err = msgp.ReadStringZC(b); err != nil {
			return err
		}
		if b, err = m.field(string(name), b); err != nil {
			return fmt.Errorf("%.40q: %w", name, err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes stand behind it", len(b))
	}
	return nil
}

// field reads the value of a field and returns what follows. Fields that are not needed
// are skipped.
func (m *message) field(name string, b []byte) ([]byte, error) {
	if len(b) > 0 && b[0] == 0xc0 { // nil is as if it were not there
		return b[1:], nil
	}
	switch name {
	case "type":
		return readText(b, &m.Type)
	case "instance_id":
		return readText(b, &m.Instance)
	case "worker_id":
		return readInt(b, &m.Worker)
	case "ip":
		return readText(b, &m.IP)
	case "port":
		return readInt(b, &m.Port)
	case "peer_init_url", "distributed_url": // 0.3.10 and later, 0.3.3 to 0.3.9
		return readText(b, &m.PeerURL)
	case "location":
		return readText(b, &m.Location)
	case "key":
		m.Key = new(key)
		return m.Key.unpack(b)
	case "seq_num":
		return readSeq(b, &m.Seq)
	case "operations":
		return readList(b, &m.Ops, maxList, (*kvOp).unpack)
	case "sync_id":
		return readText(b, &m.SyncID)
	case "total_keys":
		return readInt(b, &m.Total)
	case "batch_count":
		return readInt(b, &m.Batches)
	case "batch_id":
		return readInt(b, &m.Batch)
	case "keys":
		return readList(b, &m.Keys, maxList, (*key).unpack)
	case "actual_total_keys":
		return readInt(b, &m.Actual)
	case "hashes":
		return readList(b, &m.Hashes, maxList, (*key).unpack)
	case "event_id":
		return readText(b, &m.EventID)
	case "tokens":
		return readList(b, &m.Tokens, maxTokens, func(t *uint32, b []byte) (_ []byte, err error) {
			*t, b, err = msgp.ReadUint32Bytes(b)
			return b, err
		})
	}
	return msgp.Skip(b)
}

func (o *kvOp) unpack(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for range n {
		var name []byte
		if name, b, err = msgp.ReadStringZC(b); err != nil {
			return b, err
		}
		switch {
		case len(b) > 0 && b[0] == 0xc0:
			b = b[1:]
		case string(name) == "op_type":
			b, err = readText(b, &o.Op)
		case string(name) == "key":
			o.Key = new(key)
			b, err = o.Key.unpack(b)
		case string(name) == "seq_num":
			b, err = readSeq(b, &o.Seq)
		default:
			b, err = msgp.Skip(b)
		}
		if err != nil {
			return b, fmt.Errorf("%.40q: %w", name, err)
		}
	}
	return b, err
}

func (k *key) unpack(b []byte) ([]byte, error) {
	switch msgp.NextType(b) {
	case msgp.StrType:
		s, rest, err := msgp.ReadStringZC(b)
		if err == nil {
			err = k.text(string(s))
		}
		return rest, err
	case msgp.BinType:
		s, rest, err := msgp.ReadBytesZC(b)
		if err == nil {
			k.Hash, err = lmcache.BytesHash(s)
		}
		return rest, err
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(b)
		k.Hash = lmcache.IntHash(v)
		return rest, err
	default:
		v, rest, err := msgp.ReadUint64Bytes(b)
		k.Hash = lmcache.UintHash(v)
		return rest, err
	}
}

func readText(b []byte, to *string) ([]byte, error) {
	s, rest, err := msgp.ReadStringZC(b)
	if err != nil {
		return b, err
	}
	if len(s) > maxText {
		return b, fmt.Errorf("a text of %d bytes, the limit is %d", len(s), maxText)
	}
	*to = string(s)
	return rest, nil
}

func readInt(b []byte, to *int) ([]byte, error) {
	v, rest, err := msgp.ReadInt64Bytes(b)
	if err == nil && (v < 0 || v > math.MaxInt32) {
		err = fmt.Errorf("%d, it can be 0 to %d", v, math.MaxInt32)
	}
	*to = int(v)
	return rest, err
}

func readSeq(b []byte, to **uint64) ([]byte, error) {
	v, rest, err := msgp.ReadUint64Bytes(b)
	*to = &v
	return rest, err
}

// readList reads a list of at most limit elements, and spends no more memory than its
// bytes allow for.
func readList[T any](b []byte, to *[]T, limit int, read func(*T, []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if int64(n) > int64(len(b)) || int64(n) > int64(limit) {
		return b, fmt.Errorf("a list of %d in %d bytes, the limit is %d", n, len(b), limit)
	}
	list := make([]T, 0, min(n, 4096))
	for i := range n {
		var v T
		if b, err = read(&v, b); err != nil {
			return b, fmt.Errorf("%d: %w", i, err)
		}
		list = append(list, v)
	}
	*to = list
	return b, nil
}
