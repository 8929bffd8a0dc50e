package loads_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/route/loads/loadstest"
)

func TestMemory(t *testing.T) {
	loadstest.Run(t, func(_ *testing.T, c *loadstest.Clock) loads.Store { return loads.NewMemory(c.Now) })
}
