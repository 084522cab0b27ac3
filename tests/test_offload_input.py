"""Bad input to the commands of stores and off-loading: the message names the thing, the reason and the remedy, and
nothing changes."""

import subprocess

from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until

# For `tests/run.py`.
LANE = 4

# Servers whose export cannot be a store.
SERVERS = {
    "odd": ["nbdkit", "-f", "memory", "20000001"],
    "none": ["nbdkit", "-f", "memory", "0"],
    "small": ["nbdkit", "-f", "memory", "1M"],
    "unflushed": [
        "nbdkit", "-f", "eval", "get_size=echo 64M", "pread=head -c $3 /dev/zero", "can_write=exit 0",
        "pwrite=cat >/dev/null", "can_flush=exit 3",
    ],
    "unreadable": ["nbdkit", "-f", "--filter=error", "memory", "64M", "error-pread-rate=100%"],
    "read-only": ["nbdkit", "-f", "-r", "memory", "64M"],
    "other": ["nbdkit", "-f", "data", "data=7 7 7 7", "size=64M"],
}  # fmt: skip


class OffloadInput(ServerCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(cache="96MiB")
        for disk in ("hdd", "ssd"):
            self.server.cli("disk", "add", disk, "sim:barracuda-7200.9", "--size", "1GiB")
        for store in ("spare", "second"):
            self.server.cli("store", "create", store, "--size", "17MiB", "--disk", "default")
        self.server.create("db", "4MiB", "--disk", "hdd")
        self.server.create("web", "4MiB", "--disk", "ssd")

    @staticmethod
    def stores_of(disk):
        return [store["store"] for store in disk["stores"]]

    def standing(self):
        """What a refused request must not change."""
        disks = self.server.json("offload", "list")
        kept = ("disk", "phase", "copies", "limit_bytes", "base_threshold", "store_threshold", "reclaim_depth")
        stores = [(store["name"], store["disk"], store["size_bytes"]) for store in self.server.json("store", "list")]
        of_disks = [[disk[key] for key in kept] + disk["except"] + self.stores_of(disk) for disk in disks]
        return of_disks, stores, [volume["spec"] for volume in self.server.json("volume", "list")]

    def refuses(self, cases):
        """Each case has the words of a command, and what its message must have."""
        before = self.standing()
        for words, *parts in cases:
            told = self.server.refused(*words.split(" "))
            for part in parts:
                self.assertIn(part, told, f"aerogel {words}")
            self.assertEqual(self.standing(), before, f"aerogel {words}")

    SETTINGS = (
        ("--copies 0", "--copies 0 is out of range", "1 to 2 copies", "give --copies 1"),
        ("--copies 3", "--copies 3 is out of range", "1 to 2 copies", "give --copies 1"),
        ("--copies -1", "'--copies <N>'", "-1 is not in 0.."),
        ("--limit 0", "--limit 0 is out of range", "at least 1", "give --limit 1 or more"),
        ("--limit 4GB", "'--limit <SIZE>'", "write 4GiB"),
        ("--store-threshold 0", "--store-threshold 0 is out of range", "at least 1", "give --store-threshold 1"),
        ("--reclaim-depth 0", "--reclaim-depth 0 is out of range", "at least 1", "give --reclaim-depth 1"),
        ("--base-threshold -1", "'--base-threshold <N>'", "-1 is not in 0.."),
        ("--i-accept-data-loss", "unexpected argument '--i-accept-data-loss'"),
    )

    def test_what_enable_refuses_at_the_beginning(self):
        own = f"nbd+unix:///spare?socket={self.server.socket}"
        enable = "offload enable hdd"
        many = " ".join(f"--store s{number}" for number in range(17))
        self.refuses(
            [(f"{enable} --store spare {words}", *parts) for words, *parts in self.SETTINGS]
            + [(f"{enable} {words}", *parts) for words, *parts in self.SETTINGS]
            + [
                (enable, "disk 'hdd'", "offload enable hdd --store NAME", "store list", "store create"),
                (f"{enable} --store spare --copies 2", "--copies 2 needs 2 stores", "number of stores is 1", "--store"),
                (f"{enable} {many}", "at most 16 stores", "17 are named"),
                (f"{enable} --store spare --store spare", "'spare' is named twice", "name it once"),
                (f"{enable} --store spare --store {own}", f"'spare' and '{own}' are one store", "name it once"),
                (f"{enable} --store absent", "there is no store 'absent'", "store list"),
                (f"{enable} --store web", "'web' is not a store", "store create NAME --disk OTHER"),
                (f"{enable} --store http://h/x", "'http://h/x' is not an NBD URI", "write nbd://"),
                (f"{enable} --store nbds://h/x", "'nbds://h/x' is reached with TLS", "NAME?tls-certificates=DIR"),
                (f"{enable} --store nbd://h/x?tls-certificates=/d", "without TLS", "write nbds://"),
                (f"{enable} --store spare --except web", "'web' of --except is on disk 'ssd'", "--except web"),
                (f"{enable} --store spare --except absent", "there is no volume 'absent'", "volume list"),
                ("offload enable absent --store spare", "there is no disk 'absent'", "disk list"),
                ("offload show hdd", "'hdd' are not off-loaded", "offload enable hdd --store"),
                ("offload disable hdd", "'hdd' are not off-loaded", "offload enable hdd --store"),
                ("offload store remove hdd spare", "'hdd' are not off-loaded", "offload enable hdd --store"),
            ]
        )

    def test_what_is_refused_of_a_disk_that_is_off_loaded(self):
        self.server.cli("offload", "enable", "hdd", "--store", "spare", "--limit", "1GiB")
        enable, remove = "offload enable hdd", "offload store remove hdd"
        self.refuses(
            [(f"{enable} {words}", *parts) for words, *parts in self.SETTINGS]
            + [
                (f"{enable} --store spare --store spare", "'spare' is named twice"),
                (f"{enable} --store second", "to other stores already", "offload disable hdd"),
                (f"{enable} --copies 2", "another number of copies", "offload disable hdd"),
                (f"{enable} --except db", "other exceptions", "offload disable hdd"),
                (f"{enable} --except web", "'web' of --except is on disk 'ssd'"),
                ("offload enable ssd --store spare", "'spare' has the log of disk 'hdd'", "store create NAME --disk"),
                (f"{remove} absent", "disk 'hdd' has no store 'absent'", "offload show hdd"),
                (f"{remove} spare", "0 stores would remain", "needs 1 store\n", "offload disable hdd"),
                (f"{remove} spare --lost", "store 'spare' of disk 'hdd'", "ranges", "would be old", "--yes"),
                (f"{remove} spare --lost --json", '"hint": "add --yes'),
                (f"{remove} spare --lost --yes", "can be reached", "without --lost"),
                ("store delete spare --yes", "disk 'hdd' may have data in store 'spare'", "--force"),
            ]
        )
        told = self.server.cli("offload", "enable", "hdd", "--store", "spare", "--reclaim-depth", "9").stdout
        self.assertIn("settings", told)

    def test_a_disk_is_enabled_as_soon_as_it_was_disabled(self):
        for _ in range(5):
            self.server.cli("offload", "enable", "hdd", "--store", "spare")
            self.server.cli("offload", "disable", "hdd")

    def test_what_the_commands_of_stores_refuse(self):
        handle = self.server.open("second")
        self.refuses(
            (
                ("store delete absent --yes", "there is no store 'absent'", "store list"),
                ("store show absent", "there is no store 'absent'", "store list"),
                ("store delete db --yes", "'db' is not a store", "volume delete"),
                ("store delete second --yes", "store 'second' is in use by 1 connections", "--force"),
                ("store delete spare", "--yes"),
                ("store create x --size 0", "a store of 0B is too small", "at least 17MiB"),
                ("store create x --size 15EiB", "a store of 15EiB is too large", "at most 1EiB"),
                ("store create x --size 1PiB --disk default", "1PiB", "request less, or name another disk"),
                ("store create x --size 17MB", "'--size <SIZE>'", "write 17MiB"),
                ("store create x --size 17MiB --disk absent", "there is no disk 'absent'", "disk list"),
                ("store create x --size 17MiB --disk ssd --share 0", "above 0 and at most 1"),
                ("store set --disk ssd --share 5%", "disk 'ssd' has no store", "--disk ssd"),
            )
        )
        del handle

    def foreign(self, name):
        """Starts a server of somebody else. Returns the URI of its export."""
        socket = self.scratch / f"{name}.sock"
        command, *more = SERVERS[name]
        process = subprocess.Popen([command, "-U", str(socket), *more])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        until(f"the server of {name}", socket.exists)
        return f"nbd+unix:///?socket={socket}"

    def test_exports_that_cannot_be_stores(self):
        cases = (
            ("odd", "20000001 bytes, and a store has a multiple of 512", "change the size of the export"),
            ("none", "has 0B, less than the 17MiB", "larger"),
            ("small", "has 1MiB, less than the 17MiB", "larger"),
            ("unflushed", "cannot flush", "NBD_CMD_FLUSH"),
            ("unreadable", "fails a read at 0: input/output error (EIO)", "the log of its server"),
            ("read-only", "is read-only"),
            ("other", "is not empty", "--force"),
        )
        for name, *parts in cases:
            uri = self.foreign(name)
            self.refuses([(f"offload enable hdd --store {uri}", f"store '{uri}'", *parts)])
            told = self.server.refused("offload", "enable", "hdd", "--store", uri)
            self.assertNotIn("--i-accept-data-loss", told)
            self.assertNotIn("a volume has", told)

    def test_with_force_nothing_is_erased_before_everything_is_checked(self):
        content = b"\7" * 4096
        self.server.open("spare").pwrite(content, 0)
        alias = f"nbd+unix:///spare?socket={self.server.socket}"
        enable = "offload enable hdd --force --store spare"
        self.refuses(
            [
                (f"{enable} --store {alias}", "are one store"),
                (f"{enable} --store absent", "there is no store 'absent'"),
                (f"{enable} --store {self.foreign('small')}", "less than the 17MiB"),
                (f"{enable} --except web", "--except web"),
            ]
        )
        self.assertEqual(self.server.open("spare").pread(4096, 0), content)

    def test_the_metrics_of_off_loading(self):
        self.server.cli("offload", "enable", "hdd", "--store", "spare", "--base-threshold", "0")
        handle = self.server.open("db")
        handle.pwrite(b"\1" * MIB, 0)
        metrics = self.server.metrics()
        volumes = {key for key in metrics if key.startswith("aerogel_volume_offloaded_bytes")}
        labels = ('{disk="hdd",volume="db",tenant="db"}', '{disk="ssd",volume="web",tenant="web"}')
        self.assertEqual(volumes, {"aerogel_volume_offloaded_bytes" + of for of in labels}, "stores have none")
        self.assertIn('aerogel_offload_oldest_seconds{disk="hdd"}', metrics)
        online = 'aerogel_offload_store_online{disk="hdd",store="spare"}'
        until("the store to be online", lambda: self.server.metrics()[online] == 1)
