"""Fault injection: which clients get errors, which do not, and the state afterwards."""

import errno
import json

import nbd
from harness.case import ServerCase
from harness.server import MIB, run
from harness.wait import until


class Injected(ServerCase):
    def serve_two(self, **more):
        """A server with a volume on the disk that will have faults, and one on another disk."""
        server = self.serve(**more)
        server.cli("disk", "add", "bad", str(self.scratch / "bad"), "--force")
        server.create("v", "64MiB", "--disk", "bad")
        server.create("beside", "16MiB", "--disk", "bad")
        server.create("other", "16MiB", "--disk", "default")
        # Otherwise a fault would hit background zero-writing first.
        until("the space to be initialised", lambda: self.uninitialised(server) == [0, 0])
        return server

    def uninitialised(self, server):
        sizes = server.metrics().items()
        return [size for name, size in sizes if name.startswith('aerogel_volume_uninitialised_bytes{disk="bad"')]

    def add(self, server, fault):
        server.cli("disk", "fault", "add", "bad", fault, "--yes")

    def clear(self, server):
        server.cli("disk", "fault", "clear", "bad")

    def goes_on(self, server, name):
        handle = server.open(name)
        handle.pwrite(b"on" * 1000, 0)
        handle.flush()
        self.assertEqual(handle.pread(2000, 0), b"on" * 1000)

    def fails(self, action):
        with self.assertRaises(nbd.Error) as caught:
            action()
        return caught.exception.errnum

    def fio(self, server, name, offset, size):
        """The error that fio reports for reads of a part of a volume, 0 if none."""
        report = self.scratch / "fio.json"
        command = ["fio", "--name=read", "--ioengine=nbd", f"--uri={server.uri(name)}", "--rw=randread", "--bs=4k"]
        command += ["--iodepth=8", f"--offset={offset}", f"--size={size}", "--output-format=json", f"--output={report}"]
        run(*command, check=False)
        text = report.read_text()
        return json.loads(text[text.index("{") :])["jobs"][0]["error"]

    def test_an_error_stays_in_its_range(self):
        server = self.serve_two(cache="16MiB")
        for name in ("v", "beside"):
            handle = server.open(name)
            for at in range(0, 16 * MIB, MIB):
                handle.pwrite(b"d" * MIB, at)
            handle.flush()
        server.restart()
        self.add(server, "error read range=8MiB..12MiB volume=v")
        self.assertEqual(self.fio(server, "v", 8 * MIB, 4 * MIB), errno.EIO)
        self.assertEqual(self.fio(server, "v", 12 * MIB, 4 * MIB), 0)
        self.assertEqual(self.fio(server, "beside", 0, 4 * MIB), 0)
        self.goes_on(server, "other")
        (fault,) = server.json("disk", "fault", "list", "bad")
        self.assertGreater(fault["happened"], 0)
        self.clear(server)
        self.assertEqual(self.fio(server, "v", 8 * MIB, 4 * MIB), 0)

    def test_what_hangs_delays_nobody_else_and_goes_on(self):
        server = self.serve_two()
        self.add(server, "stuck flush volume=v")
        handle = server.open("v")
        handle.pwrite(b"h" * MIB, 0)
        cookie = handle.aio_flush()
        stuck = 'aerogel_disk_stuck_requests{disk="bad"}'
        until("the flush to hang", lambda: server.metrics()[stuck] == 1)
        self.goes_on(server, "beside")
        self.goes_on(server, "other")
        self.assertFalse(handle.aio_command_completed(cookie))
        # A change of the disk waits for the disk; clearing does not wait for the change.
        self.clear(server)
        while not handle.aio_command_completed(cookie):
            handle.poll(-1)
        self.assertEqual(server.metrics()[stuck], 0)

    def test_what_hangs_does_not_hold_up_the_end(self):
        server = self.serve_two(config='shutdown_timeout = "1s"')
        self.add(server, "stuck write volume=v")
        server.open("v").pwrite(b"h" * MIB, 0)
        self.assertEqual(server.stop(), 1)
        self.assertIn("volumes=", server.log_tail())

    def test_a_disk_vanishes_and_comes_back(self):
        server = self.serve_two()
        handle = server.open("v")
        handle.pwrite(b"1" * MIB, 0)
        handle.flush()
        self.add(server, "gone")
        handle.pwrite(b"2" * MIB, 0)
        self.assertEqual(self.fails(handle.flush), errno.EIO)
        self.assertEqual(self.fails(lambda: handle.pwrite(b"3" * 4096, 8 * MIB, nbd.CMD_FLAG_FUA)), errno.EIO)
        self.goes_on(server, "other")
        warnings = server.json("status")["warnings"]
        self.assertTrue([w for w in warnings if "is injected: gone" in w], f"not in {warnings}")
        self.assertIn("FAULTS", server.cli("disk", "list").stdout)
        self.clear(server)
        handle.flush()
        server.kill()
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"2" * MIB, "the flush after its return was not kept")
        self.assertEqual(server.json("disk", "show", "bad")["faults"], [])

    def test_it_comes_back_by_itself(self):
        server = self.serve_two()
        handle = server.open("v")
        handle.pwrite(b"1" * MIB, 0)
        self.add(server, "gone for=1s")
        self.assertEqual(self.fails(handle.flush), errno.EIO)
        until("the device to come back", lambda: server.json("disk", "fault", "list", "bad")[0]["phase"] == "over")
        handle.flush()
        self.goes_on(server, "beside")
        self.assertFalse([w for w in server.json("status")["warnings"] if "injected" in w])

    def test_a_flush_that_failed_after_eviction_is_a_loss_until_cleared(self):
        """docs/design/flush.md: data that was written since the last good flush, and is not cached any more, may be
        lost."""
        server = self.serve(cache="16MiB", config='[limits]\ndirty_age = "1s"')
        server.cli("disk", "add", "bad", str(self.scratch / "bad"), "--force")
        server.create("v", "64MiB", "--disk", "bad")
        handle = server.open("v")
        for at in range(0, 64 * MIB, MIB):
            handle.pwrite(b"e" * MIB, at)
        self.add(server, "error flush count=1")
        self.assertEqual(self.fails(handle.flush), errno.EIO)
        self.assertEqual(self.fails(handle.flush), errno.EIO, "a loss was forgotten")
        # Once the loss is recorded, it survives a kill of the server, too.
        until("the loss to be noted", lambda: any((server.data / "lost").glob("*")), gone=server.ended)
        server.kill()
        server.start()
        handle = server.open("v")
        self.assertEqual(self.fails(handle.flush), errno.EIO, "a loss was forgotten by a server that was killed")
        self.assertIn("are discarded", server.cli("volume", "clear", "v", "--yes").stdout)
        handle.flush()
        self.assertEqual(list((server.data / "lost").glob("*")), [])

    def test_a_loss_that_can_be_noted_nowhere_is_noted_later(self):
        server = self.serve(cache="16MiB", config='[limits]\ndirty_age = "1s"')
        server.cli("disk", "add", "bad", str(self.scratch / "bad"), "--force")
        server.create("v", "64MiB", "--disk", "bad")
        handle = server.open("v")
        own, beside = server.data / "lost", self.scratch / "bad" / "volumes" / "v.lost"
        own.write_text("no directory")
        beside.mkdir()
        for at in range(0, 64 * MIB, MIB):
            handle.pwrite(b"e" * MIB, at)
        self.add(server, "error flush count=1")
        self.assertEqual(self.fails(handle.flush), errno.EIO)
        until("the failure to be told", lambda: "forgotten at a restart" in server.log(), gone=server.ended)
        own.unlink()
        until("the loss to be noted", lambda: own.is_dir() and any(own.iterdir()), 30, gone=server.ended)
        beside.rmdir()
        server.kill()
        server.start()
        self.assertEqual(self.fails(server.open("v").flush), errno.EIO, "a loss was forgotten")

    def test_unflushed_writes_of_a_killed_server_are_lost_if_the_first_flush_fails(self):
        """The successor flushes when it opens the volume, without a request to do so; a failure is a loss."""
        server = self.serve(cache="16MiB", config='[limits]\ndirty_age = "200ms"')
        server.cli("disk", "add", "bad", str(self.scratch / "bad"), "--force")
        for name in ("v", "beside"):
            server.create(name, "16MiB", "--disk", "bad")
        handle = server.open("v")
        handle.pwrite(b"1" * MIB, 0)

        def written():
            shown = server.json("volume", "show", "v")
            return shown["cache"]["used_bytes"] > 0 and shown["dirty_bytes"] == 0

        until("the data to be written, but not flushed", written, gone=server.ended)
        server.kill()
        # The disk has the fault from its next start on, as if it had been added with it.
        identity = self.scratch / "bad" / "disk.toml"
        text = identity.read_text()
        self.assertNotIn("faults", text)
        identity.write_text('faults = ["error flush volume=v count=1"]\n' + text)
        server.start()
        until("the loss to be noted", lambda: any((server.data / "lost").glob("*")), gone=server.ended)
        handle = server.open("v")
        self.assertEqual(handle.pread(MIB, 0), b"1" * MIB)
        for _ in range(2):
            self.assertEqual(self.fails(handle.flush), errno.EIO, "the device has failed a flush, and nobody was told")
        server.cli("volume", "clear", "v", "--yes")
        handle.flush()

    def test_a_torn_write_is_written_again(self):
        server = self.serve_two()
        handle = server.open("v")
        self.add(server, "torn count=3")
        handle.pwrite(bytes(range(256)) * 4096, 0)
        until("a flush to succeed once three writes are torn", lambda: self.flushed(handle))
        self.assertEqual(server.metrics()['aerogel_disk_injected_faults_total{disk="bad",kind="torn"}'], 3)
        server.kill()
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), bytes(range(256)) * 4096)

    def flushed(self, handle):
        handle.pwrite(b"more" * 1024, 4 * MIB)
        try:
            handle.flush()
            return True
        except nbd.Error:
            return False

    def test_faults_of_a_new_disk_last_until_they_are_cleared(self):
        server = self.serve()
        faults = ["--fault", "error read 100%", "--fault", "delay by=1ms"]
        server.cli("disk", "add", "bad", "sim:flash", "--size", "64MiB", *faults)
        server.create("v", "16MiB", "--disk", "bad")
        self.assertEqual(self.fails(lambda: server.open("v").pread(4096, 0)), errno.EIO)
        server.restart()
        self.add(server, "error write 1/1000")
        faults = server.json("disk", "show", "bad")["faults"]
        self.assertEqual([fault["lasting"] for fault in faults], [True, True, False])
        server.cli("disk", "fault", "clear", "bad", "--id", str(faults[0]["id"]))
        self.assertEqual(server.open("v").pread(4096, 0), bytes(4096))
        server.restart()
        (fault,) = server.json("disk", "fault", "list", "bad")
        self.assertEqual((fault["fault"], fault["lasting"]), ("delay by=1ms", True))
        self.assertIn("delay by=1ms", server.log())

    def test_nonsense_is_named(self):
        server = self.serve_two()
        for fault, part in {
            "explode": "not one of error",
            "error 200%": "not a probability",
            "error volume=nobody": "has no volume 'nobody'",
            "delay": "the delay is missing",
        }.items():
            self.assertIn(part, server.refused("disk", "fault", "add", "bad", fault, "--yes"))
        self.assertIn("no fault 7", server.refused("disk", "fault", "clear", "bad", "--id", "7"))
        self.assertEqual(server.json("disk", "fault", "list", "bad"), [])
