// Package lua has the Lua scripts of an index in Redis, and what they answer. The scripts are
// the interface for other writers, too: docs/redis-schema.md says how to call them.
package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
)

//go:embed *.lua
var files embed.FS

// Script is a script as a server runs it.
type Script struct {
	// Source is its text, Sum the SHA-1 of that, in hex, which the server knows it by.
	Source, Sum string
	// Timed is true when its first argument may name a latest time, after which it does nothing.
	Timed bool
}

// The scripts, each in a file of its name. Those of the registry have registry.lua in front,
// and those that know guards guard.lua. One is timed where what it writes may be untrue by the
// time that a late call arrives.
var (
	Register = timed("registry", "register")
	Retire   = timed("registry", "retire")
	Renew    = timed("registry", "renew")
	Model    = timed("registry", "model")
	Forget   = timed("registry", "forget")
	Begin    = timed("registry", "guard", "begin")
	Holders  = timed("registry", "guard", "holders")
	Reserve  = timed("registry", "reserve")
	Sweep    = timed("registry", "sweep")
	Want     = timed("registry", "want")
	Apply    = timed("guard", "apply")

	// Lease takes no latest time. A late call keeps ranks from others for no longer than its
	// ttl, and what a reader writes is under guards.
	Lease      = untimed("registry", "lease")
	Generation = untimed("generation")
	Fence      = untimed("guard", "fence")
	Map        = untimed("map")
	Compact    = untimed("guard", "compact")
	Mark       = untimed("mark")
	Log        = untimed("log")
	Text       = untimed("text")
	Roster     = untimed("roster")
)

func timed(names ...string) *Script {
	s := untimed(names...)
	s.Timed = true
	return s
}

func untimed(names ...string) *Script {
	s := &Script{}
	for _, name := range names {
		b, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err) // the files are part of the program
		}
		s.Source += string(b)
	}
	sum := sha1.Sum([]byte(s.Source))
	s.Sum = hex.EncodeToString(sum[:])
	return s
}
