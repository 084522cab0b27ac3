"""Databases on ext4 on a volume: acknowledged commits survive kill -9 of the server, and failures of its disk.

    ledger, pgbench or sysbench -> database -> ext4 -> loop device -> nbdfuse -> server (-> another server)
"""

import os
import statistics
import tempfile
from pathlib import Path

from harness import places, recorded
from harness.behind import Behind
from harness.case import ServerCase
from harness.databases import Ledger, MariaDB, PostgreSQL
from harness.files import when_unused
from harness.loops import mount_file
from harness.recorded import Fused
from harness.server import GIB, MIB, run
from harness.wait import until

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
KILLS = 20
# How long a server behind a gateway is stopped or cut off.
FAULT_SECONDS = 20
# Acknowledged commits before each kill: some seconds of load.
COMMITS = 150
# Of pgbench, where transactions are counted, and for how long.
CLIENTS = 32
TURN_SECONDS = 30
VOLUME_BYTES = GIB
# Larger than an empty database.
FULL_BYTES = 640 * MIB
LEFT_BYTES = 8 * MIB


class Databases:
    """A database on a volume, and the test that every kind of volume has to pass."""

    kind = None

    def setUp(self):
        if not LONG:
            self.skipTest("runs for minutes, in `make test-long`")
        recorded.needed()
        super().setUp()
        # A directory that a database of another user can access, for its socket and files.
        self.place = Path(tempfile.mkdtemp(prefix="aerogel-db-", dir="/var/tmp"))
        self.addCleanup(places.discard, self.place)
        self.place.chmod(0o755)
        self.mount = self.place / "fs"
        self.mount.mkdir()
        (self.place / "own").mkdir()
        self.database = self.kind(self.place / "own", self.mount)
        self.addCleanup(self.detach)
        self.addCleanup(self.database.kill)
        self.ledger, self.fused = Ledger(), None

    def attach(self, server, fresh=False):
        """Mounts the volume, and starts the database on it."""
        self.fused = Fused(self, server.uri("db"), "volume")
        if fresh:
            run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", self.fused.path)
        else:
            # As at the start of a machine: replays the journal, and repairs what an aborted one left.
            done = run("/usr/sbin/e2fsck", "-p", self.fused.path, check=False, seconds=300)
            self.assertIn(done.returncode, (0, 1), f"e2fsck: {done.stdout}{done.stderr}")
        run("mount", "-t", "ext4", self.fused.path, self.mount)
        self.database.initialise() if fresh else self.database.start()

    def detach(self):
        """Unmounts; the database has ended already."""
        if os.path.ismount(self.mount):
            when_unused("umount", self.mount)
        if self.fused:
            self.fused.detach()

    def work(self, commits=COMMITS):
        """Waits until so many more commits are acknowledged."""
        self.database.begin(self.ledger)
        target = len(self.ledger.acknowledged) + commits
        alive = lambda: any(thread.is_alive() for thread in self.ledger.threads)
        until(
            f"{commits} commits",
            lambda: len(self.ledger.acknowledged) >= target,
            300,
            gone=lambda: not alive() and f"all clients ended:\n{self.database.tail()}",
        )

    def clients_end(self, seconds=300):
        """Waits until every client got an error: none hangs, and none gets a success."""
        until("the clients to meet errors", lambda: not any(t.is_alive() for t in self.ledger.threads), seconds)

    def crash(self):
        """Kills everything above the volume."""
        self.ledger.stop()
        self.database.kill()
        self.detach()

    def check(self):
        """Every acknowledged commit is there, and the database's own checks find no error."""
        table = "ledger" if self.kind is PostgreSQL else "test.ledger"
        found = {int(line) for line in self.database.sql(f"SELECT id FROM {table}").stdout.split()}
        lost = self.ledger.acknowledged - found
        noted = len(self.ledger.acknowledged)
        self.assertEqual(sorted(lost)[:20], [], f"{len(lost)} of {noted} acknowledged commits are lost")
        self.assertLessEqual(max(found, default=0), self.ledger.last, "there is a commit that nobody made")
        self.assertEqual(self.database.problems(), [])

    def begin(self, *options, **more):
        """A server with an empty database."""
        server = self.serve(cache="64MiB", **more)
        server.create("db", str(VOLUME_BYTES), *options)
        self.attach(server, fresh=True)
        return server

    def told(self, what):
        self.crash()
        print(f"        {what}: {len(self.ledger.acknowledged)} acknowledged commits, none lost", flush=True)

    def test_kill_9(self):
        server = self.begin("--sparse")
        for round in range(KILLS):
            self.work()
            # Either the server alone is killed, or the server with everything on it.
            server.kill()
            if round % 2 == 0:
                self.clients_end()
            self.crash()
            server.start()
            self.attach(server)
            self.check()
        self.told(f"{KILLS} rounds of kill -9")


