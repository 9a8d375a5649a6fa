"""Who is measured: for each program, how it runs a command under a lock and waits for it, and how many wait now."""

import os
import shlex
import shutil

from .postgres import SESSIONS, program


def locked_inodes(directory):
    return {str(entry.inode()) for entry in os.scandir(directory)}


def flock_lines(directory):
    """The kernel's lines about flock(2) locks on files in that directory: whether each one is waited for."""
    inodes = locked_inodes(directory)
    with open("/proc/locks", encoding="ascii") as locks:
        lines = [line.split() for line in locks]
    lines = [(words[1] == "->", words[2:] if words[1] == "->" else words[1:]) for words in lines]
    return [waits for waits, words in lines if words[0] == "FLOCK" and words[4].rpartition(":")[2] in inodes]


class Flock:
    """flock(1), a lock file a key."""

    name = "flock"
    program = "flock"

    def __init__(self, directory):
        self.directory = os.path.join(directory, self.program)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)

    def argv(self, key, command, wait=True):
        options = [] if wait else ["--nonblock"]
        return [shutil.which("flock"), *options, f"{self.directory}/{key}", *command]

    def waiting(self, _key):
        return sum(flock_lines(self.directory))


class Lckdo(Flock):
    """lckdo(1)."""

    name = "lckdo"
    program = "lckdo"

    def argv(self, key, command, wait=True):
        options = ["-w"] if wait else []
        return [shutil.which("lckdo"), *options, f"{self.directory}/{key}", *command]


class LockrunFile(Flock):
    """lockrun with its store in files."""

    name = "lockrun, files"
    program = "lockrun"

    def __init__(self, binary, directory):
        super().__init__(directory)
        self.binary = binary

    def argv(self, key, command, wait=True, options=()):
        waits = ["--wait"] if wait else []
        store = f"file:{self.directory}"
        return [self.binary, "--store", store, "--key", key, *waits, *options, "--", *command]

    def waiting(self, _key):
        # Its flock(2) is a turnstile: whoever has it waits too, and those behind wait for it.
        return len(flock_lines(self.directory))


class LockrunRedis:
    """lockrun with its store in a Redis."""

    name = "lockrun, Redis"
    store = "Redis"

    def __init__(self, binary, redis, port=None, database=0):
        self.binary = binary
        self.server = redis
        password = f":{redis.password}@" if redis.password else ""
        self.url = f"redis://{password}127.0.0.1:{port or redis.port}/{database}"

    def argv(self, key, command, wait=True, options=()):
        waits = ["--wait"] if wait else []
        return [self.binary, "--store", self.url, "--key", key, *waits, *options, "--", *command]

    def waiting(self, key):
        return self.server.control.ask("ZCARD", f"lockrun:{{{key}}}:queue")

    def queue(self, key):
        """The tokens of those that wait, in their order."""
        return self.server.control.ask("ZRANGE", f"lockrun:{{{key}}}:queue", 0, -1)


class LockrunPostgres:
    """lockrun with its store in a PostgreSQL."""

    name = "lockrun, PostgreSQL"
    store = "PostgreSQL"

    def __init__(self, binary, postgres, port=None, user="bench"):
        self.binary = binary
        self.server = postgres
        self.url = postgres.url(user, port)

    def argv(self, key, command, wait=True, options=()):
        waits = ["--wait"] if wait else []
        return [self.binary, "--store", self.url, "--key", key, *waits, *options, "--", *command]

    def waiting(self, key):
        return int(self.server.control.ask(f"SELECT count(*) FROM lockrun.waiters WHERE key = '{key}'")[0][0])

    def queue(self, key):
        """The tokens of those that wait, in their order."""
        return [token for (token,) in self.server.control.ask(f"SELECT token FROM lockrun.waiters WHERE key = '{key}' ORDER BY place")]


class LockrunPgBouncer(LockrunPostgres):
    """The same through a pgbouncer in transaction mode."""

    name = "lockrun, pgbouncer"
    store = f"PostgreSQL, pgbouncer with {SESSIONS} sessions"

    def __init__(self, binary, postgres, pgbouncer, user="bench"):
        super().__init__(binary, postgres, pgbouncer.port, user)


class LockrunEtcd:
    """lockrun with its store in an etcd."""

    name = "lockrun, etcd"
    store = "etcd"

    def __init__(self, binary, etcd, port=None):
        self.binary = binary
        self.server = etcd
        self.url = f"etcd://127.0.0.1:{port or etcd.port}"

    def argv(self, key, command, wait=True, options=()):
        waits = ["--wait"] if wait else []
        return [self.binary, "--store", self.url, "--key", key, *waits, *options, "--", *command]

    def waiting(self, key):
        return self.server.count_below(f"lockrun/queue/{key}")

    def queue(self, key):
        """The tokens of those that wait, in their order."""
        return [name.partition("-")[2] for name in self.server.names_below(f"lockrun/queue/{key}")]


class Psql:
    """psql(1), which locks nothing: it logs in, sends one statement, and then runs the command."""

    name = "psql, one statement"

    def __init__(self, postgres, port=None):
        self.url = postgres.url(port=port)

    def argv(self, _key, command, wait=True):
        del wait
        return [program("psql"), "-Xq", self.url, "-c", "SELECT", "-c", "\\! " + shlex.join(command)]


class Etcdctl:
    """etcdctl lock."""

    name = "etcdctl lock"

    def __init__(self, etcd, port=None):
        self.etcd = etcd
        self.endpoint = f"http://127.0.0.1:{port or etcd.port}"

    def argv(self, key, command, wait=True):
        del wait  # It knows no other way.
        return [shutil.which("etcdctl"), f"--endpoints={self.endpoint}", "lock", key, *command]

    def waiting(self, key):
        return max(0, self.etcd.count_below(key) - 1)
