package external

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/store/redis/keyspace"
)

// Write is a change of an entry of another program's form: of a string, or of a
// field of a hash.
type Write struct {
	Name string
	// Field is of a hash; "" makes Name a string.
	Field string
	// Value is what it is to be; of a deleted string what it must be to be deleted.
	Value  string
	Delete bool
}

// The scripts are short and sent as they are: a cluster's nodes each would have to load
// them. A field's value may end with a time, in seconds behind the last @. If that is
// ARGV[4] behind the time that is written, its worker has died, and the field goes.
const (
	deleteScript = `if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0`
	fieldScript  = `redis.call('HSET',KEYS[1],ARGV[1],ARGV[2])
redis.call('PEXPIRE',KEYS[1],ARGV[3])
local now=tonumber(string.match(ARGV[2],'@([%d.]+)$'))
if now and redis.call('HLEN',KEYS[1])<=64 then
local all=redis.call('HGETALL',KEYS[1])
for i=1,#all,2 do
local at=tonumber(string.match(all[i+1],'@([%d.]+)$'))
if at and now-at>tonumber(ARGV[4]) then redis.call('HDEL',KEYS[1],all[i]) end
end
end
return 1`
)

// Write makes the changes, each for itself and in no order. It returns how many the
// server has refused, as it does for keys of another type. What is written lives for ttl
// unless it is written again. A deleted string is deleted only as long as it has the
// value.
func (s *Source) Write(ctx context.Context, ttl time.Duration, writes []Write) (refusals int, err error) {
	if err := s.space.Check(ctx, "write entries"); err != nil {
		return 0, err
	}
	ms := strconv.FormatInt(max(ttl.Milliseconds(), 1), 10)
	old := strconv.FormatFloat(3*ttl.Seconds(), 'f', 3, 64)
	for len(writes) > 0 {
		n := min(len(writes), pipelineKeys)
		pipe := s.space.Client.Pipeline()
		for i := range writes[:n] {
			switch w := &writes[i]; {
			case w.Field != "" && w.Delete:
				pipe.HDel(ctx, w.Name, w.Field)
			case w.Field != "":
				pipe.Eval(ctx, fieldScript, []string{w.Name}, w.Field, w.Value, ms, old)
			case w.Delete:
				pipe.Eval(ctx, deleteScript, []string{w.Name}, w.Value)
			default:
				pipe.Set(ctx, w.Name, w.Value, ttl)
			}
		}
		s.space.Trips.Add(1)
		replies, err := pipe.Exec(ctx)
		if err = ignoreReplies(nil, err); err != nil {
			return refusals, keyspace.Failed(ctx, "write entries", err)
		}
		for _, r := range replies {
			switch err := r.Err(); {
			case err == nil:
			case redis.HasErrorPrefix(err, "WRONGTYPE"), redis.HasErrorPrefix(err, "ERR"):
				refusals++ // Redis 6 puts its own words before those of a command in a script
			default:
				return refusals, keyspace.Failed(ctx, "write entries", err)
			}
		}
		writes = writes[n:]
	}
	return refusals, nil
}
