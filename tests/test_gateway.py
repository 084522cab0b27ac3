"""Gateway volumes: the data is an export of a second server."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import unittest

import nbd
from harness.case import ServerCase
from harness.proxy import Proxy
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

    def test_a_late_copy_of_a_write_does_not_take_effect(self):
        proxy = Proxy(self.scratch / "proxy.sock", self.behind.socket)
        self.addCleanup(proxy.close)
        self.server.cli("volume", "create", "gw", "--from", f"nbd+unix:///db?socket={self.scratch}/proxy.sock")
        gateway = self.server.open("gw")
        gateway.pwrite(b"0" * 4096, 0, nbd.CMD_FLAG_FUA)
        proxy.hold()
        old = list(proxy.links)
        writing = gateway.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"1" * 4096)), 0, flags=nbd.CMD_FLAG_FUA)
        until("the write to be on its way", lambda: gateway.poll(0) >= 0 and proxy.held() > 4096)
        # The gateway loses its connections, and the server keeps them: the write is repeated in the next session.
        proxy.cut()
        until("the write to be answered", lambda: gateway.poll(10) >= 0 and gateway.aio_command_completed(writing), 60)
        gateway.pwrite(b"2" * 4096, 0, nbd.CMD_FLAG_FUA)
        for link in old:
            self.assertTrue(link.has_ended.wait(30), "the server has closed the old session")
        proxy.release()
        behind = self.behind.open("db")
        self.assertEqual([behind.pread(1, 0), gateway.pread(1, 0)], [b"2", b"2"])
        self.assertEqual(self.upstream()["reconnects"], 1)

    def test_deleting_does_not_wait_for_a_server_that_is_away(self):
        self.create()
        gateway = self.server.open("gw")
        gateway.pwrite(DATA, 0)
        gateway.flush()
        until("a session to be open", self.is_online, 30)
        os.kill(self.behind.pid, signal.SIGSTOP)
        gateway.pwrite(DATA, MIB)
        os.kill(self.behind.pid, signal.SIGCONT)
        self.behind.kill()
        gateway.pwrite(DATA, 2 * MIB)
        until("the gateway to notice", lambda: not self.is_online(), 30)
        gateway.shutdown()
        unused = lambda: self.server.json("volume", "show", "gw")["connections"] == 0
        until("the client to be gone", unused, 30)
        begun = time.monotonic()
        said = self.server.refused("volume", "delete", "gw", "--yes")
        self.assertRegex(said, "server of volume 'gw' is away, and .* of acknowledged data")
        self.assertIn("--force", said)
        self.assertIn("are lost", self.server.cli("volume", "delete", "gw", "--yes", "--force").stdout)
        self.assertEqual(self.server.json("volume", "list"), [])
        # Without such data, nothing is refused.
        self.behind.start()
        self.create()
        until("a session to be open", self.is_online, 30)
        self.server.open("gw").flush()
        self.behind.kill()
        until("the gateway to notice", lambda: not self.is_online(), 30)
        until("the client to be gone", unused, 30)
        self.assertNotIn("lost", self.server.cli("volume", "delete", "gw", "--yes").stdout)
        self.assertLess(time.monotonic() - begun, 50, "the deadline is 60 s")

    def test_settings_apply_at_once(self):
        self.create()
        gateway = self.server.open("gw")
        gateway.pwrite(DATA, 0)
        until("the connections to be open", lambda: self.upstream()["connections"] == 4, 30)
        self.assertIn("anew", self.server.cli("volume", "set", "gw", "--upstream-connections", "2").stdout)
        until("two connections", lambda: self.is_online() and self.upstream()["connections"] == 2, 30)
        self.server.cli("volume", "set", "gw", "--upstream-connections", "8")
        until("eight connections", lambda: self.is_online() and self.upstream()["connections"] == 8, 30)
        gateway.flush()
        self.assertEqual(self.behind.open("db").pread(len(DATA), 0), DATA)
        self.behind.kill()
        until("the gateway to notice", lambda: not self.is_online(), 30)
        waiting = gateway.aio_pread(nbd.Buffer(4096), 32 * MIB)
        self.server.cli("volume", "set", "gw", "--upstream-deadline", "1s")
        with self.assertRaises(nbd.Error) as caught:
            until("the read to fail", lambda: gateway.poll(100) >= 0 and gateway.aio_command_completed(waiting), 30)
        self.assertEqual(caught.exception.errno, "EIO")

    def test_what_the_server_has_instead_of_the_volume_is_noticed_after_a_restart(self):
        self.create()
        self.server.open("gw").pwrite(DATA, 0)
        self.server.stop()
        # Another volume, of the same name and size.
        self.behind.cli("volume", "delete", "db", "--yes")
        self.behind.create("db", "64MiB")
        self.server.start()
        until("the gateway to refuse it", lambda: self.upstream()["state"] == "offline", 30)
        self.assertIn("another volume", self.upstream()["failure"])
        self.behind.cli("volume", "delete", "db", "--yes")
        self.behind.create("db", "32MiB")
        self.server.stop()
        self.server.start()
        until("the gateway to refuse it", lambda: self.upstream()["state"] == "offline", 30)
        self.assertIn("33554432", self.upstream()["failure"])

    def test_a_gateway_that_another_one_has_replaced_does_not_come_back(self):
        proxy = Proxy(self.scratch / "proxy.sock", self.behind.socket)
        self.addCleanup(proxy.close)
        self.server.cli("volume", "create", "gw", "--from", f"nbd+unix:///db?socket={self.scratch}/proxy.sock")
        first = self.server.open("gw")
        first.pwrite(b"1" * 4096, 0)
        until("a session to be open", self.is_online, 30)
        # What is not flushed is kept, and must not be written later.
        proxy.server = self.scratch / "none.sock"
        proxy.cut()
        for link in proxy.links:
            with contextlib.suppress(OSError):
                link.server.shutdown(socket.SHUT_RDWR)
        until("the gateway to notice", lambda: not self.is_online(), 30)
        first.pwrite(b"1" * 4096, 4096)
        other = self.serve(name="other")
        other.cli("volume", "create", "gw2", "--from", self.behind.uri("db"))
        second = other.open("gw2")
        second.pwrite(b"2" * 8192, 0)
        second.flush()
        # While it has no session, a gateway acknowledges no writes.
        third = self.serve(name="third")
        third.cli("volume", "create", "gw3", "--from", self.behind.uri("db"), "--upstream-deadline", "1s")
        with self.assertRaises(nbd.Error) as caught:
            third.open("gw3").pwrite(b"3" * 4096, 0)
        self.assertEqual(caught.exception.errno, "EIO")
        third.kill()
        self.assertEqual(other.stop(), 0)
        proxy.server = self.behind.socket
        until("the gateway to be refused", lambda: self.upstream()["state"] == "offline", 30)
        self.assertIn("another client", self.upstream()["failure"])
        self.assertEqual(self.behind.open("db").pread(8192, 0), b"2" * 8192)
        with self.assertRaises(nbd.Error):
            first.flush()
        # The operator gives up what was not flushed.
        first.shutdown()
        self.server.stop()
        self.server.start()
        until("a session to be open", self.is_online, 30)

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
