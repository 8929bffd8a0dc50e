// Package bench measures the indexes of kvatlas beside those of its peers: the
// program behind `cmd/kvbench`, whose figures are in docs/performance.md.
//
// # What it guarantees
//
// What is measured is the code that serves: store/redis and store/memory
// through their exported API. What they are compared with is written to and read
// from the same redis-server in the same run. This package's own code does so,
// in the form that the peer's public source gives (see peer.go). Before anything
// is timed, all layouts must give the same answers.
//
// The sides take turns, forwards and then backwards, so that what disturbs a
// shared machine disturbs all of them. Ratios are of samples taken next to each
// other, and medians with quartiles are what is shown. CPU time of the server
// and of the client stands beside the wall clock, since it bears other load
// better.
//
// [Redis] works on an empty database only and refuses any other. It removes
// what it has written when it ends, also after an error or a cancelled context.
// [Start] starts a throw-away server or cluster for it. Nothing here is meant
// for production, nor is it safe for concurrent use.
package bench
