package main

import (
	"io"
	"log"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// newLogger makes the program's logger.
func newLogger(w io.Writer, cfg *config.Loaded) zerolog.Logger {
	level, err := zerolog.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // the config allows known words only
	}
	if cfg.LogFormat == "console" {
		f, isFile := w.(*os.File)
		color := isFile && isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == ""
		w = zerolog.ConsoleWriter{Out: w, NoColor: !color, TimeFormat: "15:04:05.000"}
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
