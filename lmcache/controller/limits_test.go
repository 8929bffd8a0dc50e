package controller

import (
	"errors"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// TestMessageLimits: both encodings have the same limits.
func TestMessageLimits(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	many := "[" + strings.Repeat(`{},`, maxList) + "{}]"
	for _, text := range []string{
		`{"type":"FullSyncStartMsg","total_keys":-1}`,
		`{"type":"FullSyncStartMsg","total_keys":900000000000}`,
		`{"type":"FullSyncStartMsg","batch_count":-1}`,
		`{"type":"KVAdmitMsg","worker_id":-2}`,
		`{"type":"KVAdmitMsg","location":"` + long + `","key":5}`,
		`{"type":"FullSyncStartMsg","sync_id":"` + long + `"}`,
		`{"type":"` + long + `"}`,
		`{"type":"KVAdmitMsg","instance_id":"` + long + `"}`,
		`{"type":"BatchedKVOperationMsg","operations":` + many + `}`,
		`{"type":"FullSyncBatchMsg","keys":[` + strings.Repeat("1,", maxList) + `1]}`,
		`{"type":"LookupMsg","tokens":[` + strings.Repeat("1,", maxTokens) + `1]}`,
		`{"type":"LookupMsg","tokens":"1"}`,
		`{"type":"FullSyncBatchMsg","keys":{}}`,
	} {
		if _, err := decode([]byte(text)); !errors.Is(err, errMalformed) {
			t.Errorf("%.80s: %v", text, err)
		} else if len(err.Error()) > 300 {
			t.Errorf("%.80s: an error of %d bytes", text, len(err.Error()))
		}
	}
	ops := msgp.AppendArrayHeader(msgp.AppendString(newReply("BatchedKVOperationMsg", 1), "operations"), maxList+1)
	for range maxList + 1 {
		ops = msgp.AppendMapHeader(ops, 0)
	}
	if _, err := decode(ops); !errors.Is(err, errMalformed) {
		t.Errorf("operations in MessagePack: %v", err)
	}
	m, err := decode([]byte(`{"type":"BatchedKVOperationMsg","operations":null,"keys":[1,-2],"tokens":[7],"hashes":[]}`))
	if err != nil || m.Worker != -1 || len(m.Ops) != 0 || len(m.Keys) != 2 || len(m.Tokens) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
}
