# shellcheck shell=bash
# Functions for scripts that run Go's tests. To be sourced by bash after need.sh, in the root of the checkout.

# The race detector, for the go command: its tests take two to three times as long, and all packages are compiled for it
# alone. CI has it, as has make test-all.
race=''
if [ "${CI:-}" = true ] || [ -n "${RACE:-}" ]; then race=-race; fi

# ids FILE PATTERN: "PACKAGE TEST" of the lines of test2json that hold PATTERN, each once.
ids() { { grep -E "$2" "$1" || true; } | sed -n 's/.*"Package":"\([^"]*\)","Test":"\([^"]*\)".*/\1 \2/p' | sort -u; }

# tests_running FILE: the packages whose tests have begun and not ended.
tests_running() {
  { grep -E '"Action":"(start|pass|fail|skip)"' "$1" | grep -v '"Test":' || true; } | sed 's/.*"Action":"\([a-z]*\)".*"Package":"\([^"]*\)".*/\1 \2/' |
    awk '$1 == "start" { on[$2]; next } { delete on[$2] } END { for (p in on) { sub(/^github.com\/kvatlas\/kvatlas\//, "", p); printf "%s%s", n++ ? ", " : "", p } }'
}

# go_tests NAME JSON ARG...: go test with the flags and packages given, and with the race detector if $race says so. A line for each package
# that is done or when nothing was said for 15 s. What test2json writes goes to JSON. A test that fails runs once more, when
# the others have ended: many start servers and kill them, on cores that all share. What passes then is printed as unsteady
# with what it said; a data race, or more than five failures, is never tried again.
go_tests() {
  local name=$1 json=$2 start=$SECONDS total passed line rc
  shift 2
  local gotestsum=1.13.0 sum=$PWD/.cache/bin/gotestsum
  [ "$("$sum" --version 2>/dev/null)" = "gotestsum version v$gotestsum" ] ||
    GOBIN=$PWD/.cache/bin GOFLAGS='' go install "gotest.tools/gotestsum@v$gotestsum"
  local packages=() flags=() unsteady=$json.unsteady
  for line; do case $line in ./* | github.com/*) packages+=("$line") ;; *) flags+=("$line") ;; esac; done
  total=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${packages[@]}" | sort -u | grep -c .)
  say "$name" "$total packages with tests"
  : >"$json"
  rm -f "$unsteady"
  # The time is a package's: with the race detector the longest takes three minutes on two idle cores, and seven on busy ones. Vet has
  # passed over them before. Many tests wait for servers, leases and failovers, so there are two packages to a core.
  # shellcheck disable=SC2086 # GOTESTFLAGS is a list of words, and $race may be none
  "$sum" --format pkgname --format-hide-empty-pkg --hide-summary=skipped --jsonfile "$json" \
    --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report "$unsteady" --packages "${packages[*]}" -- \
    $race -vet=off -p $((2 * $(getconf _NPROCESSORS_ONLN))) -timeout 30m ${GOTESTFLAGS:-} "${flags[@]}" | {
    passed=0
    while :; do
      rc=0
      IFS= read -r -t 15 line || rc=$?
      if [ "$rc" -gt 128 ]; then
        line=$(tests_running "$json")
        printf '[%s of %s, %ds] %s\n' "$passed" "$total" $((SECONDS - start)) "${line:+running: }${line:-compiling}"
        continue
      fi
      [ "$rc" = 0 ] || [ -n "$line" ] || break
      case $line in
      "✓"* | "✖"* | "∅"*) printf '[%s of %s, %ds] %s\n' $((++passed)) "$total" $((SECONDS - start)) "$line" ;;
      *) printf '%s\n' "$line" ;;
      esac
    done
  }
  [ ! -s "$unsteady" ] || { say "$name" "unsteady tests: each failed, and passed when it ran again by itself; what it said at first is above" && cat "$unsteady"; }
}
