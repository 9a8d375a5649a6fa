"""Measures waiting in turn on the stores with leases when it is hard: waiters that are killed, and a thousand that come at once."""

import os
import random
import time

from .contenders import LockrunPgBouncer
from .postgres import MAX_CONNECTIONS
from .processes import eventually
from .report import Limit, Section
from .turns import Turns, gaps_ms, inversions, order_of, overlaps

WAITERS = 100
KILLED = 50
# The lease of the waiters of which some are killed, and so the length of their places, in seconds.
TTL = 4
EARLIER = 0.5
# Of the scenes whose outcome is a race.
REPETITIONS = 4
HERD = 1000
HOLD_US = 1000
# While some are killed.
SLOW_HOLD_US = 5000
# How long the herd may take, in seconds, and how long where nobody is woken.
PATIENCE = 120
PATIENCE_POOLED = 1800

KILL_METHOD = f"""\
{WAITERS} waiters join one after the other; {KILLED} of them are killed with KILL, lockrun and its guardian at once, so that
neither can clean up after the other. Each has --ttl {TTL}s, so the dead may keep the lock unused for that long, and a second more to
be noticed. The rest must run in the order in which they joined. "some" are picked at random.
"earlier" means {EARLIER} s before the holder releases the lock, so that the server has seen their connections close. "at that
moment" means without a pause between the last kill and the holder's end, so that the server may still take them for alive:
a race, so it is run {REPETITIONS} times. "one by one" means while the others run, for {SLOW_HOLD_US / 1000:.0f} ms each: the victims are in the last
four fifths of the queue and are killed from the front, so that none has acquired the lock."""

HERD_METHOD = f"""\
{HERD:,} shells sleep at one gate, and become {HERD:,} waiters when it opens, while a holder has the lock. When all are in the
queue, its order is read from the server, and the holder releases the lock; each waiter then runs a command of {HOLD_US / 1000:.0f} ms.
A lost place is a pair of runs in another order than in the queue. Time-outs and options are lockrun's defaults, and so are
the servers' settings, except that PostgreSQL accepts {MAX_CONNECTIONS:,} connections. Behind a pooler a waiter is not woken, but
reads the record twice a second, and far behind in the queue once a second, so that takes long."""


def measure_killed(bench):
    header = ["store", "killed", "times", "ran", "overlaps", "inversions", "largest gap"]
    section = Section(f"{KILLED} of {WAITERS} waiters killed", KILL_METHOD, header)
    for contender in bench.lease_stores():
        measure_killed_on(bench, contender, section)
    return section


