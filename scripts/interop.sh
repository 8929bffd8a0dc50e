#!/usr/bin/env bash
# Fetch what tests run of other projects, and run the tests that scripts/test.sh has put off, no others. They have to pass:
# one that is skipped is a failure.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"
# shellcheck source=scripts/gotest.sh
. "$here/gotest.sh"

name="interop"
start=$SECONDS
step() { printf '\n== interop, step %s of 4 [%ds]: %s\n' "$1" $((SECONDS - start)) "$2"; }
[ -s .cache/put-off ] || die "$name" "make test says which tests are put off: run it first"
need_go "$name"

step 1 "Python for examples/writers, clients/python and OpenAI's client"
scripts/venv.sh writers examples/writers/python/requirements.txt
scripts/venv.sh clients clients/python/requirements-test.txt
scripts/venv.sh openai sim/wire/testdata/requirements.txt

step 2 "publishers and caches of real engines"
scripts/fetch-engines.sh

step 3 "LMCache's own code"
scripts/fetch-lmcache.sh

step 4 "$(grep -c . .cache/put-off) tests that were put off"
packages=()
while IFS= read -r line; do packages+=("$line"); done < <(cut -d' ' -f1 .cache/put-off | sort -u)
# "A/b" becomes ^A$/^b$, its letters alone meaning something.
pattern=$(cut -d' ' -f2 .cache/put-off | sort -u | sed 's/[][\\.*^$+?(){}|]/\\&/g; s|/|$/^|g; s/.*/^&$/' | paste -sd'|')
unset KVATLAS_TEST_INTEROP
go_tests "$name" .cache/interop.json -run "$pattern" "${packages[@]}"
ids .cache/interop.json '"Action":"pass"' >.cache/passed
missing=$(comm -23 .cache/put-off .cache/passed)
if [ -n "$missing" ]; then
  printf '%s\n' "$missing" >&2
  die "$name" "these tests were put off, and did not run and pass now"
fi
