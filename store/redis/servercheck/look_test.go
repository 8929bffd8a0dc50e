package servercheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// healthy is what a server without any fault tells.
func healthy() *Look {
	return &Look{
		Addr:     "a:6379",
		Question: Question{Target: &redisx.Target{Addrs: []string{"a:6379"}}, Index: Index{Prefix: "kva"}, Budget: 50 * time.Millisecond},
		info: map[string]string{
			"redis_version": "7.2.4", "maxmemory": "1000000000", "used_memory": "100000000", "total_system_memory": "4000000000",
			"maxmemory_policy": "noeviction", "aof_enabled": "1", "aof_last_write_status": "ok", "rdb_last_bgsave_status": "ok",
			"role": "master", "connected_slaves": "1", "slave0": "ip=b,port=6379,state=online,offset=1,lag=0", "min_slaves_good_slaves": "1",
			"connected_clients": "10", "maxclients": "10000", "hz": "10", "cluster_enabled": "0",
		},
		config: map[string]string{
			"appendfsync": "everysec", "save": "3600 1", "min-replicas-to-write": "1", "timeout": "0", "activerehashing": "yes",
			"client-output-buffer-limit": "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
		},
		trips:  []time.Duration{time.Millisecond},
		sample: sample{blocks: 10, measured: 10, bytes: 560},
	}
}

