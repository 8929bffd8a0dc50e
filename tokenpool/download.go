package tokenpool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/tokenpool/tokenfile"
)

// maxBackoff is the longest pause between attempts.
const maxBackoff = 30 * time.Second

// download brings one file of the hub into the cache.
type download struct {
	hub                        *Hub
	model, revision, file, dir string
	limit                      int64 // bytes
	attempts                   int
	quick                      bool // give up early: the file is not needed now
	stale                      bool // fetch has taken what is in the cache for want of an answer
}

// absent is the Size in the meta of a file that a commit does not have.
const absent = -2

// fileMeta is what is kept beside a file.
type fileMeta struct {
	// ETag is the identity of the content: the hub's X-Linked-Etag for large
	// files, which is their SHA-256, else the response's ETag.
	ETag string `json:"etag"`
	// Commit is the hub's commit that the file is of.
	Commit string `json:"commit,omitempty"`
	// Size is the length of the whole file, -1 when the server did not say.
	Size int64 `json:"size"`
}

// path is the file in the cache, or one beside it.
func (d *download) path(suffix string) string { return filepath.Join(d.dir, d.file+suffix) }

// temporary is an error after which another attempt may help.
type temporary struct {
	err   error
	after time.Duration // what the server asks to wait, or 0
}

func (t *temporary) Error() string { return t.err.Error() }
func (t *temporary) Unwrap() error { return t.err }

// fetch makes the file in the cache the current one, and returns its meta. When
// the hub does not give the file, the one in the cache is taken for current.
func (d *download) fetch(ctx context.Context) (fileMeta, error) {
	pinned := hubCommit.MatchString(d.revision)
	have, ok := d.cached()
	if ok && (d.hub.cfg.Offline || pinned) {
		return have, nil
	}
	if d.hub.cfg.Offline {
		return fileMeta{}, unknown(d.model, "the hub is not asked (offline), and its cache does not have %s", d.file)
	}
	if pinned && !ok {
		if meta, err := readMeta(d.path(".meta")); err == nil && meta.Size == absent {
			return fileMeta{}, &unknownError{model: d.model, entry: true, reason: fmt.Sprintf("revision %s has no %s", d.revision, d.file)}
		}
	}
	d.quick = d.quick || ok
	pause := d.hub.cfg.Backoff
	for attempt := 1; ; attempt++ {
		meta, err := d.attempt(ctx, have, ok)
		if err == nil {
			return meta, nil
		}
		if ok {
			d.stale = true
			return have, nil
		}
		if errors.Is(err, ErrUnknownModel) || errors.Is(err, tokenfile.ErrBroken) {
			return fileMeta{}, err
		}
		again, ok := errors.AsType[*temporary](err)
		if !ok || attempt >= d.attempts || ctx.Err() != nil {
			return fileMeta{}, fmt.Errorf("%w: %s of %s from the hub, attempt %d: %w", tokenfile.ErrLoad, d.file, tokenfile.Quote(d.model), attempt, err)
		}
		select {
		case <-time.After(min(max(pause, again.after), maxBackoff)):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxBackoff)
	}
}

// fetchOptional is fetch of a file that a model need not have. It asks nothing when the hub has not answered
// for an earlier file.
func (d *download) fetchOptional(ctx context.Context) error {
	if d.stale {
		return nil
	}
	_, err := d.fetch(ctx)
	if !errors.Is(err, ErrUnknownModel) {
		return err
	}
	if !d.hub.cfg.Offline {
		_ = writeMeta(d.path(".meta"), fileMeta{Size: absent})
	}
	return nil
}

// cached says what is known of the file in the cache, and whether there is
// one.
func (d *download) cached() (fileMeta, bool) {
	fi, err := os.Stat(d.path(""))
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > d.limit {
		return fileMeta{}, false
	}
	meta, err := readMeta(d.path(".meta"))
	if err != nil || meta.Size != fi.Size() {
		meta = fileMeta{Size: fi.Size()}
	}
	return meta, true
}

