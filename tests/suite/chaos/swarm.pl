# Starts processes that are hard to end, and ends or waits to be ended itself: swarm.pl DIRECTORY SEED SECONDS
#
# The run's directory, named after its fence, gets a file `began` with the time by the boot clock and the process id of the parent. Each lane
# of processes keeps the time of its last sign of life in a file of its own. Nothing lives longer than so many seconds.
use strict;
use POSIX ();
use Time::HiRes qw(clock_gettime usleep);

my ($directory, $seed, $seconds, $lane, $until) = @ARGV;
my $own = "$directory/$ENV{LOCKRUN_FENCE}";
my $out;

sub sign {
    sysseek($out, 0, 0);
    syswrite($out, sprintf("%.9f\n", clock_gettime(7)));
    POSIX::_exit(0) if clock_gettime(7) > $until;
}

sub open_lane {
    open($out, '>', "$own/$lane") or POSIX::_exit(1);
}

# Returns whether this is the child.
sub is_child {
    my $child = fork();
    return defined $child && $child == 0;
}

# The child goes on; the parent ends, unless it could not have one.
sub hop {
    my $child = fork();
    POSIX::_exit(0) if $child;
    usleep(1000) unless defined $child;
    POSIX::setsid() if rand() < 0.7;
}

# Processes that live for a millisecond, one after the other.
sub chain {
    while (1) { sign(); usleep(rand(1000)); hop(); }
}

# A script that starts itself again.
sub again {
    sign();
    hop();
    exec($^X, $0, $directory, int(rand(1e9)), $seconds, $lane, $until);
}

# A process in a session of its own.
sub daemon {
    hop();
    while (1) { sign(); usleep(2000); }
}

# Parents and children that all go on.
sub tree {
    for my $branch (1 .. 4) {
        next unless is_child();
        $lane .= "-$branch";
        open_lane();
        POSIX::setsid() if rand() < 0.5;
    }
    while (1) { sign(); usleep(3000); }
}

srand($seed);
$SIG{$_} = 'IGNORE' for rand() < 0.8 ? qw(TERM HUP INT QUIT) : ();
if (defined $lane) {
    open($out, '+<', "$own/$lane") or POSIX::_exit(1);
    again();
}

my $now = clock_gettime(7);
$until = $now + $seconds;
mkdir($own) or die "$own: $!";
open(my $began, '>', "$own/.began") or die $!;
printf $began "%.9f %d\n", $now, getppid();
close($began);
rename("$own/.began", "$own/began") or die $!;
for my $number (1 .. 2 + int(rand(5))) {
    next unless is_child();
    $lane = $number;
    open_lane();
    srand($seed + $number);
    (\&chain, \&chain, \&chain, \&again, \&daemon, \&tree)[int(rand(6))]->();
}
$lane = 0;
open_lane();
my $ends_at = clock_gettime(7) + (rand() < 0.4 ? rand(0.6) : $seconds);
while (clock_gettime(7) < $ends_at) { sign(); usleep(2000); }
