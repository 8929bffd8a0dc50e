package fleet

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is a replica of its own when the test binary is started with runAsReplica.
func TestMain(m *testing.M) {
	if os.Getenv(runAsReplica) != "" {
		os.Exit(beReplica())
	}
	goleak.VerifyTestMain(m)
}
