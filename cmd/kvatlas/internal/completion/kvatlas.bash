# Completes commands, flags and values of kvatlas in bash: source <(kvatlas completion bash)

_kvatlas() {
  local line=${COMP_LINE:0:COMP_POINT} last=${COMP_WORDS[COMP_CWORD]} words current word about
  COMPREPLY=()
  # Split at blanks alone: bash itself splits --flag=value and host:port as well.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  current=${words[${#words[@]} - 1]}
  # Of the word bash puts in only what stands behind its last = or colon.
  [[ $last == [=:] || $last == "=:" ]] && last=""
  local before=${current%"$last"}
  while IFS=$'\t' read -r word about; do
    if [[ $word == :files ]]; then
      compopt -o default 2>/dev/null
      return
    fi
    COMPREPLY+=("${word#"$before"}")
  done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
}

complete -F _kvatlas kvatlas
