package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write puts text into a file, and makes the change one that is seen.
func write(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

func line(t *testing.T, role Role, token, name string) string {
	t.Helper()
	d := must.Get(Digest(token))(t)
	return fmt.Sprintf("%s %s %s\n", role, d, name)
}

// open makes a file of credentials.
func open(t *testing.T, text string, failed func(error)) (*Credentials, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	write(t, path, text)
	c := must.Get(Open(path, failed))(t)
	return c, path
}

func request(authorization ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/v1/score", nil)
	for _, a := range authorization {
		r.Header.Add("Authorization", a)
	}
	return r
}

// TestFilesThatAreRefused: nothing of a wrong file counts, and its error has the line and no
// digest.
func TestFilesThatAreRefused(t *testing.T) {
	digest := must.Get(Digest("a token of twenty bytes and more"))(t)
	good := "read " + digest + " a\n"
	for name, c := range map[string]struct{ text, want string }{
		"two words":         {good + "read " + digest + "\n", "line 2: 2 words"},
		"four words":        {good + "read " + digest + " a b\n", "line 2: the fourth word is not salt="},
		"five words":        {"read " + digest + " a salt=0123456789abcdef b\n", "line 1: 5 words"},
		"short salt":        {"read " + digest + " a salt=hunter2\n", "line 1: access: a salt has 16 to 128 characters, this one 7"},
		"long salt":         {"read " + digest + " a salt=" + strings.Repeat("x", 129) + "\n", "this one 129"},
		"slash in salt":     {"read " + digest + " a salt=hunter2hunter2/hunter2\n", "letters, digits"},
		"at in salt":        {"read " + digest + " a salt=hunter2hunter2@hunter2\n", "letters, digits"},
		"backslash in it":   {"read " + digest + " a salt=hunter2hunter2\\hunter2\n", "letters, digits"},
		"NUL in salt":       {"read " + digest + " a salt=hunter2hunter2\x00hunter2\n", "letters, digits"},
		"salt in another":   {"read cert:a a salt=hunter2hunter2hunter2\nread cert:b b salt=hunter2hunter2hunter2hunter2\n", "line 2: its salt and one above begin alike"},
		"salt in one below": {"read cert:a a salt=hunter2hunter2hunter2hunter2\nread cert:b b\nread cert:c c salt=hunter2hunter2hunter2\n", "line 3: its salt and one above begin alike"},
		"quote in salt":     {"read " + digest + " a salt=hunter2hunter2\"hunter2\n", "letters, digits"},
		"salted writer":     {"write " + digest + " a salt=0123456789abcdef\n", "a caller with a salt has role read"},
		"salted admin":      {"admin cert:x a salt=0123456789abcdef\n", "a caller with a salt has role read"},
		"no role":           {"root " + digest + " a\n", `line 1: access: "root" is no role`},
		"role in capital":   {"Read " + digest + " a\n", `"Read" is no role`},
		"plain token":       {"read hunter2hunter2hunter2hunter2 a\n", "line 1: the second word is neither"},
		"short digest":      {"read sha256:00ff a\n", "neither"},
		"no hex":            {"read sha256:" + strings.Repeat("zz", 32) + " a\n", "not hexadecimal"},
		"other hash":        {"read md5:" + strings.Repeat("00", 32) + " a\n", "neither"},
		"no certificate":    {"read cert: a\n", "neither"},
		"twice":             {good + "\n# more\nadmin " + digest + " b\n", "line 4: this token or certificate stands above"},
		"cert twice":        {"read cert:x a\nread cert:x b\n", "line 2: this token"},
		"too many":          {manyLines(maxCredentials + 1), "more than 256"},
		"binary":            {"\x00\x01\x02", "line 1"},
		"endless line":      {"read " + strings.Repeat("x", 1<<17), "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "credentials")
			write(t, path, c.text)
			_, err := Open(path, nil)
			if !errors.Is(err, ErrCredentials) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want ErrCredentials with %q", err, c.want)
			}
			if strings.Contains(err.Error(), strings.TrimPrefix(digest, "sha256:")) || strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("the error shows a secret: %v", err)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("no file: %v", err)
	}
	huge := filepath.Join(t.TempDir(), "huge")
	write(t, huge, strings.Repeat("# much\n", maxFileBytes/7+1))
	if _, err := Open(huge, nil); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Fatalf("a huge file: %v", err)
	}
}

