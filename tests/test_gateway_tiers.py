"""Two caches in a row: with `--tiers demote` the server drops what it has sent and takes what the gateway evicts."""

import random
import subprocess

import nbd
from harness.behind import Behind
from harness.case import ServerCase
from harness.gateway import BLOCK, Load, Verified, content
from harness.server import MIB
from harness.wait import until

# For `tests/run.py`.
LANE = 4

WORKING_SET = 12 * MIB  # More than either cache of 8 MiB, less than both.
CACHE = "8MiB"
LABELS = '{disk="default",volume="%s",tenant="%s"}'


def numbered(block):
    """The content of a block, before anybody changes it."""
    return (block + 1).to_bytes(8, "little") * (BLOCK // 8)


class Tiers(ServerCase):
    def begin(self, *more, names=("behind", "gateway")):
        self.behind, self.server = (self.serve(name=name) for name in names)
        self.behind.create("db", "64MiB", "--cache", CACHE)
        self.server.cli("volume", "create", "gw", "--from", self.behind.uri("db"), "--cache", CACHE, *more)
        until("a session to be open", lambda: self.upstream()["state"] == "online", 30)

    def upstream(self):
        return self.server.json("volume", "show", "gw")["upstream"]

    def demotion(self):
        return self.behind.json("volume", "show", "db")["demotion"]

    def device_read_bytes(self):
        return self.behind.metrics()["aerogel_volume_device_read_bytes_total" + LABELS % ("db", "db")]

    def demoted(self, server, volume, what):
        return server.metrics()[f"aerogel_demote_{what}{LABELS % (volume, volume)}"]

    def fill(self, handle):
        for first in range(0, WORKING_SET, MIB):
            blocks = range(first // BLOCK, (first + MIB) // BLOCK)
            handle.pwrite(b"".join(map(numbered, blocks)), first)
        handle.flush()

    def read_at_random(self, handle, requests, seed):
        rng = random.Random(seed)
        for _ in range(requests):
            block = rng.randrange(WORKING_SET // BLOCK)
            self.assertEqual(handle.pread(BLOCK, block * BLOCK), numbered(block))

    def replace_the_cache(self, handle):
        """What the gateway has of earlier sessions is not demoted: it is evicted, and what follows it, too."""
        for first in 2 * [*range(0, 2 * WORKING_SET, MIB)]:
            handle.pread(MIB, first)

    def reads_of_the_disk(self, tiers):
        """Bytes that the server reads from its disk for the same reads of a client, when both caches are warm."""
        self.begin("--tiers", tiers, names=(f"behind-{tiers}", f"gateway-{tiers}"))
        handle = self.server.open("gw")
        self.fill(handle)
        self.read_at_random(handle, 10_000, 1)
        before = self.device_read_bytes()
        self.read_at_random(handle, 3_000, 2)
        return self.device_read_bytes() - before

    def test_both_caches_together_hold_a_working_set_that_neither_holds(self):
        lru = self.reads_of_the_disk("lru")
        self.assertIsNone(self.demotion())
        self.assertEqual(self.upstream()["effective_tiers"], "lru")
        self.behind.stop()
        self.server.stop()
        demote = self.reads_of_the_disk("demote")
        # A third of 3,000 reads miss both caches, or next to none.
        self.assertGreater(lru, 500 * BLOCK)
        self.assertLess(demote, lru / 4, f"{demote / BLOCK:.0f} blocks with demote, {lru / BLOCK:.0f} with lru")
        upstream, demotion = self.upstream(), self.demotion()
        self.assertEqual((upstream["tiers"], upstream["effective_tiers"]), ("demote", "demote"))
        self.assertTrue(demotion["active"])
        self.assertGreater(upstream["demoted_bytes"], 0)
        self.assertGreater(demotion["used_bytes"], 500 * BLOCK)
        self.assertLessEqual(demotion["taken_bytes"] + demotion["dropped_bytes"], self.upstream()["demoted_bytes"])
        self.assertEqual(self.demoted(self.server, "gw", "granted"), 1)
        self.assertGreaterEqual(self.demoted(self.server, "gw", "sent_bytes_total"), upstream["demoted_bytes"])
        self.assertGreaterEqual(self.demoted(self.behind, "db", "taken_bytes_total"), demotion["taken_bytes"])
        self.assertIn("tiers demote", self.server.cli("volume", "show", "gw").stdout)
        self.assertIn("by its client", self.behind.cli("volume", "show", "db").stdout)

    def test_it_is_set_live_and_a_server_that_is_restarted_takes_demotions_again(self):
        self.begin()
        handle = self.server.open("gw")
        self.fill(handle)
        self.server.cli("volume", "set", "gw", "--tiers", "demote")
        demotes = lambda: self.upstream()["effective_tiers"] == "demote"
        until("the server to grant it", demotes, 30)
        self.replace_the_cache(handle)
        self.assertGreater(self.demotion()["taken_bytes"], 0)
        self.read_at_random(handle, 1000, 3)
        self.behind.restart()
        until("the server to grant it again", demotes, 30)
        self.replace_the_cache(handle)
        self.assertGreater(self.demotion()["taken_bytes"], 0)
        self.read_at_random(handle, 1000, 4)
        self.server.restart()
        self.assertEqual(self.server.json("volume", "show", "gw")["spec"]["tiers"], "demote")
        until("the server to grant it again", demotes, 30)
        self.server.cli("volume", "set", "gw", "--tiers", "lru")
        until("it to be off", lambda: not demotes() and self.upstream()["state"] == "online", 30)
        self.read_at_random(self.server.open("gw"), 1000, 5)

    def test_when_another_client_changes_the_volume_nothing_outdated_is_taken(self):
        self.begin("--tiers", "demote")
        handle, other = self.server.open("gw"), self.behind.open("db")
        self.fill(handle)
        self.read_at_random(handle, 2000, 6)
        self.assertTrue(self.demotion()["active"])
        # The gateway has most of these blocks, and evicts them in the following.
        changed = range(0, 512)
        for block in changed:
            other.pwrite(b"\xff" * BLOCK, block * BLOCK)
        self.replace_the_cache(handle)
        for block in changed:
            self.assertEqual(other.pread(BLOCK, block * BLOCK), b"\xff" * BLOCK)
        self.assertFalse(self.demotion()["active"])
        until("the gateway to notice", lambda: self.upstream()["effective_tiers"] == "lru", 30)
        self.assertIn("does not grant it", self.server.cli("volume", "show", "gw").stdout)

    def test_it_is_refused_where_no_server_would_grant_it(self):
        self.begin()
        self.behind.create("other", "64MiB")
        uri, other = self.behind.uri("db"), self.behind.uri("other")
        create = ["volume", "create", "x", "--tiers", "demote"]
        self.assertIn("--from", self.server.refused(*create, "64MiB"))
        self.assertIn("striped", self.server.refused(*create, "--from", uri, "--from", other))
        self.assertIn("--shared", self.server.refused(*create, "--from", other, "--shared"))
        self.server.create("local", "8MiB")
        self.assertIn("on a disk of this server", self.server.refused("volume", "set", "local", "--tiers", "demote"))
        self.assertEqual([volume["name"] for volume in self.server.json("volume", "list")], ["gw", "local"])

    def test_a_server_of_another_make_gets_plain_reads_and_writes(self):
        file, socket = self.scratch / "image", self.scratch / "qemu.sock"
        file.write_bytes(bytes(4 * MIB))
        command = ["qemu-nbd", "--persistent", "--format=raw", f"--socket={socket}", "--export-name=db", file]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        until("qemu-nbd to listen", socket.exists, 30)
        self.server = self.serve(name="gateway")
        self.server.cli("volume", "create", "gw", "--from", f"nbd+unix:///db?socket={socket}", "--tiers", "demote")
        handle = self.server.open("gw")
        handle.pwrite(b"1" * BLOCK, 0, nbd.CMD_FLAG_FUA)
        self.assertEqual(handle.pread(BLOCK, 0), b"1" * BLOCK)
        self.assertEqual((self.upstream()["tiers"], self.upstream()["effective_tiers"]), ("demote", "lru"))

    def test_nothing_is_lost_or_outdated_while_both_fail(self):
        size = 64 * MIB
        self.behind = Behind(self, "ours", size)
        self.server = self.serve(name="gateway", cache="32MiB")
        self.behind.forwarded(self.server, "gw", "--cache", "8MiB", "--tiers", "demote")
        load = Load(self, self.server)
        clients = load.start(0)
        fio = Verified(self, 0, 4)
        self.behind.faults(0, 1, lambda: load.work(clients))
        load.work(clients)
        fio.end()
        shown = self.behind.server.json("volume", "show", "db")["demotion"]
        self.assertGreater(shown["taken_bytes"], 0)
        for client in clients:
            client.killed = True
        self.server.kill()
        load.killed(clients)
        self.server.start()
        clients = load.start(1)
        load.work(clients)
        load.end(clients)
        self.server.open("gw").flush()
        self.server.stop()
        handle = nbd.NBD()
        handle.connect_uri(self.behind.uri)
        load.check(lambda block: content(handle, block))
