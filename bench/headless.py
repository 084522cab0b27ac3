#!/usr/bin/python3
"""What three tenants keep of a third each on this machine's own disk (`make bench-headless`), which is assumed to be an
SSD.

- The clients: one 4 KiB read at a time; 64 at a time (or 64 writes); 1 MiB sequential reads or writes. Each has a
  volume of its own that is far larger than the cache and was written in full before. The disk is probed first, so the
  costs of its requests are measured.
- Each runs alone, then all together, repeatedly, since the disk's own rate varies; the medians count. All clients run
  on one core and the server on the other, so three busy clients share these cores, too, not only the disk.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("AEROGEL_BIN", str(TARGET / "release" / "aerogel"))

from harness.server import GIB, Server  # noqa: E402

from insulation import Client  # noqa: E402
from machine import SERVER_CORE, objections, warn  # noqa: E402
from servers import fill, move  # noqa: E402

SIZE = 4 * GIB
R = 0.9
P99_TIMES_MAX = 5
PROBE_SECONDS = 180

POLITE = ("1 outstanding", ["--rw=randread", "--bs=4k", "--iodepth=1"])
DEEP = ("64 outstanding", ["--rw=randread", "--bs=4k", "--iodepth=64"])
STREAM = ("1 MiB stream", ["--rw=read", "--bs=1m", "--iodepth=4"])
MIXES = {
    "readers": (POLITE, DEEP, STREAM),
    "random writer": (POLITE, ("64 writes outstanding", ["--rw=randwrite", "--bs=4k", "--iodepth=64"]), STREAM),
    "stream writer": (POLITE, DEEP, ("1 MiB writes", ["--rw=write", "--bs=1m", "--iodepth=4"])),
}


def median(runs, of):
    """The median of what `of` returns for each run."""
    return statistics.median(of(run) for run in runs)


def measure(mix, targets, seconds, rounds):
    """For each tenant, the rates alone and together: [([alone], [together])]."""
    runs = [([], []) for _ in mix]
    start = lambda at: Client(mix[at][1], targets[at], None, seconds, SIZE)
    for _ in range(rounds):
        for at, (alone, _) in enumerate(runs):
            alone.append(start(at).got())
        for (_, together), client in zip(runs, [start(at) for at in range(len(mix))]):
            together.append(client.got())
    return runs


def report(name, mix, runs):
    """Prints a mix in Markdown; returns whether the claim holds."""
    print(f"### {name}\n\n| tenant | alone | together | of its third | p99 alone | p99 together | |\n|" + " --- |" * 7)
    rate = lambda got: got.requests_per_second
    held, total = True, 0
    for (tenant, _), (alone, together) in zip(mix, runs):
        before, after = median(alone, rate), median(together, rate)
        calm, hurried = (median(of, lambda got: got.p99_ms) for of in (alone, together))
        total += after / before
        good = after / before >= R / 3 and (tenant != POLITE[0] or hurried <= P99_TIMES_MAX * calm)
        held &= good
        cells = [
            tenant,
            f"{before:.0f}/s",
            f"{after:.0f}/s",
            f"{3 * after / before:.2f}",
            f"{calm:.2f} ms",
            f"{hurried:.2f} ms",
        ]
        print("| " + " | ".join([*cells, "holds" if good else "**misses**"]) + " |")
    held &= total >= R
    print(
        f"\nsum of the fractions: {total:.2f} ({'holds' if total >= R else '**misses**'}: at least {R})\n", flush=True
    )
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="how long each run counts, after 4 s of warming up (5)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each tenant is measured alone, and all together (3)"
    )
    parser.add_argument(
        "--only", action="append", choices=list(MIXES), metavar="MIX", help=f"one mix, or several: {', '.join(MIXES)}"
    )
    options = parser.parse_args()
    TARGET.mkdir(exist_ok=True)
    fatal, remarks = objections(os.environ["AEROGEL_BIN"], TARGET, time.sleep)
    for text in [*fatal, *remarks]:
        warn(f"warning: {text}")
    if fatal:
        return 1
    held = True
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=TARGET) as directory,
        Server(directory, cache="64MiB") as server,
    ):
        warn("probing the disk")
        server.cli("disk", "probe", "default", seconds=PROBE_SECONDS)
        move(server.pid, SERVER_CORE)
        targets = []
        for name in ("a", "b", "c"):
            warn(f"writing volume {name}")
            targets.append(server.create(name, str(SIZE), "--share", "1/3", "--prealloc", "full"))
            fill(targets[-1], SIZE)
        for name, mix in MIXES.items():
            if not options.only or name in options.only:
                warn(f"{name}: each alone, then together, {options.rounds} times")
                held &= report(name, mix, measure(mix, targets, options.seconds, options.rounds))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