func manyLines(n int) string {
	var b strings.Builder
	for i := range n {
		d, _ := Digest(fmt.Sprintf("a token of twenty bytes and more %d", i))
		fmt.Fprintf(&b, "read %s n%d\n", d, i)
	}
	return b.String()
}

// TestTokens: which headers name a caller.
func TestTokens(t *testing.T) {
	const known, other = "the token of the scheduler here", "the token of somebody else here"
	creds, _ := open(t, "# callers\n"+line(t, Write, known, "scheduler"), nil)
	for name, c := range map[string]struct {
		headers []string
		want    error
		ok      bool
	}{
		"right":              {headers: []string{"Bearer " + known}, ok: true},
		"scheme's case":      {headers: []string{"bearer " + known}, ok: true},
		"spaces around":      {headers: []string{"Bearer   " + known + "  "}, ok: true},
		"none":               {},
		"wrong":              {headers: []string{"Bearer " + other}, want: ErrUnauthorized},
		"empty":              {headers: []string{""}, want: ErrUnauthorized},
		"no scheme":          {headers: []string{known}, want: ErrUnauthorized},
		"basic":              {headers: []string{"Basic " + known}, want: ErrUnauthorized},
		"bearer alone":       {headers: []string{"Bearer "}, want: ErrUnauthorized},
		"digest as token":    {headers: []string{"Bearer " + strings.TrimSpace(strings.Fields(line(t, Read, known, "x"))[1])}, want: ErrUnauthorized},
		"prefix":             {headers: []string{"Bearer " + known[:len(known)-1]}, want: ErrUnauthorized},
		"longer":             {headers: []string{"Bearer " + known + "x"}, want: ErrUnauthorized},
		"other case":         {headers: []string{"Bearer " + strings.ToUpper(known)}, want: ErrUnauthorized},
		"two headers":        {headers: []string{"Bearer " + known, "Bearer " + other}, want: ErrUnauthorized},
		"two, the same":      {headers: []string{"Bearer " + known, "Bearer " + known}, want: ErrUnauthorized},
		"two in one":         {headers: []string{"Bearer " + known + ", Bearer " + known}, want: ErrUnauthorized},
		"a megabyte":         {headers: []string{"Bearer " + strings.Repeat("a", 1<<20)}, want: ErrUnauthorized},
		"NUL within":         {headers: []string{"Bearer " + known + "\x00"}, want: ErrUnauthorized},
		"another encoding":   {headers: []string{"Bearer " + strings.ReplaceAll(known, " ", "%20")}, want: ErrUnauthorized},
		"tab for the blank":  {headers: []string{"Bearer\t" + known}, want: ErrUnauthorized},
		"nothing but blanks": {headers: []string{"   "}, want: ErrUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			caller, ok, err := creds.Caller(request(c.headers...))
			if ok != c.ok || !errors.Is(err, c.want) {
				t.Fatalf("got %+v, %v, %v", caller, ok, err)
			}
			if ok && caller != (Caller{Name: "scheduler", Role: Write}) {
				t.Fatalf("got %+v", caller)
			}
		})
	}
	for _, short := range []string{"", "short", strings.Repeat("x", 19), strings.Repeat("x", maxTokenBytes+1)} {
		if _, err := Digest(short); err == nil {
			t.Errorf("Digest takes %q", short)
		}
	}
	if a, b := NewToken(), NewToken(); a == b || len(a) < 40 {
		t.Errorf("tokens %q and %q", a, b)
	}
}

