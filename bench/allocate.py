#!/usr/bin/python3
"""Allocation for real (`make bench-allocate`): `plan` against equal division and mrc+disk, as clients see it.

    fio `zipf`, `small`          ─► gateway 1 ─┐
    fio `mixed`, MariaDB `db`    ─► gateway 2 ─┴► server ─► simulated disk with heads, in real time

- MariaDB is on ext4 on a loop device over nbdfuse, with O_DIRECT and a small buffer pool; sysbench is its client.
- All methods plan from the same evidence, which is measured once under equal division. Then they take turns. Each turn
  sends an allocation to the servers as `allocate apply` does, starts the loads, lets caches fill, and measures.
- Latencies are means of reads and writes: as the gateways count them, and as fio and sysbench see them. Flushes are
  only in those of sysbench's transactions.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("AEROGEL_BIN", str(TARGET / "release" / "aerogel"))

from harness import loops  # noqa: E402
from harness.databases import MariaDB  # noqa: E402
from harness.recorded import Fused  # noqa: E402
from harness.server import Server, UnixHTTP, run  # noqa: E402
from harness.wait import until  # noqa: E402

DRIVE, DISK = "sim:cheetah-15k5", "1GiB"
# Half of the server's is for its other disk.
SERVER_CACHE, GATEWAY_CACHE = "64MiB", "16MiB"
METHODS = ("equal", "mrc+disk", "ours")
# Requests of 64 KiB: caches fill, and curves forget first references, in a minute or two of a disk with heads.
FIO = {
    "zipf": ["--rw=randread", "--size=48m", "--random_distribution=zipf:0.95", "--thinktime=5000"],
    "small": ["--rw=randread", "--size=12m", "--thinktime=10000"],
    "mixed": ["--rw=randrw", "--rwmixread=80", "--size=24m", "--random_distribution=zipf:0.8", "--thinktime=10000"],
}
SIZES = {"zipf": "64MiB", "small": "64MiB", "mixed": "64MiB", "db": "512MiB"}
GATEWAYS = {"zipf": 0, "small": 0, "mixed": 1, "db": 1}
ROWS = 150_000
PLAN_SECONDS = 30
CURVES_SECONDS = 120


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Database(MariaDB):
    """MariaDB whose data does not fit into its buffer pool, and is in no cache of the kernel."""

    def __init__(self, place, mount):
        super().__init__(place, mount)
        self.bench = ["sysbench", "oltp_read_write", "--db-driver=mysql", f"--mysql-socket={self.socket}"]
        self.bench += ["--mysql-user=root", "--mysql-db=test", "--tables=1", f"--table-size={ROWS}", "--threads=2"]
        self.bench += ["--rand-type=pareto", "--mysql-ignore-errors=1213,1205,1020"]

    def command(self):
        pool = ["--innodb-buffer-pool-size=8M", "--innodb-buffer-pool-chunk-size=1M"]
        return [*super().command(), *pool, "--innodb-flush-method=O_DIRECT"]

    def latency(self, seconds):
        """Mean latency of transactions."""
        done = run(*self.bench, f"--time={seconds}", "run", seconds=seconds + 120)
        return float(re.search(r"avg: +([0-9.]+)", done.stdout).group(1)) / 1e3


class World:
    """The servers with their volumes and the database; `stack` ends all of them."""

    def __init__(self, directory, stack):
        self.directory, self.stack = Path(directory), stack
        self.server = self.serve("server", SERVER_CACHE)
        self.gateways = [self.serve(f"gateway{number}", GATEWAY_CACHE) for number in (1, 2)]
        self.server.cli("disk", "add", "hdd", DRIVE, "--size", DISK)
        for name, size in SIZES.items():
            self.server.create(name, size, "--disk", "hdd", "--share", "auto", "--cache", "auto")
            at = self.gateways[GATEWAYS[name]]
            at.cli("volume", "create", name, "--from", self.server.uri(name), "--cache", "auto")
        self.database = self.start_database()

    def serve(self, name, cache):
        server = Server(self.directory, name=name, cache=cache)
        self.stack.callback(server.kill)
        # Ctrl-C is for this program, which ends the servers last.
        return server.start(start_new_session=True)

    def start_database(self):
        case = types.SimpleNamespace(scratch=self.directory, addCleanup=self.stack.callback)
        # nbdfuse inherits that Ctrl-C is ignored: it is needed until the file system is unmounted.
        interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
        device = Fused(case, self.uri("db"), "db")
        signal.signal(signal.SIGINT, interrupted)
        self.stack.callback(loops.detach, device.path)
        run(loops.LOSETUP, "--direct-io=on", device.path)
        run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", device.path)
        mount, place = self.directory / "mount", self.directory / "own"
        mount.mkdir(), place.mkdir()
        run("mount", "-t", "ext4", device.path, mount)
        self.stack.callback(run, "umount", mount, check=False)
        database = Database(place, mount)
        self.stack.callback(database.kill)
        say(f"MariaDB fills a table of {ROWS} rows")
        database.initialise()
        return database

    def spawn(self, command):
        """A process that ends with this program."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(command, **quiet, start_new_session=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def uri(self, name):
        return self.gateways[GATEWAYS[name]].uri(name)

    def allocate(self, verb, *more, check=True):
        named = [f"--gateway={gateway.data}" for gateway in self.gateways]
        command = [self.server.binary, "allocate", verb, f"--server={self.server.data}", *named, *more]
        return run(*command, "--json", check=check, seconds=PLAN_SECONDS + 60)

    def plan(self):
        """What each method would do, what the model predicts for it, and what was measured for the evidence."""
        plan = json.loads(self.allocate("plan", f"--window={PLAN_SECONDS}s").stdout)
        if plan["unplanned"]:
            sys.exit(f"tenants without a plan: {plan['unplanned']}")
        ours = {tenant["name"]: tenant["planned"] for tenant in plan["tenants"]}
        measured = {tenant["name"]: tenant["measured_latency_seconds"] for tenant in plan["tenants"]}
        of = lambda baseline: {tenant["name"]: tenant for tenant in baseline["tenants"]}
        return {**{baseline["method"]: of(baseline) for baseline in plan["baselines"]}, "ours": ours}, measured

    def apply(self, allocation):
        """Sends an allocation of a plan to all servers."""
        for server in (self.server, *self.gateways):
            behind = lambda of: {"cache": of["cache_bytes"], "share": f"{of['share']:.9f}"}
            front = lambda of: {"cache": of["gateway_cache_bytes"]}
            part = behind if server is self.server else front
            disks = {name: disk for name, (disk, _) in loads(server).items()}
            put(server, [{"tenant": name, "disk": disk, **part(allocation[name])} for name, disk in disks.items()])

    def load(self, warm_up, seconds):
        """Starts fio for each tenant; returns the processes and their reports."""
        jobs = {}
        for name, how in FIO.items():
            report = self.directory / f"{name}.json"
            command = ["fio", f"--name={name}", "--ioengine=nbd", f"--uri={self.uri(name)}", "--bs=64k", "--thread"]
            command += ["--norandommap", "--time_based", f"--ramp_time={warm_up}", f"--runtime={seconds}", *how]
            command += ["--output-format=json", f"--output={report}"]
            jobs[name] = self.spawn(command), report
        return jobs

    def counted(self):
        """The counters of each tenant, at the server and at its gateway."""
        by = {"server": loads(self.server), "gateway": loads(self.gateways[0]) | loads(self.gateways[1])}
        return {name: {at: by[at][name][1] for at in by} for name in SIZES}

    def measure(self, warm_up, seconds):
        """Mean latency of each tenant, as counted by its gateway and as its client sees it."""
        jobs = self.load(warm_up, seconds)
        self.database.latency(warm_up)
        before = self.counted()
        client = {"db": self.database.latency(seconds)}
        after = self.counted()
        for name, (process, report) in jobs.items():
            if process.wait(60) != 0:
                sys.exit(f"fio of {name} failed: {report.read_text()[-2000:]}")
            text = report.read_text()
            (job,) = json.loads(text[text.index("{") :])["jobs"]
            of = [(job[kind]["total_ios"], job[kind]["clat_ns"]["mean"]) for kind in ("read", "write")]
            client[name] = sum(count * mean for count, mean in of) / sum(count for count, _ in of) / 1e9
        minus = lambda then, now: {key: then[key] - now[key] for key in then}
        did = {name: {at: minus(after[name][at], before[name][at]) for at in after[name]} for name in SIZES}
        mean = lambda load: (load["read_seconds"] + load["write_seconds"]) / (load["reads"] + load["writes"])
        return {"gateway": {name: mean(did[name]["gateway"]) for name in SIZES}, "client": client, "counters": did}

    def plans_under_equal_division(self, seconds):
        """The plan of each method, and the latencies that were measured for the evidence."""
        jobs = self.load(0, seconds + CURVES_SECONDS + PLAN_SECONDS)
        transactions = self.spawn([*self.database.bench, "--time=3600", "run"])
        say("loads run until all tenants have curves")
        equal = lambda: self.allocate("plan", "--window=1s", "--method=equal", check=False)
        known = lambda done: done.returncode == 0 and not json.loads(done.stdout)["unplanned"]
        ended = lambda: next((f"fio of {name} ended" for name in jobs if jobs[name][0].poll() is not None), None)
        until("curves of all tenants", lambda: known(equal()), CURVES_SECONDS, gone=ended)
        self.allocate("apply", "--window=1s", "--method=equal")
        say(f"equal division is applied; after {seconds} s of load the plans are made")
        time.sleep(seconds)
        planned = self.plan()
        for process in (transactions, *(process for process, _ in jobs.values())):
            process.terminate()
            process.wait(60)
        return planned


