"""Volumes, disks and servers through the command line: created, shown, changed, kept across restarts, deleted."""

import fcntl
import json
import os
import shutil
import signal
import socket

import nbd
from harness import places
from harness.case import ServerCase, SharedServerCase
from harness.server import GIB, MIB, STOP_SECONDS, Server, run
from harness.wait import until


class Volumes(SharedServerCase):
    """One volume at a time."""

    def show(self, name):
        return self.server.json("volume", "show", name)

    def names(self):
        return [volume["name"] for volume in self.server.json("volume", "list")]

    def test_create_show_list(self):
        self.server.create("db", "48MiB", "--share", "1/4", "--tenant", "shop", "--cache", "8MiB")
        shown = self.show("db")
        self.assertEqual(
            (shown["size_bytes"], shown["tenant"], shown["disk"], shown["condition"]),
            (48 * MIB, "shop", "default", "online"),
        )
        self.assertEqual(shown["share"]["requested"], "1/4")
        self.assertAlmostEqual(shown["share"]["effective"], 0.25)
        self.assertEqual(shown["cache"]["requested_bytes"], 8 * MIB)
        self.assertIn(str(self.server.socket), " ".join(shown["uris"]), "show does not tell how to open it")
        self.assertIn("db", self.names())
        for words in (("volume", "list"), ("volume", "show", "db"), ("status",), ("disk", "list")):
            with self.subTest(words=words):
                self.assertIn("default", self.server.cli(*words).stdout)
        self.server.cli("volume", "delete", "db", "--yes", "--force")
        self.assertNotIn("db", self.names())
        self.assertRaises(nbd.Error, self.server.open, "db")

    def test_names_and_sizes_that_are_refused(self):
        name = self.volume()
        self.assertIn(name, self.server.refused("volume", "create", name, "1MiB"))
        for bad in ("-x", "a/b", "..", "a b", "x" * 64, "é"):
            with self.subTest(name=bad):
                self.server.refused("volume", "create", "--", bad, "1MiB")
        for bad in ("0", "1000", "-5", "1MB", "many", "2EiB", "1.3KiB"):
            with self.subTest(size=bad):
                said = self.server.refused(
                    "volume", "create", f"--disk=default", "n", f"{bad}" if bad[0] != "-" else "-5"
                )
                self.assertTrue(said.strip(), "refused without a word")
        self.assertIn("64MiB", self.server.refused("volume", "create", "n", "64MB"), "64MB is refused without the fix")
        self.assertRegex(
            self.server.refused("volume", "create", "n", "1PiB", "--sparse"), r"at most [\d.]+.iB", "no limit is named"
        )
        self.assertNotIn("n", self.names())

    def test_longest_name(self):
        name = "x" * 63
        self.server.create(name, "1MiB")
        self.assertEqual(self.server.open(name).get_size(), MIB)
        self.server.cli("volume", "delete", name, "--yes", "--force")

    def test_a_cache_that_does_not_fit_is_refused_in_units_of_people(self):
        said = self.server.refused("volume", "set", self.volume(), "--cache", "100GiB")
        self.assertRegex(said, r"a cache of 100GiB does not fit: [\d.]+[KM]iB are not promised")
        self.assertNotIn("bytes", said)

    def test_larger_than_the_disk(self):
        free = shutil.disk_usage(self.server.data).free
        said = self.server.refused("volume", "create", "huge", f"{free // GIB + 10}GiB")
        self.assertIn("--sparse", said, "what would help is not named")
        self.assertNotIn("huge", self.names())
        self.server.create("huge", f"{free // GIB + 10}GiB", "--sparse")
        self.addCleanup(self.server.cli, "volume", "delete", "huge", "--yes", "--force")
        handle = self.server.open("huge")
        handle.pwrite(b"far", free + GIB)
        handle.flush()
        self.assertEqual(handle.pread(3, free + GIB), b"far")

    def test_unknown_names_say_what_to_do(self):
        for words in (
            ("show", "ghost"),
            ("grow", "ghost", "2GiB"),
            ("delete", "ghost", "--yes", "--force"),
            ("clear", "ghost", "--yes"),
        ):
            with self.subTest(words=words):
                said = self.server.refused("volume", *words)
                self.assertIn("ghost", said)
                self.assertIn("list", said, "what to do is not named")

    def test_errors_in_json(self):
        done = self.server.cli("volume", "show", "ghost", "--json", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ghost", json.loads(done.stdout or done.stderr)["error"])

    def test_delete_asks_for_yes(self):
        name = self.volume()
        self.assertIn("--yes", self.server.refused("volume", "delete", name))
        self.assertIn(name, self.names())

    def test_name_can_be_used_again_and_is_empty(self):
        self.server.create("again", "4MiB")
        self.server.open("again").pwrite(b"old" * 1000, 0)
        self.server.cli("volume", "delete", "again", "--yes", "--force")
        self.server.create("again", "4MiB")
        self.addCleanup(self.server.cli, "volume", "delete", "again", "--yes", "--force")
        self.assertEqual(self.server.open("again").pread(3000, 0), bytes(3000))

    def test_set(self):
        name = self.volume()
        self.server.cli("volume", "set", name, "--share", "25%", "--cache", "6MiB", "--write-cache", "none")
        shown = self.show(name)
        self.assertEqual(shown["write_cache"], "none")
        self.assertAlmostEqual(shown["share"]["effective"], 0.25)
        self.assertEqual(shown["cache"]["requested_bytes"], 6 * MIB)
        self.assertIn("lost", self.server.refused("volume", "set", name, "--write-cache", "unsafe"))
        self.assertEqual(self.show(name)["write_cache"], "none")
        self.server.refused("volume", "set", name, "--share", "3/2")
        self.server.refused("volume", "set", name, "--cache", "900GiB")

    def test_shares_of_a_disk_sum_to_at_most_one(self):
        name = self.volume("1MiB", "--share", "3/4")
        said = self.server.refused("volume", "create", "other", "1MiB", "--share", "1/2")
        self.assertIn("25%", said, "what is left is not named")
        self.assertEqual(self.names(), [name])

    def test_grow(self):
        name = self.volume("8MiB")
        self.server.open(name).pwrite(b"g" * MIB, 7 * MIB)
        self.server.refused("volume", "grow", name, "4MiB")
        self.server.refused("volume", "grow", name, "8388609")
        self.server.cli("volume", "grow", name, "20MiB")
        handle = self.server.open(name)
        self.assertEqual(handle.get_size(), 20 * MIB)
        self.assertEqual(handle.pread(2 * MIB, 7 * MIB), b"g" * MIB + bytes(MIB))
        handle.pwrite(b"h" * 1000, 19 * MIB)
        handle.flush()
        self.server.restart()
        handle = self.server.open(name)
        self.assertEqual((handle.get_size(), handle.pread(1000, 19 * MIB)), (20 * MIB, b"h" * 1000))

    def test_grow_while_open(self):
        name = self.volume("8MiB")
        handle = self.server.open(name)
        handle.pwrite(b"a", 0)
        self.server.cli("volume", "grow", name, "16MiB")
        self.assertEqual(handle.pread(1, 0), b"a", "growing disturbed an open connection")
        self.assertEqual(self.server.open(name).get_size(), 16 * MIB)

    def test_delete_while_open_disconnects(self):
        self.server.create("open", "4MiB")
        handle = self.server.open("open")
        handle.pwrite(b"x" * 10_000, 0)
        self.server.cli("volume", "delete", "open", "--yes", "--force")
        self.assertRaises(nbd.Error, handle.pread, 512, 0)
        self.server.create("open", "4MiB")
        self.assertEqual(self.server.open("open").pread(10_000, 0), bytes(10_000))
        self.server.cli("volume", "delete", "open", "--yes", "--force")

    def test_prealloc_full_and_sparse(self):
        for option, most, least in (("--prealloc=full", 65, 64), ("--sparse", 1, 0)):
            with self.subTest(option=option):
                self.server.create("space", "64MiB", option)
                path = self.show("space")["path"]
                used = os.stat(path).st_blocks * 512 / MIB
                self.assertTrue(least <= used <= most, f"{used} MiB are used")
                self.server.cli("volume", "delete", "space", "--yes", "--force")
                self.assertFalse(os.path.exists(path), "the data is still there")

    def test_initialised_in_idle_time(self):
        name = self.volume("64MiB")
        until("the volume to be initialised", lambda: self.show(name)["initialised_ratio"] == 1, 60)
        self.assertEqual(self.server.open(name).pread(MIB, 30 * MIB), bytes(MIB))

    def test_clear_of_a_healthy_volume_is_harmless(self):
        name = self.volume()
        handle = self.server.open(name)
        handle.pwrite(b"c" * 10_000, 0)
        said = self.server.cli("volume", "clear", name, "--yes").stdout
        self.assertIn("has no loss", said)
        self.assertIn("nothing changed", said)
        handle.flush()
        self.assertEqual(handle.pread(10_000, 0), b"c" * 10_000)

    def test_everything_survives_restarts(self):
        self.server.create("one", "4MiB", "--share", "0.2", "--tenant", "t", "--cache", "8MiB")
        self.server.create("two", "8MiB", "--sparse")
        self.server.cli("volume", "set", "two", "--write-cache", "none")
        kept = ("name", "size_bytes", "tenant", "disk", "write_cache", "allocation")
        before = [[self.show(name)[key] for key in kept] for name in ("one", "two")]
        share = self.show("one")["share"]
        self.server.restart()
        self.server.kill()
        self.server.start()
        self.assertEqual([[self.show(name)[key] for key in kept] for name in ("one", "two")], before)
        self.assertEqual(self.show("one")["share"], share)
        for name in ("one", "two"):
            self.server.cli("volume", "delete", name, "--yes", "--force")
        self.server.restart()
        self.assertEqual(self.names(), [])

    def test_metrics(self):
        name = self.volume("8MiB")
        handle = self.server.open(name)
        handle.pwrite(b"m" * MIB, 0)
        handle.flush()
        handle.pread(MIB, 0)
        samples = self.server.metrics()
        label = f'volume="{name}"'
        for metric, least in {
            "aerogel_volume_read_bytes_total": MIB,
            "aerogel_volume_write_bytes_total": MIB,
            "aerogel_volume_flush_requests_total": 1,
            "aerogel_volume_read_latency_seconds_count": 1,
            "aerogel_volume_write_latency_seconds_sum": 0,
        }.items():
            found = [value for key, value in samples.items() if key.startswith(metric + "{") and label in key]
            self.assertEqual(len(found), 1, f"{metric} of the volume in /metrics")
            self.assertGreaterEqual(found[0], least, metric)
        keys = "\n".join(samples)
        for metric in (
            "aerogel_volume_delay_seconds_total",
            "aerogel_disk_time_seconds_total",
            "aerogel_disk_committed_share_ratio",
        ):
            self.assertIn(metric + "{", keys)
        for center in ("thread", "queue", "cache", "slice", "disk"):
            self.assertIn(f'center="{center}"', keys)

    def test_openapi_document(self):
        found = {path: self.server.get(path) for path in ("/openapi.json", "/v1/openapi.json")}
        documents = [json.loads(body) for status, body in found.values() if status == 200]
        self.assertTrue(documents, f"no OpenAPI document: { {path: status for path, (status, _) in found.items()} }")
        self.assertIn("/v1/volumes", documents[0]["paths"])


class Disks(ServerCase):
    """Disks are added and removed, and never mistaken for another disk."""

    def test_add_use_remove_add(self):
        server = self.serve()
        path = self.scratch / "second"
        server.cli("disk", "add", "second", str(path), "--force")
        uri = server.create("v", "4MiB", "--disk", "second")
        server.open("v").pwrite(b"s" * 1000, 0)
        self.assertIn("second", server.cli("disk", "list").stdout)
        self.assertEqual(server.json("disk", "show", "second")["volumes"], ["v"])
        server.restart()
        self.assertEqual(server.open("v").pread(1000, 0), b"s" * 1000)
        until("the disk to be removed", lambda: server.cli("disk", "remove", "second", check=False).returncode == 0)
        self.assertRaises(nbd.Error, server.open, "v")
        server.cli("disk", "add", "other-name", str(path), "--force")
        self.assertEqual(server.open("v").pread(1000, 0), b"s" * 1000)
        self.assertIn("v", uri)

    def test_disk_moves_to_another_server(self):
        one, two = self.serve(name="one"), self.serve(name="two")
        path = self.scratch / "moving"
        one.cli("disk", "add", "moving", str(path), "--force")
        one.create("v", "4MiB", "--disk", "moving")
        one.open("v").pwrite(b"m" * 1000, 0)
        said = two.refused("disk", "add", "moving", str(path), "--force")
        self.assertIn(str(one.pid), said, "who holds the disk is not named")
        until("the disk to be removed", lambda: one.cli("disk", "remove", "moving", check=False).returncode == 0)
        two.cli("disk", "add", "moving", str(path), "--force")
        self.assertEqual(two.open("v").pread(1000, 0), b"m" * 1000)

    def test_two_disks_on_one_device_need_force(self):
        server = self.serve()
        said = server.refused("disk", "add", "second", str(self.scratch / "second"))
        self.assertIn("--force", said)

    def test_somebody_elses_directory_is_refused(self):
        server = self.serve()
        home = self.scratch / "home"
        home.mkdir()
        (home / "letter.txt").write_text("dear")
        self.assertIn("empty", server.refused("disk", "add", "home", str(home), "--force"))
        self.assertEqual(sorted(os.listdir(home)), ["letter.txt"])

    def test_missing_disk_is_offline_and_the_others_go_on(self):
        server = self.serve()
        path = self.scratch / "second"
        server.cli("disk", "add", "second", str(path), "--force")
        server.create("there", "4MiB", "--disk", "default")
        server.create("away", "4MiB", "--disk", "second")
        server.open("away").pwrite(b"a" * 1000, 0)
        self.assertEqual(server.stop(), 0)
        (path / "disk.toml").rename(self.scratch / "disk.toml.away")
        server.start()
        shown = server.json("disk", "show", "second")
        self.assertEqual(shown["condition"], "offline")
        self.assertIn("disk.toml", shown["reason"])
        self.assertFalse((path / "disk.toml").exists(), "the disk was initialised anew")
        server.open("there").pwrite(b"t", 0)
        self.assertRaises(nbd.Error, server.open, "away")
        self.assertIn("offline", server.refused("volume", "create", "new", "1MiB", "--disk", "second"))
        (self.scratch / "disk.toml.away").rename(path / "disk.toml")
        server.restart()
        self.assertEqual(server.open("away").pread(1000, 0), b"a" * 1000)

    def test_vanished_data_is_offline_and_the_others_go_on(self):
        server = self.serve()
        for name in ("kept", "gone", "short"):
            server.create(name, "4MiB")
            server.open(name).pwrite(name.encode(), 0)
        gone, short = (server.json("volume", "show", name)["path"] for name in ("gone", "short"))
        self.assertEqual(server.stop(), 0)
        os.rename(gone, gone + ".away")
        os.truncate(short, MIB)
        server.start()
        for name, path in (("gone", gone), ("short", short)):
            with self.subTest(name=name):
                shown = server.json("volume", "show", name)
                self.assertEqual(shown["condition"], "offline")
                self.assertIn(path, shown["reason"])
                self.assertRaises(nbd.Error, server.open, name)
                self.assertIn(name, server.cli("status").stdout)
        self.assertEqual(server.open("kept").pread(4, 0), b"kept")
        os.rename(gone + ".away", gone)
        server.restart()
        self.assertEqual(server.open("gone").pread(4, 0), b"gone")

    def test_unclaimed_data_is_reported_and_left_alone(self):
        server = self.serve()
        server.create("v", "4MiB")
        path = server.json("volume", "show", "v")["path"]
        stray = os.path.join(os.path.dirname(path), "stray.img")
        with open(stray, "wb") as file:
            file.write(b"precious")
        server.restart()
        self.assertIn("stray", " ".join(server.json("disk", "show", "default")["unclaimed"]))
        server.refused("volume", "create", "stray", "1MiB")
        with open(stray, "rb") as file:
            self.assertEqual(file.read(), b"precious")


class Servers(ServerCase):
    """Processes: several at a time, one per directory, configured, stopped."""

    def test_side_by_side(self):
        servers = [self.serve(name=name) for name in ("one", "two", "three")]
        for i, server in enumerate(servers):
            server.create("same-name", f"{i + 1}MiB")
        for i, server in enumerate(servers):
            self.assertEqual(server.open("same-name").get_size(), (i + 1) * MIB)

    def test_second_server_on_a_directory_is_refused_by_name(self):
        server = self.serve()
        server.create("v", "1MiB")
        command = [places.binary(), "serve", "--data", server.data, "--nbd", f"unix:{self.scratch}/2.sock"]
        done = run(*command, "--http", f"unix:{self.scratch}/2h.sock", check=False, seconds=STOP_SECONDS)
        self.assertNotEqual(done.returncode, 0)
        said = done.stdout + done.stderr
        self.assertIn(str(server.pid), said, "who holds the directory is not named")
        self.assertIn(str(server.data), said)
        self.assertEqual(server.open("v").get_size(), MIB, "the first server was disturbed")

    def test_stale_sockets_are_replaced(self):
        server = self.serve()
        server.create("v", "1MiB")
        server.kill()
        self.assertTrue(server.socket.is_socket(), "nothing stale was left to replace")
        server.start()
        self.assertEqual(server.open("v").get_size(), MIB)

    def test_a_file_in_place_of_a_socket_is_not_removed(self):
        server = Server(self.scratch, name="data")
        self.servers.append(server)
        self.addCleanup(server.kill)
        server.data.mkdir()
        server.socket.write_text("not a socket")
        server.spawn()
        self.assertNotEqual(server.process.wait(STOP_SECONDS), 0)
        self.assertIn("nbd.sock", server.log())
        self.assertEqual(server.socket.read_text(), "not a socket")

    def test_nothing_is_made_for_a_configuration_that_is_refused(self):
        missing = self.scratch / "missing"
        files = f'[tls]\ncertificate = "{missing}/server-cert.pem"\nkey = "{missing}/server-key.pem"'
        secure = "tcp:127.0.0.1:0,tls=require"
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        for i, (said, more) in enumerate(
            (
                ("--allow-insecure-remote", {"nbd": ["tcp:0.0.0.0:10809"]}),
                ("--allow-insecure-remote", {"http": ["tcp:0.0.0.0:0"]}),
                ("tls.certificate", {"nbd": [secure]}),
                (f"{missing}/server-cert.pem", {"nbd": [secure], "config": files}),
                (f"{missing} does not exist", {"nbd": [f"unix:{missing}/nbd.sock"]}),
                ("is not a socket", {"http": [f"unix:{__file__}"]}),
                ("does another server run", {"nbd": [f"tcp:127.0.0.1:{taken.getsockname()[1]}"]}),
                ("at most 107", {"nbd": [f"unix:{'x' * 108}"]}),
            )
        ):
            with self.subTest(said=said, **more):
                server = Server(self.scratch, name=f"refused{i}", **more)
                self.servers.append(server)
                self.addCleanup(server.kill)
                server.spawn()
                self.assertNotEqual(server.process.wait(STOP_SECONDS), 0)
                self.assertIn(said, server.log())
                self.assertFalse(server.data.exists(), "the server's directory was made")

    def test_a_clean_stop_removes_the_sockets(self):
        server = self.serve()
        sockets = (server.socket, server.http_socket, server.data / "api.sock")
        self.assertTrue(all(path.is_socket() for path in sockets))
        self.assertEqual(server.stop(), 0)
        self.assertEqual([path for path in sockets if path.exists()], [])

    def test_a_killed_server_is_waited_for_until_its_process_has_ended(self):
        server = Server(self.scratch)
        self.servers.append(server)
        self.addCleanup(server.kill)
        server.data.mkdir()
        # This process takes the lock in place of the killed one.
        with open(server.data / "lock", "w+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("process 1 on host there\n")
            lock.flush()
            server.spawn()
            until("it to say what it waits for", lambda: "process 1 on host there" in server.log(), gone=server.ended)
            self.assertIn("waiting up to 5 s", server.log())
        until("it to serve", server.ready, gone=server.ended)
        self.assertEqual(server.log().count("process 1 on host there"), 1)

    def test_a_start_tells_which_volumes_the_server_before_did_not_flush(self):
        server = self.serve()
        server.create("v", "1MiB")
        server.create("w", "1MiB")
        server.open("v").pwrite(b"x" * 4096, 0)

        def told():
            return [line for line in server.log().splitlines() if "server stopped without a flush" in line]

        server.restart()
        self.assertEqual(told(), [], "it ended in order")
        server.kill()
        server.start()
        until("both to be told", lambda: len(told()) == 2)
        self.assertEqual(sorted("volume=v" in line for line in told()), [False, True])
        server.create("x", "1MiB")
        server.restart()
        self.assertEqual(len(told()), 2)

    def test_configuration_mistakes_name_the_nearest_key(self):
        server = Server(self.scratch, config='shutdwn_timeout = "5s"')
        self.servers.append(server)
        self.addCleanup(server.kill)
        server.spawn()
        self.assertNotEqual(server.process.wait(STOP_SECONDS), 0)
        self.assertIn("shutdwn_timeout", server.log())
        self.assertIn("'shutdown_timeout'", server.log())

    def test_json_logs(self):
        server = self.serve(config='[log]\nformat = "json"')
        server.create("v", "1MiB")
        lines = [line for line in server.log().splitlines() if line.startswith("{")]
        self.assertTrue(lines, "nothing was logged as JSON")
        for line in lines:
            json.loads(line)

    def test_api_socket_is_private(self):
        server = self.serve()
        mode = os.stat(server.data / "api.sock").st_mode & 0o777
        self.assertEqual(mode, 0o600, f"the API's socket has mode {mode:o}")

    def test_client_says_when_no_server_is_there(self):
        server = self.serve()
        server.stop()
        said = server.refused("volume", "list")
        self.assertIn("serve", said, "what to do is not named")

    def test_found_by_environment(self):
        server = self.serve()
        environment = {**os.environ, "AEROGEL_DATA": str(server.data)}
        self.assertEqual(json.loads(run(places.binary(), "volume", "list", "--json", env=environment).stdout), [])

    def test_readiness_is_told_to_systemd(self):
        """sd_notify: READY=1 when it serves, STOPPING=1 when it drains."""
        path = str(self.scratch / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(path)
            notify.settimeout(STOP_SECONDS)
            server = Server(self.scratch)
            self.servers.append(server)
            self.addCleanup(server.kill)
            server.spawn(env={**os.environ, "NOTIFY_SOCKET": path})
            self.assertIn(b"READY=1", notify.recv(4096))
            self.assertTrue(server.ready(), "READY=1 came before the server was ready")
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b"STOPPING=1", notify.recv(4096))
            self.assertEqual(server.process.wait(STOP_SECONDS), 0)
