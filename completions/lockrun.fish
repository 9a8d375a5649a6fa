# Completion of lockrun in fish. lockrun itself says what fits; COMMAND is completed as it is without lockrun.

function __lockrun_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    # Without its quoting, of which the end may not be typed yet.
    set -l plain (string unescape -- "$typed"; or string unescape -- "$typed'"; or string unescape -- "$typed\"")
    set -l reply ($words[1] complete $words[2..] "$plain" 2>/dev/null)
    switch "$reply[1]"
        case 'command *'
            set -l at (math (string replace 'command ' '' -- $reply[1]) + 1)
            complete -C (string join ' ' -- (string escape -- $words[$at..]) $typed)
        case file
            set -l tie (string match -r -- '^--[^=]*=' $typed)
            for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' $typed))
                echo "$tie$path"
            end
        case words
            printf '%s\n' $reply[2..]
    end
end

complete -c lockrun -f -a '(__lockrun_complete)'