// TestSalts: callers of different salts never get the same one, whatever they ask for.
func TestSalts(t *testing.T) {
	const a, b = "the token of a tenant is here", "the token of another tenant is"
	salts := map[string]string{a: NewSalt(), b: NewSalt()}
	text := strings.TrimSpace(line(t, Read, a, "a")) + " salt=" + salts[a] + "\n" + strings.TrimSpace(line(t, Read, b, "b")) + " salt=" + salts[b] + "\n"
	creds, _ := open(t, text, nil)
	from := map[string]string{}
	asked := []string{
		"", "user", "user/" + salts[b], salts[b], salts[b] + "/user", "/", "/" + salts[b], "\x00", "ü", "a@b", `a\b`,
		strings.Repeat("long", 1000), strings.Repeat("x", maxSaltBytes), strings.Repeat("x", maxSaltBytes) + "y",
	}
	for _, token := range []string{a, b} {
		caller, ok, err := creds.Caller(request("Bearer " + token))
		if err != nil || !ok || caller.Salt != salts[token] {
			t.Fatalf("%+v %v %v", caller, ok, err)
		}
		for _, ask := range asked {
			got := caller.CacheSalt(ask)
			if other, taken := from[got]; taken {
				t.Errorf("%s with %q has the salt of %s", caller.Name, ask, other)
			}
			if from[got] = caller.Name + " with " + ask; !vllmTakes(got) {
				t.Errorf("%q becomes %q, which vLLM refuses", ask, got)
			}
			if ask == "" && got != salts[token] || ask != "" && got != hashed(salts[token], ask) {
				t.Errorf("%q becomes %q", ask, got)
			}
		}
	}
	// The longest salt is one that vLLM takes; a longer one is refused.
	if longest := strings.Repeat("x", maxSaltBytes); CheckSalt(longest) != nil || !vllmTakes((Caller{Salt: longest}).CacheSalt("")) {
		t.Errorf("a salt of %d characters", len(longest))
	}
	for c := range rune(0x100) {
		if salt := strings.Repeat("x", minSaltBytes) + string(c); CheckSalt(salt) == nil && !vllmTakes(salt) {
			t.Errorf("a salt with %q", c)
		}
	}
	if got := (Caller{Name: "x"}).CacheSalt("own"); got != "own" {
		t.Errorf("a caller without a salt gets %q", got)
	}
	if CallerOf(t.Context()) != (Caller{}) || CallerOf(WithCaller(t.Context(), Caller{Name: "x"})).Name != "x" {
		t.Error("a context does not say whose request it is")
	}
}

// vllmTakes is vLLM's rule for a cache_salt (validate_cache_salt, 0.33): 1 to 128 characters,
// none of '@', '/', '\\' and NUL.
func vllmTakes(salt string) bool {
	return salt != "" && utf8.RuneCountInString(salt) <= 128 && !strings.ContainsAny(salt, "@/\\\x00")
}

