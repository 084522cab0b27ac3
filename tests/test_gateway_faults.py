"""A gateway under load while its server is stopped, killed and cut off, and while it is killed itself.

The server is ours, nbdkit or qemu-nbd, in a network namespace. Clients check what they read, and fio what it wrote.
`make test-long` has twenty rounds.
"""

import os
import time

import nbd
from harness.behind import Behind
from harness.case import ServerCase
from harness.gateway import BLOCK, Load, Verified, content
from harness.server import MIB

# For `tests/run.py`.
LANE = 4

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
FAULTS = 20 if LONG else 2
FAULT_SECONDS = 20 if LONG else 1
SIZE = 64 * MIB


class GatewayFaults(ServerCase):
    def begin(self, kind):
        self.behind = Behind(self, kind, SIZE)
        self.server = self.serve(name="gateway", cache="32MiB")
        self.behind.forwarded(self.server, "gw", "--cache", "8MiB")
        self.load = Load(self, self.server)

    def check_behind(self):
        """Everything is on the server behind, when the gateway has flushed and ended."""
        self.server.open("gw").flush()
        self.server.stop()
        handle = nbd.NBD()
        handle.connect_uri(self.behind.uri)
        self.load.check(lambda block: content(handle, block))

    def stop_kill_and_cut(self, kind):
        self.begin(kind)
        clients = self.load.start(0)
        for turn in range(FAULTS):
            fio = Verified(self, turn, 2 * FAULT_SECONDS + 2)
            self.behind.faults(turn, FAULT_SECONDS, lambda: self.load.work(clients))
            fio.end()
        self.load.end(clients)
        upstream = self.server.json("volume", "show", "gw")["upstream"]
        self.assertGreaterEqual(upstream["reconnects"], FAULTS + FAULTS // 2)
        self.check_behind()

    def test_our_server_is_stopped_killed_and_cut_off(self):
        self.stop_kill_and_cut("ours")

    def test_nbdkit_is_stopped_killed_and_cut_off(self):
        self.stop_kill_and_cut("nbdkit")

    def test_qemu_nbd_is_stopped_killed_and_cut_off(self):
        self.stop_kill_and_cut("qemu-nbd")

    def test_the_gateway_is_killed(self):
        self.begin("ours")
        seconds = []
        for turn in range(FAULTS + 1):
            clients = self.load.start(turn)
            self.load.work(clients)
            for client in clients:
                client.killed = True
            self.server.kill()
            self.load.killed(clients)
            begun = time.monotonic()
            self.server.start()
            self.server.open("gw").pread(BLOCK, SIZE - BLOCK)
            seconds.append(time.monotonic() - begun)
        if LONG:
            print(f"        until the next gateway serves: at most {max(seconds):.2f} s of {len(seconds)}", flush=True)
        # In the gate other work may run beside it.
        self.assertLess(max(seconds), 1.0 if LONG else 10.0)
        clients = self.load.start(FAULTS + 1)
        self.load.work(clients)
        self.load.end(clients)
        self.check_behind()
