"""A private PostgreSQL, a pgbouncer before it, and a client that looks into the server.

Neither runs as root: where the benchmark does, they run as `nobody`.
"""

import glob
import os
import pwd
import shutil
import signal
import socket
import struct
from collections import Counter

from .processes import eventually
from .servers import free_port, started

PASSWORD = "bench"
MAX_CONNECTIONS = 1200
# How many sessions the pooler has at the server, however many clients it has.
SESSIONS = 10


def program(name):
    """Where a program of PostgreSQL's is; Debian has those of each version in a directory of their own. Nothing if there is none."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


def directory_of_nobody(directory, name):
    """Makes a directory for a server, which belongs to whoever runs it."""
    path = os.path.join(directory, name)
    os.mkdir(path, 0o700)
    if os.geteuid() == 0:
        # On the way to it.
        os.chmod(directory, 0o711)
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return path


def unprivileged(argv):
    """The call as it must be: these programs refuse to run as root."""
    if os.geteuid() != 0:
        return argv
    nobody = pwd.getpwnam("nobody")
    return [shutil.which("setpriv"), "--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups", "--", *argv]


class Postgres:
    """A PostgreSQL as initdb makes it, which writes every commit to disk before it answers, with room for many connections.

    Whoever comes over the network needs a password. There are two users: `bench`, and `counted`, whose statements the server logs.
    """

    def __init__(self, processes, directory):
        self.port = free_port()
        self.directory = directory_of_nobody(directory, "postgres")
        self.log = os.path.join(directory, "postgres.log")
        data = os.path.join(self.directory, "data")
        processes.run(
            unprivileged(
                [program("initdb"), "-D", data, "-U", "postgres", "-E", "UTF8", "--no-locale", "--auth-local=trust",
                 "--auth-host=scram-sha-256"]
            )
        )
        options = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self.directory,
            "max_connections": MAX_CONNECTIONS, "log_line_prefix": "%p ",
            # In its directory, so that nothing stays behind if it is killed.
            "dynamic_shared_memory_type": "mmap",
        }
        argv = [program("postgres"), "-D", data]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        started(processes, unprivileged(argv), errors=self.log, ends_by=signal.SIGINT)
        eventually(self._answers, 30, "the PostgreSQL server is ready")
        self.control = PostgresClient(f"{self.directory}/.s.PGSQL.{self.port}")
        for name in ("bench", "counted"):
            self.control.ask(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
        self.control.ask("ALTER ROLE counted SET log_statement = 'all'")
        self.control.ask("ALTER ROLE counted SET log_parameter_max_length = 0")

    def _answers(self):
        try:
            PostgresClient(f"{self.directory}/.s.PGSQL.{self.port}")
            return True
        except OSError:
            return False

    def url(self, user="bench", port=None):
        return f"postgres://{user}:{PASSWORD}@127.0.0.1:{port or self.port}/postgres"

    def connections(self):
        """The sessions of `counted`, by the numbers of their processes."""
        return {int(pid) for (pid,) in self.control.ask("SELECT pid FROM pg_stat_activity WHERE usename = 'counted'")}

    def watch(self):
        """Gives a function that gives the sender of each request that has come since now, and of which kind it was."""
        offset = os.path.getsize(self.log)
        return lambda: self._requests(offset)

    def sent_by_clients(self):
        """How many requests `counted` has sent so far, by kind."""
        return Counter(kind for _, kind in self._requests(0))

    def _requests(self, offset):
        """What travels in one flight is one request: the first or the second half of a transaction, or a statement by itself.

        The log has statements. The reading half ends with the question for the waiters; where that is asked again, for all of them,
        it is a request more.
        """
        # A place is renewed in one request.
        requests, asked, begun, whole = [], {}, {}, set()
        with open(self.log, encoding="utf-8", errors="replace") as log:
            log.seek(offset)
            for line in log:
                pid, _, rest = line.partition(" ")
                statement = rest.partition(": ")[2].partition(": ")[2] if rest.startswith("LOG:  execute") else ""
                if not statement:
                    continue
                if statement.startswith("BEGIN"):
                    asked[pid] = False
                    begun[pid] = len(requests)
                    requests.append((int(pid), "first half"))
                elif statement.startswith("COMMIT"):
                    if pid not in whole:
                        requests.append((int(pid), "second half"))
                    whole.discard(pid)
                elif "SET ends_ms = greatest" in statement:
                    requests[begun[pid]] = (int(pid), "place")
                    whole.add(pid)
                elif statement.startswith("SELECT now.ms"):
                    if asked.get(pid):
                        requests.append((int(pid), "more waiters"))
                    asked[pid] = True
                elif statement.startswith("SELECT state, key") and "OPERATOR" in statement:
                    requests.append((int(pid), "record"))
        return requests


class PgBouncer:
    """A pgbouncer in transaction mode, with few sessions at the server."""

    def __init__(self, processes, directory, postgres):
        self.port = free_port()
        own = directory_of_nobody(directory, "pgbouncer")
        users, settings = os.path.join(directory, "users"), os.path.join(directory, "pgbouncer.ini")
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={postgres.port}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = scram-sha-256",
            f"auth_file = {users}",
            "pool_mode = transaction",
            f"default_pool_size = {SESSIONS}",
            f"max_client_conn = {MAX_CONNECTIONS}",
            f"logfile = {own}/log",
        ]
        for path, text in ((settings, lines), (users, [f'"{name}" "{PASSWORD}"' for name in ("bench", "counted")])):
            with open(path, "w", encoding="ascii") as file:
                file.write("\n".join(text) + "\n")
        # Not on standard error, where the last line of a run is looked for.
        started(processes, unprivileged([program("pgbouncer"), "-q", settings]), errors=os.devnull)
        eventually(self._answers, 10, "pgbouncer is ready")

    def _answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return True
        except OSError:
            return False


class PostgresClient:
    """As much of PostgreSQL's protocol as is needed here, over a local socket, for the user `postgres`."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(10)
        self.socket.connect(path)
        self.answers = self.socket.makefile("rb")
        words = b"".join(word.encode() + b"\0" for word in ("user", "postgres", "database", "postgres"))
        message = struct.pack("!I", 196608) + words + b"\0"
        self.socket.sendall(struct.pack("!I", len(message) + 4) + message)
        self._rows()

    def ask(self, statement):
        """The rows, as text."""
        body = statement.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!I", len(body) + 4) + body)
        return self._rows()

    def _rows(self):
        rows, error = [], None
        while True:
            head = self.answers.read(5)
            if len(head) < 5:
                raise ConnectionError(error or "the server has closed the connection")
            body = self.answers.read(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] == b"D":
                rows.append(self._row(body))
            elif head[:1] == b"E":
                error = body.replace(b"\0", b" ").decode(errors="replace")
            elif head[:1] == b"Z":
                if error:
                    raise ConnectionError(error)
                return rows

    @staticmethod
    def _row(body):
        values, at = [], 2
        while at < len(body):
            (length,) = struct.unpack_from("!i", body, at)
            at += 4
            values.append(None if length < 0 else body[at:at + length].decode())
            at += max(0, length)
        return tuple(values)
