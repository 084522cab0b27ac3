"""Miss-ratio curves as a client and an operator see them."""

import random
import tempfile
import xml.etree.ElementTree as Xml
from pathlib import Path

from harness.case import SharedServerCase
from harness.server import MIB

BLOCK = 4096


class Curves(SharedServerCase):
    """Volumes whose clients read repeatedly."""

    def at(self, curve, size):
        """The miss ratio of reads at the point nearest to a size."""
        return min(curve["points"], key=lambda point: abs(point["cache_bytes"] - size))["read_miss_ratio"]

    def used(self, blocks, requests, *more):
        """A volume of which so many blocks were read at random."""
        name = self.volume("64MiB", *more)
        handle = self.server.open(name)
        # Blocks that were never written are read without the disk, and so do not count in the curve.
        for offset in range(0, blocks * BLOCK, MIB):
            handle.pwrite(b"x" * MIB, offset)
        handle.flush()
        dice = random.Random(1)
        for _ in range(requests):
            handle.pread(BLOCK, dice.randrange(blocks) * BLOCK)
        return name

    def test_working_set_shows(self):
        """With half of a working set that is used evenly, half of the reads hit."""
        name = self.used(4096, 20000)
        curve = self.server.json("volume", "curve", name)
        self.assertEqual((curve["policy"], curve["running"], curve["tenant"]), ("lru", "lru", name))
        self.assertGreater(self.at(curve, MIB), 0.85)
        self.assertAlmostEqual(self.at(curve, 8 * MIB), 0.5, delta=0.12)
        self.assertLess(self.at(curve, 20 * MIB), 0.12)
        shown = self.server.json("volume", "show", name)
        self.assertEqual(curve["partition_bytes"], shown["cache"]["effective_bytes"])
        ratios = [point["miss_ratio"] for point in curve["points"]]
        self.assertEqual(ratios, sorted(ratios, reverse=True), "a larger cache absorbs less")

    def test_chart_and_picture(self):
        name = self.used(4096, 4000)
        text = self.server.cli("volume", "curve", name).stdout
        for wanted in (name, "100 %", "▲", "now:", "(lru)", "16MiB"):
            self.assertIn(wanted, text)
        with tempfile.TemporaryDirectory() as directory:
            picture = Path(directory) / "curve.svg"
            self.server.cli("volume", "curve", name, "--policy", "sieve", "--svg", picture)
            root = Xml.parse(picture).getroot()
            self.assertTrue(root.tag.endswith("svg"))
            self.assertIn("not its present policy", picture.read_text())
            self.assertIn("now:", picture.read_text())
            self.assertIn(
                "cannot write", self.server.refused("volume", "curve", name, "--svg", Path(directory) / "no" / "x")
            )

    def test_little_is_no_curve(self):
        name = self.volume()
        self.assertIn("no curve yet", self.server.cli("volume", "curve", name).stdout)
        self.assertEqual(self.server.json("volume", "curve", name)["miss_ratio"], None)
        self.assertIn("ghost", self.server.refused("volume", "curve", "ghost"))
        self.server.refused("volume", "curve", name, "--policy", "random")

    def test_eviction_is_the_tenants(self):
        first = self.volume("8MiB", "--tenant", "shop", "--eviction", "sieve")
        self.server.create("second", "8MiB", "--tenant", "shop")
        self.addCleanup(self.server.cli, "volume", "delete", "second", "--yes", "--force")
        shown = [self.server.json("volume", "show", name)["cache"]["eviction"] for name in (first, "second")]
        self.assertEqual(shown, ["sieve", "sieve"])
        self.assertEqual(self.server.json("volume", "curve", "second")["running"], "sieve")
        self.server.restart()
        self.assertEqual(self.server.json("volume", "show", "second")["cache"]["eviction"], "sieve")
        self.server.cli("volume", "set", "second", "--eviction", "lru")
        self.assertEqual(self.server.json("volume", "show", first)["cache"]["eviction"], "lru")
        self.server.refused("volume", "set", first, "--eviction", "random")

    def test_data_survives_a_change_of_policy(self):
        name = self.volume("32MiB", "--cache", "2MiB")
        handle = self.server.open(name)
        policies = ["sieve", "lru", "sieve"]
        for at in range(0, 32 * MIB, MIB):
            handle.pwrite(bytes([at // MIB]) * MIB, at)
            if at % (8 * MIB) == 0 and policies:
                self.server.cli("volume", "set", name, "--eviction", policies.pop())
        for at in range(0, 32 * MIB, MIB):
            self.assertEqual(handle.pread(MIB, at), bytes([at // MIB]) * MIB)
