package main

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/kvatlas/kvatlas/cmd/kvatlas/internal/config"
	"github.com/kvatlas/kvatlas/prefixcache"
	"github.com/kvatlas/kvatlas/prompt"
	"github.com/kvatlas/kvatlas/tokenpool"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
)

// makeTokenizers makes the tokenizer pool, its prefix store and its origins.
func (s *service) makeTokenizers() error {
	c := s.cfg
	var prefixes prefixcache.Store
	if c.PrefixCache != "none" {
		var err error
		if prefixes, err = prefixcache.New(c.PrefixCache, prefixcache.Config{MaxBytes: int64(c.PrefixCacheBytes)}); err != nil {
			return err
		}
	}
	var origins []tokenpool.Origin
	if c.Tokenizers != "" {
		dir, err := tokenpool.NewDirectory(c.Tokenizers)
		if err != nil {
			return fmt.Errorf("tokenizers (from %s): %w\nMake the directory, or correct %s", c.Origins["tokenizers"], err, c.Given("tokenizers"))
		}
		origins = append(origins, dir)
	}
	pins, err := tokenpool.ParsePins(c.TokenizerPins)
	if err != nil {
		return fmt.Errorf("tokenizer-pins: %w", err)
	}
	hub, err := s.makeHub(pins)
	kept := ""
	switch {
	case err == nil:
		origins = append(origins, hub)
		kept = filepath.Join(hub.CacheDir(), ".proofs")
		s.closers = append(s.closers, func() error { hub.Close(); return nil })
	case c.HubCache == "" && c.Tokenizers != "":
		// A read-only container without a home is a fine place for a scorer
		// that has its tokenizers in a folder.
		s.log.Warn().Err(err).Msg("no hub: only tokenizers of the directory can be used; set hub-cache to change that")
	default:
		return fmt.Errorf("hub-cache: %w", err)
	}
	s.origin = tokenpool.Chain(origins...)
	s.pool, err = tokenpool.New(tokenpool.Config{
		Origin:        s.origin,
		Store:         prefixes,
		Workers:       c.TokenizerWorkers,
		Queue:         c.MaxInFlight,
		QueueBytes:    c.TokenizerQueueBytes(),
		WorkBytes:     c.TokenizerWorkBytes(),
		MaxTextBytes:  int(c.MaxPromptBytes),
		PieceBytes:    cmp.Or(int64(c.PieceCacheBytes), none),
		Shared:        s.pieces,
		SharedSecret:  []byte(c.PieceSecret),
		SharedTimeout: c.PieceTimeout(),
		Budget:        c.TokenizerBudget,
		MaxTokenizers: c.TokenizersLoaded,
		Pins:          pins,
		Fast:          c.TokenizerFast,
		CheckEvery:    config.TokenizerCheckEvery,
		ProofDir:      kept,
		Chat: chat.Options{
			Engine: chat.Engine(c.ChatEngine), DefaultKwargs: []byte(c.ChatKwargs),
			Tools: toolForm(c.ChatRebuildTools), OwnTemplatesOnly: c.ChatOwnTemplatesOnly,
			Limits: chat.Limits{Items: config.MaxChatItems, Values: config.MaxChatValues},
		},
		Observer: s.watchTokenizers(),
	})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, s.pool.Close)
	if prefixes != nil {
		return s.metrics.PrefixStore(prefixes.Stats)
	}
	return nil
}

// toolForm is the form of tools: the engine's, but where it is switched off.
func toolForm(rebuild bool) prompt.ToolForm {
	if !rebuild {
		return prompt.ToolsAsSent
	}
	return "" // by the engine
}

func (s *service) makeHub(pins map[string]tokenpool.Pin) (*tokenpool.Hub, error) {
	revisions := map[string]string{}
	for model, pin := range pins {
		if pin.Revision != "" {
			revisions[model] = pin.Revision
		}
	}
	return tokenpool.NewHub(tokenpool.HubConfig{
		Endpoint:  s.cfg.HubEndpoint,
		Token:     string(s.cfg.HubToken),
		Revision:  s.cfg.HubRevision,
		Revisions: revisions,
		CacheDir:  s.cfg.HubCache,
		Offline:   s.cfg.HubOffline,
	})
}

// watchTokenizers times what the pool does and writes loads to the log.
func (s *service) watchTokenizers() tokenpool.Observer {
	o := s.metrics.Tokenizer()
	o.Loaded = func(m tokenpool.Model, err error) {
		if err != nil {
			s.log.Warn().Str("model", m.Name).Err(err).Msg("tokenizer not loaded")
			return
		}
		if m.Before != "" {
			s.log.Warn().Str("model", m.Name).Str("before", m.Before).Str("fingerprint", m.Fingerprint).
				Msg("the tokenizer of this model has changed: engines that still run with the one of before have other blocks; tokenizer-pins refuses changes")
		}
		s.log.Info().Str("model", m.Name).Str("from", m.From).Str("file", m.File).Str("revision", m.Revision).Str("sha256", m.SHA256).
			Str("fingerprint", m.Fingerprint).Int("vocabulary", m.Vocabulary).Int64("memory_bytes", m.MemoryBytes).Dur("took", m.LoadTook).Msg("tokenizer loaded")
	}
	o.Proven = func(model string, err error) {
		if err != nil {
			s.log.Info().Str("model", model).Str("why", err.Error()).Msg("texts are tokenized by Hugging Face's library alone")
			return
		}
		s.log.Info().Str("model", model).Msg("texts are tokenized fast: the tokens are proven to be those of Hugging Face's library")
	}
	o.ProofNotKept = func(model string, err error) {
		s.log.Info().Str("model", model).Err(err).Msg("the proof of this tokenizer is not kept: the next start takes a few seconds longer; hub-cache names a folder that can be written to")
	}
	o.Differed = func(model string, err error) {
		s.log.Error().Str("model", model).Err(err).Msg("the fast tokenizer gave other tokens than Hugging Face's library, which does it all for this tokenizer from now on; please report it")
	}
	return o
}

// hasTokenizer says what is wrong when the model's tokenizer cannot be had.
func (s *service) hasTokenizer(model string) error {
	if _, err := s.origin.Stat(model); err != nil {
		return fmt.Errorf("%w\nscripts/fetch-tokenizers.sh prepares %s; --tokenizers names another directory", err, demoTokenizers)
	}
	return nil
}
