#!/usr/bin/env bash
# Put libtokenizers.a, which github.com/daulet/tokenizers links with, into lib/.
#
#   scripts/build-libtokenizers.sh            nothing if lib/ is up to date; else from the cache, else
#                                             a released archive, else built from source
#   scripts/build-libtokenizers.sh --beside COMMAND...
#                                             the same; COMMAND runs beside a build from source, whose second half
#                                             keeps one core busy and no more
#   scripts/build-libtokenizers.sh --relock   resolve rust/Cargo.lock anew (see rust/README.md)
#
# The version is the one in go.mod. "Up to date" means that the library was made for that version and
# platform from the very rust/ folder of this checkout. Its bytes are those written then.
#
# A released archive is used only if its sum stands in scripts/libtokenizers.sha256 and the network gives
# it. And rust/ may hold no module of our own to compile in.
#
# GOARCH=arm64 in the environment, on another machine, builds for that: lib/linux-arm64/libtokenizers.a,
# with rustup's target and Debian's cross compilers (scripts/dist.sh links with it).
#
# Environment:
#   TOKENIZERS_PREBUILT      auto (default) | never | only: whether to try the released archive
#   TOKENIZERS_PREBUILT_URL  where to get it, instead of the project's releases
#   KVATLAS_CACHE            where built libraries are kept for other checkouts
#                            (default ~/.cache/kvatlas, by XDG_CACHE_HOME; "off" keeps none)
#   CARGO_BUILD_JOBS         crates compiled at once (cargo's own; default: all cores)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=libtokenizers
readonly module=github.com/daulet/tokenizers
# Raise it when a change in this file changes the library that it builds.
readonly recipe=1
readonly go_stamp=$root/tokenpool/internal/link/zz_stamp.go
start=$SECONDS
tmp='' besides=() beside=''

# set_places: out is the library, stamp says what it was made of, work is for cargo. The name triple is
# Rust's of another platform than this machine's, and empty for its own.
set_places() {
  local dir=$root/lib
  triple='' work=$root/.cache/libtokenizers
  if [ "$platform" != "$(go env GOHOSTOS)-$(go env GOHOSTARCH)" ]; then
    case $platform in
      linux-arm64) triple=aarch64-unknown-linux-gnu gnu=aarch64-linux-gnu ;;
      linux-amd64) triple=x86_64-unknown-linux-gnu gnu=x86-64-linux-gnu ;;
      *) die "$name" "this script cannot build for $platform on another machine" ;;
    esac
    dir=$root/lib/$platform work=$root/.cache/libtokenizers-$platform
  fi
  out=$dir/libtokenizers.a stamp=$dir/libtokenizers.stamp
}

