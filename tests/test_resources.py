"""Memory and descriptors stay bounded; an idle server is idle."""

import os
import threading
import unittest
from pathlib import Path

import nbd
from harness.case import ServerCase
from harness.server import MIB, cpu_seconds, memory_of
from harness.wait import once_per, until

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
            # Levels of a disk that did not answer in time are zero: its memory too.
            disk = server.json("status")["disks"][0]
            return disk["memory_bytes"] > 0 and disk["dirty_bytes"] == 0

        until("write-back to end", written, 60)
        before, after = once_per(10, 2, lambda: cpu_seconds(server.pid))
        self.assertLess((after - before) / 10, 0.01, f"{len(handles)} idle connections use {after - before:.2f} s of CPU in 10 s")
