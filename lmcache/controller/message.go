package controller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/tinylib/msgp/msgp"

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
	Type     string `json:"type"`
	Instance string `json:"instance_id"`
	// worker is -1 when there is none.
	Worker   int        `json:"worker_id"`
	IP       string     `json:"ip"`
	Port     int        `json:"port"`
	PeerURL  string     `json:"peer_init_url"`
	OldPeer  string     `json:"distributed_url"`
	Location string     `json:"location"`
	Key      *key       `json:"key"`
	Seq      *uint64    `json:"seq_num"`
	Ops      list[kvOp] `json:"operations"`

	SyncID  string    `json:"sync_id"`
	Total   int       `json:"total_keys"`
	Batches int       `json:"batch_count"`
	Batch   int       `json:"batch_id"`
	Keys    list[key] `json:"keys"`
	Actual  int       `json:"actual_total_keys"`

	Hashes  list[key] `json:"hashes"`
	EventID string    `json:"event_id"`
	Tokens  tokens    `json:"tokens"`
}

// kvOp is an admission or an eviction.
type kvOp struct {
	Op  string  `json:"op_type"`
	Key *key    `json:"key"`
	Seq *uint64 `json:"seq_num"`
}

// key is the hash of a chunk in a message: a Python int from 0.3.3 on, before that its
// 64 hex digits. Workers of 0.3.13 to 0.4.5 with vLLM's hash functions send bytes, which
// is what kills LMCache's own controller.
type key struct{ lmcache.Hash }

// list is a list whose length is bounded while it is read.
type list[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (l *list[T]) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	switch begin, err := d.Token(); {
	case err != nil:
		return err
	case begin == nil: // null is as if it were not there
		return nil
	case begin != json.Delim('['):
		return fmt.Errorf("a list is %.40q", b)
	}
	for d.More() {
		if len(*l) == maxList {
			return fmt.Errorf("a list of more than %d", maxList)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// tokens is a list of tokens.
type tokens []uint32

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokens) UnmarshalJSON(b []byte) error {
	if n := bytes.Count(b, []byte{','}) + 1; n > maxTokens {
		return fmt.Errorf("a list of %d tokens, the limit is %d", n, maxTokens)
	}
	return json.Unmarshal(b, (*[]uint32)(t))
}

// check holds what was JSON to the limits that MessagePack is read with.
func (m *message) check() error {
	for name, text := range map[string]string{
		"type": m.Type, "instance_id": m.Instance, "ip": m.IP, "peer_init_url": m.PeerURL, "distributed_url": m.OldPeer,
		"location": m.Location, "sync_id": m.SyncID, "event_id": m.EventID,
	} {
		if len(text) > maxText {
			return fmt.Errorf("%q: a text of %d bytes, the limit is %d", name, len(text), maxText)
		}
	}
	for name, v := range map[string]int{
		"worker_id": m.Worker, "port": m.Port, "total_keys": m.Total, "batch_count": m.Batches, "batch_id": m.Batch, "actual_total_keys": m.Actual,
	} {
		if v > math.MaxInt32 || v < 0 && (name != "worker_id" || v < -1) {
			return fmt.Errorf("%q: %d, it can be 0 to %d", name, v, math.MaxInt32)
		}
	}
	return nil
}

// decode reads a frame: JSON when it begins with a brace, MessagePack else.
func decode(frame []byte) (*message, error) {
	m := &message{Worker: -1}
	var err error
	if len(frame) > 0 && frame[0] == '{' {
		d := json.NewDecoder(bytes.NewReader(frame))
		if err = d.Decode(m); err == nil && d.InputOffset() != int64(len(bytes.TrimRight(frame, " \t\r\n"))) {
			err = errors.New("something stands behind it")
		}
		if err == nil {
			err = m.check()
		}
	} else {
		err = m.unpack(frame)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m.PeerURL == "" {
		m.PeerURL = m.OldPeer
	}
	if m.Type == "" {
		return nil, fmt.Errorf("%w: it has no type", errMalformed)
	}
	return m, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (k *key) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		return k.text(text)
	}
	v, ok := new(big.Int).SetString(string(b), 10)
	switch {
	case !ok || len(b) > 24:
		return fmt.Errorf("the key %.40q is neither an int nor a text", b)
	case v.IsUint64():
		k.Hash = lmcache.UintHash(v.Uint64())
	case v.IsInt64():
		k.Hash = lmcache.IntHash(v.Int64())
	default:
		return fmt.Errorf("the key %v has more than 64 bits", v)
	}
	return nil
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
		return readList(b, (*[]kvOp)(&m.Ops), maxList, (*kvOp).unpack)
	case "sync_id":
		return readText(b, &m.SyncID)
	case "total_keys":
		return readInt(b, &m.Total)
	case "batch_count":
		return readInt(b, &m.Batches)
	case "batch_id":
		return readInt(b, &m.Batch)
	case "keys":
		return readList(b, (*[]key)(&m.Keys), maxList, (*key).unpack)
	case "actual_total_keys":
		return readInt(b, &m.Actual)
	case "hashes":
		return readList(b, (*[]key)(&m.Hashes), maxList, (*key).unpack)
	case "event_id":
		return readText(b, &m.EventID)
	case "tokens":
		return readList(b, (*[]uint32)(&m.Tokens), maxTokens, func(t *uint32, b []byte) (_ []byte, err error) {
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