# need_cross: what compiles for triple.
need_cross() {
  local cc=${gnu/x86-64/x86_64}-gcc
  need_tool "$name" "$cc" "gcc-$gnu" "C of the crates is compiled for $platform with it"
  need_tool "$name" "${cc%gcc}g++" "g++-$gnu" "C++ of the crates is compiled for $platform with it"
  rustup target list --installed 2>/dev/null | grep -qx "$triple" || {
    log "adding rustup's target $triple"
    rustup target add "$triple" >&2 || die "$name" "Rust's standard library for $triple is missing: rustup target add $triple"
  }
  local var=${triple//-/_}
  export "CC_$var=$cc" "CXX_$var=${cc%gcc}g++" "AR_$var=${cc%gcc}ar" "CARGO_TARGET_$(echo "$var" | tr a-z A-Z)_LINKER=$cc"
}

log() { printf '%s: [%3ds] %s\n' "$name" $((SECONDS - start)) "$*" >&2; }
cleanup() {
  [ -z "$beside" ] || kill "$beside" 2>/dev/null || true
  [ -z "$tmp" ] || rm -rf "$tmp"
}
trap cleanup EXIT

# --- what is wanted ---------------------------------------------------------------------------------

# own_modules: the names of the Rust modules in rust/ that are compiled in.
own_modules() {
  local f
  for f in "$root"/rust/*.rs; do [ -e "$f" ] && basename "$f" .rs; done
  return 0
}

# input_key: names everything that shapes the library. The compiler's version is left out on purpose. A
# new compiler makes a library that does the same, and need not cost every checkout two minutes.
input_key() {
  {
    echo "$recipe $version $platform"
    cat "$root/rust/Cargo.toml" "$root/rust/Cargo.lock"
    local f
    for f in "$root"/rust/*.rs; do [ -e "$f" ] && { basename "$f"; cat "$f"; }; done
  } >"$tmp/inputs"
  sha256 "$tmp/inputs" | cut -c1-20
}

# --- putting a library in place ---------------------------------------------------------------------

# has_symbol FILE SYMBOL: FILE defines the function. (No `nm | grep -q`: grep's early exit would fail
# nm under pipefail.)
has_symbol() {
  local found
  found=$(nm -g --defined-only "$1" 2>/dev/null | awk -v s="$2" '$2 == "T" && ($3 == s || $3 == "_" s) { print "yes" }')
  [ -n "$found" ]
}

# write_go_stamp SUM: see tokenpool/internal/link/link.go. Left alone when right, so as to rebuild nothing.
write_go_stamp() {
  local text
  [ -z "$triple" ] || return 0 # the go command builds for this machine
  text=$(printf '// Code generated by scripts/build-libtokenizers.sh; DO NOT EDIT.\n\npackage link\n\n// LibSum is the sha256 of the library that lib/ held when this was written.\nconst LibSum = "%s"' "$1")
  [ "$(cat "$go_stamp" 2>/dev/null)" = "$text" ] && return 0
  printf '%s\n' "$text" >"$go_stamp.tmp" && mv "$go_stamp.tmp" "$go_stamp"
}

# install FILE ORIGIN: put FILE into lib/, each file whole or not at all, stamp last.
install_library() {
  local file=$1 origin=$2 sum
  has_symbol "$file" "$want" || { log "$origin: it lacks $want, so it is not the library of $version"; return 1; }
  sum=$(sha256 "$file")
  mkdir -p "$(dirname "$out")"
  cp "$file" "$out.tmp" && mv "$out.tmp" "$out"
  write_go_stamp "$sum"
  echo "$key $sum $version $origin" >"$stamp.tmp" && mv "$stamp.tmp" "$stamp"
  log "${out#"$root/"} is ready: $version, $(($(wc -c <"$out") / 1048576)) MiB, $origin"
}

up_to_date() {
  local have_key have_sum
  [ -f "$out" ] && [ -f "$stamp" ] || return 1
  read -r have_key have_sum _ <"$stamp"
  [ "$have_key" = "$key" ] && [ "$(sha256 "$out")" = "$have_sum" ] || return 1
  write_go_stamp "$have_sum"
}

# --- the three sources ------------------------------------------------------------------------------

cache_dir() {
  case ${KVATLAS_CACHE:-} in
    off) return 1 ;;
    '') [ -n "${XDG_CACHE_HOME:-${HOME:-}}" ] || return 1
        echo "${XDG_CACHE_HOME:-$HOME/.cache}/kvatlas/libtokenizers" ;;
    *) echo "$KVATLAS_CACHE/libtokenizers" ;;
  esac
}

from_cache() {
  local dir file
  dir=$(cache_dir) || return 1
  file=$dir/$version-$platform-$key.a
  [ -f "$file" ] && [ -f "$file.sha256" ] || return 1
  if [ "$(sha256 "$file")" != "$(cat "$file.sha256")" ]; then
    log "the cached $file is damaged; ignored"
    return 1
  fi
  install_library "$file" "from the cache $dir"
}

to_cache() {
  local dir file
  dir=$(cache_dir) || return 0
  file=$dir/$version-$platform-$key.a
  if mkdir -p "$dir" 2>/dev/null && cp "$out" "$file.$$" 2>/dev/null && sha256 "$out" >"$file.sha256"; then
    mv "$file.$$" "$file"
    # The newest four stay, so that the folder does not grow with every change of rust/.
    find "$dir" -name '*.a' -type f -exec ls -t {} + | tail -n +5 | while read -r file; do rm -f "$file" "$file.sha256"; done
  else
    rm -f "$file.$$"
    log "$dir cannot be written: the library is not kept for other checkouts"
  fi
}

from_release() {
  local sum url got modules
  [ "${TOKENIZERS_PREBUILT:-auto}" != never ] || return 1
  modules=$(own_modules | tr '\n' ' ')
  if [ -n "$modules" ]; then log "not using a released archive: rust/ compiles in $modules"; return 1; fi
  sum=$(awk -v v="$version" -v p="$platform" '$1 == v && $2 == p { print $3 }' "$here/libtokenizers.sha256")
  if [ -z "$sum" ]; then log "no released archive: scripts/libtokenizers.sha256 has no sum for $version $platform"; return 1; fi
  url=${TOKENIZERS_PREBUILT_URL:-https://github.com/daulet/tokenizers/releases/download/$version/libtokenizers.$platform.tar.gz}
  command -v curl >/dev/null || { log "no released archive: curl is missing"; return 1; }
  log "downloading $url"
  if ! curl -fsSL --retry 1 --connect-timeout 5 --max-time 180 --max-filesize 200000000 -o "$tmp/release.tgz" "$url" 2>"$tmp/curl"; then
    log "no released archive: $(tail -n 1 "$tmp/curl")"
    return 1
  fi
  got=$(sha256 "$tmp/release.tgz")
  [ "$got" = "$sum" ] || die "$name" "$url has sha256 $got, scripts/libtokenizers.sha256 says $sum: refused"
  tar -xzf "$tmp/release.tgz" -C "$tmp" libtokenizers.a || return 1
  install_library "$tmp/libtokenizers.a" "released archive"
}

# lay_out_sources: the crate in $work/src: our manifest and lock file, the module's lib.rs, our modules.
lay_out_sources() {
  local src=$work/src made_for mod
  made_for=$(sed -n '/^\[package.metadata.go-module\]/,/^\[lib/s/^version = "\(.*\)"$/\1/p' "$root/rust/Cargo.toml")
  [ "$made_for" = "$version" ] ||
    die "$name" "rust/Cargo.toml is made for $module $made_for, go.mod asks for $version: see rust/README.md"
  rm -rf "$src" && mkdir -p "$src/src"
  cp "$root/rust/Cargo.toml" "$root/rust/Cargo.lock" "$src/"
  cp "$module_dir"/src/*.rs "$src/src/"
  chmod -R u+w "$src"
  for mod in $(own_modules); do
    cp "$root/rust/$mod.rs" "$src/src/"
    echo "pub mod $mod;" >>"$src/src/lib.rs"
  done
}

# progress TOTAL: cargo's messages on stdin; one line a crate, and a sign of life when a crate takes long. What
# is no progress (warnings, errors) passes through.
progress() {
  local total=$1 n=0 line current='' rc
  while :; do
    rc=0
    IFS= read -r -t 10 line || rc=$?
    if [ "$rc" -gt 128 ]; then # nothing for 10 s
      [ -z "$current" ] || log "still compiling $current$([ "$n" -lt "$total" ] || echo ', the last one: optimising the whole library')"
      continue
    fi
    [ "$rc" = 0 ] || [ -n "$line" ] || break
    case $line in
      *" Compiling "*)
        n=$((n + 1)) current=${line##* Compiling } current=${current%% (*}
        log "crate $n of $total: $current" ;;
      *Download* | *Updating* | *Locking* | *Finished* | *Blocking*) log "cargo:$(echo "$line" | tr -s ' ' | sed 's/^ *//; s/^/ /')" ;;
      *) printf '%s\n' "$line" >&2 ;;
    esac
  done
}

