#!/usr/bin/python3
"""Compares the shipping server on a simulated disk in real time with the laboratory's results in virtual time (`make
bench-mixes`).

    aerogel-lab stage MIX ──┬─ volumes, shares, caches ──► aerogel serve, sim: disk, core 0
                            ├─ each client's requests  ──► fio over NBD, as many at a time, core 0
                            └─ rates in virtual time   ──► at most 5 % away, alone and together

- The measure is that of the laboratory: what clients get, or for tenants that only write, what reaches the medium. It
  is taken from the server's counters between two moments, for all tenants at once.
- The simulated disk's data is in memory (tmpfs). A file system that takes longer for a request than the drive makes
  completions late (`aerogel_simulated_completion_late_seconds`, cause "file"), and ext4 takes 6 ms for a direct write
  into new space that is not a multiple of 4 KiB.
- Clients share the server's core. A client that reads 4 KiB at a time, like the laboratory's streams, gets 54 MB/s
  across two cores from any cache, because each answer has to wake a virtual processor; the disk alone gives more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("AEROGEL_BIN", str(TARGET / "release" / "aerogel"))

from harness.server import Server, run  # noqa: E402
from harness.wait import until  # noqa: E402

from machine import SERVER_CORE, pinned, warn  # noqa: E402
from servers import move  # noqa: E402

LAB = TARGET / "release" / "aerogel-lab"
TRACES = ROOT / ".." / "shared" / "data" / "traces"
MIXES = (
    "insulated-streams",
    "insulated-stream-random",
    "insulated-depths",
    "insulated-unequal",
    "insulated-write-stream",
    "insulated-random-writes",
    "insulated-absorbed",
    "insulated-four",
    "insulated-oltp-scan",
    "insulated-traces",
)
SEEDS = 3
OFF_MAX = 0.05
# A file system in memory, large enough for what the mixes write in a minute.
MEMORY = Path("/dev/shm")
# The server's memory is divided evenly over its disks: the simulated one, and the default one.
DISKS = 2
# Volumes that temporarily occupy a place on the drive have partitions, too.
FILLERS_BYTES = 16 << 20
LAB_SECONDS = 1800
DIRTY_SECONDS = 120
COUNTED = {"device_write": ("device_write",), "client": ("read", "write")}


class Tenant:
    """A tenant of a staged mix, with its volume and its clients."""

    def __init__(self, server, name, staged, directory):
        self.server, self.volume, self.staged, self.directory = server, name, staged, directory
        self.clients = []

    def start(self):
        """Starts its clients."""
        for client in self.staged["clients"]:
            command = ["fio", "--name=client", "--ioengine=nbd", f"--uri={self.server.uri(self.volume)}"]
            command += [f"--read_iolog={self.directory / client['log']}", "--replay_no_stall=1", "--thread"]
            command += [f"--iodepth={client['depth']}", "--output=/dev/null"]
            self.clients.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=pinned(SERVER_CORE)))

    def stop(self):
        """Stops its clients, and flushes what they wrote."""
        for client in self.clients:
            if client.poll() is not None:
                raise SystemExit(
                    f"a client of '{self.volume}' ended by itself with {client.returncode}: "
                    f"{' '.join(map(str, client.args))}"
                )
            client.kill()
            client.wait()
        self.clients = []
        until("dirt to be written", lambda: self.counter("dirty_bytes") == 0, DIRTY_SECONDS)

    def counter(self, name):
        """A counter of its volume, bytes."""
        key = f'aerogel_volume_{name}{{'
        return sum(
            value
            for label, value in self.server.metrics().items()
            if label.startswith(key) and f'volume="{self.volume}"' in label
        )

    def done(self):
        """The bytes that count, so far."""
        return sum(self.counter(f"{name}_bytes_total") for name in COUNTED[self.staged["what_counts"]])

    def has_begun(self):
        """Whether it made progress since `stop`."""
        return self.counter("read_bytes_total") + self.counter("write_bytes_total") > self.before

    def remember(self):
        """Records the present values of its counters."""
        self.before = self.counter("read_bytes_total") + self.counter("write_bytes_total")


def measure(tenants, mix):
    """MB/s of each of these tenants, which run at the same time."""
    for tenant in tenants:
        tenant.remember()
    for tenant in tenants:
        tenant.start()
    until("all to have begun", lambda: all(tenant.has_begun() for tenant in tenants))
    time.sleep(mix["warm_up_s"])
    before = [(time.monotonic(), tenant.done()) for tenant in tenants]
    time.sleep(mix["counted_s"])
    after = [(time.monotonic(), tenant.done()) for tenant in tenants]
    for tenant in tenants:
        tenant.stop()
    return [(b - a) / (to - since) / 1e6 for (since, a), (to, b) in zip(before, after)]


def staged(name, options, directory):
    """The files that the laboratory wrote for a mix."""
    warn(f"{name}: in virtual time, {SEEDS} seeds")
    command = [LAB, "stage", name, "--disk", options.disk, "--seeds", SEEDS, "--out", directory, "--traces", TRACES]
    command += ["--warm-up", options.warm_up, "--counted", options.counted]
    run(*command, seconds=LAB_SECONDS)
    return json.loads((directory / "mix.json").read_text())


def placed(server, mix, directory):
    """Creates a volume for each tenant, at the laboratory's place."""
    tenants, fillers, end = [], [], 0
    for at, staged in enumerate(mix["tenants"]):
        if staged["start_bytes"] > end:
            fillers.append(f"filler-{at}")
            server.create(fillers[-1], str(staged["start_bytes"] - end), "--disk", "hdd", "--sparse", "--cache", "1MiB")
        options = ["--disk", "hdd", "--sparse", "--share", staged["share"]]
        options += ["--cache", str(staged["cache_bytes"])] if staged["cache_bytes"] else []
        server.create(f"tenant-{at}", str(mix["volume_bytes"]), *options)
        tenants.append(Tenant(server, f"tenant-{at}", staged, directory))
        end = staged["start_bytes"] + mix["volume_bytes"]
    for filler in fillers:
        server.cli("volume", "delete", filler, "--yes", "--force")
    return tenants


