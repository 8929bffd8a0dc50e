package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/ingest/fleet"
	"github.com/kvatlas/kvatlas/ingest/rechunk"
)

// ingestSettings are how the events of engines are read.
type ingestSettings struct {
	// IngestTTL is how long a process can be silent before others take over the ranks
	// that it reads. It calls four times in that time.
	IngestTTL time.Duration `name:"ingest-ttl" default:"2s" min:"100ms" max:"10m" section:"Ingest"`
	// IngestQueueBytes is the size of all events that wait to be applied; ranks that find
	// no room are not read until there is some.
	IngestQueueBytes Bytes `name:"ingest-queue-bytes" default:"256MiB" min:"64KiB" max:"1TiB"`
	// IngestRelayMessages is how many of the last messages of each rank are kept for clients that ask for
	// recent events, 1 MiB of them at most. 0 keeps none.
	IngestRelayMessages int `name:"ingest-relay-messages" default:"1024" min:"0" max:"1048576"`
	// IngestSilent is how long a rank may send nothing before its engine's /health is
	// asked, and an engine that is healthy is counted as silent. 0 never asks.
	IngestSilent time.Duration `name:"ingest-silent" default:"0s" min:"0s" max:"24h"`
	// IngestUnremovedBlocks is how many engine blocks of a rank count in a tier behind the
	// GPU's in which its engine never reports a removal, such as LMCache through vLLM. The
	// oldest go. 0 is no limit.
	IngestUnremovedBlocks int `name:"ingest-unremoved-blocks" default:"262144" min:"0" max:"1000000000"`
	// IngestTopic is the prefix of the topics that are read; {pod}, {host}, {model} and
	// {rank} in it stand for those of each stream. Empty reads all.
	IngestTopic string `name:"ingest-topic"`
	// IngestBind is the address of this machine at which engines may connect whose pod's
	// events are bind+tcp://*:PORT; * is all addresses. Empty means that none may.
	IngestBind string `name:"ingest-bind"`
	// IngestCurveKeys is the file with the public and the secret key of kvatlas for
	// engines behind CURVE, as zmq.auth.create_certificates writes it (NAME.key_secret).
	IngestCurveKeys string `name:"ingest-curve-keys"`
	// IngestCurveServer is the file with the public key of these engines (NAME.key).
	IngestCurveServer string `name:"ingest-curve-server"`
	// IngestMedia are engines' words for where blocks are and the tiers that they mean,
	// beyond those that are known, as in cxl=cpu,tape=disk.
	IngestMedia Media `name:"ingest-media"`
	// IngestCopies is what it means that an engine announces a block again: infer goes by
	// the engine and by what its stream shows, all counts each, none counts none.
	IngestCopies rechunk.Copies `name:"ingest-copies" default:"infer" oneof:"infer,all,none"`
	// IngestRecords is the number of engine blocks of a rank that are kept in memory,
	// 100 to 250 bytes each; others are read from the index when they are needed.
	IngestRecords int `name:"ingest-records" default:"262144" min:"64" max:"268435456"`
}

// validateIngest checks the rules of reading events.
func (c *Config) validateIngest() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if (c.IngestCurveKeys == "") != (c.IngestCurveServer == "") {
		bad("ingest-curve-keys and ingest-curve-server go together")
	}
	if w := (fleet.Wiring{Topic: c.IngestTopic, Bind: c.IngestBind}); w.Validate() != nil {
		bad("ingest-topic, ingest-bind: %s", strings.TrimPrefix(w.Validate().Error(), "fleet: invalid config: "))
	}
	return errors.Join(errs...)
}
