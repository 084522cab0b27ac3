"""Which clients may open a volume, and how: access lists, read-only volumes, descriptions."""

import os
import shutil
import struct
import tempfile
import threading
from pathlib import Path

import nbd
from harness import wire
from harness.case import ServerCase
from harness.files import as_root
from harness.server import MIB, STOP_SECONDS, Server, run
from harness.wait import until
from harness.wire import Closed, Wire

FLAG_READ_ONLY, FLAG_FUA, FLAG_TRIM, FLAG_ZEROES = (1 << bit for bit in (1, 3, 5, 6))
OWN = f"user:{os.getuid()}"
OTHER = f"user:{os.getuid() + 1}"


class Access(ServerCase):
    """Clients are distinguished by their user id; all of them come from this process."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def wire(self):
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        return connection

    def opened(self, name):
        """A connection in the transmission phase, and its flags."""
        connection = self.wire()
        infos = connection.go(name)
        self.assertIsInstance(infos, dict, f"{name} cannot be opened: {infos}")
        return connection, struct.unpack(">QH", infos[wire.INFO_EXPORT])[1]

    def listed(self):
        replies = self.wire().option(wire.LIST)
        named = [body for kind, body in replies if kind == wire.REP_SERVER]
        return [body[4 : 4 + struct.unpack(">I", body[:4])[0]].decode() for body in named]

    def allow(self, name, *rules):
        words = [word for rule in rules for word in ("--allow", rule)]
        self.server.cli("volume", "set", name, *words)

    def test_a_hidden_volume_is_like_none(self):
        self.server.create("mine", "1MiB", "--allow", OWN)
        self.server.create("theirs", "1MiB", "--allow", OTHER)
        self.assertEqual(self.listed(), ["mine"])
        for option in (wire.GO, wire.INFO):
            said = []
            for name in ("theirs", "absent"):
                connection = self.wire()
                data = struct.pack(">I", len(name)) + name.encode() + b"\0\0"
                replies = connection.option(option, data)
                said.append([(kind, body.replace(name.encode(), b"NAME")) for kind, body in replies])
            self.assertEqual(said[0], said[1])
            self.assertEqual(said[0][0][0], wire.ERR_UNKNOWN)
        connection = self.wire()
        connection.negotiate_structured()
        self.assertEqual(connection.meta(wire.SET_META, "theirs", "base:allocation"), wire.ERR_UNKNOWN)
        with self.assertRaises(Closed):
            self.wire().export_name("theirs")
        # The empty name selects the only volume that this client can see.
        size, _ = self.wire().export_name("")
        self.assertEqual(size, MIB)

    def test_the_list_is_the_same_everywhere_and_survives(self):
        rules = ["any,ro", OWN, "cert:CN=db1,O=Example", "name:db1.example,ro"]
        words = [word for rule in rules for word in ("--allow", rule)]
        self.server.create("db", "1MiB", "--description", "main database", "--read-only", "on", *words)
        for _ in range(2):
            shown = self.server.json("volume", "show", "db")
            found = (shown["allow"], shown["read_only"], shown["description"])
            self.assertEqual(found, (rules, True, "main database"))
            text = self.server.cli("volume", "show", "db").stdout
            self.assertTrue(all(rule in text for rule in rules) and "main database" in text, text)
            infos = self.wire().go("db", infos=[wire.INFO_DESCRIPTION])
            self.assertEqual(infos[wire.INFO_DESCRIPTION], b"main database")
            self.server.restart()
        self.server.cli("volume", "set", "db", "--allow", "any", "--description", "", "--read-only", "off")
        shown = self.server.json("volume", "show", "db")
        self.assertEqual((shown["allow"], shown["read_only"], shown["description"]), (["any"], False, ""))

    def test_what_is_no_rule_is_refused(self):
        self.server.create("db", "1MiB")
        for rule in ("none", "user:root", "cert:db1", "user:-1", "nobody,ro"):
            self.assertIn("user:UID", self.server.refused("volume", "set", "db", "--allow", rule))
        self.assertIn("exclude", self.server.refused("volume", "set", "db", "--allow", "nobody", "--allow", "any"))
        self.assertEqual(self.server.json("volume", "show", "db")["allow"], ["any"])

    def test_subjects_are_taken_as_openssl_prints_them_for_rfc2253(self):
        self.server.create("db", "1MiB", "--allow", "cert:subject=CN=db1,O=Example")
        self.assertEqual(self.server.json("volume", "show", "db")["allow"], ["cert:CN=db1,O=Example"])
        for rule in ("cert:subject=O = Example, CN = db1", "cert:O = Example, CN = db1", "cert:/O=Example/CN=db1"):
            self.assertIn("RFC2253", self.server.refused("volume", "set", "db", "--allow", rule))
        self.assertEqual(self.server.json("volume", "show", "db")["allow"], ["cert:CN=db1,O=Example"])

    def test_clients_that_the_list_refuses_are_counted_and_logged(self):
        def counted():
            metrics = self.server.metrics()
            volume = metrics['aerogel_volume_access_refusals_total{disk="default",volume="theirs",tenant="theirs"}']
            return volume, metrics['aerogel_nbd_connections_refused_total{limit="access"}']

        self.server.create("theirs", "1MiB", "--allow", OTHER)
        self.server.create("mine", "1MiB")
        self.assertEqual(counted(), (0, 0))
        connection = self.wire()
        for name in ("absent", "theirs", "mine"):
            connection.go(name, option=wire.INFO)
        until("it to be counted", lambda: counted() == (1, 1))
        self.assertIn("volume 'theirs' is hidden from the client by its access list", self.server.log())
        self.assertIn(f"user {os.getuid()}", self.server.log())
        with self.assertRaises(Closed):
            self.wire().export_name("theirs")
        for _ in range(98):
            self.assertEqual(connection.go("theirs"), wire.ERR_UNKNOWN)
        until("all to be counted", lambda: counted() == (100, 100))
        # Ten lines in a window of ten seconds; the test may span several windows.
        self.assertLess(self.server.log().count("is hidden from the client"), 100)

    def test_revoking_disconnects_and_spares_the_others(self):
        self.server.create("db", "1MiB", "--allow", OWN)
        self.server.create("other", "1MiB")
        connection, _ = self.opened("db")
        bystander, _ = self.opened("other")
        self.assertEqual(connection.ask(wire.WRITE, 0, 5, payload=b"hello"), 0)
        self.allow("db", OWN, OTHER)
        self.assertEqual(connection.ask(wire.FLUSH), 0, "it may still use the volume")
        self.allow("db", OTHER)
        self.assertTrue(connection.closed())
        self.assertEqual(bystander.ask(wire.FLUSH), 0)
        self.assertEqual(self.wire().go("db"), wire.ERR_UNKNOWN)
        self.allow("db", f"{OWN},ro")
        reader, flags = self.opened("db")
        self.assertTrue(flags & FLAG_READ_ONLY)
        reader.request(wire.READ, 0, 5)
        self.assertEqual(reader.simple(5)[1:], (0, b"hello"))
        self.allow("db", "nobody")
        self.assertTrue(reader.closed())
        self.assertEqual(self.server.metrics()['aerogel_nbd_disconnects_total{reason="revoked"}'], 2)
        self.assertEqual(self.server.log().count("its access was revoked"), 2)

    def test_a_writer_that_may_only_read_from_now_on_is_disconnected(self):
        self.server.create("db", "1MiB")
        writer, _ = self.opened("db")
        self.allow("db", "any,ro")
        self.assertTrue(writer.closed())
        reader, flags = self.opened("db")
        self.assertTrue(flags & FLAG_READ_ONLY)
        self.allow("db", "any")
        self.assertEqual(reader.ask(wire.WRITE, 0, 512, payload=bytes(512)), wire.EPERM, "it agreed to read only")

    def test_a_revoked_client_in_its_handshake_does_not_get_in(self):
        self.server.create("db", "1MiB")
        connection = self.wire()
        self.assertIsInstance(connection.go("db", option=wire.INFO), dict)
        self.allow("db", "nobody")
        self.assertEqual(connection.go("db"), wire.ERR_UNKNOWN)

    def test_read_only_openings_and_volumes(self):
        for name, words in (("opening", ["--allow", "any,ro"]), ("volume", ["--read-only", "on"])):
            with self.subTest(name):
                self.server.create(name, "1MiB", *words)
                connection, flags = self.opened(name)
                self.assertTrue(flags & FLAG_READ_ONLY)
                self.assertFalse(flags & (FLAG_FUA | FLAG_TRIM | FLAG_ZEROES))
                self.assertEqual(connection.ask(wire.WRITE, 0, 4096, payload=bytes(4096)), wire.EPERM)
                self.assertEqual(connection.ask(wire.TRIM, 0, 4096), wire.EPERM)
                self.assertEqual(connection.ask(wire.WRITE_ZEROES, 0, 4096), wire.EPERM)
                self.assertEqual(connection.ask(wire.FLUSH), 0)
                self.assertEqual(connection.ask(wire.CACHE, 0, 4096), 0)
                connection.request(wire.READ, 0, 4096)
                self.assertEqual(connection.simple(4096)[1:], (0, bytes(4096)))
                self.assertEqual(self.server.json("volume", "show", name)["dirty_bytes"], 0)
                handle = self.server.open(name)
                self.assertTrue(handle.is_read_only())
                with self.assertRaises(nbd.Error):
                    handle.pwrite(b"x" * 512, 0)

    def test_read_only_on_disconnects_writers_and_leaves_nothing_dirty(self):
        self.server.create("db", "1MiB")
        writer, flags = self.opened("db")
        self.assertFalse(flags & FLAG_READ_ONLY)
        self.assertEqual(writer.ask(wire.WRITE, 0, 4096, payload=b"a" * 4096), 0)
        self.assertGreater(self.server.json("volume", "show", "db")["dirty_bytes"], 0)
        shown = self.server.json("volume", "set", "db", "--read-only", "on")["volume"]
        self.assertEqual((shown["read_only"], shown["dirty_bytes"]), (True, 0))
        self.assertTrue(writer.closed())
        reader, flags = self.opened("db")
        self.assertTrue(flags & FLAG_READ_ONLY)
        self.server.kill()
        self.server.start()
        reader, flags = self.opened("db")
        self.assertTrue(flags & FLAG_READ_ONLY)
        reader.request(wire.READ, 0, 4096)
        self.assertEqual(reader.simple(4096)[1:], (0, b"a" * 4096))
        self.server.cli("volume", "set", "db", "--read-only", "off")
        self.assertEqual(reader.ask(wire.WRITE, 0, 512, payload=bytes(512)), wire.EPERM, "it agreed to read only")
        writer, flags = self.opened("db")
        self.assertEqual(writer.ask(wire.WRITE, 0, 512, payload=bytes(512)), 0)

    def test_a_writer_that_stalls_in_its_payload_does_not_keep_a_volume_writable(self):
        self.server.create("db", "1MiB")
        writer, _ = self.opened("db")
        writer.request(wire.WRITE, 0, 65536, payload=b"half of it")
        until("the request", lambda: self.server.json("volume", "show", "db")["connections"] == 1, 10)
        shown = self.server.json("volume", "set", "db", "--read-only", "on")["volume"]
        self.assertTrue(shown["read_only"])
        self.assertTrue(writer.closed())

    def test_no_client_slips_in_while_access_changes(self):
        self.server.create("db", "1MiB")
        opened, done = [], threading.Event()

        def open_all_the_time():
            # A private connection: closing a socket in another thread does not wake the thread that reads from it.
            held = []
            while not done.is_set():
                try:
                    connection = Wire(self.server.socket)
                    held.append(connection)
                    opened.append(isinstance(connection.go("db"), dict))
                except (Closed, OSError):
                    pass
                while len(held) > 13:
                    held.pop(0).socket.close()
            for connection in held:
                connection.socket.close()

        clients = [threading.Thread(target=open_all_the_time) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for _ in range(10):
                self.allow("db", "any")
                self.allow("db", "nobody")
                until("all to be gone", lambda: not self.server.json("volume", "show", "db")["connections"], 10)
        finally:
            done.set()
            for client in clients:
                client.join()
        self.assertTrue(any(opened), "nobody got in while everybody might")


class Sockets(ServerCase):
    """Other users reach a Unix socket by its mode or group; then the access lists distinguish them."""

    USER, STRANGER, GROUP = 54321, 54322, 54323

    def setUp(self):
        super().setUp()
        as_root()
        # A directory that all users can enter.
        self.public = Path(tempfile.mkdtemp(prefix="aerogel-", dir="/var/tmp"))
        self.addCleanup(shutil.rmtree, self.public)
        self.public.chmod(0o755)

    def opened(self, socket, user, group=STRANGER):
        """Whether a process of this user and group can open the volume `db`, and its error if not."""
        uri = f"nbd+unix:///db?socket={self.public / socket}"
        identity = ("setpriv", "--reuid", user, "--regid", group, "--clear-groups")
        done = run(*identity, "nbdinfo", "--size", uri, check=False)
        return done.returncode == 0 or done.stderr

    def test_mode_and_group_let_other_users_in(self):
        options = {"own": "", "all": ",mode=0666", "group": f",group={self.GROUP}"}
        named = [f"unix:{self.public}/{name}{options}" for name, options in options.items()]
        server = self.serve(nbd=named)
        self.assertEqual(server.json("status")["nbd"][1:], named)
        server.create("db", "1MiB", "--allow", f"user:{self.USER}")
        self.assertEqual(self.opened("all", self.USER), True)
        self.assertEqual(self.opened("group", self.USER, self.GROUP), True)
        for socket in ("own", "group"):
            self.assertIn("Permission denied", self.opened(socket, self.USER))
        for socket in ("all", "group"):
            self.assertIn("no export", self.opened(socket, self.STRANGER, self.GROUP))
        found = (self.public / "group").stat()
        self.assertEqual((found.st_mode & 0o777, found.st_uid, found.st_gid), (0o660, 0, self.GROUP))

    def test_the_configuration_says_the_same(self):
        table = f'{{ address = "unix:{self.public}/all", mode = "0666", group = "{self.GROUP}" }}'
        server = Server(self.scratch, config=f'nbd = ["unix:{self.scratch}/data/nbd.sock", {table}]')
        self.servers.append(server)
        self.addCleanup(server.kill)
        command = server.command()
        del command[command.index("--nbd") : command.index("--nbd") + 2]
        server.command = lambda: command
        server.start()
        server.create("db", "1MiB", "--allow", f"user:{self.USER}")
        self.assertEqual(self.opened("all", self.USER), True)

    def test_an_unknown_group_is_refused_before_anything_is_made(self):
        server = Server(self.scratch, nbd=[f"unix:{self.public}/a,group=no-such-group"])
        self.servers.append(server)
        self.addCleanup(server.kill)
        server.spawn()
        self.assertNotEqual(server.process.wait(STOP_SECONDS), 0)
        self.assertIn("there is no group 'no-such-group': create it", server.log())
        self.assertFalse(server.data.exists())
