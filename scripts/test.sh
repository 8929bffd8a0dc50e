#!/usr/bin/env bash
# Install what the tests need, build the tokenizer library, and run every check that needs no linter and no code of other
# projects. The tests of those are put off, and scripts/interop.sh runs them.
#
#   scripts/test.sh                  everything, as CI does it
#   scripts/test.sh ./store/...      only the tests of these packages, put off is none of them
#
# Environment: RACE=1 has the race detector watch, which takes two to three times as long. CI=true does so too, and makes a
# skipped test a failure. GOTESTFLAGS adds flags to go test.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"
# shellcheck source=scripts/gotest.sh
. "$here/gotest.sh"

# shellcheck disable=SC2086 # $race may be no word
name="test"
total=6
start=$SECONDS
step() { printf '\n== test, step %s of %s [%ds]: %s\n' "$1" "$total" $((SECONDS - start)) "$2"; }

packages=("$@")
[ ${#packages[@]} -gt 0 ] || packages=(./...)

step 1 "tools that the tests need"
need_go "$name"
need_cxx "$name"
need_tool "$name" redis-server redis-server "the Redis store is tested against a real server"
# Completion is typed into all three shells, and commands of the documents use the others; a test is skipped of one that
# is not there.
for tool in zsh fish curl jq; do
  command -v $tool >/dev/null || ! can_apt || apt_install "$name" $tool || true
done
go version
redis-server --version

step 2 "tokenizer library, and Go packages beside it"
scripts/build-libtokenizers.sh --beside scripts/go-progress.sh parts $race "${packages[@]}"

step 3 "tokenizers that the tests load"
scripts/fetch-tokenizers.sh

step 4 "gofmt"
# What git would commit; all Go files where this is no git checkout.
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git ls-files -z --cached --others --exclude-standard -- '*.go'
else
  find . -name '*.go' -not -path './.cache/*' -print0
fi | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done >.cache/gofiles
unformatted=$(xargs -0 gofmt -l <.cache/gofiles)
if [ -n "$unformatted" ]; then
  printf '%s\n' "$unformatted" >&2
  die "$name" "these files are not gofmt'ed: run gofmt -w on them"
fi
echo "$(tr -cd '\0' <.cache/gofiles | wc -c) files, all formatted"

step 5 "go vet"
# With the race detector where the tests have it, so that they need not compile all packages again.
scripts/go-progress.sh vet $race "${packages[@]}"
echo "no complaint"

if [ $# = 0 ]; then
  export KVATLAS_TEST_INTEROP=later
  # Those that take longest begin first, so that none of them is left alone in the end.
  packages=(./cmd/kvatlas ./store/redis ./tokenpool ./store/replica ./sim/wire ./tokenpool/internal/bpe ./store/memory ./bench ./sim/trial ./store/snapshot ./...)
fi
if [ $# = 0 ]; then
  # Again with what must hold after each change of the loads' state and of a generation's (internal/invariants).
  go test $race -vet=off -tags kvatlas_invariants ./route/loads ./ingest/rechunk
fi
step 6 "go test${race:+ $race}"
json=.cache/test.json
go_tests "$name" $json "${packages[@]}"

# Put off is a test that was skipped for that reason (internal/interop). A run of some packages leaves the list alone.
ids $json '"Action":"skip"' >.cache/skipped
other=$(cat .cache/skipped)
if [ "${KVATLAS_TEST_INTEROP:-}" = later ]; then
  ids $json '"Output":.*put off: make test-all runs it' | comm -12 - .cache/skipped >.cache/put-off
  other=$(comm -23 .cache/skipped .cache/put-off)
  say "$name" "$(grep -c . .cache/put-off) tests run other projects' code: put off (make test-all runs them)"
fi
if [ -n "$other" ] && [ "${CI:-}" = true ]; then
  printf '%s\n' "$other" >&2
  die "$name" "these tests were skipped, and where CI=true that is a failure"
fi
