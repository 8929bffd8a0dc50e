package notes

import (
	"bytes"
	"context"
)

// told is one process's report on the demand for a model's prefixes.
type told struct {
	at      int64 // in us of the Unix epoch
	counted []byte
}

// PutDemand implements Store.
func (m *Memory) PutDemand(_ context.Context, model, process string, counted []byte) error {
	if err := CheckDemand(process, counted); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.liveDemand(model)
	if _, known := all[process]; !known && len(all) >= MaxTellers {
		oldest := process
		for name, t := range all {
			if o, ok := all[oldest]; !ok || t.at < o.at || t.at == o.at && name < oldest {
				oldest = name
			}
		}
		delete(all, oldest)
	}
	if all == nil {
		all = map[string]told{}
		m.demand[model] = all
	}
	all[process] = told{m.now().UnixMicro(), bytes.Clone(counted)}
	return nil
}

// Demand implements Store.
func (m *Memory) Demand(_ context.Context, model string) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]byte{}
	for process, t := range m.liveDemand(model) {
		out[process] = t.counted
	}
	return out, nil
}

// liveDemand forgets what is too old of a model, and returns the rest.
func (m *Memory) liveDemand(model string) map[string]told {
	all, now := m.demand[model], m.now().UnixMicro()
	for process, t := range all {
		if now-t.at > DemandForget.Microseconds() {
			delete(all, process)
		}
	}
	if len(all) == 0 {
		delete(m.demand, model)
		return nil
	}
	return all
}
