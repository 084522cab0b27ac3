"""fio with verification: deep queues, all sizes, several connections, with a restart in between."""

import json
import os

from harness.case import ServerCase
from harness.server import run

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
JOBS = 4
REGION_MIB = 512 if LONG else 64


class Fio(ServerCase):
    """Each job has its own connection and its own part of the volume."""

    def fio(self, uri, *options):
        """Runs fio; returns its report."""
        report = self.scratch / "fio.json"
        common = ["--name=verified", "--ioengine=nbd", f"--uri={uri}", "--rw=randwrite", "--bsrange=512-64k"]
        common += ["--blockalign=512", "--verify=crc32c", "--verify_fatal=1", "--iodepth=32", "--randseed=42"]
        common += [f"--numjobs={JOBS}", f"--size={REGION_MIB}m", f"--offset_increment={REGION_MIB}m"]
        common += ["--verify_state_save=0", "--output-format=json", f"--output={report}"]
        run("fio", *common, *options, seconds=600)
        text = report.read_text()
        self.assertIn("{", text, "fio wrote no report")
        jobs = json.loads(text[text.index("{") :])["jobs"]
        self.assertEqual([job["error"] for job in jobs], [0] * len(jobs))
        return jobs

    def written_then_verified(self, **more):
        server = self.serve(cache="64MiB", **more)
        uri = server.create("v", f"{JOBS * REGION_MIB}MiB")
        self.fio(uri, "--do_verify=1", "--end_fsync=1")
        server.restart()
        jobs = self.fio(uri, "--verify_only=1")
        self.assertGreater(sum(job["read"]["total_ios"] for job in jobs), 1000, "fio verified next to nothing")

    def test_verified_across_a_restart(self):
        self.written_then_verified()

    def test_verified_across_a_restart_on_threads(self):
        self.written_then_verified(reactor="threads")

    def test_mixed_with_trims_and_fsyncs(self):
        server = self.serve(cache="32MiB")
        uri = server.create("v", f"{JOBS * REGION_MIB}MiB", "--sparse")
        self.fio(uri, "--rw=randrw", "--fsync=64", "--verify_backlog=256")
        self.fio(uri, "--rw=randtrim", "--verify=0", "--bsrange=4k-256k", "--number_ios=2000")
        self.fio(uri, "--rw=randwrite", "--do_verify=1")
