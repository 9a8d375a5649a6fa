# Completion of lockrun in bash. lockrun itself says what fits; COMMAND is completed as it is without lockrun.

_lockrun() {
    local rest=${COMP_LINE:0:COMP_POINT} stripped word i
    local -a words=() places=() reply=()
    COMPREPLY=()
    # The words up to the cursor. bash also breaks them at : and =, where no blank stands.
    for (( i = 0; i <= COMP_CWORD; i++ )); do
        stripped=${rest#"${rest%%[![:space:]]*}"}
        word=${COMP_WORDS[i]}
        (( i < COMP_CWORD )) || word=$stripped
        if [[ $stripped != "$rest" || $i -eq 0 ]]; then
            words+=("$word")
            places+=("$i")
        else
            words[${#words[@]}-1]+=$word
        fi
        rest=${stripped#"$word"}
    done
    local typed=${words[${#words[@]}-1]} quote= part at
    # What bash replaces begins behind an open quote, or else behind the last : or = that is not escaped.
    if [[ $typed =~ ^[^\'\"]*([\'\"])([^\'\"]*)$ ]]; then
        quote=${BASH_REMATCH[1]}
        part=${BASH_REMATCH[2]}
    elif [[ $typed == *[\'\"]* ]]; then
        return
    else
        part=${typed//\\?/__}
        part=${part##*[:=]}
        part=${typed:${#typed} - ${#part}}
    fi
    # lockrun is given the words without their quoting.
    words=("${words[@]//[\'\"\\]/}")
    typed=${words[${#words[@]}-1]}
    part=${part//\\/}
    mapfile -t reply < <("$1" complete "${words[@]:1}" 2>/dev/null)
    case ${reply[0]-} in
        command\ *)
            at=${reply[0]#command }
            if declare -F _command_offset >/dev/null; then
                _command_offset "${places[at]}"
            elif (( at == ${#words[@]} - 1 )); then
                mapfile -t COMPREPLY < <(compgen -c -- "$typed"; compgen -f -- "$typed")
            else
                compopt -o filenames
                mapfile -t COMPREPLY < <(compgen -f -- "$part")
            fi
            ;;
        file)
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "$part")
            ;;
        words)
            for word in "${reply[@]:1}"; do
                word=${word%%$'\t'*}
                word=${word:${#typed} - ${#part}}
                # A key may contain characters that mean something to bash, also behind an open quote.
                if [[ -z $quote ]]; then
                    printf -v word %q "$word"
                elif [[ $word == *[\'\"\\\$\`\!]* ]]; then
                    continue
                fi
                COMPREPLY+=("$word")
            done
            [[ ${COMPREPLY[0]-} != *[:/] ]] || compopt -o nospace
            ;;
    esac
}

complete -F _lockrun lockrun
