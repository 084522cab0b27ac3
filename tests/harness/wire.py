"""A bare NBD client: it can send what libraries refuse to send, and stop at any point."""

import socket
import struct

NBDMAGIC, IHAVEOPT, REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
REQUEST, SIMPLE, STRUCTURED = 0x25609513, 0x67446698, 0x668E33EF
EXTENDED_REQUEST, EXTENDED = 0x21E41C71, 0x6E8A278C

EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED_REPLY, LIST_META, SET_META = 1, 2, 3, 5, 6, 7, 8, 9, 10
EXTENDED_HEADERS = 11
ACK, REP_SERVER, REP_INFO, REP_META = 1, 2, 3, 4
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_TLS_REQD, ERR_UNKNOWN = (1 << 31 | n for n in (1, 2, 3, 5, 6))
ERR_SHUTDOWN, ERR_TOO_BIG = (1 << 31 | n for n in (7, 9))
INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = range(4)

READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = (1 << n for n in range(6))

DONE = 1
CHUNK_NONE, OFFSET_DATA, OFFSET_HOLE, STATUS, STATUS_EXT, ERROR, ERROR_OFFSET = 0, 1, 2, 5, 6, 1 << 15 | 1, 1 << 15 | 2
EPERM, EIO, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP, ESHUTDOWN = 1, 5, 22, 28, 75, 95, 108


def option(number, data=b""):
    """The bytes of an option."""
    return struct.pack(">QII", IHAVEOPT, number, len(data)) + data


def named(name):
    """The data of GO and INFO for a volume."""
    return struct.pack(">I", len(name)) + name.encode() + bytes(2)


class Closed(Exception):
    """The server closed the connection."""


