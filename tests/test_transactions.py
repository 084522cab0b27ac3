"""Recorded transactions, replayed with the checks of nbd-tester-client's integrity test.

AEROGEL_NBD_TRACES names a directory with logs (*.tr) of nbd's own tests, which are replayed, too.
"""

import os
from pathlib import Path

from harness import wire
from harness.case import SharedServerCase
from harness.server import MIB
from harness.transactions import BLOCK, Replay, Wrong, recorded, requests
from harness.wire import Wire

SIZE = 50 * MIB
PAYLOAD = (wire.READ, wire.WRITE)
# Longer requests need extended headers.
PAYLOAD_BYTES_MAX = 32 * MIB
# The whole volume is compared in reads of this size.
LOOK = MIB
COUNT = 20_000 if os.environ.get("AEROGEL_TEST_LONG") else 4_000


class Transactions(SharedServerCase):
    """Content and order of replies to requests like those of a kernel."""

    def replayed(self, log, extended=False):
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        name = self.volume(str(SIZE))
        if extended:
            connection.negotiate_extended()
        self.assertIn(wire.INFO_EXPORT, connection.go(name))
        replay = Replay(connection)
        return replay, replay.run(log), name

    def check_all(self, replay, connection):
        for offset in range(0, SIZE, LOOK):
            connection.request(wire.READ, offset, LOOK)
            _, error, data = connection.simple(LOOK)
            self.assertEqual(error, 0)
            replay.check(range(offset // BLOCK, (offset + LOOK) // BLOCK), data)

    def test_recorded_transactions_read_what_was_written(self):
        replay, answered, name = self.replayed(recorded(1, SIZE, COUNT))
        self.assertEqual(answered, COUNT)
        with Wire(self.server.socket) as other:
            other.go(name)
            self.check_all(replay, other)
            # A block that differs from the log is detected.
            self.assertEqual(other.ask(wire.WRITE, 7 * BLOCK, BLOCK, payload=b"\1" * BLOCK), 0)
            with self.assertRaisesRegex(Wrong, "block 7 holds 0101"):
                self.check_all(replay, other)

    def test_logs_of_the_nbd_project(self):
        logs = sorted(Path(os.environ.get("AEROGEL_NBD_TRACES", "/nonexistent")).glob("*.tr"))
        if not logs:
            self.skipTest("AEROGEL_NBD_TRACES names no directory with logs (set it for `make test-long`)")
        replayed = 0
        for log in logs:
            data = log.read_bytes()
            longest = max(length for command, _, _, length in requests(data) if command in PAYLOAD)
            with self.subTest(log=log.name):
                replay, answered, name = self.replayed(data, extended=longest > PAYLOAD_BYTES_MAX)
                with Wire(self.server.socket) as other:
                    other.go(name)
                    self.check_all(replay, other)
                self.assertEqual(answered, sum(1 for _ in requests(data)))
                self.server.cli("volume", "delete", name, "--yes", "--force")
                replayed += answered
        self.assertGreater(replayed, 0, "no log could be replayed")
        print(f"        {replayed} requests replayed")