// hashed is the HMAC-SHA256 of a text in base64url, without padding.
func hashed(key, text string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// TestScopesOfCallers: what callers of different salts give one name goes by two names. These fit
// wherever one does and are no cache salts. A caller without a salt keeps its own name.
func TestScopesOfCallers(t *testing.T) {
	a, b := Caller{Name: "a", Salt: NewSalt()}, Caller{Name: "b", Salt: NewSalt()}
	from := map[string]string{}
	for _, c := range []Caller{a, b, {Name: "c"}} {
		for _, name := range []string{"r1", "r2", "/", "ü", strings.Repeat("x", 256)} {
			got := c.Scoped(name)
			if other, taken := from[got]; taken || got != c.Scoped(name) {
				t.Errorf("%s with %q is %q, as %s", c.Name, name, got, other)
			}
			from[got] = c.Name + " with " + name
			if c.Salt == "" && got != name || c.Salt != "" && (len(got) != 43 || strings.Trim(got, base64URL) != "" || got == c.CacheSalt(name)) {
				t.Errorf("%s with %q is %q", c.Name, name, got)
			}
		}
		if got := c.Scoped(""); got != "" {
			t.Errorf("%s without a name has %q", c.Name, got)
		}
	}
	// A caller that replaces its token keeps its names.
	if replaced := (Caller{Name: "another", Salt: a.Salt}); replaced.Scoped("r1") != a.Scoped("r1") {
		t.Error("the names of a salt differ by the caller")
	}
}

const base64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// TestSaltOfAReplacedToken: two tokens of one salt are in one file.
func TestSaltOfAReplacedToken(t *testing.T) {
	salt := NewSalt()
	creds, _ := open(t, "read cert:a a salt="+salt+"\nread cert:b a salt="+salt+"\nread cert:c c salt="+NewSalt()+"\nread cert:d d\n", nil)
	if len(*creds.all.Load()) != 4 {
		t.Errorf("%d credentials", len(*creds.all.Load()))
	}
}

// TestRotation: two tokens of one caller count at once, and one that is withdrawn does not any
// more. A file that is broken or gone leaves the last one in force.
func TestRotation(t *testing.T) {
	const before, after = "the token before the rotation", "the token after the rotation"
	var failures []error
	creds, path := open(t, line(t, Read, before, "a"), func(err error) { failures = append(failures, err) })
	known := func(token string) bool {
		_, ok, _ := creds.Caller(request("Bearer " + token))
		return ok
	}
	now := time.Now()
	change := func(text string) {
		write(t, path, text)
		now = now.Add(2 * lookEvery)
		must.OK(t, os.Chtimes(path, now, now))
		creds.watch.look(now)
	}
	change(line(t, Read, before, "a") + line(t, Read, after, "a"))
	if !known(before) || !known(after) || len(*creds.all.Load()) != 2 {
		t.Fatal("not both tokens count during a rotation")
	}
	change(line(t, Read, after, "a"))
	if known(before) || !known(after) {
		t.Fatal("the withdrawn token counts, or the new one does not")
	}
	change("root of all\n")
	if len(failures) != 1 || !errors.Is(failures[0], ErrCredentials) || !known(after) {
		t.Fatalf("a broken file: %v", failures)
	}
	must.OK(t, os.Remove(path))
	creds.watch.look(now.Add(4 * lookEvery))
	if len(failures) != 2 || !errors.Is(failures[1], os.ErrNotExist) || !known(after) {
		t.Fatalf("a file that is gone: %v", failures)
	}
	// What has not changed is not reported again.
	creds.watch.look(now.Add(6 * lookEvery))
	if len(failures) != 2 {
		t.Fatalf("told again: %v", failures)
	}
}

// TestAdmit: which callers are admitted, by the role that is needed, the credentials and the listener.
func TestAdmit(t *testing.T) {
	const reader, writer, admin = "the token of a reader is this", "the token of a writer is this", "the token of an admin is this"
	creds, _ := open(t, line(t, Read, reader, "r")+line(t, Write, writer, "w")+line(t, Admin, admin, "a"), nil)
	for name, c := range map[string]struct {
		guard  *Guard
		header string
		need   Role
		want   error
	}{
		"no guard":                       {need: Admin},
		"health without anything":        {guard: &Guard{Credentials: creds}, need: None},
		"health with a wrong token":      {guard: &Guard{Credentials: creds}, header: "Bearer wrong", need: None},
		"reader reads":                   {guard: &Guard{Credentials: creds}, header: "Bearer " + reader, need: Read},
		"reader writes":                  {guard: &Guard{Credentials: creds}, header: "Bearer " + reader, need: Write, want: ErrForbidden},
		"writer reads":                   {guard: &Guard{Credentials: creds}, header: "Bearer " + writer, need: Read},
		"writer writes":                  {guard: &Guard{Credentials: creds}, header: "Bearer " + writer, need: Write},
		"writer resets":                  {guard: &Guard{Credentials: creds}, header: "Bearer " + writer, need: Admin, want: ErrForbidden},
		"admin resets":                   {guard: &Guard{Credentials: creds}, header: "Bearer " + admin, need: Admin},
		"nobody reads":                   {guard: &Guard{Credentials: creds}, need: Read, want: ErrUnauthorized},
		"nobody reads where they may":    {guard: &Guard{Credentials: creds, Anonymous: Read}, need: Read},
		"nobody writes there":            {guard: &Guard{Credentials: creds, Anonymous: Read}, need: Write, want: ErrUnauthorized},
		"a wrong token is worse than no": {guard: &Guard{Credentials: creds, Anonymous: Admin}, header: "Bearer wrong", need: Read, want: ErrUnauthorized},
		"a reader where all may write":   {guard: &Guard{Credentials: creds, Anonymous: Admin}, header: "Bearer " + reader, need: Write, want: ErrForbidden},
		"no credentials, none allowed":   {guard: &Guard{Anonymous: Read}, need: Write, want: ErrForbidden},
		"no credentials, with a token":   {guard: &Guard{Anonymous: Read}, header: "Bearer " + admin, need: Write, want: ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			r := request()
			if c.header != "" {
				r = request(c.header)
			}
			if _, err := c.guard.Admit(r, c.need); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	// The listener's own role counts before the guard's.
	g := &Guard{Anonymous: Admin}
	r := request().WithContext(WithAnonymous(context.Background(), None))
	if _, err := g.Admit(r, Read); !errors.Is(err, ErrForbidden) {
		t.Fatalf("the listener's role does not count: %v", err)
	}
}

// TestLimiter: each caller has its own share, in names before addresses.
func TestLimiter(t *testing.T) {
	l, now := NewLimiter(2), time.Unix(1000, 0)
	allow := func(name, remote string) bool {
		_, ok := l.Allow(Caller{Name: name}, remote, now)
		return ok
	}
	for i, c := range []struct {
		name, remote string
		want         bool
	}{
		{"", "10.0.0.1:1", true},
		{"", "10.0.0.1:2", true},
		{"", "10.0.0.1:3", false},
		{"", "[::ffff:10.0.0.1]:4", false}, // the same client in other words
		{"", "10.0.0.2:1", true},
		{"", "[2001:db8::1]:1", true},
		{"", "[2001:db8::2]:1", true},
		{"", "[2001:db8::ffff:ffff:ffff:ffff]:1", false}, // a client has a whole /64
		{"", "[2001:db8:0:1::1]:1", true},
		{"", "[fe80::1%eth0]:1", true},
		{"", "[fe80::1%eth1]:1", true},
		{"", "[fe80::1%eth2]:1", false},
		{"a", "10.0.0.1:5", true}, // its address's share is used up, its own is not
		{"a", "10.0.0.9:5", true},
		{"a", "10.0.0.10:5", false},
		{"10.0.0.2", "10.0.0.3:1", true}, // a name is no address
	} {
		if got := allow(c.name, c.remote); got != c.want {
			t.Errorf("%d: %q from %s: %v", i, c.name, c.remote, got)
		}
	}
	if wait, ok := l.Allow(Caller{Name: "a"}, "", now); ok || wait <= 0 || wait > time.Second {
		t.Errorf("wait %v, %v", wait, ok)
	}
	now = now.Add(time.Second)
	if !allow("a", "") {
		t.Error("a second later it is still refused")
	}
	// A flood of addresses takes bounded memory.
	for i := range 4 * maxLimited {
		l.Allow(Caller{}, fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255), now)
	}
	if n := l.callers.Len(); n > maxLimited {
		t.Errorf("%d callers are remembered, at most %d may be", n, maxLimited)
	}
	// Guesses of tokens count against the address that they come from.
	creds, _ := open(t, "", nil)
	g, limited := &Guard{Credentials: creds, Limiter: NewLimiter(3)}, 0
	for range 10 {
		_, err := g.Admit(request("Bearer some guess of a token"), Read)
		var e *LimitError
		if errors.As(err, &e) {
			limited++
		} else if !errors.Is(err, ErrUnauthorized) {
			t.Fatal(err)
		}
	}
	if limited < 6 {
		t.Errorf("%d of 10 guesses were limited", limited)
	}
}

// TestNetworks: where a server connects to, whatever the form of the address.
func TestNetworks(t *testing.T) {
	parse := func(list ...string) *Networks {
		n := must.Get(ParseNetworks(list))(t)
		return n
	}
	usual, all, own := parse("loopback", "private"), parse("any"), parse("203.0.113.0/24", "10.1.2.3", "2001:db8::/32")
	for _, c := range []struct {
		address         string
		usual, any, own bool
	}{
		{"127.0.0.1", true, true, false},
		{"127.255.255.254", true, true, false},
		{"::1", true, true, false},
		{"::ffff:127.0.0.1", true, true, false},
		{"10.1.2.3", true, true, true},
		{"::ffff:10.1.2.3", true, true, true},
		{"10.1.2.4", true, true, false},
		{"172.15.255.255", false, true, false},
		{"172.16.0.1", true, true, false},
		{"172.31.255.255", true, true, false},
		{"172.32.0.0", false, true, false},
		{"192.168.255.1", true, true, false},
		{"192.169.0.1", false, true, false},
		{"100.64.0.1", true, true, false},
		{"100.127.255.255", true, true, false},
		{"100.128.0.1", false, true, false},
		{"fd12:3456::1", true, true, false},
		{"8.8.8.8", false, true, false},
		{"2001:4860:4860::8888", false, true, false},
		{"203.0.113.7", false, true, true},
		{"2001:db8::7", false, true, true},
		// Never, in any form.
		{"169.254.169.254", false, false, false},
		{"169.254.0.1", false, false, false},
		{"::ffff:169.254.169.254", false, false, false},
		{"64:ff9b::a9fe:a9fe", false, false, false},       // NAT64
		{"2002:a9fe:a9fe::1", false, false, false},        // 6to4
		{"::169.254.169.254", false, false, false},        // IPv4-compatible
		{"::ffff:0:169.254.169.254", false, false, false}, // IPv4-translated
		{"64:ff9b:1::a9fe:a9fe", false, false, false},     // an operator's own NAT64
		{"64:ff9b:1:a9fe:a9:fe00::", false, false, false},
		{"2001:0:7f00:1::5601:5601", false, false, false}, // Teredo
		{"fe80::1", false, false, false},
		{"fe80::1%eth0", false, false, false},
		{"fd00:ec2::254", false, false, false},
		{"fd20:ce::254", false, false, false},
		{"100.100.100.200", false, false, false},
		{"168.63.129.16", false, false, false},
		{"192.0.0.192", false, false, false},
		{"0.0.0.0", false, false, false},
		{"0.1.2.3", false, false, false},
		{"::", false, false, false},
		{"224.0.0.1", false, false, false},
		{"255.255.255.255", false, false, false},
		{"ff02::1", false, false, false},
		// Forms of IPv4 addresses are judged by these.
		{"64:ff9b::a01:203", true, true, true},
		{"64:ff9b::808:808", false, true, false},
		{"2002:a01:203::", true, true, true},
	} {
		a := netip.MustParseAddr(c.address)
		if u, e, o := usual.Allows(a), all.Allows(a), own.Allows(a); u != c.usual || e != c.any || o != c.own {
			t.Errorf("%s: loopback,private %v, any %v, own %v", c.address, u, e, o)
		}
	}
	for _, list := range [][]string{{}, {""}, {"10.0.0.0/33"}, {"10.0.0.0/8", "lan"}, {"localhost"}, {"10.0.0.0-10.0.0.9"}} {
		if n, err := ParseNetworks(list); err == nil {
			t.Errorf("%q is taken: %v", list, n)
		}
	}
	if err := (*Networks)(nil).Allow("tcp", "169.254.169.254:80"); err != nil {
		t.Errorf("no networks at all: %v", err)
	}
	for _, c := range []struct {
		n                *Networks
		network, address string
		ok               bool
	}{
		{usual, "tcp4", "10.0.0.1:80", true},
		{usual, "tcp6", "[::1]:80", true},
		{usual, "unix", "/run/x", true},
		{own, "unix", "/run/x", false},
		{usual, "tcp", "engine.example:80", false},
		{usual, "tcp", "", false},
		{usual, "tcp", "10.0.0.1", false},
		{usual, "tcp4", "8.8.8.8:80", false},
	} {
		if err := c.n.Allow(c.network, c.address); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrNetwork) {
			t.Errorf("%s %s: %v", c.network, c.address, err)
		}
	}
}

// TestDialedNames: a name is judged by what it is resolved to, at each connection.
func TestDialedNames(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	n := must.Get(ParseNetworks([]string{"10.0.0.0/8"}))(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	d := net.Dialer{Control: n.Control}
	for _, host := range []string{"localhost", "127.0.0.1", "0x7f.1", "2130706433", "::ffff:127.0.0.1"} {
		c, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			_ = c.Close()
			t.Errorf("%s was connected to", host)
		}
	}
	if loopback, err := ParseNetworks([]string{"loopback"}); err != nil {
		t.Fatal(err)
	} else if c, err := (&net.Dialer{Control: loopback.Control}).DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", port)); err != nil {
		t.Fatal(err)
	} else {
		_ = c.Close()
	}
}

