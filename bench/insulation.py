#!/usr/bin/python3
"""Insulation compared with present alternatives on the same emulated disk (`make bench-insulation`).

    sim:cheetah-15k5 in real time ── ours: two volumes, half of the disk each
                                  └─ raw ── nbdfuse ── loop device ──┬─ fio, under each scheduler of the kernel
                                                                     └─ two qemu-nbd, a half of the device each

- Two tenants use two distant parts of the disk, first each alone, then together, with the same clients everywhere
  (fio). The result is each tenant's fraction of what it gets alone on the same stack; a half is its share.
- The disk is simulated by our own server in real time, and exported with the policy `none`, with hardly any cache, and
  write-through: the kernel sees a slow disk with a command queue. This path is longer than a cable, equally for all
  stacks of the kernel. Our own stack does not use it, which is why every figure is relative to the same stack alone.
- A ceiling is set to half of what each gets alone, as an operator would set it who knew that.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault(
    "AEROGEL_BIN", str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "aerogel")
)

from harness.loops import LOSETUP, attached, detach  # noqa: E402
from harness.server import GIB, Server, run  # noqa: E402
from harness.wait import until  # noqa: E402

from machine import CLIENT_CORE, SERVER_CORE, pinned, warn  # noqa: E402
from servers import move  # noqa: E402

PRESET = "cheetah-15k5"
PART = 32 * GIB
WARM_UP_SECONDS = 4
BLKIO = Path("/sys/fs/cgroup/blkio")
KIB = 1024

# Options of fio by name. Random loads have new offsets in each run; streams begin elsewhere in each run.
LOADS = {
    "one": ["--rw=randread", "--bs=4k", "--iodepth=1"],
    "many": ["--rw=randread", "--bs=4k", "--iodepth=27"],
    "stream": ["--rw=read", "--bs=128k", "--iodepth=2"],
    "other stream": ["--rw=read", "--bs=128k", "--iodepth=2"],
}
MIXES = {
    "1 beside 27 outstanding": ("one", "many"),
    "stream beside random": ("stream", "many"),
    "two streams": ("stream", "other stream"),
}


@dataclass
class Got:
    """The results of a client."""

    bytes_per_second: float
    requests_per_second: float
    p99_ms: float


class Client:
    """fio on one tenant's part of `size` bytes: by NBD, or on a region of a block device, optionally in a cgroup."""

    runs = 0

    def __init__(self, load, target, group, seconds, size=PART):
        Client.runs += 1
        # Streams begin where no run has read yet, so that no cache has the data.
        start = Client.runs * 2 * GIB % size if {"--rw=read", "--rw=write"} & set(load) else 0
        if target.startswith("nbd"):
            where = ["--ioengine=nbd", f"--uri={target}"]
        else:
            device, offset = target.split("@")
            where, start = ["--ioengine=libaio", "--direct=1", f"--filename={device}"], int(offset) + start
            size += int(offset)
        where += [f"--offset={start}", f"--size={size - start}"]
        command = ["fio", "--name=client", *where, *load, "--randrepeat=0", "--norandommap", "--time_based"]
        command += [f"--runtime={seconds}", f"--ramp_time={WARM_UP_SECONDS}", "--output-format=json", "--invalidate=0"]
        join = pinned(CLIENT_CORE)

        def before():
            join()
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        self.command = command
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )

    def got(self):
        """The results, when it has ended."""
        out, err = self.process.communicate()
        if self.process.returncode or "{" not in out:
            raise SystemExit(f"`{' '.join(self.command)}` failed:\n{out}{err}")
        (job,) = json.loads(out[out.index("{") :])["jobs"]
        did = max(job["read"], job["write"], key=lambda did: did["total_ios"])
        return Got(did["bw_bytes"], did["iops"], did["clat_ns"]["percentile"]["99.000000"] / 1e6)


class Stack:
    """A stack above the disk, with the targets of the two tenants."""

    def __init__(self, name, targets, groups=(None, None), prepare=lambda alone: None):
        self.name, self.targets, self.groups, self.prepare = name, targets, groups, prepare

    def measure(self, mix, seconds):
        """The results of both tenants: [(alone, together)]."""
        loads = [LOADS[name] for name in MIXES[mix]]
        of = lambda at: Client(loads[at], self.targets[at], self.groups[at], seconds)
        self.prepare(None)
        alone = [of(at).got() for at in (0, 1)]
        self.prepare(alone)
        together = [client.got() for client in [of(0), of(1)]]
        return list(zip(alone, together))


