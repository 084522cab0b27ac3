#!/usr/bin/python3
"""A recording disk: an NBD server that logs each write and flush before it is answered.

`recorder.py SOCKET IMAGE LOG` serves the file IMAGE on a Unix socket, to one client with one request at a time. So the
order of the log is the order of the device's operations, and everything that was acknowledged is in the log.
`recorded.py` creates crash images from it. It offers FLUSH only: the kernel expresses other operations by writes and
flushes.
"""

import os
import socket
import struct
import sys

GREETING = struct.pack(">QQH", 0x4E42444D41474943, 0x49484156454F5054, 3)
OPTION, OPTION_REPLY = 0x49484156454F5054, 0x3E889045565A9
REQUEST, REPLY = 0x25609513, 0x67446698
EXPORT_NAME, ABORT, GO, INFO = 1, 2, 7, 6
ACK, REP_INFO, UNSUPPORTED = 1, 3, 1 << 31 | 1
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
HAS_FLAGS, SEND_FLUSH = 1, 4
EINVAL = 22

# An entry of the log: kind, offset, length; for a write, its bytes follow.
ENTRY = struct.Struct("<BQI")


def receive(client, count):
    """Exactly so many bytes; None at the end."""
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        part = client.recv_into(view[got:])
        if part == 0:
            return None
        got += part
    return bytes(data)


def handshake(client, size):
    """Accepts any export name. Returns whether transmission begins."""
    client.sendall(GREETING)
    no_zeroes = struct.unpack(">I", receive(client, 4))[0] & 2
    while head := receive(client, 16):
        _, option, length = struct.unpack(">QII", head)
        receive(client, length)
        header = lambda kind, length: struct.pack(">QIII", OPTION_REPLY, option, kind, length)
        reply = lambda kind, data=b"": client.sendall(header(kind, len(data)) + data)
        if option == EXPORT_NAME:
            client.sendall(struct.pack(">QH", size, HAS_FLAGS | SEND_FLUSH) + (b"" if no_zeroes else bytes(124)))
            return True
        if option in (GO, INFO):
            reply(REP_INFO, struct.pack(">HQH", 0, size, HAS_FLAGS | SEND_FLUSH))
            reply(ACK)
            if option == GO:
                return True
        else:
            reply(ACK if option == ABORT else UNSUPPORTED)
    return False


def transmission(client, image, log):
    """Handles requests until the client disconnects."""
    while head := receive(client, 28):
        _, _, command, cookie, offset, length = struct.unpack(">IHHQQI", head)
        error, data = 0, b""
        if command == READ:
            data = os.pread(image, length, offset)
        elif command == WRITE:
            payload = receive(client, length)
            if payload is None:
                return
            os.pwrite(image, payload, offset)
            os.write(log, ENTRY.pack(WRITE, offset, length) + payload)
        elif command == FLUSH:
            os.write(log, ENTRY.pack(FLUSH, 0, 0))
        elif command == DISCONNECT:
            return
        else:
            error = EINVAL
        client.sendall(struct.pack(">IIQ", REPLY, error, cookie) + data)


def main():
    path, image, log = sys.argv[1:]
    image = os.open(image, os.O_RDWR)
    log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    size = os.fstat(image).st_size
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            client, _ = listener.accept()
            with client:
                try:
                    if handshake(client, size):
                        transmission(client, image, log)
                except ConnectionError:
                    pass


if __name__ == "__main__":
    main()
