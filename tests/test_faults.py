"""Disks that are full, read-only or in memory, and misbehaving clients: other volumes are not affected."""

import errno
import os
import struct
import threading
import time

import nbd
from harness import wire
from harness.case import ServerCase
from harness.files import as_root, diskstats, mounted, when_unused
from harness.server import MIB, Server, run
from harness.wait import until
from harness.wire import Wire

KIB = 1024
# A request that waits for a stalled client waits for ever; any other request is answered long before this, even on a
# loaded machine.
SECONDS_MAX = 30


class Disks(ServerCase):
    """File systems that are mounted for the test."""

    def with_disk(self, kind, size, **more):
        """A server with a second disk on a file system of its own."""
        as_root()
        context = mounted(self.scratch, kind, size)
        path = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        server = self.serve(**more)
        server.cli("disk", "add", "second", str(path))
        server.create("bystander", "4MiB", "--disk", "default")
        return server, path

    def others_go_on(self, server):
        handle = server.open("bystander")
        handle.pwrite(b"on" * 1000, 0)
        handle.flush()
        self.assertEqual(handle.pread(2000, 0), b"on" * 1000)

    def test_full_disk(self):
        for reactor in ("io_uring", "threads"):
            with self.subTest(reactor=reactor):
                self.setUp()
                self.full_disk(reactor)
                self.doCleanups()

    def full_disk(self, reactor):
        server, path = self.with_disk("ext4", 128 * MIB, reactor=reactor)
        server.create("v", "64MiB", "--disk", "second", "--sparse")
        handle = server.open("v")
        handle.pwrite(b"a" * MIB, 0)
        handle.flush()
        filler = path / "filler"
        with open(filler, "wb") as file:
            free = os.statvfs(path)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 512 * KIB)
        with self.assertRaises(nbd.Error) as caught:
            for at in range(2, 12):
                handle.pwrite(b"b" * MIB, at * MIB)
            handle.flush()
        self.others_go_on(server)
        self.assertEqual(handle.pread(MIB, 0), b"a" * MIB, "what was flushed can no longer be read")
        full = caught.exception.errnum
        filler.unlink()

        def flushed():
            try:
                handle.flush()
                return True
            except nbd.Error:
                return False

        until("a flush to succeed once there is space", flushed)
        handle.pwrite(b"c" * MIB, 20 * MIB)
        handle.flush()
        server.kill()
        server.start()
        handle = server.open("v")
        self.assertEqual(handle.pread(MIB, 0), b"a" * MIB)
        self.assertEqual(handle.pread(MIB, 20 * MIB), b"c" * MIB)
        self.assertEqual(full, errno.ENOSPC, f"a full disk is reported as {errno.errorcode[full]}")

    def test_what_could_not_be_written_is_told_after_a_restart(self):
        server, path = self.with_disk("ext4", 64 * MIB)
        server.create("v", "48MiB", "--disk", "second", "--sparse")
        handle = server.open("v")
        handle.pwrite(b"a" * MIB, 0)
        handle.flush()
        filler = path / "filler"
        with open(filler, "wb") as file:
            free = os.statvfs(path)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 256 * KIB)
        handle.pwrite(b"b" * (4 * MIB), 8 * MIB)
        self.assertEqual(server.stop(), 1, "data is lost, and the exit status does not say so")
        filler.unlink()
        server.start()
        self.assertIn("lost", " ".join(server.json("volume", "show", "v")["warnings"]))
        handle = server.open("v")
        self.assertEqual(handle.pread(MIB, 0), b"a" * MIB)
        with self.assertRaises(nbd.Error):
            handle.flush()
        self.others_go_on(server)
        server.cli("volume", "clear", "v", "--yes")
        handle.pwrite(b"c" * MIB, MIB)
        handle.flush()
        self.assertEqual(server.stop(), 0)
        server.start()
        self.assertEqual(server.json("volume", "show", "v")["warnings"], [])
        self.assertEqual(server.open("v").pread(MIB, MIB), b"c" * MIB)

    def test_a_loss_on_a_file_system_that_went_read_only_is_told_after_its_repair(self):
        """The loss record next to the data cannot be created; the one in the server's directory can."""
        server, path = self.with_disk("ext4", 64 * MIB, config='shutdown_timeout = "2s"')
        server.create("v", "8MiB", "--disk", "second", "--prealloc", "full")
        handle = server.open("v")
        handle.pwrite(b"a" * MIB, 0)
        handle.flush()
        run("mount", "-o", "remount,abort", path, check=False)
        handle.pwrite(b"b" * MIB, 0)
        with self.assertRaises(nbd.Error):
            handle.flush()
        self.assertEqual(server.stop(), 1)
        self.assertIn("one of the two records of its loss cannot be written", server.log())
        when_unused("umount", path)
        run("/usr/sbin/e2fsck", "-fy", self.scratch / "ext4.img", check=False)
        run("mount", "-o", "loop", self.scratch / "ext4.img", path)
        self.assertEqual([file.name for file in (path / "volumes").glob("*.lost")], [])
        server.start()
        self.assertIn("lost", " ".join(server.json("volume", "show", "v")["warnings"]))
        handle = server.open("v")
        with self.assertRaises(nbd.Error, msg="a loss was forgotten"):
            handle.flush()
        # A server that is killed in this state keeps the record.
        server.kill()
        server.start()
        handle = server.open("v")
        with self.assertRaises(nbd.Error, msg="a loss was forgotten"):
            handle.flush()
        self.others_go_on(server)
        server.cli("volume", "clear", "v", "--yes")
        handle.pwrite(b"c" * MIB, 0)
        handle.flush()
        server.restart()
        self.assertEqual(server.json("volume", "show", "v")["warnings"], [])
        self.assertEqual(server.open("v").pread(MIB, 0), b"c" * MIB)
        self.assertEqual(os.listdir(server.data / "lost"), [])

    def test_a_loss_that_can_be_noted_nowhere_is_in_the_log_and_the_exit_status(self):
        """The server's directory is on the file system that failed, too."""
        as_root()
        context = mounted(self.scratch, "ext4", 64 * MIB)
        path = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        server = Server(self.scratch, name="ext4/data", config='shutdown_timeout = "2s"')
        server.log_path = self.scratch / "data.log"
        self.servers.append(server)
        self.addCleanup(server.kill)
        server.start()
        server.create("v", "8MiB", "--prealloc", "full")
        handle = server.open("v")
        run("mount", "-o", "remount,abort", path, check=False)
        handle.pwrite(b"b" * MIB, 0)
        self.assertEqual(server.stop(), 1)
        self.assertIn("forgotten at a restart", server.log())

    def test_create_on_a_full_disk(self):
        server, _ = self.with_disk("ext4", 64 * MIB)
        said = server.refused("volume", "create", "v", "128MiB", "--disk", "second")
        self.assertIn("free", said)
        self.others_go_on(server)
        self.assertEqual(server.json("disk", "show", "second")["unclaimed"], [], "something was left behind")

    def test_read_only_disk(self):
        server, path = self.with_disk("ext4", 64 * MIB)
        server.create("v", "8MiB", "--disk", "second")
        server.open("v").pwrite(b"r" * 1000, 0)
        self.assertEqual(server.stop(), 0)
        when_unused("mount", "-o", "remount,ro", path)
        server.start()
        self.others_go_on(server)
        shown = server.json("disk", "show", "second")
        self.assertEqual(shown["condition"], "offline")
        self.assertIn("ead-only", shown["reason"], "why the disk cannot be used is not told")
        self.assertTrue(server.refused("volume", "create", "w", "1MiB", "--disk", "second").strip())
        self.assertEqual(server.stop(), 0)
        run("mount", "-o", "remount,rw", path)
        server.start()
        self.assertEqual(server.open("v").pread(1000, 0), b"r" * 1000)

    def test_file_system_that_shuts_down_while_serving(self):
        server, path = self.with_disk("ext4", 64 * MIB, config='shutdown_timeout = "2s"')
        server.create("v", "16MiB", "--disk", "second", "--sparse")
        handle = server.open("v")
        handle.pwrite(b"e" * MIB, 0)
        handle.flush()
        run("mount", "-o", "remount,abort", path, check=False)
        with self.assertRaises(nbd.Error, msg="a flush was acknowledged on a file system that had shut down"):
            handle.pwrite(b"f" * MIB, 4 * MIB)
            handle.flush()
        self.others_go_on(server)
        # Nothing can be flushed on this disk any more, so the exit status is 1.
        self.assertEqual(server.stop(), 1)
        self.assertIn("v", server.log_tail())

    def test_unmounted_disk_is_not_an_empty_disk(self):
        server, path = self.with_disk("ext4", 64 * MIB)
        server.create("v", "8MiB", "--disk", "second")
        self.assertEqual(server.stop(), 0)
        when_unused("umount", path)
        server.start()
        self.assertEqual(server.json("disk", "show", "second")["condition"], "offline")
        self.assertEqual(os.listdir(path), [], "something was written below the mount point")
        self.others_go_on(server)
        self.assertEqual(server.stop(), 0)
        run("mount", "-o", "loop", self.scratch / "ext4.img", path)
        server.start()
        self.assertEqual(server.open("v").get_size(), 8 * MIB)

    def test_memory_file_system(self):
        server, path = self.with_disk("tmpfs", 64 * MIB)
        server.create("v", "16MiB", "--disk", "second")
        handle = server.open("v")
        handle.pwrite(b"t" * (3 * MIB), 12345)
        handle.flush()
        server.restart()
        self.assertEqual(server.open("v").pread(3 * MIB, 12345), b"t" * (3 * MIB))
        try:
            os.close(os.open(path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
        except OSError:
            self.assertIn("direct", server.log(), "direct I/O is not possible, and nothing was said")
            self.assertFalse(server.json("disk", "show", "second")["direct_io"])

    def test_private_device_is_flushed_for_flushes_only(self):
        """On a device without other users: no device flush without FLUSH or FUA, and one with either."""
        server, path = self.with_disk("ext4", 64 * MIB, config='[limits]\ndirty_age = "60s"')
        server.create("v", "16MiB", "--disk", "second", "--prealloc", "full")
        handle = server.open("v")
        handle.flush()
        for what, action in {
            "FLUSH": handle.flush,
            "FUA": lambda: handle.pwrite(b"f" * 4096, 8192, nbd.CMD_FLAG_FUA),
        }.items():
            with self.subTest(what):
                before = diskstats(path)[15]
                handle.pwrite(b"w" * 4096, 0)
                action()
                self.assertGreater(diskstats(path)[15], before, f"{what} did not reach the device")


class Clients(ServerCase):
    """Clients that stop in the middle of a request."""

    def setUp(self):
        super().setUp()
        self.server = self.serve(cache="32MiB")
        self.server.create("v", "64MiB")
        self.other = self.server.open("v")

    def wire(self, name="v"):
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        connection.go(name)
        return connection

    def others_are_quick(self):
        started = time.monotonic()
        for at in range(0, 8 * MIB, 64 * KIB):
            self.other.pwrite(b"o" * (64 * KIB), at)
        self.other.flush()
        self.assertEqual(self.other.pread(8 * MIB, 0), b"o" * (8 * MIB))
        self.assertLess(time.monotonic() - started, SECONDS_MAX, "other clients were delayed")

    def test_half_a_write_delays_nobody_and_changes_nothing(self):
        stuck = []
        for i in range(8):
            connection = self.wire()
            connection.request(wire.WRITE, i * MIB, 256 * KIB)
            connection.send(b"h" * (100 * KIB))
            stuck.append(connection)
        self.others_are_quick()
        for connection in stuck:
            connection.socket.close()
        self.others_are_quick()

    def test_half_a_write_of_32_mib_delays_nobody(self):
        connection = self.wire()
        connection.request(wire.WRITE, 16 * MIB, 32 * MIB)
        connection.send(b"h" * (5 * MIB))
        self.others_are_quick()

    def test_half_a_header_delays_nobody(self):
        connection = self.wire()
        connection.send(struct.pack(">IHH", wire.REQUEST, 0, wire.READ))
        self.others_are_quick()

    def test_unread_replies_delay_nobody(self):
        stuck = [self.wire() for _ in range(4)]
        for connection in stuck:
            connection.socket.settimeout(1)
            try:
                for i in range(200):
                    connection.request(wire.READ, (i % 32) * MIB, MIB)
            except TimeoutError:
                pass
        self.others_are_quick()
        for connection in stuck:
            connection.socket.close()
        self.others_are_quick()

    def test_vanished_clients_leave_nothing_behind(self):
        for i in range(200):
            with Wire(self.server.socket) as connection:
                connection.go("v")
                connection.request(wire.READ, i * 4096, MIB)
                connection.request(wire.WRITE, i * 4096, 64 * KIB, payload=b"v" * (i * 300))
        self.others_are_quick()

        def alone():
            return self.server.json("volume", "show", "v")["connections"] == 1

        until("the connections of vanished clients to be gone", alone)

    def test_slow_payload_arrives_whole(self):
        connection = self.wire()
        cookie = connection.request(wire.WRITE, 40 * MIB, 10_000)
        for i in range(0, 10_000, 1000):
            connection.send(bytes([i // 1000]) * 1000)
            self.other.pread(512, 40 * MIB)
        self.assertEqual(connection.simple(), (cookie, 0, b""))
        expected = b"".join(bytes([i]) * 1000 for i in range(10))
        self.assertEqual(self.other.pread(10_000, 40 * MIB), expected)

    def test_one_busy_volume_does_not_starve_another(self):
        self.server.create("quiet", "4MiB")
        quiet = self.server.open("quiet")
        stopping = threading.Event()

        def hammer():
            handle = self.server.open("v")
            while not stopping.is_set():
                handle.pread(8 * MIB, 0)

        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            started = time.monotonic()
            for i in range(100):
                quiet.pwrite(b"q" * 512, i * 512)
                quiet.pread(512, i * 512)
            self.assertLess(time.monotonic() - started, SECONDS_MAX)
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
