"""A cluster: a real etcd, and servers that share a schedule through it."""

import json
import os
import re
import signal
import subprocess
import threading

import nbd

from harness import places
from harness.case import ServerCase
from harness.certificates import Authority
from harness.document import Document
from harness.etcd import Etcd
from harness.server import MIB, run
from harness.wait import until

# For `tests/run.py`: much of its time is spent waiting.
LANE = 3

# How long a change waits for its servers: longer than a server takes to start on a busy machine.
CHANGE_SECONDS = 20


def describe(etcd, name, socket, more="", change_seconds=CHANGE_SECONDS):
    """The configuration of a server in the cluster."""
    return f"""
[cluster]
etcd = ["{etcd.url}"]
cluster = "lab"
name = "{name}"
advertise = "nbd+unix://?socket={socket}"
cluster_disk = "hdd"
clock = "trusted"
clock_error = "100us"
change_timeout = "{change_seconds}s"
{more}
"""


class ClusterCase(ServerCase):
    """An etcd and servers, each with a simulated disk."""

    def setUp(self):
        super().setUp()
        self.etcd = Etcd(self.scratch / "etcd")
        self.addCleanup(self.etcd.kill)
        self.etcd.start()

    def join(self, name, size="1GiB", server=None, nbd=(), max_round="500ms", **more):
        """A server that joins, with more listeners for NBD."""
        socket = self.scratch / (server or name) / "nbd.sock"
        config = describe(self.etcd, name, socket, **more)
        server = self.serve(name=server or name, config=config, nbd=nbd)
        server.cli("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", size, "--max-round", max_round)
        return server

    def joined(self, server):
        """Waits until a server has joined."""
        until("it to join", lambda: server.json("cluster", "status")["joined"], 10)
        return server

    def three(self, **more):
        """Three servers that have joined, and know each other."""
        servers = [self.join(name, **more) for name in ("s1", "s2", "s3")]
        self.know(servers)
        return servers

    def know(self, servers):
        """Waits until all servers see all of them."""
        for server in servers:
            until("all servers to be ready", lambda server=server: self.ready(server, len(servers)), 15)

    def ready(self, server, count):
        members = server.json("cluster", "status")["members"]
        return len(members) == count and all(member["state"] != "away" for member in members)

    def schedule(self, server):
        return server.json("cluster", "schedule")

    def in_step(self, servers, version):
        """Waits until all servers follow this version."""
        for server in servers:
            until(f"version {version}", lambda s=server: s.json("cluster", "status")["version"] == version, 10)

    def follows(self, server, volume, schedule):
        """Waits until the disk of a server has the slices of the schedule."""
        (slot,) = (slot for slot in schedule["slots"] if slot["volume"] == volume)
        until(
            "the disk to follow",
            lambda: self.slice(server, volume) == (slot["length_ns"] // 10**6, schedule["round_ns"] // 10**6),
            10,
        )

    def slice(self, server, volume):
        """The slice and the round of a volume, ms."""
        slice = server.json("volume", "show", volume)["slice"]
        return int(slice["seconds"] * 1000 + 1e-6), int(slice["round_seconds"] * 1000 + 1e-6)

    def volumes(self, server):
        """The volumes that clients of a server can open."""
        handle = nbd.NBD()
        handle.set_opt_mode(True)
        handle.connect_uri(f"nbd+unix://?socket={server.socket}")
        names = []
        handle.opt_list(lambda name, _: names.append(name))
        handle.opt_abort()
        return sorted(names)


class Members(ClusterCase):
    """Servers join, leave, and are shown."""

    def test_servers_join_and_a_name_is_taken_once(self):
        first, second = self.join("s1"), self.join("s2")
        self.know([first, second])
        status = first.json("cluster", "status")
        self.assertEqual([member["name"] for member in status["members"]], ["s1", "s2"])
        self.assertTrue(status["etcd"]["answers"] and status["joined"])
        for member in status["members"]:
            self.assertTrue(member["in_step"] and member["clock"]["trusted"] and member["clock"]["good"])
            self.assertEqual((member["disk"], member["size_bytes"]), ("hdd", 1 << 30))
        self.assertIn("trusted, 100 us", first.cli("cluster", "status").stdout)
        self.assertIn(str(second.socket), first.cli("cluster", "members").stdout)
        self.assertIn("no schedule yet", first.refused("cluster", "schedule"))
        taken = self.join("s2", server="other")
        why = until("the refusal", lambda: taken.json("cluster", "status")["reason"], 10)
        until("the reason", lambda: "belongs to another server" in taken.json("cluster", "status")["reason"], 10)
        self.assertFalse(taken.json("cluster", "status")["joined"], why)
        words = ("volume", "create", "v", "1MiB", "--servers", "1", "--share", "1/4")
        self.assertIn("has not joined", taken.refused(*words))

    def test_a_disk_is_waited_for_and_has_no_other_promises(self):
        socket = self.scratch / "s1" / "nbd.sock"
        server = self.serve(name="s1", config=describe(self.etcd, "s1", socket))
        until("the reason", lambda: "no disk 'hdd'" in server.json("cluster", "status")["reason"], 10)
        server.cli("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", "1GiB", "--policy", "none")
        until("the reason", lambda: "no slices" in server.json("cluster", "status")["reason"], 10)
        server.cli("volume", "create", "own", "1MiB", "--disk", "hdd", "--share", "1/4")
        server.cli("disk", "set", "hdd", "--policy", "insulated")
        until("the reason", lambda: "tenant 'own'" in server.json("cluster", "status")["reason"], 10)
        server.cli("volume", "set", "own", "--share", "none")
        self.joined(server)
        refused = server.refused("volume", "set", "own", "--share", "1/4")
        self.assertIn("follows the schedule of a cluster", refused)
        refused = server.refused("volume", "create", "g", "1MiB", "--disk", "hdd", "--min-bandwidth", "1MiB/s")
        self.assertIn("no minimum bandwidth", refused)

    def test_without_a_cluster(self):
        server = self.serve()
        self.assertIn("takes part in no cluster", server.refused("cluster", "status"))
        self.assertIn("--cluster", server.refused("volume", "create", "v", "1MiB", "--servers", "2", "--share", "1/4"))

    def test_a_server_without_a_good_clock_gets_no_striped_volumes(self):
        good, bad = self.join("s1"), self.join("s2", more='clock_error_max = "50us"')
        self.know([good, bad])
        self.assertIn("trusted, 100 us: TOO INEXACT", good.cli("cluster", "status").stdout)
        refused = good.refused("volume", "create", "v", "1MiB", "--servers", "2", "--share", "1/4")
        self.assertIn("'s2': its clock is not synchronised well enough", refused)
        refused = good.refused("volume", "create", "v", "1MiB", "--on", "s1,s2", "--share", "1/4")
        self.assertIn("server 's2' cannot take a part of volume 'v': its clock", refused)
        good.cli("volume", "create", "v", "1MiB", "--on", "s2", "--share", "1/4")

    def test_a_plan_is_that_of_the_laboratory(self):
        file = self.scratch / "cluster.json"
        tenants = [{"servers": 2, "share": "1/2", "pinned": [0, 2]}, {"servers": 1, "share": "25%"}]
        file.write_text(json.dumps({"servers": 3, "tenants": tenants}))
        planned = json.loads(run(places.binary(), "cluster", "plan", file, "--json").stdout)
        self.assertEqual(planned, json.loads(run(places.lab(), "pack", file, "--json").stdout))
        self.assertEqual((planned["r_cluster"], planned["slots"][0]["servers"]), (1.0, [0, 2]))
        self.assertIn("R of the cluster: 1.000", run(places.binary(), "cluster", "plan", file).stdout)
        file.write_text(json.dumps({"servers": 1, "tenants": [{"servers": 1, "share": "3/4"}] * 2}))
        done = run(places.binary(), "cluster", "plan", file, check=False)
        self.assertEqual((done.returncode, "too much for R = 0.9" in done.stderr), (1, True), done.stderr)
        file.write_text(json.dumps({"servers": 1, "tenants": [{"servers": 1, "part": "3/4"}]}))
        done = run(places.binary(), "cluster", "plan", file, check=False)
        self.assertEqual((done.returncode, "unknown field `part`" in done.stderr), (2, True), done.stderr)
        done = run(places.binary(), "cluster", "plan", self.scratch / "absent", check=False)
        self.assertEqual((done.returncode, "absent" in done.stderr), (2, True), done.stderr)

    def test_a_server_that_is_drained_gets_no_volumes(self):
        servers = self.three()
        self.assertIn("no new volumes, and has none", servers[0].cli("cluster", "drain", "s2").stdout)
        seen = lambda: {member["name"]: member["state"] for member in servers[2].json("cluster", "status")["members"]}
        # Another server learns of it from etcd, a moment later.
        until("s3 to see it", lambda: seen() == {"s1": "ready", "s2": "draining", "s3": "ready"})
        refused = servers[0].refused("volume", "create", "v", "1MiB", "--servers", "3", "--share", "1/4")
        self.assertIn("'s2': it is being drained", refused)
        servers[0].cli("volume", "create", "v", "1MiB", "--servers", "2", "--share", "1/4")
        self.assertEqual(servers[0].json("cluster", "status")["volumes"][0]["servers"], ["s1", "s3"])
        self.assertIn("it still has v", servers[1].cli("cluster", "drain", "s1").stdout)
        for server in ("s1", "s2"):
            self.assertIn("again", servers[1].cli("cluster", "drain", server, "--undo").stdout)
        servers[0].cli("volume", "create", "w", "1MiB", "--servers", "3", "--share", "1/4")
        self.assertIn("no server 's9'", servers[0].refused("cluster", "drain", "s9"))
        # The name of a drained server that has left is free, and so is that of one that is removed.
        servers[0].cli("volume", "delete", "w", "--yes")
        servers[0].cli("cluster", "drain", "s2")
        self.assertEqual(servers[1].stop(), 0)
        until("it to leave", lambda: not self.ready(servers[0], 3), 15)
        successor = self.joined(self.join("s2", server="successor"))
        self.assertEqual(successor.stop(), 0)
        until("it to leave", lambda: not self.ready(servers[0], 3), 15)
        self.assertIn("it is removed", servers[0].cli("cluster", "drain", "s2").stdout)
        self.assertEqual(len(servers[0].json("cluster", "status")["members"]), 2)


class Security(ClusterCase):
    """An etcd with TLS and users."""

    def setUp(self):
        ServerCase.setUp(self)
        authority = Authority(self.scratch / "ca")
        names = authority.sign(self.scratch / "tls", "server", "/CN=etcd", "IP:127.0.0.1")
        self.ca = authority.certificate
        flags = ("--cert-file", names / "server-cert.pem", "--key-file", names / "server-key.pem")
        self.etcd = Etcd(self.scratch / "etcd", more=flags, scheme="https")
        self.addCleanup(self.etcd.kill)
        self.etcd.start()

    def ctl(self, *words):
        return self.etcd.ctl("--cacert", self.ca, *words)

    def with_user(self, name, user, more=""):
        return self.join(name, more=f'etcd_cacert = "{self.ca}"\netcd_user = "{user}"\n{more}')

    def test_a_user_that_is_limited_to_the_keys_of_the_cluster(self):
        self.ctl("user", "add", "root:secret")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "aerogel-lab")
        self.ctl("role", "grant-permission", "aerogel-lab", "--prefix=true", "readwrite", "/aerogel/lab/")
        self.ctl("user", "add", "aerogel-lab:word")
        self.ctl("user", "grant-role", "aerogel-lab", "aerogel-lab")
        self.ctl("auth", "enable")
        first = self.joined(self.with_user("s1", "aerogel-lab:word"))
        second = self.joined(self.with_user("s2", "aerogel-lab:word"))
        self.know([first, second])
        first.cli("volume", "create", "v", "2MiB", "--servers", "2", "--share", "1/4")
        second.cli("volume", "delete", "v", "--yes")
        wrong = self.with_user("s3", "aerogel-lab:wrong")
        until("the reason", lambda: "authentication failed" in wrong.json("cluster", "status")["etcd"]["reason"], 10)
        self.assertFalse(wrong.json("cluster", "status")["etcd"]["answers"])


