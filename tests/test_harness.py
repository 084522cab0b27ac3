"""The checker of the crash tests detects the errors that it is meant for."""

import unittest

from harness.load import SECTOR, Load, Region, content


class Checker(unittest.TestCase):
    """A region of four sectors: written at 1, flushed, written at 2, unacknowledged at 3."""

    def setUp(self):
        self.region = Region(10, 4)
        self.write(1)
        self.region.flushed(self.region.mark())
        self.write(2)
        self.region.sent(0, 4, 3)

    def write(self, sequence):
        self.region.sent(0, 4, sequence)
        self.region.done(0, 4, durable=False)

    def problems(self, *sequences, torn=None):
        data = b"".join(content(10 + i, sequence) for i, sequence in enumerate(sequences))
        if torn is not None:
            data = data[: torn * SECTOR + 100] + bytes(100) + data[torn * SECTOR + 200 :]
        return self.region.check(data)

    def test_flushed_or_later_is_fine(self):
        self.assertEqual(self.problems(1, 2, 3, 1), [])

    def test_lost(self):
        self.assertEqual(len(self.problems(1, 0, 1, 1)), 1)

    def test_never_written(self):
        self.assertEqual(len(self.problems(1, 4, 1, 9)), 2)

    def test_torn(self):
        self.assertEqual(len(self.problems(1, 1, 1, 1, torn=2)), 1)

    def test_misplaced(self):
        data = b"".join(content(10 + i, 2) for i in (1, 0, 2, 3))
        self.assertEqual(len(self.region.check(data)), 2)

    def test_later_flush_moves_the_mark(self):
        self.region.flushed(self.region.mark())
        self.assertEqual(len(self.problems(1, 2, 3, 2)), 1)

    def test_earlier_flush_does_not_move_it_back(self):
        early = self.region.mark()
        self.region.done(0, 4, durable=True)
        self.region.flushed(early)
        self.assertEqual(len(self.problems(2, 3, 3, 3)), 1)

    def test_zeroes(self):
        self.region.done(0, 4, durable=False)
        self.region.sent(0, 2, 0)
        self.assertEqual(self.problems(0, 3, 2, 1), [])

    def test_regions_cover_the_volume(self):
        regions = Load(100 * SECTOR, writers=7).regions
        self.assertEqual([(region.first, region.sectors) for region in regions][0][0], 0)
        self.assertEqual(sum(region.sectors for region in regions), 100)
