"""Restarts and crashes under load: flushed data is there, and there is no data that was never written."""

import os
import random
import signal
import socket

from harness.case import ServerCase
from harness.files import flushes
from harness.load import Load, content, describe
from harness.server import MIB, STOP_SECONDS
from harness.wait import until

# For `tests/run.py`.
LANE = 1

ROUNDS = 20 if os.environ.get("AEROGEL_TEST_LONG") else 3


class Crash(ServerCase):
    """Volumes larger than the cache, so that eviction and write-back are in progress when the server is killed."""

    def load_until(self, load, server, name, writes, flushes):
        load.start(lambda: server.open(name))
        target = load.writes + writes, load.flushes + flushes
        until(
            f"{writes} verified writes and {flushes} flushes",
            lambda: load.writes >= target[0] and load.flushes >= target[1],
            120,
            gone=lambda: server.ended() or (load.unexpected and load.unexpected[0]),
        )

    def kill_rounds(self, rounds, *options, **more):
        server = self.serve(cache="16MiB", **more)
        server.create("v", "48MiB", *options)
        load = Load(48 * MIB)
        rng = random.Random(rounds)
        for round in range(rounds):
            self.load_until(load, server, "v", rng.randrange(500, 3000), 5)
            server.kill()
            load.join()
            server.start()
            problems = load.check(server.open("v"))
            self.assertEqual(problems[:10], [], f"{len(problems)} problems after {round + 1} crashes")

    def test_kill_under_verified_load(self):
        self.kill_rounds(ROUNDS)

    def test_kill_under_verified_load_on_threads(self):
        self.kill_rounds(ROUNDS, reactor="threads")

    def test_kill_under_verified_load_sparse(self):
        self.kill_rounds(max(1, ROUNDS // 3), "--sparse")

    def test_write_cache_none_needs_no_flush(self):
        server = self.serve(cache="16MiB")
        server.create("v", "16MiB")
        server.cli("volume", "set", "v", "--write-cache", "none")
        handle = server.open("v")
        handle.pwrite(b"".join(content(sector, 7) for sector in range(3000)), 512)
        server.kill()
        server.start()
        found = server.open("v").pread(3000 * 512, 512)
        for sector in range(3000):
            part = found[sector * 512 : sector * 512 + 512]
            self.assertEqual(part, content(sector, 7), f"acknowledged sector {sector} holds {describe(part)}")

    def test_sigterm_under_load_loses_nothing_acknowledged(self):
        server = self.serve(cache="16MiB")
        server.create("v", "48MiB")
        load = Load(48 * MIB)
        for _ in range(2):
            self.load_until(load, server, "v", 500, 2)
            self.assertEqual(server.stop(), 0, "SIGTERM under load: not everything was flushed in time")
            load.join()
            # Requests that are refused while the server drains are expected.
            load.unexpected.clear()
            for region in load.regions:
                region.flushed(region.mark())
            server.start()
            problems = load.check(server.open("v"))
            self.assertEqual(problems[:10], [], f"{len(problems)} problems after a clean stop")

    def test_sigterm_refuses_handshakes_and_ends_with_idle_clients(self):
        server = self.serve()
        server.create("v")
        idle = [server.open("v") for _ in range(5)]
        self.assertEqual(server.stop(), 0)
        del idle
        with socket.socket(socket.AF_UNIX) as late:
            self.assertRaises(OSError, late.connect, str(server.socket))

    def test_sigterm_flushes_what_was_never_flushed(self):
        server = self.serve()
        server.create("v")
        server.open("v").pwrite(b"k" * (20 * MIB), 12345)
        server.restart()
        self.assertEqual(server.open("v").pread(20 * MIB, 12345), b"k" * (20 * MIB))

    def test_sigint_is_a_clean_stop_too(self):
        server = self.serve()
        server.create("v")
        server.open("v").pwrite(b"i" * MIB, 0)
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.process.wait(STOP_SECONDS), 0)
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"i" * MIB)

    def test_a_flush_reaches_the_device(self):
        server = self.serve()
        server.create("v", "16MiB", "--prealloc", "full")
        handle = server.open("v")
        before = flushes(server.data)
        for i in range(40):
            handle.pwrite(b"d" * 4096, i * 8192)
            handle.flush()
        self.assertGreaterEqual(flushes(server.data) - before, 40, "the device was flushed less often than the volume")

    def test_dirty_data_is_written_in_the_background(self):
        """Without any flush, data older than the limit survives a crash."""
        server = self.serve(config='[limits]\ndirty_age = "500ms"')
        server.create("v", "16MiB")
        server.open("v").pwrite(b"b" * MIB, 0)

        def written():
            shown = server.json("volume", "show", "v")
            # A disk that does not answer in time is shown without its levels: no dirty data, but no cached data either.
            return shown["cache"]["used_bytes"] > 0 and shown["dirty_bytes"] == 0

        until("write-back in the background", written, 30, gone=server.ended)
        server.kill()
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"b" * MIB)