// attempt is one request. have is the meta of the file in the cache, if there
// is one.
func (d *download) attempt(ctx context.Context, have fileMeta, cached bool) (fileMeta, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The watch ends the request when nothing comes for too long.
	patience := d.hub.cfg.ResponseTimeout
	if d.quick {
		patience = max(patience/3, time.Millisecond)
	}
	watch := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("nothing came for %v", patience))
	})
	defer watch.Stop()

	part, offset := d.partial()
	resp, got, err := d.request(ctx, offset)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fileMeta{}, &temporary{err: err}
	}
	defer func() { _ = resp.Body.Close() }()

	if cached && have.ETag != "" && got.ETag == have.ETag && resp.StatusCode < 300 {
		return have, nil // the body is left unread, which ends the connection
	}
	switch resp.StatusCode {
	case http.StatusOK:
		offset = 0
	case http.StatusPartialContent:
		if start, total, ok := contentRange(resp); !ok || start != offset || got.ETag != part.ETag || (part.Size >= 0 && total >= 0 && total != part.Size) {
			d.discard()
			return fileMeta{}, &temporary{err: errors.New("the server has another file than the one begun; it is begun anew")}
		}
		got.Size = part.Size
	case http.StatusRequestedRangeNotSatisfiable:
		d.discard()
		return fileMeta{}, &temporary{err: errors.New("the server refuses to go on from where the download ended; it is begun anew")}
	default:
		return fileMeta{}, d.refused(resp)
	}
	if got.Size > d.limit {
		return fileMeta{}, fmt.Errorf("the file is %d bytes, the limit is %d", got.Size, d.limit)
	}
	body := &watchedBody{resp.Body, watch, d.hub.cfg.ResponseTimeout}
	if err := d.receive(body, got, offset); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fileMeta{}, &temporary{err: cause}
		}
		return fileMeta{}, err
	}
	return d.install(got)
}

// request asks for the file, from offset on if that is not 0.
func (d *download) request(ctx context.Context, offset int64) (*http.Response, fileMeta, error) {
	u := fmt.Sprintf("%s/%s/resolve/%s/%s", d.hub.cfg.Endpoint, d.model, url.PathEscape(d.revision), d.file)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fileMeta{}, err
	}
	// Compressed on the way, a range would be one of other bytes.
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "kvatlas")
	if d.hub.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+d.hub.cfg.Token)
	}
	if offset > 0 {
		// No If-Range: behind the hub's redirect another server with another
		// ETag answers. The ETag of the answer is compared instead.
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := d.hub.client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // without the URL, which a redirect may have signed
		}
		return nil, fileMeta{}, err
	}
	got := fileMeta{Size: resp.ContentLength}
	// The hub names content and commit in the redirect to a large file.
	for r := resp; r != nil; r = r.Request.Response {
		if linked := etag(r.Header.Get("X-Linked-Etag")); linked != "" {
			got.ETag = linked
		}
		if commit := r.Header.Get("X-Repo-Commit"); hubCommit.MatchString(commit) {
			got.Commit = commit
		}
	}
	if got.ETag == "" {
		got.ETag = etag(resp.Header.Get("ETag"))
	}
	return resp, got, nil
}

// etag returns an ETag's content without quotes and weakness mark.
func etag(header string) string {
	return strings.Trim(strings.TrimPrefix(header, "W/"), `"`)
}

// contentRange reads "bytes START-END/TOTAL"; total is -1 for "*".
func contentRange(resp *http.Response) (start, total int64, ok bool) {
	m := rangePattern.FindStringSubmatch(resp.Header.Get("Content-Range"))
	if m == nil {
		return 0, 0, false
	}
	start, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if m[2] == "*" {
		return start, -1, true
	}
	total, err = strconv.ParseInt(m[2], 10, 64)
	return start, total, err == nil
}

var rangePattern = regexp.MustCompile(`^bytes (\d+)-\d+/(\d+|\*)$`)

// refused makes an error of a response that has no file.
func (d *download) refused(resp *http.Response) error {
	// Read a little, so that the connection can be used again.
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	hint := ""
	if d.hub.cfg.Token == "" {
		hint = ", and no token is set (HF_TOKEN)"
	}
	host := strings.SplitN(d.hub.cfg.Endpoint, "://", 2)[1]
	code := resp.Header.Get("X-Error-Code")
	switch resp.StatusCode {
	case http.StatusNotFound:
		switch code {
		case "EntryNotFound":
			return &unknownError{model: d.model, entry: true, reason: fmt.Sprintf("the hub %s has the model, but no %s in revision %s", host, d.file, d.revision)}
		case "RevisionNotFound":
			return unknown(d.model, "the hub %s has the model, but no revision %s", host, d.revision)
		}
		return &unknownError{model: d.model, maybe: code == "", reason: fmt.Sprintf("the hub %s has no such model, or no %s in revision %s", host, d.file, d.revision)}
	case http.StatusUnauthorized:
		if code == "GatedRepo" {
			return fmt.Errorf("the hub %s gives the model only to those with granted access (401%s)", host, hint)
		}
		return unknown(d.model, "the hub %s has no such model, or it is private and the token does not open it (401%s)", host, hint)
	case http.StatusForbidden:
		return fmt.Errorf("the hub %s refuses the file to this token: access to the model has to be granted first (403%s)", host, hint)
	}
	err := fmt.Errorf("the hub %s answered %s", host, resp.Status)
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout || resp.StatusCode >= 500 {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return &temporary{err: err, after: time.Duration(min(max(seconds, 0), 3600)) * time.Second}
	}
	return err
}

