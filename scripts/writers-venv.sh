#!/usr/bin/env bash
# Prepare .cache/venv-writers: a Python with what examples/writers/python needs, for the tests of examples/writers.
#
#   scripts/writers-venv.sh
#
# The versions are those of examples/writers/python/requirements.txt. One that is there with the same versions is
# left alone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$(dirname "$here")"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=writers
requirements=examples/writers/python/requirements.txt
venv=.cache/venv-writers

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$venv/requirements.txt"; then
  say "$name" "$venv is up to date"
  exit 0
fi
need_tool "$name" python3 python3 "the writer in Python is tested against a real server"
# Debian has the half of venv that installs pip in a package of its own.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  { can_apt && apt_install "$name" python3-venv && python3 -c 'import ensurepip, venv'; } ||
    die "$name" "please install Python's venv (Debian: apt-get install python3-venv), then run this again"
fi
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r "$requirements" ||
  die "$name" "pip could not install $(tr '\n' ' ' <"$requirements"): is the package index reachable?"
cp "$requirements" "$venv/requirements.txt"
"$venv/bin/python" -c 'import redis, xxhash; print("writers: redis-py", redis.__version__, "and xxhash", xxhash.VERSION)' >&2
