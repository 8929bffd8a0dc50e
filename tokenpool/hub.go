package tokenpool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kvatlas/kvatlas/internal/defaults"
	"github.com/kvatlas/kvatlas/tokenpool/chat"
	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// HubConfig configures a Hub. Zero fields take the default.
type HubConfig struct {
	// Endpoint is the hub's URL. Default https://huggingface.co.
	Endpoint string
	// Token is the access token, sent to the endpoint's host only. Default
	// none.
	Token string
	// Revision is the branch, tag or commit to take. Default "main". A branch
	// is looked at whenever a tokenizer is loaded, a full commit hash never
	// again once it is in the cache.
	Revision string
	// Revisions are the revisions of single models, by name.
	Revisions map[string]string
	// CacheDir is where files are kept, for other processes too. Default
	// kvatlas/tokenizers in the user's cache directory. Nothing in it is ever
	// deleted by the Hub but unfinished downloads.
	CacheDir string
	// Offline makes the Hub use the cache alone.
	Offline bool
	// MaxDownloads is how many models are fetched at a time. Default 4,
	// limit 64.
	MaxDownloads int
	// MaxFileBytes is the largest tokenizer taken. Default 256 MiB, which
	// is the limit as well.
	MaxFileBytes int64
	// Attempts is how often a download is tried before it fails. What has
	// arrived is kept from one attempt to the next, and from one Fetch to the
	// next. Default 5, limit 100.
	Attempts int
	// ResponseTimeout bounds the wait for response headers, the connection and
	// redirects included, and for each part of a body to come. Default 15 s,
	// limit 10 minutes. A file that is in the cache is looked at with a third
	// of it.
	ResponseTimeout time.Duration
	// Backoff is the pause before the second attempt; it doubles for each
	// further one, up to 30 s. Default 500 ms, limit 30 s.
	Backoff time.Duration
	// Progress, if set, is called as a file arrives. It gets how many bytes are
	// there, and how many there will be (-1 when the server does not say). It is
	// called by one goroutine a file, at most once a megabyte and at the end.
	Progress func(model, file string, done, total int64)
}

// validate fills the defaults of c and checks its limits.
func (c *HubConfig) validate() error {
	c.Endpoint = strings.TrimRight(cmp.Or(c.Endpoint, "https://huggingface.co"), "/")
	u, err := url.Parse(c.Endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("tokenpool: hub config: Endpoint %q is not a URL of the form https://host/path", redact(c.Endpoint))
	}
	if strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("tokenpool: hub config: Token has a character that no token has")
	}
	c.Revision = cmp.Or(c.Revision, "main")
	if err := checkRevision(c.Revision); err != nil {
		return fmt.Errorf("tokenpool: hub config: Revision: %w", err)
	}
	c.Revisions = maps.Clone(c.Revisions)
	for model, revision := range c.Revisions {
		if err := checkRevision(revision); err != nil {
			return fmt.Errorf("tokenpool: hub config: Revisions of %q: %w", model, err)
		}
	}
	if c.CacheDir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("tokenpool: hub config: CacheDir is not set, and there is no default: %w", err)
		}
		c.CacheDir = filepath.Join(user, "kvatlas", "tokenizers")
	}
	err = errors.Join(
		defaults.Within("MaxDownloads", &c.MaxDownloads, 4, 1, 64),
		defaults.Within("MaxFileBytes", &c.MaxFileBytes, maxTokenizerFile, 1, maxTokenizerFile),
		defaults.Within("Attempts", &c.Attempts, 5, 1, 100),
		defaults.Within("ResponseTimeout", &c.ResponseTimeout, 15*time.Second, time.Millisecond, 10*time.Minute),
		defaults.Within("Backoff", &c.Backoff, 500*time.Millisecond, time.Millisecond, maxBackoff),
	)
	if err != nil {
		return fmt.Errorf("tokenpool: hub config: %w", err)
	}
	return nil
}

// redact leaves out what may be a password in a URL.
func redact(endpoint string) string {
	if i := strings.LastIndexByte(endpoint, '@'); i >= 0 {
		return "...@" + endpoint[i+1:]
	}
	return endpoint
}

// Names on the hub: letters, digits, '-', '_', '.'; revisions also '/', as in
// refs/pr/1.
var (
	hubName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?$`)
	hubRevision = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/-]{0,127}$`)
	hubCommit   = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

func checkRevision(revision string) error {
	if !hubRevision.MatchString(revision) || strings.Contains(revision, "..") {
		return fmt.Errorf("%q is not the name of a branch or tag, nor a commit", revision)
	}
	return nil
}

