"""Many runs under one lock: a holder, waiters that join one after the other, and what became of them.

The commands are `stamp`, or do the same, so the times are their own: a gap is the time from one command's last stamp to the next
one's first.
"""

import bisect
import itertools
import os
import select
import shutil
import subprocess
from dataclasses import dataclass

from .processes import eventually

_numbers = itertools.count(1)


def compile_stamp(directory):
    """Builds the measuring command. Static where that can be: less to load."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stamp.c")
    target = os.path.join(directory, "stamp")
    compiler = shutil.which("cc")
    if not compiler:
        raise SystemExit("benches/run: there is no C compiler (cc), which building lockrun needs as well")
    for options in (["-static"], []):
        if subprocess.run([compiler, "-O2", *options, "-o", target, source], capture_output=True).returncode == 0:
            return target
    raise SystemExit("benches/run: cc cannot compile benches/lib/stamp.c")


@dataclass(frozen=True)
class Run:
    """A run of the command, times in nanoseconds."""

    name: str
    token: str
    start: int
    end: int


class Turns:
    """The runs under one lock of one contender. The key is fresh, and so is the file that the commands write to."""

    def __init__(self, bench, contender, hold_us=0, command=None, options=()):
        """`options` are lockrun's, of each waiter."""
        self.bench = bench
        self.options = {"options": options} if options else {}
        self.contender = contender
        self.key = f"turns-{next(_numbers)}"
        self.log = os.path.join(bench.directory, self.key)
        self.hold_us = hold_us
        self.command = command or bench.stamp
        self.pids = []
        self.holder = None

    def hold(self, **options):
        """Takes the lock, and returns when the command has begun."""
        fifo = f"{self.log}.hold"
        os.mkfifo(fifo, 0o600)
        # For both, so that opening it waits for nobody.
        self.hold_open = os.open(fifo, os.O_RDWR)
        ready, output_end = os.pipe()
        argv = self.contender.argv(self.key, [self.command, self.log, "holder", fifo], **options)
        self.holder = self.bench.processes.start(argv, stdout=output_end)
        os.close(output_end)
        answered = select.select([ready], [], [], 10)[0] and os.read(ready, 1)
        os.close(ready)
        if not answered:
            raise RuntimeError(f"{self.contender.name}: the holder did not start: {self.bench.processes.last_error()}")

    def let_go(self):
        """Ends the holder's command."""
        os.close(self.hold_open)

    def waiter_argv(self, number):
        return self.contender.argv(self.key, [self.command, self.log, str(number), str(self.hold_us)], **self.options)

    def join(self, waiters):
        """Starts that many waiters. Each is seen to wait before the next one starts."""
        for number in range(waiters):
            self.pids.append(self.bench.processes.start(self.waiter_argv(number)))
            eventually(lambda: self.waiting() > number, 10, f"{self.contender.name}: waiter {number} waits")

    def waiting(self):
        return self.contender.waiting(self.key)

    def finish(self, seconds):
        """Waits for the holder and the waiters. Gives the exit statuses of the waiters that ended in time."""
        self.bench.processes.wait([*self.pids, self.holder], seconds)
        statuses = self.bench.processes.wait(self.pids, 0)
        for pid in self.pids:
            self.bench.processes.kill(pid)
        return statuses

    def runs(self):
        """All runs, the holder's included, in the order of their beginnings."""
        with open(self.log, encoding="ascii") as log:
            fields = [line.split() for line in log]
        return sorted((Run(name, token, int(start), int(end)) for name, token, start, end in fields), key=lambda run: run.start)


def gaps_ms(runs):
    """The times between two runs that follow each other, in milliseconds."""
    return [(after.start - before.end) / 1e6 for before, after in zip(runs, runs[1:])]


def overlaps(runs):
    """How many runs began while another one was going on."""
    found, latest_end = 0, 0
    for run in runs:
        found += run.start < latest_end
        latest_end = max(latest_end, run.end)
    return found


def inversions(places):
    """How many pairs are in the wrong order."""
    found, seen = 0, []
    for place in places:
        found += len(seen) - bisect.bisect(seen, place)
        bisect.insort(seen, place)
    return found


def order_of(runs):
    """The places at which the waiters joined, in the order in which they ran."""
    return [int(run.name) for run in runs if run.name != "holder"]
