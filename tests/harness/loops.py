"""Loop devices as raw block devices: a limited number at a time, and removed after the test in any case."""

import contextlib
import fcntl
import json
import os
import unittest
from pathlib import Path

from . import places
from .server import run
from .wait import until

LOSETUP = "/usr/sbin/losetup"
# A limit, so that a test that forgets to remove them does not use up those of the machine.
LOOPS_MAX = 6


def attached():
    """{device: backing file} of all loop devices."""
    listed = run(LOSETUP, "--list", "--json", "--output", "NAME,BACK-FILE").stdout
    found = json.loads(listed)["loopdevices"] if listed.strip() else []
    return {one["name"]: one["back-file"] or "" for one in found}


def needed():
    """Skips a test if no loop device can be created."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, to make loop devices")
    if not Path("/dev/loop-control").exists():
        raise unittest.SkipTest("needs loop devices: /dev/loop-control is not there")
    # A killed run may have left devices: its scratch directory is gone, so the backing file is deleted.
    for device, file in attached().items():
        if file.startswith(str(places.TARGET)) and file.endswith("(deleted)"):
            detach(device)


_held = False


@contextlib.contextmanager
def numbers_held():
    """While this is held, no other process of the tests creates a loop device, so the number of one that is detached
    stays free."""
    global _held
    if _held:
        yield
        return
    with open(places.TARGET / "loops.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _held = True
        try:
            yield
        finally:
            _held = False


def attach(file, *options):
    """The path of a new device."""
    with numbers_held():
        return run(LOSETUP, "--find", "--show", *options, file).stdout.strip()


def mount_file(image, at, check=True):
    """Mounts the file system in a file; `mount` makes a loop device for it."""
    with numbers_held():
        return run("mount", "-o", "loop", image, at, check=check)


def detach(device):
    """Detaches a device; one in use is removed when it is closed."""
    run(LOSETUP, "--detach", device, check=False)


class Loop:
    """A file as a block device of the kernel, detached with its test."""

    def __init__(self, case, size, *options, name="device"):
        needed()
        self.image = case.scratch / f"{name}.img"
        if not self.image.exists():
            with open(self.image, "wb") as file:
                file.truncate(size)
        mine = [file for file in attached().values() if file.startswith(str(case.scratch))]
        assert len(mine) < LOOPS_MAX, f"{len(mine)} loop devices in one test"
        self.path = attach(self.image, *options)
        case.addCleanup(self.discard, case)

    def discard(self, case):
        """Ends the servers that have it open, and detaches it."""
        for server in case.servers:
            server.kill()
        self.detach()

    def detach(self):
        """Waits until it is removed. The kernel closes the files of a server's ring a little after its process has
        ended."""
        if self.path and attached().get(self.path) == str(self.image):
            detach(self.path)
            until(f"{self.path} to be detached", lambda: attached().get(self.path) != str(self.image), 20)
        self.path = None

    def resize(self, size):
        """Changes the size of the device."""
        os.truncate(self.image, size)
        run(LOSETUP, "--set-capacity", self.path)

    def read(self, offset, length):
        """The content of the device."""
        with open(self.image, "rb") as file:
            file.seek(offset)
            return file.read(length)
