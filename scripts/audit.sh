#!/usr/bin/env bash
# Check what the project depends on: the licences of all modules and crates, and their known vulnerabilities.
#
# Modules are all that the packages and tests of this module are built from; crates are those of rust/Cargo.lock. The
# licences that may be are in licences.json.
#
# Environment: GOVULNDB is another database than the pinned one: https://vuln.go.dev is today's, file://DIR a copy of it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cd "$root"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=audit
readonly licences=$here/licences.json
readonly detector=0.11.1 govulncheck=1.9.0
# The Go project's database as it was on a day, so that a run is repeated; its sum is `go mod download -json`'s.
readonly database=golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018
readonly database_sum=h1:mfngRv0Yoh0VApsXKEN82CjD99kl7mtparN3bs3JnqI=
start=$SECONDS
step() { printf '\n== audit, step %s of 3 [%ds]: %s\n' "$1" $((SECONDS - start)) "$2"; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# tool MODULE VERSION: install a program into .cache/bin, in a module of its own, so that nothing of it reaches go.mod.
tool() {
  local program=$root/.cache/bin/${1##*/}
  [ "$(go version -m "$program" 2>/dev/null | awk '$1 == "mod" { print $3 }')" = "v$2" ] && return
  say "$name" "building ${1##*/} $2, once"
  GOBIN=$root/.cache/bin GOFLAGS='' go install "$1@v$2"
}

need_go "$name"
step 1 "licences of Go modules"
tool go.elastic.co/go-licence-detector $detector
go list -deps -test -f '{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}' ./... | sort -u >"$tmp/modules"
echo '{{range .Direct}}{{.LicenceType}}
{{end}}{{range .Indirect}}{{.LicenceType}}
{{end}}' >"$tmp/template"
xargs go list -m -json <"$tmp/modules" |
  .cache/bin/go-licence-detector -rules "$licences" -includeIndirect -depsTemplate "$tmp/template" -depsOut "$tmp/licences" ||
  die "$name" "a module's licence is none of those in scripts/licences.json (CONTRIBUTING.md, Dependencies)"
grep . "$tmp/licences" | sort | uniq -c

step 2 "licences of crates"
need_cargo "$name"
mkdir -p "$tmp/crate/src"
cp rust/Cargo.toml rust/Cargo.lock "$tmp/crate"
touch "$tmp/crate/src/lib.rs"
(cd "$tmp/crate" && cargo tree --quiet --locked --edges normal,build --prefix none --no-dedupe -f '{p}|{l}') >"$tmp/tree"
# The first is the library itself.
tail -n +2 "$tmp/tree" | sed 's/ (proc-macro)//' | sort -u >"$tmp/crates"
# A crate names licences with AND and OR (in old ones / is OR). Each that may be is put as 1, any other as 0, and the rest is arithmetic.
allowed=$(grep -o '"[A-Za-z0-9.-]*"' "$licences" | tr -d '"' | grep -v allowlist)
while IFS='|' read -r crate expression; do
  value=
  for word in $(sed 's|/| OR |g; s/[()]/ & /g' <<<"$expression"); do
    case $word in
    AND) value+='&&' ;;
    OR) value+='||' ;;
    '(' | ')') value+=$word ;;
    *) if grep -qxF "$word" <<<"$allowed"; then value+=1; else value+=0; fi ;;
    esac
  done
  [ "$((${value:-0}))" = 1 ] || die "$name" "$crate has licence '$expression', which scripts/licences.json does not allow"
done <"$tmp/crates"
cut -d'|' -f2 "$tmp/crates" | sort | uniq -c

step 3 "known vulnerabilities of Go modules"
tool golang.org/x/vuln/cmd/govulncheck $govulncheck
db=${GOVULNDB:-}
if [ -z "$db" ]; then
  if ! (cd "$tmp" && go mod download -json "$database") >"$tmp/database" 2>"$tmp/err"; then
    say "$name" "NOT CHECKED: the database $database cannot be had here: $(tail -n 1 "$tmp/err" "$tmp/database" | tr '\n' ' ')"
    exit 0
  fi
  grep -qF "\"Sum\": \"$database_sum\"" "$tmp/database" || die "$name" "$database has not the sum $database_sum: refused"
  db=file://$(sed -n 's/^\t"Dir": "\(.*\)",\{0,1\}$/\1/p' "$tmp/database")/data/osv
  say "$name" "database: ${database#*@}, the day is in its name (GOVULNDB=https://vuln.go.dev for today's)"
fi
status=0
.cache/bin/govulncheck -db "$db" ./... >"$tmp/report" || status=$?
case $status in
0) tail -n 3 "$tmp/report" ;;
3)
  # What is found in the standard library depends on the Go command that builds, not on this project: it is told, and fails nothing.
  if grep -q '^  Module: ' "$tmp/report"; then
    cat "$tmp/report" >&2
    die "$name" "a module has a known vulnerability that the code calls: move it to the version it is fixed in"
  fi
  grep -E '^Vulnerability|^    (Found|Fixed) in' "$tmp/report"
  say "$name" "no module has a known vulnerability that is called; the standard library of $(go env GOVERSION) has those above: build releases with a newer Go" ;;
*) die "$name" "govulncheck could not run: status $status" ;;
esac
