#compdef kvatlas
# Completes commands, flags and values of kvatlas in zsh: source <(kvatlas completion zsh)

_kvatlas() {
  local line word about
  local -a found
  while IFS=$'\t' read -r word about; do
    if [[ $word == :files ]]; then
      # Behind --flag= the file's name begins there.
      compset -P '--*='
      _files
      return
    fi
    found+=("${word//:/\\:}${about:+:$about}")
  done < <("${(Q)words[1]/#\~/$HOME}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)
  _describe kvatlas found
}

if [[ ${funcstack[1]} == _kvatlas ]]; then
  _kvatlas "$@"
else
  compdef _kvatlas kvatlas
fi
