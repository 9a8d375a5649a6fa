"""Who is measured: for each program, how it runs a command under a lock and waits for it, and how many wait now."""

import os
import shutil


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

    def __init__(self, binary, redis, port=None, database=0):
        self.binary = binary
        self.redis = redis
        password = f":{redis.password}@" if redis.password else ""
        self.url = f"redis://{password}127.0.0.1:{port or redis.port}/{database}"

    def argv(self, key, command, wait=True, options=()):
        waits = ["--wait"] if wait else []
        return [self.binary, "--store", self.url, "--key", key, *waits, *options, "--", *command]

    def waiting(self, key):
        return self.redis.control.ask("ZCARD", f"lockrun:{{{key}}}:queue")


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
