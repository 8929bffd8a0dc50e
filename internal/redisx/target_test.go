package redisx

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/must"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"redis://localhost":                                   "localhost:6379",
		"redis://localhost:7000/3":                            "localhost:7000 db 3",
		"redis://localhost:7000?db=3":                         "localhost:7000 db 3",
		"redis://[::1]":                                       "[::1]:6379",
		"redis://[::1]:7":                                     "[::1]:7",
		"redis://user:secret@h:1/":                            "h:1",
		"redis://:se@cr%2Fet@h:1":                             "h:1",
		"rediss://user:secret@h":                              "h:6379 (TLS)",
		"rediss://h?insecure=true&server_name=x":              "h:6379 (TLS)",
		"unix:///run/redis.sock":                              "/run/redis.sock",
		"unix://:secret@/run/a%20b?db=2":                      "/run/a b db 2",
		"redis+cluster://a,b:7001,c":                          "cluster a:6379,b:7001,c:6379",
		"rediss+cluster://u:secret@a:1":                       "cluster a:1 (TLS)",
		"redis+sentinel://a,b:1/mymaster":                     "master mymaster of sentinels a:26379,b:1",
		"redis+sentinel://u:secret@a/m/2?sentinel_password=s": "master m of sentinels a:26379 db 2",
	} {
		got, err := ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got.String() != want {
			t.Errorf("%s is %q, want %q", url, got, want)
		}
	}
	u := must.Get(ParseURL("redis+sentinel://us%40er:p%3Aa@ss@a:1,b:2/m/2?sentinel_username=su&sentinel_password=s@p"))(t)
	if u.username != "us@er" || u.password != "p:a@ss" || u.sentinelUsername != "su" || u.sentinelPassword != "s@p" || u.db != 2 {
		t.Fatalf("got %+v", u)
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, say := range map[string]string{
		"":                                    "no scheme",
		"localhost:6379":                      "no scheme",
		"http://h":                            `scheme "http" is unknown`,
		"redis://":                            "no host",
		"redis://:secret@":                    "no host",
		"redis://a,b":                         "2 hosts",
		"redis://h:x":                         `port "x"`,
		"redis://h:0":                         `port "0"`,
		"redis://h:70000":                     `port "70000"`,
		"redis://::1":                         "brackets",
		"redis://h/x":                         `database "x"`,
		"redis://h/-1":                        `database "-1"`,
		"redis://h?database=1":                `"database" is unknown`,
		"redis://h?db=1&db=2":                 "twice",
		"redis://h?ca=x":                      "needs a scheme that begins with rediss",
		"redis://user@h":                      "without a password",
		"redis://u:sec%zzret@h":               "encodes nothing",
		"redis://h?sentinel_password=secret":  "redis+sentinel URLs only",
		"redis+cluster://a/1":                 "no databases",
		"redis+cluster://a?db=1":              "none but 0",
		"redis+sentinel://a":                  "names the master",
		"unix://relative":                     "does not begin with /",
		"rediss://h?ca=/does/not/exist":       "CA certificates",
		"rediss://h?cert=x":                   "go together",
		"rediss://h?insecure=perhaps":         "not true or false",
		"redis://:sec?ret@h":                  "%3F",
		"redis://u:sec?ret@h:1/0?db=1":        "%3F",
		"redis://u:secret@h?db=1&x=%":         "parameters",
		"rediss://u:secret@h?ca=/dev/null":    "no PEM",
		"redis+sentinel://u:secret@a/m/2/3/4": "database",
	} {
		_, err := ParseURL(url)
		if err == nil {
			t.Errorf("%s: no error, want one that says %q", url, say)
			continue
		}
		if !strings.Contains(err.Error(), say) {
			t.Errorf("%s: error %q does not say %q", url, err, say)
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec%") || strings.Contains(err.Error(), "ret@") {
			t.Errorf("%s: error %q shows the password", url, err)
		}
	}
}
