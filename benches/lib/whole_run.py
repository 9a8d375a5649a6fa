"""Measures what a whole run around true(1) costs: its time, beside flock(1) and others, and its instructions.

One round runs every program once, in an order that changes from round to round, so that a slow moment of the machine
hits all of them alike. The ratio to flock's time is taken within each round.
"""

import os
import re
import shutil
import statistics
import subprocess

from .contenders import Etcdctl, Flock, Lckdo, LockrunFile
from .report import Limit, Section

ROUNDS = 500
# The programs that take long take part in one of so many rounds.
RARELY = 10

METHOD = f"""\
{ROUNDS} rounds; in each, every program runs `true` once under a lock that is free, and the order changes from round to
round. A time is from before posix_spawn(3) to after wait(2) in one driver. "of flock" is the median over the rounds of a
program's time divided by flock's time in the same round, followed by the middle half of those ratios. `true` alone is
the cost of fork and exec without any lock. Programs that talk to a server, which is on the same machine, take part in
every {RARELY}th round.

Instructions are those that the program's own process executes in user space, by callgrind, including its loader but not
COMMAND. They do not include the kernel's share, which is most of the time of such a run."""


def measure(bench):
    true = [shutil.which("true")]
    file_store = LockrunFile(bench.lockrun, bench.directory)
    programs = {"flock": Flock(bench.directory).argv("true", true, wait=False)}
    if shutil.which("lckdo"):
        programs["lckdo"] = Lckdo(bench.directory).argv("true", true, wait=False)
    programs[file_store.name] = file_store.argv("true", true, wait=False)
    programs["true alone"] = true
    rare = {}
    for contender in bench.lease_stores():
        rare[contender.name] = contender.argv("true", true, wait=False)
    if bench.etcd:
        rare[Etcdctl.name] = Etcdctl(bench.etcd).argv("true", true)

    times = time_rounds(bench, programs, rare)
    ratios = {name: [time / times["flock"][number] for number, time in taken.items()] for name, taken in times.items()}
    instructions = {name: count_instructions(bench, argv) for name, argv in programs.items()}

    section = Section("A whole run around `true`", METHOD, ["program", "median", "of flock", "middle half", "instructions"])
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(ratios[name], n=4)
        count = instructions.get(name)
        time = f"{statistics.median(taken.values()) * 1e6:.0f} us"
        section.rows.append([name, time, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{count:,}" if count else "-"])

    middle = {name: statistics.median(found) for name, found in ratios.items()}
    peers = ", ".join(f"{name} {middle[name]:.2f}" for name in ("flock", "lckdo", Etcdctl.name) if name in middle)
    # The table shows two digits, and they are what is compared.
    ours = round(middle[file_store.name], 2)
    section.limits.append(
        Limit("whole run around `true`, files, of flock's time", peers, f"{ours:.2f}", "at most 0.95", ours <= 0.95)
    )
    return section


def time_rounds(bench, programs, rare):
    """Seconds by program and round."""
    times = {name: {} for name in [*programs, *rare]}
    for argv in [*list(programs.values()) * 20, *rare.values()]:
        bench.processes.run(argv)
    for number in range(ROUNDS):
        taking_part = list({**programs, **(rare if number % RARELY == 0 else {})}.items())
        shift = number % len(taking_part)
        for name, argv in taking_part[shift:] + taking_part[:shift]:
            times[name][number] = bench.processes.run(argv)
    return times


def count_instructions(bench, argv):
    """Those of the program's own process; nothing if valgrind is not installed or cannot run it."""
    if not shutil.which("valgrind"):
        return None
    pattern = os.path.join(bench.directory, "callgrind.%p")
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={pattern}", *argv]
    process = subprocess.Popen(
        valgrind, env=bench.processes.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        if process.wait(60) != 0:
            return None
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
    # A child that forks has a file of its own, under its own number.
    with open(pattern.replace("%p", str(process.pid)), encoding="ascii", errors="replace") as profile:
        found = re.search(r"^(?:summary|totals): (\d+)", profile.read(), re.MULTILINE)
    return int(found[1]) if found else None
