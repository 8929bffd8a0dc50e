package config

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// tokenizationSettings are how texts become tokens.
type tokenizationSettings struct {
	// Tokenizers is the directory of tokenizers, <org>/<model>/tokenizer.json
	// below it (or tiktoken.model, qwen.tiktoken). Models that are not there come from the hub.
	Tokenizers string `name:"tokenizers" section:"Tokenization"`
	// HubEndpoint is the URL of the hub that tokenizers are fetched from.
	HubEndpoint string `name:"hub-endpoint" alias:"HF_ENDPOINT" default:"https://huggingface.co"`
	// HubToken is the access token for the hub. A variable or the file keeps
	// it out of the list of processes.
	HubToken Secret `name:"hub-token" alias:"HF_TOKEN"`
	// HubRevision is the branch, tag or commit of the hub's models.
	HubRevision string `name:"hub-revision" default:"main"`
	// HubCache is the directory that keeps what was fetched, and in .proofs the tables of
	// fast tokenizers, with which the next start is quick. Empty is
	// kvatlas/tokenizers below the user's cache directory.
	HubCache string `name:"hub-cache"`
	// HubOffline never asks the hub. What was fetched before is used.
	HubOffline bool `name:"hub-offline" alias:"HF_HUB_OFFLINE" default:"false"`
	// TokenizerWorkers is the number of texts tokenized at a time. 0 is one
	// for each CPU.
	TokenizerWorkers int `name:"tokenizer-workers" default:"0" min:"0" max:"1024"`
	// TokenizerBudget is how long a request waits for its tokens where it does
	// not say; the answer then covers the part that is known.
	TokenizerBudget time.Duration `name:"tokenizer-budget" default:"50ms" min:"1us" max:"1m"`
	// TokenizersLoaded is the number of tokenizers in memory at most, of 13 to
	// 300 MB each.
	TokenizersLoaded int `name:"tokenizers-loaded" default:"8" min:"1" max:"1024"`
	// TokenizerPins are what the tokenizers of single models must be, as
	// MODEL=sha256:DIGITS of the tokenizer's file or MODEL=REVISION of the hub, with
	// commas. A model whose files are others is refused.
	TokenizerPins Names `name:"tokenizer-pins"`
	// TokenizerFast tokenizes BPE with code of kvatlas's own, at a tenth of
	// the cost, where it is proven to give the tokens of Hugging Face's library. False
	// leaves all to that library.
	TokenizerFast bool `name:"tokenizer-fast" default:"true"`
	// Preload is the list of models, with commas, whose tokenizers are loaded
	// before /readyz says ready; it names those that cannot be, which are tried
	// again. Others are loaded by the first text, which takes seconds.
	Preload Names `name:"preload"`
	// MaxPromptBytes is the longest text that is tokenized. A mebibyte takes
	// about 0.7 s, and 150 to 350 MiB of memory at worst.
	MaxPromptBytes Bytes `name:"max-prompt-bytes" default:"1MiB" min:"1KiB" max:"32MiB"`
	// PrefixCache is the kind of store that remembers the tokens of texts: lru
	// by chunks, trie by bytes, or none.
	PrefixCache string `name:"prefix-cache" default:"lru" oneof:"lru,trie,none"`
	// PrefixCacheBytes is the memory of that store.
	PrefixCacheBytes Bytes `name:"prefix-cache-bytes" default:"256MiB" min:"1MiB" max:"1TiB"`
	// PieceCacheBytes is the memory for the tokens of pieces of texts. With them a
	// chat's next turn costs what is new in it. 0 keeps none.
	PieceCacheBytes Bytes `name:"piece-cache-bytes" default:"64MiB" min:"0" max:"1TiB"`
	// PieceSecret shares them with all servers that have the same one, through Redis
	// and sealed under it, so that none tokenizes what another has. At least 16
	// bytes; empty shares nothing. A variable or the file keeps it out of the list
	// of processes.
	PieceSecret Secret `name:"piece-secret"`
}

// chatSettings are how messages become texts.
type chatSettings struct {
	// ChatEngine is the engine whose way of preparing messages for their template
	// is followed.
	ChatEngine string `name:"chat-engine" default:"vllm" oneof:"vllm,transformers" section:"Chats"`
	// ChatRebuildTools gives tools and tool calls the form in which vLLM's server
	// passes them on, whatever clients send. It is for chat-engine vllm; false leaves
	// them as they are sent.
	ChatRebuildTools bool `name:"chat-rebuild-tools" default:"true"`
	// ChatKwargs is a JSON object of variables for chat templates, which those of
	// a request go before (vLLM's --default-chat-template-kwargs).
	ChatKwargs string `name:"chat-kwargs"`
	// ChatOwnTemplatesOnly refuses chats that bring a template of their own.
	ChatOwnTemplatesOnly bool `name:"chat-own-templates-only" default:"false"`
}

// validateTokenization checks the rules of tokenizers, their pieces and chats.
func (c *Config) validateTokenization() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.PieceSecret == "":
	case len(c.PieceSecret) < tokenpool.MinSharedSecret:
		bad("piece-secret: it has %d bytes, it needs at least %d", len(c.PieceSecret), tokenpool.MinSharedSecret)
	case c.Redis == "":
		bad("piece-secret: pieces are shared through Redis, and redis is not set")
	case c.PieceCacheBytes == 0:
		bad("piece-secret: there are no pieces to share with piece-cache-bytes 0")
	}
	errs = append(errs, checkHub(c.HubEndpoint))
	if _, err := tokenpool.ParsePins(c.TokenizerPins); err != nil {
		bad("tokenizer-pins: %s", err)
	}
	if c.HubRevision == "" {
		bad("hub-revision: it is empty; the usual one is main")
	}
	if _, err := chat.NewRenderer(chat.Files{}, chat.Options{DefaultKwargs: []byte(c.ChatKwargs)}); err != nil {
		bad("chat-kwargs: %q is no JSON object of variables: %v", c.ChatKwargs, err)
	}
	return errors.Join(errs...)
}

func checkHub(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return fmt.Errorf("hub-endpoint: %q is no URL, such as https://huggingface.co", SecretURL(raw))
	case u.User != nil:
		return errors.New("hub-endpoint: it has a user in it; give the access token as hub-token")
	}
	return nil
}
