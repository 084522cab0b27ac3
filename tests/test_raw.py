"""Raw volumes: block devices (loop devices here) as the data of volumes, with real clients."""

import errno
import json
import os
import random
from pathlib import Path

import nbd
from harness.case import ServerCase
from harness.files import random_image
from harness.load import Load
from harness.loops import Loop, needed, numbers_held
from harness.server import MIB, run
from harness.wait import until

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
ROUNDS = 20 if LONG else 3
SIZE = 64 * MIB


def exclusively(path):
    """A descriptor of a device if no other process has it open, or None."""
    try:
        return os.open(path, os.O_RDWR | os.O_EXCL)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return None


class RawCase(ServerCase):
    """Small caches, so that the devices are used."""

    def setUp(self):
        needed()
        super().setUp()

    def raw(self, server, name="v", size=SIZE, *options, loop=()):
        """A volume on a new loop device of its own."""
        device = Loop(self, size, *loop, name=name)
        server.cli("volume", "create", name, "--device", device.path, *options)
        return device

    def show(self, server, name="v"):
        return server.json("volume", "show", name)

    def offline(self, server, name="v"):
        """Why a volume is offline."""
        shown = self.show(server, name)
        self.assertEqual(shown["condition"], "offline", shown)
        self.assertRaises(nbd.Error, server.open, name)
        return shown["reason"]


