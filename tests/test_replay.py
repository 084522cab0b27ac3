"""`aerogel-lab replay` against our server and against nbdkit: all requests are made as described, and times are
measured correctly."""

import contextlib
import json
import socket
import subprocess
import threading

from harness import places
from harness.case import ServerCase
from harness.server import run
from harness.wait import until

TRACES = places.ROOT / "lab" / "tests" / "traces"
# 1,500 requests, 533 of them reads; the last one 16 minutes after the first.
TRACE = TRACES / "excerpt-of-windows-mssql.load.gz"
REQUESTS, READS = 1500, 533


def replay(*words, check=True, **more):
    """Runs it; returns the report, or the error output if it must fail."""
    done = run(places.lab(), "replay", "--json", *words, check=check, **more)
    return json.loads(done.stdout) if check else (done.returncode, done.stderr)


class Replay(ServerCase):
    """Each test has a server of its own."""

    @contextlib.contextmanager
    def nbdkit(self, *words):
        """The URI of an nbdkit, and its process."""
        path = self.scratch / "n.sock"
        command = ["nbdkit", "-f", "-U", str(path), *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers():
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                except OSError:
                    return False
            return True

        try:
            until("nbdkit to answer", answers, 20)
            yield f"nbd+unix:///?socket={path}", process
        finally:
            process.kill()
            process.wait()
            path.unlink(missing_ok=True)

    def test_a_trace_on_our_server(self):
        server = self.serve()
        uri = server.create("v", "256MiB", "--sparse")
        report = replay("--trace", TRACE, "--uri", uri, "--closed", "8", "--connections", "3")
        traffic = server.json("volume", "show", "v")["traffic"]
        self.assertEqual((report["requests"], report["errors"], report["outstanding_max"]), (REQUESTS, 0, 8))
        self.assertEqual((report["reads"]["requests"], traffic["reads"]), (READS, READS))
        self.assertEqual((report["writes"]["requests"], traffic["writes"]), (REQUESTS - READS, REQUESTS - READS))
        moved = (report["reads"]["bytes"], report["writes"]["bytes"])
        self.assertEqual(moved, (traffic["read_bytes"], traffic["write_bytes"]))
        # The trace was recorded on a disk of 26 GB.
        self.assertGreater(report["changes"]["wrapped"], 1000)

    def test_scaled_and_faster(self):
        with self.nbdkit("memory", "1G") as (uri, _):
            report = replay("--trace", TRACE, "--uri", uri, "--speed", "1000", "--beyond", "scale")
        # 983 s of trace time.
        self.assertGreater(report["seconds"], 0.98)
        self.assertEqual((report["requests"], report["errors"]), (REQUESTS, 0))
        self.assertEqual((report["changes"]["scaled"], report["changes"]["wrapped"]), (REQUESTS, 0))

    def test_a_described_load_is_as_described(self):
        load = "zipf:area=64MiB,read=70%,depth=4,requests=2000 + seq:at=64MiB,size=64KiB,rate=500,requests=300"
        with self.nbdkit("memory", "256M") as (uri, _):
            report = replay("--load", load, "--uri", uri, "--connections", "2")
            again = replay("--load", load, "--uri", uri, "--seed", "2")
        self.assertEqual((report["requests"], report["errors"]), (2300, 0))
        self.assertGreaterEqual(report["reads"]["bytes"], 300 * 65536 + 1300 * 4096)
        self.assertEqual(report["changes"]["wrapped"], 0)
        self.assertNotEqual(report["reads"]["requests"], again["reads"]["requests"])

    def test_a_slow_server_pays_for_what_waits(self):
        # The server completes 20 requests per second, one at a time, and gets 200 per second for one second.
        filters = ["--filter=noparallel", "--filter=delay"]
        with self.nbdkit(*filters, "memory", "64M", "rdelay=50ms", "serialize=requests") as (uri, _):
            load = "rand:rate=200,poisson=false,stop=500ms"
            report = replay("--load", load, "--uri", uri)
        self.assertEqual(report["requests"], 100)
        self.assertGreater(report["outstanding_max"], 50)
        # Half of them wait for fifty others, less half a second of arrivals.
        self.assertGreater(report["reads"]["latency"]["p50_ns"], 2e9)
        self.assertGreater(report["reads"]["latency"]["min_ns"], 49e6)

    def test_a_server_with_blocks_is_respected(self):
        policy = ["--filter=blocksize-policy"]
        words = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-error-policy=error"]
        with self.nbdkit(*policy, "memory", "64M", *words) as (uri, _):
            report = replay("--trace", TRACE, "--uri", uri, "--closed", "4")
        self.assertEqual((report["requests"], report["errors"]), (REQUESTS, 0))
        self.assertGreater(report["changes"]["widened"], 500)

    def test_writes_on_what_is_read_only(self):
        with self.nbdkit("-r", "memory", "64M") as (uri, _):
            status, said = replay("--trace", TRACE, "--uri", uri, "--closed", "4", check=False)
            self.assertEqual(status, 1)
            self.assertIn("--reads-only", said)
            report = replay("--trace", TRACE, "--uri", uri, "--closed", "4", "--reads-only")
        self.assertEqual((report["requests"], report["changes"]["left_out"]), (READS, REQUESTS - READS))

    def test_a_server_that_dies_is_named(self):
        with self.nbdkit("--filter=delay", "memory", "64M", "rdelay=20ms") as (uri, process):
            timer = threading.Timer(1, process.kill)
            timer.start()
            status, said = replay("--load", "rand:depth=4", "--limit", "60s", "--uri", uri, check=False)
            timer.join()
        self.assertEqual(status, 1)
        self.assertIn("connection 1 ended with", said)

    def test_what_is_wrong_is_named_before_anything_is_done(self):
        server = self.serve()
        uri = server.create("v", "64MiB", "--sparse")
        for words, hint in [
            (["--trace", "a.txt"], "blkreplay"),
            (["--load", "rand:depth=1"], "--limit"),
            (["--load", "zap", "--limit", "1"], "seq, rand, zipf"),
        ]:
            status, said = replay(*words, "--uri", uri, check=False)
            self.assertEqual(status, 1, said)
            self.assertIn(hint, said)
        status, said = replay("--load", "rand", "--limit", "1", "--uri", uri.replace("/v?", "/w?"), check=False)
        self.assertEqual(status, 1)
        self.assertIn("no export 'w'", said)
        self.assertEqual(server.json("volume", "show", "v")["traffic"]["reads"], 0)