class Wire:
    """One connection, from the greeting on."""

    def __init__(self, at, seconds=30, client_flags=3):
        """Connects to a Unix socket's path, or to a TCP (host, port)."""
        self.socket = socket.socket(socket.AF_INET if isinstance(at, tuple) else socket.AF_UNIX)
        self.socket.settimeout(seconds)
        self.socket.connect(at if isinstance(at, tuple) else str(at))
        if isinstance(at, tuple):
            # As all NBD clients do: otherwise small requests wait for acknowledgements, 40 ms each.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        magic, opt, self.server_flags = struct.unpack(">QQH", self.receive(18))
        assert (magic, opt) == (NBDMAGIC, IHAVEOPT), f"the greeting is {magic:x} {opt:x}"
        self.no_zeroes = bool(client_flags & 2)
        self.structured = False
        self.extended = False
        self.cookie = 0
        # Offsets of requests with extended headers, which their replies repeat.
        self.offsets = {}
        self.send(struct.pack(">I", client_flags))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """Sends bytes unchanged."""
        try:
            self.socket.sendall(data)
        except ConnectionError:
            raise Closed() from None

    def receive(self, count):
        """Exactly so many bytes."""
        parts = []
        while count:
            try:
                part = self.socket.recv(min(count, 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Closed()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def closed(self):
        """Whether the server closes the connection without sending more."""
        try:
            self.receive(1)
        except Closed:
            return True
        return False

    # Handshake

    def start_tls(self, context, name="localhost"):
        """STARTTLS, and the TLS handshake in an ssl.SSLContext."""
        assert self.option(STARTTLS) == [(ACK, b"")]
        self.socket = context.wrap_socket(self.socket, server_hostname=name)

    def option(self, number, data=b""):
        """Sends an option; all its replies as (type, data), the last one final."""
        self.send(option(number, data))
        return self.replies(number)

    def replies(self, number):
        """All replies to an option that was sent."""
        replies = []
        while True:
            magic, echoed, kind, length = struct.unpack(">QIII", self.receive(20))
            assert magic == REPLY_MAGIC and echoed == number, f"option {number} was answered with {magic:x} {echoed}"
            replies.append((kind, self.receive(length)))
            if kind == ACK or kind & 1 << 31:
                return replies

    def export_name(self, name):
        """EXPORT_NAME: (size, flags); there is no other answer but a closed connection."""
        self.send(struct.pack(">QII", IHAVEOPT, EXPORT_NAME, len(name)) + name.encode())
        size, flags = struct.unpack(">QH", self.receive(10))
        if not self.no_zeroes:
            assert self.receive(124) == bytes(124), "the 124 bytes after EXPORT_NAME are not zero"
        return size, flags

    def negotiate_structured(self):
        """STRUCTURED_REPLY."""
        assert self.option(STRUCTURED_REPLY)[-1][0] == ACK
        self.structured = True

    def negotiate_extended(self):
        """EXTENDED_HEADERS."""
        assert self.option(EXTENDED_HEADERS)[-1][0] == ACK
        self.structured = self.extended = True

    def go(self, name, option=GO, infos=()):
        """GO or INFO: {information type: bytes}, or the error's number."""
        data = struct.pack(">I", len(name)) + name.encode() + struct.pack(f">H{len(infos)}H", len(infos), *infos)
        replies = self.option(option, data)
        if replies[-1][0] != ACK:
            return replies[-1][0]
        return {struct.unpack(">H", body[:2])[0]: body[2:] for kind, body in replies if kind == REP_INFO}

    def meta(self, option, name, *queries):
        """LIST_META or SET_META: [(id, context)], or the error's number."""
        data = struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(queries))
        for query in queries:
            data += struct.pack(">I", len(query)) + query.encode()
        replies = self.option(option, data)
        if replies[-1][0] != ACK:
            return replies[-1][0]
        return [(struct.unpack(">I", body[:4])[0], body[4:].decode()) for kind, body in replies if kind == REP_META]

    # Requests

    def request(self, command, offset=0, length=0, flags=0, payload=b"", magic=REQUEST):
        """Sends a request; returns its cookie."""
        self.cookie += 1
        form = ">IHHQQI"
        if self.extended:
            form, magic = ">IHHQQQ", EXTENDED_REQUEST if magic == REQUEST else magic
            flags |= PAYLOAD_LEN if payload else 0
            self.offsets[self.cookie] = offset
        self.send(struct.pack(form, magic, flags, command, self.cookie, offset, length) + payload)
        return self.cookie

    def simple(self, length=0):
        """Receives a simple reply: (cookie, error, data)."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE, f"{magic:x} instead of a simple reply"
        return cookie, error, self.receive(length) if length and not error else b""

    def chunk(self):
        """Receives a chunk of a structured reply: (cookie, type, flags, body)."""
        if self.extended:
            magic, flags, kind, cookie, offset, length = struct.unpack(">IHHQQQ", self.receive(32))
            assert magic == EXTENDED, f"{magic:x} instead of a chunk"
            assert offset == self.offsets[cookie], f"a reply to {cookie} names offset {offset}"
            return cookie, kind, flags, self.receive(length)
        magic, flags, kind, cookie, length = struct.unpack(">IHHQI", self.receive(20))
        assert magic == STRUCTURED, f"{magic:x} instead of a chunk"
        return cookie, kind, flags, self.receive(length)

    def chunks(self):
        """Receives chunks until the last one of a request."""
        found = []
        while True:
            cookie, kind, flags, body = self.chunk()
            found.append((kind, body))
            if flags & DONE:
                return found

    def ask(self, command, offset=0, length=0, flags=0, payload=b""):
        """Sends a request; returns its error (0: none). For requests without data in their reply."""
        cookie = self.request(command, offset, length, flags, payload)
        if self.extended:
            echoed, kind, flags, body = self.chunk()
            assert (echoed, flags) == (cookie, DONE), f"the answer to {echoed} came instead of {cookie}"
            return struct.unpack(">I", body[:4])[0] if kind & 1 << 15 else 0
        magic = struct.unpack(">I", self.receive(4))[0]
        if magic == SIMPLE:
            error, echoed = struct.unpack(">IQ", self.receive(12))
        else:
            assert magic == STRUCTURED, f"{magic:x} instead of a reply"
            flags, kind, echoed, length = struct.unpack(">HHQI", self.receive(16))
            body = self.receive(length)
            assert flags & DONE, "more than one chunk answers a request without data"
            error = struct.unpack(">I", body[:4])[0] if kind & 1 << 15 else 0
        assert echoed == cookie, f"the answer to {echoed} came instead of {cookie}"
        return error
