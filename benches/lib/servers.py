"""Private servers on free ports of the loopback interface: a Redis and an etcd, and clients that look into them. PostgreSQL
is in `postgres`.

A server's data lie in the benchmark's temporary directory. It is ended by its pid when the benchmark ends, and killed by
the kernel should the benchmark itself be killed (setpriv(1), of the same package as flock(1)).
"""

import base64
import http.client
import itertools
import json
import os
import shutil
import socket

from .processes import eventually

# The commands of Redis by which lockrun, or any client like it, may talk to it from outside, and which its scripts do not
# use inside. A server counts both alike.
SENT_BY_CLIENTS = (
    "eval", "evalsha", "eval_ro", "fcall", "script", "function", "blpop", "brpop", "blmove", "bzpopmin", "subscribe",
    "psubscribe", "ssubscribe", "publish", "auth", "select", "hello", "client", "ping", "multi", "exec", "watch", "wait",
)


_numbers = itertools.count(1)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def started(processes, argv, **options):
    """Starts a server that dies with us."""
    setpriv = shutil.which("setpriv")
    return processes.start(([setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []) + argv, **options)


class Redis:
    """A Redis that writes nothing to disk; otherwise as Debian's redis-server is without a configuration."""

    def __init__(self, processes, directory, password=None):
        self.port = free_port()
        self.password = password
        options = {"port": self.port, "bind": "127.0.0.1", "dir": directory, "save": "", "logfile": f"{directory}/redis.log"}
        if password:
            options["requirepass"] = password
        argv = [shutil.which("redis-server")]
        for name, value in options.items():
            argv += [f"--{name}", str(value)]
        started(processes, argv)
        eventually(self._answers, 10, "the Redis server is ready")
        self.control = self.connect()

    def _answers(self):
        try:
            self.connect().ask("PING")
            return True
        except OSError:
            return False

    def connect(self):
        client = RedisClient(self.port)
        if self.password:
            client.ask("AUTH", self.password)
        return client

    def connections(self):
        """The addresses of all connections."""
        lines = self.control.ask("CLIENT", "LIST").splitlines()
        return {word.removeprefix("addr=") for line in lines for word in line.split() if word.startswith("addr=")}

    def watch(self):
        """Gives a function that gives the sender of each command that has come since now, and which command that was.

        Our own are not among them, nor those that scripts call.
        """
        monitor = self.connect()
        monitor.ask("MONITOR")
        marker = f"the end of watch {next(_numbers)}"

        def seen():
            self.control.ask("ECHO", marker)
            found = []
            while marker not in (line := monitor.reply()):
                sender, _, command = line.partition("[")[2].partition("]")
                sender = sender.partition(" ")[2]
                if sender not in ("lua", self.control.address):
                    found.append((sender, command.split('"')[1].lower()))
            return found

        return seen

    def sent_by_clients(self):
        """How many commands clients have sent so far, by command.

        The server counts a command that blocks when it ends: those that are blocked now are added.
        """
        sent = {}
        for line in self.control.ask("INFO", "commandstats").splitlines():
            name, _, values = line.removeprefix("cmdstat_").partition(":")
            name = name.partition("|")[0]
            if name in SENT_BY_CLIENTS:
                calls = int(values.partition("calls=")[2].partition(",")[0])
                sent[name] = sent.get(name, 0) + calls
        blocked = self.control.ask("INFO", "clients").partition("blocked_clients:")[2].split()[0]
        sent["blpop"] = sent.get("blpop", 0) + int(blocked)
        return sent


class RedisClient:
    """As much of Redis's protocol as is needed here."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb")

    @property
    def address(self):
        """As the server shows it."""
        return "{}:{}".format(*self.socket.getsockname())

    def send(self, *words):
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            data = str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        self.socket.sendall(b"".join(parts))

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def reply(self):
        line = self.replies.readline().rstrip(b"\r\n")
        kind, rest = line[:1], line[1:].decode(errors="replace")
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.replies.read(int(rest) + 2)[:-2].decode(errors="replace")
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        raise ConnectionError(rest or "the server has closed the connection")


class Etcd:
    """An etcd of one member with its defaults, which write every change to disk before they answer."""

    def __init__(self, processes, directory):
        self.port = free_port()
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        argv = [shutil.which("etcd"), "--name", "bench", "--data-dir", os.path.join(directory, "etcd")]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"bench={peer}"]
        started(processes, argv)
        self.own_requests = 0
        eventually(self._answers, 20, "the etcd server is ready")
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def _answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return json.load(connection.getresponse()).get("health") == "true"
        except (OSError, ValueError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def count_below(self, name):
        """How many keys lie below name: for etcdctl, one for the holder of that lock, and one for each waiter."""
        return int(self._range(name, count_only=True).get("count", 0))

    def names_below(self, name):
        """The last parts of the names of the keys below name, in their order."""
        keys = (base64.b64decode(pair["key"]).decode() for pair in self._range(name, keys_only=True).get("kvs", []))
        return [key.rpartition("/")[2] for key in keys]

    def _range(self, name, **options):
        self.own_requests += 1
        encoded = {"key": f"{name}/", "range_end": f"{name}0"}
        query = {field: base64.b64encode(text.encode()).decode() for field, text in encoded.items()}
        self.connection.request("POST", "/v3/kv/range", json.dumps({**query, **options}))
        return json.load(self.connection.getresponse())

    def sent_by_clients(self):
        """How many requests clients have sent so far, by kind. A watch counts once, when it begins; ours do not count."""
        self.connection.request("GET", "/metrics")
        sent = {}
        for line in self.connection.getresponse().read().decode().splitlines():
            name, _, count = line.rpartition(" ")
            if name.startswith("grpc_server_started_total{"):
                kind = name.partition('grpc_method="')[2].partition('"')[0]
                sent[kind] = sent.get(kind, 0) + int(float(count))
        sent["Range"] = sent.get("Range", 0) - self.own_requests
        return sent
