"""Clients that use up shared resources: half-open handshakes, idle connections, garbage. Other clients can open
volumes."""

import socket
import struct
import time

import nbd
from harness import wire
from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until
from harness.wire import Closed, Wire

HALF_OPEN = 500
# Time limit for opening a volume meanwhile. On an idle server it takes 2 ms; a loaded machine may need several
# attempts.
OPEN_SECONDS = 0.1
ATTEMPTS = 5


def failures(server, reason):
    """Handshakes that failed for this reason."""
    return server.metrics()[f'aerogel_nbd_handshake_failures_total{{reason="{reason}"}}']


def refusals(server, limit):
    """Connections refused because of this limit."""
    return server.metrics()[f'aerogel_nbd_connections_refused_total{{limit="{limit}"}}']


class HalfOpen(ServerCase):
    """Connections that never finish their handshake."""

    def connect(self, at):
        half_open = socket.create_connection(at) if isinstance(at, tuple) else socket.socket(socket.AF_UNIX)
        if not isinstance(at, tuple):
            half_open.connect(str(at))
        self.addCleanup(half_open.close)
        return half_open

    def opens_at_once(self, open_one):
        """Opening does not wait for other clients; the best of several attempts, since the machine may be busy."""
        took = []
        for _ in range(ATTEMPTS):
            started = time.monotonic()
            open_one()
            took.append(time.monotonic() - started)
            if took[-1] <= OPEN_SECONDS:
                return
        self.fail(f"to open a volume took {', '.join(f'{seconds * 1000:.0f} ms' for seconds in took)}")

    def test_half_open_handshakes_over_unix(self):
        server = self.serve()
        server.create("v")
        for _ in range(HALF_OPEN):
            self.connect(server.socket)
        self.opens_at_once(lambda: server.open("v").shutdown())
        self.assertGreaterEqual(failures(server, "displaced"), 1, "256 of them stay open at most")

    def test_half_open_handshakes_over_tcp(self):
        server = self.serve(nbd=["tcp:127.0.0.1:0"])
        server.create("v")
        at = server.tcp()
        for _ in range(HALF_OPEN):
            self.connect(at)
        self.opens_at_once(lambda: Wire(at).go("v"))
        self.opens_at_once(lambda: server.open("v").shutdown())

    def test_options_that_never_end(self):
        """Each connection has begun an option, and sends no more of it."""
        server = self.serve()
        server.create("v")
        for _ in range(HALF_OPEN):
            half_open = self.connect(server.socket)
            half_open.sendall(struct.pack(">IQII", 3, wire.IHAVEOPT, wire.GO, 16000) + bytes(8000))
        self.opens_at_once(lambda: server.open("v").shutdown())

    def test_a_client_that_reads_no_answers(self):
        """LIST repeatedly: answers wait in the socket, and further options behind them."""
        server = self.serve()
        for i in range(8):
            server.create(f"v{i}", "1MiB", "--sparse")
        greedy = self.connect(server.socket)
        greedy.sendall(struct.pack(">I", 3))
        greedy.settimeout(0.2)
        try:
            greedy.sendall(struct.pack(">QII", wire.IHAVEOPT, wire.LIST, 0) * 100_000)
        except OSError:
            pass
        self.opens_at_once(lambda: server.open("v1").shutdown())


