# shellcheck shell=bash
# Functions for the scripts beside this file: messages, and tools that may have to be
# installed first. To be sourced by bash.

# say NAME TEXT...: one line about what a script is doing, on stderr.
say() { local name=$1; shift; printf '%s: %s\n' "$name" "$*" >&2; }

# die NAME TEXT...: say it and end with status 1.
die() { say "$1" "error: ${*:2}"; exit 1; }

# sha256 FILE: its sum alone (sha256sum on Linux, shasum on macOS).
sha256() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}

# as_root COMMAND...: run it as root; status 1 when we may not.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 1; fi
}

# can_apt: Debian's package manager is there and we may use it.
can_apt() { command -v apt-get >/dev/null && as_root true; }

# apt_install NAME PACKAGE...: install Debian packages. The lists are refreshed
# only when the first try fails, since they mostly are fresh or the packages cached.
apt_install() {
  local name=$1 log; shift
  log=$(mktemp)
  say "$name" "installing Debian packages: $*"
  if beat "$name" "still installing $*" quietly "$log" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" ||
    { say "$name" "refreshing the package lists first"
      beat "$name" "still refreshing" quietly "$log" as_root apt-get update -q &&
        beat "$name" "still installing $*" quietly "$log" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; }; then
    rm -f "$log"; hash -r
  else
    tail -n 15 "$log" >&2; rm -f "$log"
    say "$name" "apt-get could not install: $*"
    return 1
  fi
}

# need_tool NAME COMMAND PACKAGE WHY: COMMAND must be there; install Debian's PACKAGE
# when it is not, or say what to do.
need_tool() {
  local name=$1 cmd=$2 pkg=$3 why=$4
  command -v "$cmd" >/dev/null && return 0
  say "$name" "$cmd is missing: $why"
  if can_apt && apt_install "$name" "$pkg" && command -v "$cmd" >/dev/null; then return 0; fi
  die "$name" "please install $cmd (Debian: apt-get install $pkg), then run this again"
}

# version_at_least HAVE WANT: dotted numbers.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# need_go NAME: a Go toolchain as new as go.mod asks for. Go fetches a newer toolchain
# itself unless GOTOOLCHAIN=local, in which case it says so; only its absence is ours.
need_go() {
  command -v go >/dev/null && return 0
  [ -x /usr/local/go/bin/go ] && { PATH=$PATH:/usr/local/go/bin; export PATH; return 0; }
  die "$1" "go is missing: install Go 1.26 or newer (https://go.dev/dl/) and put it on PATH"
}

# need_cxx NAME: the C and C++ compilers that cgo and two of the crates need.
need_cxx() {
  need_tool "$1" cc build-essential "cgo compiles with it"
  need_tool "$1" c++ g++ "the tokenizer library holds C++ and links libstdc++"
}

# cargo_version: prints it; empty when there is none.
cargo_version() { { cargo --version 2>/dev/null || true; } | awk '{ print $2 }'; }

# need_cargo NAME: cargo new enough (Cargo.lock is of format 4), from PATH, from rustup's folder, or else Debian's.
need_cargo() {
  local name=$1 min_cargo=1.78 have pkg cand refreshed
  have=$(cargo_version)
  if [ -z "$have" ] && [ -x "${HOME:-/nonexistent}/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH; export PATH
    have=$(cargo_version)
  fi
  if [ -n "$have" ] && version_at_least "$have" "$min_cargo"; then say "$name" "cargo $have"; return 0; fi
  say "$name" "cargo >= $min_cargo is needed, ${have:-none} is here"
  if can_apt; then
    # Debian 12 has an old `cargo` and a newer `cargo-web`; later ones have a new `cargo`.
    for pkg in cargo-web cargo; do
      cand=$(apt-cache policy "$pkg" 2>/dev/null | awk '/Candidate:/ { print $2 }')
      if [ -z "$cand" ] || [ "$cand" = "(none)" ]; then
        [ -n "${refreshed:-}" ] || { say "$name" "refreshing Debian's package lists"; as_root apt-get update -q >/dev/null 2>&1 || true; refreshed=1; }
        cand=$(apt-cache policy "$pkg" 2>/dev/null | awk '/Candidate:/ { print $2 }')
      fi
      case $cand in '' | '(none)') continue ;; esac
      version_at_least "${cand%%[+~-]*}" "$min_cargo" || continue
      apt_install "$name" "$pkg" || continue
      # Debian's may stand behind an older one on PATH.
      PATH=/usr/bin:$PATH; export PATH
      hash -r
      have=$(cargo_version)
      [ -n "$have" ] && version_at_least "$have" "$min_cargo" && { say "$name" "cargo $have from Debian's $pkg"; return 0; }
    done
  fi
  die "$name" "please install cargo >= $min_cargo: rustup (https://rustup.rs), or on Debian 12 'apt-get install cargo-web', on Debian 13 'apt-get install cargo'; then run this again"
}

# quietly FILE COMMAND...: run it; FILE has what it says.
quietly() {
  local file=$1
  shift
  "$@" >"$file" 2>&1
}

# beat NAME TEXT COMMAND...: run a program that says nothing, with a line every 15 s.
beat() {
  local name=$1 text=$2 start=$SECONDS rc=0 pid
  shift 2
  # In steps of a second, so that no sleep outlives it; it ends with the script, too.
  (
    n=0
    while sleep 1 && kill -0 $$ 2>/dev/null; do
      n=$((n + 1))
      [ $((n % 15)) != 0 ] || say "$name" "[$(printf %3d $((SECONDS - start)))s] $text"
    done
  ) &
  pid=$!
  "$@" || rc=$?
  # Not TERM: one that comes before the subshell has begun makes it run the script's EXIT trap.
  kill -KILL "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
  return "$rc"
}
