"""The handshake, option by option, with a bare client."""

import struct

import nbd
from harness import wire
from harness.case import ServerCase, SharedServerCase
from harness.server import MIB
from harness.wire import Closed, Wire

# HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN, CACHE, FAST_ZERO
FLAGS_ALWAYS = sum(1 << bit for bit in (0, 2, 3, 5, 6, 8, 10, 11))
FLAG_DF = 1 << 7
FLAG_READ_ONLY = 1 << 1


class Handshake(SharedServerCase):
    """A server with two volumes, so that no name is the default."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.create("first", "1MiB")
        cls.server.create("second", "2MiB")

    def wire(self, **more):
        connection = Wire(self.server.socket, **more)
        self.addCleanup(connection.socket.close)
        return connection

    def still_serves(self):
        """A misbehaving client affects its own connection only."""
        self.assertEqual(self.server.open("first").get_size(), MIB)

    def test_greeting(self):
        self.assertEqual(self.wire().server_flags & 3, 3, "fixed newstyle and no-zeroes are offered")

    def test_export_name(self):
        connection = self.wire()
        size, flags = connection.export_name("second")
        self.assertEqual(size, 2 * MIB)
        self.assertEqual(flags & (FLAGS_ALWAYS | FLAG_READ_ONLY), FLAGS_ALWAYS)
        self.assertFalse(flags & FLAG_DF, "DF is offered without structured replies")
        connection.request(wire.WRITE, 4096, 5, payload=b"hello")
        self.assertEqual(connection.simple()[1], 0)
        connection.request(wire.READ, 4095, 7)
        self.assertEqual(connection.simple(7)[1:], (0, b"\0hello\0"))

    def test_export_name_with_zeroes(self):
        connection = self.wire(client_flags=1)
        self.assertEqual(connection.export_name("first")[0], MIB)
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_export_name_unknown_closes(self):
        with self.assertRaises(Closed):
            self.wire().export_name("nobody")

    def test_client_that_is_not_fixed_newstyle(self):
        connection = self.wire(client_flags=0)
        try:
            self.assertEqual(connection.export_name("first")[0], MIB)
        except Closed:
            pass
        self.still_serves()

    def test_unknown_client_flags_close(self):
        connection = self.wire(client_flags=1 << 9)
        with self.assertRaises(Closed):
            connection.go("first")
        self.still_serves()

    def test_go(self):
        connection = self.wire()
        infos = connection.go("first")
        size, flags = struct.unpack(">QH", infos[wire.INFO_EXPORT])
        self.assertEqual((size, flags & FLAGS_ALWAYS), (MIB, FLAGS_ALWAYS))
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_go_tells_what_was_asked(self):
        infos = self.wire().go("first", infos=[wire.INFO_BLOCK_SIZE, wire.INFO_NAME, 77])
        self.assertEqual(struct.unpack(">III", infos[wire.INFO_BLOCK_SIZE]), (1, 4096, 32 * MIB))
        self.assertEqual(infos.get(wire.INFO_NAME, b"first"), b"first")

    def test_info_leaves_the_handshake_open(self):
        connection = self.wire()
        infos = connection.go("second", option=wire.INFO)
        self.assertEqual(struct.unpack(">QH", infos[wire.INFO_EXPORT])[0], 2 * MIB)
        infos = connection.go("first")
        self.assertEqual(struct.unpack(">QH", infos[wire.INFO_EXPORT])[0], MIB)
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_df_comes_with_structured_replies(self):
        connection = self.wire()
        connection.negotiate_structured()
        flags = struct.unpack(">QH", connection.go("first")[wire.INFO_EXPORT])[1]
        self.assertTrue(flags & FLAG_DF)

    def test_unknown_name(self):
        connection = self.wire()
        for option in (wire.INFO, wire.GO):
            self.assertEqual(connection.go("nobody", option=option), wire.ERR_UNKNOWN)
        self.assertIn(wire.INFO_EXPORT, connection.go("first"), "the client may try again")

    def test_empty_name_among_several_is_refused(self):
        self.assertEqual(self.wire().go(""), wire.ERR_UNKNOWN)

    def test_list(self):
        replies = self.wire().option(wire.LIST)
        names = [body[4 : 4 + struct.unpack(">I", body[:4])[0]] for kind, body in replies if kind == wire.REP_SERVER]
        self.assertEqual(sorted(names), [b"first", b"second"])

    def test_list_with_data_is_invalid(self):
        connection = self.wire()
        self.assertEqual(connection.option(wire.LIST, b"x")[-1][0], wire.ERR_INVALID)
        self.assertEqual(connection.option(wire.LIST)[-1][0], wire.ACK)

    def test_abort(self):
        connection = self.wire()
        self.assertEqual(connection.option(wire.ABORT), [(wire.ACK, b"")])
        self.assertTrue(connection.closed())

    def test_unknown_option(self):
        connection = self.wire()
        self.assertEqual(connection.option(4242, b"some data")[-1][0], wire.ERR_UNSUP)
        self.assertIn(wire.INFO_EXPORT, connection.go("first"))

    def test_starttls_is_refused_and_the_client_goes_on(self):
        connection = self.wire()
        self.assertIn(connection.option(wire.STARTTLS)[-1][0], (wire.ERR_UNSUP, wire.ERR_POLICY))
        self.assertIn(wire.INFO_EXPORT, connection.go("first"))

    def test_option_that_lies_about_its_name(self):
        connection = self.wire()
        for data in (b"", b"\0\0", struct.pack(">I", 400) + b"first", struct.pack(">I", 5) + b"first"):
            with self.subTest(data=data):
                self.assertEqual(connection.option(wire.GO, data)[-1][0], wire.ERR_INVALID)
        more = struct.pack(">I", 5) + b"first" + struct.pack(">HH", 2, 3)
        self.assertEqual(connection.option(wire.GO, more)[-1][0], wire.ERR_INVALID)
        self.assertIn(wire.INFO_EXPORT, connection.go("first"))

    def test_option_of_a_gigabyte(self):
        connection = self.wire()
        connection.send(struct.pack(">QII", wire.IHAVEOPT, wire.GO, 1 << 30))
        try:
            connection.send(bytes(MIB))
            magic, _, kind, length = struct.unpack(">QIII", connection.receive(20))
            self.assertEqual((magic, kind), (wire.REPLY_MAGIC, wire.ERR_TOO_BIG))
        except (Closed, TimeoutError):
            pass
        connection.socket.close()
        self.still_serves()

    def test_name_of_five_thousand_letters(self):
        self.assertIn(self.wire().go("x" * 5000), (wire.ERR_UNKNOWN, wire.ERR_INVALID, wire.ERR_TOO_BIG))

    def test_bad_option_magic_closes(self):
        connection = self.wire()
        connection.send(struct.pack(">QII", 1, wire.LIST, 0))
        self.assertTrue(connection.closed())
        self.still_serves()

    def test_structured_reply_twice(self):
        connection = self.wire()
        connection.negotiate_structured()
        self.assertIn(connection.option(wire.STRUCTURED_REPLY)[-1][0], (wire.ACK, wire.ERR_INVALID))
        self.assertIn(wire.INFO_EXPORT, connection.go("first"))

    def test_meta_context_needs_structured_replies(self):
        connection = self.wire()
        self.assertEqual(connection.meta(wire.SET_META, "first", "base:allocation"), wire.ERR_INVALID)

    def test_list_meta_context(self):
        connection = self.wire()
        connection.negotiate_structured()
        status, load = "base:allocation", "aerogel:load"
        for queries, listed in (
            ((), [status, load]),
            (("base:",), [status]),
            ((status,), [status]),
            (("qemu:", status), [status]),
            (("aerogel:",), [load]),
            ((load, status), [status, load]),
        ):
            with self.subTest(queries=queries):
                found = connection.meta(wire.LIST_META, "first", *queries)
                self.assertEqual([name for _, name in found], listed)
        self.assertEqual(connection.meta(wire.LIST_META, "first", "qemu:dirty-bitmap:x"), [])
        self.assertEqual(connection.meta(wire.LIST_META, "nobody"), wire.ERR_UNKNOWN)

    def test_set_meta_context(self):
        connection = self.wire()
        connection.negotiate_structured()
        self.assertEqual(connection.meta(wire.SET_META, "first", "nothing:known"), [])
        self.assertEqual(connection.meta(wire.SET_META, "nobody", "base:allocation"), wire.ERR_UNKNOWN)
        ((number, name),) = connection.meta(wire.SET_META, "first", "base:allocation", "other:x")
        self.assertEqual(name, "base:allocation")
        connection.go("first")
        connection.request(wire.BLOCK_STATUS, 0, MIB)
        ((kind, body),) = connection.chunks()
        self.assertEqual(kind, wire.STATUS)
        self.assertEqual(struct.unpack(">I", body[:4])[0], number)

    def test_context_of_one_volume_does_not_hold_for_another(self):
        connection = self.wire()
        connection.negotiate_structured()
        connection.meta(wire.SET_META, "first", "base:allocation")
        connection.go("second")
        self.assertEqual(connection.ask(wire.BLOCK_STATUS, 0, 4096), wire.EINVAL)

    def test_block_status_without_a_context(self):
        connection = self.wire()
        connection.negotiate_structured()
        connection.go("first")
        self.assertEqual(connection.ask(wire.BLOCK_STATUS, 0, 4096), wire.EINVAL)
        self.assertEqual(connection.ask(wire.FLUSH), 0)

    def test_request_sent_along_with_go(self):
        """Bytes that arrive directly after the handshake are passed on with the connection."""
        connection = self.wire()
        go = struct.pack(">I", 5) + b"first" + struct.pack(">H", 0)
        request = struct.pack(">IHHQQI", wire.REQUEST, 0, wire.WRITE, 1, 8192, 4096) + b"a" * 4096
        connection.send(struct.pack(">QII", wire.IHAVEOPT, wire.GO, len(go)) + go + request)
        kind = None
        while kind != wire.ACK:
            _, _, kind, length = struct.unpack(">QIII", connection.receive(20))
            connection.receive(length)
        self.assertEqual(connection.simple(), (1, 0, b""))

    def test_handshake_a_byte_at_a_time(self):
        connection = self.wire()
        go = struct.pack(">I", 5) + b"first" + struct.pack(">H", 0)
        for byte in struct.pack(">QII", wire.IHAVEOPT, wire.GO, len(go)) + go:
            connection.send(bytes([byte]))
        self.assertEqual(struct.unpack(">QII", connection.receive(16))[2], wire.REP_INFO)

    def test_many_clients_that_never_finish_their_handshake(self):
        for _ in range(40):
            self.wire()
        self.still_serves()

    def test_libnbd_negotiates(self):
        def prepare(handle):
            handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
            handle.set_full_info(True)
            handle.set_opt_mode(True)

        handle = self.server.open("first", prepare)
        found = []
        handle.opt_list(lambda name, _: found.append(name))
        self.assertEqual(sorted(found), ["first", "second"])
        handle.set_export_name("nobody")
        self.assertRaises(nbd.Error, handle.opt_info)
        handle.set_export_name("second")
        handle.opt_go()
        self.assertEqual(handle.get_size(), 2 * MIB)
        self.assertTrue(handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION))
        self.assertTrue(handle.get_structured_replies_negotiated())


class EmptyName(ServerCase):
    """The name '' is the only volume."""

    def test_empty_name(self):
        server = self.serve()
        self.assertRaises(nbd.Error, server.open, "")
        server.create("only", "3MiB")
        self.assertEqual(server.open("").get_size(), 3 * MIB)
        with Wire(server.socket) as connection:
            self.assertEqual(connection.export_name("")[0], 3 * MIB)
        server.create("two", "1MiB")
        self.assertRaises(nbd.Error, server.open, "")
        with Wire(server.socket) as connection, self.assertRaises(Closed):
            connection.export_name("")
        server.cli("volume", "delete", "only", "--yes", "--force")
        self.assertEqual(server.open("").get_size(), MIB)
