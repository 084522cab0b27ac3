"""A block device that records its requests, and images of what a power cut could leave of it.

    server under test -> (ext4 ->) loop device -> nbdfuse -> recorder.py -> image file
                                                                  |
                                                                  log of writes and flushes

A crash point is any position in the log. Every write before the last flush that precedes it is on the medium. Of the
writes since, each 512-byte sector is on the medium or not, independently of all others.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from . import loops, places
from .load import SECTOR, Region
from .recorder import ENTRY, FLUSH, WRITE
from .server import run
from .wait import until


def needed():
    """Skips a test if such a device cannot be created."""
    loops.needed()
    if not Path("/dev/fuse").exists():
        raise unittest.SkipTest("needs FUSE: /dev/fuse is not there")
    for tool in ("nbdfuse", "fusermount3"):
        if not shutil.which(tool):
            raise unittest.SkipTest(f"needs {tool}: run `scripts/setup test`")


class Fused:
    """An NBD export as a loop device, by way of nbdfuse; removed after the test."""

    def __init__(self, case, uri, name):
        needed()
        self.case, self.name = case, name
        # A new directory each time: one whose nbdfuse has ended cannot be used again.
        self.at = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=case.scratch))
        self.file = self.at / "disk"
        self.path = None
        case.addCleanup(self.discard)
        # nbdfuse logs one line per failed request, which is too much for a test's report.
        with open(case.scratch / f"{name}.fuse.log", "ab") as log:
            self.fuse = subprocess.Popen(["nbdfuse", str(self.file), str(uri)], stdin=subprocess.DEVNULL, stderr=log)
        until(f"nbdfuse to show {self.file}", self.file.exists, 30, gone=self.ended)
        self.path = loops.attach(self.file)

    def ended(self):
        """If nbdfuse has ended, the reason why its file does not exist."""
        status = self.fuse.poll()
        return None if status is None else f"nbdfuse exited with {status}"

    def detach(self):
        """Removes the device, the file and nbdfuse. The device must not be mounted or open."""
        if self.path and loops.attached().get(self.path) == str(self.file):
            loops.detach(self.path)
            until(f"{self.path} to be detached", lambda: loops.attached().get(self.path) != str(self.file), 20)
        self.path = None
        # It may have ended when its connection did.
        run("fusermount3", "-u", "-z", self.at, check=False)
        try:
            self.fuse.wait(20)
        except subprocess.TimeoutExpired:
            self.fuse.kill()
            self.fuse.wait()


    def discard(self):
        """Cleans up after a test that may have left it mounted or open."""
        if self.path and loops.attached().get(self.path) == str(self.file):
            run("umount", "--lazy", "--all-targets", self.path, check=False)
            loops.detach(self.path)
        run("fusermount3", "-u", "-z", self.at, check=False)
        if self.fuse.poll() is None:
            self.fuse.kill()
            self.fuse.wait()


class Recorded:
    """A loop device whose writes and flushes are recorded, starting from a given content."""

    def __init__(self, case, size, name, prepare=lambda image: None):
        needed()
        self.image = case.scratch / f"{name}.img"
        self.base = case.scratch / f"{name}.base"
        self.log = case.scratch / f"{name}.log"
        with open(self.image, "wb") as file:
            file.truncate(size)
        prepare(self.image)
        run("cp", "--sparse=always", self.image, self.base)
        self.log.touch()
        socket = case.scratch / f"{name}.sock"
        command = [sys.executable, Path(__file__).with_name("recorder.py"), socket, self.image, self.log]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL)
        case.addCleanup(self.stop)
        until("the recorder to listen", socket.exists, 30, gone=lambda: self.process.poll() and "it ended")
        self.fused = Fused(case, f"nbd+unix:///?socket={socket}", name)
        self.path = self.fused.path

    def position(self):
        """The present end of the log."""
        return os.stat(self.log).st_size

    def stop(self):
        """Ends the recording."""
        if self.process.poll() is None:
            self.fused.detach()
            self.process.terminate()
            self.process.wait()


class Tape:
    """The requests of clients to regions, in order, each with the position of the log at that time."""

    def __init__(self, position):
        self.position = position
        self.lock = threading.RLock()
        self.entries = []

    def note(self, region, method, arguments):
        """Records that a request is about to be sent, or was acknowledged."""
        self.entries.append((self.position(), region, method, arguments))


class TapedRegion(Region):
    """A region whose changes are on a tape, so that its state at any position can be restored."""

    def __init__(self, first, sectors, tape):
        super().__init__(first, sectors)
        self.tape = tape

    def sent(self, *arguments):
        self._both("sent", arguments)

    def done(self, *arguments):
        self._both("done", arguments)

    def flushed(self, *arguments):
        self._both("flushed", arguments)

    def _both(self, method, arguments):
        with self.tape.lock:
            self.tape.note(self, method, arguments)
            getattr(super(), method)(*arguments)


class Replayed:
    """The regions of a tape as they were at a position. Positions only increase."""

    def __init__(self, tape):
        self.entries = iter(tape.entries)
        self.next = next(self.entries, None)
        self.regions = {}

    def advance(self, position):
        """Applies everything up to a position."""
        while self.next and self.next[0] <= position:
            _, region, method, arguments = self.next
            getattr(self.of(region), method)(*arguments)
            self.next = next(self.entries, None)

    def of(self, region):
        """The state of a taped region at the position."""
        if region not in self.regions:
            self.regions[region] = Region(region.first, region.sectors)
        return self.regions[region]

    def snapshot(self, region):
        """A copy of that state."""
        now, kept = self.of(region), Region(region.first, region.sectors)
        kept.history = [list(history) for history in now.history]
        return kept


class Log:
    """The log of a recorded device."""

    def __init__(self, recorded, loses=lambda number: False):
        """`loses` plants a fault: a disk that answers a flush, given its number, without performing it."""
        data = memoryview(recorded.log.read_bytes())
        self.size = os.stat(recorded.base).st_size
        self.base = recorded.base
        self.writes = []
        # The end of each entry, and the position from which each flush is certain.
        self.ends, self.flushes = [0], []
        at = flushes = 0
        while at < len(data):
            kind, offset, length = ENTRY.unpack_from(data, at)
            start = at + ENTRY.size
            at = start + (length if kind == WRITE else 0)
            self.ends.append(at)
            if kind == WRITE:
                self.writes.append((at, offset, data[start:at]))
            elif kind == FLUSH:
                if not loses(flushes):
                    self.flushes.append(at)
                flushes += 1

    def images(self, points, rng, atomic=0):
        """For each position, in ascending order: (position, the whole image). A write that begins in the first
        `atomic` bytes survives whole or not at all."""
        durable = bytearray(self.base.read_bytes())
        done = flush = 0
        for point in sorted(points):
            while flush < len(self.flushes) and self.flushes[flush] <= point:
                flush += 1
            certain = self.flushes[flush - 1] if flush else 0
            while done < len(self.writes) and self.writes[done][0] <= certain:
                _, offset, data = self.writes[done]
                durable[offset : offset + len(data)] = data
                done += 1
            image = bytearray(durable)
            survives = survival(rng)
            for end, offset, data in self.writes[done:]:
                if end > point:
                    break
                whole = survives()
                if whole is None and offset < atomic:
                    whole = rng.random() < 0.5
                for at in range(0, len(data), SECTOR):
                    if whole if whole is not None else rng.random() < 0.5:
                        image[offset + at : offset + at + SECTOR] = data[at : at + SECTOR]
            yield point, image


def survival(rng):
    """Which unflushed writes survive: for each write all (True), nothing (False) or random sectors (None)."""
    kind = rng.randrange(6)
    if kind == 0:
        return lambda: False
    if kind == 1:
        return lambda: True
    if kind == 2:
        return lambda: rng.random() < 0.5
    if kind == 3:
        return lambda: rng.random() < 0.9 or None
    return lambda: None
