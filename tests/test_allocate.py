"""Allocation of the caches of two gateways, the cache of their server and its disk time, as an operator sees it."""

import json
import os
import signal
import subprocess
import time
import xml.etree.ElementTree as Xml

from harness.case import ServerCase
from harness.server import MIB, UnixHTTP, cpu_seconds, run
from harness.wait import until

# For `tests/run.py`: most of its time servers collect evidence.
LANE = 3

METHODS = ["equal", "mrc", "mrc+disk", "disk-only", "cache-only"]


class Allocating(ServerCase):
    """A server with a simulated hard disk, and two gateways."""

    def setUp(self):
        super().setUp()
        self.behind = self.serve(name="behind", cache="64MiB")
        self.behind.cli("disk", "add", "hdd", "sim:cheetah-15k5", "--size", "1GiB", "--max-round", "500ms")
        self.gateways = [self.serve(name=f"gateway{number}", cache="32MiB") for number in (1, 2)]
        self.clients = []
        self.addCleanup(self.quiet)

    def volume(self, name, gateway=None, share="auto", cache="auto", first="auto", size="64MiB"):
        """A volume of the server, at a gateway if one is given."""
        given = [*(("--share", share) if share else ()), *(("--cache", cache) if cache else ())]
        self.behind.create(name, size, "--disk", "hdd", *given)
        if gateway is not None:
            given = ("--cache", first) if first else ()
            self.gateways[gateway].cli("volume", "create", name, "--from", self.behind.uri(name), *given)

    def load(self, uri, size, *more):
        """A client that reads evenly from the first `size` bytes, until `quiet`."""
        command = ["fio", "--name=load", "--ioengine=nbd", f"--uri={uri}", "--rw=randread", "--norandommap"]
        command += ["--bs=4k", "--thread", f"--size={size}", "--time_based", "--runtime=280", "--iodepth=1", *more]
        log = open(self.scratch / "fio.log", "ab")
        self.addCleanup(log.close)
        self.clients.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def quiet(self):
        for client in self.clients:
            client.kill()
            client.wait()
        self.clients = []

    def reach(self, gateways=(0, 1)):
        """The options that name the servers: directories and a socket."""
        named = [f"--gateway={self.gateways[number].data}" for number in gateways]
        return [f"--server=unix:{self.behind.data / 'api.sock'}", *named]

    def allocate(self, verb, *more, gateways=(0, 1), check=True):
        return run(self.behind.binary, "allocate", verb, *self.reach(gateways), *more, check=check)

    def json_of(self, verb, *more, **how):
        return json.loads(self.allocate(verb, "--json", *more, **how).stdout)

    def refused(self, *words, **how):
        """The message of a command that must fail, and its exit status."""
        done = self.allocate(*words, check=False, **how)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.returncode, done.stdout + done.stderr

    def put(self, server, *tenants, **more):
        """(status, answer) of a request for an allocation."""
        connection = UnixHTTP(server.data / "api.sock")
        self.addCleanup(connection.close)
        headers = {"Host": "localhost", "Content-Type": "application/json"}
        connection.request("PUT", "/v1/allocation", json.dumps({"tenants": list(tenants), **more}), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def on(self, server, tenant):
        """The allotment of a tenant on its only disk."""
        return server.json("tenant", "show", tenant)["disks"][0]


class Allocate(Allocating):
    """With load."""

    def loaded(self):
        """A tenant at each gateway, and one that is opened at the server."""
        self.volume("small", 0)
        self.volume("large", 1, share="1/4")
        self.volume("direct", cache="8MiB")
        self.load(self.gateways[0].uri("small"), "12m")
        self.load(self.gateways[1].uri("large"), "48m")
        self.load(self.behind.uri("direct"), "24m")
        until("curves", lambda: self.allocate("plan", "--window=1s", check=False).returncode == 0, 120)
        until("all curves", lambda: len(self.json_of("plan", "--window=1s")["tenants"]) == 3, 120)

    def test_a_plan_is_sensible_and_is_applied_and_promises_are_kept(self):
        self.loaded()
        plan = self.json_of("plan", "--window=3s")
        self.check_plan(plan)
        self.check_text()
        self.check_unnamed()
        applied = self.json_of("apply", "--window=3s")
        self.assertEqual(applied["plan"]["goal"], "latency")
        self.assertTrue(applied["changed"])
        self.check_applied(applied)
        self.check_again()
        self.check_restart(applied)

    def check_plan(self, plan):
        self.assertEqual((plan["goal"], plan["method"], plan["unplanned"]), ("latency", "ours", []))
        tenants = {tenant["name"]: tenant for tenant in plan["tenants"]}
        self.assertEqual(set(tenants), {"small", "large", "direct"})
        for name, tenant in tenants.items():
            self.assertEqual(tenant["disk"], "hdd")
            self.assertEqual("gateway_cache_bytes" in tenant["planned"], name != "direct")
            self.assertEqual("gateway" in tenant, name != "direct")
            self.assertGreater(tenant["measured_latency_seconds"], 0)
            for of in (tenant["now"], tenant["planned"]):
                self.assertGreater(of["latency_seconds"], 0)
                self.assertTrue(0 < of["share"] <= 1, of)
        # Requested values are the least.
        self.assertGreaterEqual(tenants["large"]["planned"]["share"], 0.25 - 1e-9)
        self.assertGreaterEqual(tenants["direct"]["planned"]["cache_bytes"], 8 * MIB)
        # No resource is exceeded.
        self.assertLessEqual(sum(tenant["planned"]["share"] for tenant in tenants.values()), 1 + 1e-6)
        evidence = json.loads(self.behind.get("/v1/evidence")[1])
        memory = next(disk["memory_bytes"] for disk in evidence["disks"] if disk["disk"] == "hdd")
        # The server rounds each down to blocks.
        self.assertLessEqual(sum(tenant["planned"]["cache_bytes"] for tenant in tenants.values()), memory + 3 * 4400)
        # It is not worse than what it is compared with, nor than what is.
        total = plan["total"]
        self.assertLessEqual(total["planned_seconds"], total["now_seconds"] * 1.001)
        self.assertEqual([baseline["method"] for baseline in plan["baselines"]], METHODS)
        for baseline in plan["baselines"]:
            self.assertLessEqual(total["planned_seconds"], baseline["total_seconds"] * 1.02, baseline["method"])
            self.assertEqual([tenant["name"] for tenant in baseline["tenants"]], list(tenants))
        for method in METHODS:
            chosen = self.json_of("plan", "--window=1s", "--method", method)
            self.assertEqual(chosen["method"], method)

    def check_unnamed(self):
        """A gateway that is not named is not divided, and the plan says so."""
        plan = self.json_of("plan", "--window=3s", gateways=(0,))
        large = next(tenant for tenant in plan["tenants"] if tenant["name"] == "large")
        self.assertNotIn("gateway", large)
        self.assertIn("which is not named by --gateway", large["reason"])

    def check_text(self):
        picture = self.scratch / "plan.svg"
        text = self.allocate("plan", "--window=1s", "--svg", picture).stdout
        for word in ("TENANT", "small", "large", "direct", "sum of latencies", "mrc+disk", "from the disk"):
            self.assertIn(word, text)
        root = Xml.parse(picture).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        for word in ("small", "share of the disk", "cache of the gateway", "planned"):
            self.assertIn(word, picture.read_text())

    def check_applied(self, applied):
        servers = {str(server.data): server for server in self.gateways}
        servers[f"unix:{self.behind.data / 'api.sock'}"] = self.behind
        for change in applied["changed"]:
            on = self.on(servers[change["server"]], change["tenant"])
            self.assertEqual(on["disk"], change["disk"])
            if "cache_bytes" in change:
                self.assertEqual(on["cache"]["planned_bytes"], change["cache_bytes"]["after"])
                # Memory is requested with bookkeeping, and a partition is shown without.
                effective = on["cache"]["effective_bytes"]
                self.assertAlmostEqual(effective, change["cache_bytes"]["after"] / 1.05, delta=effective * 0.05)
            if "share" in change:
                self.assertAlmostEqual(on["share"]["planned"], change["share"]["after"], places=6)
                self.assertAlmostEqual(on["share"]["effective"], change["share"]["after"], places=3)
        small, large, direct = (self.on(self.behind, name) for name in ("small", "large", "direct"))
        self.assertEqual((small["share"]["requested"], large["share"]["requested"]), ("auto", "1/4"))
        self.assertEqual((small["spec"]["share"], small["spec"]["cache"]), ("auto", "auto"))
        self.assertTrue(small["cache"]["auto"] and not direct["cache"]["auto"])
        self.assertGreaterEqual(large["share"]["effective"], 0.25)
        self.assertIn("planned", self.behind.cli("tenant", "show", "small").stdout)
        self.assertIn("auto", self.behind.cli("volume", "show", "small").stdout)
        events = [event["reason"] for event in self.behind.json("status")["events"]]
        self.assertTrue(any("a new allocation" in reason for reason in events), events)

    def check_again(self):
        """A request of a new tenant is met at once, whatever is planned."""
        self.behind.create("late", "64MiB", "--disk", "hdd", "--share", "1/2", "--cache", "16MiB")
        late = self.on(self.behind, "late")
        self.assertEqual(late["share"]["effective"], 0.5)
        self.assertGreater(late["cache"]["effective_bytes"], 15 * MIB)
        shares = [self.on(self.behind, name)["share"]["effective"] for name in ("small", "large", "direct", "late")]
        self.assertLessEqual(sum(shares), 1 + 1e-6)
        self.assertGreaterEqual(shares[1], 0.25)
        self.assertGreaterEqual(self.on(self.behind, "direct")["cache"]["effective_bytes"], 7.5 * MIB)
        self.behind.cli("volume", "delete", "late", "--yes")

    def check_restart(self, applied):
        share = self.on(self.behind, "small")["share"]
        self.assertAlmostEqual(share["effective"], share["planned"], places=3)
        self.quiet()
        self.behind.restart()
        self.assertEqual(self.on(self.behind, "small")["share"], share)
        # `auto` again is without a plan.
        self.behind.cli("tenant", "set", "small", "--share", "auto", "--cache", "auto")
        again = self.on(self.behind, "small")
        self.assertEqual((again["share"]["planned"], again["cache"]["planned_bytes"]), (None, None))
        self.assertEqual(again["share"]["requested"], "auto")

    def test_run_follows_and_survives_a_server_that_goes_away(self):
        self.loaded()
        command = [self.behind.binary, "allocate", "run", *self.reach(), "--every=3s", "--json"]
        out = open(self.scratch / "run.log", "wb")
        self.addCleanup(out.close)
        running = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.addCleanup(running.wait)
        self.addCleanup(running.kill)

        def lines():
            return [json.loads(line) for line in (self.scratch / "run.log").read_text().splitlines()]

        def did(what):
            return [line for line in lines() if line["did"] == what]

        until("a change", lambda: did("changed"), 60)
        count = len(lines())
        until("more plans", lambda: len(lines()) >= count + 6, 60)
        # What was changed is measured for two intervals before the next change, and each has a reason.
        at = [number for number, line in enumerate(lines()) if line["did"] == "changed"]
        self.assertTrue(all(after - before >= 2 for before, after in zip(at, at[1:])), at)
        for line in did("changed"):
            self.assertRegex(line["reason"], "^(as planned|back to an earlier|another method's division)")
        os.kill(self.gateways[1].pid, signal.SIGKILL)
        self.gateways[1].kill()
        until("a failure to be reported", lambda: did("failed"), 30)
        self.assertIn(str(self.gateways[1].data), did("failed")[0]["error"])
        self.gateways[1].start()
        seen = len(lines())
        until("a plan after its return", lambda: any("plan" in line for line in lines()[seen:]), 60)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(30), 0)

    def test_evidence_costs_less_than_a_percent_of_a_core(self):
        self.loaded()
        self.quiet()
        time.sleep(1)
        before, count = cpu_seconds(self.behind.pid), 50
        for _ in range(count):
            self.assertEqual(self.behind.get("/v1/evidence")[0], 200)
        each = (cpu_seconds(self.behind.pid) - before) / count
        # Once a minute at most in use; here it is bounded for once a second.
        self.assertLess(each, 0.01 * 1)

    def test_goals_of_a_file(self):
        self.loaded()
        goals = self.scratch / "goals.toml"
        goals.write_text(
            '[small]\nutility = [["1ms", 10], ["20ms", 2], ["100ms", 0]]\ntarget = "1ms"\n'
            '[large]\nutility = [["10ms", 1], ["500ms", 0]]\ntarget = "1s"\n'
            '[direct]\nutility = [["10ms", 1], ["500ms", 0]]\ntarget = "1s"\n'
        )
        plan = self.json_of("plan", "--window=1s", "--goal=utility", "--utility", goals)
        self.assertEqual(plan["goal"], "utility")
        self.assertLessEqual(plan["total"]["planned_cost"], plan["total"]["now_cost"] + 1e-9)
        plan = self.json_of("plan", "--window=1s", "--goal=target", "--targets", goals)
        self.assertLessEqual(plan["total"]["planned_cost"], plan["total"]["now_cost"] + 1e-9)
        for text, wanted in (
            ("[small]\nutility = []", "small"),
            ('[small]\nutility = [["20ms", 1], ["1ms", 0]]', "small"),
            ('[small]\nutility = [["20", 1]]', "is not a latency"),
            ('[nobody]\nutility = [["20ms", 1]]', "no tenant 'nobody'"),
            ('[small]\nutility = [["20ms", 1]]', "has no utility"),
            ("[small]\nfoo = 1", "unknown field"),
            ("not toml", "goals.toml"),
        ):
            goals.write_text(text)
            status, said = self.refused("plan", "--window=1s", "--goal=utility", "--utility", goals)
            self.assertEqual((status, wanted in said), (2, True), said)


