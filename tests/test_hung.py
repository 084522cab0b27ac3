"""A disk that hangs while it is changed: other disks are not affected, and its state is reported correctly."""

import os
import subprocess
import time

from harness import places, wire
from harness.case import ServerCase
from harness.wait import until
from harness.wire import Wire

# For `tests/run.py`.
LANE = 1

# Commands on disks that answer take some 50 ms, more on a loaded machine. In an earlier version they never returned.
PROMPT_SECONDS = 8


class Hung(ServerCase):
    """Two disks in one server; the first one hangs."""

    def setUp(self):
        super().setUp()
        self.server = self.serve(config='shutdown_timeout = "4s"\n[limits]\ndirty_age = "60s"')
        self.server.cli("disk", "add", "second", self.scratch / "second", "--force")
        self.server.create("db", "1MiB", "--disk", "default")
        self.server.create("other", "1MiB", "--disk", "second")

    def hang_device(self):
        """From now on requests of the first disk hang, and one of them has been sent."""
        handle = self.server.open("db")
        handle.pwrite(b"x" * 4096, 0)
        self.server.cli("disk", "fault", "add", "default", "stuck", "--yes")

    def begin(self, *words):
        """A command that runs in the background."""
        first, *rest = words
        command = [str(part) for part in (places.binary(), first, "--data", self.server.data, *rest)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def promptly(self, *words):
        started = time.monotonic()
        done = self.server.cli(*words, check=False, seconds=PROMPT_SECONDS)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        self.assertLess(time.monotonic() - started, PROMPT_SECONDS, words)
        return done.stdout

    def others_do_not_notice(self):
        self.promptly("volume", "create", "new", "1MiB", "--disk", "second", "--share", "1/4")
        self.promptly("volume", "set", "new", "--write-cache", "none")
        self.promptly("volume", "grow", "new", "2MiB")
        self.promptly("disk", "set", "second", "--max-round", "1s")
        self.server.open("new").pwrite(b"y" * 4096, 0)
        self.promptly("volume", "delete", "new", "--yes")
        for words in (["status"], ["volume", "list"], ["volume", "show", "db"], ["disk", "list"], ["top", "--once"]):
            self.promptly(*words)
        self.assertEqual(self.server.get("/metrics")[0], 200)

    def test_a_change_that_hangs_in_the_device(self):
        self.hang_device()
        change = self.begin("volume", "set", "db", "--write-cache", "none")
        until("the change to hang", lambda: self.server.json("disk", "fault", "list", "default")[0]["stuck"], 30)
        self.others_do_not_notice()
        said = self.server.refused("volume", "set", "db", "--share", "1/2")
        self.assertIn("still being changed", said)
        self.assertIsNone(change.poll())
        self.server.cli("disk", "fault", "clear", "default")
        out, err = change.communicate(timeout=60)
        self.assertEqual(change.returncode, 0, out + err)
        self.server.cli("volume", "set", "db", "--share", "1/2")

    def test_a_file_system_that_hangs(self):
        # An open of a pipe without a writer blocks.
        identity = self.server.data / "disks" / "default" / "disk.toml"
        os.rename(identity, identity.with_suffix(".kept"))
        os.mkfifo(identity)
        change = self.begin("disk", "set", "default", "--max-round", "1s")
        for _ in range(8):
            self.assertIn("does not answer", self.promptly("disk", "show", "default"))
        self.others_do_not_notice()
        self.assertIsNone(change.poll())
        threads = len(os.listdir(f"/proc/{self.server.pid}/task"))
        for _ in range(8):
            self.promptly("status")
        self.assertLess(len(os.listdir(f"/proc/{self.server.pid}/task")), threads + 4, "each look holds a thread")

    def starts_without(self, path):
        """The server starts while opening a file of its first disk blocks; that disk is served when the open
        returns."""
        self.server.open("db").flush()
        self.assertEqual(self.server.stop(), 0)
        kept, pipe = path.with_suffix(".kept"), path.with_suffix(".pipe")
        os.rename(path, kept)
        os.mkfifo(path)
        self.server.start()
        shown = {disk["name"]: disk for disk in self.server.json("disk", "list")}
        self.assertIn("does not answer", shown["default"]["reason"])
        self.assertEqual(self.server.json("volume", "show", "db")["condition"], "offline")
        self.others_do_not_notice()
        os.rename(path, pipe)
        os.rename(kept, path)
        # The blocked open finds an empty pipe; then the disk is tried again.
        os.close(os.open(pipe, os.O_WRONLY))
        online = lambda: self.server.json("volume", "show", "db")["condition"] == "online"
        until("the disk to be opened", online, 60, gone=self.server.ended)
        pipe.unlink()
        self.server.open("db").flush()
        self.assertEqual(self.server.stop(), 0)

    def test_a_start_does_not_wait_for_a_disk_that_hangs(self):
        self.starts_without(self.server.data / "disks" / "default" / "disk.toml")

    def test_nor_for_its_volumes(self):
        self.starts_without(self.server.data / "disks" / "default" / "volumes" / "db.toml")

    def test_a_disk_that_hangs_does_not_keep_the_server_from_ending(self):
        self.hang_device()
        self.begin("volume", "set", "db", "--write-cache", "none")
        until("the change to hang", lambda: self.server.json("disk", "fault", "list", "default")[0]["stuck"], 30)
        handle = self.server.open("other")
        handle.pwrite(b"z" * 4096, 0)
        started = time.monotonic()
        self.assertEqual(self.server.stop(), 1)
        self.assertLess(time.monotonic() - started, 30)
        self.assertIn("volumes=\"db\"", self.server.log())
        path = self.scratch / "second" / "volumes" / "other.img"
        self.assertEqual(path.read_bytes()[:4096], b"z" * 4096, "the other disk was flushed")

    def test_losses_of_all_volumes_of_a_disk_that_hangs_are_noted_at_once(self):
        names = [f"v{number}" for number in range(8)]
        for name in names:
            self.server.create(name, "1MiB", "--disk", "second")
            self.server.open(name).pwrite(b"x" * 4096, 0)
            # An open of a pipe without a reader blocks.
            os.mkfifo(self.scratch / "second" / "volumes" / f"{name}.lost")
        self.server.cli("disk", "fault", "add", "second", "stuck", "--yes")
        started = time.monotonic()
        self.assertEqual(self.server.stop(), 1)
        # The shutdown timeout, and the limit for notes on the disk.
        self.assertLess(time.monotonic() - started, 4 + 2 + PROMPT_SECONDS)
        self.assertEqual(len(os.listdir(self.server.data / "lost")), len(names))


class HungFile(ServerCase):
    """A file that hangs, on a disk that does not."""

    def test_it_leaves_the_device_to_other_tenants(self):
        for policy in ("none", "insulated"):
            with self.subTest(policy):
                server = self.serve(cache="256MiB", name=policy)
                server.cli("disk", "set", "default", "--policy", policy)
                for name in ("hangs", "other"):
                    server.create(name, "64MiB", "--prealloc", "full")
                server.cli("disk", "fault", "add", "default", "stuck", "read", "volume=hangs", "--yes")
                # More reads than fit into the device, none of them adjacent.
                hung = []
                for first in range(0, 256, 64):
                    client = Wire(server.socket)
                    self.addCleanup(client.socket.close)
                    client.go("hangs")
                    for at in range(first, first + 64):
                        client.request(wire.READ, at * 262144, 4096)
                    hung.append(client)
                stuck = lambda: server.json("disk", "fault", "list", "default")[0]["stuck"]
                until("the device to hold as many as it takes of one tenant", lambda: stuck() >= 90, 60)
                with Wire(server.socket, seconds=60) as other:
                    other.go("other")
                    for at in range(64):
                        other.request(wire.READ, at * 262144, 4096)
                        self.assertEqual(other.simple(4096)[1], 0)
                server.cli("disk", "fault", "clear", "default")
                for client in hung:
                    for _ in range(64):
                        self.assertEqual(client.simple(4096)[1], 0)
                server.kill()