// Hub is an Origin over the Hugging Face hub or a mirror of it
// (<endpoint>/<model>/resolve/<revision>/tokenizer.json), with a cache on disk:
//
//	<cache>/<model>/@<revision>/tokenizer.json        whole, put there by rename
//	<cache>/<model>/@<revision>/tokenizer.json.meta   its ETag and commit
//	<cache>/<model>/@<revision>/tokenizer.json.part   unfinished, with .part.meta
//
// A model without a tokenizer.json may have a tiktoken file in its place.
//
// A download that breaks off is taken up where it ended, if the server still
// has the same file. When the hub cannot be reached, refuses, or has the model
// no more, what is in the cache is used.
type Hub struct {
	cfg       HubConfig
	client    *http.Client
	downloads *semaphore.Weighted
}

// NewHub returns a Hub. It creates the cache directory, and asks nothing of the
// network yet.
func NewHub(cfg HubConfig) (*Hub, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.CacheDir, 0o755); err != nil {
		return nil, fmt.Errorf("tokenpool: hub cache: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2
	transport.IdleConnTimeout = 10 * time.Second // models are fetched rarely
	return &Hub{
		cfg:       cfg,
		client:    &http.Client{Transport: transport, CheckRedirect: checkRedirect},
		downloads: semaphore.NewWeighted(int64(cfg.MaxDownloads)),
	}, nil
}

// Close ends idle connections. The Hub can still be used.
func (h *Hub) Close() { h.client.CloseIdleConnections() }

// Stat implements Origin with one stat of the file in the cache.
func (h *Hub) Stat(model string) (string, error) {
	if err := checkHubModel(model); err != nil {
		return "", err
	}
	for _, name := range tokenizerFiles {
		fi, err := os.Stat(filepath.Join(h.dir(model), name))
		switch {
		case err == nil && fi.Mode().IsRegular():
			return version(fi), nil
		case err == nil:
			return "", fmt.Errorf("%w: model %s: its file in the hub's cache is not a regular one", tokenfile.ErrLoad, tokenfile.Quote(model))
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("%w: model %s: hub cache: %w", tokenfile.ErrLoad, tokenfile.Quote(model), err)
		}
	}
	if h.cfg.Offline {
		return "", unknown(model, "the hub is not asked (offline), and its cache does not have revision %s", h.revision(model))
	}
	return "", nil
}

// Fetch implements Origin.
func (h *Hub) Fetch(ctx context.Context, model string) (Files, error) {
	if _, err := h.Stat(model); err != nil {
		return Files{}, err
	}
	if err := h.downloads.Acquire(ctx, 1); err != nil {
		return Files{}, fmt.Errorf("%w: model %s: wait for another download: %w", tokenfile.ErrLoad, tokenfile.Quote(model), err)
	}
	defer h.downloads.Release(1)

	dir := h.dir(model)
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return Files{}, fmt.Errorf("%w: model %s: hub cache: %w", tokenfile.ErrLoad, tokenfile.Quote(model), err)
	}
	defer unlock()

	d, meta, err := h.fetchTokenizer(ctx, model, dir)
	if err != nil {
		h.removeEmpty(dir)
		return Files{}, err
	}
	data, v, err := readFile(d.path(""), h.cfg.MaxFileBytes)
	if err != nil {
		return Files{}, fmt.Errorf("%w: model %s: hub cache: %w", tokenfile.ErrLoad, tokenfile.Quote(model), err)
	}
	files := Files{
		Files: tokenfile.Files{Tokenizer: data, Name: d.file}, From: "hub", Revision: cmp.Or(meta.Commit, d.revision), Version: v,
	}
	if err := h.fetchTokens(ctx, d, &files); err != nil {
		return Files{}, err
	}
	h.fetchChat(ctx, d, &files)
	return files, nil
}

// fetchTokens gets the other files that have a say in tokens, as far as the model has
// them. Without one that it has, its tokens would be others.
func (h *Hub) fetchTokens(ctx context.Context, d download, files *Files) error {
	d.limit = maxConfigFile
	get := func(name string) (data []byte, err error) {
		d.file = name
		if err := d.fetchOptional(ctx); err != nil {
			return nil, err
		}
		return readOptional(d.path(""), maxConfigFile)
	}
	var err error
	if files.Config, err = get(tokenfile.ConfigFile); err != nil {
		return err
	}
	if !bytes.Contains(files.Config, []byte(`"added_tokens_decoder"`)) {
		if files.SpecialTokens, err = get(tokenfile.SpecialTokensFile); err != nil {
			return err
		}
		files.Chat.SpecialTokens = files.SpecialTokens
		if files.Added, err = get(tokenfile.AddedTokensFile); err != nil {
			return err
		}
	}
	files.Model, err = get(modelFile)
	return err
}

