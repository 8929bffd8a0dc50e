#!/usr/bin/env bash
# Prepare .cache/venv-NAME: a Python with the packages of a requirements file, for tests that run Python.
#
#   scripts/venv.sh writers examples/writers/python/requirements.txt
#   scripts/venv.sh clients clients/python/requirements-test.txt
#
# One that is there with the same versions is left alone.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$(dirname "$here")"
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=$1
requirements=$2
venv=.cache/venv-$name

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$venv/requirements.txt"; then
  say "$name" "$venv is up to date"
  exit 0
fi
need_tool "$name" python3 python3 "what is written in Python is tested against a real server"
# Debian has the half of venv that installs pip in a package of its own.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  { can_apt && apt_install "$name" python3-venv && python3 -c 'import ensurepip, venv'; } ||
    die "$name" "please install Python's venv (Debian: apt-get install python3-venv), then run this again"
fi
rm -rf "$venv"
python3 -m venv "$venv"
beat "$name" "still installing" "$venv/bin/pip" install -q --disable-pip-version-check -r "$requirements" ||
  die "$name" "pip could not install $(tr '\n' ' ' <"$requirements"): is the package index reachable?"
cp "$requirements" "$venv/requirements.txt"
say "$name" "$venv has $(tr '\n' ' ' <"$requirements")"
