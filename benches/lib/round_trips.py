"""Measures how many round trips to the server a run takes, before COMMAND starts and in all.

By counting flights in a proxy, and by time: what a delay of the network adds to the run, divided by that delay.
"""

import statistics
import time

from .contenders import Etcdctl, LockrunEtcd, LockrunPostgres, LockrunRedis, Psql
from .postgres import program
from .proxy import Proxy
from .report import Limit, Section
from .servers import Redis
from .turns import Turns

ROUND_TRIP = 0.050
RUNS = 9

METHOD = f"""\
{RUNS} runs each through a proxy on loopback that delays all bytes by {ROUND_TRIP * 500:.0f} ms each way, and as many
through the same proxy without delay. The Redis requires a password and a database other than 0; each run uses a key that
the server has never seen. "by time" is what the delay adds to the median time from lockrun's start to COMMAND's first
instruction (to lockrun's end, less COMMAND's own time), divided by {ROUND_TRIP * 1000:.0f} ms. "by flights" is the median
number of times that bytes from the client followed bytes from the server, or came first, until then. No proxy can delay
the TCP handshake, which the kernel answers, so one round trip per connection is added for it, to both. In HTTP/2, which
etcdctl speaks, either side may send without being asked: there only the time counts.

PostgreSQL's own handshake depends on its authentication; here it asks for a password (SCRAM), and does not offer TLS,
which both clients ask for. The handshake's cost is what psql takes before COMMAND, less the one statement that it sends;
psql says goodbye in the end, but does not wait for an answer. The tables exist already."""

HEADER = ["program", "connections", "by time: before COMMAND", "in all", "by flights: before COMMAND", "in all"]


def measure(bench):
    section = Section("Round trips", METHOD, HEADER)
    found = {}
    if bench.redis:
        redis = Redis(bench.processes, bench.directory, password="bench")
        found["Redis"] = trips(bench, lambda port: LockrunRedis(bench.lockrun, redis, port, database=3), redis.port, section)
    if bench.postgres:
        port = bench.postgres.port
        found["PostgreSQL"] = trips(bench, lambda port: LockrunPostgres(bench.lockrun, bench.postgres, port), port, section)
        if program("psql"):
            found["psql"] = trips(bench, lambda port: Psql(bench.postgres, port), port, section)
    if bench.etcd:
        found["etcd"] = trips(bench, lambda port: LockrunEtcd(bench.lockrun, bench.etcd, port), bench.etcd.port, section)
        found["etcdctl"] = trips(bench, lambda port: Etcdctl(bench.etcd, port), bench.etcd.port, section)

    for number, (what, redis, postgres, etcd) in enumerate((("before COMMAND starts", 2, 2, 4), ("in all", 3, 4, 5))):
        peers = f"etcdctl lock {found['etcdctl'][0][number]:.1f} by time" if "etcdctl" in found else "-"
        if "Redis" in found:
            by_time, flights = (counts[number] for counts in found["Redis"])
            section.limits.append(limit(f"{what}, Redis, AUTH and SELECT", peers, flights, by_time, redis))
        if "psql" in found:
            # Less its statement.
            handshake = [counts[0] - 1 for counts in found["psql"]]
            by_time, flights = (counts[number] - own for counts, own in zip(found["PostgreSQL"], handshake))
            name = f"{what}, PostgreSQL, over the {handshake[1]:.0f} of its own handshake"
            section.limits.append(limit(name, "-", flights, by_time, postgres))
        if "etcd" in found:
            by_time, flights = (counts[number] for counts in found["etcd"])
            section.limits.append(limit(f"{what}, etcd without TLS and users", peers, flights, by_time, etcd))
    return section


def limit(what, peers, flights, by_time, most):
    # Times are noisy: they must only agree with the flights, which are exact.
    is_met = flights <= most and by_time < most + 0.5
    return Limit(f"round trips {what}", peers, f"{flights:.0f} ({by_time:.2f} by time)", str(most), is_met)


def trips(bench, contender_at, port, section):
    """Adds the row of a contender whose server is at that port. Gives its round trips before COMMAND and in all, by time and by flights."""
    proxy = Proxy(port)
    contender = contender_at(proxy.port)
    slow, quick = [], []
    for _ in range(RUNS):
        quick.append(one_run(bench, contender, proxy, 0.0))
        slow.append(one_run(bench, contender, proxy, ROUND_TRIP / 2))
    proxy.close()
    middle = lambda runs, number: statistics.median(run[number] for run in runs)
    connections = middle(slow, 4)
    before, in_all = ((middle(slow, number) - middle(quick, number)) / ROUND_TRIP + connections for number in (0, 1))
    flights = [middle(slow, number) + connections for number in (2, 3)]
    section.rows.append(
        [contender.name, f"{connections:.0f}", f"{before:.2f}", f"{in_all:.2f}", *(f"{count:.0f}" for count in flights)]
    )
    return (before, in_all), flights


def handshake_flights(bench):
    """How many flights PostgreSQL's own handshake takes, without TCP's: those of psql but its statement and its leave."""
    proxy = Proxy(bench.postgres.port)
    *_, flights, _ = one_run(bench, Psql(bench.postgres, proxy.port), proxy, 0.0)
    proxy.close()
    return flights - 2


def one_run(bench, contender, proxy, delay):
    """Seconds before COMMAND, seconds in all without it, flights before it and in all, and connections."""
    turns = Turns(bench, contender)
    proxy.reset(delay)
    began = time.monotonic()
    took = bench.processes.run(turns.waiter_argv(0))
    (run,) = turns.runs()
    before = run.start / 1e9 - began
    flights_before = sum(at <= run.start / 1e9 for at in proxy.trips)
    return before, took - (run.end - run.start) / 1e9, flights_before, len(proxy.trips), proxy.connections
