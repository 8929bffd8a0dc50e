package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/demo"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
)

// demoTokenizers is where scripts/fetch-tokenizers.sh puts tokenizers, seen
// from the top of the checkout.
const demoTokenizers = ".cache/tokenizers"

// serve is the command.
func (p *program) serve(ctx context.Context, args []string) int {
	return p.serveAs(ctx, args, "serve", writeServeUsage, func(*config.Loader) {})
}

// serveAs is a command that serves, with a name, a help text and defaults of its own.
func (p *program) serveAs(ctx context.Context, args []string, command string, usage func(io.Writer, *flag.FlagSet, *config.Loader), defaults func(*config.Loader)) int {
	fs := flag.NewFlagSet("kvatlas "+command, flag.ContinueOnError)
	loader := config.NewLoader(fs)
	defaults(loader)
	printConfig := fs.Bool("print-config", false, "write the configuration in force and the origin of each value, then exit")
	play := fs.Bool("demo", false, "play three engines and a scheduler on the server, show the ranking, then go on serving")
	if err := p.ReadSettings(fs, loader, args, func(w io.Writer) { usage(w, fs, loader) }); err != nil {
		return p.Misuse(command, err)
	}
	if *play {
		loader.SetDefault("tokenizers", demoTokenizers)
		loader.SetDefault("hub-offline", "true")
		loader.SetDefault("anonymous", "admin")
		loader.SetDefault("drain-delay", "0s")
		loader.SetDefault("log-format", "console")
		loader.SetDefault("log-level", "warn")
	}
	cfg, err := p.Load(loader)
	if err != nil {
		return p.Misuse(command, err)
	}
	if *play && cfg.Redis != "" {
		return p.Misuse(command, errors.New("--demo adds pods of its own and is for the index in memory: leave redis out"))
	}
	if *printConfig {
		if err := cfg.WriteYAML(p.Stdout); err != nil {
			return p.Fail(command, err)
		}
		return cli.ExitOK
	}

	if *play {
		cfg.PodsMetrics = false // the demonstration's engines are made up
	}
	log := p.newLogger(cfg)
	svc, err := newService(cfg, log)
	if err != nil {
		return p.Fail(command, err)
	}
	var after func(context.Context, string) error
	if *play {
		if err := svc.hasTokenizer(demo.Model); err != nil {
			return p.Fail(command, errors.Join(err, svc.close()))
		}
		after = p.demo
	}
	if err := svc.run(ctx, after); err != nil {
		return p.Fail(command, err)
	}
	return cli.ExitOK
}

// demo plays the demo on the running server and stays until ctx ends.
func (p *program) demo(ctx context.Context, url string) error {
	c, err := p.Client("demo", url, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	files, err := demo.Run(ctx, demo.Config{Client: c, URL: url, Program: p.Name, Out: p.Stdout})
	if files != "" {
		defer func() { _ = os.RemoveAll(files) }() // what stays in the temporary folder does no harm
	}
	switch {
	case ctx.Err() != nil:
		return nil // ended by the user
	case err != nil:
		return err
	}
	<-ctx.Done()
	return nil
}

func writeServeUsage(w io.Writer, fs *flag.FlagSet, loader *config.Loader) {
	fmt.Fprint(w, `kvatlas serve answers scoring requests over HTTP.

  kvatlas serve [flags]            the index in memory, or in Redis with --redis
  kvatlas serve --print-config     the configuration in force, and where it comes from
  kvatlas serve --demo             three engines and a scheduler, played on this server

Each flag below a heading is also an environment variable and a key of the file that
--config names; docs/configuration.md has the rules.

`)
	cli.WriteFlags(w, fs, loader)
	cli.WriteSettings(w)
}