// fetchTokenizer gets the first file of a model that holds a tokenizer.
func (h *Hub) fetchTokenizer(ctx context.Context, model, dir string) (d download, meta fileMeta, err error) {
	var first error
	for _, name := range tokenizerFiles {
		d = download{
			hub: h, model: model, revision: h.revision(model), file: name, dir: dir,
			limit: h.cfg.MaxFileBytes, attempts: h.cfg.Attempts,
		}
		if first != nil && !mayHaveOther(first) {
			// The hub does not answer, or the model is not there. What is in the cache
			// is used in any case.
			if _, ok := d.cached(); !ok {
				continue
			}
		}
		if meta, err = d.fetch(ctx); err == nil {
			return d, meta, nil
		}
		if first == nil || errors.Is(first, ErrUnknownModel) && !errors.Is(err, ErrUnknownModel) {
			first = err
		}
	}
	if e, ok := errors.AsType[*unknownError](first); ok && e.entry {
		return d, meta, unsupported(model, "%s, nor %s: if it has another kind of tokenizer, %s",
			e.reason, strings.Join(tokenizerFiles[1:], " or "), convertHint)
	}
	return d, meta, first
}

// mayHaveOther says that a model may be there though a file of it is not.
func mayHaveOther(err error) bool {
	e, ok := errors.AsType[*unknownError](err)
	return ok && (e.entry || e.maybe)
}

// toolTemplate is the one of the additional templates that is looked for: what
// others a model has, the hub's files do not say.
const toolTemplate = "additional_chat_templates/tool_use.jinja"

// fetchChat gets the other files that say how chats are rendered, as far as the model
// has them. They do not keep a load.
func (h *Hub) fetchChat(ctx context.Context, d download, files *Files) {
	d.attempts, d.quick = 1, true
	get := func(name string, limit int64) []byte {
		d.file, d.limit = name, limit
		if err := os.MkdirAll(filepath.Dir(d.path("")), 0o755); err != nil {
			return nil
		}
		_ = d.fetchOptional(ctx)
		data, _ := readOptional(d.path(""), limit)
		return data
	}
	files.Chat.Template = get("chat_template.jinja", chat.MaxTemplateBytes)
	if files.Chat.Template == nil {
		files.Chat.Processor = get("chat_template.json", maxConfigFile)
		return
	}
	if named := get(toolTemplate, chat.MaxTemplateBytes); named != nil {
		files.Chat.Named = map[string][]byte{"tool_use": named}
	}
}

// dir is the cache's folder of a model. Names on the hub have no '@', so no
// model lies within another one's folder.
func (h *Hub) dir(model string) string {
	return filepath.Join(h.cfg.CacheDir, filepath.FromSlash(model), "@"+url.PathEscape(h.revision(model)))
}

// CacheDir is HubConfig.CacheDir, or its default. No model's files lie in a folder of it
// whose name begins with a dot.
func (h *Hub) CacheDir() string { return h.cfg.CacheDir }

func (h *Hub) revision(model string) string {
	return cmp.Or(h.cfg.Revisions[model], h.cfg.Revision)
}

func checkHubModel(model string) error {
	if err := checkModel(model); err != nil {
		return err
	}
	if !hubName.MatchString(model) {
		return unknown(model, "not the name of a model on the hub")
	}
	return nil
}

// checkRedirect follows the hub to its file servers, and sees to it that the
// token does not follow.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("more than 10 redirects")
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("redirect from https to http refused")
	}
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

// removeEmpty removes a model's folder, whose lock is held, if it has nothing but the
// lock, and then the empty folders above. Clients can name any number of models.
func (h *Hub) removeEmpty(dir string) {
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
		return
	}
	if os.Remove(filepath.Join(dir, lockFile)) != nil {
		return
	}
	for ; dir != h.cfg.CacheDir && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}
}

const lockFile = ".lock"

// lockDir makes dir and keeps other processes that share the cache out of it, until
// unlock.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	for {
		unlock, err := tryLockDir(ctx, dir)
		if unlock != nil || err != nil {
			return unlock, err
		}
	}
}

// tryLockDir is lockDir. It returns nothing where the folder was removed meanwhile by the
// process that had the lock.
func tryLockDir(ctx context.Context, dir string) (unlock func(), err error) {
	err = os.MkdirAll(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
		return nil, nil // a folder above was empty a moment ago
	}
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if !isFile(f, path) {
				_ = f.Close()
				return nil, nil
			}
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock: %w", err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("another process holds the lock: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// isFile reports whether f is still what lies at path.
func isFile(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}
