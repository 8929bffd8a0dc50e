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
  if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1 ||
    { say "$name" "refreshing the package lists first"
      as_root apt-get update -q >"$log" 2>&1 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >>"$log" 2>&1; }; then
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
