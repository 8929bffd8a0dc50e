package route

import (
	"math"

	"github.com/kvatlas/kvatlas/route/loads"
)

// What eta's terms are bounded by.
const (
	// maxFill is how many times the mean of all a cache counts as filled at the most.
	maxFill = 2
	// assumedCache is how many tokens a cache of unknown size is taken to have room for.
	assumedCache = 1 << 17
	// maxUse is which part of a cache counts as in use at the most: beyond it, one request
	// waits for several others.
	maxUse = 2
)

// eta takes the candidate that would begin to answer first, in milliseconds. It weighs prefill higher than
// the wait, since prefill that is done twice is time that the fleet loses:
//
//	cost = wait + (1 + beta) x prefill + evict + room + requests x request_ms
//
// wait is the work that is booked and not done, divided by the rank's speed. prefill is the time for the
// tokens that the rank does not hold. A token in a slower tier counts for the share that its tier's weight
// leaves. beta does not grow with the load: then the longest queue would get the most prompts.
//
// evict is what the prompt takes from others. Its tokens push as many out of the cache. The
// faster the cache was filled of late, the younger these are, and the sooner asked for again.
// So it is the prefill of these tokens at the mean speed of all, times a setting, times a
// factor. The factor is how much more than the mean was put into this cache. As long as less
// than a cache was put into each, it counts for that share. room is what it costs that
// running requests need the cache. A request that finds no room waits until others have put
// out all of their answers. Both are 0 while nothing is known of what they depend on.
//
// What a request that runs there already prefills of the prompt is spared, and so is what it has prefilled
// without a report. Neither prefill nor evict count it. Only a booking call sees that, so of equal prompts
// that come together the second waits for the first where that takes less time.
//
// Of a candidate that fetches part of the prompt, prefill is that of the rest, and the time of
// the fetch is added.
//
// In a pair the prefill costs the wait, the prefill and evict and room. The decode costs room
// and what the requests add, since an engine decodes before it prefills what waits.
func eta(v *View) loads.Weights {
	s := v.Settings
	if v.Part == DecodePart {
		for i := range v.Candidates {
			room := v.Candidates[i].room(s.RoomMS)
			v.set(i, room, 0, Term{"room_ms", room})
		}
		return loads.Weights{Requests: s.RequestMS}
	}
	shape := s.shape()
	beta, speed := s.Beta, 0.0
	own, fill := v.floats(len(v.Candidates)), v.fills()
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if !c.Decode {
			own[i] = c.prefill(v, shape, 0)
		}
		speed += v.speedOf(c) / float64(len(v.Candidates))
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		room, evict := c.room(s.RoomMS), 0.0
		if fill[i] > 0 && !c.Decode {
			cached := min(c.Cached(), v.Tokens)
			evict = s.Evict * fill[i] * float64(shape.Units(v.Tokens-cached, cached)) / speed
		}
		more := evict + room
		twin := (1+beta)/v.speedOf(c) + s.Evict*fill[i]/speed
		if c.Pull == nil {
			v.set(i, (1+beta)*own[i]+more, 0, Term{"prefill_ms", own[i]}, Term{"beta", beta}, Term{"weighed_prefill_ms", (1 + beta) * own[i]},
				Term{"evict_ms", evict}, Term{"room_ms", room})
			c.Cost.Twin = twin
			continue
		}
		rest := c.prefill(v, shape, c.Pull.Tokens)
		v.set(i, (1+beta)*rest+c.Pull.MS+more, 0, Term{"prefill_ms", rest}, Term{"beta", beta}, Term{"weighed_prefill_ms", (1 + beta) * rest},
			Term{"pull_ms", c.Pull.MS}, Term{"recompute_ms", own[i]}, Term{"evict_ms", evict}, Term{"room_ms", room})
		c.Cost.Without, c.Cost.Twin = (1+beta)*own[i]+more, twin
	}
	if v.Part == PrefillPart {
		return loads.Weights{Wait: 1}
	}
	return loads.Weights{Wait: 1, Requests: s.RequestMS}
}

// prefill returns how many milliseconds the candidate takes for what it does not hold when it
// has fetched so many tokens.
func (c *Candidate) prefill(v *View, shape loads.Shape, fetched int) float64 {
	cached := min(c.Cached()+fetched, v.Tokens)
	work := float64(shape.Units(v.Tokens-cached, cached))
	for tier, held := range c.Held {
		work += float64(held) * (1 - v.Settings.TierWeights[tier])
	}
	return shape.Overhead + work/v.speedOf(c)
}

