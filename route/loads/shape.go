package loads

import (
	"math"
	"time"

	"github.com/kvatlas/kvatlas/blockkey"
)

// maxWork bounds the units of one request, so that sums stay exact as float64.
const maxWork = 1 << 44

// Shape is how a model's prefill time grows with the prompt, alike on all pods but for their
// speed. The n tokens after c cached ones are
//
//	units(n, c) = n + Quadratic x ((c+n)^2 - c^2)
//
// and take Overhead + units / speed milliseconds. The form is that of Dynamo's mocker,
// whose polynomial gives DefaultShape.
type Shape struct {
	// Quadratic is the share of attention: units a token pair.
	Quadratic float64
	// Overhead is what a prefill takes besides, in milliseconds.
	Overhead float64
}

// DefaultShape is that of Dynamo's mocker: 4.209989e-07 ms a token pair over 1.518344e-02 ms
// a token, and 16.50142 ms besides. Its speed is 65.9 units a millisecond.
var DefaultShape = Shape{Quadratic: 4.209989e-07 / 1.518344e-02, Overhead: 16.50142}

// DefaultSpeed is the speed to reckon with where nothing is learnt, in units a millisecond. It
// is a quarter of DefaultShape's, as an engine with a 70B model has. Too high a guess only
// weighs the cache a little less; too low a one sends requests into queues.
const DefaultSpeed = 1 / 1.518344e-02 / 4

// Units returns the work of a prefill of n tokens after c cached ones.
func (s Shape) Units(n, c int) int64 {
	total, cached := float64(n)+float64(c), float64(c)
	u := float64(n) + s.Quadratic*(total*total-cached*cached)
	return int64(math.Round(min(maxWork, max(0, u))))
}

// What a speed is learnt from.
const (
	minSample  = 256  // tokens; a shorter prefill is mostly overhead
	maxStep    = 2.0  // by which one sample may differ from what is known
	minService = 0.01 // ms; below it a report says nothing
	minSpeed   = 1e-6
	maxSpeed   = 1e12
	minMark    = 4  // blocks between marks at least: fewer are nearly nothing to share
	markGrowth = 4  // their distance grows by a quarter of the blocks before them
	maxMarks   = 96 // of a prompt
)

// MinSpeedWeight is the weight of a request in the speed that is learnt, however many there were
// before it.
const MinSpeedWeight = 0.1

// ForgetSpeed is how long a speed is kept of which no request tells any more.
const ForgetSpeed = 24 * time.Hour

// learn returns the speed after a prefill of so many units that took the rank ms
// milliseconds in all.
func (l *Load) learn(units, ms, overhead float64, now int64) {
	ms -= overhead
	if ms < minService || units <= 0 {
		return
	}
	sample := units / ms
	l.Learnt = now
	if l.Samples == 0 || l.Speed <= 0 {
		l.Speed, l.Samples = min(maxSpeed, max(minSpeed, sample)), 1
		return
	}
	ratio := min(maxStep, max(1/maxStep, sample/l.Speed))
	l.Speed = min(maxSpeed, max(minSpeed, l.Speed*math.Pow(ratio, max(MinSpeedWeight, 1/float64(l.Samples+1)))))
	l.Samples++
}

// nextMark returns the block after which the next mark stands, counted from 1. Marks stand at 4, 8,
// 12, 16, 20, 25, 31, 38, ..., 32 of them in 8,192 blocks. What two prompts share is known to within
// four blocks, or to within a fifth of it. Four blocks of 64 tokens are the least that is looked for.
// Their places depend on no prompt, so a mark always stands for the blocks since the one before it.
// What is counted does not depend on which prompt came first.
func nextMark(at int) int { return at + max(minMark, at/markGrowth) }

// MarkEnds returns after how many blocks each mark stands, as many as a prompt can have.
func MarkEnds() (ends [maxMarks]int) {
	at := 0
	for i := range ends {
		at = nextMark(at)
		ends[i] = at
	}
	return ends
}

// Marks returns the block keys of the chain that running requests are counted by. It returns
// how many blocks the marks stand for: all but a tail, which is never shared.
func Marks(keys []blockkey.Key) (marks []blockkey.Key, covered int) {
	for at := nextMark(0); at <= len(keys) && len(marks) < maxMarks; at = nextMark(at) {
		marks = append(marks, keys[at-1])
		covered = at
	}
	return marks, covered
}

// minTwin is how many tokens a candidate must have to prefill for running requests to be looked
// at: with fewer there is little to spare.
const minTwin = 256

// shared returns how many tokens of the prompt there are up to the last mark that running requests have,
// without a gap. It counts those behind what the candidate holds; 0 for none.
func (c *Call) shared(d *Candidate, held map[blockkey.Key]int, marks []blockkey.Key) int {
	n, at := 0, 0
	for _, k := range marks {
		at = nextMark(at)
		if at*c.BlockSize <= c.Tokens-d.Uncached {
			continue
		}
		if held[k] <= 0 {
			break
		}
		n = at
	}
	return n * c.BlockSize
}

// beside returns the candidate as it is beside running requests that have so many tokens of the
// prompt. They prefill these, so what is left is the rest, but for one token at least. What it
// holds and has to prefill of the prompt stays as it is.
func (c *Call) beside(d Candidate, shared int) (_ Candidate, uncached int) {
	shared = min(shared, c.Tokens-1)
	if shared <= c.Tokens-d.Uncached {
		return d, d.Uncached
	}
	left := min(d.Work, Shape{Quadratic: c.Quadratic}.Units(c.Tokens-shared, shared))
	d.Base -= d.Twin * float64(d.Work-left)
	d.Work = left
	return d, c.Tokens - shared
}

// OutputBlocks returns the blocks that an output of so many tokens counts for.
func OutputBlocks(tokens, expected, blockSize int) int64 {
	blocks := float64(tokens / blockSize)
	if expected > 0 {
		blocks *= max(0, 1-float64(tokens)/float64(expected))
	}
	return int64(blocks)
}

// Pick returns the index of the candidate that is taken: the first of the cheapest or, at a
// temperature, one that is drawn. It is drawn by the softmax of -cost/temperature, as Dynamo's
// router does. Costs are normalised to [0, 1] by their range. NaN is a candidate that cannot be
// taken; with none left it returns -1.
func Pick(costs []float64, temperature, draw float64) int {
	best, low, high := -1, math.Inf(1), math.Inf(-1)
	for i, c := range costs {
		if math.IsNaN(c) {
			continue
		}
		if c < low {
			best, low = i, c
		}
		high = max(high, c)
	}
	if temperature <= 0 || best < 0 {
		return best
	}
	span := high - low
	if span == 0 {
		span = 1 // all weigh the same
	}
	weigh := func(c float64) float64 { return math.Exp(-(c - low) / span / temperature) }
	sum := 0.0
	for _, c := range costs {
		if !math.IsNaN(c) {
			sum += weigh(c)
		}
	}
	rest := draw * sum
	last := best
	for i, c := range costs {
		if math.IsNaN(c) {
			continue
		}
		last = i
		if rest -= weigh(c); rest < 0 {
			return i
		}
	}
	return last
}
