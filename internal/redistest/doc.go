// Package redistest starts real redis-server processes for tests: single
// servers, clusters and sentinels. Each is in a temporary directory and on
// ports of its own, and stops when the test ends. A test process that dies
// takes its servers with it.
//
// A machine without redis-server fails the test: what the tests are for cannot
// be shown without one, and `make test` installs it.
package redistest
