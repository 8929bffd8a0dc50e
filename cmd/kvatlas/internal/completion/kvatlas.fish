# Completes commands, flags and values of kvatlas in fish: kvatlas completion fish | source

function __kvatlas_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if string match -q ':files*' -- $found[1]
        # Behind --flag= the file's name begins there.
        set -l before (string match -r '^--[^=]*=' -- "$current")
        for path in (__fish_complete_path (string replace -- "$before" '' "$current"))
            printf '%s%s\n' "$before" $path
        end
        return
    end
    printf '%s\n' $found
end

complete -c kvatlas -f -a '(__kvatlas_complete)'
