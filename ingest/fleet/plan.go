package fleet

import (
	"math"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/store"
)

// view is what a replica sees.
type view struct {
	// self is its own name.
	self string
	// readers are the replicas that live.
	readers []store.Reader
	// ranks are all that are to be read, ascending.
	ranks []store.RankRef
	// leases say which reader has which rank, dead readers' among them.
	leases map[store.RankRef]store.Lease
	// patient leaves alone what dead readers have.
	patient bool
	// moves bounds how many ranks change hands at a time for the sake of the spread.
	moves int
}

// plan is what a replica does about it.
type plan struct {
	// acquire and release are the ranks to take and to give up.
	acquire, release []store.RankRef
	// unread is how many ranks no replica takes: the replicas are full, or we are patient.
	unread int
}

// seat is a replica and what it reads.
type seat struct {
	name  string
	limit int // what it takes at most
	load  int // what it has, and will have
	has   []store.RankRef
}

// makePlan says what the replica does. It is a function of the view alone, so
// replicas with the same view agree.
func makePlan(v *view) plan {
	var p plan
	seats, at := seatsOf(v)
	var free []store.RankRef
	there := 0
	for _, r := range v.ranks {
		lease, leased := v.leases[r]
		i, living := at[lease.Reader]
		if leased {
			there++
		}
		switch {
		case leased && living:
			seats[i].has = append(seats[i].has, r)
			seats[i].load++
		case leased && v.patient:
			p.unread++
		default:
			free = append(free, r)
		}
	}
	// Leases of ranks that are not there any more.
	if there < len(v.leases) {
		for r, lease := range v.leases {
			if _, living := at[lease.Reader]; living && lease.Reader != v.self {
				continue
			}
			if _, known := slices.BinarySearchFunc(v.ranks, r, compareRanks); !known {
				p.release = append(p.release, r)
			}
		}
	}

	level, gap := levelOf(seats, len(v.ranks)-p.unread), slack(len(v.ranks), len(seats))
	for _, r := range free {
		// No replica takes what would have to be moved on.
		least := leastOf(seats)
		best := pick(seats, r, func(s *seat) bool { return s.load < min(s.limit, level) && s.load <= least+gap-2 })
		if best == nil {
			p.unread++
			continue
		}
		best.load++
		if best.name == v.self {
			p.acquire = append(p.acquire, r)
		}
	}
	for _, r := range movesOf(seats, v.moves, gap) {
		if r.from == v.self {
			p.release = append(p.release, r.rank)
		}
	}
	slices.SortFunc(p.release, compareRanks)
	return p
}

// seatsOf gives each living replica its seat, and finds it by name.
func seatsOf(v *view) ([]seat, map[string]int) {
	seats := make([]seat, len(v.readers))
	at := make(map[string]int, len(v.readers))
	for i, r := range v.readers {
		seats[i] = seat{name: r.Name, limit: r.Ranks}
		at[r.Name] = i
	}
	return seats, at
}

// levelOf is the least number of ranks a seat that is enough for n of them, limits
// observed.
func levelOf(seats []seat, n int) int {
	limits := make([]int, len(seats))
	for i := range seats {
		limits[i] = seats[i].limit
	}
	slices.Sort(limits)
	for i, limit := range limits {
		if rest := len(limits) - i; n <= limit*rest {
			return (n + rest - 1) / rest
		}
		n -= limit
	}
	if len(limits) == 0 {
		return 0
	}
	return limits[len(limits)-1]
}

// leastOf is the least load of the seats that are not full.
func leastOf(seats []seat) int {
	least := math.MaxInt32
	for i := range seats {
		if s := &seats[i]; s.load < s.limit {
			least = min(least, s.load)
		}
	}
	return least
}

// pick returns the seat that likes the rank best (rendezvous hashing), of those that
// may have it.
func pick(seats []seat, r store.RankRef, may func(*seat) bool) *seat {
	var best *seat
	var most uint64
	for i := range seats {
		if s := &seats[i]; may(s) {
			if l := liking(s.name, r); best == nil || l > most {
				best, most = s, l
			}
		}
	}
	return best
}

// liking is how much a replica likes a rank: a number that all replicas compute
// alike.
func liking(name string, r store.RankRef) uint64 {
	var buf [512]byte
	b := append(append(append(buf[:0], name...), 0), r.Pod...)
	return xxh3.Hash(append(b, 0, byte(r.Rank), byte(r.Rank>>8)))
}

// slack is by how much the loads of two replicas may differ before ranks move.
func slack(ranks, seats int) int {
	if seats == 0 {
		return 2
	}
	return 2 + ranks/seats/16
}

// move is a rank that its reader gives up.
type move struct {
	rank store.RankRef
	from string
}

// movesOf takes ranks from the fullest seat while another has so much fewer that it
// differs by slack.
func movesOf(seats []seat, limit, slack int) (out []move) {
	for len(out) < limit && len(seats) > 1 {
		var from, to *seat
		for i := range seats {
			s := &seats[i]
			if len(s.has) > 0 && (from == nil || s.load > from.load) {
				from = s
			}
			if s.load < s.limit && (to == nil || s.load < to.load) {
				to = s
			}
		}
		if from == nil || to == nil || from.load-to.load < slack {
			return out
		}
		best, most := 0, uint64(0)
		for i, r := range from.has {
			if l := liking(to.name, r); i == 0 || l > most {
				best, most = i, l
			}
		}
		out = append(out, move{from.has[best], from.name})
		from.has = slices.Delete(from.has, best, best+1)
		from.load--
		to.load++
	}
	return out
}

func compareRanks(a, b store.RankRef) int {
	if c := strings.Compare(a.Pod, b.Pod); c != 0 {
		return c
	}
	return a.Rank - b.Rank
}