class Volumes(ClusterCase):
    """Volumes over several servers."""

    def test_a_volume_is_created_over_two_of_three_servers_and_deleted(self):
        servers = self.three()
        words = ("volume", "create", "big", "100MiB", "--servers", "2", "--share", "1/3", "--on", "s3,s1")
        plan = servers[1].json(*words, "--dry-run")
        self.assertEqual((plan["servers"], plan["member_bytes"], plan["r_cluster"]), (["s3", "s1"], 50 * MIB, 1.0))
        self.assertEqual(servers[1].json("cluster", "status")["volumes"], [], "a dry run creates nothing")
        said = servers[1].cli(*words).stdout
        self.assertIn("'s3', 's1'", said)
        self.assertEqual([self.volumes(server) for server in servers], [["big"], [], ["big"]])
        for server in (servers[0], servers[2]):
            handle = server.open("big")
            self.assertEqual(handle.get_size(), 50 * MIB)
            handle.pwrite(b"x" * 4096, 0)
            handle.flush()
            self.assertEqual(handle.pread(4096, 0), b"x" * 4096)
            handle.shutdown()
        views = [servers[at].json("volume", "show", "big")["cluster"] for at in (0, 2)]
        self.assertEqual(views[0], views[1])
        self.assertEqual((views[0]["servers"], views[0]["size"]), (["s3", "s1"], 100 * MIB))
        self.assertTrue(views[0]["committed"])
        schedule = self.schedule(servers[1])
        self.in_step(servers, schedule["version"])
        self.assertEqual([self.schedule(server) for server in servers], [schedule] * 3)
        (slot,) = schedule["slots"]
        self.assertAlmostEqual(slot["length_ns"], schedule["round_ns"] / 3, delta=2)
        self.follows(servers[0], "big", schedule)
        self.assertIn("big", servers[0].cli("cluster", "schedule").stdout)
        picture = self.scratch / "schedule.svg"
        servers[0].cli("cluster", "schedule", "--svg", picture)
        self.assertEqual(picture.read_text().count("hsl("), 2)
        self.refuses_to_change_a_part(servers[0])
        self.answers_as_documented(servers[0])
        client = servers[0].open("big")
        self.assertIn("has 1 connections", servers[1].refused("volume", "delete", "big", "--yes"))
        servers[1].cli("volume", "delete", "big", "--yes", "--force")
        del client
        self.assertEqual([self.volumes(server) for server in servers], [[], [], []])
        until("the last part is gone", lambda: servers[1].json("cluster", "status")["volumes"] == [])
        self.assertEqual(self.schedule(servers[0])["slots"], [])
        servers[1].cli(*words)

    def answers_as_documented(self, server):
        status, body = server.get("/openapi.json")
        self.assertEqual(status, 200)
        document = Document(json.loads(body))
        pages = {"status": "/v1/cluster", "members": "/v1/cluster", "schedule": "/v1/cluster/schedule"}
        for word, path in pages.items():
            answer = server.json("cluster", word)
            self.assertEqual(document.faults(answer, document.answer("get", path)), [], word)
        answer = server.json("volume", "create", "x", "1MiB", "--servers", "2", "--share", "1/9", "--dry-run")
        self.assertEqual(document.faults(answer, document.answer("post", "/v1/cluster/plan")), [])
        request = server.json("volume", "show", "big")["spec"]
        self.assertEqual(document.faults(request, document.body("post", "/v1/volumes")), [])
        self.assertEqual((request["size"], request["on"]), ("100MiB", ["s3", "s1"]))

    def refuses_to_change_a_part(self, server):
        for words in (("set", "big", "--min-bandwidth", "1MiB/s"), ("set", "big", "--share", "none")):
            self.assertIn("cluster", server.refused("volume", *words))
        self.assertIn("already", server.refused("volume", "create", "big", "1MiB", "--servers", "2", "--share", "1/4"))

    def test_a_volume_that_does_not_fit_is_refused_with_what_would(self):
        servers = self.three(size="256MiB")
        servers[0].cli("volume", "create", "a", "1MiB", "--servers", "3", "--share", "3/4")
        refused = servers[1].refused("volume", "create", "b", "1MiB", "--servers", "2", "--share", "1/2")
        for part in ("does not fit", "would sum to 1.25", "a share of 1/3", "R of the cluster 0.80 (--least 0.80)"):
            self.assertIn(part, refused)
        servers[1].cli("volume", "create", "b", "1MiB", "--servers", "2", "--share", "1/2", "--least", "0.8")
        self.assertAlmostEqual(self.schedule(servers[2])["r_cluster"], 0.8)
        refused = servers[1].refused("volume", "create", "c", "1GiB", "--servers", "2", "--share", "1/20")
        self.assertIn("the part needs 512MiB", refused)
        for words, why in (
            (("--servers", "2"), "share is missing"),
            (("--servers", "4", "--share", "1/9"), "3 can take a part"),
            (("--on", "s1,s9", "--share", "1/9"), "no server 's9'"),
            (("--servers", "2", "--share", "1/9", "--stripe", "1000"), "power of two"),
            (("--servers", "2", "--share", "1/9", "--min-bandwidth", "1MiB/s"), "no guarantees"),
            (("--servers", "2", "--on", "s1", "--share", "1/9"), "different numbers"),
        ):
            self.assertIn(why, servers[1].refused("volume", "create", "d", "1MiB", *words))
        volumes = [server.json("cluster", "status")["volumes"] for server in servers]
        self.assertEqual([[volume["name"] for volume in each] for each in volumes], [["a", "b"]] * 3)

    def test_volumes_of_one_server_take_part_in_the_schedule(self):
        servers = self.three()
        servers[1].cli("volume", "create", "own", "1MiB", "--disk", "hdd", "--share", "1/4")
        # If 'own' were deleted, another volume of its tenant would have a share without a place in the schedule.
        refused = servers[1].refused("volume", "create", "other", "1MiB", "--disk", "hdd", "--tenant", "own")
        self.assertIn("cannot have other volumes", refused)
        servers[0].cli("volume", "create", "wide", "3MiB", "--servers", "3", "--share", "1/2")
        servers[2].cli("volume", "create", "any", "1MiB", "--servers", "1", "--share", "1/4")
        # A volume without a share has the time that the others leave, and no place.
        servers[2].cli("volume", "create", "free", "1MiB", "--disk", "hdd")
        slots = {slot["volume"]: slot["servers"] for slot in self.schedule(servers[0])["slots"]}
        self.assertEqual((slots["own"], slots["wide"]), (["s2"], ["s1", "s2", "s3"]))
        self.assertNotIn("s2", slots["any"], "the least loaded server is chosen")
        self.assertNotIn("free", slots)
        self.assertEqual(self.volumes(servers[1]), ["own", "wide"])


