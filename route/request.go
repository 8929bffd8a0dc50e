package route

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/route/loads"
	"github.com/kvatlas/kvatlas/scorer"
	"github.com/kvatlas/kvatlas/store"
)

// Request asks where a prompt shall go.
type Request struct {
	// Score is the prompt and how it is read. Its Pods are the pods that may be chosen; nil is
	// all of the model.
	Score scorer.Request
	// Reserve books the request under ID. Without it nothing is booked.
	Reserve bool
	// ID names the request; empty draws one. A second call with the ID of a request that runs
	// returns what the first one chose.
	ID string
	// Overrides, if not nil, is a JSON object with fields of Settings that this request has
	// otherwise.
	Overrides []byte
	// Expected is the length of the output in tokens; 0 is not known.
	Expected int
	// Session, if not empty, names what the request is a part of, such as a chat. Requests of
	// one session go to one place while it may take them. Up to notes.MaxSession bytes.
	Session string
	// Role is what the pod is for: "prefill", "decode" or, for all of a request, "". With
	// RolePair it is two pods: the decision is about the one that decodes, its Prefill the other.
	Role string
	// Pinned, if not nil, is the pod that must be chosen, and the rank unless that is negative.
	Pinned *store.RankRef
	// PinnedPrefill is the same for the pod that prefills, of a pair.
	PinnedPrefill *store.RankRef
	// Required are labels that the pod must have. Preferred are weights of labels, as
	// name=value, that make a pod cheaper or, below 0, dearer.
	Required  map[string]string
	Preferred map[string]float64
	// Explain asks for Decision.Costs.
	Explain bool
}

func (q *Request) validate() error {
	switch q.Role {
	case "", "prefill", "decode", RolePair:
	default:
		return fmt.Errorf("%w: role %.40q is not one of prefill, decode, pair", ErrRequest, q.Role)
	}
	if err := q.checkSession(); err != nil {
		return err
	}
	if q.PinnedPrefill != nil && q.Role != RolePair {
		return fmt.Errorf("%w: a pod that prefills can be pinned of a pair alone", ErrRequest)
	}
	if q.Expected < 0 || q.Expected > loads.MaxTokens {
		return fmt.Errorf("%w: %d expected tokens", ErrRequest, q.Expected)
	}
	if q.ID != "" {
		if err := loads.CheckID(q.ID); err != nil {
			return fmt.Errorf("%w: %w", ErrRequest, err)
		}
	}
	for label, w := range q.Preferred {
		if math.IsNaN(w) || math.Abs(w) > 1e6 {
			return fmt.Errorf("%w: the weight of label %.40q is %v", ErrRequest, label, w)
		}
		if !strings.Contains(label, "=") {
			return fmt.Errorf("%w: preferred label %.40q is not of the form name=value", ErrRequest, label)
		}
	}
	return nil
}

// candidates fills in the places that may take the request.
func (q *Request) candidates(v *View, match *scorer.Match, picture *loads.Picture) error {
	reg := match.Registry
	var named map[string]bool // nil is all
	if q.Score.Pods != nil {
		named = make(map[string]bool, len(q.Score.Pods))
		for _, name := range q.Score.Pods {
			named[name] = true
		}
	}
	seen, places, whole := 0, 0, false
	for i := range reg.Pods {
		if p := &reg.Pods[i]; p.Model == q.Score.Model && p.PartOf == nil {
			seen++
			places += max(1, p.Ranks)
			whole = whole || p.Role == "" || p.Role == "both"
		}
	}
	v.Candidates = slices.Grow(v.Candidates[:0], places)
	for i := range reg.Pods {
		p := &reg.Pods[i]
		if p.Model != q.Score.Model || p.PartOf != nil || named != nil && !named[p.Name] && !named[store.PlainName(p.Name)] || !q.suits(p, whole) {
			continue
		}
		for rank := range max(1, p.Ranks) {
			if q.Pinned != nil && q.Pinned.Rank >= 0 && q.Pinned.Rank != rank {
				continue
			}
			v.Candidates = v.Candidates[:len(v.Candidates)+1] // there is room, which giveBack has cleared
			c := &v.Candidates[len(v.Candidates)-1]
			c.RankRef, c.Decode, c.Added = store.RankRef{Pod: p.Name, Rank: rank}, q.Role == "decode", int64(v.Blocks())
			if slot, ok := reg.Slot(i, rank); ok {
				c.Generation = reg.Generation(slot)
				if slot < len(match.Held) {
					for tier, n := range match.Usable(slot) {
						c.Held[tier] = int(n) * match.BlockSize
					}
					c.Predicted = match.UsablePredicted(slot) * match.BlockSize
				}
			}
			if p.KVTokens > 0 {
				c.CapacityBlocks = p.KVTokens / match.BlockSize
			}
			l := picture.Loads[c.RankRef]
			if e, told := picture.Engines[c.RankRef]; told {
				v.seeEngine(c, e)
			}
			v.seeBooked(c, l.In(c.Generation))
			if len(q.Preferred) > 0 {
				c.Preference = q.preference(p)
			}
		}
	}
	if len(v.Candidates) == 0 {
		return fmt.Errorf("%w: of %d pods of model %.80q none has what is asked%s", ErrNobody, seen, q.Score.Model, q.wishes())
	}
	return nil
}

// suits reports whether a pod may take the request. whole says that the model has pods that
// take requests from beginning to end.
func (q *Request) suits(p *store.Pod, whole bool) bool {
	switch {
	case q.Pinned != nil && q.Pinned.Pod != p.Name && q.Pinned.Pod != store.PlainName(p.Name),
		q.Role != "" && p.Role != "" && p.Role != "both" && p.Role != q.Role,
		q.Role == "" && whole && p.Role != "" && p.Role != "both",
		q.Score.LoRA != "" && len(p.Adapters) > 0 && !slices.Contains(p.Adapters, q.Score.LoRA):
		return false
	}
	for name, value := range q.Required {
		if v, ok := p.Labels[name]; !ok || v != value {
			return false
		}
	}
	return true
}

// preference adds up the weights of the preferred labels that a pod has.
func (q *Request) preference(p *store.Pod) (sum float64) {
	for label, w := range q.Preferred {
		name, value, _ := strings.Cut(label, "=")
		if v, ok := p.Labels[name]; ok && v == value {
			sum += w
		}
	}
	return sum
}

// pinnedTo says which pod, or which rank of it, must be taken; nothing if any may.
func pinnedTo(p *store.RankRef) string {
	switch {
	case p == nil:
		return ""
	case p.Rank < 0:
		return fmt.Sprintf(", pinned to pod %.80q", p.Pod)
	}
	return fmt.Sprintf(", pinned to rank %d of pod %.80q", p.Rank, p.Pod)
}

// wishes says what a request asks of a pod.
func (q *Request) wishes() string {
	var b strings.Builder
	if q.Score.Pods != nil {
		fmt.Fprintf(&b, ", among %d named", len(q.Score.Pods))
	}
	b.WriteString(pinnedTo(q.Pinned))
	if q.Role != "" {
		fmt.Fprintf(&b, ", role %s", q.Role)
	}
	if q.Score.LoRA != "" {
		fmt.Fprintf(&b, ", adapter %.80s", q.Score.LoRA)
	}
	if len(q.Required) > 0 {
		fmt.Fprintf(&b, ", %d required labels", len(q.Required))
	}
	return b.String()
}

// nobody is the error of a request that no known pod may take.
func nobody(err error, unread bool) error {
	if unread && errors.Is(err, ErrNobody) {
		return fmt.Errorf("%w: %w", ErrUnread, err)
	}
	return err
}
