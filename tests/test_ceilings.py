"""Ceilings: what clients of a tenant get at most, seen by a client."""

import json
import time

import nbd
from harness.case import SharedServerCase
from harness.server import MIB

BLOCK = 4096


class Ceilings(SharedServerCase):
    """All requests are cache hits, so that only the ceiling limits them."""

    def reads(self, handle, requests, length=BLOCK):
        """Seconds that these reads take, one at a time."""
        begin = time.monotonic()
        for _ in range(requests):
            handle.pread(length, 0)
        return time.monotonic() - begin

    def test_a_client_gets_its_ceiling_and_not_more(self):
        name = self.volume("16MiB", "--max-iops", "200", "--burst", "100ms")
        handle = self.server.open(name)
        self.reads(handle, 40)
        # A busy machine can only make them slower: the bucket yields 20 at once and 200 a second.
        self.assertGreaterEqual(self.reads(handle, 220), 0.98)
        said = json.loads(self.server.cli("tenant", "set", name, "--max-iops", "none", "--json").stdout)["message"]
        self.assertIn("has no ceiling", said)
        self.assertLess(self.reads(handle, 220), 0.9)

    def test_directions_and_a_change_while_requests_wait(self):
        name = self.volume("64MiB")
        handle = self.server.open(name)
        self.server.cli("volume", "set", name, "--max-bandwidth", "write=4MiB/s", "--burst", "10ms")
        handle.pwrite(bytes(4 * MIB), 0)
        began = time.monotonic()
        handle.pread(MIB, 0)
        cookie = handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(MIB)), 0)
        other = self.server.open(name)
        # Reads have no ceiling, and a flush waits for none.
        other.pread(MIB, 0)
        other.flush()
        self.assertFalse(handle.aio_command_completed(cookie))
        self.server.cli("volume", "set", name, "--max-bandwidth", "read=1GiB/s,write=1GiB/s")
        while not handle.aio_command_completed(cookie):
            handle.poll(-1)
        self.assertLess(time.monotonic() - began, 30)
        metrics = self.server.metrics()
        throttled = metrics[f'aerogel_tenant_throttled_seconds_total{{disk="default",tenant="{name}"}}']
        self.assertTrue(0 < throttled < 30, throttled)

    def test_ceilings_are_shown_and_survive_a_restart(self):
        name = self.volume("4MiB", "--max-bandwidth", "read=50MiB/s,write=10MiB/s", "--max-iops", "500")
        wanted = {
            "max_bandwidth": {"total": None, "read": 50 * MIB, "write": 10 * MIB},
            "max_iops": {"total": 500, "read": None, "write": None},
            "io_bytes": 256 << 10,
            "burst_seconds": 2.0,
        }
        self.assertEqual(self.server.json("volume", "show", name)["ceilings"], wanted)
        self.server.cli("tenant", "set", name, "--burst", "10s")
        self.server.restart()
        on = self.server.json("tenant", "show", name)["disks"][0]
        self.assertEqual(on["ceilings"], wanted | {"burst_seconds": 10.0})
        self.assertEqual([on["spec"][key] for key in ("max_iops", "burst")], ["500", "10s"])
        self.assertIn("read=50MiB/s,write=10MiB/s", self.server.cli("volume", "show", name).stdout)
        # The burst goes with the last ceiling.
        self.server.cli("tenant", "set", name, "--max-bandwidth", "none", "--max-iops", "max")
        on = self.server.json("tenant", "show", name)["disks"][0]
        self.assertEqual((on["ceilings"], on["spec"]["burst"]), (None, "default"))

    def test_what_makes_no_sense_is_refused_with_the_remedy(self):
        name = self.volume("4MiB")
        for words, why in (
            (("--max-iops", "0"), "write 'none'"),
            (("--max-bandwidth", "50"), "is a unit missing?"),
            (("--max-bandwidth", "50MB/s"), "50MiB"),
            (("--max-bandwidth", "total=1MiB/s,read=2MiB/s"), "has no effect"),
            (("--burst", "1ms", "--max-iops", "5"), "out of bounds"),
            (("--burst", "10s"), "--max-bandwidth or --max-iops"),
        ):
            with self.subTest(words=words):
                self.assertIn(why, self.server.refused("tenant", "set", name, *words))
        self.assertIsNone(self.server.json("volume", "show", name)["ceilings"])
