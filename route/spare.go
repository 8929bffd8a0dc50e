package route

import "math/rand/v2"

// spare is memory that the views of requests use one after the other.
type spare struct {
	source  rand.PCG
	rand    *rand.Rand
	numbers []float64
	indexes []int
}

// takeView returns an empty view. Nothing of it may be kept once it is given back.
func (r *Router) takeView() *View {
	v, ok := r.views.Get().(*View)
	if !ok {
		s := &spare{}
		s.rand = rand.New(&s.source)
		v = &View{spare: s}
	}
	return v
}

func (r *Router) giveBack(v *View) {
	s, candidates := v.spare, v.Candidates
	clear(candidates) // they refer to names and engines
	s.numbers, s.indexes = s.numbers[:0], s.indexes[:0]
	*v = View{spare: s, Candidates: candidates[:0]}
	r.views.Put(v)
}

// seed makes the random numbers of the view.
func (v *View) seed(a, b uint64) {
	if v.spare == nil {
		v.Rand = rand.New(rand.NewPCG(a, b))
		return
	}
	v.spare.source.Seed(a, b)
	v.Rand = v.spare.rand
}

// perm returns the indexes of the candidates in random order.
func (v *View) perm() []int {
	p := v.ints(len(v.Candidates))
	for i := range p {
		p[i] = i
	}
	v.Rand.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// floats returns n zeros, for as long as the view is used.
func (v *View) floats(n int) []float64 {
	if v.spare == nil {
		return make([]float64, n)
	}
	return cut(&v.spare.numbers, n)
}

// ints returns n zeros, for as long as the view is used.
func (v *View) ints(n int) []int {
	if v.spare == nil {
		return make([]int, n)
	}
	return cut(&v.spare.indexes, n)
}

// cut cuts n zeros off what is left of a slice, which it makes anew where that is too little.
func cut[T any](s *[]T, n int) []T {
	first := len(*s)
	if cap(*s)-first < n {
		*s, first = make([]T, 0, max(128, 8*n)), 0
	}
	*s = (*s)[:first+n]
	out := (*s)[first : first+n : first+n]
	clear(out)
	return out
}