def loads(server):
    """{tenant: (disk, counters)} of a server or a gateway."""
    status, body = server.get("/v1/evidence")
    assert status == 200, body
    disks = json.loads(body)["disks"]
    tenants = [(disk["disk"], of) for disk in disks for of in disk["tenants"]]
    return {of["tenant"]: (disk, of["load"]) for disk, of in tenants if of["tenant"] in SIZES}


def put(server, tenants):
    connection = UnixHTTP(server.data / "api.sock")
    headers = {"Host": "localhost", "Content-Type": "application/json"}
    connection.request("PUT", "/v1/allocation", json.dumps({"tenants": tenants}), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{server.data} refused {tenants}: {answer.read().decode()}")


def table(title, rows):
    """A table with a column for each method, in milliseconds."""
    print(f"\n| {title} | " + " | ".join(METHODS) + " |\n" + "|" + " --- |" * (len(METHODS) + 1))
    for name, of in rows.items():
        print(f"| {name} | " + " | ".join(of[method] for method in METHODS) + " |")


def spread(values):
    """The median; with several also the least and the most."""
    several = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{statistics.median(values):.3g}{several}"


def report(plans, measured, turns):
    """Prints the tables; returns the ratios."""
    mib = lambda of: f"{of['gateway_cache_bytes'] / 2**20:.1f} + {of['cache_bytes'] / 2**20:.1f} MiB, {of['share']:.3f}"
    table("gateway + server, share", {name: {m: mib(plans[m][name]) for m in METHODS} for name in SIZES})
    of = lambda method, view, name: [1e3 * turn[method][view][name] for turn in turns]
    total = lambda method: [sum(turn[method]["gateway"].values()) for turn in turns]
    rows = {name: {m: spread(of(m, "gateway", name)) for m in METHODS} for name in SIZES}
    rows["sum"] = {m: spread([1e3 * value for value in total(m)]) for m in METHODS}
    table("mean latency at the gateway, ms", rows)
    predicted = {name: {m: 1e3 * plans[m][name]["latency_seconds"] for m in METHODS} for name in SIZES}
    predicted["sum"] = {m: sum(predicted[name][m] for name in SIZES) for m in METHODS}
    table("predicted, ms", {name: {m: f"{row[m]:.3g}" for m in METHODS} for name, row in predicted.items()})
    shown = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in measured.items())
    print(f"\nWhile the evidence was measured (equal): {shown}; sum {1e3 * sum(measured.values()):.3g} ms")
    label = lambda name: f"{name}, transaction" if name == "db" else name
    table("as the client sees it, ms", {label(n): {m: spread(of(m, "client", n)) for m in METHODS} for n in SIZES})
    print()
    ratios = {}
    for other in METHODS[:-1]:
        ratios[other] = [ours / theirs for ours, theirs in zip(total("ours"), total(other))]
        expected = predicted["sum"]["ours"] / predicted["sum"][other]
        print(f"sum of latencies, ours / {other}: {spread(ratios[other])}; predicted {expected:.3g}")
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="how long each allocation is measured (60)")
    parser.add_argument("--warm-up", type=int, default=40, help="how long caches fill before that (40)")
    parser.add_argument("--evidence", type=int, default=150, help="how long loads run before the plans (150)")
    parser.add_argument("--pairs", type=int, default=2, help="how often the methods take turns (2)")
    parser.add_argument("--quick", action="store_true", help="20 s for each, one turn: whether it works, no figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was planned and measured")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.warm_up, options.evidence, options.pairs = 20, 20, 20, 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("interrupted"))
    turns = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp"))
        try:
            world = World(directory, stack)
        except unittest.SkipTest as missing:
            sys.exit(f"bench-allocate {missing}")
        plans, measured = world.plans_under_equal_division(options.evidence)
        for number in range(options.pairs):
            turns.append({})
            for method in METHODS:
                world.apply(plans[method])
                turns[-1][method] = world.measure(options.warm_up, options.seconds)
                means = turns[-1][method]["gateway"]
                shown = ", ".join(f"{name} {1e3 * mean:.3g} ms" for name, mean in means.items())
                say(f"turn {number + 1}, {method}: {shown}; sum {1e3 * sum(means.values()):.4g} ms")
    ratios = report(plans, measured, turns)
    if options.json:
        found = {"plans": plans, "evidence": measured, "turns": turns, "ratios": ratios}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
