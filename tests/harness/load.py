"""Verified load: a writer that knows what a disk may hold after a crash.

Each sector that is written contains its own number and a sequence number, repeatedly. The writer records, per sector,
everything that it sent since the last content known to be on the medium. After a crash a sector must hold either that
content or something sent later. An acknowledged flush (on any connection) or FUA write advances the content known to be
on the medium, which never goes back. Contents that were never sent (a torn sector, another sector's data, garbage) are
detected, too.
"""

import errno
import random
import struct
import threading

import nbd

SECTOR = 512
# The number for a sector that was zeroed or never written.
ZERO = 0
ZEROS = bytes(SECTOR)
# The content of other sectors, repeated: the sector's number and a sequence number.
NUMBERS = struct.Struct("<QQ")
RANGE_SECTORS_MAX = 128


def content(sector, sequence):
    """The 512 bytes of a sector."""
    return ZEROS if sequence == ZERO else NUMBERS.pack(sector, sequence) * (SECTOR // NUMBERS.size)


class Region:
    """A range of sectors with one writer. Its history is protected by a lock that the flusher uses, too."""

    def __init__(self, first, sectors):
        self.first = first
        self.sectors = sectors
        self.lock = threading.Lock()
        # For each sector, the contents that it may hold, oldest first. The first one is known to be on the medium.
        self.history = [[ZERO] for _ in range(sectors)]
        # For each sector, how many entries were dropped from the front, and how many are acknowledged, both since the
        # start.
        self.dropped = [0] * sectors
        self.acknowledged = [1] * sectors

    def sent(self, start, count, sequence):
        """Records that a write or a zeroing is about to be sent."""
        with self.lock:
            for i in range(start, start + count):
                self.history[i].append(sequence)

    def done(self, start, count, durable):
        """Records that it was acknowledged; `durable` if it had FUA."""
        with self.lock:
            for i in range(start, start + count):
                # One writer with one request at a time: the acknowledged content is the one sent last.
                self.acknowledged[i] = self.dropped[i] + len(self.history[i])
                if durable:
                    self._on_medium(i, self.acknowledged[i])

    def mark(self):
        """What a flush that starts now will cover."""
        with self.lock:
            return list(self.acknowledged)

    def flushed(self, mark):
        """Records that such a flush was acknowledged."""
        with self.lock:
            for i, entries in enumerate(mark):
                self._on_medium(i, entries)

    def _on_medium(self, i, entries):
        """Of so many entries since the start, the last one or a later one is on the medium."""
        drop = entries - 1 - self.dropped[i]
        if drop > 0:
            del self.history[i][:drop]
            self.dropped[i] += drop

    def check(self, data):
        """The problems in what was read, as texts. What was found is on the medium from now on."""
        problems = []
        for i, (problem, held) in enumerate(self.compare(data)):
            problems += [problem] if problem else []
            self.history[i] = [held]
            self.dropped[i], self.acknowledged[i] = 0, 1
        return problems

    def compare(self, data):
        """For each sector that was read: a problem as text or None, and the sequence number that it holds."""
        for i, history in enumerate(self.history[: len(data) // SECTOR]):
            sector = self.first + i
            found = data[i * SECTOR : (i + 1) * SECTOR]
            sequence = NUMBERS.unpack_from(found)[1]
            if sequence in history and found == content(sector, sequence):
                yield None, sequence
            else:
                yield f"sector {sector} holds {describe(found)}, allowed is one of {history}", history[0]


def describe(found):
    """The content of a sector, as text."""
    number, sequence = NUMBERS.unpack_from(found)
    whole = "" if found == found[:16] * (SECTOR // 16) else ", torn"
    return "zeros" if not any(found) else f"(sector {number}, sequence {sequence}{whole})"


class Load:
    """Writers with connections and regions of their own, and a flusher; they run until stopped or disconnected."""

    def __init__(self, size, writers=6, seed=1):
        sectors = size // SECTOR
        cut = [sectors * i // writers for i in range(writers + 1)]
        self.regions = [Region(a, b - a) for a, b in zip(cut, cut[1:])]
        self.seed = seed
        self.sequence = 0
        self.lock = threading.Lock()
        self.writes = self.flushes = 0
        self.threads = []
        self.unexpected = []

    def start(self, connect):
        """Starts the writers; `connect` returns a new handle."""
        self.stopping = False
        self.seed += 1000
        works = [lambda handle, rng, region=region: self._write(handle, rng, region) for region in self.regions]
        works.append(lambda handle, rng: self._flush(handle))
        for number, work in enumerate(works):
            thread = threading.Thread(
                target=self._until_cut_off, args=(connect(), random.Random(self.seed + number), work)
            )
            thread.start()
            self.threads.append(thread)

    def stop(self):
        """Stops the writers after their current requests."""
        self.stopping = True
        self.join()

    def join(self):
        """Waits until all have ended: after `stop`, or when the server has ended."""
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs although the server is gone"
        self.threads.clear()

    def _until_cut_off(self, handle, rng, work):
        try:
            while not self.stopping:
                work(handle, rng)
            handle.shutdown()
        except nbd.Error as error:
            # Errors from libnbd when the server has ended, and from the server when it is about to end.
            gone = error.errnum in (errno.ESHUTDOWN, errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE)
            if not (gone or handle.aio_is_dead() or handle.aio_is_closed()):
                self.unexpected.append(str(error))

    def _next(self):
        with self.lock:
            self.sequence += 1
            return self.sequence

    def _write(self, handle, rng, region):
        count = min(rng.choice([1, 1, 2, 7, 8, 8, 16, 64, RANGE_SECTORS_MAX]), region.sectors)
        start = rng.randrange(region.sectors - count + 1)
        at = (region.first + start) * SECTOR
        durable = rng.random() < 0.05
        flags = nbd.CMD_FLAG_FUA if durable else 0
        if rng.random() < 0.05:
            region.sent(start, count, ZERO)
            handle.zero(count * SECTOR, at, flags)
        else:
            sequence = self._next()
            region.sent(start, count, sequence)
            data = b"".join(content(region.first + i, sequence) for i in range(start, start + count))
            handle.pwrite(data, at, flags)
        region.done(start, count, durable)
        self.writes += 1

    def _flush(self, handle):
        marks = [region.mark() for region in self.regions]
        handle.flush()
        for region, mark in zip(self.regions, marks):
            region.flushed(mark)
        self.flushes += 1

    def check(self, handle):
        """Reads everything; returns the problems as texts."""
        problems = list(self.unexpected)
        for region in self.regions:
            data = b"".join(
                handle.pread(min(1 << 20, region.sectors * SECTOR - at), region.first * SECTOR + at)
                for at in range(0, region.sectors * SECTOR, 1 << 20)
            )
            problems += region.check(data)
        return problems
