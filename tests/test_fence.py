"""Writes of a killed server that are still in the block layer: none of them reaches the disk after its successor
serves."""

import mmap
import os

from harness.case import ServerCase
from harness.files import diskstats, mounted
from harness.server import MIB, run
from harness.throttle import Throttle, needed
from harness.wait import until

# For `tests/run.py`.
LANE = 4

# Data that waits in the block layer, and its rate: four seconds in total, much longer than a start takes.
BYTES = 2 * MIB
BYTES_PER_SECOND = BYTES // 4
# The reason that a volume shows meanwhile.
WAITS = "waits for outstanding I/O of the previous server"


class Fence(ServerCase):
    def throttled(self, **more):
        """A server with two volumes on a disk whose writes are throttled from now on."""
        needed()
        context = mounted(self.scratch, "ext4", 64 * MIB)
        path = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        server = self.serve(cache="32MiB", config='[limits]\ndirty_age = "60s"', **more)
        server.cli("disk", "add", "slow", str(path))
        server.create("v", "8MiB", "--disk", "slow", "--prealloc", "full")
        server.create("beside", "8MiB", "--disk", "slow", "--prealloc", "full")
        handle = server.open("v")
        handle.pwrite(b"0" * BYTES, 0)
        handle.flush()
        run("sync", "-f", path)
        throttle = Throttle(self, path, BYTES_PER_SECOND)
        throttle.add(server.pid)
        return server, path, throttle, handle

    def on_its_way(self, server, handle):
        """Version 1 is acknowledged, and an unanswered flush has passed it to the block layer."""
        handle.pwrite(b"1" * BYTES, 0)
        handle.aio_flush()
        in_flight = 'aerogel_disk_in_flight_requests{disk="slow"}'
        until("the writes to be in the device", lambda: server.metrics()[in_flight] > 0, gone=server.ended)

    def served(self, server, name):
        """Whether clients can open a volume."""
        return server.json("volume", "show", name)["condition"] == "online"

    def written(self, path):
        """Bytes that the disk's device has written, without those that wait in the throttle."""
        return diskstats(path)[6] * 512

    def on_medium(self, path):
        """The volume's bytes, read without the page cache."""
        file = os.open(path / "volumes" / "v.img", os.O_RDONLY | os.O_DIRECT)
        try:
            buffer = mmap.mmap(-1, BYTES)
            self.assertEqual(os.preadv(file, [buffer], 0), BYTES)
            return buffer[:]
        finally:
            os.close(file)

    def versions(self, content):
        """The versions that occur in it."""
        return sorted(chr(byte) for byte in set(content))

    def killed(self, reactor):
        """Version 1 is outstanding, kill -9, the successor writes and flushes version 2, which must stay."""
        server, path, throttle, handle = self.throttled(reactor=reactor)
        before = self.written(path)
        self.on_its_way(server, handle)
        server.kill()
        server.spawn()
        until("the successor to be up", server.ready, gone=server.ended)
        # Another volume on the same disk is served meanwhile.
        self.assertTrue(self.served(server, "beside"))
        waited = not self.served(server, "v")
        if waited:
            self.assertLess(self.written(path) - before, BYTES, "the volume waits for nothing")
            self.assertIn(WAITS, server.json("volume", "show", "v")["reason"])
            self.assertIn(WAITS, server.log())
            self.assertIn(WAITS, server.refused("volume", "set", "v", "--share", "1/4"))
        until("the volume to be served", lambda: self.served(server, "v"), 60, gone=server.ended)
        handle = server.open("v")
        handle.pwrite(b"2" * BYTES, 0)
        handle.flush()
        until("both versions to have left the device's queue", lambda: self.written(path) - before >= 2 * BYTES, 60)
        self.assertEqual(self.versions(self.on_medium(path)), ["2"], "flushed data was overwritten by a dead server")
        self.assertEqual(handle.pread(BYTES, 0), b"2" * BYTES)
        return waited

    def test_io_of_a_killed_server_never_lands_after_its_successor_serves(self):
        self.assertTrue(self.killed("io_uring"), "nothing was in the block layer: the test has tested nothing")

    def test_nor_does_that_of_its_threads(self):
        """The worker threads keep the process alive until their system calls return."""
        self.killed("threads")

    def test_a_volume_that_waits_can_be_deleted_and_created_anew(self):
        """The file that is still being written is a different one."""
        server, path, throttle, handle = self.throttled(reactor="io_uring")
        self.on_its_way(server, handle)
        server.kill()
        server.spawn()
        until("the successor to be up", server.ready, gone=server.ended)
        self.assertFalse(self.served(server, "v"))
        server.cli("volume", "delete", "v", "--yes")
        server.create("v", "8MiB", "--disk", "slow", "--prealloc", "full")
        handle = server.open("v")
        handle.pwrite(b"2" * BYTES, 0)
        handle.flush()
        throttle.limit(0)
        throttle.empty()
        self.assertEqual(self.versions(self.on_medium(path)), ["2"])
