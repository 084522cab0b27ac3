"""Memory and descriptors are bounded; an idle server uses no CPU time."""

import os
import threading
import unittest
from pathlib import Path

import nbd
from harness import wire
from harness.case import ServerCase
from harness.server import MIB, cpu_seconds, memory_of
from harness.wait import once_per, until
from harness.wire import Wire

CONNECTIONS = 64
VOLUMES = 100
MARGIN = 64 * MIB


class Resources(ServerCase):
    """64 connections, 100 volumes."""

    def many(self):
        """A server with many volumes, and connections spread over them."""
        server = self.serve(cache="64MiB")
        for i in range(VOLUMES):
            server.create(f"v{i}", "64MiB", "--sparse")
        return server, [server.open(f"v{i * VOLUMES // CONNECTIONS}") for i in range(CONNECTIONS)]

    def test_memory_is_bounded_under_load(self):
        server, handles = self.many()

        def work(handle):
            for at in range(0, 16 * MIB, 4 * MIB):
                handle.pwrite(b"m" * (4 * MIB), at)
            buffers = [nbd.Buffer(256 << 10) for _ in range(64)]
            waiting = {handle.aio_pread(buffer, i * (256 << 10)) for i, buffer in enumerate(buffers)}
            while waiting:
                handle.poll(30_000)
                waiting -= {cookie for cookie in waiting if handle.aio_command_completed(cookie)}

        for first in range(0, CONNECTIONS, 16):
            threads = [threading.Thread(target=work, args=(handle,)) for handle in handles[first : first + 16]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        peak = memory_of(server.pid, "VmHWM")
        self.assertLessEqual(peak, 64 * MIB + MARGIN, f"{peak / MIB:.0f} MiB resident at the peak")

    def test_descriptors_are_given_back(self):
        server = self.serve()
        server.create("v")
        server.open("v").shutdown()
        files = Path(f"/proc/{server.pid}/fd")
        before = len(os.listdir(files))
        for _ in range(300):
            server.open("v").shutdown()
        until("descriptors to be closed", lambda: len(os.listdir(files)) <= before + 2)

    @unittest.skipUnless(os.environ.get("AEROGEL_TEST_LONG"), "measures CPU time: runs in `make test-long`")
    def test_idle_connections_cost_nothing(self):
        server, handles = self.many()

        def written():
            # The levels of a disk that did not answer in time are zero, and so is its memory.
            disk = server.json("status")["disks"][0]
            return disk["memory_bytes"] > 0 and disk["dirty_bytes"] == 0

        until("write-back to end", written, 60)
        before, after = once_per(10, 2, lambda: cpu_seconds(server.pid))
        self.assertLess(
            (after - before) / 10, 0.01, f"{len(handles)} idle connections use {after - before:.2f} s of CPU in 10 s"
        )


class Memory(ServerCase):
    """Memory that a disk gives up is returned to the system."""

    def filled(self, cache, size, **more):
        """A server whose cache is full of one volume's data, and a handle."""
        server = self.serve(cache=cache, **more)
        server.create("v", f"{size}MiB", "--sparse")
        handle = server.open("v")
        for at in range(0, size, 4):
            handle.pwrite(bytes([at]) * (4 * MIB), at * MIB)
        handle.flush()
        return server, handle

    def given_back(self, reactor):
        server, handle = self.filled("256MiB", 224, reactor=reactor)
        handle.pread(MIB, 0)
        before = memory_of(server.pid, "VmRSS")
        self.assertGreater(before, 200 * MIB, "the cache is not in use")
        said = server.cli("disk", "add", "second", str(self.scratch / "second"), "--force").stdout
        self.assertNotIn("still in use", said)
        after, pinned = memory_of(server.pid, "VmRSS"), memory_of(server.pid, "VmPin")
        self.assertLess(after, before - 80 * MIB, f"{before / MIB:.0f} MiB were resident, {after / MIB:.0f} MiB are")
        self.assertLess(pinned, 140 * MIB, f"{pinned / MIB:.0f} MiB are still pinned")
        self.check(handle, 224)
        server.cli("disk", "remove", "second")
        self.assertEqual(server.json("disk", "show", "default")["memory_bytes"], 256 * MIB)
        # Chunks that were unregistered are registered again.
        for at in range(0, 224, 4):
            handle.pwrite(bytes([at]) * (4 * MIB), at * MIB)
        handle.flush()
        self.check(handle, 224)

    def check(self, handle, size):
        for at in range(0, size, 4):
            self.assertEqual(handle.pread(4 * MIB, at * MIB), bytes([at]) * (4 * MIB), f"at {at} MiB")

    def test_memory_is_given_back(self):
        self.given_back("io_uring")

    def test_memory_is_given_back_on_threads(self):
        self.given_back("threads")

    def test_a_client_that_does_not_read_does_not_keep_a_disk_from_being_added(self):
        server, handle = self.filled("64MiB", 48, config='[limits]\ndirty_age = "100ms"')
        with Wire(server.socket) as lazy:
            lazy.go("v")
            # Data that was written last is in the highest frames.
            for i in range(32):
                lazy.request(wire.READ, 40 * MIB + i % 8 * MIB, MIB)
            until("its replies to wait", lambda: server.json("volume", "show", "v")["traffic"]["reads"] > 0)
            said = server.cli("disk", "add", "second", str(self.scratch / "second"), "--force").stdout
            self.assertIn("still in use", said)
            # Other changes are possible meanwhile.
            server.create("other", "4MiB", "--disk", "second")
            server.open("other").pwrite(b"o" * MIB, 0)
            shown = server.json("disk", "show", "second")
            self.assertLess(shown["memory_bytes"], 32 * MIB)
            self.assertIn("still in use", " ".join(server.json("disk", "show", "default")["warnings"]))

        def whole():
            return server.json("disk", "show", "second")["memory_bytes"] == 32 * MIB

        until("the rest of its memory", whole)
        self.assertNotIn("still in use", " ".join(server.json("disk", "show", "default")["warnings"]))
        self.check(handle, 48)
