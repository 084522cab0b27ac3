"""Databases with clients that record every acknowledged commit.

Each database has its own directory, socket and processes; clusters of the system are not touched.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
import unittest
from pathlib import Path

from .server import run
from .wait import until

START_SECONDS = 120
WRITERS = 3


class Ledger:
    """Clients that insert numbers one by one, and record each when the database has acknowledged the commit."""

    def __init__(self):
        self.acknowledged = set()
        self.last = 0
        self.lock = threading.Lock()

    def next(self):
        """A number that is not in use."""
        with self.lock:
            self.last += 1
            return self.last

    def write(self, database):
        """Starts the clients; each ends when the database fails or ends."""
        self.clients = [subprocess.Popen(database.client(), **PIPES) for _ in range(WRITERS)]
        self.threads = [threading.Thread(target=self._one, args=(client, database)) for client in self.clients]
        for thread in self.threads:
            thread.start()

    def _one(self, client, database):
        try:
            while True:
                number = self.next()
                client.stdin.write(database.insert(number))
                client.stdin.flush()
                # The client prints the number after the commit; it prints nothing for one that failed.
                if client.stdout.readline().strip() != str(number):
                    break
                self.acknowledged.add(number)
        except (OSError, ValueError):
            pass

    def stop(self):
        """Stops the clients."""
        for client in self.clients:
            client.kill()
        for thread in self.threads:
            thread.join(60)
        for client in self.clients:
            client.communicate()


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


class Database:
    """The common part: `mount` is the file system on the volume, `place` a directory of the host."""

    def __init__(self, place, mount):
        self.place, self.data = Path(place), Path(mount) / "data"
        self.process = self.load = None
        self.log = self.place / "database.log"

    def start(self):
        """Starts it and waits until its recovery has ended."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        ended = lambda: self.process.poll() is not None and f"it ended:\n{self.tail()}"
        answers = lambda: self.sql("SELECT 1", check=False).returncode == 0
        until("the database to be ready", answers, START_SECONDS, gone=ended)

    def begin(self, ledger):
        """Starts the load and the ledger."""
        with open(self.log, "ab") as log:
            self.load = subprocess.Popen(
                [str(part) for part in self.load_command()], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        ledger.write(self)

    def kill(self):
        """Kills the processes of the database at once, as in a crash, and its load with them."""
        for process in (self.load, self.process):
            if process and process.poll() is None:
                # PostgreSQL's processes have groups of their own, and may be waiting for the disk.
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                process.kill()
                for child in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(child), signal.SIGKILL)
        for process in (self.load, self.process):
            if process:
                process.wait()
        self.load = self.process = None

    def tail(self):
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class PostgreSQL(Database):
    """With pgbench in addition to the ledger. It has to run as its own user."""

    def __init__(self, place, mount):
        super().__init__(place, mount)
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        if not found or not shutil.which("pgbench", path=str(found[-1])):
            raise unittest.SkipTest("needs PostgreSQL with pgbench: run `scripts/setup long`")
        self.bin = found[-1]
        self.user = pwd.getpwnam("postgres")
        os.chown(self.place, self.user.pw_uid, self.user.pw_gid)
        self.connect = ["-h", str(self.place), "-U", "postgres", "-d", "postgres"]

    def own(self, tool, *options):
        """A command, run as its user."""
        user = [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        return ["setpriv", *user, self.bin / tool, *options]

    def initialise(self):
        """Creates an empty database with checksums, a ledger, and the tables of pgbench."""
        self.data.mkdir(mode=0o700)
        os.chown(self.data, self.user.pw_uid, self.user.pw_gid)
        run(*self.own("initdb", "-k", "-A", "trust", "-U", "postgres", "-D", self.data), cwd="/", seconds=300)
        self.start()
        self.sql("CREATE EXTENSION amcheck; CREATE TABLE ledger (id bigint PRIMARY KEY)")
        run(self.bin / "pgbench", "-i", "-q", "-s", "2", *self.connect, seconds=300)

    def command(self):
        options = ["-D", self.data, "-k", self.place, "-h", "", "-c", "max_wal_size=64MB"]
        return [str(part) for part in self.own("postgres", *options)]

    def sql(self, text, check=True):
        return run(self.bin / "psql", *self.connect, "-qAtX", "-c", text, check=check, seconds=120)

    def client(self):
        return [str(self.bin / "psql"), *self.connect, "-qAtX", "-v", "ON_ERROR_STOP=1"]

    def insert(self, number):
        return f"INSERT INTO ledger VALUES ({number});\n\\echo {number}\n"

    def load_command(self):
        return [self.bin / "pgbench", "-n", "-c", "4", "-T", "3600", *self.connect]

    def transactions(self, clients, seconds):
        """Transactions a second of pgbench."""
        command = [self.bin / "pgbench", "-n", "-c", clients, "-j", "1", "-T", seconds, *self.connect]
        done = run(*command, seconds=seconds + 120)
        return float(re.search(r"tps = ([0-9.]+)", done.stdout).group(1))

    def problems(self):
        """Errors that its own checks find."""
        run(self.bin / "pg_amcheck", "--heapallindexed", *self.connect, seconds=300)
        sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),"
            " (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
        ).stdout.strip()
        return [] if len(set(sums.split("|"))) == 1 else [f"pgbench's four sums differ: {sums}"]


