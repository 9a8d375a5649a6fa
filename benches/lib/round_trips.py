"""Measures how many round trips to the server a run takes, before COMMAND starts and in all.

By counting flights in a proxy, and by time: what a delay of the network adds to the run, divided by that delay.
"""

import statistics
import time

from .contenders import Etcdctl, LockrunRedis
from .proxy import Proxy
from .report import Limit, Section
from .servers import Redis
from .turns import Turns

ROUND_TRIP = 0.050
RUNS = 9

METHOD = f"""\
{RUNS} runs each through a proxy on loopback that holds back all bytes for {ROUND_TRIP * 500:.0f} ms each way, and as many
through the same proxy without delay. The Redis wants a password and a database other than 0; each run takes a key that
the server has never seen. "by time" is what the delay adds to the median time from lockrun's start to COMMAND's first
instruction (to lockrun's end, less COMMAND's own time), divided by {ROUND_TRIP * 1000:.0f} ms. "by flights" is the median
number of times that bytes from the client followed bytes from the server, or came first, until then. No proxy can delay
the TCP handshake, which the kernel answers, so one round trip a connection is added for it, to both. In HTTP/2, which
etcdctl speaks, either side may send without being asked: there the time is what counts."""

HEADER = ["program", "connections", "by time: before COMMAND", "in all", "by flights: before COMMAND", "in all"]


def measure(bench):
    section = Section("Round trips", METHOD, HEADER)
    times = {}
    if bench.redis:
        redis = Redis(bench.processes, bench.directory, password="bench")
        proxy = Proxy(redis.port)
        contender = LockrunRedis(bench.lockrun, redis, proxy.port, database=3)
        times["lockrun"], counts = trips(bench, contender, proxy, section)
    if bench.etcd:
        proxy = Proxy(bench.etcd.port)
        times["etcdctl"], _ = trips(bench, Etcdctl(bench.etcd, proxy.port), proxy, section)
    if "lockrun" in times:
        for number, (what, limit) in enumerate((("before COMMAND starts", 2), ("in all", 3))):
            peers = f"etcdctl lock {times['etcdctl'][number]:.1f} by time" if "etcdctl" in times else "-"
            by_time, flights = times["lockrun"][number], counts[number]
            # Times are noisy: they must only agree with the flights, which are exact.
            is_met = flights <= limit and by_time < limit + 0.5
            ours = f"{flights:.0f} ({by_time:.2f} by time)"
            section.limits.append(
                Limit(f"round trips {what}, Redis, AUTH and SELECT", peers, ours, str(limit), is_met)
            )
    return section


def trips(bench, contender, proxy, section):
    """Adds the contender's row. Gives its round trips before COMMAND and in all, by time and by flights."""
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
