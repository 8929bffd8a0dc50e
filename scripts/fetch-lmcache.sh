#!/usr/bin/env bash
# Prepare what the tests need of real LMCache. That is a Python environment, and the Python files of three of its
# releases, taken unchanged from the packages they are released in.
#
#   scripts/fetch-lmcache.sh [DIR]
#
# DIR is .cache/lmcache of this checkout unless given: DIR/venv, DIR/lmcache-<version>/, DIR/native/ and DIR/torch/. The packages (3, 4 and 17 MB)
# have pinned sums; what is of Debian comes by apt-get. What is there and right is left alone. Takes about a minute and a half, and 0.7 GB of disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=lmcache
dir=${1:-$root/.cache/lmcache}

# What LMCache's controller client and cache events import and use; internal/lmcachetest stands in for the rest.
readonly requirements="pyzmq==27.3.0 msgspec==0.22.0 pydantic==2.14.4 pyyaml==6.0.4 httpx==0.28.1 prometheus_client==0.26.0 cachetools==8.0.2 sortedcontainers==2.4.0 redis==8.1.0 blake3==1.0.9 numpy==1.26.4 psutil==7.2.2 opentelemetry-sdk==1.45.2 opentelemetry-exporter-prometheus==0.66b2"

# VERSION SHA256 a line. They are the first whose workers talk to a controller, the last with a lookup server in
# Redis, and the last that was measured.
readonly releases="
0.3.1 748d684e2fb1c43180cbebdb490ae57a040d181f8584af032d8dd93f99c4d890
0.3.6 673bc51a1eeb1301133d213a74a7dff92be6e2da9481631bb2838fa044e86c69
0.5.6 14530ff72b96056e894c9b8dc70c10d019e7802799bbfde9cec298700b799194"

need_tool "$name" python3 python3 "LMCache is Python"
need_cxx "$name"
mkdir -p "$dir"
# LMCache's native modules are for this one.
base=$(command -v python3.11 || command -v python3)

stamp=$dir/venv/requirements
if [ "$(cat "$stamp" 2>/dev/null)" != "$requirements" ]; then
  say "$name" "Python environment"
  rm -rf "$dir/venv"
  "$base" -m venv "$dir/venv" || {
    need_tool "$name" python3-venv python3-venv "it makes Python environments" || true
    can_apt && apt_install "$name" python3-venv && "$base" -m venv "$dir/venv"
  }
  # shellcheck disable=SC2086 # a list of words
  beat "$name" "still installing" "$dir/venv/bin/python" -m pip install -q --disable-pip-version-check $requirements
  printf '%s\n' "$requirements" >"$stamp"
fi
python=$dir/venv/bin/python

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# fetch VERSION SHA256. The wheel is one for a Python that need not be ours: only its Python files and two native
# modules are used.
fetch() {
  local to=$dir/lmcache-$1 wheel got
  if [ "$(cat "$to/sha256" 2>/dev/null)" = "$2 and native" ]; then
    return
  fi
  say "$name" "fetching LMCache $1"
  beat "$name" "still fetching LMCache $1" "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 --implementation cp --abi cp311 \
    --platform manylinux_2_28_x86_64 -d "$tmp" "lmcache==$1"
  wheel=$(find "$tmp" -name "lmcache-$1-*.whl")
  got=$(sha256 "$wheel")
  [ "$got" = "$2" ] || die "$name" "LMCache $1 has sha256 $got, pinned is $2: refused"
  rm -rf "$to"
  mkdir -p "$to"
  "$python" - "$wheel" "$to" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    z.extractall(sys.argv[2], [n for n in z.namelist() if n.startswith("lmcache/") and (n.endswith((".py", ".pyi")) or n.startswith(("lmcache/lmcache_native.", "lmcache/lmcache_redis.")))])
END
  printf '%s\n' "$2 and native" >"$to/sha256"
}

while read -r version sum; do
  [ -z "$version" ] || fetch "$version" "$sum"
done <<<"$releases"
# What LMCache's native modules are linked with, and need nothing of. Without the one Python that they are made for a
# file says why the tests of them are skipped, which fails in CI.
rm -rf "$dir/native"
mkdir -p "$dir/native"
have=$("$python" -c 'import platform, sys; print(platform.system(), platform.machine(), "Python %d.%d" % sys.version_info[:2])')
if [ "$have" = "Linux x86_64 Python 3.11" ]; then
  cc -shared -fPIC -O1 -o "$dir/native/libc10.so" -Wl,-soname,libc10.so "$root/internal/lmcachetest/testdata/torch.c"
  for lib in libtorch libtorch_cpu libtorch_python; do
    cc -shared -o "$dir/native/$lib.so" -Wl,-soname,$lib.so -x c /dev/null
  done
else
  echo "they are for Linux x86_64 Python 3.11, this is $have" >"$dir/native/without"
fi
# Debian's torch for the CPU, unpacked beside the system, for the whole engine. 150 MB, in 170 packages.
torch() {
  local to=$dir/torch p src
  [ ! -e "$to/python/torch/__init__.py" ] || return 0
  rm -rf "$to"
  mkdir -p "$to/debs/partial" "$to/root" "$to/python"
  if [ -e "$dir/native/without" ]; then
    cp "$dir/native/without" "$to/without"
    return
  fi
  if ! can_apt; then
    echo "Debian's torch comes by apt-get, which is not there or needs root" >"$to/without"
    return
  fi
  say "$name" "fetching Debian's torch (150 MB)"
  download() { as_root apt-get install -y -q --no-install-recommends --download-only -o "Dir::Cache::archives=$to/debs" python3-torch >"$to/log" 2>&1; }
  if ! beat "$name" "still fetching torch" download && ! { as_root apt-get update -q >>"$to/log" 2>&1 && beat "$name" "still fetching torch" download; }; then
    tail -n 5 "$to/log" >&2
    die "$name" "apt-get could not fetch python3-torch"
  fi
  for p in "$to"/debs/*.deb; do
    case ${p##*/} in
    libtorch-test_* | *-data_* | python3-hypothesis_*) ;;
    *) dpkg -x "$p" "$to/root" ;;
    esac
  done
  rm -rf "$to/debs"
  for p in torch torchgen functorch; do
    src=$to/root/usr/lib/python3/dist-packages/$p
    [ -e "$src" ] || src=/usr/lib/python3/dist-packages/$p
    ln -s "$src" "$to/python/$p"
  done
}
torch
say "$name" "$dir is complete"
