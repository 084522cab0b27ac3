"""Guarantees with real clients: set, refused, kept over a restart; missed windows and their classes."""

import json
import os
import subprocess
import threading
import unittest

from harness.case import ServerCase
from harness.wait import until

KIB, MIB = 1 << 10, 1 << 20
# Longer than two windows of 15 s.
SECONDS = 34
# Until a late window ends because its tenant has been without demand for 15 s.
CLOSED_SECONDS = 90


class Promises(ServerCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.server.cli("disk", "add", "hdd", "sim:cheetah-15k5")

    def create(self, name, *more):
        return self.server.cli("volume", "create", name, "1GiB", "--disk", "hdd", *more).stdout

    def guarantee(self, name):
        [on] = self.server.json("tenant", "show", name)["disks"]
        return on["guarantee"], on["spec"]["min_bandwidth"]

    def test_a_guarantee_is_told_changed_and_kept(self):
        said = self.create("db", "--share", "1/3", "--min-bandwidth", "30MiB/s")
        self.assertIn("'db' gets at least 30MiB/s as long as that fits into 33.33% of the disk's time", said)
        self.assertIn("the disk was not probed", said)
        told, requested = self.guarantee("db")
        self.assertEqual((told["min_bandwidth"], requested), (30 * MIB, "30MiB/s"))
        self.assertAlmostEqual(told["share"], 1 / 3)
        self.assertEqual(self.server.json("volume", "show", "db")["guarantee"]["min_bandwidth"], 30 * MIB)
        self.assertIn("30MiB/s", self.server.cli("tenant", "list").stdout)
        self.server.restart()
        self.assertEqual(self.guarantee("db")[0]["min_bandwidth"], 30 * MIB)
        said = self.server.cli("tenant", "set", "db", "--min-bandwidth", "2MiB/s").stdout
        self.assertIn("at least 2MiB/s", said)
        label = '{disk="hdd",tenant="db"}'
        self.assertEqual(self.server.metrics()[f"aerogel_tenant_min_bandwidth_bytes_per_second{label}"], 2 * MIB)
        said = self.server.cli("volume", "set", "db", "--share", "1/2").stdout
        self.assertIn("at least 2MiB/s as long as that fits into 50%", said)
        self.assertIn("no missed windows", self.server.cli("tenant", "violations", "db").stdout)
        said = self.server.cli("volume", "set", "db", "--min-bandwidth", "none").stdout
        self.assertIn("no minimum bandwidth any more", said)
        self.assertEqual(self.guarantee("db"), (None, "none"))
        self.assertIn("has no guarantee", self.server.cli("tenant", "violations", "db").stdout)

    def test_what_cannot_be_promised_is_refused_with_the_remedy(self):
        self.create("db", "--share", "1/2")
        self.assertIn("'none'", self.server.refused("tenant", "set", "db", "--min-bandwidth", "0"))
        self.assertIn("30MiB/s", self.server.refused("tenant", "set", "db", "--min-bandwidth", "fast"))
        self.server.cli("disk", "set", "hdd", "--profile", "sequential_read_at_0_percent_bytes_per_s=100000000")
        self.server.cli("disk", "set", "hdd", "--profile", "random_read_4096_bytes_depth_16_requests_per_s=300")
        said = self.server.refused("tenant", "set", "db", "--min-bandwidth", "60MiB/s")
        for part in ("can never hold in 50%", "95.4MiB/s", "larger share"):
            self.assertIn(part, said)
        self.assertEqual(self.guarantee("db"), (None, "none"))
        said = self.server.cli("tenant", "set", "db", "--min-bandwidth", "1MiB/s").stdout
        for part in ("(sequential reads)", "(random reads of 4KiB at depth 16)", "over-full"):
            self.assertIn(part, said)
        asked = ("volume", "create", "web", "1GiB", "--disk", "hdd", "--share", "1/4", "--dry-run", "--min-bandwidth")
        self.assertIn("its guarantee: ", self.server.cli(*asked, "1MiB/s").stdout)
        plan = self.server.json(*asked, "1MiB/s")["guarantee"]
        self.assertAlmostEqual(plan["need_best"], MIB / 1e8 / 0.9, places=4)
        self.assertGreater(plan["need_worst"], plan["need_best"])
        self.assertIn("can never", self.server.refused(*asked, "50MiB/s"))

    def test_shares_exceed_a_disk_only_with_overcommit(self):
        self.create("db", "--share", "3/4")
        asked = ("volume", "create", "web", "1GiB", "--disk", "hdd", "--share", "3/4")
        self.assertIn("--overcommit", self.server.refused(*asked))
        self.assertIn("0% would remain", self.server.cli(*asked, "--overcommit", "--dry-run").stdout)
        self.server.cli(*asked, "--overcommit")
        self.assertIn("150%, OVERCOMMITTED", self.server.cli("disk", "show", "hdd").stdout)
        self.assertAlmostEqual(self.server.json("volume", "show", "web")["share"]["effective"], 0.5)
        # What it has already may be kept or reduced.
        self.server.cli("tenant", "set", "db", "--share", "2/3")
        self.server.cli("tenant", "set", "db", "--cache", "8MiB")
        self.server.refused("tenant", "set", "db", "--share", "3/4")
        self.server.restart()
        self.assertEqual(self.server.json("volume", "show", "web")["condition"], "online")


class Violations(ServerCase):
    def fio(self, name, depth):
        command = ["fio", f"--name={name}", "--ioengine=nbd", f"--uri={self.server.uri(name)}", "--rw=randread"]
        command += ["--bs=4k", f"--iodepth={depth}", "--time_based", f"--runtime={SECONDS}", "--randrepeat=0"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        return process

    def missed(self, name):
        return self.server.json("tenant", "violations", name)["violations"]

    def events(self):
        return [event for event in self.server.json("status")["events"] if "missed" in event["reason"]]

    @unittest.skipUnless(os.environ.get("AEROGEL_TEST_LONG"), "takes three windows: runs in `make test-long`")
    def test_each_class_is_told_with_its_evidence(self):
        """Without insulation, a client with one request at a time beside one with many."""
        self.server = self.serve(cache="32MiB")
        self.server.cli("disk", "add", "hdd", "sim:cheetah-15k5", "--policy", "none")
        for name, share, rate in (("one", "1/2", "100KiB/s"), ("many", "1/4", "8MiB/s"), ("rare", "1/8", "1MiB/s")):
            said = self.server.cli(
                "volume", "create", name, "16GiB", "--disk", "hdd", "--share", share, "--min-bandwidth", rate
            ).stdout
            self.assertIn("its share and its minimum bandwidth have no effect", said)
        loads = [self.fio("one", 1), self.fio("many", 8)]
        done = threading.Event()
        handle = self.server.open("rare")

        def trickle():
            offset = 0
            while not done.wait(1):
                handle.pread(4096, offset)
                offset += 64 * KIB

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            for load in loads:
                self.assertEqual(load.wait(CLOSED_SECONDS), 0)
        finally:
            done.set()
            thread.join()
        for name, kind in (("rare", "no-demand"), ("one", "avoidable"), ("many", "fundamental")):
            missed = until(f"the missed windows of {name}", lambda name=name: self.missed(name), CLOSED_SECONDS)
            self.assertEqual({window["class"] for window in missed}, {kind}, missed)
            first = missed[0]
            self.assertGreaterEqual(first["seconds"], 15)
            self.assertLessEqual(first["demand_seconds"], first["seconds"] + 0.01)
            self.assertGreater(first["slice_seconds"], 0)
            self.assertEqual([window["at"] for window in missed], sorted(window["at"] for window in missed))
            if kind != "no-demand":
                fits = first["share"] * first["insulation"] * first["own_rate"] >= first["min_bandwidth"]
                self.assertEqual(fits, kind == "avoidable", first)
            metric = f'aerogel_tenant_guarantee_windows_total{{disk="hdd",tenant="{name}",outcome="{kind}"}}'
            self.assertEqual(self.server.metrics()[metric], len(missed))
            self.assertIn(kind, self.server.cli("tenant", "violations", name, "--disk", "hdd").stdout)
        told = until("the event", self.events)
        self.assertEqual([event["tenant"] for event in told], ["one"], json.dumps(told))
        self.assertIn("100KiB/s", self.server.cli("top", "--once").stdout)
