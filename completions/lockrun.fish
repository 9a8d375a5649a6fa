# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_lockrun_global_optspecs
    string join \n k/key= store= store-file= n/fail skip= w/wait= max-waiting= E/conflict-exit-code= slots= s/shared x/exclusive once-per= min-hold= keep ttl= renew-every= store-timeout= on-lost= c/command= max-runtime= kill-after= descendants= events= v/verbose q/quiet h/help V/version
end

function __fish_lockrun_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_lockrun_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_lockrun_using_subcommand
    set -l cmd (__fish_lockrun_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c lockrun -n "__fish_lockrun_needs_command" -s k -l key -d 'The lock\'s name' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_needs_command" -l skip -d 'Exit 0, silently; with =DURATION only if it has been held for less than that' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -s w -l wait -d 'Wait in turn: for ever, or this long and then as --fail' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l max-waiting -d 'With --wait: if N wait already, do as --fail at once' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -s E -l conflict-exit-code -d 'Exit with N, 0 to 255, instead of 75 if the lock is held or the wait times out' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l slots -d 'Let up to N runs hold the lock at once, 1 to 1000  [default: 1]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l once-per -d 'Exit 0, silently, if a run that began less than DURATION ago has ended with 0' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l min-hold -d 'Hold the lock at least this long, even if COMMAND ends sooner' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l ttl -d 'The length of the lease, at least 1s; none: it never expires  [default: 30s]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l renew-every -d 'The time between renewals  [default: ttl / 3]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l on-lost -d 'What to do when the lease is lost: kill or warn  [default: kill]' -r -f -a "kill\t''
warn\t''"
complete -c lockrun -n "__fish_lockrun_needs_command" -s c -l command -d 'Run STRING with `sh -c`' -r -f -a "(__fish_complete_command)"
complete -c lockrun -n "__fish_lockrun_needs_command" -l max-runtime -d 'Stop COMMAND after this long, and exit 124' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l kill-after -d 'The time between TERM and KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]' -r
complete -c lockrun -n "__fish_lockrun_needs_command" -l descendants -d 'What to do with processes that COMMAND leaves behind: leave, wait or kill  [default: leave]' -r -f -a "leave\t''
wait\t''
kill\t''"
complete -c lockrun -n "__fish_lockrun_needs_command" -l events -d 'Append events to FILE, one JSON object per line' -r -F
complete -c lockrun -n "__fish_lockrun_needs_command" -s n -l fail -l nonblock -d 'Name the holder and exit 75; this is the default (also --nonblock)'
complete -c lockrun -n "__fish_lockrun_needs_command" -s s -l shared -d 'Hold the lock beside other runs that share it, never beside one that does not'
complete -c lockrun -n "__fish_lockrun_needs_command" -s x -s e -l exclusive -d 'Hold the lock alone: the default, and the opposite of --shared'
complete -c lockrun -n "__fish_lockrun_needs_command" -l keep -d 'Keep the lock when COMMAND exits with 0'
complete -c lockrun -n "__fish_lockrun_needs_command" -s v -l verbose -d 'Print events on stderr: waiting, acquired, started, finished, released ...'
complete -c lockrun -n "__fish_lockrun_needs_command" -s q -l quiet -d 'Print nothing when the lock is held'
complete -c lockrun -n "__fish_lockrun_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_needs_command" -s V -l version -d 'Print version'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "acquire" -d 'Acquire a lock and leave it held, for a script to renew and release'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "renew" -d 'Renew the lease of a lock acquired by `acquire`'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "release" -d 'Release a lock acquired by `acquire`'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "reserve" -d 'Run a command with the next free value of a sequence'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "status" -d 'Show who holds which lock, who waits, and how the last run ended'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "break" -d 'Break a lock: revoke it from its holder'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "doctor" -d 'Look for anything that could keep locks from working, and say what to do about it'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "prune" -d 'Remove the remains of one lock, or of all that have not been used for long'
complete -c lockrun -n "__fish_lockrun_needs_command" -a "help" -d 'Print this help, or that of one of these commands'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s k -l key -d 'The lock\'s name' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l slots -d 'Let up to N runs hold the lock at once, 1 to 1000  [default: 1]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l skip -d 'Exit 0, silently; with =DURATION only if it has been held for less than that' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s w -l wait -d 'Wait in turn: for ever, or this long and then as --fail' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l max-waiting -d 'With --wait: if N wait already, do as --fail at once' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s E -l conflict-exit-code -d 'Exit with N, 0 to 255, instead of 75 if the lock is held or the wait times out' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l ttl -d 'The length of the lease, at least 1s; none: it never expires  [default: 30s]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l token -d 'Use this token instead of a random one: letters, digits and . _ : -' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s s -l shared -d 'Hold the lock beside other runs that share it, never beside one that does not'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s x -s e -l exclusive -d 'Hold the lock alone: the default, and the opposite of --shared'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s n -l fail -l nonblock -d 'Name the holder and exit 75; this is the default (also --nonblock)'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l json -d 'Print JSON'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -l export -d 'Print shell assignments: LOCKRUN_KEY, LOCKRUN_TOKEN, LOCKRUN_FENCE, LOCKRUN_SLOT'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s v -l verbose -d 'Print events on stderr: waiting, acquired, started, finished, released ...'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s q -l quiet -d 'Print nothing when the lock is held'
complete -c lockrun -n "__fish_lockrun_using_subcommand acquire" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -l token -d 'The token that `acquire` printed  [default: $LOCKRUN_TOKEN]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -s k -l key -d 'The lock\'s name  [default: $LOCKRUN_KEY]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -l ttl -d 'The new length of the lease, at least 1s; none: it never expires  [default: its present length]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand renew" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -l token -d 'The token that `acquire` printed  [default: $LOCKRUN_TOKEN]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -s k -l key -d 'The lock\'s name  [default: $LOCKRUN_KEY]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -s v -l verbose -d 'Print events on stderr: waiting, acquired, started, finished, released ...'
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -s q -l quiet -d 'Print nothing when the lock is held'
complete -c lockrun -n "__fish_lockrun_using_subcommand release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -s k -l key -d 'The lock\'s name' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l from -d 'The first value of the sequence' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l step -d 'The distance between two values: an integer other than 0  [default: 1]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l next -d 'The program that prints the next value, called with the previous one' -r -f -a "(__fish_complete_command)"
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l on-failure -d 'What to do with the value when COMMAND fails: keep or free  [default: keep]' -r -f -a "keep\t''
free\t''"
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l ttl -d 'The length of the lease, at least 1s; none: it never expires  [default: 30s]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l renew-every -d 'The time between renewals  [default: ttl / 3]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l on-lost -d 'What to do when the lease is lost: kill or warn  [default: kill]' -r -f -a "kill\t''
warn\t''"
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -s c -l command -d 'Run STRING with `sh -c`' -r -f -a "(__fish_complete_command)"
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l max-runtime -d 'Stop COMMAND after this long, and exit 124' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l kill-after -d 'The time between TERM and KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l descendants -d 'What to do with processes that COMMAND leaves behind: leave, wait or kill  [default: leave]' -r -f -a "leave\t''
wait\t''
kill\t''"
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -l events -d 'Append events to FILE, one JSON object per line' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -s v -l verbose -d 'Print events on stderr: waiting, acquired, started, finished, released ...'
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -s q -l quiet -d 'Print nothing when the lock is held'
complete -c lockrun -n "__fish_lockrun_using_subcommand reserve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -s k -l key -d 'Show only this lock' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l held -d 'Show only locks that are held'
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l json -d 'Print JSON'
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -l metrics -d 'Print OpenMetrics text, as for the textfile directory of a node exporter'
complete -c lockrun -n "__fish_lockrun_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -s k -l key -d 'The lock\'s name' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -l fence -d 'Break the lock only if N is still the holder\'s fencing token' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -l now -d 'Free the lock at once, even if its command may still be running'
complete -c lockrun -n "__fish_lockrun_using_subcommand break" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -l json -d 'Print JSON'
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -l schema -d 'Only print the SQL that creates the tables of a PostgreSQL store'
complete -c lockrun -n "__fish_lockrun_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -l store -d 'Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, etcd://  [default: file:]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -l store-file -d 'Read the store\'s URL from a file, to keep a password out of ps and crontabs' -r -F
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -l older-than -d 'Remove locks that have not been used for at least this long' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -s k -l key -d 'Remove only this lock' -r
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -l dry-run -d 'Only list what would be removed'
complete -c lockrun -n "__fish_lockrun_using_subcommand prune" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -n "__fish_lockrun_using_subcommand help" -s h -l help -d 'Print help'
