#!/usr/bin/env bash
# Prepare what the tests of ingest need of real engines: a Python environment with libzmq, and the modules by
# which vLLM and SGLang publish their events, taken unchanged from the packages they are released in.
#
#   scripts/fetch-engines.sh [DIR]
#
# DIR is .cache/engines of this checkout unless given: DIR/venv, DIR/vllm-<version>/, DIR/sglang-<version>/.
# Of each package (about 30 MB a vLLM, 10 MB an SGLang) one file is kept, whose sha256 is pinned below, and the
# rest is thrown away. What is there and right is left alone. Takes about a minute, two at a time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=engines
dir=${1:-$root/.cache/engines}

# The environment: the engines' publishers import these. pyzmq brings libzmq 4.3.5 with CURVE along.
readonly requirements="pyzmq==27.3.0 msgspec==0.22.0 pydantic==2.14.4"

# PACKAGE VERSION FILE SHA256 a line. Each version is the first, or one of the last, of a form of events:
# docs/ingest.md.
readonly engines="
vllm 0.9.0 vllm/distributed/kv_events.py 10aad89d1326f77f6e993fbb232e6face4ef8ae1199aab01997e0a2922b88ac8
vllm 0.11.0 vllm/distributed/kv_events.py 232ccb502d7c8ed3b6e55b7dc0dd6d82b4c6baa8637e10862b71d260dc8f04f2
vllm 0.22.0 vllm/distributed/kv_events.py 84dce79a7690dba87f1a7f408bf2daa619715f422c0ddfab9f97ec0c74c547c8
vllm 0.24.0 vllm/distributed/kv_events.py f566d4756ab562f7851806a1471f9a580682d6a6b2637d6a2e99580e5fa42756
vllm 0.33.0 vllm/distributed/kv_events.py 82b362a0a7f89318d9127addfce254d537f5078a31aa87beb08493b0953895ee
sglang 0.5.16 sglang/srt/disaggregation/kv_events.py 9d5b85785d3004fcef68ef1902c104add67e779a3776285287c8bb51f5e4c9ff
sglang 0.5.23 sglang/srt/disaggregation/kv_events.py ef80e7165b11280d30bc07a9e3c04de5057ee45e9c94503a3ac432b009a0e421
sglang 0.5.23 sglang/srt/utils/network.py da99abe51a3a18a3ee5ccb7ef1b60cd134c7b0f0f18c94927175ec2f8f102db7"

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
  "$dir/venv/bin/python" -m pip install -q --disable-pip-version-check $requirements
  printf '%s\n' "$requirements" >"$stamp"
fi
python=$dir/venv/bin/python

# fetch PACKAGE VERSION: the whole package below $tmp/PACKAGE-VERSION/.
fetch() {
  local package=$1 version=$2 to=$tmp/$1-$2
  mkdir -p "$to"
  case $package in
    vllm)
      # A wheel is 400 MB of kernels. pip wants to know the source's dependencies, which fails for lack of
      # torch after it has unpacked it, and the tree is all that is wanted.
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
  say "$name" "    $1 $2: $3"
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

for ((i = 0; i < ${#missing[@]}; i += 2)); do
  pids=()
  for which in "${missing[@]:i:2}"; do
    say "$name" "fetching $which"
    fetch "${which%=*}" "${which#*=}" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || die "$name" "a package could not be fetched"; done
  while read -r package version file sum; do
    case " ${missing[*]:i:2} " in *" $package=$version "*) place "$package" "$version" "$file" "$sum" ;; esac
  done <<<"$engines"
done
say "$name" "$dir is complete"
