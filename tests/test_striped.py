"""Volumes of a gateway that are striped over several servers: where the data is, and what happens when one dies."""

import os
import random
import unittest

import nbd
from harness.case import ServerCase
from harness.gateway import BLOCK, Load, Verified
from harness.server import MIB, run
from harness.wait import until

# For `tests/run.py`.
LANE = 4

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
TURNS = 20 if LONG else 3
KIB = 1024


def unstriped(members, unit, size):
    """The content of a striped volume, from that of its members: units in turn."""
    rows = size // (unit * len(members))
    return b"".join(member[row * unit : (row + 1) * unit] for row in range(rows) for member in members)


def whole(handle):
    """All bytes of an export."""
    return b"".join(handle.pread(MIB, at) for at in range(0, handle.get_size(), MIB))


class Striped(ServerCase):
    """A gateway, and some servers with a volume `v` each."""

    def begin(self, sizes, *more, cache="32MiB"):
        self.members = [self.serve(name=f"server{at}", cache="32MiB") for at in range(len(sizes))]
        for member, size in zip(self.members, sizes):
            member.create("v", size)
        self.server = self.serve(name="gateway", cache=cache)
        return self.create(*more)

    def create(self, *more):
        return self.server.cli("volume", "create", "gw", *self.exports(), *more)

    def exports(self):
        return [word for member in self.members for word in ("--from", member.uri("v"))]

    def stripes(self):
        return self.server.json("volume", "show", "gw")["stripes"]

    def states(self):
        return [member["state"] for member in self.stripes()["members"]]

    def until_online(self):
        until("all sessions to be open", lambda: set(self.states()) == {"online"}, 30)

    def on_members(self, unit, size):
        """The content of the volume as its servers have it."""
        return unstriped([whole(member.open("v")) for member in self.members], unit, size)

    def test_units_are_on_the_servers_in_turn(self):
        done = self.begin(["8MiB", "16MiB", "8MiB"], "--stripe", "4KiB", "--cache", "8MiB")
        self.assertIn("'gw' of 24MiB", done.stdout)
        self.assertIn("in stripes of 4KiB", done.stdout)
        gateway, rng, size = self.server.open("gw"), random.Random(1), 24 * MIB
        self.assertEqual(gateway.get_size(), size)
        image = bytearray(size)
        # More than the cache holds, in requests that begin and end anywhere.
        for _ in range(400):
            length = rng.choice([512, 4096, 20 * KIB, 300 * KIB])
            at = rng.randrange((size - length) // 512) * 512
            image[at : at + length] = data = rng.randbytes(length)
            gateway.pwrite(data, at, rng.choice([0, 0, nbd.CMD_FLAG_FUA]))
        gateway.zero(3 * MIB, 5 * MIB + 8 * KIB)
        image[5 * MIB + 8 * KIB : 8 * MIB + 8 * KIB] = bytes(3 * MIB)
        for at in range(0, size, MIB):
            self.assertEqual(gateway.pread(MIB, at), image[at : at + MIB])
        gateway.flush()
        self.assertEqual(self.on_members(4 * KIB, size), image)
        shown = self.stripes()
        self.assertEqual(shown["unit_bytes"], 4 * KIB)
        self.assertEqual([member["from"] for member in shown["members"]], self.exports()[1::2])
        self.assertEqual(self.states(), ["online"] * 3)
        text = self.server.cli("volume", "show", "gw").stdout
        for at, member in enumerate(self.members):
            self.assertIn(f"{at}: {member.uri('v')}", text)
        metrics = self.server.metrics()
        for at in range(3):
            labels = f'{{disk="default",volume="gw",tenant="gw",member="{at}"}}'
            self.assertEqual(metrics[f"aerogel_volume_upstream_online{labels}"], 1)
        self.assertIsNone(self.server.json("volume", "show", "gw")["upstream"])

    def test_qemu_and_a_restart_of_the_gateway(self):
        self.begin(["8MiB", "8MiB"], "--stripe", "64KiB")
        uri = self.server.uri("gw")
        # A unit, parts of two, and rows of units.
        writes = [(0x11, 0, 64), (0x22, 60, 8), (0x33, 200, 700), (0x44, 16 * KIB - 4, 4)]
        commands = [word for byte, at, size in writes for word in ("-c", f"write -P {byte} {at}k {size}k")]
        reads = ["-c", "read -P 0x22 60k 8k", "-c", "read -P 0x33 200k 700k", "-c", "read -P 0 68k 132k"]
        self.assertNotIn("failed", run("qemu-io", "-f", "raw", *commands, "-c", "flush", uri).stdout)
        self.server.kill()
        self.server.start()
        said = run("qemu-io", "-f", "raw", *reads, uri).stdout
        self.assertNotIn("failed", said)
        self.assertEqual(said.count("read "), 3)
        image = bytearray(16 * MIB)
        for byte, at, size in writes:
            image[at * KIB : (at + size) * KIB] = bytes([byte]) * (size * KIB)
        self.assertEqual(self.on_members(64 * KIB, len(image)), image)

    def test_servers_are_killed_under_load_and_nothing_is_lost(self):
        unit, size = 16 * KIB, 64 * MIB
        self.begin(["32MiB", "32MiB"], "--stripe", "16KiB", "--cache", "8MiB")
        load = Load(self, self.server)
        clients = load.start(0)
        for turn in range(TURNS):
            fio = Verified(self, turn, 4)
            load.work(clients)
            member = self.members[turn % 2]
            member.kill()
            until("the gateway to notice", lambda: self.states()[turn % 2] != "online", 30)
            self.assertEqual(self.states()[1 - turn % 2], "online")
            member.start()
            load.work(clients)
            fio.end()
        load.end(clients)
        gateway = self.server.open("gw")
        gateway.flush()
        seen = whole(gateway)
        self.assertGreaterEqual(sum(member["reconnects"] for member in self.stripes()["members"]), TURNS)
        # With what is in no cache any more.
        for member in self.members:
            member.kill()
            member.start()
        image = self.on_members(unit, size)
        self.assertEqual(image, seen)
        load.check(lambda block: number(image, block))

    def test_the_gateway_is_killed_under_load(self):
        unit, size = 64 * KIB, 64 * MIB
        self.begin(["32MiB", "32MiB"], "--cache", "8MiB")
        load = Load(self, self.server)
        for turn in range(2):
            clients = load.start(turn)
            load.work(clients)
            for client in clients:
                client.killed = True
            self.server.kill()
            load.killed(clients)
            self.server.start()
        clients = load.start(9)
        load.work(clients)
        load.end(clients)
        self.assertEqual(self.server.stop(), 0)
        image = self.on_members(unit, size)
        load.check(lambda block: number(image, block))

    def test_a_server_that_is_away_fails_what_it_has_and_flushes_that_need_it(self):
        self.begin(["8MiB", "8MiB"], "--stripe", "64KiB", "--upstream-deadline", "1s")
        gateway = self.server.open("gw")
        gateway.pwrite(b"1" * 4096, 0)
        gateway.flush()
        self.until_online()
        self.server.stop()
        self.members[1].kill()
        self.server.start()
        until("one session", lambda: self.states() == ["online", "connecting"], 30)
        text = self.server.cli("volume", "show", "gw").stdout
        self.assertIn(f"{self.members[1].uri('v')}: its server is away", text)
        gateway = self.server.open("gw")
        self.assertEqual(gateway.pread(4096, 0), b"1" * 4096)
        # It was not reached yet, so this waits until it is durable: the server that has it is there.
        gateway.pwrite(b"2" * 4096, 0)
        self.assertEqual(self.members[0].open("v").pread(4096, 0), b"2" * 4096)
        for request in (lambda: gateway.pread(4096, 64 * KIB), gateway.flush):
            with self.assertRaises(nbd.Error) as caught:
                request()
            self.assertEqual(caught.exception.errno, "EIO")
        self.members[1].start()
        self.until_online()
        self.assertEqual(gateway.pread(4096, 64 * KIB), bytes(4096))
        gateway.pwrite(b"3" * 8192, 64 * KIB - 4096)
        gateway.flush()
        self.assertEqual([member.open("v").pread(4096, at) for member, at in zip(self.members, (60 * KIB, 0))],
                         [b"3" * 4096] * 2)  # fmt: skip

    def test_settings_and_deletion_concern_all_of_them(self):
        self.begin(["8MiB", "8MiB"])
        self.until_online()
        self.server.cli("volume", "set", "gw", "--upstream-connections", "2", "--upstream-deadline", "5s")
        connections = lambda: [member["connections"] for member in self.stripes()["members"]]
        until("two connections to each", lambda: connections() == [2, 2], 30)
        self.assertEqual([member["deadline_s"] for member in self.stripes()["members"]], [5, 5])
        self.assertIn("enlarge all of them", self.server.refused("volume", "grow", "gw", "64MiB"))
        spec = self.server.json("volume", "show", "gw")["spec"]
        self.assertEqual((spec["from"], spec["stripe"]), (self.exports()[1::2], "64KiB"))
        gateway = self.server.open("gw")
        gateway.pwrite(b"1" * 4096, 64 * KIB)
        gateway.shutdown()
        said = self.server.cli("volume", "delete", "gw", "--yes").stdout
        for member in self.members:
            self.assertIn(member.uri("v"), said)
        self.assertEqual(self.members[1].open("v").pread(4096, 0), b"1" * 4096)
        # Again, in another order: the units are elsewhere.
        self.members.reverse()
        self.create()
        self.assertEqual(self.server.open("gw").pread(4096, 0), b"1" * 4096)

    def test_a_member_that_has_changed_is_not_used(self):
        self.begin(["8MiB", "8MiB"], "--upstream-deadline", "1s")
        self.until_online()
        self.server.stop()
        self.members[1].cli("volume", "delete", "v", "--yes")
        self.members[1].create("v", "16MiB")
        self.server.start()
        until("the gateway to refuse it", lambda: self.states() == ["online", "offline"], 30)
        second = self.stripes()["members"][1]
        self.assertIn("16777216", second["failure"])
        self.assertIn(f"{self.members[1].uri('v')} cannot be used", self.server.cli("volume", "show", "gw").stdout)

    def test_what_is_refused(self):
        self.begin(["8MiB", "8MiB"])
        first, second = (member.uri("v") for member in self.members)
        self.server.cli("volume", "delete", "gw", "--yes")
        same = first.replace("/v?", "/v?").replace("socket=", "socket=/./").replace("/.//", "/./")
        for said, words in [
            ("give --from for each", ["--from", first, "--stripe", "64KiB"]),
            ("is named twice", ["--from", first, "--from", second, "--from", first]),
            ("are the same volume", ["--from", first, "--from", same]),
            ("a power of two", ["--from", first, "--from", second, "--stripe", "96KiB"]),
            ("less than a stripe unit", ["--from", first, "--from", second, "--stripe", "16MiB"]),
            ("no export 'nothing'", ["--from", first, "--from", self.members[1].uri("nothing")]),
        ]:
            self.assertIn(said, self.server.refused("volume", "create", "gw", *words))
        self.assertEqual(self.server.json("volume", "list"), [])
        done = self.server.cli("volume", "create", "gw", "1MiB", "--stripe", "64KiB", check=False)
        self.assertEqual(done.returncode, 2)


def number(image, block):
    """The number that a block is full of."""
    data = image[block * BLOCK : (block + 1) * BLOCK]
    assert data == data[:8] * (BLOCK // 8), f"block {block} is torn"
    return int.from_bytes(data[:8], "little")


if __name__ == "__main__":
    unittest.main()
