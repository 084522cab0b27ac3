"""Sessions that clients claim of a volume: one client at a time, its latest session only, over restarts."""

import socket
import struct
import threading
import time

from harness import wire
from harness.case import ServerCase
from harness.server import MIB
from harness.wait import until
from harness.wire import Closed, Wire

# For `tests/run.py`.
LANE = 1

# After this time a claim is refused whose earlier sessions do not end.
CLAIM_SECONDS = 9


class Claims(ServerCase):
    """What the tests have in common."""

    def wire(self):
        connection = Wire(self.server.socket)
        self.addCleanup(connection.socket.close)
        return connection

    def claiming(self, session, name="db", connection=None):
        """A connection that has selected the context of a session, and its answer."""
        connection = connection or self.wire()
        connection.negotiate_extended()
        return connection, connection.meta(wire.SET_META, name, f"aerogel:session={session}")

    def go(self, connection, name="db"):
        """The final reply to GO: its type and its text."""
        replies = connection.option(wire.GO, struct.pack(">I", len(name)) + name.encode() + b"\0\0")
        return replies[-1][0], replies[-1][1].decode()

    def claim(self, session, name="db"):
        """A connection of a session."""
        connection, contexts = self.claiming(session, name)
        self.assertEqual([context.split("=")[0] for _, context in contexts], ["aerogel:volume"])
        self.assertEqual(self.go(connection, name), (wire.ACK, ""))
        return connection

    def refused(self, session, name="db"):
        """Why a session is refused."""
        connection, _ = self.claiming(session, name)
        kind, why = self.go(connection, name)
        self.assertEqual(kind, wire.ERR_POLICY, f"{session} is not refused")
        return why

    def shown(self):
        return self.server.json("volume", "show", "db")["session"]

    def ended(self):
        until("the session to end", lambda: self.shown() is None)

    def write(self, connection, byte, offset=0):
        self.assertEqual(connection.ask(wire.WRITE, offset, 4096, payload=byte * 4096), 0)

    def content(self):
        """The first byte of the volume, read by a client without a session."""
        return self.server.open("db").pread(1, 0)


