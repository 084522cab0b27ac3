"""Off-loading, as an operator uses it: writes of a slow disk go to a store on another one, and come home."""

import errno
import json
import os
import subprocess
import threading
import time

import nbd
from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until

# Mostly for a slow disk.
LANE = 2

BLOCK = 4096
BLOCKS = 1000
SIZE = 64 * MIB
PLACES = SIZE // BLOCK
# Kills at the peak.
LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
ROUNDS = 20 if LONG else 3


class Offload(ServerCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(cache="64MiB")
        self.server.cli("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", "2GiB")
        self.server.cli("store", "create", "spare", "--size", "256MiB", "--disk", "default")
        self.server.create("db", "64MiB", "--disk", "hdd")
        self.server.cli("volume", "set", "db", "--write-cache", "none")

    def cli(self, *words):
        return self.server.json(*words)

    def enable(self, *more):
        # Every write that waits is off-loaded.
        return self.server.cli("offload", "enable", "hdd", "--store", "spare", "--base-threshold", "0", *more)

    def shown(self):
        return self.cli("offload", "show", "hdd")

    @staticmethod
    def until(what, is_so, seconds=60):
        # It asks for nothing itself: `offload show` is refused once a disk is not off-loaded any more.
        until(f"it to be {what}", is_so, seconds)

    @staticmethod
    def place(number):
        """Places all over the volume, none twice."""
        return number * 7919 % PLACES * BLOCK

    @staticmethod
    def content(number, round_):
        return bytes([number % 251 + 1, round_ + 1]) * (BLOCK // 2)

    def write(self, handle, round_, depth=64, acknowledged=None):
        """Random writes, many at once. Returns the numbers of those that were acknowledged."""
        acknowledged = set() if acknowledged is None else acknowledged
        for number in range(BLOCKS):
            while handle.aio_in_flight() >= depth:
                handle.poll(-1)

            def done(error, number=number):
                if error.value == 0:
                    acknowledged.add(number)
                return 1

            handle.aio_pwrite(self.content(number, round_), self.place(number), completion=done)
        while handle.aio_in_flight():
            handle.poll(-1)
        return acknowledged

    def is_online(self):
        return self.cli("volume", "show", "db")["condition"] == "online"

    def check(self, handle, round_):
        wrong = [at for at in range(BLOCKS) if handle.pread(BLOCK, self.place(at)) != self.content(at, round_)]
        self.assertEqual(wrong, [], "places with other content")

    def test_a_peak_goes_to_the_store_is_read_and_comes_home(self):
        self.enable()
        handle = self.server.open("db")
        self.assertEqual(len(self.write(handle, 0)), BLOCKS)
        handle.flush()
        shown = self.shown()
        self.assertGreater(shown["offloaded_bytes"], 100 * BLOCK, shown)
        [top] = [disk["offload"] for disk in self.cli("top", "--once") if disk["disk"] == "hdd"]
        self.assertGreater(max(top["history_bytes"]), 100 * BLOCK, top)
        self.assertIn("off-loaded", self.server.cli("top", "--once").stdout)
        self.check(handle, 0)
        # While data is away it is overwritten, and the new content counts.
        self.assertEqual(len(self.write(handle, 1)), BLOCKS)
        self.check(handle, 1)
        self.until("at home", lambda: self.shown()["offloaded_bytes"] == 0)
        self.check(handle, 1)
        self.server.cli("offload", "disable", "hdd")
        self.assertEqual(self.cli("offload", "list"), [])
        self.check(handle, 1)
        self.server.cli("store", "delete", "spare", "--yes")
        self.server.restart()
        self.check(self.server.open("db"), 1)

    def test_what_is_away_is_there_after_a_kill_and_after_a_clean_stop(self):
        self.enable("--reclaim-depth", "1")
        for round_ in range(2):
            handle = self.server.open("db")
            self.write(handle, round_)
            handle.flush()
            self.assertGreater(self.shown()["offloaded_bytes"], 0)
            if round_ == 0:
                self.server.kill()
                self.server.start()
            else:
                self.server.restart()
            self.until("online", self.is_online)
            self.check(self.server.open("db"), round_)

    def test_what_was_acknowledged_is_there_after_a_kill_at_the_peak(self):
        self.enable()
        newest = {}
        for round_ in range(ROUNDS):
            acknowledged = set()
            # The log of the killed server has no say in what the clients know.
            killer = threading.Timer(0.2 + 0.2 * round_ % 0.7, self.server.kill)
            handle = self.server.open("db")
            killer.start()
            try:
                self.write(handle, round_, acknowledged=acknowledged)
            except nbd.Error:
                pass
            killer.join()
            newest.update(dict.fromkeys(acknowledged, round_))
            self.server.start()
            self.until("online", self.is_online)
            handle = self.server.open("db")
            for number, at_least in newest.items():
                read = handle.pread(BLOCK, self.place(number))
                # What was not acknowledged may be there, too.
                possible = [self.content(number, later) for later in range(at_least, round_ + 1)]
                self.assertIn(read, possible, f"write {number} of round {at_least} is lost in round {round_}")
        self.assertGreater(len(newest), 50)

    def foreign(self, server):
        """Starts a server of somebody else for an image. Returns its URI, and the process."""
        image, socket = self.scratch / "store.img", self.scratch / "store.sock"
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(64 * MIB)
        socket.unlink(missing_ok=True)
        command = {
            "nbdkit": ["nbdkit", "-f", "-U", socket, "file", image],
            # All writes fail while there is a file of that name.
            "failing": [
                *["nbdkit", "-f", "-U", socket, "--filter=error", "file", image],
                *["error-pwrite=ENOSPC", "error-pwrite-rate=100%", f"error-file={self.scratch / 'fails'}"],
            ],
            "read-only": ["nbdkit", "-r", "-f", "-U", socket, "file", image],
            "qemu-nbd": ["qemu-nbd", "-t", "-f", "raw", "-e", "16", "-k", socket, image],
        }[server]
        process = subprocess.Popen([str(word) for word in command])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not socket.exists():
            time.sleep(0.02)
        return f"nbd+unix:///?socket={socket}", process

    def a_server_of_somebody_else_has_the_store(self, name):
        uri, process = self.foreign(name)
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0", "--reclaim-depth", "1")
        handle = self.server.open("db")
        self.write(handle, 0)
        self.assertGreater(self.shown()["offloaded_bytes"], 0)
        self.check(handle, 0)
        # Both are away; only the volume that may have data there waits for the store.
        self.server.kill()
        process.kill()
        process.wait()
        self.server.start()
        self.until("offline", lambda: self.cli("volume", "show", "db")["condition"] == "offline")
        self.assertIn(uri, self.server.cli("disk", "show", "hdd").stdout)
        # Not the state of the first moment.
        self.until("named", lambda: "cannot" in (self.cli("volume", "show", "db")["reason"] or ""), 5)
        self.assertNotIn("is being read", self.cli("volume", "show", "db")["reason"])
        self.server.create("other", "4MiB", "--disk", "default")
        self.server.open("other").pwrite(b"served" * 512, 0)
        self.foreign(name)
        self.until("online", self.is_online)
        self.check(self.server.open("db"), 0)
        self.server.cli("offload", "disable", "hdd")
        self.check(self.server.open("db"), 0)

    def test_nbdkit_has_the_store(self):
        self.a_server_of_somebody_else_has_the_store("nbdkit")

    def test_qemu_nbd_has_the_store(self):
        self.a_server_of_somebody_else_has_the_store("qemu-nbd")

    def test_a_store_that_refuses_all_writes_holds_nobody_up(self):
        uri, _ = self.foreign("failing")
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0")
        (self.scratch / "fails").touch()
        handle = self.server.open("db")
        self.assertEqual(len(self.write(handle, 0)), BLOCKS)
        handle.flush()
        self.check(handle, 0)
        self.until("named", lambda: "the last write to it failed" in (self.shown()["stores"][0]["failure"] or ""))
        self.assertEqual(self.shown()["offloaded_bytes"], 0)
        # Nothing is there, so the store is not needed.
        self.server.cli("offload", "store", "remove", "hdd", uri, "--lost", "--yes")
        self.server.cli("offload", "disable", "hdd")
        self.enable()
        self.write(handle, 1)
        self.check(handle, 1)

    def test_a_lost_store_that_comes_back_is_not_used(self):
        uri, _ = self.foreign("failing")
        fails = self.scratch / "fails"
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0", "--reclaim-depth", "1")
        fails.touch()
        handle = self.server.open("db")
        self.write(handle, 0)
        self.until("named", lambda: "the last write to it failed" in (self.shown()["stores"][0]["failure"] or ""))
        self.server.cli("offload", "store", "remove", "hdd", uri, "--lost", "--yes")
        before = self.shown()["written_bytes"]
        fails.unlink()
        # One that is not lost is opened again within 5 s.
        time.sleep(6)
        self.write(handle, 1)
        shown = self.shown()
        self.assertEqual((shown["stores"][0]["state"], shown["written_bytes"]), ("lost", before))
        # The next start does without it.
        self.server.kill()
        self.server.start()
        self.until("online", self.is_online)
        self.check(self.server.open("db"), 1)

    def events(self):
        return [event["reason"] for event in self.cli("status")["events"]]

    def test_a_store_that_fails_later_is_emptied_and_writes_go_to_the_disk(self):
        uri, process = self.foreign("failing")
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0")
        handle = self.server.open("db")
        self.write(handle, 0)
        self.assertGreater(self.shown()["offloaded_bytes"], 100 * BLOCK)
        (self.scratch / "fails").touch()
        # They overlap what is there. All of it comes home first.
        begun = time.monotonic()
        self.assertEqual(len(self.write(handle, 1)), BLOCKS)
        handle.flush()
        self.assertLess(time.monotonic() - begun, 50)
        self.check(handle, 1)
        self.until("told", lambda: any(uri in it and "does not count any more" in it for it in self.events()))
        self.assertTrue(any(uri in it and "cannot be written" in it for it in self.events()), self.events())
        [store] = self.shown()["stores"]
        self.assertEqual(store["state"], "connecting", store)
        self.assertIn("the last write to it failed", store["failure"])
        warnings = "\n".join(self.cli("disk", "show", "hdd")["warnings"])
        self.assertIn(uri, warnings)
        self.assertIn("aerogel offload store remove hdd", warnings)
        # What the store still has is older than what the disk has. The next process must not read it.
        self.server.kill()
        (self.scratch / "fails").unlink()
        self.server.start()
        self.until("online", self.is_online)
        handle = self.server.open("db")
        self.check(handle, 1)
        # It is used again.
        self.write(handle, 2)
        self.assertGreater(self.shown()["offloaded_bytes"], 0)
        self.check(handle, 2)

    def test_a_store_that_is_only_readable_after_a_restart_is_emptied_and_the_volume_is_served(self):
        for clean in (False, True):
            uri, process = self.foreign("failing")
            self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0", "--reclaim-depth", "1")
            handle = self.server.open("db")
            self.write(handle, 0)
            self.assertGreater(self.shown()["offloaded_bytes"], 0)
            (self.scratch / "fails").touch()
            self.server.stop() if clean else self.server.kill()
            self.server.start()
            self.until("online", self.is_online)
            handle = self.server.open("db")
            self.check(handle, 0)
            self.write(handle, 1)
            self.check(handle, 1)
            (self.scratch / "fails").unlink()
            self.server.cli("offload", "disable", "hdd")
            # The log is erased after the answer.
            image = self.scratch / "store.img"
            self.until("erased", lambda: b"AEROSTO1" not in image.read_bytes()[:65536])
            process.kill()
            process.wait()

    def test_off_loading_ends_although_its_store_takes_no_writes(self):
        uri, process = self.foreign("failing")
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0")
        handle = self.server.open("db")
        self.write(handle, 0)
        (self.scratch / "fails").touch()
        self.server.cli("offload", "disable", "hdd")
        self.check(handle, 0)

    def test_what_is_at_the_address_of_a_store_now_is_not_erased(self):
        image, other = self.scratch / "store.img", b"other data" * 10000
        uri, _ = self.foreign("failing")
        for is_lost in False, True:
            self.server.cli("offload", "enable", "hdd", "--store", uri, "--force")
            self.until("written", lambda: b"AEROSTO1" in image.read_bytes()[:65536])
            if is_lost:
                (self.scratch / "fails").touch()
                self.server.cli("offload", "enable", "hdd", "--base-threshold", "0")
                self.write(self.server.open("db"), 0)
                remove = ("offload", "store", "remove", "hdd", uri, "--lost", "--yes")
                self.until("lost", lambda: self.server.cli(*remove, check=False).returncode == 0)
                (self.scratch / "fails").unlink()
            with image.open("r+b") as file:
                file.write(other)
            self.server.cli("offload", "disable", "hdd")
            # This waits for the end.
            self.enable()
            self.server.cli("offload", "disable", "hdd")
            self.assertEqual(image.read_bytes()[: len(other)], other, f"lost: {is_lost}")
            self.assertEqual(self.server.log().count("the store is not erased"), 1)

    def test_a_store_that_takes_no_writes_is_refused(self):
        (self.scratch / "fails").touch()
        for kind, why in ("failing", "does not accept writes"), ("read-only", "is read-only"):
            uri, process = self.foreign(kind)
            refused = self.server.refused("offload", "enable", "hdd", "--store", uri)
            self.assertIn(f"store '{uri}' {why}", refused)
            self.assertIn("must be writable", refused)
            self.assertEqual(self.cli("offload", "list"), [])
            process.kill()
            process.wait()

    def test_a_store_is_named_wherever_it_is_looked_for(self):
        self.enable()
        self.assertEqual(self.cli("volume", "show", "db")["offload_stores"], ["spare"])
        self.assertIn("to spare", self.server.cli("volume", "show", "db").stdout)
        # Its disk is not removed, nor is it deleted, without a word.
        self.server.cli("disk", "add", "other", "sim:barracuda-7200.9", "--size", "1GiB")
        for words in ("disk", "remove", "default"), ("store", "delete", "spare", "--yes"):
            refused = self.server.refused(*words)
            self.assertIn("'hdd'", refused)
            self.assertIn("aerogel offload disable hdd", refused)
        self.write(self.server.open("db"), 0)
        self.server.cli("store", "delete", "spare", "--yes", "--force")
        self.until("seen to be away", lambda: self.shown()["stores"][0]["state"] == "connecting")
        self.assertIn("'spare' cannot be reached", self.server.cli("disk", "show", "hdd").stdout)

    def test_switches_on_and_off_are_events(self):
        self.enable("--limit", "1MiB")
        handle = self.server.open("db")

        def told():
            told = 0
            for event in self.events():
                if event.startswith("writes are "):
                    several = event.partition(" switches on and off")
                    told += int(several[0].split()[-1]) if several[1] else 1
            return told

        for round_ in range(3):
            self.write(handle, round_)
        self.until("told", lambda: told() == self.shown()["switches"])
        self.assertGreater(told(), 2)

    def failing(self, handle, round_):
        """The numbers of the writes whose place cannot be read; all others have to be right."""
        failing = set()
        for number in range(BLOCKS):
            try:
                read = handle.pread(BLOCK, self.place(number))
                self.assertEqual(read, self.content(number, round_), f"write {number}")
            except nbd.Error as error:
                self.assertEqual(error.errnum, errno.EIO, f"write {number}")
                failing.add(number)
        return failing

    def test_after_a_clean_stop_what_only_a_missing_store_has_fails_and_the_rest_is_served(self):
        uri, process = self.foreign("nbdkit")
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0", "--reclaim-depth", "1")
        handle = self.server.open("db")
        self.write(handle, 0)
        self.server.stop()
        process.kill()
        process.wait()
        self.server.start()
        # It waits for the store for 30 s.
        self.until("online", self.is_online)
        handle = self.server.open("db")
        away = self.failing(handle, 0)
        self.assertEqual(len(away) * BLOCK, self.shown()["offloaded_bytes"])
        self.assertTrue(0 < len(away) < BLOCKS, f"{len(away)} of {BLOCKS} places cannot be read")
        for words in ("disk", "show", "hdd"), ("volume", "show", "db"):
            text = self.server.cli(*words).stdout
            self.assertIn(f"'{uri}' is missing since the start", text)
            self.assertIn("fail with EIO", text)
        self.assertIn("STORE AWAY", self.server.cli("volume", "list").stdout)
        # All else is served.
        status, ready = self.server.get("/readyz")
        self.assertEqual(status, 200)
        self.assertIn(uri, json.loads(ready)["warnings"][0])
        self.assertLess(self.shown()["oldest_s"], 600)
        self.assertIn("over ", self.server.cli("offload", "show", "hdd").stdout)
        # What is not away can be written, and the map is good for a further start, after a kill or a stop.
        handle.pwrite(self.content(BLOCKS, 0), self.place(BLOCKS), nbd.CMD_FLAG_FUA)
        if LONG:
            self.server.kill()
            self.server.start()
            self.until("online", self.is_online)
            self.server.restart()
            self.until("online", self.is_online)
        handle = self.server.open("db")
        self.assertEqual(self.failing(handle, 0), away)
        self.assertEqual(handle.pread(BLOCK, self.place(BLOCKS)), self.content(BLOCKS, 0))
        # Since the server has used the store now, the map is outdated.
        self.foreign("nbdkit")
        self.until("there again", lambda: not self.failing(handle, 0))
        self.server.kill()
        self.server.start()
        self.assertEqual(self.mapped(), 0)
        self.until("online", self.is_online)
        self.check(self.server.open("db"), 0)

    def mapped(self):
        """Stores without which the server may start: the map says what they have."""
        (path,) = self.server.data.glob("**/offload.toml")
        return path.read_text().count('mapped = "exactly"')

    def test_a_damaged_map_is_not_used(self):
        uri, process = self.foreign("nbdkit")
        self.server.cli("offload", "enable", "hdd", "--store", uri, "--base-threshold", "0", "--reclaim-depth", "1")
        self.write(self.server.open("db"), 0)
        self.server.stop()
        process.kill()
        process.wait()
        self.assertEqual(self.mapped(), 1)
        (path,) = self.server.data.glob("**/offload-map-*.json")
        path.write_text(path.read_text().replace("4096", "8192"))
        self.server.start()
        self.until("refused", lambda: self.mapped() == 0)
        self.assertFalse(self.is_online())
        self.foreign("nbdkit")
        self.until("online", self.is_online)
        self.check(self.server.open("db"), 0)

    def test_a_store_that_is_gone_for_good_has_a_copy(self):
        uri, process = self.foreign("nbdkit")
        self.enable("--store", uri, "--copies", "2", "--reclaim-depth", "1")
        handle = self.server.open("db")
        self.write(handle, 0)
        self.assertGreater(self.shown()["offloaded_bytes"], 0)
        self.server.kill()
        process.kill()
        process.wait()
        (self.scratch / "store.img").unlink()
        self.server.start()
        # It waits for the store for 30 s.
        self.until("online", self.is_online, 60)
        self.check(self.server.open("db"), 0)
        refused = self.server.refused("offload", "store", "remove", "hdd", uri, "--lost")
        self.assertIn("--yes", refused)
        self.server.cli("offload", "store", "remove", "hdd", uri, "--lost", "--yes")
        self.check(self.server.open("db"), 0)

    def stores(self):
        return {store["store"]: store for store in self.shown()["stores"]}

    def test_a_store_in_use_is_removed_and_the_other_one_is_used_on(self):
        self.server.cli("store", "create", "second", "--size", "64MiB", "--disk", "default")
        self.enable("--store", "second", "--reclaim-depth", "4")
        self.assertIn("copies", self.server.cli("offload", "show", "hdd").stdout)
        handle = self.server.open("db")
        self.write(handle, 0)
        self.assertGreater(self.stores()["second"]["offloaded_bytes"], 0)
        self.assertIn("store remove", self.server.refused("store", "delete", "second", "--yes"))
        # Writes go on meanwhile.
        writer = threading.Thread(target=self.write, args=(handle, 1))
        writer.start()
        removed = self.server.cli("offload", "store", "remove", "hdd", "second").stdout
        self.assertIn("does without store 'second'", removed)
        writer.join()
        self.assertEqual(list(self.stores()), ["spare"])
        self.assertTrue(any("'second' is empty" in event["reason"] for event in self.cli("status")["events"]))
        self.check(handle, 1)
        # It is as a new store is, and can be deleted.
        self.server.cli("disk", "add", "other", "sim:barracuda-7200.9", "--size", "2GiB")
        self.server.cli("offload", "enable", "other", "--store", "second")
        self.server.cli("offload", "disable", "other")
        # The log is being erased.
        delete = ("store", "delete", "second", "--yes")
        self.until("deleted", lambda: self.server.cli(*delete, check=False).returncode == 0)
        self.check(handle, 1)
        # A volume that gets the number of the one that led to it is none of the stores.
        self.server.create("later", "4MiB", "--disk", "hdd")
        self.server.open("later").pwrite(self.content(0, 0), 0)
        self.server.cli("volume", "delete", "later", "--yes")
        self.write(handle, 2)
        for round_, again in ((2, self.server.kill), (3, self.server.stop)):
            again()
            self.server.start()
            self.until("online", self.is_online)
            handle = self.server.open("db")
            self.check(handle, round_)
            self.write(handle, round_ + 1)
            self.assertGreater(self.stores()["spare"]["offloaded_bytes"], 0)

    def test_a_store_that_is_removed_goes_on_after_a_kill_and_waits_for_one_that_is_away(self):
        uri, process = self.foreign("nbdkit")
        self.enable("--store", uri, "--reclaim-depth", "1")
        self.write(self.server.open("db"), 0)
        self.server.kill()
        self.server.start()
        self.until("online", self.is_online)
        words = ("offload", "store", "remove", "hdd", uri)
        command = threading.Thread(target=self.server.cli, args=words, kwargs={"check": False})
        command.start()
        self.until("leaving", lambda: self.stores()[uri]["leaving"])
        self.assertIn(" left", self.server.cli("offload", "show", "hdd").stdout)
        self.server.kill()
        process.kill()
        process.wait()
        command.join()
        self.server.start()
        # It is to be read before anything is served.
        self.assertFalse(self.is_online())
        self.assertTrue(self.stores()[uri]["leaving"])
        self.foreign("nbdkit")
        self.until("removed", lambda: list(self.stores()) == ["spare"])
        handle = self.server.open("db")
        self.check(handle, 0)
        (self.scratch / "store.img").unlink()
        self.server.restart()
        self.until("online", self.is_online)
        self.check(self.server.open("db"), 0)

    def test_a_store_that_is_needed_is_not_removed(self):
        self.enable()
        refused = self.server.refused("offload", "store", "remove", "hdd", "spare")
        self.assertIn("0 stores would remain", refused)
        self.assertIn("offload disable hdd", refused)
        self.assertIn("'none'", self.server.refused("offload", "store", "remove", "hdd", "none"))
        self.until("online", lambda: self.stores()["spare"]["state"] == "online")
        lost = self.server.refused("offload", "store", "remove", "hdd", "spare", "--lost", "--yes")
        self.assertIn("without --lost", lost)
        self.assertFalse(self.stores()["spare"]["leaving"])

    def test_what_cannot_be_is_refused_and_changes_nothing(self):
        self.server.cli("store", "create", "near", "--size", "17MiB", "--disk", "hdd")
        for words, why in (
            (("enable", "hdd", "--store", "near"), "near"),
            (("enable", "hdd", "--store", "none"), "none"),
            (("enable", "hdd", "--store", "db"), "db"),
            (("enable", "nowhere", "--store", "spare"), "nowhere"),
            (("enable", "hdd", "--store", "spare", "--copies", "2"), "2"),
            (("enable", "hdd", "--store", "spare", "--copies", "3"), "3"),
            (("enable", "hdd"), "--store"),
            (("show", "hdd"), "hdd"),
            (("disable", "hdd"), "hdd"),
        ):
            self.assertIn(why, self.server.refused("offload", *words), words)
        self.assertEqual(self.cli("offload", "list"), [])
        self.enable("--except", "db")
        self.assertIn("hdd", self.server.refused("store", "delete", "spare", "--yes"))
        self.write(self.server.open("db"), 0)
        self.assertEqual(self.shown()["offloaded_bytes"], 0)
