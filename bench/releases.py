#!/usr/bin/python3
"""Compares this release with an earlier one, in turn, and the earlier one with itself to measure the noise.

For each piece of work three servers take turns: this release (A), the earlier one (B), and a second process of the
earlier one (C). A / B is the change, C / B is the variation without any change. All ratios are defined such that more
is better. The verdict: the geometric mean over all rows is at least 0.98, and no row's median is below 0.97 by more
than the spread, half of the range of C / B in that row.

bench/run.py lists what would make the figures meaningless. In addition, the servers use the policy `none`, so that a
disk that only one of the releases probes automatically is treated equally.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# The requirements for a change: the geometric mean, and each row without the noise.
MEAN_MIN, ROW_MIN = 0.98, 0.97


def build(revision):
    """The release binary of a revision, built in a separate worktree; or `revision` itself if it is a binary."""
    if os.access(revision, os.X_OK) and Path(revision).is_file():
        return Path(revision).resolve()
    named = ["git", "rev-parse", "--short", revision]
    commit = subprocess.run(named, cwd=ROOT, text=True, capture_output=True, check=True)
    tree = TARGET / "releases" / commit.stdout.strip()
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", tree, revision], cwd=ROOT, check=True)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(tree / "target")}
    build = ["cargo", "build", "--release", "--workspace", "--bin", "aerogel"]
    subprocess.run(build, cwd=tree, env=environment, check=True)
    return tree / "target" / "release" / "aerogel"


class Row:
    """One figure of one piece of work."""

    def __init__(self, work, figure, unit, pick, less_is_better=False):
        self.work, self.figure, self.unit, self.pick, self.less = work, figure, unit, pick, less_is_better
        self.values = []

    def add(self, runs):
        """Adds the figures of A, B and C in one turn."""
        self.values.append([self.pick(run) for run in runs])

    def ratios(self, which):
        """The ratios to B; above 1 is better."""
        return [(v[1] / v[which] if self.less else v[which] / v[1]) for v in self.values]

    @property
    def ratio(self):
        """The median of A / B."""
        return statistics.median(self.ratios(0))

    @property
    def spread(self):
        """Half the range of C / B."""
        noise = self.ratios(2)
        return (max(noise) - min(noise)) / 2

    @property
    def reached(self):
        """Whether the row is not slower than the noise explains."""
        return self.ratio >= ROW_MIN - self.spread

    def cells(self):
        """The cells of the table."""
        middle = lambda which: statistics.median(v[which] for v in self.values)
        noise = self.ratios(2)
        return [
            self.work, f"{self.figure}, {self.unit}", f"{middle(0):,.2f}", f"{middle(1):,.2f}", f"{self.ratio:.3f}",
            f"{min(self.ratios(0)):.2f}..{max(self.ratios(0)):.2f}", f"{min(noise):.2f}..{max(noise):.2f}",
            "" if self.reached else "SLOWER",
        ]


def servers(bench, binaries, size, cache):
    """One server of each binary, with a volume of `size` bytes and `cache` bytes of memory."""
    from servers import MIB, Ours

    def make(binary):
        bench.ours_count += 1
        made = Ours(bench.directory, size, f"{cache // MIB}MiB", name=f"ours{bench.ours_count}", binary=binary)
        made.server.cli("disk", "set", "default", "--policy", "none")
        return made

    return bench.taking_part(*[lambda binary=binary: make(binary) for binary in binaries])


def turns(bench, rows, *turn):
    """Runs each of `turn` once without measuring, then all of them in each of the turns; fills `rows`."""
    for one in turn:
        one()
    for pair in range(bench.pairs):
        # Each one is first equally often, so that the state in which a turn leaves the device does not favour one
        # of them.
        order = [(pair + i) % len(turn) for i in range(len(turn))]
        found = dict((i, turn[i]()) for i in order)
        for row in rows:
            row.add([found[i] for i in range(len(turn))])
        said = f"  {rows[0].work}: {pair + 1} of {bench.pairs}, {rows[0].ratios(0)[-1]:.2f}"
        print(said, file=sys.stderr, flush=True)
    return rows


def works(bench, binaries):
    """Name -> function that measures it and returns rows."""
    import work
    from load import fio
    from machine import SERVER_CORE

    rate = lambda name: Row(name, "requests a second", "1/s", lambda run: run.per_second)
    cpu = lambda name: Row(name, "server CPU a request", "us", lambda run: run.server_cpu_us, True)
    latency = lambda name: Row(name, "mean latency", "us", lambda run: run.latency_us, True)
    speed = lambda name: Row(name, "throughput", "MiB/s", lambda run: run.mib_per_second)

    def reading(size, cache, hits, depth1):
        def measure():
            what = f"random read {'hits' if hits else 'misses'}"
            with servers(bench, binaries, size, cache) as three:
                if hits:
                    for server in three:
                        fio(server.uri, "read", depth=8, bs="1m", size=size, amount=size)
                if depth1:
                    rows = [latency(f"{what}, depth 1, one core")]
                    return turns(bench, rows, *[bench.reading(server, 1, SERVER_CORE, hits) for server in three])
                rows = [rate(f"{what}, depth 32"), cpu(f"{what}, depth 32")]
                return turns(bench, rows, *[bench.reading(server, 32, hits=hits) for server in three])

        return measure

    def writing():
        with servers(bench, binaries, bench.miss_bytes, work.PARTITION) as three:
            one = lambda s: lambda: fio(s.uri, "randwrite", depth=32, size=s.size, amount=bench.write_bytes, pid=s.pid)
            name = "random writes and a flush, depth 32"
            return turns(bench, [rate(name), cpu(name)], *map(one, three))

    def sequential(rw, what):
        def measure():
            with servers(bench, binaries, bench.miss_bytes, work.PARTITION) as three:
                one = lambda s: lambda: fio(s.uri, rw, depth=8, bs="1m", size=s.size, amount=s.size, pid=s.pid)
                return turns(bench, [speed(what)], *map(one, three))

        return measure

    hot, large = work.HOT_BYTES, bench.miss_bytes
    return {
        "hits": reading(hot, hot * 4, True, False),
        "misses": reading(large, work.PARTITION, False, False),
        "latency-hits": reading(hot, hot * 4, True, True),
        "latency-misses": reading(large, work.PARTITION, False, True),
        "writes": writing,
        "sequential-reads": sequential("read", "1 MiB sequential reads, depth 8"),
        "sequential-writes": sequential("write", "1 MiB sequential writes and a flush, depth 8"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the earlier release: a git revision, or a binary")
    parser.add_argument("--only", action="append", metavar="NAME", help="one piece of work, or several")
    parser.add_argument("--pairs", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--quick", action="store_true", help="shorter runs over less data: a first look")
    options = parser.parse_args()
    now = TARGET / "release" / "aerogel"
    os.environ.setdefault("AEROGEL_BIN", str(now))
    import machine
    import report
    import work

    base = build(options.base)
    fatal, remarks = machine.objections(now, TARGET, time.sleep)
    for text in [*remarks, *fatal]:
        print(f"warning: {text}", file=sys.stderr)
    if fatal:
        return 1
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=TARGET) as directory:
        bench = work.Bench(Path(directory), options.pairs, options.quick)
        for name, measure in works(bench, [now, base, base]).items():
            if not options.only or name in options.only:
                rows += measure()
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.describe(TARGET).items()))
    head = ["work", "figure", "now", "base", "now/base", "of turns", "base/base", ""]
    print(report.aligned([head, *(row.cells() for row in rows)]))
    mean = statistics.geometric_mean(row.ratio for row in rows)
    slower = sum(not row.reached for row in rows)
    print(f"geometric mean {mean:.3f} (at least {MEAN_MIN}), {slower} rows slower than noise explains")
    return 0 if mean >= MEAN_MIN and all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
