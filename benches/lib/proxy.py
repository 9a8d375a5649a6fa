"""A network in between: a proxy on loopback that delays all bytes by half a round trip each way, and counts flights.

It cannot delay how a connection is established, because the kernel does that for it: who uses it adds a round trip for
each connection.
"""

import queue
import socket
import threading
import time


class Proxy:
    """Forwards connections to a port. The delay, in seconds each way, may be changed between runs."""

    def __init__(self, port):
        self.target = port
        self.delay = 0.0
        self.connections = 0
        # When each round trip's first bytes came from the client: bytes from the client after bytes from the server.
        self.trips = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self, delay):
        self.delay, self.connections, self.trips = delay, 0, []

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self.connections += 1
            state = {"last": None}
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = queue.SimpleQueue()
                threading.Thread(target=self._read, args=(source, line, is_client, state), daemon=True).start()
                threading.Thread(target=self._write, args=(sink, line), daemon=True).start()

    def _read(self, source, line, is_client, state):
        while True:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            now = time.monotonic()
            if is_client and data and state["last"] != "client":
                self.trips.append(now)
            if data:
                state["last"] = "client" if is_client else "server"
            line.put((now + self.delay, data))
            if not data:
                return

    @staticmethod
    def _write(sink, line):
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return
