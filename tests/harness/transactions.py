"""Transaction logs as nbd-server records them (`transactionlog`) and nbd-tester-client's integrity test replays them.

A log contains the requests (28 bytes) and simple replies (16 bytes) of a connection without payloads, in network order,
with a DISC at the end. A replay invents the content: each block of 512 bytes holds its number and the number of the
request that wrote it, so that a read detects blocks that are lost, old or misplaced.
"""

import random
import struct

from . import wire

BLOCK = 512
LONGEST = 254 * BLOCK
# Outstanding requests of a replay: their payloads fit into the socket buffers and the server's limit of unsent replies.
WINDOW = 16
# Bytes of read replies that may be on the way while a payload is sent: the socket buffers take them.
READING_BYTES_MAX = WINDOW * LONGEST


class Wrong(AssertionError):
    """A reply that the log does not permit."""


def requests(log):
    """The requests of a log as (command, flags, offset, length), up to its DISC."""
    at = 0
    while True:
        magic = struct.unpack_from(">I", log, at)[0]
        if magic == wire.SIMPLE:
            at += 16
            continue
        assert magic == wire.REQUEST, f"{magic:08x} at byte {at} of the log"
        _, flags, command, _, offset, length = struct.unpack_from(">IHHQQI", log, at)
        at += 28
        if command == wire.DISC:
            return
        yield command, flags, offset, length


def recorded(seed, size, count):
    """A log of `count` requests like those of a file system: long sequential writes, repeated rewrites of a few
    blocks, some of them with a flush or FUA, and few reads."""
    dice = random.Random(seed)
    blocks, cursor, log = size // BLOCK, 0, []
    hot = [dice.randrange(blocks - 8) for _ in range(64)]
    for number in range(count):
        kind = dice.random()
        flags = offset = length = 0
        command = wire.WRITE
        if kind < 0.02:
            command = wire.FLUSH
        elif kind < 0.12:
            command, offset = wire.READ, dice.randrange(blocks)
            length = min(dice.randrange(1, 255), blocks - offset)
        elif kind < 0.6:
            offset, length = dice.choice(hot), dice.randrange(1, 9)
            flags = wire.FUA if dice.random() < 0.04 else 0
        else:
            length = min(dice.randrange(8, 255), blocks - cursor)
            offset, cursor = cursor, (cursor + length) % blocks
        assert length * BLOCK <= LONGEST
        log.append(struct.pack(">IHHQQI", wire.REQUEST, flags, command, number, offset * BLOCK, length * BLOCK))
        log.append(struct.pack(">IIQ", wire.SIMPLE, 0, number))
    log.append(struct.pack(">IHHQQI", wire.REQUEST, 0, wire.DISC, count, 0, 0))
    return b"".join(log)


def content(block, number):
    """What request `number` writes into a block; zeros before the first one."""
    return struct.pack(">II", block, number) * (BLOCK // 8) if number else bytes(BLOCK)


class Replay:
    """One replay over one connection that has negotiated simple replies or extended headers."""

    def __init__(self, connection):
        self.connection = connection
        self.written = {}
        self.in_flight = {}
        self.reading, self.writing = {}, {}
        # Data of reads whose reply has begun, with extended headers.
        self.parts = {}
        self.answered = 0

    def run(self, log):
        """Sends all requests. Overlapping ones are in flight together only if all of them read."""
        for number, (command, flags, offset, length) in enumerate(requests(log), 1):
            blocks = range(offset // BLOCK, (offset + length) // BLOCK)
            while len(self.in_flight) >= WINDOW or self._must_wait(command, blocks) or self._would_block(command):
                self._take_reply()
            payload = b""
            if command == wire.WRITE:
                payload = b"".join(content(block, number) for block in blocks)
            self._count(command, blocks, 1)
            cookie = self.connection.request(command, offset, length, flags, payload)
            self.in_flight[cookie] = (command, blocks, number)
        while self.in_flight:
            self._take_reply()
        return self.answered

    def _would_block(self, command):
        """Whether the server could wait for this client to receive while the client sends a payload."""
        return command == wire.WRITE and len(self.reading) * BLOCK > READING_BYTES_MAX

    def _users(self, command):
        return {wire.READ: self.reading, wire.WRITE: self.writing}.get(command)

    def _must_wait(self, command, blocks):
        also = self.reading if command == wire.WRITE else {}
        return any(block in self.writing or block in also for block in blocks)

    def _count(self, command, blocks, change):
        users = self._users(command)
        for block in blocks if users is not None else ():
            users[block] = users.get(block, 0) + change
            if not users[block]:
                del users[block]

    def _take_reply(self):
        if self.connection.extended:
            return self._take_chunk()
        magic, error, cookie = struct.unpack(">IIQ", self.connection.receive(16))
        if magic != wire.SIMPLE or error:
            raise Wrong(f"a reply of {magic:08x} with error {error}")
        if cookie not in self.in_flight:
            raise Wrong(f"a reply with cookie {cookie}, which no request in flight has")
        command, blocks = self._answered(cookie)
        if command == wire.READ:
            self.check(blocks, self.connection.receive(len(blocks) * BLOCK))

    def _take_chunk(self):
        cookie, kind, flags, body = self.connection.chunk()
        if cookie not in self.in_flight:
            raise Wrong(f"a chunk with cookie {cookie}, which no request in flight has")
        command, blocks, _ = self.in_flight[cookie]
        if kind in (wire.OFFSET_DATA, wire.OFFSET_HOLE):
            offset = struct.unpack_from(">Q", body)[0]
            data = body[8:] if kind == wire.OFFSET_DATA else bytes(struct.unpack_from(">I", body, 8)[0])
            begins, ends = offset // BLOCK, (offset + len(data)) // BLOCK
            if command != wire.READ or begins < blocks.start or ends > blocks.stop:
                raise Wrong(f"a chunk with blocks {begins} to {ends}, not all of which were asked for")
            self.check(range(begins, ends), data)
            self.parts[cookie] = self.parts.get(cookie, 0) + ends - begins
        elif kind != wire.CHUNK_NONE:
            raise Wrong(f"a chunk of type {kind}: {body.hex()}")
        if flags & wire.DONE:
            command, blocks = self._answered(cookie)
            if command == wire.READ and self.parts.pop(cookie, 0) != len(blocks):
                raise Wrong(f"a reply without some of the blocks {blocks}")

    def _answered(self, cookie):
        """A request has succeeded."""
        command, blocks, number = self.in_flight.pop(cookie)
        self._count(command, blocks, -1)
        self.answered += 1
        if command == wire.WRITE:
            self.written.update((block, number) for block in blocks)
        return command, blocks

    def check(self, blocks, data):
        """Compares what was read with the last acknowledged writes."""
        for at, block in enumerate(blocks):
            found = data[at * BLOCK : (at + 1) * BLOCK]
            number = self.written.get(block, 0)
            if found != content(block, number):
                raise Wrong(f"block {block} holds {found[:8].hex()}… instead of what request {number} wrote")
