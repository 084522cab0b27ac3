"""Requests and their replies, by kind."""

import contextlib
import errno
import os
import random
import struct

import nbd
from harness import wire
from harness.case import SharedServerCase
from harness.server import MIB
from harness.wire import Wire

KIB = 1024


@contextlib.contextmanager
def fails(test, number):
    """The block must fail with this error number."""
    with test.assertRaises(nbd.Error) as caught:
        yield
    test.assertEqual(caught.exception.errnum, number, f"{caught.exception} instead of {errno.errorcode[number]}")


def contexts(handle):
    """Negotiates base:allocation."""
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)


def simple_replies(handle):
    """Does not negotiate structured replies."""
    handle.set_request_structured_replies(False)


class Requests(SharedServerCase):
    """On one server with the default reactor."""

    def wire(self, name, structured=True, context=False):
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        if structured:
            connection.negotiate_structured()
        if context:
            self.assertEqual(len(connection.meta(wire.SET_META, name, "base:allocation")), 1)
        self.assertIn(wire.INFO_EXPORT, connection.go(name))
        return connection

    def extents(self, handle, length, offset=0, flags=0):
        """[(length, flags)] of one BLOCK_STATUS."""
        found = []
        handle.block_status(length, offset, lambda context, at, entries, _: found.extend(entries) or 0, flags)
        return list(zip(found[::2], found[1::2]))

    def all_extents(self, handle):
        """Merged [(start, length, flags)] of the whole volume, in as many requests as needed."""
        merged, at, size = [], 0, handle.get_size()
        while at < size:
            before = at
            for length, flags in self.extents(handle, size - at, at):
                length = min(length, size - at)
                if merged and merged[-1][2] == flags:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length, flags)
                else:
                    merged.append((at, length, flags))
                at += length
            self.assertGreater(at, before, "BLOCK_STATUS made no progress")
        return merged

    def test_every_length_and_alignment_against_a_model(self):
        name = self.volume("8MiB")
        handle = self.server.open(name)
        size = 8 * MIB
        model = bytearray(size)
        rng = random.Random(7)
        lengths = [1, 2, 511, 512, 513, 4095, 4096, 4097, 65536, 100_001, 262_144, 262_145, 1_500_000]
        for step in range(400):
            length = rng.choice(lengths)
            at = rng.randrange(size - length + 1)
            if rng.random() < 0.5:
                at = min(at // 4096 * 4096, size - length)
            kind = rng.random()
            if kind < 0.45:
                data = rng.randbytes(length)
                handle.pwrite(data, at, rng.choice([0, 0, 0, nbd.CMD_FLAG_FUA]))
                model[at : at + length] = data
            elif kind < 0.6:
                handle.zero(length, at, rng.choice([0, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FUA]))
                model[at : at + length] = bytes(length)
            elif kind < 0.65:
                handle.flush()
            else:
                self.assertEqual(handle.pread(length, at), model[at : at + length], f"step {step}: {length} at {at}")
        self.assertEqual(handle.pread(size, 0), model)
        self.assertEqual(self.server.open(name).pread(size, 0), model)

    def test_simple_replies(self):
        handle = self.server.open(self.volume("4MiB"), simple_replies)
        self.assertFalse(handle.get_structured_replies_negotiated())
        handle.pwrite(b"q" * MIB, 1000)
        self.assertEqual(handle.pread(MIB + 2000, 0), bytes(1000) + b"q" * MIB + bytes(1000))
        with fails(self, errno.EINVAL):
            handle.pread(2, 4 * MIB - 1)
        self.assertEqual(handle.pread(10, 0), bytes(10))

    def test_largest_payloads(self):
        handle = self.server.open(self.volume("40MiB"))
        data = random.Random(3).randbytes(32 * MIB)
        handle.pwrite(data, 4097)
        self.assertEqual(handle.pread(32 * MIB, 4097), data)

    def test_read_above_32_mib_is_refused(self):
        connection = self.wire(self.volume("64MiB"))
        connection.request(wire.READ, 0, 32 * MIB + 1)
        kind, body = connection.chunks()[-1]
        self.assertTrue(kind & 1 << 15, "the read was not refused")
        self.assertIn(struct.unpack(">I", body[:4])[0], (wire.EINVAL, wire.EOVERFLOW))
        self.assertEqual(connection.ask(wire.FLUSH), 0, "the connection goes on")

    def test_write_above_32_mib_is_refused(self):
        name = self.volume("64MiB")
        connection = self.wire(name)
        connection.request(wire.WRITE, 0, 32 * MIB + 1)
        with contextlib.suppress(wire.Closed):
            for _ in range(33):
                connection.send(b"x" * MIB)
        try:
            _, kind, _, body = connection.chunk()
            self.assertTrue(kind & 1 << 15, "the write was not refused")
            self.assertEqual(struct.unpack(">I", body[:4])[0], wire.EINVAL)
        except wire.Closed:
            pass
        self.assertEqual(self.server.open(name).pread(MIB, 0), bytes(MIB), "a refused write wrote")

    def test_extended_headers(self):
        name = self.volume("128MiB")
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        connection.negotiate_extended()
        self.assertEqual(len(connection.meta(wire.SET_META, name, "base:allocation")), 1)
        sizes = connection.go(name)[wire.INFO_BLOCK_SIZE]
        self.assertEqual(struct.unpack(">III", sizes)[2], 64 * MIB)
        data = random.Random(7).randbytes(64 * MIB)
        self.assertEqual(connection.ask(wire.WRITE, 12345, 64 * MIB, flags=wire.FUA, payload=data), 0)
        connection.request(wire.READ, 12345, 64 * MIB)
        found = bytearray(64 * MIB)
        for kind, body in connection.chunks():
            self.assertEqual(kind, wire.OFFSET_DATA)
            at = struct.unpack(">Q", body[:8])[0] - 12345
            found[at:at + len(body) - 8] = body[8:]
        self.assertEqual(found, data)
        self.assertEqual(connection.ask(wire.READ, 0, 64 * MIB + 1), wire.EINVAL)
        self.assertEqual(connection.ask(wire.TRIM, 0, 1 << 40), wire.EINVAL)
        self.assertEqual(connection.ask(wire.TRIM, 0, 128 * MIB), 0)
        connection.request(wire.BLOCK_STATUS, 0, 128 * MIB)
        [(kind, body)] = connection.chunks()
        context, count = struct.unpack(">II", body[:8])
        extents = list(struct.iter_unpack(">QQ", body[8:]))
        self.assertEqual((kind, context, count), (wire.STATUS_EXT, 1, len(extents)))
        self.assertEqual(sum(length for length, _ in extents), 128 * MIB)
        # A write has a payload without PAYLOAD_LEN, too; other requests have one with it, and are refused.
        cookie = connection.request(wire.WRITE, 0, 4096)
        connection.send(bytes(4096))
        self.assertEqual(connection.chunk()[:2], (cookie, wire.CHUNK_NONE))
        self.assertEqual(connection.ask(wire.TRIM, 0, 4096, payload=bytes(4096)), wire.EINVAL)
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_past_the_end(self):
        name = self.volume("1MiB")
        handle = self.server.open(name, contexts)
        with fails(self, errno.ENOSPC):
            handle.pwrite(b"xy", MIB - 1)
        with fails(self, errno.ENOSPC):
            handle.pwrite(b"x" * 70_000, 1 << 62)
        for what, call in {
            "read": lambda: handle.pread(2, MIB - 1),
            "trim": lambda: handle.trim(2, MIB - 1),
            "cache": lambda: handle.cache(2, MIB - 1),
            "status": lambda: self.extents(handle, 2, MIB - 1),
            "read at the end": lambda: handle.pread(1, MIB),
            "read far out": lambda: handle.pread(512, (1 << 64) - 512 - (1 << 63)),
        }.items():
            with self.subTest(what), fails(self, errno.EINVAL):
                call()
        with self.assertRaises(nbd.Error) as caught:
            handle.zero(2, MIB - 1)
        self.assertIn(caught.exception.errnum, (errno.ENOSPC, errno.EINVAL))
        self.assertEqual(handle.pread(MIB, 0), bytes(MIB), "something was written by a request past the end")

    def test_offset_overflow(self):
        connection = self.wire(self.volume("1MiB"))
        for command in (wire.READ, wire.TRIM, wire.CACHE, wire.WRITE_ZEROES):
            with self.subTest(command=command):
                self.assertIn(connection.ask(command, (1 << 64) - 512, 1024), (wire.EINVAL, wire.ENOSPC))
        self.assertEqual(connection.ask(wire.WRITE, (1 << 64) - 512, 1024, payload=bytes(1024)), wire.ENOSPC)

    def test_length_zero(self):
        connection = self.wire(self.volume("1MiB"))
        for command in (wire.READ, wire.WRITE, wire.TRIM, wire.CACHE, wire.WRITE_ZEROES):
            with self.subTest(command=command):
                self.assertIn(connection.ask(command, 0, 0), (0, wire.EINVAL))
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_unknown_commands_and_flags(self):
        connection = self.wire(self.volume("1MiB"))
        self.assertEqual(connection.ask(99), wire.EINVAL)
        self.assertEqual(connection.ask(wire.READ, 0, 512, flags=1 << 9), wire.EINVAL)
        self.assertEqual(connection.ask(wire.WRITE, 0, 512, flags=1 << 9, payload=bytes(512)), wire.EINVAL)
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_bad_request_magic_closes(self):
        name = self.volume("1MiB")
        connection = self.wire(name)
        connection.request(wire.READ, 0, 512, magic=0x12345678)
        self.assertTrue(connection.closed())
        self.server.open(name).flush()

    def test_df_is_one_chunk(self):
        connection = self.wire(self.volume("4MiB"))
        self.assertEqual(connection.ask(wire.WRITE, MIB, 4096, payload=b"d" * 4096), 0)
        connection.request(wire.READ, MIB - 64 * KIB, 60 * KIB + 8192, flags=wire.DF)
        chunks = connection.chunks()
        data = [(kind, body) for kind, body in chunks if kind in (wire.OFFSET_DATA, wire.OFFSET_HOLE)]
        self.assertEqual(len(data), 1, f"DF was answered in {len(data)} chunks")
        expected = bytes(64 * KIB) + b"d" * 4096
        self.assertEqual(data[0][1][8:], expected[: 60 * KIB + 8192])

    def test_holes_are_told_as_holes(self):
        connection = self.wire(self.volume("16MiB", "--sparse"))
        self.assertEqual(connection.ask(wire.WRITE, 8 * MIB, 4096, payload=b"d" * 4096), 0)
        connection.request(wire.READ, 4 * MIB, 8 * MIB)
        holes = told = 0
        for kind, body in connection.chunks():
            if kind == wire.OFFSET_HOLE:
                holes += struct.unpack(">QI", body)[1]
            if kind == wire.OFFSET_DATA:
                told += len(body) - 8
        self.assertEqual(holes + told, 8 * MIB)
        self.assertGreater(holes, 7 * MIB, "known zeros were sent as data")

    def test_pread_structured(self):
        handle = self.server.open(self.volume("4MiB"))
        handle.pwrite(b"z" * 10_000, 100_000)
        pieces = []
        whole = handle.pread_structured(
            300_000, 0, lambda data, at, status, _: pieces.append((at, len(data), status)) or 0
        )
        self.assertEqual(whole, bytes(100_000) + b"z" * 10_000 + bytes(190_000))
        self.assertEqual(sum(length for _, length, _ in pieces), 300_000)

    def test_trim_and_zeroes_of_the_whole_volume(self):
        for options in ((), ("--sparse",)):
            with self.subTest(options=options):
                name = f"whole{len(options)}"
                self.server.create(name, "200MiB", *options)
                self.addCleanup(self.server.cli, "volume", "delete", name, "--yes", "--force")
                handle = self.server.open(name)
                for at in (0, 50_000_001, 199 * MIB):
                    handle.pwrite(b"w" * 100_000, at)
                handle.flush()
                handle.zero(200 * MIB, 0)
                for at in (0, 50_000_001, 199 * MIB):
                    self.assertEqual(handle.pread(100_000, at), bytes(100_000))
                handle.pwrite(b"v" * 100_000, 60 * MIB)
                handle.trim(200 * MIB, 0)
                handle.cache(200 * MIB, 0)
                handle.flush()

    def test_trimmed_blocks_keep_what_they_first_return(self):
        for options in ((), ("--sparse",)):
            with self.subTest(options=options):
                name = f"trim{len(options)}"
                self.server.create(name, "32MiB", *options)
                self.addCleanup(self.server.cli, "volume", "delete", name, "--yes", "--force")
                handle = self.server.open(name)
                handle.pwrite(b"t" * (8 * MIB), 0)
                handle.flush()
                handle.pwrite(b"u" * (8 * MIB), 0)
                handle.trim(6 * MIB - 1000, 333)
                first = handle.pread(8 * MIB, 0)
                self.assertEqual(first[:333], b"u" * 333)
                self.assertEqual(first[6 * MIB - 667 :], b"u" * (2 * MIB + 667))
                handle.flush()
                self.assertEqual(handle.pread(8 * MIB, 0), first)
                self.server.open(name).flush()
                self.assertEqual(self.server.open(name).pread(8 * MIB, 0), first)

    def test_trim_with_fua(self):
        handle = self.server.open(self.volume("4MiB", "--sparse"))
        handle.pwrite(b"t" * MIB, 0)
        handle.trim(MIB, 0, nbd.CMD_FLAG_FUA)
        handle.zero(MIB, MIB, nbd.CMD_FLAG_FUA)

    def test_fast_zero_is_fast_or_refused(self):
        handle = self.server.open(self.volume("64MiB"))
        handle.pwrite(b"f" * 10_000, 0)
        handle.flush()
        for length, at in ((8 * MIB, 0), (4096, 16 * MIB), (777, 20 * MIB + 5)):
            with self.subTest(length=length):
                try:
                    handle.zero(length, at, nbd.CMD_FLAG_FAST_ZERO)
                    self.assertEqual(handle.pread(length, at), bytes(length))
                except nbd.Error as error:
                    self.assertEqual(error.errnum, errno.ENOTSUP)

    def test_no_hole_keeps_space(self):
        name = self.volume("8MiB", "--sparse")
        handle = self.server.open(name)
        path = self.server.json("volume", "show", name)["path"]
        handle.zero(2 * MIB, MIB, nbd.CMD_FLAG_NO_HOLE)
        handle.flush()
        self.assertGreaterEqual(os.stat(path).st_blocks * 512, 2 * MIB, "NO_HOLE left a hole")
        self.assertEqual(handle.pread(2 * MIB, MIB), bytes(2 * MIB))

    def test_cache_of_any_range(self):
        handle = self.server.open(self.volume("128MiB"))
        handle.cache(128 * MIB, 0)
        handle.cache(1, 12345)

    def test_block_status(self):
        handle = self.server.open(self.volume("64MiB", "--sparse"), contexts)
        hole = nbd.STATE_HOLE | nbd.STATE_ZERO
        self.assertEqual(self.all_extents(handle), [(0, 64 * MIB, hole)])
        handle.pwrite(b"s" * MIB, 32 * MIB)
        wanted = [(0, 32 * MIB, hole), (32 * MIB, MIB, 0), (33 * MIB, 31 * MIB, hole)]
        self.assertEqual(self.all_extents(handle), wanted, "unflushed writes are data")
        handle.flush()
        self.assertEqual(self.all_extents(handle), wanted)

    def test_block_status_req_one(self):
        handle = self.server.open(self.volume("64MiB", "--sparse"), contexts)
        handle.pwrite(b"s" * 65536, 32 * MIB)
        found = self.extents(handle, 64 * MIB, flags=nbd.CMD_FLAG_REQ_ONE)
        self.assertEqual(len(found), 1)
        self.assertLessEqual(found[0][0], 64 * MIB)
        self.assertEqual(self.extents(handle, 1000, 5, nbd.CMD_FLAG_REQ_ONE)[0][0], 1000)

    def test_block_status_at_odd_places(self):
        handle = self.server.open(self.volume("1048064", "--sparse"), contexts)
        handle.pwrite(b"s", 700_001)
        covered = sum(min(length, 1000) for length, _ in self.extents(handle, 1000, 1047064))
        self.assertGreaterEqual(covered, 1000 if covered else 1)
        for length, flags in self.extents(handle, 3, 700_000)[:1]:
            self.assertEqual(flags, 0, "a written byte is told to be a hole")

    def test_extents_are_never_too_optimistic(self):
        """Ranges that BLOCK_STATUS reports as zero read as zero, after random requests."""
        handle = self.server.open(self.volume("32MiB", "--sparse"), contexts)
        rng = random.Random(11)
        for _ in range(200):
            length = rng.choice([1, 512, 4096, 70_000, MIB, 3 * MIB])
            at = rng.randrange(32 * MIB - length)
            kind = rng.random()
            if kind < 0.5:
                handle.pwrite(b"e" * length, at)
            elif kind < 0.7:
                handle.trim(length, at)
            elif kind < 0.9:
                handle.zero(length, at)
            else:
                handle.flush()
        for at, length, flags in self.all_extents(handle):
            if flags & nbd.STATE_ZERO:
                self.assertEqual(handle.pread(length, at).count(0), length, f"{length} bytes at {at} are not zero")

    def test_many_requests_in_flight(self):
        handle = self.server.open(self.volume("64MiB"))
        rng = random.Random(5)
        wanted = {at: rng.randbytes(16 * KIB) for at in range(0, 16 * MIB, 16 * KIB)}
        self.pump(handle, [lambda at=at, data=data: handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at)
                           for at, data in wanted.items()])
        buffers = {at: nbd.Buffer(16 * KIB) for at in wanted}
        self.pump(handle, [lambda at=at: handle.aio_pread(buffers[at], at) for at in wanted])
        for at, data in wanted.items():
            self.assertEqual(buffers[at].to_bytearray(), data, f"at {at}")

    def pump(self, handle, calls, depth=300):
        """Sends all requests, up to `depth` in flight, and checks that each succeeds."""
        waiting = set()
        for call in calls:
            waiting.add(call())
            while len(waiting) >= depth:
                self.reap(handle, waiting)
        while waiting:
            self.reap(handle, waiting)

    def reap(self, handle, waiting):
        handle.poll(30_000)
        waiting -= {cookie for cookie in waiting if handle.aio_command_completed(cookie)}

    def test_overlapping_writes_leave_one_of_them_in_each_block(self):
        """Several connections write the same range concurrently: each block has one writer's data, and all readers
        agree."""
        name = self.volume("4MiB")
        handles = [self.server.open(name) for _ in range(4)]
        for round in range(20):
            cookies = []
            for letter, handle in zip(b"abcd", handles):
                for at in (0, 2048 + 512 * round):
                    buffer = nbd.Buffer.from_bytearray(bytearray([letter]) * (256 * KIB))
                    cookies.append((handle, handle.aio_pwrite(buffer, at)))
            for handle, cookie in cookies:
                while not handle.aio_command_completed(cookie):
                    handle.poll(30_000)
            seen = {bytes(handle.pread(MIB, 0)) for handle in handles}
            self.assertEqual(len(seen), 1, "connections read different data")
            data = seen.pop()
            for at in range(0, 256 * KIB, 4096):
                # A block may be divided only where a request started.
                parts = {data[at + cut : at + cut + 512] for cut in range(0, 4096, 512)}
                for part in parts:
                    self.assertEqual(len(set(part)), 1, f"a sector of block {at} is torn")
                    self.assertIn(part[0], b"abcd")

    def test_a_write_is_seen_by_other_connections_once_acknowledged(self):
        name = self.volume("4MiB")
        one, two = self.server.open(name), self.server.open(name)
        for i in range(200):
            data = struct.pack(">I", i) * 1000
            one.pwrite(data, i * 100)
            self.assertEqual(two.pread(4000, i * 100), data)

    def test_flush_on_one_connection_covers_the_others(self):
        """CAN_MULTI_CONN: a flush on one connection covers writes of another one; a crash afterwards loses nothing."""
        name = self.volume("8MiB")
        one, two = self.server.open(name), self.server.open(name)
        self.assertTrue(one.can_multi_conn())
        one.pwrite(b"m" * (4 * MIB), 0)
        two.flush()
        one.pwrite(b"f" * 10_000, 5_000_001, nbd.CMD_FLAG_FUA)
        self.server.kill()
        self.server.start()
        handle = self.server.open(name)
        self.assertEqual(handle.pread(4 * MIB, 0), b"m" * (4 * MIB))
        self.assertEqual(handle.pread(10_000, 5_000_001), b"f" * 10_000)

    def test_disconnect_with_requests_in_flight(self):
        name = self.volume("8MiB")
        connection = self.wire(name)
        for i in range(50):
            connection.request(wire.WRITE, i * 64 * KIB, 64 * KIB, payload=b"y" * (64 * KIB))
        connection.request(wire.DISC)
        while True:
            try:
                connection.receive(1)
            except wire.Closed:
                break
        handle = self.server.open(name)
        self.assertEqual(handle.pread(50 * 64 * KIB, 0), b"y" * (50 * 64 * KIB), "writes before DISC are lost")


class RequestsOnThreads(Requests):
    """The same with the `threads` reactor."""

    reactor = "threads"
