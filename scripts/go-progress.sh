#!/usr/bin/env bash
# Run `go build` or `go vet`, and say every ten seconds how far it is, since the go command says nothing for minutes.
#
#   scripts/go-progress.sh build -trimpath -o bin/kvatlas ./cmd/kvatlas
#   scripts/go-progress.sh vet -race ./...
#   scripts/go-progress.sh parts -race ./...      go build of all that these packages are built from and that is not linked
#                                                 with the tokenizer library: what can be compiled before it is there
#
# What is compiled already is not compiled again, so that the number of packages is one that is not passed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/need.sh
. "$here/need.sh"

command=$1
shift
need_go "$command"
packages=()
for arg; do case $arg in ./*) packages+=("$arg") ;; esac; done
say "go $command" "reading what ${packages[*]} is built from"
flags=("$@") parts=()
case $command in
parts)
  command=build
  for i in "${!flags[@]}"; do case ${flags[i]} in ./*) unset "flags[i]" ;; esac; done
  while IFS= read -r line; do parts+=("$line"); done < <(go list -deps -f '{{if ne .Name "main"}}{{.ImportPath}}{{range .Deps}} {{.}}{{end}}{{end}}' "${packages[@]}" |
    grep -v -e github.com/daulet/tokenizers -e tokenpool/internal/link -e '^$' | cut -d' ' -f1)
  flags+=("${parts[@]}")
  total=${#parts[@]} ;;
vet) total=$(go list -deps -test "${packages[@]}" | sed 's/ .*//' | sort -u | grep -c .) ;;
*) total=$(go list -deps "${packages[@]}" | grep -c .) ;;
esac
# The go command names a program as it begins to compile it, and nothing as it links it, which takes longer.
program=''
[ ${#parts[@]} -gt 0 ] || [ "$command" != build ] || program=$(go list -f '{{if eq .Name "main"}}{{.ImportPath}}{{end}}' "${packages[@]}")
start=$SECONDS compiled=0 modules=0 current='' told=$SECONDS

tell() {
  told=$SECONDS
  say "go $command" "[$(printf %3d $((SECONDS - start)))s] $compiled of at most $total packages compiled${current:+, now $current}"
}

# A read that times out keeps nothing of a line: the go command writes whole ones.
go "$command" -v "${flags[@]}" 2>&1 | {
  while :; do
    rc=0
    IFS= read -r -t 5 line || rc=$?
    if [ "$rc" -gt 128 ]; then line=''; elif [ "$rc" != 0 ]; then break; fi
    case $line in
    '') ;;
    'go: downloading '*) modules=$((modules + 1)) current="downloading module $modules, ${line#go: downloading }" ;;
    *[\ :]*) printf '%s\n' "$line" ;;
    *)
      compiled=$((compiled + 1)) current=$line
      [ "$line" != "$program" ] || current="linking $line" ;;
    esac
    [ $((SECONDS - told)) -lt 10 ] || tell
  done
  current=''
  tell
}
