package scan

// Skips are fields that a body may have beside those that are read: their values are
// passed over.
type Skips struct {
	places  map[string]int  // of each in a set
	refused map[string]bool // those whose value makes a difference
}

// MaxSkips is the most fields of Skips.
const MaxSkips = 256

// NewSkips makes Skips of fields that change nothing, and of fields that change something
// unless they are null or empty: Form.Refused has these. There may be maxSkips of both.
func NewSkips(skipped, refused []string) *Skips {
	k := &Skips{map[string]int{}, map[string]bool{}}
	for _, name := range skipped {
		k.places[name] = len(k.places)
	}
	for _, name := range refused {
		k.places[name], k.refused[name] = len(k.places), true
	}
	return k
}

// Has reports whether a field is one of them.
func (k *Skips) Has(name string) bool { _, ok := k.places[name]; return ok }

// passed is the set of the fields that a body had of its Skips.
type passed struct {
	bits    [MaxSkips / 64]uint64
	first   string   // the first that was skipped, "" if none was
	refused []string // those of Skips.refused that had a value
}

// setBit adds a field, and reports whether it was there.
func (p *passed) setBit(i int) (again bool) {
	word, bit := &p.bits[i/64], uint64(1)<<(i%64)
	again = *word&bit != 0
	*word |= bit
	return again
}

// pass skips the value of a field that is one of the scanner's Skips, and reports whether
// it is.
func (s *Scanner) pass(name []byte) (bool, error) {
	if s.skips == nil {
		return false, nil
	}
	i, ok := s.skips.places[string(name)]
	if !ok {
		return false, nil
	}
	if s.passed.setBit(i) {
		return true, s.Wrong("is given twice")
	}
	s.Space()
	if !s.takeByte(':') {
		return true, s.Syntax("':'")
	}
	s.Space()
	value, err := s.Raw("a value")
	if err != nil {
		return true, err
	}
	if s.skips.refused[string(name)] && string(value) != "null" && string(value) != `""` {
		s.passed.refused = append(s.passed.refused, string(name))
	}
	if s.passed.first == "" {
		s.passed.first = string(name)
	}
	return true, nil
}
