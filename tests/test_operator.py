"""What an operator expects of commands: confirmation before data is lost, exit statuses, and disks that come back
without intervention."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import nbd
from harness import places
from harness.case import ServerCase, SharedServerCase
from harness.server import MIB, Server, UnixHTTP, run
from harness.wait import until

# For `tests/run.py`.
LANE = 3

USAGE = 2


class Commands(SharedServerCase):
    """Refused commands, and their messages."""

    def status_of(self, *words):
        return self.server.cli(*words, check=False).returncode

    def test_delete_with_clients_needs_force(self):
        self.server.create("busy", "4MiB")
        handle = self.server.open("busy")
        handle.pwrite(b"b" * 512, 0)
        said = self.server.refused("volume", "delete", "busy", "--yes")
        self.assertIn("in use by 1 connection", said)
        self.assertIn("--force", said)
        self.assertEqual(handle.pread(512, 0), b"b" * 512, "a refused deletion disturbed a client")
        self.server.cli("volume", "delete", "busy", "--yes", "--force")
        self.assertRaises(nbd.Error, handle.pread, 512, 0)

    def test_delete_without_clients_needs_no_force(self):
        self.server.create("idle", "4MiB")
        self.server.cli("volume", "delete", "idle", "--yes")

    def test_clear_asks_for_yes(self):
        name = self.volume("4MiB")
        self.assertEqual(self.status_of("volume", "clear", name), USAGE)
        self.server.cli("volume", "clear", name, "--yes")

    def test_fault_on_a_real_disk_asks_for_yes(self):
        done = self.server.cli("disk", "fault", "add", "default", "error read 1%", check=False)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("real disk", done.stderr)
        self.assertIn("--yes", done.stderr)
        self.assertEqual(self.server.json("disk", "fault", "list", "default"), [])
        self.server.cli("disk", "fault", "add", "default", "error read 1%", "--yes")
        self.addCleanup(self.server.cli, "disk", "fault", "clear", "default")
        self.server.cli("disk", "add", "pretended", "sim:flash", "--size", "64MiB")
        self.addCleanup(self.server.cli, "disk", "remove", "pretended", "--force")
        self.server.cli("disk", "fault", "add", "pretended", "error read 1%")

    def test_usage_errors_exit_with_2(self):
        name = self.volume("4MiB")
        for words in (
            ("volume", "set", name),
            ("volume", "set", name, "--write-cache", "unsafe"),
            ("volume", "create", "odd", "1000"),
            ("volume", "create", "forced", "4MiB", "--like", "x", "--cache", "4MiB"),
            ("volume", "grow", name, "1MiB"),
            ("volume", "nonsense",),
            ("disk", "set", "default"),
            ("disk", "set", "default", "--profile", "colour=1"),
            ("disk", "add", "d", str(self.scratch / "d"), "--size", "1GiB"),
            ("disk", "add", "d", str(self.scratch / "d"), "--directory", "/tmp/x"),
            ("disk", "add", "d", "sim:nonsense"),
            ("disk", "probe", "default", "--seconds", "1"),
            ("disk", "fault", "add", "default", "nonsense", "--yes"),
            ("top", "--interval", "0", "--batch"),
        ):
            with self.subTest(words=words):
                self.assertEqual(self.status_of(*words), USAGE)
        self.assertEqual(self.status_of("volume", "show", "ghost"), 1)
        self.assertEqual(run(places.binary(), "status", "--data", self.scratch / "none", check=False).returncode, 3)

    def test_serve_refuses_what_makes_no_sense(self):
        config = self.scratch / "wrong.toml"
        config.write_text('cash = "1GiB"\n')
        memory = int(open("/proc/meminfo").readline().split()[1]) * 1024
        for words, why in (
            (("--cache", f"{memory + MIB}"), "--cache"),
            (("--config", config), "cash"),
            (("--log-level", "a=b=c"), "log level"),
        ):
            with self.subTest(words=words):
                done = run(places.binary(), "serve", "--data", self.scratch / "never", *words, check=False)
                self.assertEqual(done.returncode, USAGE, done.stderr)
                self.assertIn(why, done.stderr)
                self.assertFalse((self.scratch / "never").exists())

    def test_a_cache_larger_than_that_of_the_server_is_refused(self):
        said = self.server.refused("volume", "create", "large", "4MiB", "--cache", "1TiB")
        self.assertIn("request less cache", said)


class ComesBack(ServerCase):
    """Disks and volumes that were offline."""

    def condition(self, server, name):
        return server.json("volume", "show", name)["condition"]

    def test_an_offline_disk_keeps_its_volumes_in_the_list_and_opens_when_it_is_back(self):
        server = self.serve()
        path = self.scratch / "second"
        server.cli("disk", "add", "second", path, "--force")
        server.create("kept", "4MiB", "--disk", "second", "--tenant", "t")
        server.open("kept").pwrite(b"k" * 512, 0)
        self.assertEqual(server.stop(), 0)
        os.rename(path, self.scratch / "away")
        server.start()
        (shown,) = [volume for volume in server.json("volume", "list") if volume["name"] == "kept"]
        self.assertEqual((shown["condition"], shown["disk"], shown["tenant"]), ("offline", "second", "t"))
        self.assertEqual(shown["size_bytes"], 4 * MIB)
        self.assertIn("second", shown["reason"])
        self.assertIn("offline", server.cli("volume", "list").stdout)
        self.assertEqual(self.condition(server, "kept"), "offline")
        self.assertEqual(server.json("disk", "show", "second")["volumes"], ["kept"])
        said = server.refused("volume", "create", "kept", "4MiB", "--disk", "default")
        self.assertIn("already", said, "the name of a volume that is offline was given away")
        self.assertIn("offline", server.refused("volume", "delete", "kept", "--yes"))
        # Another disk in its place is not accepted as this disk, and an empty directory is not initialised.
        path.mkdir()
        until("the empty directory to be looked at", lambda: "disk.toml is missing" in
              server.json("disk", "show", "second")["reason"])
        self.assertEqual(os.listdir(path), [])
        path.rmdir()
        os.rename(self.scratch / "away", path)
        until("the disk to be back", lambda: self.condition(server, "kept") == "online", 60)
        self.assertEqual(server.open("kept").pread(512, 0), b"k" * 512)

    def test_a_volume_that_is_back_opens(self):
        server = self.serve()
        server.create("v", "4MiB")
        server.open("v").pwrite(b"v" * 512, 0)
        path = server.json("volume", "show", "v")["path"]
        self.assertEqual(server.stop(), 0)
        os.rename(path, path + ".away")
        server.start()
        self.assertEqual(self.condition(server, "v"), "offline")
        os.rename(path + ".away", path)
        until("the volume to be back", lambda: self.condition(server, "v") == "online", 60)
        self.assertEqual(server.open("v").pread(512, 0), b"v" * 512)

    def test_a_creation_cut_off_does_not_block_the_name(self):
        server = self.serve()
        command = [places.binary(), "volume", "create", "v", "2GiB", "--prealloc", "full", "--data", server.data]
        client = subprocess.Popen([str(word) for word in command], stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        volumes = server.data / "disks/default/volumes"
        until("the data to be written", lambda: any(
            os.stat(volumes / file).st_blocks > 0 for file in os.listdir(volumes)))
        server.kill()
        server.start()
        self.assertEqual(server.json("disk", "show", "default")["unclaimed"], [])
        self.assertEqual(os.listdir(volumes), [], "the data of an unfinished creation was left")
        server.create("v", "4MiB")
        self.assertEqual(server.open("v").pread(4096, 0), bytes(4096))

    def test_a_creation_that_cannot_be_undone_does_not_block_the_name(self):
        server = self.serve()
        command = [places.binary(), "volume", "create", "v", "1GiB", "--prealloc", "full", "--data", server.data]
        client = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(client.communicate)
        volumes = server.data / "disks/default/volumes"
        until("the data to be written", lambda: any(
            os.stat(volumes / file).st_blocks > 0 for file in os.listdir(volumes)))
        # It can be opened only if its loss record can be looked for, and is undone only if that can be removed.
        (server.data / "lost").write_text("no directory")
        (volumes / "v.lost").mkdir()
        said = client.communicate(timeout=60)[0].decode()
        self.assertNotEqual(client.returncode, 0)
        self.assertIn("cannot determine whether its data was lost", said)
        self.assertIn("could not be removed either", said)
        (server.data / "lost").unlink()
        (volumes / "v.lost").rmdir()
        server.create("v", "4MiB")
        self.assertEqual(server.open("v").pread(4096, 0), bytes(4096))


class ProbesItself(ServerCase):
    """Disks without a profile, on servers with automatic probes."""

    def in_memory(self):
        """A directory in memory, where no I/O of other programs disturbs a probe."""
        directory = Path(tempfile.mkdtemp(prefix="aerogel-probe-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def policy(self, server, disk="memory"):
        return server.json("disk", "show", disk)["policy"]

    def probing(self, server, disk="memory"):
        return json.loads(server.get(f"/v1/disks/{disk}/probe")[1])["state"]

    def with_disk(self, *words):
        """A server whose default disk is not probed, and another disk that is probed when it is idle."""
        server = self.serve(probe=True)
        server.cli("disk", "set", "default", "--policy", "none")
        server.cli("disk", "add", "memory", self.in_memory(), "--force", *words)
        return server

    def test_an_idle_disk_is_probed_and_its_tenants_are_insulated(self):
        server = self.with_disk()
        server.create("v", "4MiB", "--disk", "memory", "--share", "1/2")
        self.assertEqual(self.policy(server)["name"], "none")
        self.assertIn("probed automatically", self.policy(server)["reason"])
        until("the probe", lambda: self.probing(server) == "running", 90)
        until("it to end", lambda: self.probing(server) != "running", 90)
        shown = server.json("disk", "show", "memory")
        events = [event["reason"] for event in server.json("status")["events"] if event["disk"] == "memory"]
        if self.probing(server) == "failed":
            # An unreliable result, on a busy machine, is not used, and this is reported.
            self.assertEqual(shown["policy"]["name"], "none")
            self.assertIn("unreliable", shown["policy"]["reason"])
            self.assertEqual(shown["profile"]["values"], [])
            self.assertTrue(any("unreliable" in event for event in events), events)
            return
        self.assertEqual(shown["policy"]["name"], "insulated")
        self.assertIn("automatic quick probe", shown["policy"]["reason"])
        self.assertEqual({value["source"] for value in shown["profile"]["values"]}, {"automatic quick"})
        self.assertTrue(any("automatic quick probe" in event and "insulated" in event for event in events), events)
        self.assertIn("automatic quick", server.cli("disk", "show", "memory").stdout)
        self.assertIn("automatic quick probe", server.log())
        server.restart()
        again = server.json("disk", "show", "memory")
        self.assertEqual(again["profile"]["values"], shown["profile"]["values"])
        self.assertEqual(again["policy"]["name"], "insulated")

    def test_the_first_request_ends_it(self):
        server = self.with_disk()
        server.create("v", "4MiB", "--disk", "memory")
        handle = server.open("v")
        until("the probe", lambda: self.probing(server) == "running", 90)
        handle.pread(512, 0)
        until("it to end", lambda: self.probing(server) == "cancelled", 10)
        self.assertEqual(server.json("disk", "show", "memory")["profile"]["values"], [])
        self.assertIn("cancelled because the disk was used", self.policy(server)["reason"])
        until("the scratch file to be gone", lambda: not any(
            ".probe.tmp" in os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")
            if os.path.islink(f"/proc/{server.pid}/fd/{fd}")))
        # A requested probe does not wait for the automatic one.
        server.cli("disk", "probe", "memory", "--seconds", "2")

    def test_somebody_who_asks_goes_before_it(self):
        server = self.with_disk()
        until("the probe", lambda: self.probing(server) == "running", 90)
        server.cli("disk", "probe", "memory", "--seconds", "2")
        values = server.json("disk", "show", "memory")["profile"]["values"]
        self.assertEqual({value["source"] for value in values}, {"measured"})

    def test_it_is_switched_off(self):
        server = self.with_disk("--no-probe")
        self.assertIn("run `aerogel disk probe memory`", self.policy(server)["reason"])
        server.restart()
        self.assertNotIn("probed automatically", self.policy(server)["reason"])
        plain = self.serve(name="plain")
        self.assertNotIn("probed automatically", self.policy(plain, "default")["reason"])


class Tools(SharedServerCase):
    """Metrics, JSON, `top` without a screen, and what is installed."""

    def plain_metrics(self):
        connection = UnixHTTP(self.server.http_socket)
        self.addCleanup(connection.close)
        connection.request("GET", "/metrics", headers={"Host": "localhost", "Accept": "text/plain"})
        answer = connection.getresponse()
        return answer.getheader("Content-Type"), answer.read().decode()

    def test_metrics_to_be_woken_by(self):
        name = self.volume("4MiB", "--share", "1/4")
        handle = self.server.open(name)
        handle.pread(512, 0)
        samples = self.server.metrics()
        volume = f'{{disk="default",volume="{name}",tenant="{name}"}}'
        self.assertEqual(samples[f"aerogel_volume_online{volume}"], 1)
        self.assertEqual(samples[f"aerogel_volume_connections{volume}"], 1)
        self.assertEqual(samples['aerogel_disk_online{disk="default"}'], 1)
        size, free = (samples[f'aerogel_disk_{what}_bytes{{disk="default"}}'] for what in ("size", "free"))
        self.assertTrue(0 < free < size, (free, size))
        self.assertEqual(samples[f'aerogel_tenant_share_ratio{{disk="default",tenant="{name}"}}'], 0.25)
        self.assertEqual(samples['aerogel_disk_insulation_requested_ratio{disk="default"}'], 0.9)
        started = samples["process_start_time_seconds"]
        self.assertLess(abs(started - os.stat(f"/proc/{self.server.pid}").st_mtime), 60)
        kind, text = self.plain_metrics()
        self.assertIn("text/plain; version=0.0.4", kind)
        self.assertNotIn("# EOF", text)
        self.assertIn("# TYPE aerogel_volume_read_requests_total counter", text)

    def test_metrics_satisfy_promtool(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus), which is done in `make test-long`")
        handle = self.server.open(self.volume("4MiB", "--share", "1/4"))
        handle.pread(512, 0)
        _, text = self.plain_metrics()
        run("promtool", "check", "metrics", stdin=None, input=text)

    def test_what_is_shown_can_be_asked_for(self):
        name = self.volume("4MiB", "--share", "1/4", "--cache", "8MiB", "--sparse")
        spec = self.server.json("volume", "show", name)["spec"]
        self.server.cli("volume", "delete", name, "--yes")
        connection = UnixHTTP(self.server.http_socket)
        self.addCleanup(connection.close)
        headers = {"Host": "localhost", "Content-Type": "application/json"}
        connection.request("POST", "/v1/volumes", json.dumps(spec), headers)
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200, answer.read())
        self.assertEqual(self.server.json("volume", "show", name)["spec"], spec)

    def test_top_prints_again_and_again_and_survives_a_restart(self):
        binary = [str(places.binary()), "top", "--data", str(self.server.data)]
        done = self.server.cli("top", "--batch", "--interval", "0.1", "--count", "2")
        self.assertEqual(len(re.findall(r"^20\d\d-\d\d-\d\dT", done.stdout, re.MULTILINE)), 2, done.stdout)
        lines = self.server.cli("top", "--batch", "--interval", "0.1", "--count", "3", "--json").stdout.splitlines()
        self.assertEqual([json.loads(line)[0]["disk"] for line in lines], ["default"] * 3)
        watching = subprocess.Popen([*binary, "--batch", "--interval", "0.1"], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)
        self.addCleanup(watching.communicate)
        self.addCleanup(watching.kill)
        self.assertRegex(watching.stdout.readline(), "^20")
        self.server.stop()
        self.assertIn("retrying", watching.stderr.readline())
        self.server.start()
        until("a look at the new server", lambda: re.match("20", watching.stdout.readline()))
        self.assertIsNone(watching.poll())

    def test_completions_and_man_pages(self):
        for shell in ("bash", "zsh", "fish"):
            self.assertIn("i-accept-data-loss", run(places.binary(), "completion", shell).stdout)
        pages = self.scratch / "man"
        pages.mkdir()
        run(places.binary(), "man", pages)
        page = (pages / "aerogel-volume-delete.1").read_text()
        self.assertIn("force", page)
        self.assertTrue((pages / "aerogel.1").exists())

    @unittest.skipUnless(
        os.environ.get("AEROGEL_TEST_LONG"), "stripping and packing take a minute, in `make test-long`"
    )
    def test_package_installs_and_runs(self):
        if shutil.which("dpkg-shlibdeps") is None:
            self.skipTest("dpkg-dev is not installed")
        said = run(places.ROOT / "scripts/deb", places.binary(), self.scratch, seconds=280)
        package = Path(said.stdout.strip())
        where = self.scratch / "installed"
        run("dpkg-deb", "--extract", package, where)
        installed = where / "usr/bin/aerogel"
        self.assertLess(
            installed.stat().st_size, os.stat(places.binary()).st_size / 2, "debug information is installed"
        )
        self.assertIn("aerogel", run(installed, "--version").stdout)
        run(installed, "status", "--data", self.server.data)
        unit = (where / "usr/lib/systemd/system/aerogel.service").read_text()
        self.assertIn("ExecStart=/usr/bin/aerogel serve", unit)
        self.assertIn("SystemCallFilter=", unit)
        config = where / "etc/aerogel/aerogel.toml"
        with Server(self.scratch, name="packaged", binary=installed, config=config.read_text().replace(
                'cache = "25%"', "").replace('reactor = "auto"', "").replace("automatic_probe = true", "")
                .replace('data = "./aerogel-data"', "")) as server:
            server.create("v", "1MiB")