class Idle(ServerCase):
    """Idle connections."""

    def fill(self, server, name, count):
        """Opens as many connections as are allowed. Returns them, and the answer to the first refused one."""
        taken = []
        for _ in range(count):
            connection = Wire(server.socket)
            self.addCleanup(connection.socket.close)
            answer = connection.go(name)
            if not isinstance(answer, dict):
                return taken, connection, answer
            taken.append(connection)
        return taken, None, None

    def test_a_volume_leaves_connections_to_others(self):
        server = self.serve()
        server.create("crowded")
        server.create("other")
        taken, refused, answer = self.fill(server, "crowded", 1024)
        self.assertEqual((len(taken), answer), (256, wire.ERR_POLICY))
        self.assertGreaterEqual(refusals(server, "volume"), 1)
        self.assertIn(wire.INFO_EXPORT, refused.go("other"), "the handshake goes on after the refusal")
        handle = server.open("other")
        handle.pwrite(b"x" * MIB, 0)
        handle.flush()
        self.assertRaisesRegex(nbd.Error, "policy", server.open, "crowded")
        self.assertIn("'crowded'", server.log())
        with Wire(server.socket) as connection, self.assertRaises(Closed):
            connection.export_name("crowded")
        # A connection that ends makes room for another one.
        taken.pop().socket.close()

        def opens():
            connection = Wire(server.socket)
            self.addCleanup(connection.socket.close)
            return isinstance(connection.go("crowded"), dict)

        until("the place to be free", opens)
        self.assertEqual(taken[0].ask(wire.FLUSH), 0, "those that are open stay so")

    def test_all_tenants_together_leave_each_its_own(self):
        limits = "[limits]\nconnections = 64\nconnections_per_tenant = 60\nconnections_per_volume = 60"
        server = self.serve(config=limits)
        for name in ("a", "b", "c"):
            server.create(name)
        taken, _, _ = self.fill(server, "a", 100)
        self.assertEqual(len(taken), 48, "8 are set aside for each of the others")
        for name in ("b", "c"):
            taken, _, answer = self.fill(server, name, 100)
            self.assertEqual((len(taken), answer), (8, wire.ERR_POLICY), name)
        self.assertGreaterEqual(refusals(server, "disk"), 2)

    def test_the_volumes_of_a_tenant_share_its_connections(self):
        server = self.serve(config="[limits]\nconnections_per_tenant = 20\nconnections_per_volume = 12")
        for name in ("a", "b"):
            server.create(name, "64MiB", "--tenant", "one")
        self.assertEqual(len(self.fill(server, "a", 100)[0]), 12)
        taken, refused, _ = self.fill(server, "b", 100)
        self.assertEqual(len(taken), 8)
        refused.send(struct.pack(">QII", wire.IHAVEOPT, wire.GO, 7) + struct.pack(">I", 1) + b"b\0\0")
        _, _, kind, length = struct.unpack(">QIII", refused.receive(20))
        self.assertIn(b"connections_per_tenant", refused.receive(length))


class Nonsense(ServerCase):
    """Bytes that are not NBD."""

    LINES_MAX = 60

    def flood(self, server, count, misbehave):
        before = len(server.log().splitlines())
        for _ in range(count):
            misbehave()
        return len(server.log().splitlines()) - before

    def test_garbage_on_connect_is_counted_and_hardly_logged(self):
        server = self.serve(nbd=["tcp:127.0.0.1:0"])
        at = server.tcp()

        def misbehave():
            with socket.create_connection(at) as garbage:
                garbage.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything there is\r\n\r\n")

        lines = self.flood(server, 1000, misbehave)
        self.assertLessEqual(lines, self.LINES_MAX)

        def counted():
            reasons = ("garbage", "disconnected", "oldstyle")
            return sum(failures(server, reason) for reason in reasons) >= 1000

        until("all of it to be counted", counted)

    def test_garbage_after_the_handshake_is_counted_and_hardly_logged(self):
        server = self.serve(nbd=["tcp:127.0.0.1:0"])
        server.create("v")
        at = server.tcp()

        def misbehave():
            with Wire(at) as connection:
                connection.go("v")
                connection.send(b"this is no request, whatever it is else")
                connection.closed()

        lines = self.flood(server, 300, misbehave)
        self.assertLessEqual(lines, self.LINES_MAX)
        until("all of it", lambda: server.metrics()['aerogel_nbd_disconnects_total{reason="garbage"}'] >= 300)
        self.assertIn("client=127.0.0.1:", server.log(), "the log says who it was")

    def test_oldstyle_is_refused_and_the_log_says_why(self):
        server = self.serve()
        with Wire(server.socket, client_flags=0) as connection:
            self.assertTrue(connection.closed())
        until("it to be counted", lambda: failures(server, "oldstyle") == 1)
        self.assertIn("oldstyle NBD handshake", server.log())
        self.assertIn("client=user ", server.log().replace('"', ""))


class Listeners(ServerCase):
    """The addresses of the server's listeners."""

    def test_remote_listeners_without_tls_are_refused(self):
        server = self.serve()
        server.stop()
        server.nbd = ["tcp:0.0.0.0:0"]
        server.spawn()
        self.assertNotEqual(server.process.wait(30), 0)
        self.assertIn("--allow-insecure-remote", server.log())
        server.config.write_text(server.config.read_text() + "allow_insecure_remote = true\n")
        server.start()
