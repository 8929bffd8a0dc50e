package config

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files and the document anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
