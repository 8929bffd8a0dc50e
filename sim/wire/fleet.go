package wire

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// Fleet is several pods. Its methods are safe for concurrent use.
type Fleet struct {
	pods   []*Pod
	byName map[string]*Pod
}

// StartFleet starts pods of these configurations. Where one cannot start none goes on.
func StartFleet(configs []Config) (*Fleet, error) {
	f := &Fleet{byName: map[string]*Pod{}}
	for _, c := range configs {
		p, err := NewPod(c)
		if err == nil {
			err = p.Start()
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.pods = append(f.pods, p)
		f.byName[c.Name] = p
	}
	return f, nil
}

// Pods returns the pods.
func (f *Fleet) Pods() []*Pod { return f.pods }

// Close kills all of them.
func (f *Fleet) Close() (err error) {
	for _, p := range f.pods {
		err = errors.Join(err, p.Kill())
	}
	return err
}

// PodState is what the control page says of a pod.
type PodState struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Alive   bool   `json:"alive"`
	// Ranks are the data-parallel ranks of a pod that lives.
	Ranks []RankState `json:"ranks,omitempty"`
}

// RankState is what a rank is doing: requests, blocks, and tokens since it began.
type RankState struct {
	Running       int    `json:"running"`
	Waiting       int    `json:"waiting"`
	UsedBlocks    int    `json:"used_blocks"`
	CachedBlocks  int    `json:"cached_blocks"`
	TotalBlocks   int    `json:"total_blocks"`
	PromptTokens  uint64 `json:"prompt_tokens"`
	ReusedTokens  uint64 `json:"reused_tokens"`
	Preemptions   uint64 `json:"preemptions"`
	EvictedBlocks uint64 `json:"evicted_blocks"`
	// Published counts the messages of events it has sent, with those lost on the way: a reader of as many
	// knows all.
	Published uint64 `json:"published"`
}

// rankStates returns what the ranks of a life are doing.
func (l *life) rankStates() (out []RankState) {
	for _, r := range l.ranks {
		s := r.stats()
		out = append(out, RankState{
			Running: s.Running, Waiting: s.Waiting, UsedBlocks: s.Used, CachedBlocks: s.Cached, TotalBlocks: s.Total,
			PromptTokens: s.Prompt, ReusedTokens: s.Reused.Tokens(), Preemptions: s.Preempted, EvictedBlocks: s.Evicted, Published: r.published(),
		})
	}
	return out
}

// State returns what the pods are doing.
func (f *Fleet) State() []PodState {
	out := []PodState{}
	for _, p := range f.pods {
		s := PodState{Name: p.config.Name, Address: p.Address()}
		if l, err := p.current(); err == nil {
			s.Alive, s.Ranks = true, l.rankStates()
		}
		out = append(out, s)
	}
	return out
}

// maxFault bounds the body of a fault.
const maxFault = 64 << 10

// Handler returns the control page. GET /pods says what the pods are doing. POST
// /pods/{name}/faults has a [Fault] happen to one, or with the name * to all.
func (f *Fleet) Handler() http.Handler {
	r := chi.NewRouter()
	r.Get("/pods", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"pods": f.State()})
	})
	r.Post("/pods/{name}/faults", func(w http.ResponseWriter, r *http.Request) {
		name := chi.URLParam(r, "name")
		pods := f.pods
		if name != "*" {
			p, ok := f.byName[name]
			if !ok {
				writeJSON(w, http.StatusNotFound, map[string]string{"error": "there is no pod of this name"})
				return
			}
			pods = []*Pod{p}
		}
		var fault Fault
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFault))
		d.DisallowUnknownFields()
		if err := d.Decode(&fault); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		for _, p := range pods {
			if err := p.Apply(fault); err != nil {
				status := http.StatusInternalServerError
				switch {
				case errors.Is(err, ErrDead):
					status = http.StatusConflict
				case errors.Is(err, ErrFault):
					status = http.StatusBadRequest
				}
				writeJSON(w, status, map[string]string{"error": err.Error()})
				return
			}
		}
		writeJSON(w, http.StatusOK, map[string]any{"pods": f.State()})
	})
	return r
}
