"""Scratch file systems, images, and the kernel's counters of a device."""

import contextlib
import os
import random
import unittest
from pathlib import Path

from .loops import mount_file
from .server import run
from .wait import until


def as_root():
    """Skips a test that needs to mount file systems, unless it runs as root."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, to mount a file system")


@contextlib.contextmanager
def mounted(directory, kind, size):
    """A new file system of `size` bytes: `tmpfs`, or `ext4` on a loop device."""
    as_root()
    at = Path(directory) / kind
    at.mkdir()
    if kind == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", at)
    else:
        image = Path(directory) / f"{kind}.img"
        with open(image, "wb") as file:
            file.truncate(size)
        run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", image)
        mount_file(image, at)
    try:
        yield at
    finally:
        if os.path.ismount(at):
            when_unused("umount", at)


@contextlib.contextmanager
def mounted_image(path, at):
    """Mounts an existing file system on a device or in a file."""
    as_root()

    def mounted():
        if Path(path).is_file():
            done = mount_file(path, at, check=False)
        else:
            done = run("mount", "-t", "ext4", path, at, check=False)
        # A process that is none of the tests may take a free loop device before this one does.
        assert done.returncode == 0 or "loop device" in done.stderr, f"{path} cannot be mounted: {done.stderr}"
        return done.returncode == 0

    until("a free loop device", mounted)
    try:
        yield at
    finally:
        when_unused("umount", at)


def when_unused(*command):
    """Runs mount or umount once the file system is not in use: the kernel closes a ring's files a little after its
    process has ended."""
    until(f"`{' '.join(map(str, command))}` to succeed", lambda: run(*command, check=False).returncode == 0, 20)


def diskstats(directory):
    """The kernel's counters of the device that holds a directory; None if it has no device of its own."""
    device = os.stat(directory).st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if (int(fields[0]), int(fields[1])) == (os.major(device), os.minor(device)):
            return [int(field) for field in fields[3:]]
    return None


def flushes(directory):
    """Flush requests that the device holding a directory has completed."""
    found = diskstats(directory)
    if found is None or len(found) < 17:
        raise unittest.SkipTest(f"the device of {directory} has no flush count in /proc/diskstats")
    return found[15]


def random_image(path, size, seed=1):
    """A file of random bytes."""
    rng = random.Random(seed)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(rng.randbytes(1 << 20))
    return path


def sparse_image(path, size, pieces, seed=2):
    """A sparse file with some random data, also at unaligned offsets."""
    rng = random.Random(seed)
    with open(path, "wb") as file:
        file.truncate(size)
        for i in range(pieces):
            length = rng.randrange(1, 200_000)
            at = rng.randrange(size - length)
            file.seek(at if i % 2 else at // 4096 * 4096)
            file.write(rng.randbytes(length))
    return path
