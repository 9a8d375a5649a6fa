"""Measures what waiting in turn costs a server, as the server itself counts it, and whether the order holds.

The requests a hand-off with 10, 100 and 1,000 waiters, and the requests a second of a waiter to whom nothing happens.
"""

import time
from collections import Counter

from .contenders import LockrunEtcd, LockrunPgBouncer, LockrunPostgres
from .proxy import Proxy
from .report import Limit, Section
from .round_trips import handshake_flights
from .turns import Turns, gaps_ms, inversions, order_of, overlaps

SIZES = (10, 100, 1000)
HOLD_US = 1000
IDLE_SECONDS = 30
IDLE_WAITERS = 3
# How many requests a hand-off may take, by store; and how many an idle waiter may send in a second.
MOST = {"Redis": 5, "PostgreSQL": 5, "etcd": 6}
MOST_IDLE = {"Redis": 0.3, "PostgreSQL": 0.3, "etcd": 0.3}

METHOD = f"""\
Waiters join one after the other (each is seen in the queue before the next one starts) while a holder has the lock; then
each runs a command of {HOLD_US / 1000:.0f} ms. "with joining" is the number of all requests of clients, from before the first waiter's
start to after the last one's end, divided by the number of waiters; "hand-off alone" leaves out the requests until all
waiters slept.

On Redis a request is a command that a client has sent, by the server's own count (`INFO commandstats`), without those that
its scripts call. The store's URL has neither a password nor a database here: each would add one command, in the same
flight, for each connection.

On PostgreSQL a request is what a client sends in one flight, and waits for: each half of a transaction, or a statement by
itself. They are counted in the server's log of statements, which takes time itself. The handshake is left out.

On etcd a request is a call of its API, by the server's own count (`grpc_server_started_total`). A watch counts once."""

IDLE_METHOD = f"""\
{IDLE_WAITERS} waiters wait for {IDLE_SECONDS} s behind a holder with the default lease. The count is that of the requests that each
waiter's connection sends in that time, by Redis's MONITOR without those that scripts call, and by PostgreSQL's log of
statements. Through a pooler, whose connections belong to no client, and on etcd, which counts all requests alike, it is that of
all requests, including the holder's two renewals and the like, divided by the number of waiters."""

HEADER = ["store", "waiters", "with joining", "hand-off alone", "by kind, with joining", "overlaps", "inversions", "not run",
          "largest gap"]


def measure(bench):
    section = Section("Requests a hand-off", METHOD, HEADER)
    for contender in bench.lease_stores("counted"):
        measure_store(bench, contender, section)
    return section


def measure_store(bench, contender, section):
    costs, disorder = [], 0
    for waiters in SIZES:
        runs, sent = drain(bench, contender, waiters)
        start, joined, end = (sum(counts.values()) for counts in sent)
        costs.append((end - start) / waiters)
        by_kind = {name: (sent[2][name] - sent[0].get(name, 0)) / waiters for name in sent[2]}
        shown = ", ".join(f"{name} {count:.2f}" for name, count in by_kind.items() if count)
        wrong = [overlaps(runs), inversions(order_of(runs)), waiters + 1 - len(runs)]
        disorder += sum(wrong)
        alone = f"{(end - joined) / waiters:.2f}"
        section.rows.append(
            [contender.store, f"{waiters:,}", f"{costs[-1]:.2f}", alone, shown, *wrong, f"{max(gaps_ms(runs)):.1f} ms"]
        )
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    shown = ", ".join(f"{cost:.1f}" for cost in costs)
    # Give or take a tenth: who waits long gives a sign of life now and then, and the last in the queue has nobody behind it.
    flat = costs[-1] <= costs[0] * 1.1
    most = MOST.get(contender.store)
    is_met = flat and (not most or round(max(costs), 1) <= most)
    wanted = f"flat, at most {most}" if most else "flat"
    section.limits += [
        Limit(f"requests a hand-off at {sizes} waiters, {contender.store}", "-", shown, wanted, is_met),
        Limit(f"overlaps, inversions and failed runs at {sizes} waiters, {contender.store}", "-", str(disorder), "0", disorder == 0),
    ]
    if not isinstance(contender, LockrunEtcd):
        section.notes.append(cross_check(bench, contender))


