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
# In MB, by store.
LIMITS = {"Redis": 2, "PostgreSQL": 6, "etcd": 6}

METHOD = f"""\
The sum of the proportional set sizes (PSS) of all processes of a run but COMMAND's own; PSS counts a page that several
processes share by parts. It is sampled every 20 ms for {SECONDS} s, beginning 1 s after COMMAND. On stores with leases the lease is
6 s, so that it is renewed meanwhile. Only one lockrun runs on the machine at a time, so it shares the pages of its program file with
no other process; flock shares the C library with all other processes. The limits apply to the largest sample."""


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
    limits = [(LockrunFile.name, "files", 1)]
    limits += [(contender.name, f"{contender.store}, guardian included", LIMITS[contender.store]) for contender in bench.lease_stores()]
    for name, what, limit in limits:
        if name in largest:
            ours = largest[name] / 1e6
            section.limits.append(
                Limit(f"memory while holding (PSS), {what}", peers, f"{ours:.2f} MB", f"at most {limit} MB", ours <= limit)
            )
    return section


def watch(session, command):
    """The sizes in bytes, and the number of processes."""
    time.sleep(1)
    pids = [pid for pid in processes_of(session) if os.readlink(f"/proc/{pid}/exe") != command]
    sizes, until = [], time.monotonic() + SECONDS
    while time.monotonic() < until:
        sizes.append(sum(proportional_size(pid) for pid in pids))
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


def proportional_size(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