// partial returns what there is of an unfinished download. Without its ETag it
// is of no use.
func (d *download) partial() (meta fileMeta, size int64) {
	fi, err := os.Stat(d.path(".part"))
	if err != nil {
		return fileMeta{}, 0
	}
	meta, err = readMeta(d.path(".part.meta"))
	if err != nil || meta.ETag == "" || fi.Size() > d.limit || (meta.Size >= 0 && fi.Size() >= meta.Size) {
		d.discard()
		return fileMeta{}, 0
	}
	return meta, fi.Size()
}

// discard forgets an unfinished download.
func (d *download) discard() {
	_ = os.Remove(d.path(".part.meta"))
	_ = os.Remove(d.path(".part"))
}

// receive writes the body to the .part file, from offset on.
func (d *download) receive(body io.Reader, meta fileMeta, offset int64) error {
	f, err := os.OpenFile(d.path(".part"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if offset == 0 {
		// The old meta goes before the old content does, and the new one comes
		// before the new content: no content ever stands beside another's ETag.
		_ = os.Remove(d.path(".part.meta"))
		if err := f.Truncate(0); err != nil {
			return err
		}
		if err := writeMeta(d.path(".part.meta"), meta); err != nil {
			return err
		}
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return err
	}
	done := offset
	buf := make([]byte, 256<<10)
	next := done
	for {
		n, err := body.Read(buf)
		if done+int64(n) > d.limit {
			d.discard()
			return fmt.Errorf("the file is more than %d bytes, which is the limit", d.limit)
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return fmt.Errorf("write to the cache: %w", err)
		}
		done += int64(n)
		if p := d.hub.cfg.Progress; p != nil && (done >= next || err != nil) {
			p(d.model, d.file, done, meta.Size)
			next = done + 1<<20
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return &temporary{err: fmt.Errorf("broke off after %d bytes: %w", done, err)}
		}
	}
	if meta.Size >= 0 && done != meta.Size {
		return &temporary{err: fmt.Errorf("ended after %d of %d bytes", done, meta.Size)}
	}
	return f.Sync()
}

// install checks a finished download, and puts it in its place.
func (d *download) install(meta fileMeta) (fileMeta, error) {
	data, _, err := readFile(d.path(".part"), d.limit)
	if err != nil {
		return fileMeta{}, err
	}
	meta.Size = int64(len(data))
	// Where the identity is the hub's SHA-256, it must be that of the content.
	if len(meta.ETag) == 2*sha256.Size {
		if want, err := hex.DecodeString(meta.ETag); err == nil {
			if sum := sha256.Sum256(data); !bytes.Equal(sum[:], want) {
				d.discard()
				return fileMeta{}, &temporary{err: errors.New("the content is not what its SHA-256 says")}
			}
		}
	}
	if bytes.HasPrefix(data, tokenfile.LFSPointer) { // another try gives the same
		d.discard()
		return fileMeta{}, tokenfile.OfModel(d.model, tokenfile.Wrong(d.file, "is a pointer of Git LFS in place of the file, on the hub or its mirror",
			"have the mirror fetch its large files, with `git lfs pull`"))
	}
	if err := checkContent(d.file, data); err != nil {
		d.discard()
		return fileMeta{}, &temporary{err: err}
	}
	// The file can be used without its meta, which only saves a download; so
	// the old meta goes before the old file does.
	_ = os.Remove(d.path(".meta"))
	if err := os.Rename(d.path(".part"), d.path("")); err != nil {
		return fileMeta{}, err
	}
	_ = os.Remove(d.path(".part.meta"))
	_ = writeMeta(d.path(".meta"), meta)
	return meta, nil
}

// checkContent reports whether data can be the file of that name. A sign-in page of
// a proxy comes with 200 as well.
func checkContent(name string, data []byte) error {
	if e := tokenfile.NotTheFile(name, data); e != nil {
		return errors.New("the content " + e.What)
	}
	if tokenfile.IsTiktoken(name) {
		if _, err := tokenfile.ReadRanks(data); err != nil {
			return fmt.Errorf("the content is no tiktoken file: %w", err)
		}
		return nil
	}
	if !strings.HasSuffix(name, ".jinja") {
		if !json.Valid(data) {
			return errors.New("the content is not JSON")
		}
		return nil
	}
	if !utf8.Valid(data) {
		return errors.New("the content is no template")
	}
	return nil
}

func readMeta(path string) (fileMeta, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return fileMeta{}, err
	}
	var meta fileMeta
	err = json.Unmarshal(data, &meta)
	return meta, err
}

// writeMeta writes it as a whole or not at all.
func writeMeta(path string, meta fileMeta) error {
	data, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// watchedBody winds the watch at each part that comes.
type watchedBody struct {
	io.Reader
	watch    *time.Timer
	patience time.Duration
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.watch.Reset(b.patience)
	return b.Reader.Read(p)
}