def drain(bench, contender, waiters):
    """The runs, and what clients had sent before the first joined, when all had joined, and in the end."""
    turns = Turns(bench, contender, HOLD_US)
    turns.hold(options=["--ttl", "none"])
    sent = [contender.server.sent_by_clients()]
    turns.join(waiters)
    bench.settle()
    sent.append(contender.server.sent_by_clients())
    turns.let_go()
    turns.finish(60)
    sent.append(contender.server.sent_by_clients())
    return turns.runs(), sent


def cross_check(bench, contender):
    """What another way of counting says."""
    if contender.store == "Redis":
        check, by = monitored, "under MONITOR, which tells the scripts' commands from the clients'"
    else:
        check, by = proxied, "through a proxy, which counts flights"
    count = check(bench, contender, 10)
    return f"As a check, 10 waiters on {contender.store} once more {by}: {count:.2f} a hand-off with joining."


def monitored(bench, contender, waiters):
    turns = Turns(bench, contender, HOLD_US)
    turns.hold(options=["--ttl", "none"])
    seen = contender.server.watch()
    hand_round(bench, turns, waiters)
    return len(seen()) / waiters


def proxied(bench, contender, waiters):
    handshake = handshake_flights(bench)
    proxy = Proxy(contender.server.port)
    turns = Turns(bench, LockrunPostgres(bench.lockrun, contender.server, proxy.port), HOLD_US)
    turns.hold(options=["--ttl", "none"])
    proxy.reset(0.0)
    hand_round(bench, turns, waiters)
    proxy.close()
    return (len(proxy.trips) - proxy.connections * handshake) / waiters


def hand_round(bench, turns, waiters):
    turns.join(waiters)
    bench.settle()
    turns.let_go()
    turns.finish(60)


def measure_idle(bench):
    section = Section("An idle waiter", IDLE_METHOD, ["store", "waiters", "requests a second, each"])
    for contender in [*bench.lease_stores("counted"), *bench.poolers("counted")]:
        rates = idle_rates(bench, contender)
        section.rows.append([contender.store, IDLE_WAITERS, ", ".join(f"{rate:.2f}" for rate in rates)])
        if most := MOST_IDLE.get(contender.store):
            is_met = len(rates) == IDLE_WAITERS and rates[-1] <= most
            name = f"requests a second of an idle waiter, {contender.store}"
            section.limits.append(Limit(name, "-", f"{rates[-1]:.2f}", f"at most {most}", is_met))
    return section


def idle_rates(bench, contender):
    """Requests a second of each waiter, in rising order; of all on average, where their connections are not their own."""
    turns = Turns(bench, contender)
    turns.hold()
    if isinstance(contender, LockrunEtcd):
        return [idle_rate_of_all(bench, turns)]
    before = contender.server.connections()
    turns.join(IDLE_WAITERS)
    waiters = contender.server.connections() - before
    bench.settle()
    seen = contender.server.watch()
    time.sleep(IDLE_SECONDS)
    sent = Counter(sender for sender, _ in seen())
    turns.let_go()
    turns.finish(20)
    if isinstance(contender, LockrunPgBouncer):
        return [sum(sent.values()) / IDLE_SECONDS / IDLE_WAITERS]
    return sorted(sent[waiter] / IDLE_SECONDS for waiter in waiters)


def idle_rate_of_all(bench, turns):
    """Requests a second of all together, divided by the number of waiters."""
    turns.join(IDLE_WAITERS)
    bench.settle()
    server = turns.contender.server
    before = sum(server.sent_by_clients().values())
    time.sleep(IDLE_SECONDS)
    sent = sum(server.sent_by_clients().values()) - before
    turns.let_go()
    turns.finish(20)
    return sent / IDLE_SECONDS / IDLE_WAITERS
