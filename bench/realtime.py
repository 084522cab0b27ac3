#!/usr/bin/python3
"""Checks that a simulated disk is on time (`make bench-realtime`): the same load on a running server and in virtual
time.

The server has one core. The client has the other one, which another process keeps busy all the time. Required: requests
per second within 5 % of virtual time, and 99 % of the completions at most 100 us late.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("AEROGEL_BIN", str(TARGET / "release" / "aerogel"))

from harness.server import GIB, Server, run  # noqa: E402

from machine import CLIENT_CORE, SERVER_CORE, pinned  # noqa: E402
from servers import move  # noqa: E402

LAB = TARGET / "release" / "aerogel-lab"
PRESET = "barracuda-7200.9"
SIZE = 40 * GIB
RATE_OFF_MAX = 0.05
LATE_PART_MAX = 0.01
LATE_SECONDS = 1e-4
DEPTHS = (1, 2, 4, 8, 16)


def replayed(depth, seconds, seed, *where):
    """Requests per second of uniform random 4 KiB reads."""
    load = f"rand:area={SIZE // GIB}GiB,depth={depth}"
    command = [LAB, "replay", "--load", load, "--limit", f"{seconds}s", "--seed", seed, "--json", *where]
    return json.loads(run(*command, seconds=10 * seconds, preexec_fn=pinned(CLIENT_CORE)).stdout)["requests_per_second"]


def lateness(server):
    """(completions, those later than 100 us) of the simulated disk so far, for both causes, clock and file."""
    count = late = 0
    for key, value in server.metrics().items():
        if not key.startswith("aerogel_simulated_completion_late_seconds") or 'disk="hdd"' not in key:
            continue
        le = re.search(r'le="([^"]+)"', key)
        if "_count{" in key:
            count, late = count + value, late + value
        elif le and le[1] == f"{LATE_SECONDS:.4f}":
            late -= value
    return count, late


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="how long each depth is measured (30)")
    parser.add_argument("--idle", action="store_true", help="leave the client's core to the client")
    options = parser.parse_args()
    missed = False
    print(
        "| outstanding | in real time, 1/s | in virtual time, 1/s | ratio | completions | later than 100 us | |\n|"
        + " --- |" * 7
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=TARGET) as directory,
        Server(directory, cache="16MiB") as server,
    ):
        move(server.pid, SERVER_CORE)
        server.cli("disk", "add", "hdd", f"sim:{PRESET}", "--size", str(SIZE), "--policy", "none")
        uri = server.create("v", str(SIZE), "--disk", "hdd")
        busy = (
            None
            if options.idle
            else subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=pinned(CLIENT_CORE))
        )
        try:
            for depth in DEPTHS:
                before = lateness(server)
                real = replayed(depth, options.seconds, depth, "--uri", uri)
                count, late = (b - a for a, b in zip(before, lateness(server)))
                virtual = replayed(depth, options.seconds, depth, "--disk", PRESET)
                holds = abs(real / virtual - 1) <= RATE_OFF_MAX and late <= LATE_PART_MAX * count
                missed |= not holds
                cells = [
                    depth,
                    f"{real:.1f}",
                    f"{virtual:.1f}",
                    f"{real / virtual:.3f}",
                    f"{count:.0f}",
                    f"{late / count:.2%}",
                ]
                print("| " + " | ".join(map(str, [*cells, "holds" if holds else "**misses**"])) + " |", flush=True)
        finally:
            if busy:
                busy.kill()
                busy.wait()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
