package servercheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kvatlas/kvatlas/check"
	"github.com/kvatlas/kvatlas/internal/redisx"
)

// checkTrips is how many round trips are timed.
const checkTrips = 20

// Question is what all looks at the servers of an index have in common.
type Question struct {
	Target *redisx.Target
	Index  Index
	// Budget is the time that a lookup may take, against which round trips are held.
	Budget time.Duration
}

// Index is what a look has to know of the index and its keys.
type Index struct {
	Prefix string
	// Epoch and Meta are keys of the registry, a string and a hash.
	Epoch, Meta string
	// IsBlock reports whether a key has the name of a block.
	IsBlock func(key string) bool
	// IsHeld and IsText report whether a block's value is a list of holders, or names
	// pods by text.
	IsHeld, IsText func(value []byte) bool
}

// Look is what one server has told, and what is found in it.
type Look struct {
	Question
	// Addr is where the server is; empty behind sentinels.
	Addr string
	// Findings are what has been found, in no order.
	Findings []check.Finding

	// What follows is what Take has been told; judge and all that it calls are functions of it.
	// When the user is not allowed to look, info and config are nil.
	info, config map[string]string
	// trips are the times of some round trips, ascending.
	trips []time.Duration
	// skew is by how much the server's clock is ahead of this machine's.
	skew   time.Duration
	access access
	sample sample
}

// Take looks at a server and judges what it finds. Its error is of the connection; refusals are findings.
func (q Question) Take(ctx context.Context, node *redis.Client) (*Look, error) {
	l := &Look{Question: q, Addr: node.Options().Addr}
	if q.Target.Topology == redisx.Sentinel {
		l.Addr = "" // a placeholder of the client; there is but one
	}
	if err := l.take(ctx, node); err != nil {
		return nil, err
	}
	l.judge()
	return l, nil
}

func (l *Look) add(f check.Finding) { l.Findings = append(l.Findings, f) }

// take asks the server.
func (l *Look) take(ctx context.Context, node *redis.Client) error {
	text, err := node.Info(ctx).Result()
	if err == nil {
		l.info = parseInfo(text)
	} else if !redisx.Refused(err) {
		return err
	}
	if l.config, err = node.ConfigGet(ctx, "*").Result(); err != nil {
		l.config = nil
		if !redisx.Refused(err) {
			return err
		}
	}
	for range checkTrips {
		begin := time.Now()
		// On a cluster most servers answer that the key is elsewhere.
		if err := node.Get(ctx, l.Index.Epoch).Err(); err != nil && !redisx.Refused(err) && !errors.Is(err, redis.Nil) {
			return err
		}
		l.trips = append(l.trips, time.Since(begin))
	}
	slices.Sort(l.trips)
	begin := time.Now()
	if now, err := node.Time(ctx).Result(); err == nil {
		l.skew = now.Sub(begin.Add(time.Since(begin) / 2))
	} else if !redisx.Refused(err) {
		return err
	}
	if l.access, err = takeAccess(ctx, node, l.Index); err != nil {
		return err
	}
	l.sample, err = takeSample(ctx, node, l.Index)
	return err
}

// parseInfo reads the reply of INFO.
func parseInfo(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok && name[0] != '#' {
			m[name] = value
		}
	}
	return m
}

// number reads a number of INFO; what is not there is 0.
func (l *Look) number(name string) int64 {
	n, _ := strconv.ParseInt(l.info[name], 10, 64)
	return n
}

// judge finds what there is to find.
func (l *Look) judge() {
	l.judgeAccess()
	if l.info != nil {
		l.judgeVersion()
		l.judgeMemory()
		l.judgePersistence()
		l.judgeReplication()
		l.judgeClients()
		l.judgeWork()
		l.judgeMode()
	}
	l.judgeTrips()
	l.judgeClock()
	l.judgeBuffers()
	l.judgeSample()
	l.judgeSight()
}

