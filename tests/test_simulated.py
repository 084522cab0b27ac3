"""Simulated disks in real time: the timing of the drive, the data of the files."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from harness import places
from harness.case import ServerCase
from harness.server import GIB, MIB, run

PRESETS = Path(__file__).resolve().parent.parent / "sim/src/disk/drive/presets"
# Half a rotation at 7,200 per minute, seconds: on average, no drive of that speed serves random requests faster.
HALF_ROTATION = 60 / 7200 / 2
READS = 200


class Simulated(ServerCase):
    def names(self, server):
        return [disk["name"] for disk in server.json("disk", "list")]

    def test_a_disk_with_heads_serves_fio(self):
        server = self.serve(cache="32MiB")
        server.cli("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", "40GiB")
        shown = server.json("disk", "show", "hdd")["simulated"]
        self.assertEqual(shown["description"], "sim:barracuda-7200.9")
        self.assertEqual((shown["rotational"], shown["size_bytes"]), (True, 40 * GIB))
        self.assertIn("sim:barracuda-7200.9", server.cli("disk", "list").stdout)
        uri = server.create("v", "20GiB", "--disk", "hdd")
        self.assertTrue(server.open("v").is_rotational())
        server.create("flat", "4MiB", "--disk", "default")
        self.assertFalse(server.open("flat").is_rotational())
        report = self.scratch / "fio.json"
        run(
            *("fio", "--name=random", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--bs=4k", "--iodepth=1"),
            *(f"--number_ios={READS}", "--randseed=7", "--output-format=json", f"--output={report}"),
        )
        text = report.read_text()
        job = json.loads(text[text.index("{") :])["jobs"][0]
        self.assertEqual((job["error"], job["read"]["total_ios"]), (0, READS))
        seconds = job["read"]["lat_ns"]["mean"] / 1e9
        # The mean of so many random angles is within a tenth of half a rotation; arm and electronics add to it.
        self.assertGreater(seconds, 0.9 * HALF_ROTATION, "random reads are faster than the drive turns")
        self.assertLess(seconds, 20 * HALF_ROTATION)
        metrics = server.metrics()
        late = "aerogel_simulated_completion_late_seconds_count"
        told = sum(metrics[f'{late}{{disk="hdd",cause="{cause}"}}'] for cause in ("clock", "file"))
        # Reads of unwritten blocks go to the drive, too.
        self.assertGreaterEqual(told, READS)
        self.assertFalse([key for key in metrics if key.startswith(late) and 'disk="default"' in key])

    def test_a_drive_that_holds_more_than_the_file_system_is_named(self):
        server = self.serve()
        large = self.scratch / "large.toml"
        text = (PRESETS / "flash.toml").read_text()
        large.write_text(re.sub("^bytes = .*", f"bytes = {1 << 60}", text, flags=re.MULTILINE))
        said = server.cli("disk", "add", "large", f"sim:{large}").stdout
        self.assertIn("its simulated drive has 1EiB, but its file system only", said)
        self.assertIn("its simulated drive has 1EiB", server.cli("status").stdout)
        said = server.cli("disk", "add", "small", f"sim:{large}", "--size", "4MiB").stdout
        self.assertNotIn("its simulated drive has", said)

    def test_data_and_drive_survive_a_restart(self):
        server = self.serve()
        mine = self.scratch / "mine.toml"
        text = (PRESETS / "nearline.toml").read_text()
        mine.write_text(re.sub("^model = .*", 'model = "mine"', text, flags=re.MULTILINE))
        server.cli("disk", "add", "hdd", f"sim:{mine}", "--size", "1GiB", "--directory", self.scratch / "elsewhere")
        server.create("v", "256MiB", "--disk", "hdd")
        handle = server.open("v")
        handle.pwrite(b"s" * MIB, 100 * MIB)
        handle.flush()
        before = server.json("disk", "show", "hdd")["simulated"]
        self.assertEqual((before["model"], before["free_bytes"]), ("mine", GIB - 256 * MIB))
        data = self.scratch / "elsewhere/volumes/v.img"
        self.assertEqual(data.stat().st_size, 256 * MIB)
        self.assertLess(data.stat().st_blocks * 512, 16 * MIB, "the data is not in a sparse file")
        # The disk has its own copy of the description, which moves with it.
        mine.unlink()
        server.restart()
        self.assertEqual(server.json("disk", "show", "hdd")["simulated"], before)
        self.assertEqual(server.open("v").pread(MIB, 100 * MIB), b"s" * MIB)
        server.cli("disk", "remove", "hdd")
        self.assertEqual(self.names(server), ["default"])
        server.cli("disk", "add", "again", self.scratch / "elsewhere")
        self.assertEqual(server.json("disk", "show", "again")["simulated"], before)
        self.assertEqual(server.open("v").pread(MIB, 100 * MIB), b"s" * MIB)

    @unittest.skipUnless(os.environ.get("AEROGEL_TEST_LONG"), "takes 40 s alone: runs in `make test-long`")
    def test_a_probe_finds_the_truth_of_the_drive(self):
        presets = {"heads": "cheetah-15k5", "cloud": "throttled"}
        server = self.serve()
        probes = {}
        for name, preset in presets.items():
            server.cli("disk", "add", name, f"sim:{preset}")
            # A rotation is usually recognised within 25 s; on a busy machine the last rounds may come too late for
            # that.
            words = (places.binary(), "disk", "probe", name, "--seconds", "40", "--json", "--data", server.data)
            probes[name] = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
            self.addCleanup(probes[name].stdout.close)
            self.addCleanup(probes[name].wait)
            self.addCleanup(probes[name].kill)
        found = {}
        for name, client in probes.items():
            shown = json.loads(client.stdout.read())["disk"]
            self.assertEqual(client.wait(), 0)
            found[name] = {value["name"]: value["value"] for value in shown["profile"]["values"]}
            self.assertEqual(sorted(os.listdir(server.data / "disks" / name)), ["disk.toml", "lock", "volumes"])
        heads, cloud = found["heads"], found["cloud"]
        self.assertEqual((heads["needs_slices"], cloud["needs_slices"]), (1, 0))
        self.assertEqual((cloud["rotation_period_ns"], heads["throttle_requests_per_s"]), (None, None))
        streams = [f"sequential_{op}_at_{at}_percent_bytes_per_s" for op in ("read", "write") for at in (0, 25, 50, 75)]
        within = {
            "heads": {"rotation_period_ns": 0.01, "switch_cost_p50_ns": 0.1, "service_read_p50_ns": 0.1}
            | dict.fromkeys(streams, 0.05),
            "cloud": dict.fromkeys(("throttle_requests_per_s", "throttle_bytes_per_s", "throttle_stall_ns"), 0.1)
            | dict.fromkeys(streams, 0.05),
        }
        for name, preset in presets.items():
            lab = run(places.lab(), "disk", "probe", preset, "--json", check=False)
            truth = {value["name"]: value["truth"] for value in json.loads(lab.stdout)["values"]}
            for key, bound in within[name].items():
                with self.subTest(preset=preset, key=key):
                    self.assertLess(abs(found[name][key] / truth[key] - 1), bound, (found[name][key], truth[key]))

    def test_what_is_no_drive_is_refused(self):
        server = self.serve()
        broken = self.scratch / "broken.toml"
        broken.write_text("model = 1\n")
        for words, part in {
            ("sim:baracuda",): "barracuda-7200.9",
            ("sim:nearline", "--size", "100TiB"): "the requested 100TiB",
            ("sim:nearline", "--size", "1000"): "multiple of 4KiB",
            (f"sim:{broken}",): "is invalid",
            (f"sim:{self.scratch}/absent.toml",): "cannot be read",
            (self.scratch / "plain", "--size", "1GiB"): "for simulated disks only",
            (server.data / "disks/default", "--fault", "gone"): "contains a disk already",
        }.items():
            self.assertIn(part, server.refused("disk", "add", "hdd", *map(str, words)))
        self.assertEqual(self.names(server), ["default"])
        self.assertFalse((server.data / "disks/hdd").exists())

    def test_volumes_have_their_places(self):
        server = self.serve()
        server.cli("disk", "add", "hdd", "sim:flash", "--size", "100MiB")
        for name, size in {"a": "30MiB", "b": "30MiB", "c": "30MiB"}.items():
            server.create(name, size, "--disk", "hdd")
        self.assertIn("do not fit", server.refused("volume", "create", "d", "20MiB", "--disk", "hdd"))
        self.assertIn("0B are free behind it", server.refused("volume", "grow", "a", "31MiB"))
        server.cli("volume", "grow", "c", "40MiB")
        server.open("b").pwrite(b"b" * MIB, 29 * MIB)
        server.cli("volume", "delete", "a", "--yes", "--force")
        server.create("d", "20MiB", "--disk", "hdd")
        self.assertIn("10MiB", server.refused("volume", "create", "e", "11MiB", "--disk", "hdd"))
        full = ("volume", "create", "e", "1MiB", "--disk", "hdd", "--prealloc", "full")
        self.assertIn("leave out --prealloc", server.refused(*full))
        server.restart()
        server.create("e", "10MiB", "--disk", "hdd")
        self.assertEqual(server.json("disk", "show", "hdd")["simulated"]["free_bytes"], 0)
        handle = server.open("c")
        handle.pwrite(b"c" * MIB, 39 * MIB)
        handle.flush()
        self.assertEqual(handle.pread(MIB, 39 * MIB), b"c" * MIB)
        self.assertEqual(server.open("b").pread(MIB, 29 * MIB), b"b" * MIB)
