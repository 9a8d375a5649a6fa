"""Measures the memory that a run takes while it holds the lock: all of its processes but COMMAND's own."""

import os
import statistics
import time

from .contenders import Etcdctl, Flock, LockrunFile
from .report import Limit, Section
from .turns import Turns

SECONDS = 5
# Short, so that renewals fall into the time in which we look.
LEASE = ["--ttl", "6s"]
# In MB.
LIMIT_FILES, LIMIT_LEASES = 0.15, 0.4

METHOD = f"""\
The sum of the private dirty pages of all processes of a run but COMMAND's own: the memory that nobody else uses and that the
kernel cannot drop. (The pages of the program file are shared, and can be read again.) It is sampled every 20 ms for {SECONDS} s, beginning
1 s after COMMAND. On stores with leases the lease is 6 s, so that it is renewed meanwhile. The limits apply to the largest sample."""


def measure(bench):
    section = Section("Memory while holding", METHOD, ["program", "processes", "median", "largest"])
    contenders = [(Flock(bench.directory), {}), (LockrunFile(bench.lockrun, bench.directory), {})]
    contenders += [(contender, {"options": LEASE}) for contender in bench.lease_stores()]
    if bench.etcd:
        contenders.append((Etcdctl(bench.etcd), {}))
    largest = {}
    for contender, options in contenders:
        turns = Turns(bench, contender)
        turns.hold(**options)
        sizes, processes = watch(turns.holder, os.path.realpath(bench.stamp))
        turns.let_go()
        turns.finish(10)
        largest[contender.name] = max(sizes)
        shown = [f"{size / 1e6:.2f} MB" for size in (statistics.median(sizes), max(sizes))]
        section.rows.append([contender.name, processes, *shown])

    megabytes = lambda name: f"{name} {largest[name] / 1e6:.2f} MB"
    peers = ", ".join(megabytes(name) for name in (Flock.name, Etcdctl.name) if name in largest)
    limits = [(LockrunFile.name, "files", LIMIT_FILES)]
    limits += [(contender.name, f"{contender.store}, guardian included", LIMIT_LEASES) for contender in bench.lease_stores()]
    for name, what, limit in limits:
        if name in largest:
            ours = largest[name] / 1e6
            section.limits.append(
                Limit(f"memory of its own while holding, {what}", peers, f"{ours:.2f} MB", f"at most {limit} MB", ours <= limit)
            )
    return section


def watch(session, command):
    """The sizes in bytes, and the number of processes."""
    time.sleep(1)
    pids = [pid for pid in processes_of(session) if os.readlink(f"/proc/{pid}/exe") != command]
    sizes, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        sizes.append(sum(private_dirty_size(pid) for pid in pids))
        time.sleep(0.02)
    return sizes, len(pids)


def processes_of(session):
    """All processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                # The fields after the program's name, which stands in parentheses: state, ppid, pgrp, session.
                fields = stat.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session:
            found.append(int(name))
    return found


def private_dirty_size(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_Dirty:"))
