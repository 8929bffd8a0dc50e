package servercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// need is a command that a role calls. It has its name as an ACL has it, and a
// call of it. In the call the word KEY is for a key of a block and REG for one of
// the registry.
type need struct{ name, call string }

// The commands that roles call, by whatever way, a script being one. Commands that each connection
// begins with are not among them: a user that may not call those is not connected. The page
// docs/operations.md grants what stands here, and TestUsers holds both to what the index does.
var (
	readerNeeds = []need{
		{"mget", "MGET KEY"}, {"get", "GET REG"}, {"eval", "EVAL 0 1 REG"}, {"time", "TIME"},
		{"hgetall", "HGETALL REG"}, {"hmget", "HMGET REG 0"}, {"hscan", "HSCAN REG 0"}, {"zrange", "ZRANGE REG 0 0"}, {"hlen", "HLEN REG"},
	}
	writerNeeds = []need{
		{"evalsha", "EVALSHA 0 1 KEY"}, {"mset", "MSET KEY 0"}, {"unlink", "UNLINK KEY"},
		{"set", "SET REG 0"}, {"del", "DEL REG"},
		{"hget", "HGET REG 0"}, {"hvals", "HVALS REG"}, {"hset", "HSET REG 0 0"}, {"hdel", "HDEL REG 0"},
		{"hexists", "HEXISTS REG 0"}, {"hincrby", "HINCRBY REG 0 1"},
		{"rpush", "RPUSH REG 0"}, {"lrange", "LRANGE REG 0 0"}, {"ltrim", "LTRIM REG 0 -1"}, {"llen", "LLEN REG"}, {"lindex", "LINDEX REG 0"}, {"lset", "LSET REG 0 0"},
		{"zadd", "ZADD REG 0 0"}, {"zrem", "ZREM REG 0"}, {"zscore", "ZSCORE REG 0"},
		{"info", "INFO server"},
	}
	// sweeperNeeds are of a process that sweeps too, beside those of a writer.
	sweeperNeeds = []need{{"scan", "SCAN 0"}, {"dbsize", "DBSIZE"}, {"hkeys", "HKEYS REG"}, {"pttl", "PTTL KEY"}, {"pexpire", "PEXPIRE KEY 1"}}
)

// Needs returns the names of the commands that a reader calls, a writer besides, and a sweeper besides.
func Needs() (reader, writer, sweeper []string) {
	names := func(needs []need) (out []string) {
		for _, n := range needs {
			out = append(out, n.name)
		}
		return out
	}
	return names(readerNeeds), names(writerNeeds), names(sweeperNeeds)
}

// access is what the user of the check may not do, each by the name of the
// command.
type access struct {
	// unknown is true when it could not be found out.
	unknown bool
	// user is the user's name, as the URL has it.
	user                    string
	reader, writer, sweeper []string
}

// aclLua returns the calls among its arguments that the user may not make.
const aclLua = `
if not redis.acl_check_cmd then return false end
local out = {}
for i = 1, #ARGV do
  local words = {}
  for w in string.gmatch(ARGV[i], '[^ ]+') do
    if w == 'KEY' then w = KEYS[1] elseif w == 'REG' then w = KEYS[2] end
    words[#words + 1] = w
  end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if not known or not allowed then out[#out + 1] = ARGV[i] end
end
return out`

// takeAccess asks what the user may do without doing any of it. Redis 7 and Valkey
// tell a script. For Redis 6 the calls are put into a transaction, where they are
// refused at once or not, and the transaction is thrown away.
func takeAccess(ctx context.Context, node *redis.Client, x Index) (access, error) {
	// A block that any narrower pattern of names would leave out.
	keys := []string{x.Prefix + "{.}" + "AAAAAAAA", x.Meta}
	roles := [][]need{readerNeeds, writerNeeds, sweeperNeeds}
	a := access{user: node.Options().Username}
	a.user = cmp.Or(a.user, "default")
	var calls []any
	for _, needs := range roles {
		for _, d := range needs {
			calls = append(calls, d.call)
		}
	}
	// The script has no keys but as arguments, so that any node of a cluster
	// runs it.
	src := strings.NewReplacer("KEYS[1]", luaString(keys[0]), "KEYS[2]", luaString(keys[1])).Replace(aclLua)
	denied, err := node.Eval(ctx, src, nil, calls...).StringSlice()
	switch {
	case err == nil:
	case !redisx.Refused(err) && !errors.Is(err, redis.Nil):
		return a, err
	default:
		var ok bool
		if denied, ok, err = queueRefused(ctx, node, keys, calls); err != nil {
			return a, err
		}
		a.unknown = !ok
	}
	for i, to := range []*[]string{&a.reader, &a.writer, &a.sweeper} {
		for _, d := range roles[i] {
			if slices.Contains(denied, d.call) {
				*to = append(*to, d.name)
			}
		}
	}
	return a, nil
}

