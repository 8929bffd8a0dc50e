// Package diagnose says which entries of LMCache in Redis a scorer will find, which it
// never will, and what has to be set otherwise.
//
// A [Diagnosis] is given keys and groups them by what their names have in common. It holds each
// group against the names that [lmcache.Reader] makes of the profiles that are configured. So
// what it says of a group follows from what scoring does. [Diagnosis.Explain] does the same from
// the other end. It looks for the chain of hashes under which engines have stored a known prompt,
// where it is not the one that is configured.
//
// It does no I/O and is for one goroutine.
package diagnose