def measure_killed_on(bench, contender, section):
    # The same ones in every run of the benchmark.
    dice = random.Random(4)
    scenes = {
        "the first in the queue, earlier": lambda turns: kill_before(turns, range(KILLED), EARLIER),
        "the first in the queue, at that moment": lambda turns: kill_before(turns, range(KILLED)),
        "some, earlier": lambda turns: kill_before(turns, dice.sample(range(WAITERS), KILLED), EARLIER),
        "some, at that moment": lambda turns: kill_before(turns, dice.sample(range(WAITERS), KILLED)),
        "some, one by one": lambda turns: kill_meanwhile(turns, sorted(dice.sample(range(WAITERS // 5, WAITERS), KILLED))),
    }
    largest, wrong = 0.0, 0
    for name, kill in scenes.items():
        repetitions = REPETITIONS if kill_is_a_race(name) else 1
        hold_us = SLOW_HOLD_US if name.endswith("one by one") else HOLD_US
        found = [kill_some(bench, contender, kill, hold_us) for _ in range(repetitions)]
        ran, expected, overlapping, inverted = (sum(counts) for counts in list(zip(*found))[:4])
        gap = max(result[4] for result in found)
        largest = max(largest, gap)
        wrong += expected - ran + overlapping + inverted
        section.rows.append(
            [contender.store, name, repetitions, f"{ran} of {expected}", overlapping, inverted, f"{gap:.0f} ms"]
        )
    ours = f"{largest / 1000:.2f} s, {wrong} wrong"
    is_met = largest <= (TTL + 1) * 1000 and not wrong
    name = f"{KILLED} of {WAITERS} waiters killed: largest gap, {contender.store}"
    section.limits.append(Limit(name, "-", ours, f"at most {TTL + 1} s, 0 wrong", is_met))


def kill_is_a_race(name):
    return name.endswith("at that moment")


def kill_some(bench, contender, kill, hold_us):
    """How many ran, how many should have, overlaps, inversions, and the largest gap."""
    turns = Turns(bench, contender, hold_us, options=["--ttl", f"{TTL}s"])
    turns.hold()
    turns.join(WAITERS)
    bench.settle()
    survivors = set(range(WAITERS)) - set(kill(turns))
    turns.finish(60)
    runs = turns.runs()
    ran = survivors & set(order_of(runs))
    return len(ran), len(survivors), overlaps(runs), inversions(order_of(runs)), max(gaps_ms(runs))


def kill_before(turns, numbers, pause=0.0):
    for number in numbers:
        turns.bench.processes.kill_with_children(turns.pids[number])
    time.sleep(pause)
    turns.let_go()
    return numbers


def kill_meanwhile(turns, numbers):
    """Gives those of them that were killed before they ran."""
    turns.let_go()
    for number in numbers:
        time.sleep(0.003)
        turns.bench.processes.has_ended(turns.pids[number])
        turns.bench.processes.kill_with_children(turns.pids[number])
    statuses = turns.bench.processes.wait([turns.pids[number] for number in numbers], 10)
    return [number for number in numbers if statuses.get(turns.pids[number]) == -9]


def measure_herd(bench):
    header = ["store", "waiters", "all in the queue after", "ran", "failed", "overlaps", "lost places", "largest gap"]
    section = Section("A thousand waiters at once", HERD_METHOD, header)
    for contender in [*bench.lease_stores(), *bench.poolers()]:
        measure_herd_on(bench, contender, section)
    return section


def measure_herd_on(bench, contender, section):
    turns = Turns(bench, contender, HOLD_US)
    turns.hold()
    gate = os.path.join(bench.directory, f"gate of {turns.key}")
    os.mkfifo(gate)
    for number in range(HERD):
        shell = ["/bin/sh", "-c", 'read -r _ <"$0"; exec "$@"', gate, *turns.waiter_argv(number)]
        turns.pids.append(bench.processes.start(shell))
    time.sleep(1)
    opened = time.monotonic()
    # Its readers see the end of it at once.
    os.close(os.open(gate, os.O_WRONLY))
    try:
        eventually(lambda: waiting_or_ended(turns) >= HERD, 60, "all waiters stand in the queue")
    except RuntimeError as error:
        section.notes.append(f"{contender.store}: {error}")
    joined = time.monotonic() - opened
    bench.settle()
    queue = contender.queue(turns.key)
    turns.let_go()
    statuses = turns.finish(PATIENCE_POOLED if isinstance(contender, LockrunPgBouncer) else PATIENCE)

    runs = turns.runs()
    place = {token: number for number, token in enumerate(queue)}
    ran = [run for run in runs if run.name != "holder"]
    lost = inversions([place.get(run.token, -1) for run in ran])
    failed = HERD - sum(status == 0 for status in statuses.values())
    section.rows.append(
        [contender.store, f"{HERD:,}", f"{joined:.1f} s", f"{len(ran):,}", failed, overlaps(runs), lost, f"{max(gaps_ms(runs)):.0f} ms"]
    )
    if failed:
        section.notes.append(f"{contender.store}: the last message on stderr is `{bench.processes.last_error()}`")
    wrong = failed + overlaps(runs) + lost + abs(HERD - len(ran)) + abs(HERD - len(queue))
    ours = f"{failed} failed, {overlaps(runs)} overlaps, {lost} lost places"
    section.limits.append(Limit(f"{HERD:,} waiters at once, {contender.store}", "-", ours, "0", wrong == 0))


def waiting_or_ended(turns):
    """How many stand in the queue, or have ended without it."""
    turns.bench.processes.has_ended(turns.holder)
    time.sleep(0.02)
    return turns.waiting() + sum(pid in turns.bench.processes.ended for pid in turns.pids)
