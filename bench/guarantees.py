#!/usr/bin/python3
"""Guarantees on a running server, under `insulated` and under token buckets (`make bench-guarantees`).

    five fio clients by NBD ── five volumes, 1/5 of the disk each, the same guarantee ── sim:barracuda-7200.9, real time

- Each client reads for a while in runs of one length, then of another: 64 requests in a row, 8, or one. Random reads do
  not fit into 1/5 of the disk, the rest does. The clients are in different phases at the same time.
- The policies take turns, each with a server of its own. The server counts windows: the time for the bytes of 15 s of
  the guarantee. It says itself which of the missed ones fitted into the share (avoidable) and which did not
  (fundamental).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault(
    "AEROGEL_BIN", str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "aerogel")
)

from harness.server import GIB, Server  # noqa: E402

from machine import CLIENT_CORE, SERVER_CORE, pinned  # noqa: E402
from servers import move  # noqa: E402

PRESET = "barracuda-7200.9"
SIZE = 16 * GIB
CLIENTS = 5
GUARANTEE = "5MiB/s"
DEPTH = 16
PHASE_SECONDS = 20
# Reads of 32 KiB in a row before the client turns to another place. One of six phases has random reads.
RUNS = (64, 8, 64, 1, 8, 64)
POLICIES = ("insulated", "token-bucket", "token-bucket:1.2", "token-bucket:1.5")
OUTCOMES = ("met", "no-demand", "fundamental", "avoidable")


def client(uri, first, seconds):
    """fio with its phases one after the other, the first of them by number."""
    command = ["fio", "--output-format=terse", "--ioengine=nbd", f"--uri={uri}", f"--size={SIZE}", "--bs=32k"]
    command += [f"--iodepth={DEPTH}", "--time_based", f"--runtime={PHASE_SECONDS}", "--randrepeat=0", "--norandommap"]
    for phase in range(-(-seconds // PHASE_SECONDS)):
        run = RUNS[(first + phase) % len(RUNS)]
        command += [f"--name=phase{phase}", "--stonewall", f"--rw=randread:{run}" if run > 1 else "--rw=randread"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=pinned(CLIENT_CORE)
    )


def windows(server):
    """(numbers of windows by outcome, marginal ones) over all tenants."""
    metrics = server.metrics()

    def total(name, label=""):
        start = f"aerogel_tenant_guarantee_windows_{name}"
        return sum(int(value) for key, value in metrics.items() if key.startswith(start) and label in key)

    return {outcome: total("total", f'outcome="{outcome}"') for outcome in OUTCOMES}, total("marginal_total")


def tell(server, volume, started):
    """Prints a volume's missed windows, with the server's evidence. They begin so long after the clients."""
    for window in server.json("tenant", "violations", volume)["violations"]:
        begun = datetime.fromisoformat(window["at"]).timestamp() - started
        print(
            f"  {volume}: {window['class']}{', marginal' if window['marginal'] else ''}: {begun:.1f} s, took "
            f"{window['seconds']:.2f} s, demand {window['demand_seconds']:.2f} s, in slices "
            f"{window['slice_seconds']:.2f} s, useful {window['useful_seconds']:.2f} s, "
            f"{window['bytes'] / 1e6:.1f} MB, R {window['insulation']:.3f}",
            file=sys.stderr,
            flush=True,
        )


def measure(directory, policy, seconds):
    """The windows under a policy."""
    name = policy.replace(":", "-")
    with Server(directory, cache="20MiB", name=name) as server:
        move(server.pid, SERVER_CORE)
        server.cli("disk", "add", "hdd", f"sim:{PRESET}", "--policy", policy, "--max-round", "2400ms")
        names = [f"v{at}" for at in range(CLIENTS)]
        for volume in names:
            share = ["--share", f"1/{CLIENTS}", "--min-bandwidth", GUARANTEE]
            server.create(volume, str(SIZE), "--disk", "hdd", *share)
        started = time.time()
        clients = [client(server.uri(volume), at, seconds) for at, volume in enumerate(names)]
        try:
            for process in clients:
                if process.wait(timeout=3 * seconds + 60):
                    raise SystemExit(f"fio ended with {process.returncode}")
        finally:
            for process in clients:
                process.kill()
                process.wait()
        for volume in names:
            tell(server, volume, started)
        return windows(server)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=240, help="how long each run takes (240)")
    parser.add_argument("--rounds", type=int, default=2, help="how often the policies take turns (2)")
    parser.add_argument("--only", action="append", choices=POLICIES, help="one policy, or several")
    options = parser.parse_args()

    sums = {policy: dict.fromkeys((*OUTCOMES, "marginal"), 0) for policy in options.only or POLICIES}
    for turn in range(options.rounds):
        for policy, counted in sums.items():
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as directory:
                outcomes, marginal = measure(Path(directory), policy, options.seconds)
            for outcome, count in (*outcomes.items(), ("marginal", marginal)):
                counted[outcome] += count
            took = time.monotonic() - begun
            print(f"turn {turn + 1}, {policy}: {outcomes} ({took:.0f} s)", file=sys.stderr, flush=True)
    print("| policy | windows | no demand | fundamental | avoidable | of the missed ones, marginal |")
    print("|" + " --- |" * 6)
    for policy, counted in sums.items():
        total = sum(counted[outcome] for outcome in OUTCOMES)
        cells = [policy, total, *(counted[outcome] for outcome in OUTCOMES[1:]), counted["marginal"]]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
