#!/usr/bin/env bash
# Prepare what the tests need of real engines. That is a Python environment with libzmq, and the modules by which
# vLLM and SGLang cache and publish their events. These are taken unchanged from the packages they are released in.
#
#   scripts/fetch-engines.sh [DIR]
#
# DIR is .cache/engines of this checkout unless given: DIR/venv, DIR/vllm-<version>/, DIR/sglang-<version>/.
# Of each package (about 30 MB a vLLM, 10 MB an SGLang) the files are kept whose sha256 is pinned in engines.sha256.
# The rest is thrown away. What is there and right is left alone. Takes about a minute, two at a time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=engines
dir=${1:-$root/.cache/engines}

# The environment: the engines' publishers import these. pyzmq brings libzmq 4.3.5 with CURVE along.
readonly requirements="pyzmq==27.3.0 msgspec==0.22.0 pydantic==2.14.4"

engines=$(grep -v '^#' "$here/engines.sha256")

need_tool "$name" python3 python3 "the engines' publishers are Python"
mkdir -p "$dir"

stamp=$dir/venv/requirements
if [ "$(cat "$stamp" 2>/dev/null)" != "$requirements" ]; then
  say "$name" "Python environment with $requirements"
  rm -rf "$dir/venv"
  python3 -m venv "$dir/venv" || {
    need_tool "$name" python3-venv python3-venv "it makes Python environments" || true
    can_apt && apt_install "$name" python3-venv && python3 -m venv "$dir/venv"
  }
  # shellcheck disable=SC2086 # a list of words
  beat "$name" "still installing" "$dir/venv/bin/python" -m pip install -q --disable-pip-version-check $requirements
  printf '%s\n' "$requirements" >"$stamp"
fi
python=$dir/venv/bin/python

# fetch PACKAGE VERSION: the whole package below $tmp/PACKAGE-VERSION/.
fetch() {
  local package=$1 version=$2 to=$tmp/$1-$2
  mkdir -p "$to"
  case $package in
    vllm)
      # A wheel is 400 MB of kernels. Only the tree is wanted: after unpacking the source pip wants to know its
      # dependencies, which fails for lack of torch.
      TMPDIR=$to "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary vllm \
        --no-build-isolation --no-clean -d "$to/dl" "vllm==$version" >"$to/log" 2>&1 || true
      local tree
      tree=$(find "$to" -maxdepth 3 -type d -path '*/pip-*/vllm*' | head -n 1)
      [ -n "$tree" ] || { tail -n 5 "$to/log" >&2; return 1; }
      mv "$tree" "$to/tree" ;;
    *)
      "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$to" "$package==$version"
      "$python" -m zipfile -e "$to/$package"-*.whl "$to/tree" ;;
  esac
}

# place PACKAGE VERSION FILE SHA256
place() {
  local file=$tmp/$1-$2/tree/$3 got
  [ -f "$file" ] || die "$name" "$1 $2 has no $3"
  got=$(sha256 "$file")
  [ "$got" = "$4" ] || die "$name" "$1 $2: $3 has sha256 $got, pinned is $4: refused"
  mkdir -p "$(dirname "$dir/$1-$2/$3")"
  mv "$file" "$dir/$1-$2/$3"
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

missing=()
while read -r package version file sum; do
  [ -n "$package" ] || continue
  path=$dir/$package-$version/$file
  [ -f "$path" ] && [ "$(sha256 "$path")" = "$sum" ] && continue
  case " ${missing[*]-} " in *" $package=$version "*) ;; *) missing+=("$package=$version") ;; esac
done <<<"$engines"

asked=0
for ((i = 0; i < ${#missing[@]}; i += 2)); do
  pids=()
  for which in "${missing[@]:i:2}"; do
    say "$name" "fetching $which ($((++asked)) of ${#missing[@]})"
    fetch "${which%=*}" "${which#*=}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do beat "$name" "still fetching ${missing[*]:i:2}" wait "$pid" || die "$name" "a package could not be fetched"; done
  while read -r package version file sum; do
    case " ${missing[*]:i:2} " in *" $package=$version "*) place "$package" "$version" "$file" "$sum" ;; esac
  done <<<"$engines"
done
say "$name" "$dir is complete"
