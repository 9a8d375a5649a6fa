"""What the measurements were made on: the machine, and the versions of all that took part. No names, no paths."""

import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from .postgres import program


def description(lockrun, directory):
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        cpus = cpuinfo.read()
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        kilobytes = int(meminfo.readline().split()[1])
    model = re.search(r"^model name\s*:\s*(.+)$", cpus, re.MULTILINE)
    virtual = ", virtual machine" if re.search(r"^flags\s*:.*\bhypervisor\b", cpus, re.MULTILINE) else ""
    return [
        f"CPU: {model[1] if model else platform.machine()}, {os.cpu_count()} cores{virtual}",
        f"memory: {kilobytes / 1024 / 1024:.1f} GiB",
        f"kernel: {platform.system()} {platform.release()}",
        f"before the run: {idleness()}",
        f"disk of the servers: {durability(directory)}",
        *(f"{name}: {text}" for name, text in versions(lockrun).items() if text),
    ]


def idleness():
    """What else the machine does."""
    def jiffies():
        with open("/proc/stat", encoding="ascii") as stat:
            return [int(word) for word in stat.readline().split()[1:9]]

    before = jiffies()
    time.sleep(2)
    spent = [late - early for early, late in zip(before, jiffies())]
    idle = 100 * (spent[3] + spent[4]) / max(1, sum(spent))
    judged = "" if idle >= 90 else "; **so the machine was busy with other things, and the times below are disturbed**"
    return f"load average {os.getloadavg()[0]:.2f}, processors {idle:.0f} % idle{judged}"


def durability(directory):
    """What it takes there until a small write is on the disk: PostgreSQL and etcd wait for that with every change."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(50):
            file.write(bytes(8192))
            file.flush()
            began = time.monotonic()
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - began)
    kind = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True).stdout.strip()
    return f"{kind or 'unknown file system'}, fdatasync(2) {statistics.median(times) * 1000:.2f} ms"


def versions(lockrun):
    return {
        "lockrun": said([lockrun, "--version"]),
        "flock": said(["flock", "--version"]),
        "lckdo": packaged("lckdo", "moreutils"),
        "etcd": said(["etcd", "--version"]),
        "etcdctl": said(["etcdctl", "version"]),
        "Redis": said(["redis-server", "--version"]),
        "PostgreSQL": said([program("postgres"), "--version"]),
        "pgbouncer": said([program("pgbouncer"), "--version"]),
        "valgrind": said(["valgrind", "--version"]),
    }


def said(argv):
    """The version in what the program says first; nothing if it is not there."""
    if not argv[0] or not shutil.which(argv[0]):
        return None
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, env={**os.environ, "ETCDCTL_API": "3"})
    found = re.search(r"\d+(\.\d+)+", done.stdout)
    return found[0] if found else "unknown version"


def packaged(program, package):
    if not shutil.which(program):
        return None
    if not shutil.which("dpkg-query"):
        return f"of {package}, unknown version"
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return f"of {package} {asked.stdout or 'of unknown version'}"
