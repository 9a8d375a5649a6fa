"""Measures what waiting in turn costs a Redis, as the server itself counts it, and whether the order holds.

The commands a hand-off with 10, 100 and 1,000 waiters, and the commands a second of a waiter to whom nothing happens.
"""

import time

from .contenders import LockrunRedis
from .report import Limit, Section
from .turns import Turns, gaps_ms, inversions, order_of, overlaps

SIZES = (10, 100, 1000)
HOLD_US = 1000
IDLE_SECONDS = 30
IDLE_WAITERS = 3

METHOD = f"""\
Waiters join one after the other (each is seen in the queue before the next one starts) while a holder has the lock; then
each runs a command of {HOLD_US / 1000:.0f} ms. Commands are those that clients have sent, by the server's own count
(`INFO commandstats`), without those that its scripts call. "with joining" is all that was sent, from before the first
waiter's start to after the last one's end, divided by the number of waiters; "hand-off alone" leaves out what was sent
until all of them slept. The store's URL has neither a password nor a database here: each would add one command, in the
same flight, for each connection."""

IDLE_METHOD = f"""\
{IDLE_WAITERS} waiters wait for {IDLE_SECONDS} s behind a holder with the default lease. Counted are the commands that each
waiter's connection sends in that time, by the server's MONITOR, without those that scripts call."""

HEADER = ["waiters", "with joining", "hand-off alone", "by command, with joining", "overlaps", "inversions", "not run",
          "largest gap"]


def measure(bench):
    section = Section("Redis commands a hand-off", METHOD, HEADER)
    contender = LockrunRedis(bench.lockrun, bench.redis)
    costs, disorder = [], 0
    for waiters in SIZES:
        runs, sent = drain(bench, contender, waiters)
        start, joined, end = (sum(counts.values()) for counts in sent)
        costs.append((end - start) / waiters)
        by_command = {name: (sent[2][name] - sent[0].get(name, 0)) / waiters for name in sent[2]}
        shown = ", ".join(f"{name} {count:.2f}" for name, count in by_command.items() if count)
        wrong = [overlaps(runs), inversions(order_of(runs)), waiters + 1 - len(runs)]
        disorder += sum(wrong)
        alone = f"{(end - joined) / waiters:.2f}"
        section.rows.append(
            [f"{waiters:,}", f"{costs[-1]:.2f}", alone, shown, *wrong, f"{max(gaps_ms(runs)):.1f} ms"]
        )
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    shown = ", ".join(f"{cost:.1f}" for cost in costs)
    # To a tenth, as it is shown: who waits long gives a sign of life now and then, which is in it.
    flat = round(costs[-1], 1) <= round(costs[0], 1)
    section.limits += [
        Limit(f"Redis commands a hand-off at {sizes} waiters", "-", shown, "flat, at most 6", flat and round(max(costs), 1) <= 6),
        Limit(f"overlaps, inversions and failed runs at {sizes} waiters", "-", str(disorder), "0", disorder == 0),
    ]
    check = cross_check(bench, contender)
    section.notes.append(
        f"As a check, 10 waiters once more under MONITOR, which tells the scripts' commands from the clients': {check:.2f} a"
        " hand-off with joining."
    )
    return section


def drain(bench, contender, waiters):
    """The runs, and what clients had sent before the first joined, when all had joined, and in the end."""
    turns = Turns(bench, contender, HOLD_US)
    turns.hold(options=["--ttl", "none"])
    sent = [bench.redis.sent_by_clients()]
    turns.join(waiters)
    bench.settle()
    sent.append(bench.redis.sent_by_clients())
    turns.let_go()
    turns.finish(60)
    sent.append(bench.redis.sent_by_clients())
    return turns.runs(), sent


def cross_check(bench, contender, waiters=10):
    """Commands a hand-off by MONITOR."""
    turns = Turns(bench, contender, HOLD_US)
    turns.hold(options=["--ttl", "none"])
    monitor = bench.redis.connect()
    monitor.ask("MONITOR")
    turns.join(waiters)
    bench.settle()
    turns.let_go()
    turns.finish(60)
    marker = f"end of {turns.key}"
    bench.redis.control.ask("ECHO", marker)
    counted = 0
    while marker not in (line := monitor.reply()):
        counted += sender(line) not in ("lua", bench.redis.control.address)
    return counted / waiters


def sender(line):
    """Who sent the command that MONITOR shows: an address, or lua for a script."""
    return line.partition("[")[2].partition("]")[0].partition(" ")[2]


def measure_idle(bench):
    contender = LockrunRedis(bench.lockrun, bench.redis)
    turns = Turns(bench, contender)
    turns.hold()
    before = clients(bench.redis)
    turns.join(IDLE_WAITERS)
    waiters = clients(bench.redis) - before
    bench.settle()
    monitor = bench.redis.connect()
    monitor.ask("MONITOR")
    time.sleep(IDLE_SECONDS)
    marker = f"end of {turns.key}"
    bench.redis.control.ask("ECHO", marker)
    sent = dict.fromkeys(waiters, 0)
    while marker not in (line := monitor.reply()):
        if sender(line) in sent:
            sent[sender(line)] += 1
    turns.let_go()
    turns.finish(20)

    rates = sorted(count / IDLE_SECONDS for count in sent.values())
    section = Section("An idle waiter on Redis", IDLE_METHOD, ["waiters", "commands a second, each"])
    section.rows.append([len(rates), ", ".join(f"{rate:.2f}" for rate in rates)])
    is_met = len(rates) == IDLE_WAITERS and rates[-1] <= 0.5
    section.limits.append(
        Limit("Redis commands a second of an idle waiter", "-", f"{rates[-1]:.2f}", "at most 0.5", is_met)
    )
    return section


def clients(redis):
    """The addresses of all connections to the server."""
    lines = redis.control.ask("CLIENT", "LIST").splitlines()
    return {word.removeprefix("addr=") for line in lines for word in line.split() if word.startswith("addr=")}
