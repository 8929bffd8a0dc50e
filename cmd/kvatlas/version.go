package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the build (-ldflags "-X main.version=v1.2.3"); without, the
// Go module's version is shown.
var version string

// versionWord is the version alone.
func versionWord() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

// versionLine is the version, the commit where it is known, and the platform.
func versionLine() string {
	commit := ""
	if b, ok := debug.ReadBuildInfo(); ok {
		set := map[string]string{}
		for _, s := range b.Settings {
			set[s.Key] = s.Value
		}
		if c := set["vcs.revision"]; c != "" {
			commit = ", commit " + c[:min(12, len(c))]
			if set["vcs.modified"] == "true" {
				commit += " with changes"
			}
		}
	}
	return fmt.Sprintf("%s (%s %s/%s%s)", versionWord(), runtime.Version(), runtime.GOOS, runtime.GOARCH, commit)
}
