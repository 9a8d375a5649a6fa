"""Measures the hand-off: the gap between one command's end and the next one's beginning, with many waiters."""

import os
import statistics

from .contenders import Etcdctl, Flock, LockrunFile
from .report import Limit, Section
from .turns import Turns, gaps_ms, inversions, order_of, overlaps

WAITERS = 100
REPETITIONS = 7
# Repetitions of what takes long.
FEWER = 2
HOLD_US = 5000
# Of flock's gap, by store; on etcd it is etcdctl's gap that is not to be passed.
LIMITS = {"Redis": 1.3, "PostgreSQL": 4.5}
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stamp.sh")

METHOD = f"""\
{WAITERS} waiters join one after the other while a holder has the lock; then each runs a command that sleeps
{HOLD_US / 1000:.0f} ms. A gap is the time from one command's last stamp to the next one's first. There are {REPETITIONS} repetitions
({FEWER} for etcdctl), and the contenders take turns at going first. "of flock" is the median over the repetitions of a
repetition's median gap divided by flock's in the same repetition. Overlaps are runs that began during another run;
inversions are pairs of runs in another order than they joined. Clients and servers share this machine.

The command is a small static program that does nothing but stamp, so that the gap consists of little but the hand-off. Below,
"shell script" is the same with a script that stamps by date(1): there the gap includes the start of a shell and of a
program, as for the commands in most crontabs. The limit applies to both."""

HEADER = ["program", "median gap", "of flock", "95th percentile", "largest", "overlaps", "inversions", "not run"]


def measure(bench):
    contenders = [Flock(bench.directory), LockrunFile(bench.lockrun, bench.directory)]
    contenders += bench.lease_stores()
    if bench.etcd:
        contenders.append(Etcdctl(bench.etcd))
    section = Section(f"Hand-off among {WAITERS} waiters", METHOD, HEADER)
    for command, what in ((None, ""), (SCRIPT, ", shell script")):
        medians, ratios = compare(bench, contenders, section, command, what)
        peers = ", ".join(f"{name} {medians[name]:.2f} ms" for name in (Flock.name, Etcdctl.name) if name in medians)
        limits = [(LockrunFile.name, "files", 1.15)]
        limits += [(contender.name, contender.store, LIMITS.get(contender.store)) for contender in bench.lease_stores()]
        for name, store, most in limits:
            ratio = round(ratios[name], 2)
            ours = f"{medians[name]:.2f} ms, {ratio:.2f} of flock's"
            wanted = f"at most {most} of flock's" if most else "at most etcdctl's"
            is_met = ratio <= most if most else ratios[name] <= ratios[Etcdctl.name]
            section.limits.append(Limit(f"hand-off, {WAITERS} waiters, {store}{what}", peers, ours, wanted, is_met))
    return section


def compare(bench, contenders, section, command, what):
    """Adds a row for each contender, and gives the median gaps in ms, and what they are of flock's."""
    results = {contender.name: [] for contender in contenders}
    for repetition in range(REPETITIONS):
        shift = repetition % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            if contender.name != Etcdctl.name or repetition < FEWER:
                results[contender.name].append(repeat(bench, contender, command))
    flock = [statistics.median(gaps_ms(runs)) for runs in results[Flock.name]]
    medians, ratios = {}, {}
    for name, repetitions in results.items():
        gaps = sorted(gap for runs in repetitions for gap in gaps_ms(runs))
        medians[name] = statistics.median(gaps)
        own = [statistics.median(gaps_ms(runs)) for runs in repetitions]
        ratios[name] = statistics.median(mine / base for mine, base in zip(own, flock))
        percentile = gaps[int(len(gaps) * 0.95)]
        section.rows.append(
            [f"{name}{what}", f"{medians[name]:.2f} ms", f"{ratios[name]:.2f}", f"{percentile:.2f} ms", f"{gaps[-1]:.2f} ms"]
            + [sum(overlaps(runs) for runs in repetitions), sum(inversions(order_of(runs)) for runs in repetitions)]
            + [sum(WAITERS + 1 - len(runs) for runs in repetitions)]
        )
    return medians, ratios


def repeat(bench, contender, command=None):
    turns = Turns(bench, contender, HOLD_US, command)
    turns.hold()
    turns.join(WAITERS)
    bench.settle()
    turns.let_go()
    turns.finish(60)
    return turns.runs()
