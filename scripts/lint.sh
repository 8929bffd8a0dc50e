#!/usr/bin/env bash
# Run golangci-lint, at the version that .golangci.yml is written for, over everything or the given
# packages. It is taken from PATH if it is that version, and otherwise built into .cache/bin.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=lint
readonly version=2.15.0
own=$root/.cache/bin/golangci-lint
start=$SECONDS

# is_right PROGRAM: it is there, at our version.
is_right() { [ "$("$1" version --short 2>/dev/null | sed 's/^v//')" = "$version" ]; }

need_go "$name"
printf '\n== lint, step 1 of 3: golangci-lint %s\n' "$version"
if is_right golangci-lint; then
  lint=golangci-lint
elif is_right "$own"; then
  lint=$own
else
  say "$name" "building it into .cache/bin: a few minutes, once"
  # In a module of its own, so that nothing of it reaches our go.mod.
  GOBIN=$root/.cache/bin GOFLAGS='' beat "$name" "still building golangci-lint" go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version"
  is_right "$own" || die "$name" "$own is not version $version after it was built: $("$own" version 2>&1 | head -n 1)"
  lint=$own
fi
say "$name" "$("$lint" version)"

printf '\n== lint, step 2 of 3 [%ds]: what is built without cgo\n' $((SECONDS - start))
# What a program embeds that has tokens already: it needs no C compiler and no tokenizer library.
CGO_ENABLED=0 scripts/go-progress.sh build ./scorer ./prompt ./store/... ./client ./blockkey ./ingest/... ./lmcache/...
CGO_ENABLED=0 go test -run Example ./scorer ./blockkey ./lmcache
CGO_ENABLED=0 go test ./examples/kv-cache-index

printf '\n== lint, step 3 of 3 [%ds]: the policy of .golangci.yml\n' $((SECONDS - start))
[ $# -gt 0 ] || set -- ./...
"$lint" config verify || die "$name" ".golangci.yml is not valid"
# Parallel runs are allowed: each checkout has its own, and the cache they share is safe.
# Of what the tests are built from, which is compiled already.
GOFLAGS="$(go env GOFLAGS) -race" beat "$name" "still linting" "$lint" run --allow-parallel-runners "$@"
