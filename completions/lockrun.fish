complete -c lockrun -s k -l key -d 'The lock\'s name' -r
complete -c lockrun -l store -d 'Where the lock lives: file:, file:/DIR, redis://, rediss://, redis+unix://  [default: file:]' -r
complete -c lockrun -l store-file -d 'Read the store\'s URL from a file, so that no password stands in ps or a crontab' -r
complete -c lockrun -s w -l wait -d 'Wait for it: for ever, or that long and then as --fail' -r
complete -c lockrun -s E -l conflict-exit-code -d 'The exit status when it is held, or the wait ran out: 0 to 255, in place of 75' -r
complete -c lockrun -l ttl -d 'The lease\'s length, at least 1s; none: it never expires  [default: 30s]' -r
complete -c lockrun -l renew-every -d 'The time between renewals  [default: ttl / 3]' -r
complete -c lockrun -l store-timeout -d 'The longest that one request to the store may take  [default: 5s, at most ttl / 6]' -r
complete -c lockrun -l on-lost -d 'What a lost lease does to COMMAND: kill or warn  [default: kill]' -r -f -a "kill\t''
warn\t''"
complete -c lockrun -s c -l command -d 'Run STRING by `sh -c`, as flock(1) does' -r
complete -c lockrun -l max-runtime -d 'Stop COMMAND when it has run for that long, and exit 124' -r
complete -c lockrun -l kill-after -d 'The time from TERM to KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]' -r
complete -c lockrun -l descendants -d 'Processes that COMMAND left behind: leave, wait or kill  [default: leave]' -r -f -a "leave\t''
wait\t''
kill\t''"
complete -c lockrun -s n -l fail -l nonblock -d 'Say who holds it and exit 75; this is the default (--nonblock is the same)'
complete -c lockrun -l skip -d 'Exit 0, silently'
complete -c lockrun -s v -l verbose -d 'Say on stderr what happens: waiting, acquired, started, finished, released'
complete -c lockrun -s q -l quiet -d 'Say nothing when the lock is held'
complete -c lockrun -s h -l help -d 'Print help (see more with \'--help\')'
complete -c lockrun -s V -l version -d 'Print version'