@contextlib.contextmanager
def serving(directory, name, *volumes, policy):
    """A server with the simulated disk and these volumes: (name, size, further options)."""
    with Server(directory, cache="16MiB", name=name) as server:
        move(server.pid, SERVER_CORE)
        server.cli("disk", "add", "hdd", f"sim:{PRESET}", "--policy", policy)
        for volume, size, *more in volumes:
            server.create(volume, str(size), "--disk", "hdd", *more)
        yield server


def ours(directory, policy):
    """Two volumes with a share of a half each."""

    @contextlib.contextmanager
    def stack():
        halves = [(name, PART, "--share", "1/2") for name in ("a", "b")]
        with serving(directory, f"ours-{policy}", *halves, policy=policy) as server:
            yield Stack(f"aerogel, {policy}", [server.uri("a"), server.uri("b")])

    return stack


class Exported:
    """The disk as a block device of the kernel."""

    def __init__(self, directory):
        self.directory = directory
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        raw = ("all", 2 * PART, "--cache", "1MiB")
        server = self.stack.enter_context(serving(self.directory, "raw", raw, policy="none"))
        server.cli("volume", "set", "all", "--write-cache", "none")
        mount = self.directory / "mount"
        mount.mkdir()
        command = ["nbdfuse", str(mount / "disk"), server.uri("all")]
        fuse = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=pinned(SERVER_CORE))
        self.stack.callback(lambda: (fuse.terminate(), fuse.wait()))
        self.stack.callback(lambda: run("fusermount3", "-u", "-z", mount, check=False))
        until(
            "nbdfuse to mount", lambda: (mount / "disk").exists(), gone=lambda: fuse.poll() is not None and "it ended"
        )
        self.device = run(LOSETUP, "--find", "--show", "--direct-io=on", mount / "disk").stdout.strip()
        self.stack.callback(self.detach)
        self.queue = Path("/sys/block") / Path(self.device).name / "queue"
        return self

    def detach(self):
        detach(self.device)
        until("the loop device to go", lambda: self.device not in attached())

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    @property
    def number(self):
        """Its device number as major:minor."""
        return (Path("/sys/block") / Path(self.device).name / "dev").read_text().strip()

    def scheduler(self, name, **settings):
        """Selects its I/O scheduler."""
        (self.queue / "scheduler").write_text(name)
        for key, value in settings.items():
            (self.queue / "iosched" / key).write_text(str(value))

    def schedulers(self):
        """The I/O schedulers that the kernel offers for it."""
        return (self.queue / "scheduler").read_text().replace("[", "").replace("]", "").split()

    @property
    def halves(self):
        """The parts of the tenants."""
        return [f"{self.device}@0", f"{self.device}@{PART}"]


@contextlib.contextmanager
def groups(**settings):
    """A cgroup for each tenant, with these files written."""
    made = [BLKIO / f"aerogel-bench-{os.getpid()}-{at}" for at in (0, 1)]
    try:
        for group in made:
            group.mkdir()
            for key, value in settings.items():
                (group / key.replace("_", ".")).write_text(str(value))
        yield made
    finally:
        for group in made:
            if group.exists():
                until("the cgroup to be empty", lambda: not (group / "cgroup.procs").read_text().strip())
                group.rmdir()


def kernels(disk):
    """The stacks of the kernel, and the reasons why some are left out."""

    def scheduled(label, scheduler, **settings):
        @contextlib.contextmanager
        def stack():
            disk.scheduler(scheduler, **settings)
            yield Stack(label, disk.halves)

        return stack

    @contextlib.contextmanager
    def weighted(strict):
        disk.scheduler("bfq", low_latency=0, strict_guarantees=int(strict))
        with groups(blkio_bfq_weight=100) as made:
            yield Stack(f"bfq, tuned{', strict_guarantees' if strict else ''}", disk.halves, made)

    @contextlib.contextmanager
    def ceilings():
        disk.scheduler("none")
        with groups() as made:

            def limit(alone):
                for at, group in enumerate(made):
                    most = int(alone[at].bytes_per_second / 2) if alone else 0
                    (group / "blkio.throttle.read_bps_device").write_text(f"{disk.number} {most}")

            yield Stack("ceilings at a half (io.max)", disk.halves, made, limit)

    have = disk.schedulers()
    stacks = [scheduled(name, name) for name in ("none", "mq-deadline", "bfq") if name in have]
    left_out = [f"{name}: this kernel does not have it" for name in ("mq-deadline", "bfq") if name not in have]
    if BLKIO.is_dir():
        stacks += [lambda: weighted(False), lambda: weighted(True)] if "bfq" in have else []
        stacks.append(ceilings)
    else:
        left_out.append("weights and ceilings by cgroup: there is no blkio controller here")
    if not any(Path("/sys/fs/cgroup").glob("**/io.cost.qos")):
        left_out.append("iocost: this kernel does not offer io.cost.qos here")
    return stacks, left_out


