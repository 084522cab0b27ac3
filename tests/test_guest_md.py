"""RAID-5 by the kernel's md over the parts of a striped volume, in an emulated machine; servers are lost under it."""

import os
import re
import signal
import unittest

from harness import places
from harness.etcd import free_ports
from harness.guest import Guest
from harness.server import MIB
from harness.wait import until
from test_cluster import ClusterCase

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
# Emulation is slow, and the machine may be busy.
SECONDS = 900
SCRIPT = places.ROOT / "tests/guest/raid5.sh"
MANUAL = places.ROOT / "docs/manual/cluster.md"
SERVERS = ("s1", "s2", "s3", "s4")
# `-timeout` in the manual, and how much later md has dropped the member and written without it. A server that ends
# closes its connection, and nothing waits for the timeout. To one that hangs, a request that cannot be sent waits for
# it twice.
TIMEOUT_SECONDS, LATER_SECONDS = 30, 20
# A server is lost when it has had so much of the load.
LOST_BYTES = 2 * MIB


def shown():
    """The commands of a client in the manual's example."""
    section = MANUAL.read_text().split("\n## Redundancy with md\n")[1].split("\n## ")[0]
    commands = re.findall(r"^# (.*?)(?: {2,}#.*)?$", section, re.MULTILINE)
    assert commands, "the manual's example has no commands"
    return commands


class Manual(unittest.TestCase):
    """The example in the manual is what is tested."""

    def test_the_guest_runs_the_commands_of_the_manual(self):
        script = SCRIPT.read_text()
        self.assertEqual([command for command in shown() if command not in script], [])


class Raid5(ClusterCase):
    """A volume over three servers, and a fourth one."""

    def setUp(self):
        if not LONG:
            self.skipTest("emulates a machine, in `make test-long`")
        super().setUp()
        self.ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self.servers_of = {name: self.join(name, nbd=[f"tcp:127.0.0.1:{self.ports[name]}"]) for name in SERVERS}
        self.know(self.servers_of.values())

    def guest(self):
        script = SCRIPT.read_text()
        for name, port in self.ports.items():
            script = script.replace(f" {name} 10809 ", f" 10.0.2.2 {port} ")
        return Guest(self, script, ("mkfs.ext4", "e2fsck", "fio", "nbd-client", "mdadm"), modules=("raid456",))

    def written(self, server):
        """Bytes that clients have written to its part."""
        (name,) = (key for key in server.metrics() if key.startswith("aerogel_volume_write_bytes_total{"))
        return server.metrics()[name]

    def loses(self, guest, load, server, end):
        """A server is lost in the middle of a load."""
        guest.until_it_says(f"GUEST: load {load}", SECONDS)
        before = self.written(server)
        enough = lambda: self.written(server) >= before + LOST_BYTES
        until("the server to be written to", enough, SECONDS, gone=guest.gone)
        self.assertFalse(f"us ({load})" in guest.said(), "the load was over before the server was lost")
        end()
        guest.until_it_says(f"us ({load})", SECONDS)

    def test_a_server_is_lost_and_returns_another_one_is_replaced(self):
        s1, s3, s4 = (self.servers_of[name] for name in ("s1", "s3", "s4"))
        s1.cli("volume", "create", "big", "192MiB", "--on", "s1,s2,s3", "--share", "1/3")
        for name in ("s1", "s2", "s3"):
            self.servers_of[name].cli("volume", "set", "big", "--write-cache", "none")
        guest = self.guest()
        self.loses(guest, "killed", s3, s3.kill)
        guest.until_it_says("GUEST: asks for s3", SECONDS)
        s3.start()
        # One that hangs does not even close its connections.
        self.loses(guest, "hung", s1, lambda: s1.process.send_signal(signal.SIGSTOP))
        s4.cli("volume", "create", "big-s1", "64MiB", "--disk", "hdd")
        s4.cli("volume", "set", "big-s1", "--write-cache", "none")
        guest.until_it_says("GUEST: passed", SECONDS)
        self.found(guest.said())

    def found(self, said):
        """What the guest saw."""
        pauses = {load: int(us) / 1e6 for us, load in re.findall(r"longest write (\d+) us, .* us \((\w+)\)", said)}
        rebuilt = {what: int(seconds) for seconds, what in re.findall(r"rebuilt in (\d+) s \((\w+)\)", said)}
        if os.environ.get("AEROGEL_TEST_SAY"):
            print(f"longest pauses: {pauses} s; rebuilds: {rebuilt} s")
        self.assertEqual(set(pauses), {"killed", "degraded", "hung"})
        self.assertEqual(set(rebuilt), {"created", "returned", "replaced"})
        self.assertLess(pauses["killed"], LATER_SECONDS)
        self.assertLess(pauses["hung"], 2 * TIMEOUT_SECONDS + LATER_SECONDS)
        self.assertRegex(said, r"recovery = +\d+\.\d%", "no progress was seen")
        self.assertEqual(said.count("GUEST: 0 sectors do not match"), 3)
