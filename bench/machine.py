"""Properties of the machine that would make figures meaningless, and means against it: cores, caches, CPU time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

GIB = 1 << 30
SERVER_CORE = 0
CLIENT_CORE = 1
DISK_BYTES_NEEDED = 24 * GIB

TICKS = os.sysconf("SC_CLK_TCK")


def pinned(core):
    """For subprocess: pins the process with all its threads to this core."""
    return lambda: os.sched_setaffinity(0, {core})


def cpu_seconds(pid):
    """User and system time of a process, including all threads and io_uring's workers."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def drop_page_cache():
    """Drops clean pages, if permitted. Everything that is compared here bypasses the page cache anyway."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        pass


def busy_ratio_of_cores(seconds, sleep):
    """The fraction of all cores' time that other programs use at present."""

    def sample():
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields[:8]), fields[3] + fields[4]

    before = sample()
    sleep(seconds)
    total, idle = (b - a for a, b in zip(before, sample()))
    return 1 - idle / max(1, total)


def describe(directory):
    """A short description of the machine, without which figures cannot be compared."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown processor",
    )
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "kernel": os.uname().release,
        "file_system": kind,
    }


def objections(binary, directory, sleep):
    """(fatal, worrying): reasons not to measure, and reasons to distrust the results."""
    fatal, worrying = [], []
    if (os.cpu_count() or 1) < 2:
        fatal.append("one core only: server and client would take each other's time")
    if not {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0):
        fatal.append(f"cores {SERVER_CORE} and {CLIENT_CORE} may not be used by this process")
    if binary and "release" not in Path(binary).parts:
        worrying.append(f"{binary} is not a release build")
    if describe(directory)["file_system"] in ("tmpfs", "ramfs"):
        fatal.append(f"{directory} is in memory, not on a disk: choose another with --dir")
    free = shutil.disk_usage(directory).free
    if free < DISK_BYTES_NEEDED:
        fatal.append(f"{directory} has {free / GIB:.0f} GiB free, {DISK_BYTES_NEEDED // GIB} are needed")
    busy = busy_ratio_of_cores(1.0, sleep)
    if busy > 0.05:
        worrying.append(
            f"others use {busy:.0%} of the processors now: ratios of pairs taken in turns are what can still be used"
        )
    for core in (SERVER_CORE, CLIENT_CORE):
        governor = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")
        if governor.exists() and governor.read_text().strip() != "performance":
            worrying.append(f"core {core} changes its frequency (governor {governor.read_text().strip()})")
    return fatal, worrying


def warn(text):
    """Prints a warning."""
    print(text, file=sys.stderr, flush=True)