class Sessions(Claims):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.server.create("db", "16MiB")

    def test_a_second_client_is_refused_by_name_until_the_first_has_left(self):
        self.assertIsNone(self.shown())
        first, twin = self.claim("gw-1/5"), self.claim("gw-1/5")
        self.assertEqual(self.shown(), {"client": "gw-1", "epoch": 5, "shared": False, "connections": 2})
        for other in ("gw-2/9", "gw-2/9/shared"):
            self.assertEqual(self.refused(other), "volume 'db' is in use by the gateway 'gw-1'")
        # The refused client may open another volume; clients without a session are not concerned.
        self.server.create("other", "1MiB")
        connection, _ = self.claiming("gw-2/9")
        self.assertEqual(self.go(connection)[0], wire.ERR_POLICY)
        self.assertEqual(self.go(connection, "other")[0], wire.ACK)
        self.server.open("db").pwrite(b"x" * 4096, 0)
        self.assertEqual(self.server.metrics()['aerogel_nbd_connections_refused_total{limit="session"}'], 3)
        self.assertIn("in use by the gateway 'gw-1'", self.server.log())
        first.socket.close()
        self.assertIn("gw-1", self.refused("gw-2/9"))
        twin.socket.close()
        self.ended()
        self.claim("gw-2/9")
        self.assertIn("gw-2", self.refused("gw-1/6"))

    def test_a_session_is_not_continued_after_another_client(self):
        self.claim("gw-1/5/after=4").socket.close()
        # Attempts that the client knows nothing of are its own.
        self.claim("gw-1/7/after=5").socket.close()
        first = self.claim("gw-1/8/after=5")
        twin = self.claim("gw-1/8/after=5")
        for connection in (first, twin):
            connection.socket.close()
        self.ended()
        second = self.claim("gw-2/3")
        self.assertIn("in use", self.refused("gw-1/9/after=8"))
        second.socket.close()
        self.ended()
        connection, _ = self.claiming("gw-1/10/after=8")
        kind, why = self.go(connection)
        self.assertEqual((kind, "'gw-2' has been admitted since session 8" in why), (wire.ERR_INVALID, True), why)
        self.server.restart()
        self.assertEqual(self.refusal("gw-1/11/after=8"), wire.ERR_INVALID)
        self.claim("gw-2/4/after=3").socket.close()
        self.ended()
        self.claim("gw-1/12")

    def test_a_connection_of_a_session_with_a_lease_that_has_ended_does_not_end_the_client(self):
        # As when the first connection of a session breaks while the others are on their way.
        issued = 3 << 24
        first, _ = self.claiming(f"gw-1/{issued + 1}/lease")
        self.assertEqual(self.go(first)[0], wire.ACK)
        first.socket.close()
        self.ended()
        late, _ = self.claiming(f"gw-1/{issued + 1}/lease")
        kind, why = self.go(late)
        self.assertEqual((kind, "is not above" in why), (wire.ERR_POLICY, True), why)
        self.assertEqual(self.refusal(f"gw-1/{issued - 1}/lease"), wire.ERR_INVALID, "another number was issued since")
        self.assertEqual(self.refusal(f"gw-1/{issued + 2}/lease"), wire.ACK)

    def refusal(self, session):
        """The type of the reply that refuses a session."""
        connection, _ = self.claiming(session)
        return self.go(connection)[0]

    def test_without_go_there_is_no_session(self):
        connection, contexts = self.claiming("gw-1/1")
        self.assertEqual(len(contexts), 1)
        self.assertIsInstance(connection.go("db", option=wire.INFO), dict)
        self.claim("gw-2/1")
        # Selecting something else forgets the claim.
        connection.meta(wire.SET_META, "db", "base:allocation")
        self.assertEqual(self.go(connection), (wire.ACK, ""))

    def test_export_name_is_refused_by_closing(self):
        first = self.claim("gw-1/1")
        other, _ = self.claiming("gw-2/1")
        with self.assertRaises(Closed):
            other.export_name("db")
        again, _ = self.claiming("gw-1/2")
        again.export_name("db")
        self.assertTrue(first.closed())

    def test_a_later_epoch_closes_the_session_and_an_earlier_one_is_refused(self):
        old = [self.claim("gw-1/5") for _ in range(3)]
        self.write(old[0], b"1")
        new = self.claim("gw-1/7")
        for connection in old:
            self.assertTrue(connection.closed())
        self.write(new, b"2")
        for epoch in (5, 6):
            self.assertEqual(
                self.refused(f"gw-1/{epoch}"),
                f"epoch {epoch} of the gateway 'gw-1' is not above 7, that of its latest session",
            )
        self.claim("gw-1/7")
        self.assertEqual(self.server.metrics()['aerogel_nbd_disconnects_total{reason="superseded"}'], 3)
        new.socket.close()
        self.assertEqual(self.content(), b"2")

    def test_a_session_that_has_all_connections_of_the_volume_gives_them_to_its_successor(self):
        self.server.stop()
        self.server.config.write_text(self.server.config.read_text() + "[limits]\nconnections_per_volume = 2\n")
        self.server.start()
        old = [self.claim("gw-1/1") for _ in range(2)]
        self.assertIn("connections_per_volume", self.refused("gw-1/1"))
        self.claim("gw-1/2")
        for connection in old:
            self.assertTrue(connection.closed())

    def test_epochs_outlast_the_session_other_clients_and_the_server(self):
        for session in ("gw-1/7", "gw-2/3"):
            self.claim(session).socket.close()
            self.ended()
        for stop in (self.server.stop, self.server.kill, lambda: None):
            stop()
            if self.server.process.poll() is not None:
                self.server.start()
            for session in ("gw-1/6", "gw-1/7", "gw-2/3"):
                self.assertIn("is not above", self.refused(session))
        self.claim("gw-1/8").socket.close()
        self.ended()
        # A volume that is created with the name of a deleted one is another one.
        self.server.cli("volume", "delete", "db", "--yes")
        self.server.create("db", "16MiB")
        self.claim("gw-1/1")

    def test_the_identity_is_that_of_the_volume(self):
        context = self.claiming("gw-1/1")[1]
        self.server.restart()
        self.assertEqual(self.claiming("gw-1/1")[1], context)
        self.server.create("other", "1MiB")
        self.assertNotEqual(self.claiming("gw-1/1", "other")[1], context)

    def test_what_cannot_be_recorded_is_refused(self):
        epochs = self.server.data / "disks/default/volumes/db.epochs"
        epochs.mkdir()
        self.assertIn("cannot be recorded", self.refused("gw-1/1"))
        self.assertIsNone(self.shown())
        epochs.rmdir()
        self.claim("gw-1/1")

    def test_shared_sessions(self):
        first, second = self.claim("gw-1/1/shared"), self.claim("gw-2/1/shared")
        self.assertIn("in use by the gateway 'gw-", self.refused("gw-3/1"))
        self.assertTrue(self.shown()["shared"])
        # A client's epochs are its own.
        again = self.claim("gw-1/2/shared")
        self.assertTrue(first.closed())
        self.write(second, b"2")
        self.write(again, b"1")

    def test_readers_keep_no_writer_away(self):
        self.server.cli("volume", "set", "db", "--read-only", "on")
        readers = [self.claim(session) for session in ("gw-1/9", "gw-2/9", "gw-1/4")]
        self.server.cli("volume", "set", "db", "--read-only", "off")
        self.assertFalse((self.server.data / "disks/default/volumes/db.epochs").exists())
        writer = self.claim("gw-1/1")
        for reader in readers:
            self.assertTrue(reader.closed())
        self.write(writer, b"w")

    def test_a_hidden_volume_is_like_none(self):
        self.server.cli("volume", "set", "db", "--allow", "user:4000000")
        for name in ("db", "absent"):
            connection, contexts = self.claiming("gw-1/1", name)
            self.assertEqual(contexts, wire.ERR_UNKNOWN)
            self.assertEqual(self.go(connection, name), (wire.ERR_UNKNOWN, f"no volume '{name}'"))
        self.server.cli("volume", "set", "db", "--allow", "any")
        connection, _ = self.claiming("gw-1/1")
        self.server.cli("volume", "set", "db", "--allow", "user:4000000")
        self.assertEqual(self.go(connection)[0], wire.ERR_UNKNOWN)

    def test_connections_of_one_session_that_arrive_together_all_join_it(self):
        for epoch in range(1, 9):
            ready = [self.claiming(f"gw-1/{epoch}")[0] for _ in range(8)]
            answers = []
            threads = [threading.Thread(target=lambda c=c: answers.append(self.go(c))) for c in ready]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(answers, [(wire.ACK, "")] * 8)
            self.assertEqual(self.shown()["connections"], 8)

    def test_of_clients_that_arrive_together_one_is_served(self):
        for epoch in range(1, 9):
            ready = [self.claiming(f"gw-{number}/{epoch}")[0] for number in range(8)]
            answers = []
            threads = [threading.Thread(target=lambda c=c: answers.append(self.go(c)[0])) for c in ready]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(answers), [wire.ACK] + [wire.ERR_POLICY] * 7)
            for connection in ready:
                connection.socket.close()
            self.ended()


