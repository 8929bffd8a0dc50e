#!/usr/bin/env bash
# Install what the tests need, build the tokenizer library, and run every check that needs no linter.
#
#   scripts/test.sh                  everything, as CI does it
#   scripts/test.sh ./store/...      only the tests of these packages
#
# Environment: CI=true makes a skipped test a failure. GOTESTFLAGS adds flags to go test.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name="test"
total=10
start=$SECONDS
step() { printf '\n== test, step %s of %s [%ds]: %s\n' "$1" "$total" $((SECONDS - start)) "$2"; }

packages=("$@")
[ ${#packages[@]} -gt 0 ] || packages=(./...)

step 1 "tools that the tests need"
need_go "$name"
need_cxx "$name"
need_tool "$name" redis-server redis-server "the Redis store is tested against a real server"
# Completion is typed into all three; a test is skipped of one that is not there.
for shell in zsh fish; do
  command -v $shell >/dev/null || ! can_apt || apt_install "$name" $shell || true
done
go version
redis-server --version

step 2 "tokenizer library"
scripts/build-libtokenizers.sh

step 3 "tokenizers that the tests load"
scripts/fetch-tokenizers.sh

step 4 "Python for examples/writers, clients/python and OpenAI's client"
scripts/venv.sh writers examples/writers/python/requirements.txt
scripts/venv.sh clients clients/python/requirements-test.txt
scripts/venv.sh openai sim/wire/testdata/requirements.txt

step 5 "publishers and caches of real engines"
scripts/fetch-engines.sh

step 6 "LMCache's own code"
scripts/fetch-lmcache.sh

step 7 "gofmt"
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

step 8 "go vet"
go vet "${packages[@]}"
echo "no complaint"

step 9 "what is built without cgo"
# What a program embeds that has tokens already: it needs no C compiler and no tokenizer library.
pure=(./scorer ./prompt ./store/... ./client ./blockkey ./ingest/... ./lmcache/...)
CGO_ENABLED=0 go build "${pure[@]}"
CGO_ENABLED=0 go test -run Example ./scorer ./blockkey ./lmcache
CGO_ENABLED=0 go test ./examples/kv-cache-index

readonly gotestsum=1.13.0
sum=$root/.cache/bin/gotestsum
[ "$("$sum" --version 2>/dev/null)" = "gotestsum version v$gotestsum" ] ||
  GOBIN=$root/.cache/bin GOFLAGS='' go install "gotest.tools/gotestsum@v$gotestsum"
if [ $# = 0 ]; then
  # Those that take longest and wait most begin first, so that the others run beside them.
  packages=(./store/redis ./cmd/kvatlas ./internal/enginetest ./tokenpool ./...)
fi
all=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${packages[@]}" | sort -u | grep -c .)
step 10 "go test -race, $all packages"
# The time is a package's: the longest takes three minutes on two idle cores, and seven on busy ones. Vet has passed over them in step 8.
# Many tests wait for servers, leases and failovers, so there are two packages to a core.
done=0
# shellcheck disable=SC2086 # GOTESTFLAGS is a list of words
"$sum" --format pkgname --format-hide-empty-pkg --jsonfile .cache/test.json -- -race -vet=off -p $((2 * $(getconf _NPROCESSORS_ONLN))) -timeout 30m ${GOTESTFLAGS:-} "${packages[@]}" |
  while IFS= read -r line; do
    case $line in
    "✓"* | "✖"* | "∅"*) printf '[%s of %s, %ds] %s\n' $((++done)) "$all" $((SECONDS - start)) "$line" ;;
    *) printf '%s\n' "$line" ;;
    esac
  done

skipped=$(grep '"Action":"skip"' .cache/test.json | grep -o '"Package":.*"Test":"[^"]*"' || true)
if [ -n "$skipped" ] && [ "${CI:-}" = true ]; then
  printf '%s\n' "$skipped" >&2
  die "$name" "these tests were skipped, and where CI=true that is a failure"
fi
