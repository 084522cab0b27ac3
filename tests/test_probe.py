"""`disk probe`: measures the real disk here, keeps the results, and leaves nothing behind."""

import json
import os
import signal
import subprocess

from harness import places
from harness.case import ServerCase
from harness.loops import mount_file
from harness.server import COMMAND_SECONDS, MIB, run
from harness.wait import until

# For `tests/run.py`.
LANE = 3

# The shortest duration: precision is not tested here.
SHORT = "3"


def deleted_files(pid):
    """Unlinked files that a process has open, and their sizes."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if ".probe.tmp" in os.readlink(path):
                found.append(os.stat(path).st_size)
        except FileNotFoundError:
            pass
    return found


class Probes(ServerCase):
    """One server, one disk."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.disk = self.server.data / "disks" / "default"

    def probe_view(self):
        status, body = self.server.get("/v1/disks/default/probe")
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def values(self):
        shown = self.server.json("disk", "show", "default")
        return {value["name"]: value for value in shown["profile"]["values"]}

    def begin(self, seconds):
        """A probe that runs in the background; killed with the test."""
        command = [places.binary(), "disk", "probe", "default", "--seconds", str(seconds), "--data", self.server.data]
        client = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        until("the probe to begin", lambda: self.probe_view()["state"] == "running")
        return client

    def test_two_probes_agree_or_say_why_and_survive_a_restart(self):
        self.assertIn("disk probe", self.server.cli("disk", "show", "default").stdout)
        said = self.server.cli("disk", "probe", "default", "--seconds", SHORT).stdout
        self.assertRegex(said, "undisturbed|disturbed: ")
        first = self.values()
        for name, least in {
            "sequential_read_at_0_percent_bytes_per_s": MIB,
            "sequential_write_at_95_percent_bytes_per_s": MIB,
            "random_read_4096_bytes_depth_32_requests_per_s": 10,
            "random_write_4096_bytes_depth_1_requests_per_s": 10,
            "service_read_p99_ns": 1000,
            "switch_cost_p50_ns": 0,
        }.items():
            self.assertGreaterEqual(first[name]["value"], least, name)
            self.assertEqual(first[name]["source"], "measured")
            self.assertRegex(first[name]["at"], r"^20\d\d-\d\d-\d\dT")
            self.assertTrue(first[name]["method"])
        self.assertIn("rotation_period_ns", first, "that nothing turns is a finding too")
        again = self.server.json("disk", "probe", "default", "--seconds", SHORT)
        self.assertRegex(again["message"], "of the last probe")
        second = self.values()
        self.server.restart()
        self.assertEqual(self.values(), second)
        self.assertIn("measured", (self.disk / "disk.toml").read_text())
        shown = self.server.cli("disk", "show", "default").stdout
        self.assertRegex(shown, "policy +insulated: by (slices of disk time|cost), according to its profile")
        self.assertEqual(sorted(os.listdir(self.disk)), ["disk.toml", "lock", "volumes"])

    def test_override_is_shown_as_one_and_taken_back(self):
        self.server.cli(
            "disk", "set", "default", "--profile", "switch_cost_p50_ns=5000000", "--profile", "needs_slices=1"
        )
        value = self.values()["switch_cost_p50_ns"]
        self.assertEqual((value["value"], value["source"]), (5_000_000, "override"))
        shown = self.server.cli("disk", "show", "default").stdout
        self.assertIn("OVERRIDE", shown)
        self.assertIn("insulated: by slices of disk time, according to its profile", shown)
        self.server.restart()
        self.server.cli("disk", "probe", "default", "--seconds", SHORT)
        value = self.values()["switch_cost_p50_ns"]
        self.assertEqual((value["value"], value["source"]), (5_000_000, "override"), "a probe replaced an override")
        self.assertIsNotNone(value["measured"])
        self.server.cli("disk", "set", "default", "--profile", "switch_cost_p50_ns=measured")
        self.assertEqual(self.values()["switch_cost_p50_ns"]["source"], "measured")
        before = self.values()
        for wrong in ("colour=1", "needs_slices=7", "switch_cost_p50_ns=5ms", "switch_cost_p50_ns"):
            with self.subTest(wrong=wrong):
                said = self.server.refused("disk", "set", "default", "--profile", wrong)
                self.assertIn(wrong.split("=")[0], said)
        self.assertEqual(self.values(), before)

    def test_progress_second_probe_and_cancel(self):
        client = self.begin(60)
        until("some progress", lambda: self.probe_view()["done_ratio"] > 0 and self.probe_view()["doing"])
        said = self.server.refused("disk", "probe", "default")
        self.assertIn("default", said)
        self.assertIn("--cancel", said)
        self.assertTrue(self.server.cli("disk", "show", "default").stdout, "a probe keeps others from looking")
        self.server.cli("disk", "probe", "default", "--cancel")
        self.assertEqual(client.wait(COMMAND_SECONDS), 1)
        self.assertIn("cancelled", client.stdout.read())
        until("the scratch file to be gone", lambda: not deleted_files(self.server.pid))
        self.assertEqual(self.values(), {}, "a cancelled probe left values")

    def test_interrupt_cancels(self):
        client = self.begin(60)
        client.send_signal(signal.SIGINT)
        self.assertEqual(client.wait(COMMAND_SECONDS), 1)
        self.assertEqual(self.probe_view()["state"], "cancelled")

    def test_kill_leaves_no_scratch_file(self):
        self.begin(60)
        until("the scratch file", lambda: deleted_files(self.server.pid))
        self.server.kill()
        (self.disk / ".probe.tmp").write_bytes(b"as a crash between two steps would leave it")
        self.server.start()
        self.assertEqual(sorted(os.listdir(self.disk)), ["disk.toml", "lock", "volumes"])
        self.assertEqual(self.probe_view()["state"], "none")

    def test_stop_does_not_wait_for_a_probe(self):
        self.begin(60)
        self.assertEqual(self.server.stop(), 0)

    def test_volumes_are_served_meanwhile(self):
        self.server.create("db", "16MiB")
        handle = self.server.open("db")
        client = self.begin(int(SHORT))
        written = 0
        while client.poll() is None:
            handle.pwrite(os.urandom(65536), written % 200 * 65536)
            handle.flush()
            written += 1
        self.assertEqual(client.returncode, 0, client.stdout.read())
        self.assertGreater(written, 0)
        self.assertGreater(self.values()["disturbed_by_volumes_ratio"]["value"], 0)

    def test_others_on_the_device_are_told(self):
        other = self.scratch / "other"
        words = ("--size=64M", "--rw=randwrite", "--bs=64k", "--direct=1", "--ioengine=psync", "--numjobs=4")
        words = ("fio", "--name=other", f"--filename={other}", *words, "--time_based", "--runtime=120", "--thread")
        neighbour = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(neighbour.wait)
        self.addCleanup(neighbour.kill)
        until("the neighbour to write", lambda: other.exists() and other.stat().st_blocks * 512 >= 64 * MIB)
        said = self.server.cli("disk", "probe", "default", "--seconds", SHORT).stdout
        self.assertIsNone(neighbour.poll(), "the neighbour has ended")
        self.assertRegex(said, "disturbed: others used [0-9]+ % of the device")
        values = self.values()
        ratio, most = (values[f"disturbed_by_others_{what}ratio"]["value"] for what in ("", "most_"))
        self.assertTrue(0.05 <= ratio <= 1 and 0.05 <= most <= 1, (ratio, most))

    def test_no_space_is_refused(self):
        small = self.scratch / "small"
        image = self.scratch / "small.img"
        with open(image, "wb") as file:
            file.truncate(128 * MIB)
        small.mkdir()
        run("mkfs.ext4", "-q", image)
        mounted = mount_file(image, small, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(run, "umount", "--lazy", small, check=False)
        self.server.cli("disk", "add", "small", str(small))
        said = self.server.refused("disk", "probe", "small", "--seconds", SHORT)
        self.assertIn("256MiB", said)
        self.assertIn("small", said)
        self.assertNotIn(".probe.tmp", os.listdir(small))
        until("the disk to be removed", lambda: self.server.cli("disk", "remove", "small", check=False).returncode == 0)