class Outstanding(Claims):
    """Writes of an earlier session that hang in the device."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.server.cli("disk", "add", "bad", str(self.scratch / "bad"), "--force")
        self.server.create("db", "16MiB", "--disk", "bad", "--prealloc", "full")
        self.server.create("beside", "16MiB", "--disk", "bad", "--prealloc", "full")

    def hang(self, connection):
        """A durable write that does not end."""
        self.server.cli("disk", "fault", "add", "bad", "stuck write volume=db", "--yes")
        connection.request(wire.WRITE, 0, MIB, wire.FUA, b"1" * MIB)
        stuck = 'aerogel_disk_stuck_requests{disk="bad"}'
        until("the write to hang", lambda: self.server.metrics()[stuck] > 0)

    def clear(self):
        self.server.cli("disk", "fault", "clear", "bad")

    def waiting(self, session):
        """A connection whose GO is not answered yet, and the list that gets the answer."""
        connection, answers = self.claiming(session)[0], []
        thread = threading.Thread(target=lambda: answers.append((self.go(connection), time.monotonic())))
        thread.start()
        self.addCleanup(thread.join)
        return connection, thread, answers

    def test_go_waits_for_the_writes_of_the_earlier_session(self):
        old = self.claim("gw-1/1")
        self.hang(old)
        new, thread, answers = self.waiting("gw-1/2")
        self.assertTrue(old.closed())
        # Others do not wait: a client without a session, another volume, another client, a further connection.
        self.server.open("db").pread(4096, 8 * MIB)
        self.claim("gw-1/1", "beside")
        self.assertIn("in use by the gateway 'gw-1'", self.refused("gw-2/1"))
        twin, twin_thread, twin_answers = self.waiting("gw-1/2")
        until("both to wait", lambda: self.shown() == {"client": "gw-1", "epoch": 2, "shared": False, "connections": 2})
        self.assertEqual((answers, twin_answers), ([], []))
        cleared = time.monotonic()
        self.clear()
        thread.join()
        twin_thread.join()
        for (kind, why), at in answers + twin_answers:
            self.assertEqual((kind, why), (wire.ACK, ""))
            self.assertGreater(at, cleared)
        self.write(new, b"2")
        self.assertEqual(twin.ask(wire.FLUSH), 0)
        self.assertEqual(self.content(), b"2")

    def test_a_claim_that_waits_too_long_is_refused_and_the_next_one_may_succeed(self):
        old = self.claim("gw-1/1")
        self.hang(old)
        begun = time.monotonic()
        self.assertIn("try again", self.refused("gw-1/2"))
        self.assertGreater(time.monotonic() - begun, CLAIM_SECONDS - 2)
        self.assertIn("a later session of volume", self.refused("gw-1/1"))
        self.clear()
        self.assertIn("is not above", self.refused("gw-1/2"), "it was recorded")
        self.claim("gw-1/3")

    def test_a_claim_that_waits_gives_way_to_a_later_one(self):
        old = self.claim("gw-1/1")
        self.hang(old)
        connection, second, answers = self.waiting("gw-1/2")
        until("the second to wait", lambda: self.shown()["epoch"] == 2)
        _, third, served = self.waiting("gw-1/3")
        until("the third to wait", lambda: self.shown()["epoch"] == 3)
        self.clear()
        second.join()
        third.join()
        self.assertEqual(served[0][0], (wire.ACK, ""))
        # The third is shown before its epoch is recorded. If the second was answered before that, it was disconnected.
        if answers[0][0][0] == wire.ACK:
            self.assertTrue(connection.closed())
        else:
            self.assertEqual(answers[0][0], (wire.ERR_POLICY, "a later session of volume 'db' has begun"))

    def test_a_volume_that_is_deleted_meanwhile(self):
        old = self.claim("gw-1/1")
        self.hang(old)
        new, thread, answers = self.waiting("gw-1/2")
        self.assertTrue(old.closed())
        deleting = threading.Thread(target=lambda: self.server.cli("volume", "delete", "db", "--yes", "--force"))
        deleting.start()
        self.addCleanup(deleting.join)
        self.clear()
        thread.join()
        deleting.join()
        # Its GO may have been answered before the deletion; then it was disconnected.
        if answers[0][0][0] == wire.ACK:
            self.assertTrue(new.closed())
        self.assertEqual([file.name for file in (self.scratch / "bad/volumes").glob("db.*")], [])

    def test_a_client_that_vanishes_while_it_waits(self):
        old = self.claim("gw-1/1")
        self.hang(old)
        connection, _ = self.claiming("gw-1/2")
        connection.send(struct.pack(">QII", wire.IHAVEOPT, wire.GO, 8) + struct.pack(">I", 2) + b"db\0\0")
        until("it to wait", lambda: self.shown()["epoch"] == 2)
        connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()
        _, thread, answers = self.waiting("gw-1/3")
        self.clear()
        thread.join()
        self.assertEqual(answers[0][0], (wire.ACK, ""))