from_source() {
  need_cxx "$name"
  need_cargo "$name"
  local target=()
  if [ -n "$triple" ]; then need_cross; target=(--target "$triple"); fi
  lay_out_sources
  export CARGO_TARGET_DIR=$work/target CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
  cd "$work/src"
  log "fetching the crates that rust/Cargo.lock pins"
  cargo fetch --locked 2>&1 | while IFS= read -r line; do
    case $line in
      *" Downloaded "*) fetched=$((${fetched:-0} + 1)); [ $((fetched % 20)) != 0 ] || log "$fetched crates downloaded" ;;
      *Downloading* | *Updating* | *Blocking*) ;;
      *) printf '%s\n' "$line" >&2 ;;
    esac
  done
  local total
  total=$(cargo tree ${target[@]+"${target[@]}"} --locked --offline --edges normal,build --prefix none --no-dedupe 2>/dev/null | awk '{ print $1, $2 }' | sort -u | grep -c . || true)
  if [ ${#besides[@]} -gt 0 ]; then
    # At a lower priority than the library, which takes longer. It only fills the go command's cache, so it may fail:
    # whoever needs it says so.
    (cd "$root" && exec nice -n 15 "${besides[@]}") 9>&- &
    beside=$!
  fi
  log "building $version from source: $total crates, about 2 minutes on 2 cores"
  # nice, so that the machine stays usable; 2>&1 into progress, which gives errors through.
  nice -n 5 cargo build --release --lib --locked --offline ${target[@]+"${target[@]}"} 2>&1 | progress "$total"
  cd "$root"
  if [ -n "$beside" ]; then
    wait "$beside" || log "${besides[*]} failed"
    beside=''
  fi
  install_library "$work/target/${triple:+$triple/}release/libtokenizers.a" "built from source with $(rustc --version 2>/dev/null | awk '{ print $1, $2 }')"
}

relock() {
  need_cargo "$name"
  cp "$root/rust/Cargo.lock" "$tmp/old.lock"
  lay_out_sources
  (cd "$work/src" && cargo generate-lockfile)
  cp "$work/src/Cargo.lock" "$root/rust/Cargo.lock"
  log "rust/Cargo.lock is resolved anew: $(diff "$tmp/old.lock" "$root/rust/Cargo.lock" | grep -c '^[<>]' || true) lines changed"
}

# --- main -------------------------------------------------------------------------------------------
main() {
  tmp=$(mktemp -d)
  need_go "$name"
  cd "$root"
  version=$(go list -m -f '{{.Version}}' "$module") || die "$name" "go.mod does not name $module"
  platform=$(go env GOOS)-$(go env GOARCH)
  key=$(input_key)
  set_places
  # One at a time in a checkout: two would write into one target folder.
  mkdir -p "$work"
  if command -v flock >/dev/null; then
    exec 9>"$work/lock"
    flock -n 9 || { log "waiting for another build in this checkout"; flock 9; }
  fi

  if [ "${1:-}" != --relock ] && up_to_date; then
    log "${out#"$root/"} is up to date ($version)"
    return 0
  fi

  log "getting the sources of $module $version"
  go mod download "$module"
  module_dir=$(go list -m -f '{{.Dir}}' "$module")
  [ -d "$module_dir" ] || die "$name" "the go command gives no folder for $module $version"
  # The function that the Go side insists on at link time.
  want=$(grep -o 'extern void tokenizers_version_[0-9_]*' "$module_dir/tokenizer.go" | awk '{ print $3 }')
  [ -n "$want" ] || die "$name" "$module_dir/tokenizer.go names no tokenizers_version_ function: this script does not know $version"

  if [ "${1:-}" = --relock ]; then relock; return 0; fi
  need_tool "$name" nm binutils "libraries are checked with it"
  if from_cache; then return 0; fi
  if from_release; then to_cache; return 0; fi
  [ "${TOKENIZERS_PREBUILT:-auto}" != only ] || die "$name" "TOKENIZERS_PREBUILT=only, and there is no released archive"
  from_source
  to_cache
}

case ${1:-} in
  '' | --relock) main "$@" ;;
  --beside) besides=("${@:2}") && main ;;
  *) die "$name" "unknown argument $1 (only --beside and --relock are known)" ;;
esac
