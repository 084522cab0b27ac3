"""Changes of a cluster: servers that are removed, shares and sizes of volumes, and schedules that begin later."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time

import nbd

from harness import wire
from harness.server import MIB, Failed
from harness.wait import until
from test_cluster import CHANGE_SECONDS, ClusterCase
from test_cluster_gateway import LEASE, GatewayCase

# For `tests/run.py`: much of its time is spent waiting.
LANE = 1


class ChangeCase(ClusterCase):
    """Servers that are removed, or die in the middle of a change."""

    def lose(self, servers, victim):
        """A server is lost."""
        victim.kill()
        until("it to be away", lambda: not self.ready(servers[0], len(servers)), 20)

    def names(self, server):
        return [member["name"] for member in server.json("cluster", "status")["members"]]

    def volume(self, server, name):
        (found,) = (volume for volume in server.json("cluster", "status")["volumes"] if volume["name"] == name)
        return found

    def dies(self, servers, victim, place, *words):
        """A server dies at a place in a change, and comes back."""
        self.assertEqual(victim.stop(), 0)
        victim.start(env={**os.environ, "AEROGEL_FAILPOINT": place})
        self.know(servers)
        change = threading.Thread(target=lambda: servers[0].cli(*words, check=False))
        change.start()
        self.addCleanup(change.join)
        self.assertEqual(victim.process.wait(20), -signal.SIGKILL, victim.log_tail())
        victim.start()

    def settled(self, servers):
        """Waits until no change is open and all servers have one schedule. Returns it."""

        def one():
            status = [server.json("cluster", "status") for server in servers]
            if any(it["change"] or not it["etcd"]["answers"] or not it["joined"] for it in status):
                return None
            return self.schedule(servers[0]) if len({it["version"] for it in status}) == 1 else None

        return until("the change to be over", one, CHANGE_SECONDS + 15)


class Removal(ChangeCase):
    """Servers that are lost for good."""

    def test_a_server_that_is_lost_is_removed_and_replaced(self):
        servers = self.three()
        servers[0].cli("volume", "create", "big", "12MiB", "--on", "s1,s2,s3", "--share", "1/3")
        servers[0].cli("volume", "create", "own", "8MiB", "--on", "s3", "--share", "1/4")
        servers[0].cli("volume", "create", "other", "8MiB", "--on", "s2", "--share", "1/4")
        remove = ("cluster", "remove", "s3", "--yes")
        self.assertIn("server 's3' runs", servers[0].refused(*remove, "--lost"))
        self.assertIn("no server 's9'", servers[0].refused("cluster", "remove", "s9", "--yes", "--lost"))
        self.lose(servers, servers[2])
        refused = servers[0].refused(*remove)
        self.assertIn("has parts of volumes: big, own", refused)
        self.assertIn("--lost --yes", refused)
        create = ("volume", "create", "w", "2MiB", "--servers", "2", "--share")
        self.assertIn("'s3' does not run", servers[0].refused(*create, "3/4"))
        before = self.schedule(servers[0])
        said = servers[0].cli(*remove, "--lost").stdout
        self.assertIn("lost with it: 'own'", said)
        self.assertIn("broken, since a part is lost: 'big'", said)
        others = servers[:2]
        self.assertEqual([self.names(server) for server in others], [["s1", "s2"]] * 2)
        schedule = self.settled(others)
        slots = {slot["volume"]: slot for slot in schedule["slots"]}
        self.assertEqual({name: slot["servers"] for name, slot in slots.items()},
                         {"big": ["s1", "s2"], "other": ["s2"]})  # fmt: skip
        kept = {slot["volume"]: slot["start_ns"] for slot in before["slots"] if slot["volume"] != "own"}
        self.assertEqual({name: slot["start_ns"] for name, slot in slots.items()}, kept, "nothing moves")
        self.assertEqual(self.volume(servers[1], "big")["lost"], ["s3"])
        self.assertIn("BROKEN: lost with s3", servers[1].cli("cluster", "status").stdout)
        # Its other parts are served, for md, and slots can move again.
        servers[0].open("big").pread(4096, 0)
        servers[1].cli(*create, "1/4")
        # Another server takes the name. It has nothing to do with the broken volume.
        successor = self.join("s3", server="successor")
        self.know([*others, successor])
        servers[1].cli("volume", "create", "own", "6MiB", "--on", "s1,s3", "--share", "1/4")
        members = {member["name"]: member["volumes"] for member in servers[0].json("cluster", "status")["members"]}
        self.assertEqual(members["s3"], ["own"])
        # The first one comes back.
        servers[2].start()
        self.is_excluded(servers[2])
        servers[2].restart()
        self.assertEqual(self.volumes(servers[2]), [], "durably")
        self.is_excluded(servers[2])
        servers[0].cli("volume", "delete", "big", "--yes")
        until("it to be gone", lambda: "big" not in servers[1].cli("cluster", "status").stdout, 10)
        for name in ("big", "own"):
            self.assertIn("was removed from the cluster", servers[2].refused("volume", "delete", name, "--yes"))
            servers[2].cli("volume", "delete", name, "--yes", "--force")
        until("the name to be taken", lambda: "belongs to another server" in self.reason(servers[2]), 10)
        self.assertEqual(self.volumes(successor), ["own"])

    def reason(self, server):
        return server.json("cluster", "status")["reason"] or ""

    def is_excluded(self, server):
        until("it to learn of it", lambda: "was removed from the cluster" in self.reason(server), 15)
        status = server.json("cluster", "status")
        self.assertFalse(status["joined"])
        self.assertIn("big, own", status["reason"])
        self.assertEqual(self.volumes(server), [])
        create = ("volume", "create", "z", "2MiB", "--servers", "1", "--share", "1/4")
        self.assertIn("has not joined", server.refused(*create))

    def test_a_server_that_was_removed_joins_anew_without_its_parts(self):
        servers = self.three()
        servers[0].cli("volume", "create", "big", "12MiB", "--on", "s1,s2,s3", "--share", "1/3")
        self.lose(servers, servers[2])
        servers[1].cli("cluster", "remove", "s3", "--lost", "--yes")
        servers[2].start()
        until("the part not to be served", lambda: self.volumes(servers[2]) == [], 15)
        until("the part to be given up", lambda: "given up" in servers[2].cli("volume", "show", "big").stdout, 15)
        servers[2].cli("volume", "delete", "big", "--yes", "--force")
        self.know(servers)
        servers[0].cli("volume", "delete", "big", "--yes")
        servers[2].cli("volume", "create", "big", "12MiB", "--on", "s1,s2,s3", "--share", "1/3")
        self.assertEqual([self.volumes(server) for server in servers], [["big"]] * 3)
        # An empty one needs no --lost.
        servers[0].cli("volume", "delete", "big", "--yes")
        self.lose(servers, servers[2])
        self.assertIn("is removed", servers[0].cli("cluster", "remove", "s3", "--yes").stdout)
        self.assertEqual(self.names(servers[1]), ["s1", "s2"])

    def removal(self, place, *who):
        """One of these servers dies at a place of the removal: at most one comes there."""
        servers = self.three()
        servers[0].cli("volume", "create", "big", "12MiB", "--on", "s1,s2,s3", "--share", "1/3")
        servers[0].cli("volume", "create", "own", "4MiB", "--on", "s3", "--share", "1/4")
        self.lose(servers, servers[2])
        others = servers[:2]
        for number in who:
            self.assertEqual(others[number].stop(), 0)
            others[number].start(env={**os.environ, "AEROGEL_FAILPOINT": place})
            until("it to join", lambda: all(self.away(server) == ["s3"] for server in others), 15)
        words = ("cluster", "remove", "s3", "--lost", "--yes")
        change = threading.Thread(target=lambda: others[0].cli(*words, check=False))
        change.start()
        self.addCleanup(change.join)

        def dead():
            return [number for number in who if others[number].process.poll() is not None]

        until("one of them to die", dead, 20)
        (victim,) = dead()
        self.assertEqual(others[victim].process.wait(), -signal.SIGKILL, others[victim].log_tail())
        others[victim].start()
        schedule = self.settled(others)
        self.assertEqual([self.names(server) for server in others], [["s1", "s2"]] * 2)
        self.assertEqual([slot["servers"] for slot in schedule["slots"]], [["s1", "s2"]])
        self.assertEqual([volume["name"] for volume in others[victim].json("cluster", "status")["volumes"]], ["big"])

    def away(self, server):
        members = server.json("cluster", "status")["members"]
        return [member["name"] for member in members if member["state"] == "away"]

    def test_the_server_that_removes_dies_when_it_has_proposed(self):
        self.removal("proposed", 0)

    def test_another_server_dies_when_it_has_acknowledged_a_removal(self):
        self.removal("acknowledged", 1)

    def test_the_server_that_commits_a_removal_dies(self):
        self.removal("committed", 0, 1)


class Shares(ChangeCase):
    """Volumes that get another share, or become larger."""

    def shares(self, server, volume):
        return server.json("volume", "show", volume)["share"]["requested"]  # as it was typed

    def test_a_share_changes_on_all_servers_if_there_is_room(self):
        servers = self.three()
        servers[0].cli("volume", "create", "a", "8MiB", "--on", "s1,s2", "--share", "1/4")
        servers[0].cli("volume", "create", "b", "8MiB", "--on", "s2,s3", "--share", "1/4")
        before = self.schedule(servers[0])
        # Any server does it, also one without a part.
        said = servers[2].cli("volume", "set", "a", "--share", "1/2").stdout
        self.assertIn("has a share of 1/2 on servers 's1', 's2'", said)
        after = self.settled(servers)
        self.assertEqual(after["version"], before["version"] + 1)
        (slot,) = (slot for slot in after["slots"] if slot["volume"] == "a")
        self.assertAlmostEqual(slot["length_ns"], after["round_ns"] / 2, delta=2)
        for server in servers[:2]:
            until("the part to follow", lambda server=server: self.shares(server, "a") == "1/2", 10)
            self.follows(server, "a", after)
        self.assertEqual(self.volume(servers[2], "a")["share"], "1/2")
        refused = servers[0].refused("volume", "set", "a", "--share", "19/20")
        self.assertIn("volume 'a' does not fit", refused)
        self.assertIn("a share of 1/2", refused)
        self.assertNotIn("--least", refused)
        alone = servers[0].refused("volume", "set", "a", "--share", "1/3", "--description", "x")
        self.assertIn("alone", alone)
        self.assertIn("keeps its own", servers[0].refused("volume", "set", "a", "--share", "none"))
        self.assertEqual(self.schedule(servers[1]), after)
        self.lose(servers, servers[2])
        self.assertIn("'s3' does not run", servers[0].refused("volume", "set", "a", "--share", "1/3"))

    def test_a_server_dies_in_a_change_of_a_share(self):
        servers = self.three()
        servers[0].cli("volume", "create", "a", "8MiB", "--on", "s1,s2", "--share", "1/4")
        for place, share in (("acknowledged", "1/2"), ("updated", "1/8")):
            self.dies(servers, servers[1], place, "volume", "set", "a", "--share", share)
            schedule = self.settled(servers)
            (slot,) = schedule["slots"]
            part = float(share[0]) / float(share[2])
            self.assertAlmostEqual(slot["length_ns"], schedule["round_ns"] * part, delta=2, msg=place)
            for server in servers[:2]:
                until("the part to follow", lambda server=server, share=share: self.shares(server, "a") == share, 10)

    def test_a_volume_becomes_larger_on_all_servers_while_nobody_has_it_open(self):
        servers = self.three(size="256MiB")
        servers[0].cli("volume", "create", "a", "8MiB", "--on", "s1,s2", "--share", "1/4")
        handle = servers[0].open("a")
        handle.pwrite(b"a" * MIB, 3 * MIB)
        self.assertIn("has 1 connections", servers[2].refused("volume", "grow", "a", "16MiB"))
        handle.shutdown()
        until("the client to be gone", lambda: servers[0].json("volume", "show", "a")["connections"] == 0)
        self.assertIn("now has 16MiB", servers[2].cli("volume", "grow", "a", "16MiB").stdout)
        for server in servers[:2]:
            until("the part to grow", lambda server=server: server.open("a").get_size() == 8 * MIB, 10)
            of_whole = lambda server=server: server.json("volume", "show", "a")["cluster"]["size"]  # noqa: E731
            until("its record to follow", lambda of_whole=of_whole: of_whole() == 16 * MIB, 10)
        self.assertEqual(servers[0].open("a").pread(MIB, 3 * MIB), b"a" * MIB)
        volume = self.volume(servers[1], "a")
        self.assertEqual((volume["size_bytes"], volume["member_bytes"]), (16 * MIB, 8 * MIB))
        self.assertIn("cannot become smaller", servers[0].refused("volume", "grow", "a", "12MiB"))
        self.assertIn("of free space", servers[0].refused("volume", "grow", "a", "2GiB"))


class Begins(ClusterCase):
    """A schedule begins at its announced time."""

    def test_a_server_that_restarts_waits_for_the_schedule_to_begin(self):
        server = self.joined(self.join("s1"))
        server.cli("volume", "create", "a", "8MiB", "--servers", "1", "--share", "1/4")
        self.follows(server, "a", self.schedule(server))
        key = "/aerogel/lab/schedule"
        schedule = self.etcd.keys(key)[key]
        begins = time.time() + 12
        slot = {**schedule["slots"][0], "start_ns": 0, "length_ns": 90_000_000}
        later = {**schedule, "version": schedule["version"] + 1, "begins_ns": int(begins * 1e9), "slots": [slot]}
        self.etcd.ctl("put", key, json.dumps({**later, "round_ns": 450_000_000}))
        until("it to be kept", lambda: server.json("cluster", "status")["version"] == later["version"], 10)
        server.kill()
        server.start()
        until("the volume to be open", lambda: self.volumes(server) == ["a"], 5)
        slices = []
        while time.time() < begins - 0.5:
            slices.append(self.slice(server, "a"))
            time.sleep(0.3)
        self.assertGreater(len(slices), 3, "the server took too long to start")
        self.assertNotIn((90, 450), slices)
        until("the slot", lambda: self.slice(server, "a") == (90, 450), 5)
        self.assertLess(time.time() - begins, 4)


class Broken(GatewayCase):
    """What a gateway says of a volume that is broken."""

    def test_a_gateway_does_not_open_a_volume_of_which_a_part_is_lost(self):
        self.nodes[0].kill()
        until("it to be away", lambda: not self.ready(self.nodes[1], 3), 20)
        self.nodes[1].cli("cluster", "remove", "s1", "--lost", "--yes")
        self.assertIn("is broken", self.refused_open(self.gateway()))


class Leased(GatewayCase):
    """Changes while the lease of a gateway runs that has lost its connections."""

    def connections(self):
        return [member.json("volume", "show", "gw")["connections"] for member in self.members]

    def test_what_a_gateway_may_still_use_is_neither_deleted_nor_enlarged(self):
        gateway = self.gateway()
        gateway.open("gw").flush()
        gateway.kill()
        until("its connections to be gone", lambda: self.connections() == [0, 0, 0], LEASE)
        for words in (["delete", "gw", "--yes"], ["grow", "gw", "96MiB"]):
            self.assertIn("whose lease runs", self.nodes[0].refused("volume", *words))
        until("the lease to have ended", lambda: self.grows("96MiB"), 2 * LEASE)
        # One that ends releases it.
        gateway.start()
        gateway.open("gw").flush()
        self.assertEqual(gateway.stop(), 0)
        self.assertTrue(self.grows("144MiB"))
        gateway.start()
        gateway.open("gw").flush()
        gateway.kill()
        self.nodes[0].cli("volume", "delete", "gw", "--yes", "--force")

    def grows(self, size):
        try:
            self.nodes[0].cli("volume", "grow", "gw", size)
        except Failed as failed:
            self.assertIn("whose lease runs", failed.err)
            return False
        return True


class Names(GatewayCase):
    """Names that no server knows."""

    def test_names_that_no_server_knows_are_not_asked_about_without_end(self):
        gateway = self.gateway()
        why = [self.refused_by(gateway, f"n{number}") for number in range(40)]
        # Unknown, and refused.
        self.assertEqual((why[0], why[-1]), (errno.ENOENT, errno.EOPNOTSUPP))
        self.assertIn("more than 16 names a second", gateway.log())
        time.sleep(1.1)
        gateway.open("gw").flush()
        # One that is open is not asked about.
        for number in range(40):
            self.refused_by(gateway, f"m{number}")
        gateway.open("gw").flush()

    def test_names_that_a_client_asks_for_keep_no_other_client_waiting(self):
        silent = socket.socket(socket.AF_UNIX)
        self.addCleanup(silent.close)
        silent.bind(str(self.scratch / "silent.sock"))
        silent.listen(1024)
        addresses = [f'"nbd+unix://?socket={path}"' for path in (self.nodes[1].socket, self.scratch / "silent.sock")]
        config = f'[gateway]\nservers = [{", ".join(addresses)}]'
        gateway = self.serve(name="gateway", config=config, nbd=["tcp:127.0.0.1:0"])
        for number in range(100):
            connection = wire.Wire(gateway.socket)
            self.addCleanup(connection.socket.close)
            connection.send(wire.option(wire.GO, wire.named(f"n{number}")))
            if number % 2:
                connection.socket.close()
        began = time.monotonic()
        connection = wire.Wire(gateway.tcp())
        self.addCleanup(connection.socket.close)
        self.assertIsInstance(connection.go("gw"), dict)
        # An answer of the silent server is waited for for 3 s, and two names are asked about at the same time.
        self.assertLess(time.monotonic() - began, 3)

    def test_options_that_arrive_together(self):
        connection = wire.Wire(self.gateway().socket)
        self.addCleanup(connection.socket.close)
        together = [(wire.LIST, b""), (wire.INFO, wire.named("none")), (wire.GO, wire.named("gw"))]
        connection.send(b"".join(wire.option(*option) for option in together))
        answers = [connection.replies(number)[-1][0] for number, _ in together]
        self.assertEqual(answers, [wire.ACK, wire.ERR_UNKNOWN, wire.ACK])

    def refused_by(self, server, name):
        handle = nbd.NBD()
        handle.set_opt_mode(True)
        handle.connect_uri(server.uri(name))
        with self.assertRaises(nbd.Error) as refused:
            handle.opt_go()
        return refused.exception.errnum


class Kept(GatewayCase):
    """What a volume keeps of its share, as its gateway knows it."""

    def ratio(self, gateway):
        return gateway.json("volume", "show", "large")["own_cache_insulation"]

    def test_a_gateway_shows_what_a_volume_keeps(self):
        self.nodes[0].cli("volume", "create", "large", "1500MiB", "--servers", "3", "--share", "1/2")
        gateway = self.gateway()
        gateway.open("large").flush()
        self.assertIsNone(self.ratio(gateway))
        command = ["fio", "--name=read", "--ioengine=nbd", f"--uri={gateway.uri('large')}", "--rw=randread"]
        command += ["--bs=192k", "--thread", "--iodepth=4", "--time_based", "--runtime=300"]
        load = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(load.wait)
        self.addCleanup(load.kill)
        kept = until("a figure", lambda: self.ratio(gateway), 90)
        self.assertTrue(0 < kept["ratio"] <= 1, kept)
        text = gateway.metrics()
        self.assertTrue(any("own_cache_insulation" in str(name) for name in text), text)
        load.kill()
        load.wait()
        until("no demand", lambda: self.ratio(gateway) is None, 60)
