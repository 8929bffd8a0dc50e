package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/terminal"
	"github.com/kvatlas/kvatlas/lmcache"
)

const doctorLMCacheUsage = `kvatlas doctor lmcache says which entries of LMCache in Redis, and which of its
workers, scoring will find, and which never match.

  kvatlas doctor lmcache --redis URL --profile PROFILE
  kvatlas doctor lmcache --redis URL --profile PROFILE --model MODEL --tokens-file FILE
  kvatlas doctor lmcache --redis URL --profile PROFILE --model MODEL --prompt TEXT --server URL

With a prompt it looks for the hashes by which engines have filed it, and says
which setting differs. It reads no tensors and changes nothing. It takes the flags,
variables and file of kvatlas serve, and these:

`

// doctorLMCache is one call of kvatlas doctor lmcache.
type doctorLMCache struct {
	cfg     *config.Loaded
	model   string
	tokens  string // a file
	prompt  string
	server  string
	keys    int
	timeout time.Duration
	json    bool
	// profiles are those of --profile or, without any, of lmcache-models, by model.
	profiles map[string][]lmcache.Profile
}

// doctorLMCache is the command.
func (p *program) doctorLMCache(ctx context.Context, args []string) int {
	d, err := p.readDoctorLMCache(args)
	if err != nil {
		return p.Misuse("doctor lmcache", err)
	}
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	tokens, err := d.readTokens(within, p)
	if err != nil {
		return p.Fail("doctor lmcache", err)
	}
	s := doctor.LookAtLMCache(within, doctor.LMCache{
		Redis: redisConfig(d.cfg), RedisName: d.cfg.Redis.String(),
		Profiles: d.profiles, Mode: d.cfg.LMCacheMode(), Learns: d.cfg.LMCacheLearns(),
		Keys: d.keys, Model: d.model, Tokens: tokens,
	})
	if ctx.Err() != nil {
		return p.Fail("doctor lmcache", context.Cause(ctx))
	}
	return p.writeSections([]doctor.Section{s}, d.json)
}

func (p *program) readDoctorLMCache(args []string) (*doctorLMCache, error) {
	flags := flag.NewFlagSet("kvatlas doctor lmcache", flag.ContinueOnError)
	loader := config.NewLoader(flags)
	d := &doctorLMCache{profiles: map[string][]lmcache.Profile{}}
	flags.Func("profile", "how engines of a model run LMCache, a `PROFILE` as in lmcache-models, which it replaces: MODEL?version=0.5.6&algorithm=sha256_cbor&seed=0; may stand more than once", func(text string) error {
		model, p, err := config.ParseLMCacheProfile(text)
		if err != nil {
			return err
		}
		d.profiles[model] = append(d.profiles[model], p)
		return nil
	})
	flags.StringVar(&d.model, "model", "", "the `MODEL` of the prompt")
	flags.StringVar(&d.tokens, "tokens-file", "", "a prompt that an engine has had, a `FILE` of token ids in JSON: [1,2,...]")
	flags.StringVar(&d.prompt, "prompt", "", "the same as `TEXT`, which --server makes into tokens")
	flags.StringVar(&d.server, "server", p.Getenv("KVATLAS_SERVER"), "the server to ask, host:port or a `URL` [$KVATLAS_SERVER]")
	flags.IntVar(&d.keys, "keys", 100_000, "how many of LMCache's keys to look at")
	flags.DurationVar(&d.timeout, "timeout", 15*time.Second, "how long to look at most")
	flags.BoolVar(&d.json, "json", false, "write the findings as JSON")
	if err := p.ReadSettings(flags, loader, args, func(w io.Writer) {
		fmt.Fprint(w, doctorLMCacheUsage)
		cli.WriteFlags(w, flags, loader)
	}); err != nil {
		return nil, err
	}
	switch {
	case d.timeout <= 0:
		return nil, fmt.Errorf("--timeout is %v, it must be positive", d.timeout)
	case d.keys < 1 || d.keys > 10_000_000:
		return nil, fmt.Errorf("--keys is %d, it can be 1 to 10000000", d.keys)
	case d.tokens != "" && d.prompt != "":
		return nil, errors.New("--tokens-file and --prompt are two prompts, and one is looked for")
	case d.model == "" && (d.tokens != "" || d.prompt != ""):
		return nil, errors.New("a prompt needs --model")
	case d.model != "" && d.tokens == "" && d.prompt == "":
		return nil, errors.New("--model is for a prompt: --tokens-file or --prompt")
	case d.prompt != "" && d.server == "":
		return nil, errors.New("--prompt needs --server, which makes tokens of it; --tokens-file does not")
	}
	var err error
	if d.cfg, err = p.Load(loader); err != nil {
		return nil, err
	}
	if len(d.profiles) == 0 {
		d.profiles = d.cfg.LMCacheModels.Profiles()
	}
	if d.cfg.Redis == "" {
		return nil, errors.New("it looks at Redis, and there is none: name it with --redis or in --config")
	}
	return d, nil
}

// readTokens are those of the prompt; nil without a prompt.
func (d *doctorLMCache) readTokens(ctx context.Context, p *program) ([]uint32, error) {
	switch {
	case d.tokens != "":
		text, err := os.ReadFile(d.tokens)
		if err != nil {
			return nil, err
		}
		var tokens []uint32
		if err := json.Unmarshal(text, &tokens); err != nil {
			return nil, fmt.Errorf("%s is no JSON array of token ids: %w", d.tokens, err)
		}
		return tokens, nil
	case d.prompt != "":
		c, err := p.Client("doctor", d.server, d.timeout)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		got, err := c.Tokenize(ctx, client.TokenizeRequest{Model: d.model, Prompt: d.prompt})
		if err != nil {
			return nil, errors.New(terminal.ServerAnswer(d.server, err))
		}
		return got.Tokens, nil
	}
	return nil, nil
}
