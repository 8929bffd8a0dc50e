package server

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/server/request"
)

func TestDefaultLimits(t *testing.T) {
	var l Limits
	must.OK(t, l.validate())
	if l.requests() != (request.Limits{MaxTokens: 1 << 20, MaxBlockKeys: 1 << 17, MaxPrompts: 64, MaxPods: 1024, MaxObjects: 1024, MaxWait: 10 * time.Second}) || l.MaxBodyBytes != 16<<20 || l.MaxTokens != 1<<20 || l.MaxInFlight != 1024 || l.RequestTimeout != 10*time.Second {
		t.Errorf("defaults are %+v", l)
	}
}
