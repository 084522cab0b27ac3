"""Clients of the volume `gw` of a gateway, which check what they read while a server behind it fails."""

import json
import random
import subprocess
import threading

import nbd

from .wait import until

BLOCK = 4096
CLIENTS = 3
BLOCKS = 1500  # Of each client: more than a cache of 8 MiB holds.
# Where fio writes: after the clients.
FIO_OFFSET = 32 << 20
FIO_WRITES = 4096


class Client(threading.Thread):
    """Writes numbered blocks of its own range, reads them back, and flushes; an error ends it."""

    def __init__(self, gateway, number, seed, possible):
        super().__init__()
        self.gateway, self.first, self.rng = gateway, number * BLOCKS, random.Random(seed)
        # What each block may contain: one value, or several after the gateway was killed.
        self.possible = possible
        # What each block may contain after the gateway is killed: what it may since the last flush.
        self.since_flush = {block: set(values) for block, values in possible.items()}
        self.ending, self.error, self.requests, self.killed = threading.Event(), None, 0, False

    def run(self):
        try:
            handle = self.gateway.open("gw")
            while not self.ending.is_set():
                self.act(handle)
        except nbd.Error as error:
            if not self.killed:
                self.error = error
        except AssertionError as error:
            self.error = error

    def act(self, handle):
        block, kind = self.first + self.rng.randrange(BLOCKS), self.rng.random()
        self.requests += 1
        if kind < 0.02:
            handle.flush()
            self.since_flush = {block: set(values) for block, values in self.possible.items()}
        elif kind < 0.6:
            value, before = self.rng.randrange(1, 1 << 40), self.possible.get(block, {0})
            self.possible[block] = before | {value}
            self.since_flush.setdefault(block, {0}).add(value)
            handle.pwrite(value.to_bytes(8, "little") * (BLOCK // 8), block * BLOCK)
            self.possible[block] = {value}
        else:
            found = content(handle, block)
            assert found in self.possible.get(block, {0}), f"block {block}: {found}"
            self.possible[block] = {found}


def content(handle, block):
    """The number in a block, which is full of it."""
    data = handle.pread(BLOCK, block * BLOCK)
    assert data == data[:8] * (BLOCK // 8), f"block {block} is torn"
    return int.from_bytes(data[:8], "little")


class Verified:
    """fio, which writes its part of the volume slowly and then reads it back."""

    def __init__(self, case, turn, seconds):
        self.case, self.report = case, case.scratch / "fio.json"
        command = ["fio", "--name=verified", "--ioengine=nbd", f"--uri={case.server.uri('gw')}", "--rw=randwrite"]
        command += ["--bs=4k", "--iodepth=8", f"--randseed={turn}", "--verify=crc32c", "--verify_fatal=1"]
        command += [f"--offset={FIO_OFFSET}", f"--size={FIO_WRITES * BLOCK}", "--fsync=64", "--verify_state_save=0"]
        command += [f"--rate_iops=,{FIO_WRITES // seconds}", "--output-format=json", f"--output={self.report}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        case.addCleanup(self.process.kill)

    def end(self):
        """Every write and read succeeded, and what was read is what was written."""
        self.case.assertEqual(self.process.wait(120), 0, self.report.read_text()[-2000:])
        text = self.report.read_text()
        (job,) = json.loads(text[text.index("{") :])["jobs"]
        done = [job["error"], job["write"]["total_ios"], job["read"]["total_ios"]]
        self.case.assertEqual(done, [0, FIO_WRITES, FIO_WRITES])


class Load:
    """So many clients, each with a range of its own, and what is known of it."""

    def __init__(self, case, gateway):
        self.case, self.gateway = case, gateway
        self.possible = [{} for _ in range(CLIENTS)]

    def start(self, turn):
        clients = [Client(self.gateway, at, 100 * turn + at, self.possible[at]) for at in range(CLIENTS)]
        for client in clients:
            client.start()
        return clients

    def work(self, clients):
        """Lets each client do some more."""
        before = [client.requests for client in clients]
        done = lambda: all(c.error or c.requests > b + 50 for c, b in zip(clients, before))
        until("the clients to go on", done, 90)
        self.case.assertEqual([client.error for client in clients], [None] * CLIENTS)

    def end(self, clients):
        for client in clients:
            client.ending.set()
        for client in clients:
            client.join(90)
        self.case.assertEqual([client.error for client in clients], [None] * CLIENTS)

    def killed(self, clients):
        """The gateway was killed: what is known now is what was at the last flush of each client, or since."""
        self.end(clients)
        for at, client in enumerate(clients):
            self.possible[at] = client.since_flush

    def check(self, read):
        """`read(block)` is the number that a block is full of."""
        for possible in self.possible:
            for block, values in possible.items():
                self.case.assertIn(read(block), values, f"block {block}")