// judgeVersion knows Redis from its likes.
func (l *Look) judgeVersion() {
	f := check.Finding{What: "version"}
	kind, version := "Redis", l.info["redis_version"]
	switch {
	case l.info["valkey_version"] != "":
		kind, version = "Valkey", l.info["valkey_version"]
	case l.info["dragonfly_version"] != "":
		kind, version = "Dragonfly", l.info["dragonfly_version"]
	}
	f.Found = kind + " " + version
	major, minor := majorMinor(version)
	switch {
	case kind == "Dragonfly":
		f.Level = check.Warn
		f.Means = "kvatlas is not tested with it: it is written for the way in which Redis and Valkey run scripts and store small values"
		f.Do = "use Redis or Valkey, or run the tests of store/redis against it"
	case kind == "Redis" && major < 5:
		f.Level = check.Fail
		f.Means = "it refuses scripts that ask for the time and then write, which all of the registry do"
		f.Do = "use Redis 6.2 or later, or Valkey"
	case kind == "Redis" && (major < 6 || major == 6 && minor < 2):
		f.Level = check.Warn
		f.Means = "kvatlas is tested with Redis 6.2 and later; before 6.0 there are no users and no RESP3"
		f.Do = "use Redis 6.2 or later, or Valkey"
	}
	l.add(f)
}

func majorMinor(version string) (major, minor int) {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, _ = strconv.Atoi(a)
	minor, _ = strconv.Atoi(b)
	return major, minor
}

// judgePersistence says what a restart costs.
func (l *Look) judgePersistence() {
	aof := l.info["aof_enabled"] == "1"
	save, saveKnown := l.config["save"]
	sync := l.config["appendfsync"]
	f := check.Finding{What: "persistence"}
	const comesBack = "blocks that were removed in that time are credited again, until their pods clear, restart or are retired; ids are not given twice"
	switch {
	case l.info["aof_last_write_status"] == "err":
		f.Level, f.Found = check.Fail, "the last write to the append-only file has failed"
		f.Means, f.Do = "the server refuses writes until it succeeds", "see the server's log: the disk is full or broken"
	case l.info["rdb_last_bgsave_status"] == "err" && save != "" && l.config["stop-writes-on-bgsave-error"] != "no":
		f.Level, f.Found = check.Fail, "the last save has failed"
		f.Means, f.Do = "the server refuses writes until one succeeds (MISCONF)", "see the server's log: the disk is full, or there is no memory for the copy that a save makes (vm.overcommit_memory)"
	case aof && sync == "no":
		f.Level, f.Found = check.Warn, "append-only file, written out when the system likes"
		f.Means, f.Do = "a crash of the machine loses half a minute and more: "+comesBack, "CONFIG SET appendfsync everysec"
	case aof && sync == "always":
		f.Level, f.Found = check.Info, "append-only file, written out with each command"
		f.Means, f.Do = "nothing is lost, and every write waits for the disk", "everysec is enough for an index of what is in caches: CONFIG SET appendfsync everysec"
	case aof:
		f.Found = "append-only file"
		if sync != "" {
			f.Found += ", written out " + sync
		}
		f.Means = "a restart reads the index again; a crash loses the last second or two: " + comesBack
	case saveKnown && save != "":
		f.Level, f.Found = check.Warn, "snapshots only (save "+save+")"
		f.Means = "after a crash the index is as old as the last snapshot: newer blocks are missing, and " + comesBack
		f.Do = "appendonly yes loses a second instead of minutes; or no persistence at all (save \"\"): then a crash empties the index, which is never wrong"
	case !saveKnown:
		f.Level, f.Found = check.Info, "no append-only file; whether there are snapshots cannot be seen"
		f.Means = "with snapshots, a crash brings back an index as old as the last one; without, it empties the index"
	default:
		f.Level, f.Found = check.Info, "none"
		f.Means = "a restart empties the index: scores are 0, and none is wrong, until pods register and write again"
		f.Do = "appendonly yes keeps it, at the price of a disk"
		if l.number("connected_slaves") > 0 {
			f.Level = check.Warn
			f.Means += ". A master that is restarted before it is failed over empties its replicas too"
			f.Do = "appendonly yes, or no automatic restart of masters"
		}
	}
	l.add(f)
}

