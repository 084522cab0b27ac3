"""Gateways to a cluster: volumes that are striped over its servers, one gateway at a time."""

import re
import signal
import threading
import time
import unittest

import nbd

from harness import places
from harness.certificates import Authority
from harness.etcd import free_ports
from harness.gateway import Load, Verified
from harness.server import MIB, run
from harness.wait import until
from test_cluster import ClusterCase, describe
from test_striped import number, unstriped, whole

# For `tests/run.py`: much of its time is spent waiting.
LANE = 4

KIB = 1024
UNIT = 64 * KIB
SIZE = 48 * MIB
# How long a lease is, and how long a client may wait for its end: attempts are up to a second apart.
LEASE = 5
PATIENCE = 2 * LEASE


class GatewayCase(ClusterCase):
    """Three servers with the volume `gw`, and gateways."""

    def setUp(self):
        super().setUp()
        self.nodes = self.three()
        self.nodes[0].cli("volume", "create", "gw", f"{SIZE // MIB}MiB", "--servers", "3", "--share", "1/3")
        order = self.nodes[0].json("cluster", "status")["volumes"][0]["servers"]
        self.members = [self.nodes[int(name[1:]) - 1] for name in order]

    def gateway(self, name="gateway", more="", servers=None):
        """A gateway that knows two of the servers."""
        servers = servers or self.nodes[1:]
        addresses = ", ".join(f'"nbd+unix://?socket={server.socket}"' for server in servers)
        config = f'[gateway]\nservers = [{addresses}]\n{more}'
        return self.serve(name=name, cache="64MiB", config=config)

    def states(self, gateway):
        return [member["state"] for member in gateway.json("volume", "show", "gw")["stripes"]["members"]]

    def until_online(self, gateway):
        until("all sessions to be open", lambda: set(self.states(gateway)) == {"online"}, 30)

    def opened(self, gateway):
        """Opens the volume at a gateway, as soon as no other one has it."""

        def attempt():
            try:
                return gateway.open("gw")
            except nbd.Error:
                return None

        return until("the gateway to be admitted", attempt, PATIENCE)

    def refused_open(self, server, name="gw"):
        """Why a server refuses to open a volume: qemu repeats what it says."""
        done = run("qemu-io", "-f", "raw", "-c", "read 0 512", server.uri(name), check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stdout + done.stderr

    def content(self):
        """The content of the volume as its servers have it, which no gateway has open."""

        def attempt():
            try:
                return [member.open("gw") for member in self.members]
            except nbd.Error:
                return None

        handles = until("the servers to be free", attempt, PATIENCE)
        return unstriped([whole(handle) for handle in handles], UNIT, SIZE)


class Opening(GatewayCase):
    """What a gateway opens, and what it does not."""

    def test_a_client_opens_a_volume_that_lies_on_three_servers(self):
        gateway = self.gateway(more='idle = "2s"')
        self.assertEqual(gateway.json("volume", "list"), [])
        handle = gateway.open("gw")
        self.assertEqual(handle.get_size(), SIZE)
        data = bytes(range(256)) * (4 * UNIT // 256)
        handle.pwrite(data, UNIT // 2)
        handle.flush()
        shown = gateway.json("volume", "show", "gw")["stripes"]
        self.assertEqual(shown["unit_bytes"], UNIT)
        uris = [f"nbd+unix:///gw?socket={member.socket}" for member in self.members]
        self.assertEqual([member["from"] for member in shown["members"]], uris)
        for member in self.members:
            session = member.json("volume", "show", "gw")["session"]
            self.assertEqual((session["epoch"] >> 24, session["connections"] > 0), (1, True))
            self.assertIn("in use by the gateway", self.refused_open(member))
        for wrong in ("nothing", "gw2"):
            self.assertIn(f"no volume '{wrong}'", self.refused_open(gateway, wrong))
        # Without clients it is closed, and its lease is released: another one is admitted at once.
        handle.shutdown()
        until("the volume to be closed", lambda: gateway.json("volume", "list") == [], 20)
        began = time.monotonic()
        second = self.gateway("second")
        other = second.open("gw")
        self.assertEqual(other.pread(len(data), UNIT // 2), data)
        self.assertLess(time.monotonic() - began, LEASE)
        self.assertIn("in use by the gateway", self.refused_open(gateway))
        other.shutdown()
        self.assertEqual(second.stop(), 0)
        # At its end it has released the lease, too.
        image = unstriped([whole(member.open("gw")) for member in self.members], UNIT, SIZE)
        self.assertEqual(image[UNIT // 2 : UNIT // 2 + len(data)], data)

    def test_clients_that_come_while_a_volume_is_opened_or_closed(self):
        gateway = self.gateway(more='idle = "1s"')
        failed = []

        def come(after):
            time.sleep(after)
            try:
                handle = gateway.open("gw")
                handle.pread(512, 0)
                handle.shutdown()
            except nbd.Error as error:
                failed.append((after, str(error)))

        # It is opened for the first of them. When all have gone, it is closed, in the midst of the others.
        ticks = [*range(0, 300, 15), *range(1900, 2500, 20)]
        clients = [threading.Thread(target=come, args=(tick / 1000,)) for tick in ticks]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual(failed, [])

    def test_members_that_are_open_directly_keep_gateways_away(self):
        gateway = self.gateway()
        first, second = self.members[0].open("gw"), self.members[0].open("gw")
        self.assertIn("opened it directly", self.refused_open(gateway))
        first.shutdown()
        self.assertIn("opened it directly", self.refused_open(gateway))
        second.shutdown()
        self.opened(gateway)
        # It serves clients before it has a session with each server.
        self.until_online(gateway)
        self.assertIn("in use by the gateway", self.refused_open(self.members[0]))

    def test_access_lists_hold_for_what_a_gateway_asks(self):
        for server in self.nodes[1:]:
            server.cli("volume", "set", "gw", "--allow", "nobody")
        gateway = self.gateway()
        self.assertIn("no volume 'gw'", self.refused_open(gateway))
        for server in self.nodes[1:]:
            server.cli("volume", "set", "gw", "--allow", "any")
        # For a second it knows that no server has it.
        self.opened(gateway).flush()

    def test_volumes_of_one_server_and_a_server_that_is_away(self):
        self.nodes[0].cli("volume", "create", "one", "8MiB", "--servers", "1", "--share", "1/4")
        gateway = self.gateway(servers=self.nodes)
        handle = gateway.open("one")
        handle.pwrite(b"1" * 4096, 0)
        handle.shutdown()
        self.members[2].kill()
        why = self.refused_open(gateway)
        self.assertIn(str(self.members[2].socket), why)
        self.members[2].start()
        self.opened(gateway).flush()

    def test_words_that_do_not_go_together(self):
        for words, said in [
            (["--gateway"], "--cluster-servers"),
            (["--cluster-servers", "s1"], "--gateway"),
            (["--gateway", "--cluster-servers", "nbds://s1"], "--cluster-certificates"),
            (["--gateway", "--cluster-servers", "nbd://s1/volume"], "names a volume"),
        ]:
            done = run(places.binary(), "serve", "--data", self.scratch / "none", *words, check=False)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(said, done.stderr)


class Encrypted(ClusterCase):
    """Servers that are reached with TLS, and open their volumes to some certificates."""

    def secure(self, name, port, files, authority):
        """A server that joins, which others reach with TLS."""
        config = describe(self.etcd, name, "/none")
        config = re.sub("advertise = .*", f'advertise = "nbds://localhost:{port}"', config)
        config += f'[tls]\ncertificate = "{files}/server-cert.pem"\nkey = "{files}/server-key.pem"\n'
        config += f'clients = "{authority.certificate}"\n'
        server = self.serve(name=name, config=config, nbd=[f"tcp:127.0.0.1:{port},tls=require"])
        server.cli("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", "1GiB", "--max-round", "500ms")
        return self.joined(server)

    def test_a_gateway_opens_what_its_certificate_may(self):
        authority = Authority(self.scratch / "ca")
        files = authority.sign(self.scratch / "server", "server", "/CN=storage", "DNS:localhost")
        ports = free_ports(2)
        nodes = [self.secure(f"s{at}", port, files, authority) for at, port in enumerate(ports, 1)]
        self.know(nodes)
        words = ("--servers", "2", "--share", "1/3", "--allow", "cert:CN=gw1")
        nodes[0].cli("volume", "create", "gw", "16MiB", *words)
        for host in ("gw1", "gw2"):
            certificates = authority.sign(self.scratch / host, "client", f"/CN={host}", f"DNS:{host}")
            servers = ", ".join(f'"localhost:{port}"' for port in ports)
            config = f'[gateway]\nservers = [{servers}]\ncertificates = "{certificates}"'
            gateway = self.serve(name=host, config=config)
            if host == "gw2":
                with self.assertRaises(nbd.Error) as caught:
                    gateway.open("gw")
                self.assertEqual(caught.exception.errno, "ENOENT")
                continue
            handle = gateway.open("gw")
            handle.pwrite(b"1" * MIB, MIB)
            handle.flush()
            self.assertEqual(handle.pread(MIB, MIB), b"1" * MIB)
            uris = [member["from"] for member in gateway.json("volume", "show", "gw")["stripes"]["members"]]
            self.assertEqual(sorted(uris), sorted(f"nbds://localhost:{port}/gw" for port in ports))
            self.assertEqual(gateway.stop(), 0)


class Failing(GatewayCase):
    """Servers, etcd and gateways that die, under load that is checked."""

    def setUp(self):
        super().setUp()
        self.server = self.gateway()
        self.handle = self.server.open("gw")
        self.load = Load(self, self.server)

    def finish(self, clients):
        self.load.end(clients)
        self.handle.flush()
        seen = whole(self.handle)
        self.handle.shutdown()
        self.assertEqual(self.server.stop(), 0)
        image = self.content()
        self.assertEqual(image, seen)
        self.load.check(lambda block: number(image, block))

    def test_servers_are_killed_one_after_the_other(self):
        clients = self.load.start(0)
        for turn, member in enumerate(self.members):
            fio = Verified(self, turn, 4)
            self.load.work(clients)
            member.kill()
            until("the gateway to notice", lambda: self.states(self.server)[turn] != "online", 30)
            if turn == 0:
                # Beyond the lease: what is cached of this server is not used, and nothing fails.
                time.sleep(LEASE + 1)
            member.start()
            self.load.work(clients)
            fio.end()
        self.finish(clients)

    def test_etcd_dies_and_comes_back(self):
        clients = self.load.start(0)
        self.load.work(clients)
        self.etcd.kill()
        # A connection that breaks, and a server that is away for longer than a lease: no epoch is needed for the first.
        self.load.work(clients)
        other = self.gateway("other")
        self.assertIn("in use", self.refused_open(other))
        self.load.work(clients)
        member = self.members[1]
        member.kill()
        member.start()
        # It does not know the last epoch, so its part waits.
        time.sleep(2)
        self.assertNotEqual(self.states(self.server)[1], "online")
        self.etcd.start()
        self.until_online(self.server)
        self.load.work(clients)
        self.finish(clients)

    def test_the_gateway_is_killed_and_another_one_takes_over(self):
        clients = self.load.start(0)
        self.load.work(clients)
        for client in clients:
            client.killed = True
        self.server.kill()
        self.load.killed(clients)
        self.server = self.load.gateway = self.gateway("second")
        began = time.monotonic()
        self.handle = self.opened(self.server)
        self.assertLess(time.monotonic() - began, LEASE + 3)
        clients = self.load.start(1)
        self.load.work(clients)
        self.finish(clients)

    def test_the_same_gateway_is_killed_and_started_again(self):
        clients = self.load.start(0)
        self.load.work(clients)
        for client in clients:
            client.killed = True
        self.server.kill()
        self.load.killed(clients)
        self.server.start()
        self.assertEqual(self.server.json("volume", "list"), [])
        began = time.monotonic()
        self.handle = self.server.open("gw")
        self.assertLess(time.monotonic() - began, LEASE, "its own lease keeps nobody else away")
        clients = self.load.start(1)
        self.load.work(clients)
        self.finish(clients)


class Fenced(GatewayCase):
    """A gateway that is stopped for longer than its lease."""

    def fails(self, request):
        with self.assertRaises(nbd.Error) as caught:
            request()
        self.assertEqual(caught.exception.errno, "EIO")

    def test_a_gateway_that_was_stopped_answers_nothing_any_more(self):
        first, second = self.gateway("first"), self.gateway("second")
        old = first.open("gw")
        old.pwrite(b"1" * UNIT * 3, 0)
        old.flush()
        self.assertEqual(old.pread(4096, 0), b"1" * 4096)
        # Not flushed: it may be lost, and must not come back later.
        old.pwrite(b"2" * 4096, UNIT)
        first.process.send_signal(signal.SIGSTOP)
        self.assertIn("lease runs", self.refused_open(second))
        new = self.opened(second)
        new.pwrite(b"3" * UNIT * 3, 0)
        new.flush()
        # Requests that arrive while it is stopped are answered after that, and so is a client that connects.
        results, waiting = [], []
        for at in (0, UNIT, 2 * UNIT):
            handle = old if at == 0 else None
            if handle is None:
                continue
            waiting.append(threading.Thread(target=self.reads, args=(handle, at, results)))
            waiting[-1].start()
        time.sleep(1)
        first.process.send_signal(signal.SIGCONT)
        for thread in waiting:
            thread.join(30)
        self.assertEqual(results, ["EIO"])
        for request in [
            lambda: old.pread(4096, UNIT),
            lambda: old.pread(4096, 40 * MIB),
            lambda: old.pwrite(b"4" * 4096, 0),
            lambda: old.pwrite(b"4" * 4096, 0, nbd.CMD_FLAG_FUA),
            lambda: old.zero(4096, 0),
            old.flush,
        ]:
            self.fails(request)
        self.assertIn("offline", self.states(first))
        self.assertIn("has admitted another client", first.cli("volume", "show", "gw").stdout)
        self.assertEqual(new.pread(UNIT * 3, 0), b"3" * UNIT * 3)
        # Its clients leave, and come back when the other one has left.
        old.shutdown()
        new.shutdown()
        self.assertEqual(second.stop(), 0)
        again = self.opened(first)
        self.assertEqual(again.pread(UNIT * 3, 0), b"3" * UNIT * 3)

    def reads(self, handle, at, results):
        try:
            results.append(handle.pread(4096, at)[:1])
        except nbd.Error as error:
            results.append(error.errno)

    def test_a_gateway_that_was_stopped_for_less_than_its_lease_goes_on(self):
        first = self.gateway("first")
        handle = first.open("gw")
        handle.pwrite(b"1" * 4096, 0)
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(LEASE / 2)
        first.process.send_signal(signal.SIGCONT)
        self.assertEqual(handle.pread(4096, 0), b"1" * 4096)
        handle.flush()

    def test_a_gateway_that_was_stopped_alone_goes_on(self):
        first = self.gateway("first")
        handle = first.open("gw")
        handle.pwrite(b"1" * 4096, 0)
        first.process.send_signal(signal.SIGSTOP)
        time.sleep(LEASE + 2)
        first.process.send_signal(signal.SIGCONT)
        self.assertEqual(handle.pread(4096, 0), b"1" * 4096)
        handle.pwrite(b"2" * 4096, UNIT)
        handle.flush()
        self.until_online(first)


if __name__ == "__main__":
    unittest.main()
