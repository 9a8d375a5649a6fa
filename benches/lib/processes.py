"""Starting processes, waiting for them with a bound, and ending whatever is left.

All are started alike: in a session of their own, so without a terminal, as from cron; with an environment of a few
variables and a home directory without settings; with the signal dispositions of a shell.
"""

import os
import signal
import time

_ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_SHELL_DISPOSITIONS = [signal.SIGPIPE, signal.SIGXFSZ]


class Processes:
    """The processes that were started and have not been seen to end."""

    def __init__(self, home):
        path = os.environ.get("PATH", "/usr/bin:/bin")
        self.environment = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "SHELL": "/bin/sh", "USER": "bench"}
        self.errors = os.path.join(home, "stderr")
        self.live = set()
        self.ended = {}
        self.farewells = {}

    def start(self, argv, stdout=None, errors=None, ends_by=None):
        """Starts argv, whose first word is a path.

        Its output goes to a descriptor, without one to /dev/null; its errors to a file, without one to that of all. In the end
        it gets the signal `ends_by`, if one is given, before it is killed.
        """
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, errors or self.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        ]
        if stdout is not None:
            actions[1] = (os.POSIX_SPAWN_DUP2, stdout, 1)
        # A signal that ends the benchmark must not come between a process and the note of it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            pid = os.posix_spawn(
                argv[0], argv, self.environment, file_actions=actions, setsid=True, setsigmask=[],
                setsigdef=_SHELL_DISPOSITIONS,
            )
            self.live.add(pid)
            if ends_by:
                self.farewells[pid] = ends_by
            # The number may have been another process's before.
            self.ended.pop(pid, None)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def wait(self, pids, seconds):
        """Waits for all of them, at most that long. Gives the exit status of those that ended, negative for a signal."""
        until = time.monotonic() + seconds
        while not self._reap(pids) and time.monotonic() < until:
            time.sleep(0.02)
        return {pid: self.ended[pid] for pid in pids if pid in self.ended}

    def _reap(self, pids):
        while self.live:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            self.live.discard(pid)
            self.ended[pid] = os.waitstatus_to_exitcode(status)
        return all(pid in self.ended for pid in pids)

    def has_ended(self, pid):
        return self._reap([pid])

    def run(self, argv):
        """Runs argv. Gives the seconds from before its start to its end."""
        began = time.perf_counter()
        pid = self.start(argv)
        _, status = os.waitpid(pid, 0)
        took = time.perf_counter() - began
        self.live.discard(pid)
        if status != 0:
            raise RuntimeError(f"{os.path.basename(argv[0])} ended with wait status {status}: {self.last_error()}")
        return took

    def kill(self, pid):
        if pid in self.live:
            os.kill(pid, signal.SIGKILL)

    def kill_with_children(self, pid):
        """Kills it and its children, so that none can clean up after the other: as when their machine dies."""
        if pid in self.live:
            os.kill(pid, signal.SIGSTOP)
            for child in children(pid):
                os.kill(child, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)

    def end_all(self):
        """Ends all that are left, and waits for them."""
        for pid in self.live - self.farewells.keys():
            self.kill(pid)
        leaving = self.live & self.farewells.keys()
        for pid in leaving:
            os.kill(pid, self.farewells[pid])
        self.wait(leaving, 10)
        for pid in list(self.live):
            self.kill(pid)
        self.wait(list(self.live), 10)

    def last_error(self):
        """The last line that any of them has written on standard error."""
        try:
            with open(self.errors, encoding="utf-8", errors="replace") as errors:
                return (errors.read().splitlines() or ["nothing on stderr"])[-1]
        except FileNotFoundError:
            return "nothing on stderr"


def children(pid):
    """The children of a process, by /proc."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as line:
            return [int(child) for child in line.read().split()]
    except FileNotFoundError:
        return []


def eventually(condition, seconds, what):
    """Waits until the condition is true, at most that long."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError(f"not within {seconds} s: {what}")
        time.sleep(0.0005)