// judgeReplication says what a failover costs.
func (l *Look) judgeReplication() {
	f := check.Finding{What: "replication"}
	replicas := l.number("connected_slaves")
	least, _ := strconv.ParseInt(l.config["min-replicas-to-write"], 10, 64)
	switch {
	case l.info["role"] == "slave":
		f.Level, f.Found = check.Fail, "the server is a replica"
		f.Means = "it refuses writes, and what is read from it is behind its master"
		f.Do = "put the master's address into the URL, or those of the sentinels (redis+sentinel://)"
		if l.info["master_host"] != "" {
			f.Found += " of " + l.info["master_host"] + ":" + l.info["master_port"]
		}
	case replicas == 0 && least > 0:
		f.Level, f.Found = check.Fail, fmt.Sprintf("no replica, and min-replicas-to-write %d", least)
		f.Means, f.Do = "the server refuses writes (NOREPLICAS)", "start the replicas, or CONFIG SET min-replicas-to-write 0"
	case replicas == 0 && l.Target.Topology == redisx.Sentinel:
		f.Level, f.Found = check.Warn, "no replica"
		f.Means, f.Do = "the sentinels have nothing to fail over to", "start a replica: replicaof HOST PORT"
	case replicas == 0:
		f.Level, f.Found = check.Info, "no replica"
		f.Means = "while the server is down, scores are 0 and marked as degraded"
		f.Do = "replicas with sentinels or a cluster shorten that to seconds"
	case least > 0 && l.number("min_slaves_good_slaves") < least:
		f.Level, f.Found = check.Fail, fmt.Sprintf("%d of the %d replicas that writes need (min-replicas-to-write) are in step", l.number("min_slaves_good_slaves"), least)
		f.Means, f.Do = "the server refuses writes (NOREPLICAS)", "see what holds the replicas up, or CONFIG SET min-replicas-to-write lower"
	default:
		f.Found = Count(int(replicas), "replica")
		f.Means = "replication is asynchronous: a failover loses the last writes, usually milliseconds of them; blocks removed in that time are credited again until their pods clear, restart or are retired. Ids are not given twice"
		if least == 0 && l.config != nil {
			f.Level = check.Info
			f.Means += ". A master that is cut off from its replicas goes on taking writes, which are lost"
			f.Do = "min-replicas-to-write 1 with min-replicas-max-lag 10 ends that after 10 s"
		}
		for i := range replicas {
			r := l.info[fmt.Sprintf("slave%d", i)]
			if r != "" && !strings.Contains(r, "state=online") {
				f.Level, f.Means = check.Warn, "a replica is not in step: a failover to it loses what it has not got. "+f.Means
				f.Found += ", one of them not in step"
				f.Do = "see what holds it up: INFO replication on both, and the replica's log"
				break
			}
		}
	}
	l.add(f)
}

// judgeClients looks at connections.
func (l *Look) judgeClients() {
	f := check.Finding{What: "clients"}
	now, limit := l.number("connected_clients"), l.number("maxclients")
	if limit == 0 {
		limit, _ = strconv.ParseInt(l.config["maxclients"], 10, 64)
	}
	f.Found = fmt.Sprintf("%d connected", now)
	if limit > 0 {
		f.Found += fmt.Sprintf(", %d allowed", limit)
	}
	idle, _ := strconv.Atoi(l.config["timeout"])
	switch {
	case limit > 0 && now > limit-limit/5:
		f.Level = check.Warn
		f.Means = "soon further connections are refused: a process that starts then is degraded"
		f.Do = "raise maxclients, or lower redis-pool, of which each process may use so many"
	case idle > 0 && idle < 60:
		f.Level = check.Info
		f.Means = fmt.Sprintf("the server closes connections that are idle for %d s: requests after a pause wait for a new one", idle)
		f.Do = "CONFIG SET timeout 0"
	}
	l.add(f)
}

// judgeWork looks at what the server does beside its clients' commands.
func (l *Look) judgeWork() {
	f := check.Finding{What: "background work"}
	hz := l.number("hz")
	f.Found = fmt.Sprintf("hz %d", hz)
	ratio, _ := strconv.ParseFloat(l.info["mem_fragmentation_ratio"], 64)
	switch {
	case l.config["activerehashing"] == "no":
		f.Level = check.Warn
		f.Found += ", activerehashing no"
		f.Means = "after it has grown, the table of keys is there twice for as long as its keys are not touched: each lookup looks into both"
		f.Do = "CONFIG SET activerehashing yes"
	case hz > 100:
		f.Level = check.Info
		f.Means = "the server interrupts itself often; the index gains nothing by more than 10"
		f.Do = "CONFIG SET hz 10"
	case ratio > 1.5 && l.number("used_memory") > 256<<20:
		f.Level = check.Info
		f.Found += fmt.Sprintf(", memory fragmented by %.1f", ratio)
		f.Means = fmt.Sprintf("the server takes %s from the machine for %s of data", size(l.number("used_memory_rss")), size(l.number("used_memory")))
		f.Do = "CONFIG SET activedefrag yes, where the server is built with it"
	case l.config["lazyfree-lazy-user-flush"] == "no":
		// Nothing else of lazyfree matters: values are small, and what kvatlas
		// deletes it unlinks.
		f.Found += ", FLUSHALL frees at once"
		f.Means = "FLUSHALL and FLUSHDB of a large index block the server for seconds; say FLUSHALL ASYNC"
	}
	l.add(f)
}