class Clients(RawCase):
    """The tests of other volumes, on raw volumes."""

    def test_nbdcopy_both_ways(self):
        server = self.serve(cache="16MiB")
        device = self.raw(server)
        image = random_image(self.scratch / "in.img", SIZE)
        run("nbdcopy", "--flush", image, server.uri("v"), seconds=300)
        self.assertEqual(device.read(0, SIZE), image.read_bytes(), "what is flushed is on the device")
        run("nbdcopy", server.uri("v"), self.scratch / "out.img", seconds=300)
        run("cmp", image, self.scratch / "out.img")

    def test_what_is_on_the_device_is_served(self):
        server = self.serve(cache="16MiB")
        device = Loop(self, SIZE)
        image = random_image(device.image.with_name("noise"), SIZE)
        with open(device.path, "wb") as raw:
            raw.write(image.read_bytes())
        server.cli("volume", "create", "v", "--device", device.path)
        run("nbdcopy", server.uri("v"), self.scratch / "out.img", seconds=300)
        run("cmp", image, self.scratch / "out.img")

    def fio(self, uri, *options):
        report = self.scratch / "fio.json"
        common = ["--name=verified", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bsrange=512-64k"]
        common += [
            "--blockalign=512",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--iodepth=32",
            "--randseed=42",
            "--numjobs=2",
        ]
        common += [
            "--size=32m",
            "--offset_increment=32m",
            "--verify_state_save=0",
            "--output-format=json",
            f"--output={report}",
        ]
        run("fio", *common, *options, seconds=600)
        text = report.read_text()
        jobs = json.loads(text[text.index("{") :])["jobs"]
        self.assertEqual([job["error"] for job in jobs], [0] * len(jobs))
        return jobs

    def verified(self, *loop, **more):
        server = self.serve(cache="16MiB", **more)
        self.raw(server, loop=loop)
        self.fio(server.uri("v"), "--do_verify=1", "--end_fsync=1")
        server.restart()
        jobs = self.fio(server.uri("v"), "--verify_only=1")
        self.assertGreater(sum(job["read"]["total_ios"] for job in jobs), 500, "fio verified next to nothing")

    def test_fio_verified_across_a_restart(self):
        self.verified()

    def test_fio_verified_across_a_restart_on_threads(self):
        self.verified(reactor="threads")

    def test_fio_verified_on_sectors_of_4096_bytes(self):
        self.verified("--sector-size", "4096")

    def kill_rounds(self, *options, loop=(), **more):
        server = self.serve(cache="16MiB", **more)
        self.raw(server, "v", 48 * MIB, *options, loop=loop)
        load = Load(48 * MIB)
        rng = random.Random(ROUNDS)
        for round in range(ROUNDS):
            load.start(lambda: server.open("v"))
            target = load.writes + rng.randrange(500, 3000), load.flushes + 5
            until(
                "verified writes and flushes",
                lambda: load.writes >= target[0] and load.flushes >= target[1],
                120,
                gone=lambda: server.ended() or (load.unexpected and load.unexpected[0]),
            )
            server.kill()
            load.join()
            # The kernel may still hold the device for the killed server; the next server waits for it.
            server.start()
            problems = load.check(server.open("v"))
            self.assertEqual(problems[:10], [], f"{len(problems)} problems after {round + 1} crashes")

    def test_kill_under_verified_load(self):
        self.kill_rounds()

    def test_kill_under_verified_load_with_trims_given_back(self):
        self.kill_rounds("--sparse", loop=("--sector-size", "4096"))

    def test_write_zeroes_trim_and_block_status(self):
        server = self.serve(cache="16MiB")
        for name, options in (("kept", ()), ("given-back", ("--sparse",))):
            with self.subTest(name=name):
                device = self.raw(server, name, SIZE, *options)
                handle = server.open(name, lambda handle: handle.add_meta_context("base:allocation"))
                extents = []
                status = lambda _context, _offset, entries, _error: extents.extend(entries)
                handle.block_status(SIZE, 0, status)
                self.assertEqual(extents, [SIZE, 0], "a device holds anything: all of it is data")
                handle.pwrite(b"d" * 8 * MIB, 0)
                handle.flush()
                used = os.stat(device.image).st_blocks
                handle.zero(4 * MIB, 0)
                handle.trim(2 * MIB, 5 * MIB)
                handle.flush()
                expected = {"kept": b"d" * 2 * MIB, "given-back": bytes(2 * MIB)}[name]
                found = handle.pread(8 * MIB, 0)
                self.assertEqual(found[: 4 * MIB], bytes(4 * MIB))
                self.assertEqual(found[5 * MIB : 7 * MIB], expected)
                self.assertEqual(found[7 * MIB :], b"d" * MIB)
                self.assertEqual(device.read(0, 8 * MIB), found, "the device holds something else")
                given_back = (used - os.stat(device.image).st_blocks) * 512
                self.assertTrue(
                    given_back >= 6 * MIB if options else given_back == 0, f"{given_back} bytes were given back"
                )

    def test_a_flush_reaches_the_device(self):
        server = self.serve(cache="16MiB")
        device = self.raw(server)
        handle = server.open("v")
        stat = Path("/sys/block") / Path(device.path).name / "stat"
        flushes = lambda: int(stat.read_text().split()[15])
        before = flushes()
        for i in range(40):
            handle.pwrite(b"d" * 4096, i * 8192)
            handle.flush()
        self.assertGreaterEqual(flushes() - before, 40, "the device was flushed less often than the volume")


class Devices(RawCase):
    """A volume has its device exclusively, and it is the right one; otherwise the volume is offline."""

    def test_shown_as_what_it_is(self):
        server = self.serve()
        self.assertIn("journal", server.cli("disk", "show", "default").stdout)
        device = self.raw(server)
        shown = self.show(server)
        self.assertEqual((shown["raw"], shown["path"], shown["size_bytes"]), (True, device.path, SIZE))
        self.assertIn("raw device", server.cli("volume", "show", "v").stdout)
        disk = server.json("disk", "show", "default")
        self.assertEqual((disk["data"], disk["journal"]), ("raw", "none"))
        self.assertIn(Path(device.path).name, disk["device"])
        self.assertIn("no journal to share", server.cli("disk", "show", "default").stdout)
        server.create("file", "4MiB")
        disk = server.json("disk", "show", "default")
        self.assertEqual((disk["data"], disk["journal"]), ("both", "shared"))
        self.assertIn("several drives", " ".join(disk["warnings"]))

    def test_size(self):
        server = self.serve()
        device = Loop(self, SIZE + 512)
        said = server.refused("volume", "create", "v", "65MiB", "--device", device.path)
        self.assertIn("65MiB", said)
        server.refused("volume", "create", "v", "1000", "--device", device.path)
        server.refused("volume", "create", "v", "512", "--device", device.path)
        server.refused("volume", "create", "v", "--device", device.path, "--prealloc", "full")
        server.cli("volume", "create", "part", "32MiB", "--device", device.path)
        self.assertEqual(server.open("part").get_size(), 32 * MIB)
        server.cli("volume", "delete", "part", "--yes", "--force")
        server.cli("volume", "create", "all", "--device", device.path)
        self.assertEqual(server.open("all").get_size(), SIZE, "whole blocks of 4 KiB")
        self.assertIn("SIZE", server.refused("volume", "create", "v"), "a file needs a size")

    def test_grow_takes_what_the_device_has(self):
        server = self.serve()
        device = self.raw(server)
        handle = server.open("v")
        handle.pwrite(b"g" * MIB, SIZE - MIB)
        device.resize(2 * SIZE)
        with open(device.path, "r+b", buffering=0) as raw:
            os.pwrite(raw.fileno(), b"n" * 4096, SIZE)
            os.fsync(raw.fileno())
        self.assertIn("128MiB", server.refused("volume", "grow", "v", "129MiB"))
        server.cli("volume", "grow", "v", "96MiB")
        server.cli("volume", "grow", "v")
        self.assertEqual(server.open("v").get_size(), 2 * SIZE)
        self.assertEqual(server.open("v").pread(MIB + 4096, SIZE - MIB), b"g" * MIB + b"n" * 4096)
        server.restart()
        self.assertEqual(server.open("v").get_size(), 2 * SIZE)
        server.create("file", "4MiB")
        self.assertIn("file", server.refused("volume", "grow", "file"), "a file has no size of its own")

    def test_delete_leaves_the_device_as_it_is(self):
        server = self.serve()
        device = self.raw(server)
        server.open("v").pwrite(b"k" * MIB, 12345)
        self.assertIn("is unchanged", server.cli("volume", "delete", "v", "--yes", "--force").stdout)
        self.assertEqual(device.read(12345, MIB), b"k" * MIB, "what was acknowledged is not on the device")
        self.assertEqual(server.json("volume", "list"), [])
        server.cli("volume", "create", "again", "--device", device.path)
        self.assertEqual(server.open("again").pread(MIB, 12345), b"k" * MIB)

    def test_what_holds_something_is_refused(self):
        server = self.serve()
        device = Loop(self, SIZE)
        run("/usr/sbin/mkfs.ext4", "-q", "-L", "precious", device.path)
        before = device.read(0, SIZE)
        said = server.refused("volume", "create", "v", "--device", device.path)
        self.assertIn("ext4 'precious'", said)
        self.assertIn("--force", said)
        self.assertEqual(device.read(0, SIZE), before)
        server.cli("volume", "create", "v", "--device", device.path, "--force")
        self.assertEqual(server.open("v").pread(SIZE // 2, 0), before[: SIZE // 2], "taking a device over changed it")
        # Clients create file systems on volumes, so at a start a signature is no reason to refuse a device.
        server.restart()
        self.assertEqual(self.show(server)["condition"], "online")

    def test_what_is_in_use_is_refused(self):
        server = self.serve()
        device = Loop(self, SIZE)
        run("/usr/sbin/mkfs.ext4", "-q", device.path)
        at = self.scratch / "mounted"
        at.mkdir()
        run("mount", device.path, at)
        try:
            said = server.refused("volume", "create", "v", "--device", device.path, "--force")
        finally:
            run("umount", at)
        self.assertIn(str(at), said, "where it is mounted is not named")
        held = os.open(device.path, os.O_RDWR | os.O_EXCL)
        try:
            said = server.refused("volume", "create", "v", "--device", device.path, "--force")
        finally:
            os.close(held)
        self.assertIn(f"process {os.getpid()}", said, "who has it is not named")
        self.assertEqual(server.json("volume", "list"), [])

    def test_one_volume_has_a_device_to_itself(self):
        one, two = self.serve(name="one"), self.serve(name="two")
        device = self.raw(one)
        self.assertIn("volume 'v'", one.refused("volume", "create", "w", "--device", device.path, "--force"))
        said = two.refused("volume", "create", "w", "--device", device.path, "--force")
        self.assertIn(f"process {one.pid}", said)
        self.assertRaises(OSError, os.open, device.path, os.O_RDWR | os.O_EXCL)
        # A volume that is not served still owns its device.
        self.assertEqual(one.stop(), 0)
        held = until("the kernel to let go of the device", lambda: exclusively(device.path))
        try:
            one.start()
            self.assertIn(f"process {os.getpid()}", self.offline(one))
            self.assertIn("volume 'v'", one.refused("volume", "create", "w", "--device", device.path, "--force"))
        finally:
            os.close(held)
        until("the volume to be served once its device is free", lambda: self.show(one)["condition"] == "online")

    def test_two_disks_on_one_drive_need_force(self):
        server = self.serve()
        drive = Loop(self, SIZE, "--partscan")
        # Registered with the kernel, which may not support partition tables.
        parts = [f"{drive.path}p{number}" for number in (1, 2)]
        for number, start in ((1, 2048), (2, 65536)):
            run("addpart", drive.path, number, start, 32768)
        server.cli("disk", "add", "second", str(self.scratch / "second"), "--force")
        server.cli("volume", "create", "one", "--device", parts[0])
        said = server.refused("volume", "create", "two", "--device", parts[1], "--disk", "second")
        self.assertIn("'default'", said)
        self.assertIn("--force", said)
        # On the same disk they are scheduled together. A drive is not free while a part of it is in use.
        server.cli("volume", "create", "beside", "--device", parts[1], "--disk", "default")
        server.cli("volume", "delete", "beside", "--yes", "--force")
        self.assertIn("in use", server.refused("volume", "create", "all", "--device", drive.path, "--force"))
        server.cli("volume", "create", "two", "--device", parts[1], "--disk", "second", "--force")
        self.assertIn("'default'", " ".join(server.json("disk", "show", "second")["warnings"]))
        server.open("two").pwrite(b"two", 0)
        server.restart()
        self.assertEqual(server.open("two").pread(3, 0), b"two")
        self.assertEqual(drive.read(65536 * 512, 3), b"two")

    def test_disk_of_raw_volumes_is_not_where_its_directory_is(self):
        server = self.serve()
        server.cli("disk", "add", "second", str(self.scratch / "second"), "--force")
        self.assertIn("'default'", " ".join(server.json("disk", "show", "second")["warnings"]))
        device = Loop(self, SIZE)
        server.cli("volume", "create", "v", "--device", device.path, "--disk", "second")
        self.assertEqual(server.json("disk", "show", "second")["warnings"], [])
        server.create("file", "4MiB", "--disk", "second")
        self.assertIn("'default'", " ".join(server.json("disk", "show", "second")["warnings"]))

    def test_no_device_and_no_block_device(self):
        server = self.serve()
        for path, word in (
            (self.scratch / "absent", "no device"),
            (self.scratch, "not a block device"),
            ("/dev/null", "not a block device"),
        ):
            with self.subTest(path=path):
                said = server.refused("volume", "create", "v", "--device", str(path), "--force")
                self.assertIn(word, said)
                self.assertIn(str(path), said)
        self.assertEqual(server.json("volume", "list"), [])
        self.assertEqual(os.listdir(server.data / "disks" / "default" / "volumes"), [])

    def test_read_only(self):
        server = self.serve()
        device = Loop(self, SIZE, "--read-only")
        self.assertIn("read-only", server.refused("volume", "create", "v", "--device", device.path))
        device.detach()
        device = self.raw(server, "w")
        self.assertEqual(server.stop(), 0)
        run("/usr/sbin/blockdev", "--setro", device.path)
        server.start()
        self.assertIn("read-only", self.offline(server, "w"))
        run("/usr/sbin/blockdev", "--setrw", device.path)
        server.restart()
        self.assertEqual(self.show(server, "w")["condition"], "online")

    def test_missing_smaller_and_wrong_devices_are_offline_and_the_others_go_on(self):
        self.enterContext(numbers_held())
        server = self.serve()
        gone, small, wrong, kept = (self.raw(server, name) for name in ("gone", "small", "wrong", "kept"))
        for name in ("gone", "small", "wrong", "kept"):
            server.open(name).pwrite(name.encode(), 0)
        self.assertEqual(server.stop(), 0)
        gone_path = gone.path
        gone.detach()
        small.resize(SIZE // 2)
        # Another file under the same name: larger, and not the right one.
        wrong_path = wrong.path
        wrong.detach()
        other = self.scratch / "other.img"
        other.write_bytes(b"precious" + bytes(2 * SIZE - 8))
        run("/usr/sbin/losetup", wrong_path, other)
        self.addCleanup(run, "/usr/sbin/losetup", "--detach", wrong_path, check=False)
        server.start()
        self.assertIn(gone_path, self.offline(server, "gone"))
        self.assertIn("32MiB", self.offline(server, "small"))
        reason = self.offline(server, "wrong")
        self.assertIn("another device", reason)
        self.assertIn("other.img", reason)
        self.assertIn("wrong", server.cli("status").stdout)
        handle = server.open("kept")
        self.assertEqual(handle.pread(4, 0), b"kept")
        handle.pwrite(b"go on", 4)
        handle.flush()
        self.assertEqual(other.read_bytes()[:8], b"precious")
        # The right devices are back.
        self.assertEqual(server.stop(), 0)
        small.resize(SIZE)
        run("/usr/sbin/losetup", gone_path, gone.image)
        self.addCleanup(run, "/usr/sbin/losetup", "--detach", gone_path, check=False)
        server.start()
        self.assertEqual(server.open("small").pread(5, 0), b"small")
        self.assertEqual(server.open("gone").pread(4, 0), b"gone")
        # A volume that is offline can be deleted.
        server.cli("volume", "delete", "wrong", "--yes", "--force")

    def test_found_by_a_name_that_stays(self):
        self.enterContext(numbers_held())
        links = Path("/dev/disk/by-id")
        made = [path for path in (links.parent, links) if not path.exists()]
        links.mkdir(parents=True, exist_ok=True)
        for path in made:
            self.addCleanup(path.rmdir)
        link = links / f"wwn-aerogel-test-{os.getpid()}"
        self.addCleanup(link.unlink, missing_ok=True)
        server = self.serve()
        device = Loop(self, SIZE)
        link.symlink_to(device.path)
        server.cli("volume", "create", "v", "--device", device.path)
        self.assertEqual(self.show(server)["path"], str(link))
        server.open("v").pwrite(b"named", 0)
        self.assertEqual(server.stop(), 0)
        # The kernel assigns a new number; another device has the old one.
        old, image = device.path, device.image
        device.detach()
        other = self.scratch / "other.img"
        other.write_bytes(bytes(SIZE))
        run("/usr/sbin/losetup", old, other)
        self.addCleanup(run, "/usr/sbin/losetup", "--detach", old, check=False)
        device = Loop(self, SIZE)
        self.assertNotEqual(device.path, old)
        self.assertEqual(device.image, image)
        link.unlink()
        link.symlink_to(device.path)
        server.start()
        self.assertEqual(server.open("v").pread(5, 0), b"named")

    def test_device_that_vanishes_while_it_is_served(self):
        server = self.serve(cache="16MiB")
        device = self.raw(server)
        self.raw(server, "kept")
        handle = server.open("v")
        handle.pwrite(b"a" * MIB, 0)
        handle.flush()
        # Without its medium, the kernel answers EIO from now on. Its node is removed, too, as when a drive is pulled.
        os.truncate(device.image, 0)
        node = Path(device.path)
        stat = node.stat()
        node.unlink()
        self.addCleanup(lambda: node.exists() or os.mknod(node, stat.st_mode, stat.st_rdev))
        with self.assertRaises(nbd.Error) as failed:
            handle.pread(MIB, 32 * MIB)
        self.assertEqual(failed.exception.errnum, errno.EIO)
        self.assertIn(device.path, " ".join(self.show(server)["warnings"]))
        other = server.open("kept")
        other.pwrite(b"go on", 0)
        other.flush()
        self.assertEqual(other.pread(5, 0), b"go on")
        server.kill()
        server.start()
        self.assertIn("no device", self.offline(server))
        self.assertEqual(server.open("kept").pread(5, 0), b"go on")


class Probe(RawCase):
    """A disk of raw volumes is only read."""

    def test_only_read(self):
        server = self.serve()
        devices = [self.raw(server, name, 128 * MIB) for name in ("a", "b")]
        noise = random_image(self.scratch / "noise", 128 * MIB)
        for device, name in zip(devices, ("a", "b")):
            run("nbdcopy", "--flush", noise, server.uri(name), seconds=300)
        written = lambda: [int(Path(f"/sys/block/{Path(d.path).name}/stat").read_text().split()[4]) for d in devices]
        before = written()
        said = server.cli("disk", "probe", "default", "--seconds", "4").stdout
        self.assertIn("values of writes are unknown", said)
        self.assertEqual(written(), before, "a probe wrote to a raw device")
        for device in devices:
            run("cmp", noise, device.image)
        shown = server.json("disk", "show", "default")["profile"]["values"]
        values = {value["name"]: value for value in shown}
        self.assertGreater(values["random_read_4096_bytes_depth_32_requests_per_s"]["value"], 10)
        self.assertFalse([name for name in values if "_write_" in name])
        self.assertEqual(values["writes_unknown"]["value"], 1)
        self.assertIn("only read", values["writes_unknown"]["method"])
        self.assertIn("writes_unknown", server.cli("disk", "show", "default").stdout)
        self.assertNotIn(".probe.tmp", " ".join(os.listdir(server.data / "disks" / "default")))

    def test_on_a_device_that_went_it_is_refused(self):
        server = self.serve()
        device = self.raw(server)
        self.assertEqual(server.stop(), 0)
        device.detach()
        server.start()
        self.assertIn("raw devices", server.refused("disk", "probe", "default", "--seconds", "2"))