class OnDisks(Databases):
    """The volume is on a disk of the server, which fails."""

    def test_a_full_disk(self):
        disk, at = self.place / "small.img", self.place / "small"
        at.mkdir()
        with open(disk, "wb") as file:
            file.truncate(FULL_BYTES)
        run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", disk)
        mount_file(disk, at)
        self.addCleanup(lambda: os.path.ismount(at) and when_unused("umount", at))
        server = self.serve(cache="64MiB")
        self.addCleanup(server.kill)
        server.cli("disk", "add", "small", at / "disk", "--force")
        server.create("db", str(VOLUME_BYTES), "--sparse", "--disk", "small")
        self.attach(server, fresh=True)
        self.work()
        # Another file takes nearly all of the remaining space.
        ballast = at / "ballast"
        free = os.statvfs(at).f_bavail * os.statvfs(at).f_frsize
        run("fallocate", "-l", free - LEFT_BYTES, ballast)
        self.clients_end(900)
        ballast.unlink()
        self.crash()
        server.restart()
        self.attach(server)
        self.check()
        self.work()
        self.told("a full disk")

    def test_io_errors(self):
        server = self.begin("--sparse")
        for fault in ("error write 20%", "error flush 50%", "error write+flush 100%"):
            self.work()
            server.cli("disk", "fault", "add", "default", fault, "--yes")
            self.clients_end()
            self.crash()
            server.cli("disk", "fault", "clear", "default")
            # The data that could not be written is kept and can be written now; every flush would report a loss.
            server.open("db").flush()
            self.attach(server)
            self.check()
        self.told("I/O errors")

    def test_a_disk_pulled_away(self):
        image, socket, at = self.place / "pulled.img", self.place / "pulled.sock", self.place / "pulled"
        at.mkdir()
        with open(image, "wb") as file:
            file.truncate(2 * GIB)
        run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)

        def plug():
            socket.unlink(missing_ok=True)
            pid = self.place / "nbdkit.pid"
            run("nbdkit", "-U", socket, "-P", pid, "file", image)
            drive = Fused(self, f"nbd+unix:///?socket={socket}", "drive")
            run("/usr/sbin/e2fsck", "-p", drive.path, check=False, seconds=300)
            run("mount", "-t", "ext4", drive.path, at)
            return int(pid.read_text()), drive

        pid, drive = plug()
        server = self.serve(cache="64MiB", data=at / "data")
        server.create("db", str(VOLUME_BYTES), "--sparse")
        self.attach(server, fresh=True)
        for _ in range(3):
            self.work()
            os.kill(pid, 9)
            self.clients_end()
            self.crash()
            server.kill()
            when_unused("umount", at)
            drive.detach()
            pid, drive = plug()
            server.start()
            self.attach(server)
            self.check()
        self.told("a disk pulled away")
        server.kill()
        when_unused("umount", at)
        drive.detach()
        os.kill(pid, 15)


class OnPostgreSQL(OnDisks, ServerCase):
    """PostgreSQL with pgbench."""

    kind = PostgreSQL


class OnMariaDB(OnDisks, ServerCase):
    """MariaDB with sysbench."""

    kind = MariaDB


class OffLoaded(Databases, ServerCase):
    """The volume is on a slow disk, whose writes go to a store on another one. `test_kill_9` kills it in peaks."""

    kind = PostgreSQL

    def begin(self, *_):
        server = self.serve(cache="64MiB")
        server.cli("disk", "add", "hdd", "sim:cheetah-15k5", "--size", "4GiB")
        server.cli("store", "create", "spare", "--disk", "default", "--size", "2GiB")
        server.create("db", str(VOLUME_BYTES), "--disk", "hdd")
        server.cli("offload", "enable", "hdd", "--store", "spare")
        self.attach(server, fresh=True)
        return server

    def test_transactions_with_and_without_a_store(self):
        server = self.begin()
        shown = lambda: server.json("offload", "show", "hdd")
        home = lambda: until("its data to be home", lambda: shown()["offloaded_bytes"] == 0, 300)
        found = {True: [], False: []}
        for with_store in (True, False, True, False, True, False):
            # Each commit waits for its writes, so few are outstanding at a time: less than the default of 16. And a
            # threshold that no load reaches.
            threshold = "1" if with_store else "1000000"
            server.cli("offload", "enable", "hdd", "--base-threshold", threshold)
            before = shown()["written_bytes"]
            found[with_store].append(self.database.transactions(CLIENTS, TURN_SECONDS))
            self.assertEqual(shown()["written_bytes"] > before, with_store)
            home()
        with_, without = (statistics.median(found[with_store]) for with_store in (True, False))
        rates = f"{with_:.0f} transactions a second with a store, {without:.0f} without"
        print(f"        pgbench, {CLIENTS} clients: {rates}", flush=True)
        self.assertGreater(with_, without)


class ThroughAGateway(Databases, ServerCase):
    """The volume is an export of another server. `test_kill_9` kills the gateway."""

    kind = PostgreSQL

    def begin(self, *_, behind="ours"):
        self.behind = Behind(self, behind, VOLUME_BYTES)
        server = self.serve(name="gateway", cache="64MiB")
        self.behind.forwarded(server, "db")
        self.attach(server, fresh=True)
        return server

    def more(self):
        """Waits until more commits are acknowledged; no client gets an error."""
        target = len(self.ledger.acknowledged) + COMMITS // 3
        ended = lambda: not all(thread.is_alive() for thread in self.ledger.threads)
        until(
            "the database to go on",
            lambda: len(self.ledger.acknowledged) >= target,
            120,
            gone=lambda: ended() and f"a client ended:\n{self.database.tail()}",
        )

    def faults(self, behind):
        server = self.begin(behind=behind)
        self.database.begin(self.ledger)
        for turn in range(KILLS):
            self.behind.faults(turn, FAULT_SECONDS, self.more)
        reconnects = server.json("volume", "show", "db")["upstream"]["reconnects"]
        self.assertGreaterEqual(reconnects, KILLS + KILLS // 2)
        self.crash()
        server.kill()
        server.start()
        self.attach(server)
        self.check()
        self.told(f"{KILLS} rounds of faults of {behind}")

    def test_faults_of_our_server(self):
        self.faults("ours")

    def test_faults_of_nbdkit(self):
        self.faults("nbdkit")

    def test_faults_of_qemu_nbd(self):
        self.faults("qemu-nbd")
