"""Common tools: nbdinfo, nbdcopy, qemu-img, qemu-io."""

import json
import unittest

import nbd
from harness.case import SharedServerCase
from harness.files import random_image, sparse_image
from harness.server import MIB, run


class Tools(SharedServerCase):
    """Each works as with any other server."""

    def test_nbdinfo_shows_what_the_volume_can_do(self):
        name = self.volume("64MiB")
        shown = json.loads(run("nbdinfo", "--json", self.server.uri(name)).stdout)
        export = shown["exports"][0]
        self.assertEqual(shown["protocol"], "newstyle-fixed")
        self.assertTrue(shown["structured"], "structured replies are not negotiated")
        self.assertEqual(export["export-size"], 64 * MIB)
        wanted = dict.fromkeys(
            "can_flush can_fua can_trim can_zero can_fast_zero can_df can_cache can_multi_conn".split(), True
        )
        wanted["is_read_only"] = False
        self.assertEqual({key: export.get(key) for key in wanted}, wanted)
        self.assertIn("base:allocation", export["contexts"])
        sizes = [export[f"block_size_{which}"] for which in ("minimum", "preferred", "maximum")]
        # libnbd 1.18 and later negotiate extended headers.
        extends = hasattr(nbd.NBD, "get_extended_headers_negotiated")
        self.assertEqual(sizes, [1, 4096, (64 if extends else 32) * MIB])

    def test_nbdinfo_lists_volumes(self):
        first = self.volume("1MiB")
        self.server.create("another", "2MiB")
        self.addCleanup(self.server.cli, "volume", "delete", "another", "--yes", "--force")
        shown = json.loads(run("nbdinfo", "--list", "--json", self.server.uri("")).stdout)
        sizes = {export["export-name"]: export["export-size"] for export in shown["exports"]}
        self.assertEqual(sizes, {first: MIB, "another": 2 * MIB})

    def test_nbdinfo_maps_what_was_written(self):
        name = self.volume("16MiB", "--sparse")
        handle = self.server.open(name)
        handle.pwrite(b"x" * MIB, 4 * MIB)
        extents = json.loads(run("nbdinfo", "--map", "--json", self.server.uri(name)).stdout)
        self.assertEqual(sum(extent["length"] for extent in extents), 16 * MIB)
        data = [(e["offset"], e["length"]) for e in extents if e["type"] == 0]
        self.assertEqual(data, [(4 * MIB, MIB)], f"one written MiB is mapped as {extents}")

    def test_nbdinfo_size(self):
        name = self.volume("1048064")
        self.assertEqual(run("nbdinfo", "--size", self.server.uri(name)).stdout.strip(), "1048064")

    def copy_there_and_back(self, image, size, *there):
        uri = self.server.uri(self.volume(str(size)))
        back = self.scratch / "back"
        run("nbdcopy", "--flush", *there, image, uri)
        run("nbdcopy", uri, back)
        run("cmp", image, back)

    def test_nbdcopy_noise(self):
        self.copy_there_and_back(random_image(self.scratch / "image", 96 * MIB), 96 * MIB)

    def test_nbdcopy_with_several_connections(self):
        options = ("--connections=4", "--requests=32", "--threads=4")
        self.copy_there_and_back(random_image(self.scratch / "image", 96 * MIB), 96 * MIB, *options)

    def test_nbdcopy_synchronous(self):
        self.copy_there_and_back(random_image(self.scratch / "image", 8 * MIB), 8 * MIB, "--synchronous")

    def test_nbdcopy_holes(self):
        self.copy_there_and_back(sparse_image(self.scratch / "image", 256 * MIB, 60), 256 * MIB)

    def test_nbdcopy_holes_over_old_data(self):
        uri = self.server.uri(self.volume("64MiB", "--sparse"))
        run("nbdcopy", random_image(self.scratch / "noise", 64 * MIB), uri)
        sparse = sparse_image(self.scratch / "sparse", 64 * MIB, 20)
        run("nbdcopy", sparse, uri)
        run("nbdcopy", uri, self.scratch / "back")
        run("cmp", sparse, self.scratch / "back")

    def test_nbdcopy_from_volume_to_volume(self):
        image = random_image(self.scratch / "image", 32 * MIB)
        first = self.server.uri(self.volume("32MiB"))
        second = self.server.create("second", "32MiB")
        self.addCleanup(self.server.cli, "volume", "delete", "second", "--yes", "--force")
        run("nbdcopy", image, first)
        run("nbdcopy", first, second)
        run("nbdcopy", second, self.scratch / "back")
        run("cmp", image, self.scratch / "back")

    def test_qemu_img_raw(self):
        image = sparse_image(self.scratch / "image", 64 * MIB, 30)
        uri = self.server.uri(self.volume("64MiB"))
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, uri)
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)
        run("qemu-img", "convert", "-f", "raw", "-O", "raw", "-m", "8", "-W", uri, self.scratch / "back")
        run("cmp", image, self.scratch / "back")
        info = json.loads(run("qemu-img", "info", "--output=json", "-f", "raw", uri).stdout)
        self.assertEqual(info["virtual-size"], 64 * MIB)

    def test_qemu_img_qcow2_in_a_volume(self):
        image = sparse_image(self.scratch / "image", 64 * MIB, 30)
        uri = self.server.uri(self.volume("80MiB"))
        run("qemu-img", "create", "-f", "qcow2", uri, "64M")
        run("qemu-img", "convert", "-n", "-f", "raw", "-O", "qcow2", image, uri)
        run("qemu-img", "check", "-f", "qcow2", uri)
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, uri)
        run("qemu-img", "snapshot", "-c", "before", uri)
        self.qemu_io(uri, "write -P 0x5a 1M 3M", "flush", image_format="qcow2")
        run("qemu-img", "snapshot", "-a", "before", uri)
        run("qemu-img", "check", "-f", "qcow2", uri)
        run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", image, uri)

    def test_qemu_img_map_and_bench(self):
        uri = self.server.uri(self.volume("64MiB"))
        run("qemu-img", "bench", "-f", "raw", "-w", "-c", "2000", "-d", "32", "-s", "4k", uri)
        run("qemu-img", "bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "12345", uri)
        run("qemu-img", "map", "-f", "raw", uri)

    def qemu_io(self, uri, *commands, image_format="raw"):
        words = [word for command in commands for word in ("-c", command)]
        done = run("qemu-io", "-f", image_format, *words, uri)
        said = done.stdout + done.stderr
        for bad in ("Pattern verification failed", "rror"):
            self.assertNotIn(bad, said, f"qemu-io {commands}")
        return said

    def test_qemu_io_patterns(self):
        uri = self.server.uri(self.volume("64MiB"))
        self.qemu_io(
            uri,
            "write -P 0x11 0 1M",
            "write -P 0x22 123 4567",
            "read -P 0x11 0 123",
            "read -P 0x22 123 4567",
            "read -P 0x11 4690 4096",
            "write -z 8193 12287",
            "read -P 0 8193 12287",
            "read -P 0x11 20480 512",
            "write -f -P 0x33 5M 100k",
            "write -z -u 5200k 20k",
            "read -P 0 5200k 20k",
            "read -P 0x33 5M 80k",
            "aio_write -P 0x44 10M 4M",
            "aio_write -P 0x55 20M 64k",
            "aio_flush",
            "read -P 0x44 10M 4M",
            "flush",
        )
        self.qemu_io(uri, "read -P 0x22 123 4567", "read -P 0x55 20M 64k", "read -P 0x33 5M 80k")

    def test_qemu_io_discard_keeps_the_neighbours(self):
        uri = self.server.uri(self.volume("64MiB", "--sparse"))
        self.qemu_io(
            uri,
            "write -P 0x11 0 8M",
            "flush",
            "discard 1M 2M",
            "read -P 0x11 0 1M",
            "read -P 0x11 3M 5M",
            "discard 4000001 77777",
            "read -P 0x11 3M 854273",
            "read -P 0x11 4077778 1M",
            "write -P 0x66 1500k 30k",
            "flush",
            "read -P 0x66 1500k 30k",
        )
        self.qemu_io(uri, "read -P 0x66 1500k 30k", "read -P 0x11 3M 854273")

    def test_qemu_io_at_the_end_of_an_odd_size(self):
        uri = self.server.uri(self.volume("1049088"))
        self.qemu_io(uri, "write -P 7 1048576 512", "flush", "read -P 7 1048576 512", "write -P 8 1049087 1")
        self.qemu_io(uri, "read -P 7 1048576 511", "read -P 8 1049087 1")

    def test_restart_keeps_what_was_copied(self):
        image = random_image(self.scratch / "image", 32 * MIB)
        uri = self.server.uri(self.volume("32MiB"))
        run("nbdcopy", image, uri)
        self.server.restart()
        run("nbdcopy", uri, self.scratch / "back")
        run("cmp", image, self.scratch / "back")


class ToolsOnThreads(Tools):
    """The same with the `threads` reactor."""

    reactor = "threads"


if __name__ == "__main__":
    unittest.main()
