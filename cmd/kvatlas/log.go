package main

import (
	"log"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// newLogger makes the program's logger, which writes to its standard error.
func (p *program) newLogger(cfg *config.Loaded) zerolog.Logger {
	level, err := zerolog.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // the config allows known words only
	}
	w := p.Stderr
	f, isFile := w.(*os.File)
	terminal := isFile && isatty.IsTerminal(f.Fd())
	if cfg.LogFormat == "console" || cfg.LogFormat == "auto" && terminal {
		// no-color.org: any value but an empty one.
		w = zerolog.ConsoleWriter{Out: w, NoColor: !terminal || p.Getenv("NO_COLOR") != "" || p.Getenv("TERM") == "dumb", TimeFormat: "15:04:05.000"}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// httpLog takes what net/http has to say, which is about broken connections and
// never about what was in a request.
func httpLog(l zerolog.Logger) *log.Logger {
	return log.New(&lineWriter{l}, "", 0)
}

type lineWriter struct{ log zerolog.Logger }

// Write implements io.Writer for one line of package log.
func (w *lineWriter) Write(b []byte) (int, error) {
	w.log.Debug().Msg("http: " + strings.TrimSpace(string(b)))
	return len(b), nil
}