// judgeMode compares what the URL says with what the server is.
func (l *Look) judgeMode() {
	if l.info["cluster_enabled"] == "1" && l.Target.Topology != redisx.Cluster {
		l.add(check.Finding{
			Level: check.Fail, What: "cluster", Found: "the server is a node of a cluster, and the URL is that of a single server",
			Means: "most keys are on other nodes, which are never asked (MOVED, CROSSSLOT)", Do: "begin the URL with redis+cluster://",
		})
	}
}

// tripsOfLookup is how many round trips a lookup of a long prefix takes, with
// windows of 64, 256 and 1,024 blocks.
const tripsOfLookup = 3

func (l *Look) judgeTrips() {
	if len(l.trips) == 0 {
		return
	}
	median, longest := l.trips[len(l.trips)/2], l.trips[len(l.trips)-1]
	f := check.Finding{What: "round trip", Found: fmt.Sprintf("%s in the median of %d, %s at most; a lookup may take %v", short(median), len(l.trips), short(longest), l.Budget)}
	switch {
	case median > l.Budget:
		f.Level = check.Fail
		f.Means = "no lookup can end within its budget: every answer is degraded"
		f.Do = "move Redis nearer to the scorers, or raise score-budget"
	case tripsOfLookup*median > l.Budget/2:
		f.Level = check.Warn
		f.Means = fmt.Sprintf("a lookup takes 1 to %d round trips: those of long prefixes will often be cut short", tripsOfLookup)
		f.Do = "move Redis nearer to the scorers (one zone, a unix socket), or raise score-budget"
	}
	l.add(f)
}

func (l *Look) judgeClock() {
	f := check.Finding{What: "clock", Found: "as here"}
	if l.skew.Abs() > time.Second {
		f.Level = check.Info
		f.Found = fmt.Sprintf("%v ahead of this machine", l.skew.Round(100*time.Millisecond))
		if l.skew < 0 {
			f.Found = fmt.Sprintf("%v behind this machine", -l.skew.Round(100*time.Millisecond))
		}
		f.Means = "leases and ids do not mind: only the server's clock counts. Times in logs do not match"
		f.Do = "see to NTP on both"
	}
	l.add(f)
}

// largestReply is what the largest replies take: 16,384 blocks of a lookup with
// a hundred holders each, or a page of the registry.
const largestReply = 16 << 20

func (l *Look) judgeBuffers() {
	text, ok := l.config["client-output-buffer-limit"]
	if !ok {
		return
	}
	f := check.Finding{What: "output buffers", Found: "normal clients have no limit"}
	words := strings.Fields(text)
	for i := 0; i+3 < len(words); i += 4 {
		if words[i] != "normal" {
			continue
		}
		hard, _ := strconv.ParseInt(words[i+1], 10, 64)
		if hard == 0 {
			break
		}
		f.Found = "normal clients get " + size(hard) + " at most"
		if hard < largestReply {
			f.Level = check.Warn
			f.Means = "the server hangs up in the middle of large replies: long lookups over many pods fail"
			f.Do = "CONFIG SET client-output-buffer-limit 'normal 0 0 0'"
		}
	}
	l.add(f)
}

// judgeSight says what could not be looked at.
func (l *Look) judgeSight() {
	f := check.Finding{Level: check.Info, What: "information"}
	switch {
	case l.info == nil:
		f.Found = "the user may not call INFO"
		f.Means = "version, memory, persistence and replication have not been looked at"
		f.Do = "let kvatlas doctor run as a user with +info and +config|get"
	case l.config == nil:
		f.Found = "the user may not call CONFIG GET, or the server has no such command"
		f.Means = "snapshots, fsync, min-replicas-to-write and buffer limits have not been looked at"
		f.Do = "let kvatlas doctor run as a user with +config|get; where Redis is a service, see its parameter group"
	default:
		return
	}
	l.add(f)
}

// size is a number of bytes, in words.
func size(n int64) string {
	const units = "KMGT"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, u := float64(n)/1024, 0
	for f >= 1024 && u < len(units)-1 {
		f, u = f/1024, u+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[u])
}

// short is a duration with two or three digits that matter.
func short(d time.Duration) time.Duration {
	for unit := time.Second; unit >= time.Microsecond; unit /= 10 {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}