// fills returns how much was put into each candidate's cache lately, for its size, over the mean of all, at
// most maxFill. It is multiplied by the share of a cache that this mean fills, at most all of it. Where the
// size of one is not known, all count as alike, of assumedCache tokens.
func (v *View) fills() []float64 {
	out := v.floats(len(v.Candidates))
	sized, sum := true, 0.0
	for i := range v.Candidates {
		sized = sized && v.Candidates[i].CapacityBlocks > 0
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		if out[i] = c.Load.FilledBy(v.Now); sized {
			out[i] /= float64(c.CapacityBlocks)
		}
		sum += out[i]
	}
	if sum <= 0 {
		return out
	}
	mean := sum / float64(len(out))
	full := float64(assumedCache)
	if sized {
		full = float64(v.BlockSize)
	}
	// As long as little was put into the caches, a prompt takes their room from what is old.
	counts := min(1, mean/full)
	for i := range out {
		out[i] = counts * min(maxFill, out[i]/mean)
	}
	return out
}

// room returns what it costs, in milliseconds, that running requests and this one need the
// cache. That is full if they take all of it, and little as long as half of it is free. It is 0
// of a rank that nothing runs on, since whatever is in its cache makes room. It is 0 too where
// the size of the cache is not known.
func (c *Candidate) room(full float64) float64 {
	if c.CapacityBlocks <= 0 || c.Load.Requests <= 0 {
		return 0
	}
	use := min(maxUse, float64(c.Load.Blocks+c.Added)/float64(c.CapacityBlocks))
	cube := use * use * use
	return full * cube * cube
}

// speedOf is the speed to reckon with of a candidate.
func (v *View) speedOf(c *Candidate) float64 {
	switch {
	case c.Speed > 0:
		return c.Speed
	case c.Load.Speed > 0:
		return c.Load.Speed
	}
	return v.Settings.Speed
}

// What is known of how speeds that were learnt are off, as standard deviations of their
// logarithms.
const (
	// speedNoise is that of one request: what runs beside it, and how requests fall into
	// batches, is not known here.
	speedNoise = 0.25
	// firstNoise is what the first request adds. An engine that has just begun compiles and
	// allocates, and often others begin beside it. Of two real engines that were alike, one
	// looked 4.3 times as slow by its first request.
	firstNoise = 1.5
	// speedDrift is by how much a speed may have changed since it was last seen: the square
	// of a deviation, in a second. Without it a rank that was slow for a while gets no prompt
	// that could show that it is fast again.
	speedDrift = 1.0 / 2000
)

// learnSpeeds finds out how fast candidates are. What is learnt of each is off by chance, and of
// several that are alike one always looks the fastest. It would then get every prompt that no
// pod holds. So speeds are drawn towards their mean, by the share that chance has in how they
// differ (the estimator of James and Stein). They are drawn wholly where chance explains all of
// it, and hardly where pods are of two kinds. A speed of which little is known counts little in
// the mean, and is drawn there the most. Of a rank that nothing was learnt of it is the mean.
func (v *View) learnSpeeds() {
	var n, sum, squares, noise float64
	for i := range v.Candidates {
		if l := &v.Candidates[i].Load; l.Samples > 0 && l.Speed > 0 {
			x := math.Log(l.Speed)
			n, sum, squares, noise = n+1, sum+x, squares+x*x, noise+speedVariance(l, v.Now)
		}
	}
	if n == 0 {
		return
	}
	between := 0.0
	if n > 1 {
		between = max(0, (squares-sum*sum/n)/(n-1)-noise/n)
	}
	var weights, weighed float64
	for i := range v.Candidates {
		if l := &v.Candidates[i].Load; l.Samples > 0 && l.Speed > 0 {
			w := 1 / (between + speedVariance(l, v.Now))
			weights, weighed = weights+w, weighed+w*math.Log(l.Speed)
		}
	}
	all := math.Exp(weighed / weights)
	for i := range v.Candidates {
		c := &v.Candidates[i]
		c.Speed = all
		if l := &c.Load; between > 0 && l.Samples > 0 && l.Speed > 0 {
			c.Speed = all * math.Pow(l.Speed/all, between/(between+speedVariance(l, v.Now)))
		}
	}
}

// speedVariance is how much chance there is by now in a speed that was learnt, as the variance of
// its logarithm. It is the variance of a mean with the weights of loads.Load, in which the first
// request is off by more. What may have changed since is added.
func speedVariance(l *loads.Load, now int64) float64 {
	const lasting = loads.MinSpeedWeight / (2 - loads.MinSpeedWeight)
	n := float64(l.Samples)
	first := firstNoise / n
	if even := 1 / loads.MinSpeedWeight; n > even {
		first *= math.Pow(1-loads.MinSpeedWeight, n-even)
	}
	return speedNoise*speedNoise*max(lasting, 1/n) + first*first + speedDrift*float64(max(0, now-l.Learnt))/1e6
}
