// Package scrape asks engines for their own load. It reads the metrics of vLLM, SGLang and
// TensorRT-LLM, whatever their release calls them, and tells it to a loads.Store.
//
// Any number of processes run a Scraper on one store. The store gives out the turns, so that
// each engine is asked by one of them, about every loads.EngineEvery. What a page may cost is
// bounded: its bytes, the time it takes, and how many are read at once. An engine that does
// not answer, or not with what it should, is asked less and less often.
package scrape