class Rounds(ClusterCase):
    """The round follows what slices lose."""

    def load(self, server, volume):
        """Random reads of a part, many at a time, until the test ends."""
        command = ["fio", "--name=read", "--ioengine=nbd", f"--uri={server.uri(volume)}", "--rw=randread", "--bs=4k"]
        command += ["--thread", "--iodepth=32", "--time_based", "--runtime=300", "--output-format=json"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def needs(self, server):
        """What the servers have measured: the slices in nanoseconds, by server and volume."""
        members = server.json("cluster", "status")["members"]
        return {(need["server"], need["volume"]): need["slice_ns"] for member in members for need in member["needs"]}

    def test_large_losses_make_the_round_longer_on_all_servers(self):
        servers = self.three(max_round="2s")
        servers[0].cli("volume", "create", "big", "768MiB", "--servers", "3", "--share", "1/4")
        servers[1].cli("volume", "create", "small", "64MiB", "--servers", "1", "--share", "1/4")
        before = self.schedule(servers[2])
        self.assertIn(before["need"]["server"], ["s1", "s2", "s3"])
        for server in servers:
            self.load(server, "big")
        until("all needs", lambda: {("s1", "big"), ("s2", "big"), ("s3", "big")} <= set(self.needs(servers[0])), 60)
        until("a longer round", lambda: self.schedule(servers[0])["round_ns"] > before["round_ns"], 60)
        after = self.schedule(servers[0])
        self.assertEqual(after["version"], before["version"] + 1)
        self.in_step(servers, after["version"])
        self.assertEqual([self.schedule(server) for server in servers], [after] * 3)
        # Every slot has the same part of another round.
        longer = after["round_ns"] / before["round_ns"]
        self.assertGreater(longer, 1.2)
        for old, new in zip(before["slots"], after["slots"], strict=True):
            self.assertEqual((new["volume"], new["servers"]), (old["volume"], old["servers"]))
            self.assertAlmostEqual(new["start_ns"], old["start_ns"] * longer, delta=10)
            self.assertAlmostEqual(new["length_ns"], old["length_ns"] * longer, delta=10)
        (slot,) = (slot for slot in after["slots"] if slot["volume"] == "big")
        need = after["need"]
        self.assertEqual(need["volume"], "big")
        self.assertTrue(need["slice_ns"] <= slot["length_ns"] or after["round_ns"] == 2 * 10**9, after)
        self.assertIn("volume 'big', which needs slices of", servers[1].cli("cluster", "schedule").stdout)
        self.assertIn(f"on server '{need['server']}'", servers[1].cli("cluster", "status").stdout)
        for server in servers:
            self.follows(server, "big", after)
            self.assertIn("lab, as s", server.cli("status").stdout)
            status = server.json("status")["cluster"]
            self.assertEqual((status["joined"], status["version"], status["in_step"]), (True, after["version"], True))
            metrics = server.metrics()
            self.assertEqual(metrics['aerogel_cluster_round_seconds{cluster="lab"}'], after["round_ns"] / 1e9)
            self.assertEqual(metrics['aerogel_cluster_schedule_version{cluster="lab"}'], after["version"])
            self.assertEqual(metrics['aerogel_cluster_servers_away{cluster="lab"}'], 0)
        # A new volume is placed in a round for these losses, too.
        servers[2].cli("volume", "create", "late", "1MiB", "--servers", "1", "--share", "1/4")
        self.assertGreater(self.schedule(servers[2])["round_ns"], before["round_ns"] * 1.2)

    def test_a_change_of_a_later_release_is_refused_and_nothing_else_fails(self):
        servers = [self.joined(self.join("s1")), self.joined(self.join("s2"))]
        self.know(servers)
        servers[0].cli("volume", "create", "v", "1MiB", "--servers", "2", "--share", "1/4")
        lease = re.search("lease ([0-9a-f]+) granted", self.etcd.ctl("lease", "grant", "60")).group(1)
        id = "00000000-0000-4000-8000-000000000007"
        schedule = {**self.etcd.keys("/aerogel/lab/schedule")["/aerogel/lab/schedule"], "version": 2}
        change = {"id": id, "lease": int(lease, 16), "volume": "v", "what": {"defragment": {"slowly": True}},
                  "schedule": schedule, "servers": ["s1"]}  # fmt: skip
        self.etcd.ctl("put", f"--lease={lease}", "/aerogel/lab/change", json.dumps(change))
        outcome = f"/aerogel/lab/outcome/{id}"
        why = until("it to be undone", lambda: self.etcd.keys(outcome).get(outcome), 10)
        self.assertIn("server 's1': its release is too old for this change", why["error"])
        for server in servers:
            status = server.json("cluster", "status")
            self.assertTrue(status["joined"] and status["etcd"]["answers"] and status["version"] == 1)
        servers[1].cli("volume", "delete", "v", "--yes")


class Failures(ClusterCase):
    """etcd or a server fails."""

    def test_without_etcd_volumes_are_served_and_changes_refused(self):
        servers = self.three()
        servers[0].cli("volume", "create", "big", "10MiB", "--servers", "3", "--share", "1/3")
        before = self.schedule(servers[0])
        self.in_step(servers, before["version"])
        handle = servers[0].open("big")
        self.etcd.kill()
        until("etcd to be missed", lambda: not servers[0].json("cluster", "status")["etcd"]["answers"], 15)
        handle.pwrite(b"y" * MIB, 0)
        handle.flush()
        self.assertEqual(handle.pread(MIB, 0), b"y" * MIB)
        for words in (("volume", "create", "b", "1MiB", "--servers", "2", "--share", "1/4"),
                      ("volume", "delete", "big", "--yes"), ("cluster", "drain", "s2")):  # fmt: skip
            self.assertIn("etcd does not answer", servers[0].refused(*words))
        self.assertIn("does not answer", servers[0].cli("cluster", "status").stdout)
        self.assertEqual(self.schedule(servers[0]), before)
        # A server that starts without etcd follows the schedule that it has.
        servers[1].restart()
        self.assertEqual(self.volumes(servers[1]), ["big"])
        self.assertEqual(servers[1].json("cluster", "status")["version"], before["version"])
        self.assertEqual(self.schedule(servers[1]), before)
        refused = servers[1].refused("volume", "create", "g", "1MiB", "--disk", "hdd", "--min-bandwidth", "1MiB/s")
        self.assertIn("minimum bandwidth", refused)
        self.etcd.start()
        self.know(servers)
        servers[1].cli("volume", "create", "b", "1MiB", "--servers", "2", "--share", "1/4")
        after = self.schedule(servers[1])
        self.assertEqual(after["version"], before["version"] + 1)
        self.in_step(servers, after["version"])

    def test_a_schedule_of_a_lower_version_is_never_taken(self):
        servers = [self.joined(self.join("s1"))]
        servers[0].cli("volume", "create", "a", "1MiB", "--servers", "1", "--share", "1/4")
        servers[0].cli("volume", "create", "b", "1MiB", "--servers", "1", "--share", "1/4")
        old = self.schedule(servers[0])
        keys = self.etcd.keys("/aerogel/lab/schedule")["/aerogel/lab/schedule"]
        self.etcd.ctl("put", "/aerogel/lab/schedule", json.dumps({**keys, "version": 1, "slots": []}))
        status = ("cluster", "status")
        until("it to be out of step", lambda: "OUT OF STEP (version 2)" in servers[0].cli(*status).stdout, 10)
        self.assertEqual(self.schedule(servers[0]), old)
        # The next one is above all that servers have.
        servers[0].cli("volume", "create", "c", "1MiB", "--servers", "1", "--share", "1/4")
        schedule = self.schedule(servers[0])
        self.assertEqual((schedule["version"], len(schedule["slots"])), (3, 3))
        # A volume with data has a place in every schedule, whatever etcd has forgotten.
        self.etcd.ctl("del", "/aerogel/lab/volumes/b")
        create = ("volume", "create", "d", "1MiB", "--servers", "1", "--share", "1/9")
        self.assertIn("a part of volume 'b', which etcd does not know", servers[0].refused(*create))
        servers[0].cli("volume", "delete", "b", "--yes", "--force")
        servers[0].cli(*create)
        self.assertEqual(self.volumes(servers[0]), ["a", "c", "d"])

    def dies(self, place, who, **more):
        """A server dies at a place in the creation of a volume; returns the servers, that one, and the creation."""
        self.said = []
        servers = self.three(**more)
        victim = servers[who]
        self.assertEqual(victim.stop(), 0)
        victim.start(env={**os.environ, "AEROGEL_FAILPOINT": place})
        self.know(servers)
        words = ("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")
        creation = threading.Thread(target=lambda: self.said.append(servers[0].cli(*words, check=False)))
        creation.start()
        self.addCleanup(creation.join)
        self.assertEqual(victim.process.wait(20), -signal.SIGKILL, victim.log_tail())
        return servers, victim, creation

    def whole_or_not(self, servers):
        """The volume is on all servers, or on none, and so is what they say."""

        def settled():
            status = [server.json("cluster", "status") for server in servers]
            if any(one["change"] or not one["etcd"]["answers"] or not one["joined"] for one in status):
                return None
            known = {tuple(volume["name"] for volume in one["volumes"]) for one in status}
            served = {tuple(self.volumes(server)) for server in servers}
            listed = {tuple(volume["name"] for volume in server.json("volume", "list")) for server in servers}
            versions = {one["version"] for one in status}
            agree = len(known | served | listed) == 1 and len(versions) == 1
            return (known.pop(),) if agree else None

        (volumes,) = until("a whole volume or none", settled, CHANGE_SECONDS + 15)
        return volumes

    def finishes(self, place, who=0):
        servers, victim, _ = self.dies(place, who)
        victim.start()
        self.assertEqual(self.whole_or_not(servers), ("v",), place)
        handle = servers[who].open("v")
        handle.pwrite(b"z" * 4096, 0)

    def test_the_creator_dies_when_it_has_proposed(self):
        self.finishes("proposed")

    def test_a_server_dies_when_it_has_created_its_part(self):
        self.finishes("created", 1)

    def test_a_server_dies_when_it_has_acknowledged(self):
        self.finishes("acknowledged", 2)

    def test_a_server_dies_when_it_has_published_its_part(self):
        self.finishes("published", 1)

    def test_a_server_dies_when_it_has_committed(self):
        server = self.joined(self.join("s1"))
        self.assertEqual(server.stop(), 0)
        self.joined(server.start(env={**os.environ, "AEROGEL_FAILPOINT": "committed"}))
        server.cli("volume", "create", "v", "3MiB", "--servers", "1", "--share", "1/3", check=False)
        self.assertEqual(server.process.wait(20), -signal.SIGKILL, server.log_tail())
        self.joined(server.start())
        self.assertEqual(self.whole_or_not([server]), ("v",))

    def test_a_server_dies_when_it_has_deleted_its_part(self):
        servers = self.three()
        victim = servers[1]
        servers[0].cli("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")
        self.assertEqual(victim.stop(), 0)
        victim.start(env={**os.environ, "AEROGEL_FAILPOINT": "deleted"})
        self.know(servers)
        said = servers[0].cli("volume", "delete", "v", "--yes").stdout
        self.assertIn("server 's2' has not deleted its part yet", said)
        self.assertEqual(victim.process.wait(20), -signal.SIGKILL, victim.log_tail())
        self.assertEqual([volume["deleting"] for volume in servers[0].json("cluster", "status")["volumes"]], [True])
        victim.start()
        self.assertEqual(self.whole_or_not(servers), ())
        servers[0].cli("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")

    def test_a_server_dies_and_stays_away(self):
        servers, victim, creation = self.dies("created", 1, change_seconds=4)
        creation.join()
        self.assertIn("'s2' did not answer within 4s", self.said[0].stderr)
        others = [servers[0], servers[2]]
        until("nothing of it", lambda: [self.volumes(other) for other in others] == [[], []], 10)
        for other in others:
            until("its part to go", lambda other=other: other.json("volume", "list") == [], 10)
        victim.start()
        self.assertEqual(self.whole_or_not(servers), ())
        servers[0].cli("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")
        self.assertEqual(self.whole_or_not(servers), ("v",))

    def test_volumes_are_created_while_a_server_is_away(self):
        servers = self.three()
        servers[0].cli("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")
        before = servers[0].json("cluster", "schedule")
        self.assertEqual(servers[2].stop(), 0)
        until("it to leave", lambda: not self.ready(servers[0], 3), 15)
        words = ("volume", "create", "w", "1MiB", "--servers", "2", "--share")
        refused = servers[0].refused(*words, "3/4")
        self.assertIn("server 's3' does not run, so the slots of the schedule cannot move", refused)
        self.assertIn("hint: start 's3', or ask for another share", refused)
        servers[0].cli(*words, "1/3")
        handle = servers[0].open("w")
        handle.pwrite(b"w" * 4096, 0)
        servers[1].cli("volume", "create", "own", "1MiB", "--on", "s2", "--share", "1/3")
        # The server that is away has its slots at the same time as the others when it is back, or if it still runs.
        after = servers[0].json("cluster", "schedule")
        self.assertEqual([slot["volume"] for slot in after["slots"]], ["v", "w", "own"])
        self.assertEqual((after["slots"][0], after["round_ns"]), (before["slots"][0], before["round_ns"]))
        self.assertEqual((after["begins_ns"] - before["begins_ns"]) % before["round_ns"], 0)
        servers[2].start()
        self.in_step(servers, after["version"])
        self.assertEqual([self.volumes(server) for server in servers], [["v", "w"], ["own", "v", "w"], ["v"]])

    def test_a_volume_is_deleted_while_a_server_is_away(self):
        servers = self.three()
        servers[0].cli("volume", "create", "v", "3MiB", "--servers", "3", "--share", "1/3")
        self.assertEqual(servers[2].stop(), 0)
        until("it to leave", lambda: not self.ready(servers[0], 3), 15)
        self.assertIn("'s3' does not run", servers[0].refused("volume", "delete", "v", "--yes"))
        self.assertIn("'s3' will delete", servers[0].cli("volume", "delete", "v", "--yes", "--force").stdout)
        words = ("volume", "create", "v", "1MiB", "--servers", "2", "--share", "1/4")
        self.assertIn("is being deleted", servers[0].refused(*words))
        self.assertIn("AWAY, OUT OF STEP (version 1)", servers[0].cli("cluster", "status").stdout)
        servers[2].start()
        self.assertEqual(self.whole_or_not(servers), ())