def qemu(disk, directory):
    """One qemu-nbd for each tenant, on its part of the device."""

    @contextlib.contextmanager
    def stack():
        disk.scheduler("none")
        with contextlib.ExitStack() as servers:
            targets = []
            for at, half in enumerate(disk.halves):
                device, offset = half.split("@")
                socket = directory / f"qemu-{at}.sock"
                image = f"driver=raw,offset={offset},size={PART},file.driver=host_device,file.filename={device}"
                image += ",file.cache.direct=on,file.aio=io_uring"
                command = ["qemu-nbd", "--persistent", "--image-opts", image, "--socket", str(socket)]
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=pinned(SERVER_CORE))
                servers.callback(lambda process=process: (process.terminate(), process.wait()))
                gone = lambda process=process: process.poll() is not None and "qemu-nbd ended"
                until("qemu-nbd to serve", socket.exists, gone=gone)
                targets.append(f"nbd+unix:///?socket={socket}")
            yield Stack("qemu-nbd", targets)

    return stack


HEAD = ["stack", "tenant", "alone", "together", "of its half", "p99 alone, ms", "p99 together, ms"]


def shown(got):
    """A rate as text: MB/s for streams, requests per second for random loads."""
    rate = got.bytes_per_second / got.requests_per_second if got.requests_per_second else 0
    return f"{got.bytes_per_second / 1e6:.1f} MB/s" if rate > 64 * KIB else f"{got.requests_per_second:.1f}/s"


def table(mix, rows):
    """The table of one mix in Markdown."""
    lines = [f"### {mix}", "", "| " + " | ".join([*HEAD, "sum of fractions"]) + " |", "|" + " --- |" * (len(HEAD) + 1)]
    for stack, results in rows:
        total = sum(together.bytes_per_second / alone.bytes_per_second for alone, together in results)
        for at, (alone, together) in enumerate(results):
            kept = 2 * together.bytes_per_second / alone.bytes_per_second
            cells = [
                stack,
                MIXES[mix][at],
                shown(alone),
                shown(together),
                f"{kept:.2f}",
                f"{alone.p99_ms:.1f}",
                f"{together.p99_ms:.1f}",
            ]
            lines.append("| " + " | ".join([*cells, f"{total:.2f}" if at == 0 else ""]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=int, default=10, help="how long each run counts, after 4 s of warming up (10)"
    )
    parser.add_argument(
        "--only", action="append", choices=list(MIXES), metavar="MIX", help=f"one mix, or several: {', '.join(MIXES)}"
    )
    parser.add_argument("--ours", action="store_true", help="only the rows of aerogel")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root: loop devices and cgroups are made", file=sys.stderr)
        return 2
    mixes = options.only or list(MIXES)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    target.mkdir(exist_ok=True)
    found = {mix: [] for mix in mixes}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=target) as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)

        def measure(make):
            with make() as way:
                for mix in mixes:
                    warn(f"{way.name}: {mix}")
                    found[mix].append((way.name, way.measure(mix, options.seconds)))

        for policy in ("insulated", "none"):
            measure(ours(directory, policy))
        left_out = []
        if not options.ours:
            disk = stack.enter_context(Exported(directory))
            stacks, left_out = kernels(disk)
            for make in [*stacks, qemu(disk, directory)]:
                measure(make)
    text = "\n\n".join(table(mix, rows) for mix, rows in found.items())
    print(text)
    for reason in left_out:
        print(f"\nleft out: {reason}")
    path = ROOT / "bench" / "results" / f"insulation-{time.strftime('%Y-%m-%dT%H%M%S')}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n")
    print(f"\nall figures: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
