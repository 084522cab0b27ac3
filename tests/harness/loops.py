"""Loop devices: block devices to be used raw. Few at a time, and gone after the test whatever becomes of it."""

import json
import os
import unittest
from pathlib import Path

from . import places
from .server import run
from .wait import until

LOSETUP = "/usr/sbin/losetup"
# A test that forgets some must not use up those of the machine.
LOOPS_MAX = 6


def attached():
    """{device: backing file} of all loop devices."""
    listed = run(LOSETUP, "--list", "--json", "--output", "NAME,BACK-FILE").stdout
    found = json.loads(listed)["loopdevices"] if listed.strip() else []
    return {one["name"]: one["back-file"] or "" for one in found}


def needed():
    """Skips a test where no loop device can be made."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, to make loop devices")
    if not Path("/dev/loop-control").exists():
        raise unittest.SkipTest("needs loop devices: /dev/loop-control is not there")
    # What a run that was killed left behind: its scratch directory is gone, so its file is deleted.
    for device, file in attached().items():
        if file.startswith(str(places.TARGET)) and file.endswith("(deleted)"):
            detach(device)


def detach(device):
    """Lets go of a device; one in use goes when it is closed."""
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
        self.path = run(LOSETUP, "--find", "--show", *options, self.image).stdout.strip()
        case.addCleanup(self.discard, case)

    def discard(self, case):
        """The end, for servers too: they have it open."""
        for server in case.servers:
            server.kill()
        self.detach()

    def detach(self):
        """Until it is gone. The kernel closes the files of a server's ring a little after its process ended."""
        if self.path and attached().get(self.path) == str(self.image):
            detach(self.path)
            until(f"{self.path} to be detached", lambda: attached().get(self.path) != str(self.image), 20)
        self.path = None

    def resize(self, size):
        """The device becomes larger or smaller."""
        os.truncate(self.image, size)
        run(LOSETUP, "--set-capacity", self.path)

    def read(self, offset, length):
        """What is on the device."""
        with open(self.image, "rb") as file:
            file.seek(offset)
            return file.read(length)
