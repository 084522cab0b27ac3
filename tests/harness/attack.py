"""Measures one tenant while another one attacks. The clients are processes of their own, so that none waits for
another."""

import multiprocessing
import os
import random
import selectors
import ssl
import struct
import time

from . import wire

# Set on an idle machine: the test asserts the bounds themselves.
TIGHT = bool(os.environ.get("AEROGEL_TEST_TIGHT"))
GIB = 1 << 30
BLOCK = 4096
# Raised by a non-blocking socket, with or without TLS, if nothing can be received or sent now.
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
PROCESSES = multiprocessing.get_context("fork")
# The time limit for the attackers to reach their full load, before the victim is measured.
READY_SECONDS = 60


def pin(server_pid, elsewhere=("tls",)):
    """Pins the server to one processor. Pins the clients, and the server's threads of these names (TLS, another
    disk), to the others, so that the server's scheduling is measured and not the kernel's."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        return lambda: None
    for thread in os.listdir(f"/proc/{server_pid}/task"):
        with open(f"/proc/{server_pid}/task/{thread}/comm") as name:
            is_elsewhere = name.read().startswith(elsewhere)
        os.sched_setaffinity(int(thread), every[1:] if is_elsewhere else every[:1])
    os.sched_setaffinity(0, every[1:])
    return lambda: os.sched_setaffinity(0, every)


class Latencies:
    """Latencies of requests in seconds, sorted."""

    def __init__(self, seconds):
        self.sorted = sorted(seconds)

    def at(self, part):
        """A percentile: 0.5 for the median."""
        return self.sorted[min(len(self.sorted) - 1, int(len(self.sorted) * part))]

    def __str__(self):
        said = ", ".join(f"{name} {self.at(part) * 1e3:.2f}" for name, part in [("p50", 0.5), ("p99", 0.99)])
        return f"{said}, longest {self.sorted[-1] * 1e3:.2f} ms of {len(self.sorted)}"


def _victim(connect, size, seconds, seed, result):
    rng = random.Random(seed)
    with connect() as client:
        times, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            client.request(wire.READ, rng.randrange(size // BLOCK) * BLOCK, BLOCK)
            client.simple(BLOCK)
            times.append(time.perf_counter() - began)
    result.send(times)


def measure(connect, size, seconds):
    """Latencies of 4 KiB reads at random in the first `size` bytes, one at a time, on one connection."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_victim, args=(connect, size, seconds, time.time_ns(), theirs))
    process.start()
    theirs.close()
    try:
        # A request that is not answered within this time counts as a result, too.
        if not ours.poll(seconds + 60):
            raise AssertionError("the victim is not answered at all")
        return Latencies(ours.recv())
    except EOFError:
        raise AssertionError("the victim was cut off") from None
    finally:
        process.kill()
        process.join()


def _work(work, *arguments):
    if TIGHT:
        # The victim's client is measured, so it gets its processor whenever it needs it.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    work(*arguments)


def _spin(processor):
    os.sched_setaffinity(0, [processor])
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


class Awake:
    """Keeps the processors of an otherwise idle machine awake until the end of a `with`. A sleeping processor takes
    50 us to wake: otherwise the client alone would be measured with that delay, and the client under attack without
    it."""

    def __enter__(self):
        spin = lambda processor: PROCESSES.Process(target=_spin, args=(processor,), daemon=True)
        self.spinning = [spin(processor) for processor in range(os.cpu_count() if TIGHT else 0)]
        for process in self.spinning:
            process.start()
        return self

    def __exit__(self, *_):
        for process in self.spinning:
            process.kill()
            process.join()


class Attack:
    """Attacks until the end of a `with`: `work(ready)` runs in its own process and sets `ready` when the attack has
    begun."""

    def __init__(self, work, *arguments):
        self.ready = PROCESSES.Event()
        self.process = PROCESSES.Process(target=_work, args=(work, self.ready, *arguments))

    def __enter__(self):
        self.process.start()
        assert self.ready.wait(READY_SECONDS), "the attack does not begin"
        return self

    def __exit__(self, kind, *_):
        attacks = self.process.is_alive()
        self.process.kill()
        self.process.join()
        # Otherwise a part of the measurement was without an attack.
        assert attacks or kind, "the attack ended by itself"


def header(command, cookie, offset, length, flags=0):
    """The header of a request."""
    return struct.pack(">IHHQQI", wire.REQUEST, flags, command, cookie, offset, length)


def _receive(connection):
    """Receives and discards what is available. Returns the number of bytes, or None at the end."""
    received = 0
    while True:
        try:
            part = len(connection.recv(1 << 20))
        except NOT_NOW:
            return received
        if part == 0:
            return None
        received += part
        # A selector does not know about bytes that TLS has already decrypted.
        if not getattr(connection, "pending", int)():
            return received


def flood(ready, connect, connections, depth, choose, reads=True):
    """Keeps `depth` requests outstanding on each connection; `choose(rng)` returns the bytes of a request. Replies
    are read and discarded, or not read at all."""
    selector, rng = selectors.DefaultSelector(), random.Random(7)
    clients = [connect() for _ in range(connections)]
    for client in clients:
        client.socket.setblocking(False)
        client.unsent, client.wanted, client.partial = b"", depth, 0
        selector.register(client.socket, selectors.EVENT_READ * reads | selectors.EVENT_WRITE, client)
    begun = set()
    while True:
        for key, events in selector.select(1):
            client = key.data
            if events & selectors.EVENT_READ:
                received = _receive(client.socket)
                if received is None:
                    return
                # Replies without data have 16 bytes each.
                answered, client.partial = divmod(client.partial + received, 16)
                client.wanted += answered
            while client.wanted and len(client.unsent) < 1 << 16:
                client.unsent += choose(rng)
                client.wanted -= 1
            try:
                client.unsent = client.unsent[client.socket.send(client.unsent) :] if client.unsent else b""
            except NOT_NOW:
                pass
            begun.add(client)
            wants = selectors.EVENT_READ * reads | (selectors.EVENT_WRITE if client.unsent or client.wanted else 0)
            selector.modify(client.socket, wants or selectors.EVENT_READ, client)
        if len(begun) == connections:
            ready.set()


def connects(ready, connect, choose):
    """Repeatedly connects, sends some requests, and closes the connection abruptly."""
    rng = random.Random(7)
    while True:
        clients = []
        try:
            for _ in range(8):
                clients.append(connect())
            for client in clients:
                for _ in range(32):
                    client.send(choose(rng))
            ready.set()
        except (wire.Closed, OSError):
            # Refused at a limit on connections, until the server has cleaned up earlier ones.
            pass
        for client in clients:
            client.socket.close()
