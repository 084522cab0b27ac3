"""A device that is slow for the writes of some processes: they wait in the block layer."""

import os
import unittest
from pathlib import Path

from .server import run
from .wait import until

# The block controller of the first version of control groups, which is mounted here if it is not mounted yet.
BLKIO = Path("/sys/fs/cgroup/blkio")


def needed():
    """Skips a test where writes cannot be throttled."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, to throttle a device")
    if not (BLKIO / "cgroup.procs").exists():
        try:
            BLKIO.mkdir(parents=True, exist_ok=True)
            mounted = run("mount", "-t", "cgroup", "-o", "blkio", "blkio", BLKIO, check=False)
        except OSError as error:
            raise unittest.SkipTest(f"needs cgroup v1 blkio: {error}") from None
        if mounted.returncode != 0:
            raise unittest.SkipTest(f"needs cgroup v1 blkio: {mounted.stderr.strip()}")
    if not (BLKIO / "blkio.throttle.write_bps_device").exists():
        raise unittest.SkipTest("needs cgroup v1 blkio with throttling (CONFIG_BLK_DEV_THROTTLING)")


class Throttle:
    """A control group whose members' writes to the device of `directory` are limited to so many bytes per second."""

    def __init__(self, case, directory, bytes_per_second):
        needed()
        device = os.stat(directory).st_dev
        self.number = f"{os.major(device)}:{os.minor(device)}"
        self.group = BLKIO / f"aerogel-{os.getpid()}-{id(self):x}"
        self.group.mkdir()
        case.addCleanup(self.discard)
        try:
            self.limit(bytes_per_second)
        except OSError as error:
            raise unittest.SkipTest(f"the kernel does not throttle device {self.number}: {error}") from None

    def limit(self, bytes_per_second):
        """Changes the limit; 0 removes it."""
        (self.group / "blkio.throttle.write_bps_device").write_text(f"{self.number} {bytes_per_second}")

    def add(self, pid):
        """Adds a process with all its threads."""
        (self.group / "cgroup.procs").write_text(str(pid))

    def empty(self):
        """Waits until the last request of its members has completed, and the group can be removed."""

        def removed():
            try:
                self.group.rmdir()
                return True
            except OSError:
                return False

        until(f"{self.group} to be empty", removed, 60)

    def discard(self):
        """Removes it after the test."""
        if self.group.exists():
            self.limit(0)
            self.empty()
