"""Latency of a tenant's requests while another tenant attacks (docs/design/thread.md).

The victim reads 4 KiB at a time on its own volume, first alone and then under attack, in the same run. All attacks are
written against `connect`, so that each runs over Unix sockets and over TLS.
"""

import os
import ssl
import unittest

from harness import attack, places, wire
from harness.attack import GIB, Attack, flood, header, measure
from harness.case import ServerCase
from harness.certificates import Authority
from harness.server import MIB
from harness.wait import until
from harness.wire import Wire

# `make bench-attacks`, on an idle machine, compares p99 with that of the victim alone. The gate shares the machine,
# whose noise is as long as that, and the kernel's own work for flushes is longer: the gate asserts that nobody is
# denied service. Without steps of bounded work a median of 7 to 39 ms, a p99 of 15 to 50 ms, or a wait of 5 to 26 s was
# seen.
#
# The 99th percentile has three CPU slices of the kernel, 3 ms each, and what the victim alone has in the same run.
GATE_SECONDS_MAX = {0.5: 0.002, 0.99: 0.01, 1.0: 1.0}
# Keys of the configuration, and names of the files.
FILES = [("certificate", "cert"), ("key", "key")]
# Attempts of a whole measurement, of which one has to succeed.
ATTEMPTS = 3
LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
SECONDS = float(os.environ.get("AEROGEL_TEST_ATTACK_SECONDS", "1"))


def ranges(*commands):
    """Requests of 1 GiB."""
    return lambda rng: header(rng.choice(commands), rng.getrandbits(32), 0, GIB)


class Clients(ServerCase):
    """A server, and bare clients of it over a Unix socket."""

    def listen(self, **more):
        """Starts a server that these clients can reach."""
        return self.serve(**more)

    def connect(self, server, volume, **more):
        """A connection to a volume after the handshake. Only this and `listen` depend on the transport."""
        return self.open(Wire(server.socket, **more), volume)

    def open(self, client, volume):
        """Completes the handshake. The server may refuse at a limit on connections."""
        if not isinstance(client.go(volume), dict):
            client.socket.close()
            raise wire.Closed()
        return client