class Refused(Allocating):
    """Without load."""

    def test_what_makes_no_sense_is_refused_and_named(self):
        self.volume("v", 0)
        status, said = self.refused("plan", "--window=1s", gateways=(0,))
        self.assertEqual((status, "no curve yet" in said, "tenant 'v'" in said), (1, True, True), said)
        status, said = self.refused("plan", gateways=(0, 1))
        self.assertEqual(status, 2)
        self.assertIn(f"{self.gateways[1].data} is no gateway of", said)
        for url, wanted, code in (
            ("https://localhost:1", "TLS", 2),
            ("ftp://x", "is no server", 2),
            ("http://127.0.0.1:1", "no server answers", 3),
            (str(self.scratch / "nothing"), "no server answers", 3),
        ):
            done = run(self.behind.binary, "allocate", "plan", "--server", url, check=False)
            self.assertEqual((done.returncode, wanted in done.stderr), (code, True), done.stderr)
        same = run(self.behind.binary, "allocate", "plan", *self.reach((0, 0)), check=False)
        self.assertIn("is named twice", same.stderr)
        twice = [f"--gateway={self.behind.data}"]
        same = run(self.behind.binary, "allocate", "plan", *self.reach((0,)), *twice, check=False)
        self.assertIn("are the same process", same.stderr)
        for words, wanted in (
            (("--goal=utility",), "--utility"),
            (("--goal=target",), "--targets"),
            (("--utility", "x"), "has no effect"),
            (("--method=best",), "invalid value"),
            (("--window=10ms",), "not from 1s to 60m"),
        ):
            status, said = self.refused("plan", *words, gateways=(0,))
            self.assertEqual((status, wanted in said), (2, True), said)
        self.assertIn("cannot read", self.refused("plan", "--token-file", self.scratch / "no", gateways=(0,))[1])

    def test_an_allocation_is_entered_as_a_whole_or_not_at_all(self):
        self.volume("v")
        self.volume("held", share=None, cache=None)
        self.volume("stated", share="1/4", cache="8MiB")
        v = {"tenant": "v", "disk": "hdd"}
        for tenants, status, wanted in (
            ([], 400, "nothing is planned"),
            ([v], 400, "nothing is planned"),
            ([{**v, "share": "0.1"}, {**v, "cache": "8MiB"}], 400, "named twice"),
            ([{**v, "disk": "no", "share": "0.1"}], 404, "there is no disk"),
            ([{**v, "tenant": "no", "share": "0.1"}], 404, "has no volume on disk"),
            ([{**v, "share": "0.1"}, {"tenant": "held", "disk": "hdd", "share": "0.1"}], 409, "is not handed"),
            ([{**v, "share": "0.1"}, {"tenant": "held", "disk": "hdd", "cache": "8MiB"}], 409, "is not handed"),
            ([{**v, "share": "0.1"}, {"tenant": "stated", "disk": "hdd", "share": "0.1"}], 409, "is less than"),
            ([{**v, "share": "0.1"}, {"tenant": "stated", "disk": "hdd", "cache": "4MiB"}], 409, "is less than"),
            ([{**v, "share": "0.9"}], 409, "are free"),
            ([{**v, "cache": "1GiB"}], 409, "are free"),
        ):
            self.assertEqual((status, True), self.put_says(tenants, wanted))
            self.assertIsNone(self.on(self.behind, "v")["share"]["planned"])
        status, answer = self.put(self.behind, {**v, "share": "0.3"}, dry_run=True)
        self.assertEqual(status, 200, answer)
        self.assertIsNone(self.on(self.behind, "v")["share"]["planned"])
        both = ({**v, "share": "0.3", "cache": "4MiB"}, {"tenant": "stated", "disk": "hdd", "share": "0.3"})
        self.assertEqual(self.put(self.behind, *both)[0], 200)
        self.assertEqual(self.on(self.behind, "v")["share"]["effective"], 0.3)
        self.assertEqual(self.on(self.behind, "stated")["share"]["effective"], 0.3)
        # The tenant that has requested nothing has the rest, at least an even part.
        self.assertAlmostEqual(self.on(self.behind, "held")["share"]["effective"], 0.4, places=6)
        self.assertEqual(self.put(self.behind, {**v, "share": "none", "cache": "none"})[0], 200)
        self.assertIsNone(self.on(self.behind, "v")["cache"]["planned_bytes"])

    def put_says(self, tenants, wanted):
        status, answer = self.put(self.behind, *tenants)
        self.assertIn(wanted, answer["error"])
        return status, True

    def test_auto_is_stored_and_shown_and_refused_where_it_has_no_meaning(self):
        self.volume("v", 0)
        gateway = self.on(self.gateways[0], "v")
        self.assertTrue(gateway["cache"]["auto"])
        self.assertGreater(gateway["cache"]["effective_bytes"], MIB)
        shown = self.behind.json("volume", "show", "v")
        self.assertEqual((shown["share"]["requested"], shown["spec"]["share"]), ("auto", "auto"))
        self.assertEqual(shown["share"]["effective"], 1.0, "all that is not promised")
        self.behind.restart()
        self.assertEqual(self.behind.json("volume", "show", "v")["spec"]["cache"], "auto")
        self.behind.cli("volume", "set", "v", "--share", "1/4", "--cache", "8MiB")
        shown = self.behind.json("volume", "show", "v")
        self.assertEqual((shown["share"]["requested"], shown["cache"]["auto"]), ("1/4", False))
        self.behind.cli("volume", "set", "v", "--share", "auto", "--cache", "none")
        self.assertEqual(self.behind.json("volume", "show", "v")["share"]["requested"], "auto")
        self.assertIn("other servers", self.gateways[0].refused("tenant", "set", "v", "--share", "auto"))