def play(name, options, scratch):
    """Runs a mix, and yields (tenant, phase, real rate, virtual rate)."""
    directory = scratch / name
    mix = staged(name, options, directory)
    stated = all(tenant["cache_bytes"] for tenant in mix["tenants"])
    cache = mix["memory_bytes"] + (FILLERS_BYTES if stated else 0)
    with Server(scratch, cache=str(DISKS * cache), name=f"data-{name}") as server:
        move(server.pid, SERVER_CORE)
        server.cli("disk", "add", "hdd", f"sim:{options.disk}")
        tenants = placed(server, mix, directory)
        warn(f"{name}: together, {mix['warm_up_s']:.0f} s and {mix['counted_s']:.0f} s")
        for tenant, rate in zip(tenants, measure(tenants, mix)):
            yield tenant.staged["name"], "together", rate, tenant.staged["mb_per_second"]["together"]
        for tenant in tenants:
            virtual = tenant.staged["mb_per_second"]["alone"]
            # Loads that change with time are compared together only.
            if virtual:
                warn(f"{name}: {tenant.staged['name']} alone")
                yield tenant.staged["name"], "alone", *measure([tenant], mix), virtual


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", default="cheetah-15k5", help="the simulated disk (cheetah-15k5)")
    parser.add_argument("--warm-up", type=int, default=30, help="how long each run warms up, s (30)")
    parser.add_argument("--counted", type=int, default=30, help="how long each run counts after that, s (30)")
    parser.add_argument(
        "--only", action="append", choices=MIXES, metavar="MIX", help=f"one mix, or several: {', '.join(MIXES)}"
    )
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY) as scratch:
        print("| mix | tenant | | in real time, MB/s | in virtual time, MB/s | ratio | |\n|" + " --- |" * 7, flush=True)
        for name in options.only or MIXES:
            for tenant, when, real, virtual in play(name, options, Path(scratch)):
                holds = abs(real / virtual - 1) <= OFF_MAX
                good &= holds
                cells = [name, tenant, when, f"{real:.3f}", f"{virtual:.3f}", f"{real / virtual:.3f}"]
                print("| " + " | ".join([*cells, "holds" if holds else "**misses**"]) + " |", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