class OverTls(Clients):
    """The same over TCP and TLS."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pki = places.scratch("pki")
        cls.addClassCleanup(places.discard, cls.pki)
        cls.authority = Authority(cls.pki / "ca")
        cls.files = cls.authority.sign(cls.pki / "server", "server", "/CN=storage1", "DNS:localhost,IP:127.0.0.1")

    def listen(self, config="", **more):
        certificate, key = (f'{what} = "{self.files}/server-{file}.pem"' for what, file in FILES)
        lines = [config, "[tls]", certificate, key]
        server = self.serve(config="\n".join(lines), nbd=["tcp:127.0.0.1:0,tls=require"], **more)
        # Determined once, since each query is a command of its own.
        self.at, self.context = server.tcp(), ssl.create_default_context(cafile=str(self.authority.certificate))
        return server

    def connect(self, server, volume, **more):
        client = Wire(self.at, **more)
        client.start_tls(self.context)
        return self.open(client, volume)


class Attacks(Clients):
    """A tenant with enough clients to use two processors, against a tenant with one client at depth 1."""

    def scene(self, cache="512MiB", victim="64MiB", attacker="2GiB", sparse=True, disks=(None, None), **pinned):
        """A server with both volumes, each on the default disk or on another one (name, then arguments of `disk
        add`)."""
        server = self.listen(cache=cache)
        for name, *words in sorted({tuple(disk) for disk in disks if disk}):
            server.cli("disk", "add", name, *words)
        on = [["--disk", disk[0]] if disk else [] for disk in disks]
        server.create("victim", victim, *on[0])
        server.create("attacker", attacker, *(["--sparse"] if sparse else []), *on[1])
        self.addCleanup(attack.pin(server.pid, **pinned))
        return server

    def fill(self, server, volume, size):
        """Writes all of it, and flushes."""
        handle = server.open(volume)
        for at in range(0, size, 4 * MIB):
            handle.pwrite(os.urandom(MIB) * 4, at)
        handle.flush()
        handle.shutdown()

    def compare(self, server, factor, attack_of, size=16 * MIB):
        """In one of several attempts, the victim's 99th percentile under attack is at most `factor` times that alone;
        in the gate, its latencies are at most those of GATE_SECONDS_MAX longer than alone."""
        victim = lambda: self.connect(server, "victim")
        said, best = [], None
        for _ in range(ATTEMPTS):
            with attack.Awake():
                alone = measure(victim, size, SECONDS)
            # Work that an attack leaves behind may continue for a while, during which the victim is not alone.
            best = min(best or alone, alone, key=lambda latencies: latencies.at(0.99))
            with attack.Awake(), attack_of():
                beside = measure(victim, size, SECONDS)
            said.append(f"alone: {alone}; beside the attack: {beside}")
            if os.environ.get("AEROGEL_TEST_SAY"):
                print(f"{self.id().rsplit('.', 1)[1]}: {said[-1]}", flush=True)
            if attack.TIGHT:
                bounds = {0.99: factor * best.at(0.99)}
            else:
                bounds = {part: most + best.at(part) for part, most in GATE_SECONDS_MAX.items()}
            if all(beside.at(part) <= most for part, most in bounds.items()):
                return
        bounds = ", ".join(f"{part * 100:g} %: {most * 1e3:.2f} ms" for part, most in bounds.items())
        self.fail(f"beyond the bounds ({bounds}):\n" + "\n".join(said))

    def attacker(self, server):
        return lambda: self.connect(server, "attacker")

    def flooded(self, factor, connections, depth, choose, reads=True, **scene):
        """A flood of one kind of request against reads that hit the cache."""
        server = self.scene(**scene)
        self.fill(server, "victim", 16 * MIB)
        attackers = lambda: Attack(flood, self.attacker(server), connections, depth, choose, reads)
        self.compare(server, factor, attackers)
        return server

    def test_128_caches_of_a_gib(self):
        self.flooded(2, 1, 128, ranges(wire.CACHE))

    def test_3000_trims_caches_and_zeroes_of_a_gib(self):
        self.flooded(3, 50, 60, ranges(wire.TRIM, wire.CACHE, wire.WRITE_ZEROES))

    def test_3000_trims_of_what_is_cached(self):
        server = self.scene(cache="1GiB")
        self.fill(server, "victim", 16 * MIB)
        self.fill(server, "attacker", 256 * MIB)
        choose = ranges(wire.TRIM, wire.CACHE)
        self.compare(server, 3, lambda: Attack(flood, self.attacker(server), 50, 60, choose))

    def test_3000_trims_and_caches_that_undo_each_other(self):
        # A preallocated volume: each CACHE reads its blocks from the disk, and TRIM drops them again.
        server = self.scene(cache="512MiB", sparse=False, attacker="1GiB")
        self.fill(server, "victim", 16 * MIB)
        self.fill(server, "attacker", 256 * MIB)
        choose = lambda rng: header(rng.choice((wire.TRIM, wire.CACHE)), 0, 0, 256 * MIB)
        self.compare(server, 3, lambda: Attack(flood, self.attacker(server), 50, 60, choose))

    def test_overlapping_writes_and_trims(self):
        def choose(rng):
            at, length = rng.randrange(1024) * 4096, rng.randrange(1, 17) * 4096
            if rng.random() < 0.5:
                return header(wire.WRITE, 0, at, length, wire.FUA * (rng.random() < 0.2)) + bytes(length)
            return header(rng.choice((wire.TRIM, wire.WRITE_ZEROES)), 0, at, rng.randrange(1, 1024) * 4096)

        self.flooded(3, 16, 32, choose)

    def test_flushes(self):
        def choose(rng):
            if rng.random() < 0.2:
                return header(wire.WRITE, 0, rng.randrange(4096) * 4096, 4096, wire.FUA) + bytes(4096)
            return header(wire.FLUSH, 0, 0, 0)

        self.flooded(3, 16, 64, choose)

    def test_reads_of_32_mib_that_nobody_takes(self):
        choose = lambda rng: header(wire.READ, 0, rng.randrange(32) * 32 * MIB, 32 * MIB)
        self.flooded(3, 100, 16, choose, reads=False)

    def test_connections_that_come_and_go(self):
        server = self.scene()
        self.fill(server, "victim", 16 * MIB)
        choose = lambda rng: header(rng.choice((wire.READ, wire.CACHE, wire.TRIM)), 0, 0, 32 * MIB)
        self.compare(server, 3, lambda: Attack(attack.connects, self.attacker(server), choose))

    def test_a_victim_on_another_disk(self):
        second = ("second", self.scratch / "second", "--force")
        choose = ranges(wire.TRIM, wire.CACHE, wire.WRITE_ZEROES)
        self.flooded(3, 50, 60, choose, disks=(second, None), elsewhere=("tls", "disk second"))

    def test_an_insulated_disk(self):
        both = ("hdd", "sim:cheetah-15k5")
        self.flooded(3, 1, 128, ranges(wire.CACHE), sparse=False, attacker="1GiB", disks=(both, both))

    def test_a_disk_that_hangs(self):
        """Reads of cached blocks are answered as usual while the device answers no requests."""
        server = self.scene(sparse=False, attacker="1GiB")
        self.fill(server, "victim", 16 * MIB)
        victim = lambda: self.connect(server, "victim")
        measure(victim, 16 * MIB, 0.1)
        server.cli("disk", "fault", "add", "default", "stuck", "read", "--yes")
        self.compare(server, 2, lambda: Attack(flood, self.attacker(server), 1, 128, ranges(wire.CACHE)))
        server.cli("disk", "fault", "clear", "default")

    def test_3000_ranges_against_reads_that_miss(self):
        # Without insulation the disk is first come, first served: reads wait for the attacker's requests in it.
        server = self.scene(cache="64MiB", victim="256MiB")
        self.fill(server, "victim", 256 * MIB)
        choose = ranges(wire.TRIM, wire.CACHE, wire.WRITE_ZEROES)
        self.compare(server, 3, lambda: Attack(flood, self.attacker(server), 50, 60, choose), size=256 * MIB)


class StalledWriters(Clients):
    """Clients that announce a payload and do not send it."""

    def test_another_volume_of_the_tenant_goes_on(self):
        server = self.listen(cache="64MiB")
        server.create("stalled", "1GiB", "--sparse", "--tenant", "t")
        server.create("other", "64MiB", "--tenant", "t")
        stalled = []
        for _ in range(200):
            client = self.connect(server, "stalled")
            client.request(wire.WRITE, 0, 32 * MIB)
            stalled.append(client)
        with self.connect(server, "other") as other:
            for at in range(64):
                self.assertEqual(other.ask(wire.WRITE, at * 65536, 65536, payload=bytes(65536)), 0)
        # Those that still wait for frames need frames that the others hold, so the others time out.
        counter = 'aerogel_volume_stalled_disconnects_total{disk="default",volume="stalled",tenant="t"}'
        until("stalled writers to be disconnected", lambda: server.metrics()[counter] > 0, 60)
        self.assertIn("does not send the payload of its write", server.log())
        for client in stalled:
            client.socket.close()


class AttacksOverTls(OverTls, Attacks):
    """Victim and attacker over TLS."""

    # Over TLS all attacks take the same code path: the gate runs two representative ones.
    IN_THE_GATE = ["test_128_caches_of_a_gib", "test_3000_trims_caches_and_zeroes_of_a_gib"]

    def setUp(self):
        super().setUp()
        if not LONG and not attack.TIGHT and self._testMethodName not in self.IN_THE_GATE:
            self.skipTest("like those in the gate, in `make test-long`")


class StalledWritersOverTls(OverTls, StalledWriters):
    """Each record that is announced and does not arrive is a TLS record."""


if __name__ == "__main__":
    unittest.main()