// TestListener: an address outside the networks gets no connection, and the next one does.
func TestListener(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	n := must.Get(ParseNetworks([]string{"127.0.0.2"}))(t)
	accepted := make(chan string, 2)
	go func() {
		c, err := n.Listener(l).Accept()
		if err != nil {
			accepted <- err.Error()
			return
		}
		accepted <- c.RemoteAddr().String()
		_ = c.Close()
	}()
	for _, from := range []string{"127.0.0.3", "127.0.0.2"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c := must.Get(d.DialContext(t.Context(), "tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = c.Close() })
	}
	if got := <-accepted; !strings.HasPrefix(got, "127.0.0.2:") {
		t.Fatalf("accepted %s", got)
	}
}

// authority signs certificates of tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, a.pem, _ = a.sign("an authority", nil, true, time.Hour)
	return a
}

func (a *authority) sign(name string, dns []string, ca bool, life time.Duration) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
	a.t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(a.t)
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(life), IsCA: ca, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := c, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer))(a.t)
	cert := must.Get(x509.ParseCertificate(der))(a.t)
	private := must.Get(x509.MarshalECPrivateKey(key))(a.t)
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return cert, key, text("CERTIFICATE", der), text("EC PRIVATE KEY", private)
}

// TestCertificates: TLS from files that change, and callers known by their certificates.
func TestCertificates(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	_, _, cert, key := ours.sign("first", []string{"kvatlas"}, false, time.Hour)
	write(t, path("cert"), cert)
	write(t, path("key"), key)
	write(t, path("ca"), ours.pem)
	var failures []error
	files := CertificateFiles{Cert: path("cert"), Key: path("key"), ClientCA: path("ca")}
	certs := must.Get(OpenCertificates(files, func(err error) { failures = append(failures, err) }))(t)
	creds, _ := open(t, "write cert:ingester one\nread cert:by.dns two\n", nil)
	g := &Guard{Credentials: creds}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := g.Admit(r, Read)
		fmt.Fprintf(w, "%s %v", caller.Name, err)
	}))
	srv.TLS = certs.Config()
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	ask := func(clientCert, clientKey string) (body, serverName string, err error) {
		config := &tls.Config{RootCAs: roots, ServerName: "kvatlas", MinVersion: tls.VersionTLS12}
		if clientCert != "" {
			pair := must.Get(tls.X509KeyPair([]byte(clientCert), []byte(clientKey)))(t)
			// Whether the server's authorities know it or not.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(srv.URL)
		if err != nil {
			return "", "", err
		}
		defer resp.Body.Close()
		b := make([]byte, 200)
		k, _ := resp.Body.Read(b)
		return string(b[:k]), resp.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	sign := func(a *authority, name string, dns []string, life time.Duration) (string, string) {
		_, _, c, k := a.sign(name, dns, false, life)
		return c, k
	}
	for name, c := range map[string]struct {
		by   *authority
		cn   string
		dns  []string
		life time.Duration
		want string // of the answer; empty: no handshake
	}{
		"none":               {want: "ErrUnauthorized"},
		"named":              {by: ours, cn: "ingester", life: time.Hour, want: "one <nil>"},
		"named by DNS":       {by: ours, cn: "x", dns: []string{"by.dns"}, life: time.Hour, want: "two <nil>"},
		"not named":          {by: ours, cn: "stranger", life: time.Hour, want: "ErrUnauthorized"},
		"name in another's":  {by: others, cn: "ingester", life: time.Hour},
		"expired":            {by: ours, cn: "ingester", life: -time.Hour},
		"part of a name":     {by: ours, cn: "ingest", life: time.Hour, want: "ErrUnauthorized"},
		"wildcard is no DNS": {by: ours, cn: "*", dns: []string{"*.dns"}, life: time.Hour, want: "ErrUnauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			var clientCert, clientKey string
			if c.by != nil {
				clientCert, clientKey = sign(c.by, c.cn, c.dns, c.life)
			}
			body, server, err := ask(clientCert, clientKey)
			switch {
			case c.want == "":
				if err == nil {
					t.Fatalf("got %q", body)
				}
			case err != nil:
				t.Fatal(err)
			case c.want == "ErrUnauthorized":
				if !strings.Contains(body, ErrUnauthorized.Error()) {
					t.Fatalf("got %q", body)
				}
			case body != c.want || server != "first":
				t.Fatalf("got %q of %s", body, server)
			}
		})
	}
	// A new certificate, then a broken one.
	now := time.Now()
	change := func(cert, key string) {
		write(t, path("cert"), cert)
		write(t, path("key"), key)
		now = now.Add(2 * lookEvery)
		for _, p := range []string{path("cert"), path("key")} {
			must.OK(t, os.Chtimes(p, now, now))
		}
		certs.watch.look(now)
	}
	_, _, cert, key = ours.sign("second", []string{"kvatlas"}, false, time.Hour)
	change(cert, key)
	if _, server, err := ask("", ""); err != nil || server != "second" {
		t.Fatalf("after the change: %s, %v", server, err)
	}
	change(cert, "no key")
	if _, server, err := ask("", ""); err != nil || server != "second" || len(failures) != 1 {
		t.Fatalf("with a broken key: %s, %v, %v", server, err, failures)
	}
	for name, f := range map[string]CertificateFiles{
		"no file": {Cert: path("none"), Key: path("key")},
		"no key":  {Cert: path("cert"), Key: path("key")},
	} {
		if _, err := OpenCertificates(f, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