# MariaDB warns about records that are not removed yet, which it does in the background after a recovery. This was also
# seen on a plain directory.
UNPURGED = "check\tWarning\tInnoDB: Clustered index record not found"
PURGE_SECONDS = 60


class MariaDB(Database):
    """With sysbench in addition to the ledger."""

    def __init__(self, place, mount):
        super().__init__(place, mount)
        for tool in ("mariadbd", "mariadb-install-db", "mariadb", "sysbench"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"needs {tool}: run `scripts/setup long`")
        self.socket = self.place / "m.sock"
        self.bench = ["sysbench", "oltp_write_only", "--db-driver=mysql", f"--mysql-socket={self.socket}"]
        self.bench += ["--mysql-user=root", "--mysql-db=test", "--tables=2", "--table-size=10000"]
        self.bench += ["--threads=4", "--time=3600"]

    def initialise(self):
        """Creates an empty database, a ledger, and the tables of sysbench."""
        options = ["--no-defaults", f"--datadir={self.data}", "--auth-root-authentication-method=normal", "--user=root"]
        run("mariadb-install-db", *options, seconds=300)
        self.start()
        self.sql("CREATE DATABASE IF NOT EXISTS test; CREATE TABLE test.ledger (id BIGINT PRIMARY KEY) ENGINE=InnoDB")
        run(*self.bench, "prepare", seconds=300)

    def command(self):
        return [
            shutil.which("mariadbd"),
            "--no-defaults",
            "--user=root",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.place / 'm.pid'}",
            "--skip-networking",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-log-file-size=16M",
            # Large enough for a recovery in one pass. With 32 MiB it needs several, and then one of some 300 crashes of
            # MariaDB 10.11.19 on a plain directory left a corrupt index.
            "--innodb-buffer-pool-size=256M",
        ]

    def sql(self, text, check=True):
        options = ["--no-defaults", f"--socket={self.socket}", "-uroot", "-NB"]
        return run("mariadb", *options, "-e", text, check=check, seconds=120)

    def client(self):
        return ["mariadb", "--no-defaults", f"--socket={self.socket}", "-uroot", "-NB", "-n", "test"]

    def insert(self, number):
        return f"INSERT INTO ledger VALUES ({number});\nSELECT {number};\n"

    def load_command(self):
        return [*self.bench, "--mysql-ignore-errors=1213,1205,1020", "run"]

    def problems(self):
        """Errors that its own checks find, after the records are removed that a recovery leaves to the background."""

        def complaints():
            said = self.sql("CHECK TABLE test.ledger, test.sbtest1, test.sbtest2 EXTENDED").stdout.splitlines()
            return [line for line in said if not line.endswith("status\tOK")]

        purged = lambda: not any(UNPURGED in line for line in complaints())
        until("MariaDB to purge what its recovery left", purged, PURGE_SECONDS)
        return complaints()
