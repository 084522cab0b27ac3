"""What a tenant needs for R: planned before creation, decided after a trial, reported, and kept over a restart."""

import subprocess

from harness.case import ServerCase
from harness.wait import until

MIB = 1 << 20
# A trial ends within a minute of its first request.
TRIAL_SECONDS = 90


class Decisions(ServerCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(cache="64MiB")
        self.server.cli("disk", "add", "hdd", "sim:cheetah-15k5")

    def create(self, name, *more):
        return self.server.cli("volume", "create", name, "1GiB", "--disk", "hdd", *more).stdout

    def sizing(self, name):
        return self.server.json("volume", "show", name)["sizing"]

    def test_asking_changes_nothing(self):
        self.create("db", "--share", "3/4", "--cache", "16MiB")
        asked = ("volume", "create", "web", "1GiB", "--disk", "hdd", "--share", "1/8", "--dry-run")
        said = self.server.cli(*asked).stdout
        for part in (
            "12.5% of the time of disk 'hdd'",
            "12.5% would remain",
            "its slice would be",
            "trial",
            "maximum wait for a slice",
            "of cache can be requested",
        ):
            self.assertIn(part, said)
        plan = self.server.json(*asked)
        self.assertAlmostEqual(plan["share_left"], 0.125)
        self.assertEqual((plan["disk"], plan["tenant"], plan["sizing"]["decision"]), ("hdd", "web", "trial"))
        self.assertGreater(plan["sizing"]["wait_seconds_max"], 0)
        self.assertGreater(plan["slice_seconds"], 0)
        self.assertEqual([volume["name"] for volume in self.server.json("volume", "list")], ["db"])
        # The plan is reported in the same words as the decision at creation.
        for more in ((), ("--dry-run",)):
            said = self.server.refused("volume", "create", "web", "1GiB", "--disk", "hdd", "--share", "1/2", *more)
            self.assertIn("25% remains", said)
        said = self.server.refused("volume", "create", "web", "1GiB", "--disk", "hdd", "--cache", "1GiB", "--dry-run")
        self.assertIn("does not fit", said)
        self.assertIn("already", self.server.refused("volume", "create", "db", "1GiB", "--disk", "hdd", "--dry-run"))

    def test_what_changes_for_other_volumes_of_the_tenant_is_told(self):
        said = self.create("db", "--tenant", "shop", "--cache", "16MiB")
        self.assertNotIn("and is now", said)
        self.assertNotIn(" 0 us", said)
        self.assertIn("no request waits for a slice", said)
        said = self.create("log", "--tenant", "shop", "--cache", "8MiB")
        self.assertIn("the cache of tenant 'shop' was 16MiB and is now 8MiB, for all its volumes", said)
        said = self.server.cli("volume", "set", "db", "--cache", "64KiB").stdout
        self.assertIn("was 8MiB and is now", said)
        self.assertIn("a cache of 64KiB is below the minimum", said)
        self.assertNotIn("below the minimum", self.server.cli("volume", "set", "db", "--share", "1/2").stdout)

    def test_a_share_that_orders_nothing_is_told(self):
        said = self.server.cli("volume", "create", "plain", "64MiB", "--disk", "default", "--share", "1/2").stdout
        for part in ("its share has no effect", "not probed, run `aerogel disk probe default`"):
            self.assertIn(part, said)
        self.assertIn("has no effect", self.server.cli("volume", "set", "plain", "--share", "1/4").stdout)
        self.server.cli("disk", "set", "default", "--policy", "insulated")
        self.assertNotIn("has no effect", self.server.cli("volume", "set", "plain", "--share", "1/3").stdout)
        self.assertNotIn("has no effect", self.create("db", "--share", "1/2"))

    def test_what_was_asked_for_is_decided_at_once(self):
        said = self.create("db", "--share", "1/2", "--cache", "16MiB")
        self.assertIn("admitted: ", said)
        self.assertIn("wait", said)
        self.assertIn("trial: ", self.create("web", "--share", "1/4"))
        db, web = self.sizing("db"), self.sizing("web")
        self.assertEqual((db["decision"], web["decision"]), ("admitted", "trial"))
        self.assertLessEqual(abs(db["guaranteed_bytes"] - 16 * MIB), MIB)
        events = until("the decisions of both", lambda: self.told(2))
        self.assertEqual(
            {(event["tenant"], event["decision"]) for event in events}, {("db", "admitted"), ("web", "trial")}
        )
        self.assertIn("tenant 'db' of disk 'hdd': admitted", self.server.cli("status").stdout)
        metrics = self.server.metrics()
        label = 'disk="hdd",tenant="db"'
        self.assertEqual(metrics[f'aerogel_tenant_decision{{{label},decision="admitted"}}'], 1)
        self.assertEqual(metrics[f'aerogel_tenant_decision{{{label},decision="trial"}}'], 0)
        self.assertEqual(metrics[f"aerogel_tenant_cache_guaranteed_bytes{{{label}}}"], db["guaranteed_bytes"])
        self.assertIn(f"aerogel_tenant_time_insulation_ratio{{{label}}}", metrics)
        once = self.server.cli("top", "--disk", "hdd", "--once").stdout
        self.assertIn("DECISION", once)
        self.assertIn("admitted", once)

    def told(self, least):
        events = [event for event in self.server.json("status")["events"] if event["disk"] == "hdd"]
        return events if len(events) >= least else None

    def read(self, name, seconds):
        """Random reads of a range that the cache can hold."""
        command = ["fio", "--name=read", "--ioengine=nbd", f"--uri={self.server.uri(name)}", "--rw=randread", "--bs=4k"]
        command += [
            "--thread",
            "--iodepth=16",
            "--size=8M",
            "--time_based",
            f"--runtime={seconds}",
            "--output-format=json",
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def decided(self, name, load):
        """Whether the trial is over; `load` must go on until then."""
        sizing = self.sizing(name)
        self.assertIsNone(load.poll(), f"the load has ended: {sizing['reason']}")
        return sizing["decision"] != "trial"

    def test_a_trial_ends_and_its_decision_is_kept(self):
        self.create("db", "--share", "1/2")
        load = self.read("db", TRIAL_SECONDS)
        until("the end of the trial", lambda: self.decided("db", load), TRIAL_SECONDS)
        sizing = self.sizing("db")
        self.assertEqual(sizing["decision"], "admitted", sizing)
        self.assertGreaterEqual(sizing["guaranteed_bytes"], 8 * MIB * sizing["requested_ratio"] * 0.9)
        self.assertGreaterEqual(sizing["best_ratio"], sizing["requested_ratio"] - 0.01)
        # With --like, the next tenant needs no trial.
        self.assertIn("admitted: ", self.create("copy", "--share", "1/4", "--like", "db"))
        written = until("the decision in the tenant's specification", lambda: "decided" in self.specification("db"))
        self.assertTrue(written)
        load.kill()
        load.wait()
        # The cache that it needs is known better than at the end of the trial.
        sizing = self.sizing("db")
        self.server.restart()
        again = self.sizing("db")
        self.assertEqual(again["decision"], "admitted", again)
        self.assertGreaterEqual(again["guaranteed_bytes"], sizing["guaranteed_bytes"] * 0.8)

    def specification(self, tenant):
        """The text of a tenant's specification; "" if it has none."""
        return "".join(found.read_text() for found in self.scratch.rglob(f"tenants/{tenant}.toml"))
