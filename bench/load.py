"""The client: fio on one core, with new random offsets in each run."""

import json
import subprocess
from dataclasses import dataclass

from machine import CLIENT_CORE, cpu_seconds, pinned


@dataclass
class Run:
    """The results of one run of fio."""

    requests: int
    bytes: int
    seconds: float
    latency_us: float
    server_cpu_us: float | None

    @property
    def per_second(self):
        """Requests per second."""
        return self.requests / self.seconds

    @property
    def mib_per_second(self):
        """MiB per second."""
        return self.bytes / self.seconds / (1 << 20)


def fio(target, rw, *, depth, bs="4k", size, seconds=None, amount=None, core=CLIENT_CORE, pid=None):
    """One run against `target` (an NBD URI or a file): for a time, or for a number of bytes followed by a flush.

    fio includes the flush in the run's time, so that data which is not on the medium yet does not count.
    """
    engine = ["--ioengine=nbd", f"--uri={target}"]
    if not str(target).startswith("nbd"):
        engine = ["--ioengine=io_uring", f"--filename={target}", "--direct=1"]
    command = ["fio", "--name=bench", *engine, f"--rw={rw}", f"--bs={bs}", f"--iodepth={depth}", f"--size={size}"]
    command += ["--randrepeat=0", "--norandommap", "--random_generator=tausworthe64", "--output-format=json"]
    if seconds:
        command += ["--time_based", f"--runtime={seconds}"]
    if amount:
        command += [f"--io_size={amount}", "--end_fsync=1"]
    before = cpu_seconds(pid) if pid else 0.0
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, preexec_fn=pinned(core))
    cpu = cpu_seconds(pid) - before if pid else None
    if done.returncode != 0 or "{" not in done.stdout:
        raise SystemExit(f"`{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
    (job,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    if job["error"]:
        raise SystemExit(f"`{' '.join(command)}` reports error {job['error']}")
    did = job["write" if "write" in rw else "read"]
    return Run(
        requests=did["total_ios"],
        bytes=did["io_bytes"],
        seconds=did["runtime"] / 1000,
        latency_us=did["lat_ns"]["mean"] / 1000,
        server_cpu_us=None if cpu is None else cpu * 1e6 / max(1, did["total_ios"]),
    )
