package lmcache

import "strconv"

// WorkerName returns the name under which the index registers a worker of an instance:
// "instance/lmcache/worker". Where an instance works for several pods there is one for
// each, "instance/lmcache/pod/worker"; pod is "" otherwise. The names of an instance's
// workers differ in the number at their end alone, as store.PartOf wants it.
func WorkerName(instance, pod string, worker int) string {
	name := instance + "/lmcache/"
	if pod != "" {
		name += pod + "/"
	}
	return name + strconv.Itoa(worker)
}
