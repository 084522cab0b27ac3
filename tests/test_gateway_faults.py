"""A gateway under load while its server is stopped and killed, and while it is killed itself.

The server is ours, nbdkit or qemu-nbd. `make test-long` has twenty rounds.
"""

import os
import random
import signal
import subprocess
import threading
import time

import nbd
from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
FAULTS = 20 if LONG else 2
STOPPED_SECONDS = 20 if LONG else 1
SIZE = 64 * MIB
BLOCK = 4096
CLIENTS = 3
BLOCKS = 1500  # Of each client: more than the cache of the gateway holds.


class Stranger:
    """A server of another make on a file, that can be killed and started again."""

    def __init__(self, scratch, kind):
        self.file, self.socket = scratch / "stranger.img", scratch / "stranger.sock"
        self.file.write_bytes(b"")
        os.truncate(self.file, SIZE)
        command = {
            "nbdkit": ["nbdkit", "--foreground", "--unix", self.socket, "file", self.file],
            "qemu-nbd": ["qemu-nbd", "--persistent", "--shared=64", "--format=raw", "--socket", self.socket, self.file],
        }
        self.command = command[kind]
        self.process = None

    def uri(self, _):
        return f"nbd+unix:///?socket={self.socket}"

    def start(self):
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        until("the server to listen", self.socket.is_socket, 30)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def pid(self):
        return self.process.pid


class Client(threading.Thread):
    """Writes numbered blocks of its own range, reads them back, and flushes; an error ends it."""

    def __init__(self, gateway, number, seed, possible):
        super().__init__()
        self.gateway, self.first, self.rng = gateway, number * BLOCKS, random.Random(seed)
        # What each block may contain: one value, or several after the gateway was killed.
        self.possible = possible
        # What each block may contain after the gateway is killed: what it may since the last flush.
        self.since_flush = {block: set(values) for block, values in possible.items()}
        self.ending, self.error, self.requests, self.killed = threading.Event(), None, 0, False

    def run(self):
        try:
            handle = self.gateway.open("gw")
            while not self.ending.is_set():
                self.act(handle)
        except nbd.Error as error:
            if not self.killed:
                self.error = error
        except AssertionError as error:
            self.error = error

    def act(self, handle):
        block, kind = self.first + self.rng.randrange(BLOCKS), self.rng.random()
        self.requests += 1
        if kind < 0.02:
            handle.flush()
            self.since_flush = {block: set(values) for block, values in self.possible.items()}
        elif kind < 0.6:
            value, before = self.rng.randrange(1, 1 << 40), self.possible.get(block, {0})
            self.possible[block] = before | {value}
            self.since_flush.setdefault(block, {0}).add(value)
            handle.pwrite(value.to_bytes(8, "little") * (BLOCK // 8), block * BLOCK)
            self.possible[block] = {value}
        else:
            found = content(handle, block)
            assert found in self.possible.get(block, {0}), f"block {block}: {found}"
            self.possible[block] = {found}


def content(handle, block):
    """The number in a block, which is full of it."""
    data = handle.pread(BLOCK, block * BLOCK)
    assert data == data[:8] * (BLOCK // 8), f"block {block} is torn"
    return int.from_bytes(data[:8], "little")


class GatewayFaults(ServerCase):
    def begin(self, kind):
        self.kind = kind
        self.behind = self.serve(name="behind") if kind == "ours" else Stranger(self.scratch, kind)
        if kind == "ours":
            self.behind.create("db", str(SIZE))
        else:
            self.addCleanup(self.behind.kill)
            self.behind.start()
        self.server = self.serve(name="gateway", cache="32MiB")
        self.server.cli("volume", "create", "gw", "--from", self.behind.uri("db"), "--cache", "8MiB")
        self.possible = [{} for _ in range(CLIENTS)]

    def clients(self, turn):
        clients = [Client(self.server, at, 100 * turn + at, self.possible[at]) for at in range(CLIENTS)]
        for client in clients:
            client.start()
        return clients

    def work(self, clients):
        """Lets each client do some more."""
        before = [client.requests for client in clients]
        done = lambda: all(c.error or c.requests > b + 50 for c, b in zip(clients, before))
        until("the clients to go on", done, 90)
        self.assertEqual([client.error for client in clients], [None] * CLIENTS)

    def end(self, clients):
        for client in clients:
            client.ending.set()
        for client in clients:
            client.join(90)
        self.assertEqual([client.error for client in clients], [None] * CLIENTS)

    def check_behind(self):
        """Everything is on the server behind, when the gateway has flushed and ended."""
        self.server.open("gw").flush()
        self.server.stop()
        handle = nbd.NBD()
        handle.connect_uri(self.behind.uri("db"))
        for possible in self.possible:
            for block, values in possible.items():
                self.assertIn(content(handle, block), values, f"block {block}")

    def kill_and_stop(self, kind):
        self.begin(kind)
        clients = self.clients(0)
        for _ in range(FAULTS):
            self.work(clients)
            os.kill(self.behind.pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            os.kill(self.behind.pid, signal.SIGCONT)
            self.work(clients)
            self.behind.kill()
            time.sleep(random.Random(kind).random() / 4)
            self.behind.start()
        self.work(clients)
        self.end(clients)
        upstream = self.server.json("volume", "show", "gw")["upstream"]
        self.assertGreaterEqual(upstream["reconnects"], FAULTS)
        self.check_behind()

    def test_our_server_is_stopped_and_killed(self):
        self.kill_and_stop("ours")

    def test_nbdkit_is_stopped_and_killed(self):
        self.kill_and_stop("nbdkit")

    def test_qemu_nbd_is_stopped_and_killed(self):
        self.kill_and_stop("qemu-nbd")

    def test_the_gateway_is_killed(self):
        self.begin("ours")
        for turn in range(FAULTS + 1):
            clients = self.clients(turn)
            self.work(clients)
            for client in clients:
                client.killed = True
            self.server.kill()
            self.end(clients)
            for at, client in enumerate(clients):
                self.possible[at] = client.since_flush
            begun = time.monotonic()
            self.server.start()
            self.server.open("gw").pread(BLOCK, SIZE - BLOCK)
            if LONG:
                self.assertLess(time.monotonic() - begun, 5.0)
        clients = self.clients(FAULTS + 1)
        self.work(clients)
        self.end(clients)
        self.check_behind()
