"""Gateway volumes: the data is an export of a second server."""

import subprocess
import unittest

import nbd
from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until

DATA = bytes(range(256)) * 256


class Gateway(ServerCase):
    def setUp(self):
        super().setUp()
        self.behind, self.server = self.serve(name="behind"), self.serve(name="gateway")
        self.behind.create("db", "64MiB")

    def create(self, *more):
        return self.server.cli("volume", "create", "gw", "--from", self.behind.uri("db"), *more)

    def upstream(self):
        return self.server.json("volume", "show", "gw")["upstream"]

    def is_online(self):
        return self.upstream()["state"] == "online"

    def test_what_is_written_and_flushed_is_on_the_server_behind(self):
        done = self.create("--cache", "8MiB")
        self.assertIn("64MiB", done.stdout)
        gateway = self.server.open("gw")
        self.assertEqual(gateway.get_size(), 64 * MIB)
        # More than the cache.
        for at in range(0, 32 * MIB, len(DATA)):
            gateway.pwrite(DATA, at)
        gateway.flush()
        behind = self.behind.open("db")
        for at in (0, 16 * MIB, 32 * MIB - len(DATA)):
            self.assertEqual(behind.pread(len(DATA), at), DATA)
            self.assertEqual(gateway.pread(len(DATA), at), DATA)
        gateway.trim(MIB, 0)
        gateway.zero(MIB, MIB, nbd.CMD_FLAG_FUA)
        self.assertEqual(behind.pread(MIB, MIB), bytes(MIB))
        shown = self.upstream()
        self.assertEqual((shown["state"], shown["failure"], shown["shared"]), ("online", None, False))
        self.assertEqual(shown["from"], self.behind.uri("db"))
        self.assertGreater(shown["connections"], 1)
        self.assertGreater(shown["round_trip_us"], 0)
        labels = '{disk="default",volume="gw",tenant="gw"}'
        metrics = self.server.metrics()
        self.assertEqual(metrics[f"aerogel_volume_upstream_online{labels}"], 1)
        self.assertEqual(metrics[f"aerogel_volume_upstream_reconnects_total{labels}"], 0)
        self.assertNotIn('aerogel_tenant_share_ratio{disk="default",tenant="gw"}', metrics)
        self.assertIn("online", self.server.cli("volume", "show", "gw").stdout)
        self.assertRegex(self.server.cli("top", "--once").stdout, r"gw +- ")
        gateway.shutdown()
        self.server.cli("volume", "delete", "gw", "--yes")
        self.assertEqual(behind.pread(len(DATA), 2 * MIB), DATA, "deleting the gateway's volume keeps the data")

    def test_requests_wait_for_a_server_that_was_killed_and_nothing_is_lost(self):
        self.create()
        gateway = self.server.open("gw")
        gateway.pwrite(DATA, 0)
        gateway.flush()
        until("a session to be open", self.is_online, 30)
        epoch = self.upstream()["epoch"]
        gateway.pwrite(DATA, MIB)
        self.behind.kill()
        # Not in the cache.
        waiting = subprocess.Popen(
            ["nbdcopy", self.server.uri("gw"), "null:"], stdin=subprocess.DEVNULL
        )
        self.addCleanup(waiting.kill)
        until("the gateway to notice", lambda: not self.is_online(), 30)
        shown = self.server.json("volume", "show", "gw")
        self.assertEqual((shown["condition"], shown["upstream"]["state"]), ("online", "connecting"))
        self.behind.start()
        self.assertEqual(waiting.wait(60), 0)
        gateway.flush()
        behind = self.behind.open("db")
        for at in (0, MIB):
            self.assertEqual(behind.pread(len(DATA), at), DATA)
        shown = self.upstream()
        self.assertGreater(shown["epoch"], epoch)
        self.assertGreater(shown["reconnects"], 0)

    def test_it_opens_without_its_server_and_fails_requests_at_the_deadline(self):
        self.create("--upstream-deadline", "1s")
        self.server.stop()
        self.behind.kill()
        self.server.start()
        shown = self.server.json("volume", "show", "gw")
        self.assertEqual((shown["condition"], shown["upstream"]["state"]), ("online", "connecting"))
        gateway = self.server.open("gw")
        with self.assertRaises(nbd.Error) as caught:
            gateway.pread(4096, 0)
        self.assertEqual(caught.exception.errno, "EIO")
        until("the reason to be shown", lambda: self.upstream()["failure"], 30)
        self.assertIn("is away", self.server.cli("volume", "show", "gw").stdout)
        self.behind.start()
        until("a session to be open", self.is_online, 30)
        self.assertEqual(gateway.pread(4096, 0), bytes(4096))

    def test_what_is_refused(self):
        gone = f"nbd+unix:///db?socket={self.scratch}/none"
        said = self.server.refused("volume", "create", "gw", "--from", gone)
        self.assertIn(gone, said)
        self.assertIn("No such file", said)
        self.assertIn("no export 'nothing'", self.server.refused(
            "volume", "create", "gw", "--from", self.behind.uri("nothing")
        ))  # fmt: skip
        self.assertEqual(self.server.json("volume", "list"), [])
        self.create("--shared")
        self.assertEqual(self.server.json("volume", "show", "gw")["write_cache"], "none")
        self.assertIn("no dirty data", self.server.refused("volume", "set", "gw", "--write-cache", "volatile"))
        self.assertIn("no disk time", self.server.refused("volume", "set", "gw", "--share", "1/4"))
        self.assertIn("enlarge that on its server", self.server.refused("volume", "grow", "gw", "128MiB"))
        for more in (("--size",), ("1MiB",), ("--share", "1/4"), ("--sparse",), ("--prealloc", "full")):
            done = self.server.cli("volume", "create", "x", "--from", self.behind.uri("db"), *more, check=False)
            self.assertEqual(done.returncode, 2, more)


if __name__ == "__main__":
    unittest.main()
