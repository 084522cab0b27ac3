"""Off-loading is enabled and disabled while other changes of the disk are on their way."""

import subprocess

from harness import places
from harness.case import ServerCase
from harness.server import MIB
from harness.throttle import Throttle, needed
from harness.wait import until

# For `tests/run.py`.
LANE = 4

# Zeros of a creation or a growth, and their rate: eight seconds, much longer than it takes to enable off-loading.
BYTES = 64 * MIB
BYTES_PER_SECOND = BYTES // 8
MARK = "offload = true"


class WhileZerosAreWritten(ServerCase):
    """The disk can be changed while `--prealloc full` writes zeros."""

    def setUp(self):
        super().setUp()
        needed()
        self.server = self.serve()
        self.volumes = self.server.data / "disks/default/volumes"
        self.server.cli("disk", "add", "other", "sim:barracuda-7200.9", "--size", "1GiB")
        self.server.cli("store", "create", "spare", "--size", "64MiB", "--disk", "other")

    def enable(self):
        self.server.cli("offload", "enable", "default", "--store", "spare")

    def disable(self):
        self.server.cli("offload", "disable", "default")
        until("off-loading to end", lambda: self.server.json("offload", "list") == [])

    def meanwhile(self, change, file, more, *words):
        """Begins a command that writes zeros into this file, makes the change before it has ended, and awaits it."""
        throttle = Throttle(self, self.scratch, BYTES_PER_SECOND)
        throttle.add(self.server.pid)
        # The throttle can be removed when it has no process any more.
        self.addCleanup(self.server.kill)
        command = [places.binary(), "volume", words[0], "--data", self.server.data, *words[1:]]
        client = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        path = self.volumes / file
        until("zeros to be written", lambda: path.exists() and path.stat().st_blocks * 512 > more)
        change()
        self.assertIsNone(client.poll(), "it has ended too early for this test")
        published = self.spec("v")
        throttle.limit(0)
        self.assertEqual(client.wait(60), 0)
        return published

    def spec(self, name):
        path = self.volumes / f"{name}.toml"
        return path.read_text() if path.exists() else None

    def check(self, size, is_marked):
        for restart in (lambda: None, self.server.restart):
            restart()
            until("it to be online", lambda: self.server.json("volume", "show", "v")["condition"] == "online")
            self.assertEqual(self.server.open("v").get_size(), size)
            self.assertEqual(MARK in self.spec("v"), is_marked)

    def test_a_volume_grows(self):
        self.server.create("v", "1MiB", "--prealloc", "full")
        self.meanwhile(self.enable, "v.img", MIB, "grow", "v", "65MiB")
        self.check(65 * MIB, is_marked=True)
        self.meanwhile(self.disable, "v.img", 65 * MIB, "grow", "v", "129MiB")
        self.check(129 * MIB, is_marked=False)

    def test_a_volume_is_created(self):
        create = (".v.img.tmp", 0, "create", "v", "64MiB", "--prealloc", "full")
        self.assertIsNone(self.meanwhile(self.enable, *create), "a volume whose data is not made")
        self.check(BYTES, is_marked=True)
        self.server.cli("volume", "delete", "v", "--yes")
        self.assertIsNone(self.meanwhile(self.disable, *create), "a volume whose data is not made")
        self.check(BYTES, is_marked=False)


class TwoDisks(ServerCase):
    """A store has the log of one disk."""

    def test_two_disks_that_ask_for_the_same_store_at_once(self):
        server = self.serve()
        server.cli("store", "create", "spare", "--size", "64MiB", "--disk", "default")
        disks = ["one", "two"]
        for disk in disks:
            server.cli("disk", "add", disk, "sim:barracuda-7200.9", "--size", "1GiB")
        for _ in range(10):
            command = [places.binary(), "offload", "enable", "--store", "spare", "--data", str(server.data)]
            ignored = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            clients = [subprocess.Popen([*command, disk], **ignored) for disk in disks]
            for client in clients:
                client.wait(60)
            using = [of["disk"] for of in server.json("offload", "list")]
            self.assertEqual(len(using), [client.returncode for client in clients].count(0))
            self.assertLess(len(using), 2)
            for disk in using:
                server.cli("offload", "disable", disk)
            until("off-loading to end", lambda: server.json("offload", "list") == [])