// TestJudgements changes one thing about a healthy server at a time.
func TestJudgements(t *testing.T) {
	l := healthy()
	l.judge()
	for _, f := range l.Findings {
		if f.Level != check.OK {
			t.Errorf("a healthy server: %+v", f)
		}
	}
	info := func(pairs ...string) func(*Look) {
		return func(l *Look) {
			for i := 0; i < len(pairs); i += 2 {
				l.info[pairs[i]] = pairs[i+1]
			}
		}
	}
	config := func(pairs ...string) func(*Look) {
		return func(l *Look) {
			for i := 0; i < len(pairs); i += 2 {
				l.config[pairs[i]] = pairs[i+1]
			}
		}
	}
	both := func(fs ...func(*Look)) func(*Look) {
		return func(l *Look) {
			for _, f := range fs {
				f(l)
			}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Look)
		what   string
		level  check.Level
		say    string
	}{
		{"old", info("redis_version", "4.0.14"), "version", check.Fail, "Redis 4.0.14"},
		{"not so old", info("redis_version", "6.0.16"), "version", check.Warn, "6.2"},
		{"old enough", info("redis_version", "6.2.5"), "version", check.OK, "Redis 6.2.5"},
		{"two digits", info("redis_version", "10.0.1"), "version", check.OK, "Redis 10.0.1"},
		{"valkey", info("valkey_version", "8.0.1", "server_name", "valkey"), "version", check.OK, "Valkey 8.0.1"},
		{"dragonfly", info("dragonfly_version", "df-v1.2"), "version", check.Warn, "Dragonfly"},
		{"no limit", info("maxmemory", "0"), "memory limit", check.Warn, "on a machine of 3.7 GiB"},
		{"nearly full", info("used_memory", "950000000"), "memory limit", check.Warn, "nearly full"},
		{"full", info("used_memory", "1000000001"), "memory limit", check.Fail, "refused now"},
		{"full and evicting", info("used_memory", "1000000001", "maxmemory_policy", "allkeys-lru"), "memory limit", check.Warn, "nearly full"},
		{"limit above the machine", info("total_system_memory", "1000000000"), "memory limit", check.Warn, "before the limit"},
		{"lru", info("maxmemory_policy", "allkeys-lru", "evicted_keys", "7"), "eviction policy", check.Fail, "7 keys evicted"},
		{"lru's share", info("maxmemory_policy", "allkeys-lru"), "eviction policy", check.Fail, "26 %"},
		{"lfu", info("maxmemory_policy", "allkeys-lfu"), "eviction policy", check.Fail, "96 %"},
		{"random", info("maxmemory_policy", "allkeys-random"), "eviction policy", check.Fail, "96 %"},
		{"lru without a limit", info("maxmemory_policy", "allkeys-lru", "maxmemory", "0"), "eviction policy", check.Warn, "while there is no memory limit"},
		{"volatile", info("maxmemory_policy", "volatile-ttl"), "eviction policy", check.Warn, "no block does"},
		{"new policy", info("maxmemory_policy", "allkeys-magic"), "eviction policy", check.Info, "does not know"},
		{"lru's memory", info("maxmemory_policy", "volatile-lru"), "memory of a block", check.Info, "72 bytes instead of 56"},
		{"long prefix", func(l *Look) { l.Index.Prefix = "prod" }, "memory of a block", check.Info, "a prefix of 4 bytes"},
		{"measured", func(*Look) {}, "memory of a block", check.OK, "56 bytes on average of 10"},
		{"aof broken", info("aof_last_write_status", "err"), "persistence", check.Fail, "append-only"},
		{"save broken", info("rdb_last_bgsave_status", "err"), "persistence", check.Fail, "MISCONF"},
		{"save broken, not minded", both(info("rdb_last_bgsave_status", "err"), config("stop-writes-on-bgsave-error", "no")), "persistence", check.OK, "everysec"},
		{"fsync no", config("appendfsync", "no"), "persistence", check.Warn, "half a minute"},
		{"fsync always", config("appendfsync", "always"), "persistence", check.Info, "waits for the disk"},
		{"snapshots", info("aof_enabled", "0"), "persistence", check.Warn, "save 3600 1"},
		{"nothing", both(info("aof_enabled", "0", "connected_slaves", "0"), config("save", "")), "persistence", check.Info, "empties the index"},
		{"nothing, with replicas", both(info("aof_enabled", "0"), config("save", "")), "persistence", check.Warn, "empties its replicas"},
		{"perhaps snapshots", both(info("aof_enabled", "0"), func(l *Look) { l.config = nil }), "persistence", check.Info, "cannot be seen"},
		{"replica", info("role", "slave", "master_host", "m", "master_port", "1"), "replication", check.Fail, "a replica of m:1"},
		{"alone", both(info("connected_slaves", "0"), config("min-replicas-to-write", "0")), "replication", check.Info, "no replica"},
		{"alone with sentinels", both(info("connected_slaves", "0"), config("min-replicas-to-write", "0"), func(l *Look) { l.Target.Topology = redisx.Sentinel }), "replication", check.Warn, "fail over"},
		{"alone and unhappy", info("connected_slaves", "0"), "replication", check.Fail, "NOREPLICAS"},
		{"lagging", info("min_slaves_good_slaves", "0"), "replication", check.Fail, "NOREPLICAS"},
		{"cut off", config("min-replicas-to-write", "0"), "replication", check.Info, "min-replicas-max-lag"},
		{"not in step", info("slave0", "ip=b,port=6379,state=wait_bgsave"), "replication", check.Warn, "not in step"},
		{"crowded", info("connected_clients", "9000"), "clients", check.Warn, "maxclients"},
		{"limit of 6.2", both(info("connected_clients", "9000", "maxclients", ""), config("maxclients", "9500")), "clients", check.Warn, "9500 allowed"},
		{"impatient", config("timeout", "5"), "clients", check.Info, "5 s"},
		{"no rehashing", config("activerehashing", "no"), "background work", check.Warn, "activerehashing yes"},
		{"nervous", info("hz", "500"), "background work", check.Info, "hz 10"},
		{"fragmented", info("mem_fragmentation_ratio", "2.5", "used_memory", "600000000", "used_memory_rss", "1500000000"), "background work", check.Info, "1.4 GiB"},
		{"flush", config("lazyfree-lazy-user-flush", "no"), "background work", check.OK, "FLUSHALL ASYNC"},
		{"node of a cluster", info("cluster_enabled", "1"), "cluster", check.Fail, "redis+cluster://"},
		{"far away", func(l *Look) { l.trips = []time.Duration{20 * time.Millisecond} }, "round trip", check.Warn, "cut short"},
		{"too far away", func(l *Look) { l.trips = []time.Duration{time.Millisecond, 60 * time.Millisecond, time.Second} }, "round trip", check.Fail, "every answer is degraded"},
		{"ahead", func(l *Look) { l.skew = 90 * time.Second }, "clock", check.Info, "1m30s ahead"},
		{"behind", func(l *Look) { l.skew = -2 * time.Second }, "clock", check.Info, "2s behind"},
		{"small buffers", config("client-output-buffer-limit", "normal 1048576 0 0 slave 0 0 0 pubsub 0 0 0"), "output buffers", check.Warn, "1.0 MiB"},
		{"large buffers", config("client-output-buffer-limit", "normal 1073741824 0 0 slave 0 0 0"), "output buffers", check.OK, "1.0 GiB"},
		{"foreign", func(l *Look) { l.sample.strangers, l.sample.foreign = 1, []string{`"x" is no string`} }, "keys", check.Warn, "1 key of 10 blocks"},
		{"no scan", func(l *Look) { l.sample = sample{refused: true} }, "keys", check.Info, "SCAN"},
		{"no info", func(l *Look) { l.info = nil }, "information", check.Info, "INFO"},
		{"no config", func(l *Look) { l.config = nil }, "information", check.Info, "CONFIG GET"},
		{"reader lacks", func(l *Look) {
			l.access = access{user: "u", reader: []string{"mget", "eval"}, writer: []string{"mset"}}
		}, "access", check.Fail, "+mget +eval"},
		{"reads", func(l *Look) {
			l.access = access{user: "u", writer: []string{"mset", "set"}, sweeper: []string{"scan"}}
		}, "access", check.Info, "may read"},
		{"writer lacks", func(l *Look) { l.access = access{user: "u", writer: []string{"info"}} }, "access", check.Fail, "ACL SETUSER u ~kva{* +info"},
		{"cannot sweep", func(l *Look) { l.access = access{user: "u", sweeper: []string{"scan"}} }, "access", check.Info, "cannot sweep"},
		{"who knows", func(l *Look) { l.access = access{unknown: true} }, "access", check.Info, "cannot be seen"},
	} {
		l := healthy()
		c.change(l)
		l.judge()
		i := slices.IndexFunc(l.Findings, func(f check.Finding) bool { return f.What == c.what })
		if i < 0 {
			t.Errorf("%s: nothing is said about %s", c.name, c.what)
			continue
		}
		f := l.Findings[i]
		if f.Level != c.level || !strings.Contains(fmt.Sprint(f), c.say) {
			t.Errorf("%s: got %+v, want %v and %q", c.name, f, c.level, c.say)
		}
		if f.Level >= check.Warn && (f.Means == "" || f.Do == "") {
			t.Errorf("%s: neither cause nor remedy is left out: %+v", c.name, f)
		}
		for _, f := range l.Findings {
			if !slices.Contains(Names, f.What) {
				t.Errorf("%s: %q is no name of a finding", c.name, f.What)
			}
		}
	}
	// A server that tells nothing is no reason to panic, or to fail.
	l = &Look{Question: Question{Target: &redisx.Target{}, Budget: time.Second}, info: map[string]string{}, config: map[string]string{}}
	l.judge()
}

func TestMerge(t *testing.T) {
	a, b := healthy(), healthy()
	b.Addr = "b:6379"
	b.info["maxmemory_policy"] = "volatile-lru"
	a.judge()
	b.judge()
	got := Merge([]*Look{a, b})
	where := map[string][]string{}
	for _, f := range got {
		where[f.What] = append(where[f.What], f.Where)
	}
	if w := where["eviction policy"]; !slices.Equal(w, []string{"a:6379", "b:6379"}) {
		t.Errorf("what differs is said of %q", w)
	}
	if w := where["version"]; !slices.Equal(w, []string{""}) {
		t.Errorf("what is the same is said of %q", w)
	}
}
