// Package access decides what each caller may do with a server that others can reach.
//
// A caller is known by a bearer token or by a client certificate; the file that names both
// gives each a [Role]. Only digests of tokens stand in it. [Open] reads the file, and reads it
// again when it changes, so that tokens are added, rotated and withdrawn without a restart.
//
//	creds, err := access.Open("credentials", nil)
//	caller, err := creds.Caller(r) // ErrUnauthorized, or the caller's name and role
//
// [Certificates] serves TLS from files that may change, [Limiter] bounds how often one caller
// asks, and [Networks] says which addresses a server dials for others. All are safe for
// concurrent use. The package knows no routes: the server says which role each needs.
package access
