package inspect

import (
	"bufio"
	"errors"
	"flag"
	"fmt"

	"github.com/kvatlas/kvatlas/blockkey"
	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/cli"
	"github.com/kvatlas/kvatlas/store"
	"github.com/kvatlas/kvatlas/store/redis"
	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

const inspectKeysUsage = `kvatlas inspect keys prints under which names blocks are in Redis: a line a
block, with its block key, the tag of its partition, and the name of its key as
redis-cli takes it from its standard input. It asks no server.

  kvatlas inspect keys --model M --tokens 1,2,3,...
  kvatlas inspect keys --model M --block-keys HEX,HEX

Who holds them (the ids are in kva{reg}:gen, docs/redis-schema.md):

  kvatlas inspect keys ... | awk '{print "GET", $3}' | redis-cli

Write them in the plain form, for a pod that is registered:

  kvatlas inspect keys ... | awk '{print "SET", $3, "10.0.0.7:8000"}' | redis-cli

`

// keysCall is one call of kvatlas inspect keys.
type keysCall struct {
	model  string
	prefix string
	keys   []blockkey.Key
}

func readKeysCall(p *cli.Program, args []string) (*keysCall, error) {
	fs := flag.NewFlagSet("kvatlas inspect keys", flag.ContinueOnError)
	c := &keysCall{}
	fs.StringVar(&c.model, "model", "", "the `model`'s name (required)")
	tokens := fs.String("tokens", "", "the prompt's token ids, a `LIST` with commas")
	keys := fs.String("block-keys", "", "block keys, a `LIST` of 16 hex digits each")
	size := fs.Int("block-size", store.DefaultBlockSize, "with --tokens: the model's index block size, which GET /v1/models has (a model that is not there has that of the server)")
	lora := fs.String("lora", "", "with --tokens: `NAME` of the LoRA adapter")
	salt := fs.String("cache-salt", "", "with --tokens: the cache `SALT`")
	fs.StringVar(&c.prefix, "redis-prefix", redis.DefaultPrefix, "what the names of all keys in Redis begin with")
	words, err := p.ReadFlags(fs, args, inspectKeysUsage)
	if err != nil {
		return nil, err
	}
	switch {
	case len(words) > 0:
		return nil, fmt.Errorf("%q: it takes flags only", words[0])
	case c.model == "":
		return nil, errors.New("--model is missing")
	case cli.FlagGiven(fs, "tokens") == cli.FlagGiven(fs, "block-keys"):
		return nil, errors.New("give either --tokens or --block-keys")
	case cli.FlagGiven(fs, "block-keys") && cli.FlagGiven(fs, "block-size", "lora", "cache-salt"):
		return nil, errors.New("--block-size, --lora and --cache-salt are for --tokens; block keys have them in them")
	case *size < 1 || *size > store.MaxBlockSize:
		return nil, fmt.Errorf("--block-size is %d, it can be 1 to %d", *size, store.MaxBlockSize)
	}
	if _, _, err := keyspace.BlockName(c.prefix, 0); err != nil {
		return nil, fmt.Errorf("--redis-prefix: %w", err)
	}
	if cli.FlagGiven(fs, "block-keys") {
		for i, w := range cli.SplitList(*keys) {
			k, err := blockkey.ParseKey(w)
			if err != nil {
				return nil, fmt.Errorf("--block-keys: number %d: %w", i+1, err)
			}
			c.keys = append(c.keys, k)
		}
		return c, nil
	}
	list, err := cli.ParseTokens(*tokens)
	if err != nil {
		return nil, err
	}
	if len(list) < *size {
		return nil, fmt.Errorf("--tokens: %s are less than a block of %d (--block-size)", cli.Count(len(list), "token"), *size)
	}
	c.keys = blockkey.AppendNative(nil, list, *size, blockkey.NativeSeed(*lora, *salt))
	return c, nil
}

// inspectKeys is kvatlas inspect keys.
func inspectKeys(p *cli.Program, args []string) int {
	call, err := readKeysCall(p, args)
	if err != nil {
		return p.Misuse("inspect keys", err)
	}
	out := bufio.NewWriter(p.Stdout)
	model := blockkey.ModelOf(call.model)
	for _, k := range call.keys {
		name, tag, err := keyspace.BlockName(call.prefix, k.In(model))
		if err != nil {
			return p.Fail("inspect keys", err)
		}
		key := len(name) - 8 // the store key, all of it as hex
		fmt.Fprintf(out, "%s %s \"%s%s\"\n", k, escaped(tag), escaped(name[:key]), hexEscaped(name[key:]))
	}
	if err := out.Flush(); err != nil {
		return p.Fail("inspect keys", err)
	}
	return cli.ExitOK
}

// escaped writes what is no letter, digit or sign as redis-cli reads it within quotes. Tags
// and prefixes have neither quotes nor backslashes.
func escaped(s string) string {
	var b []byte
	for i := range len(s) {
		if s[i] > ' ' && s[i] < 0x7f {
			b = append(b, s[i])
		} else {
			b = append(b, hexEscaped(s[i:i+1])...)
		}
	}
	return string(b)
}

func hexEscaped(s string) string {
	var b []byte
	for i := range len(s) {
		b = fmt.Appendf(b, "\\x%02x", s[i])
	}
	return string(b)
}