// luaString quotes a name of checked characters.
func luaString(s string) string { return "'" + s + "'" }

// queueRefused returns the calls that a transaction does not take. ok is false
// when there can be no transaction.
func queueRefused(ctx context.Context, node *redis.Client, keys []string, calls []any) (denied []string, ok bool, err error) {
	// The connection has no other user, whatever state it is left in.
	options := *node.Options()
	options.PoolSize, options.MinIdleConns = 1, 0
	client := redis.NewClient(&options)
	defer func() { _ = client.Close() }()
	conn := client.Conn()
	defer func() { _ = conn.Close() }()
	if err := conn.Do(ctx, "MULTI").Err(); err != nil {
		if redisx.Refused(err) {
			return nil, false, nil
		}
		return nil, false, err
	}
	names := map[string]string{"KEY": keys[0], "REG": keys[1]}
	for _, c := range calls {
		text, _ := c.(string)
		var words []any
		for w := range strings.FieldsSeq(text) {
			words = append(words, cmp.Or(names[w], w))
		}
		switch err := conn.Do(ctx, words...).Err(); {
		case err == nil:
		case strings.Contains(err.Error(), "READONLY"):
			// A replica. The client gives up the connection for that.
			return nil, false, nil
		case !redisx.Refused(err):
			return nil, false, err
		case strings.HasPrefix(err.Error(), "NOPERM"), strings.Contains(err.Error(), "unknown command"):
			denied = append(denied, text)
		}
	}
	return denied, true, conn.Do(ctx, "DISCARD").Err()
}

func (l *Look) judgeAccess() {
	f := check.Finding{What: "access"}
	a := l.access
	grant := func(missing ...string) string {
		return fmt.Sprintf("ACL SETUSER %s ~%s{* +%s; docs/operations.md has the whole lists", a.user, l.Index.Prefix, strings.Join(missing, " +"))
	}
	missing := slices.Concat(a.writer, a.sweeper)
	switch {
	case a.unknown:
		f.Level, f.Found = check.Info, "what user "+a.user+" may do cannot be seen"
		f.Means = "commands that are refused show in the log, as NOPERM"
	case len(a.reader) > 0:
		f.Level, f.Found = check.Fail, fmt.Sprintf("user %s may not call %s on the keys of the index", a.user, strings.Join(a.reader, ", "))
		f.Means, f.Do = "lookups fail: every answer is degraded", grant(a.reader...)
	case slices.Contains(a.writer, "mset"):
		f.Level, f.Found = check.Info, "user "+a.user+" may read"
		f.Means = "this process scores, and cannot write blocks or register pods"
		f.Do = "that is right for a scorer beside which others write; else " + grant(missing...)
	case len(a.writer) > 0:
		f.Level, f.Found = check.Fail, fmt.Sprintf("user %s may read and write, but not call %s on the keys of the index", a.user, strings.Join(a.writer, ", "))
		f.Means, f.Do = "writes or registrations fail", grant(missing...)
	case len(a.sweeper) > 0:
		f.Level, f.Found = check.Info, fmt.Sprintf("user %s may read and write, but not call %s", a.user, strings.Join(a.sweeper, ", "))
		f.Means, f.Do = "this process cannot sweep: the memory of blocks whose holders are gone is freed only if another does", grant(missing...)
	default:
		f.Found = "user " + a.user + " may read, write and sweep"
	}
	l.add(f)
}
