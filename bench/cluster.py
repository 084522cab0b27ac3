#!/usr/bin/python3
"""Striped tenants of a real cluster against virtual time (`make bench-cluster`): etcd, three servers with simulated
disks in real time and a gateway on this machine, and fio as the clients of the paper's figure 11.

Each tenant has share 1/3 on all three servers, 1, 4 and 1 requests outstanding, and reads 12 KiB in units of 4 KiB. It
is measured alone and together with the others. Required: each keeps at least R x 1/3, and what it keeps is within 5 %
of virtual time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("AEROGEL_BIN", str(TARGET / "release" / "aerogel"))

from harness.etcd import Etcd  # noqa: E402
from harness.server import Server, run  # noqa: E402
from harness.wait import until  # noqa: E402

LAB = TARGET / "release" / "aerogel-lab"
DRIVE, DISK, PART = "sim:barracuda-7200.9", "40GiB", 12
DEPTHS = {"a": 1, "b": 4, "c": 1}
SERVERS = ("s1", "s2", "s3")
R, OFF_MAX = 0.9, 0.05


def start(directory, name, config):
    """A server or a gateway."""
    return Server(directory, name=name, cache="64MiB", config=config).start()


def member(directory, etcd, name):
    """A server that joins the cluster with a simulated disk."""
    socket = Path(directory) / name / "nbd.sock"
    config = f"""[cluster]
etcd = ["{etcd.url}"]
cluster = "bench"
name = "{name}"
advertise = "nbd+unix://?socket={socket}"
cluster_disk = "hdd"
clock = "trusted"
clock_error = "10us"
"""
    server = start(directory, name, config)
    server.cli("disk", "add", "hdd", DRIVE, "--size", DISK)
    return server


def rates(gateway, tenants, warm_up, seconds, directory):
    """Requests per second of these tenants at the same time."""
    jobs = {}
    for name in tenants:
        report = Path(directory) / f"{name}.json"
        command = ["fio", f"--name={name}", "--ioengine=nbd", f"--uri={gateway.uri(name)}", "--rw=randread", "--bs=12k"]
        command += [f"--iodepth={DEPTHS[name]}", "--time_based", f"--runtime={seconds}", f"--ramp_time={warm_up}"]
        command += ["--norandommap", "--randrepeat=0", "--output-format=json", f"--output={report}"]
        jobs[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL), report
    found = {}
    for name, (process, report) in jobs.items():
        if process.wait(warm_up + seconds + 60) != 0:
            sys.exit(f"fio of {name} failed: {report.read_text()[-2000:]}")
        text = report.read_text()
        found[name] = json.loads(text[text.index("{") :])["jobs"][0]["read"]["iops"]
    return found


def virtual():
    """What each tenant keeps in virtual time."""
    done = run(LAB, "run", "cluster-real", "--seeds", "1", "--json", "--out", TARGET / "lab", seconds=1200, check=False)
    (found,) = json.loads(done.stdout) if done.stdout.startswith("[") else [json.loads(done.stdout)]
    (row,) = found["data"]
    (kept,) = [of["kept"] for of in row["kept"] if of["slices"] == "Together"]
    return dict(zip(DEPTHS, kept)), row["round_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="how long each is measured (60)")
    parser.add_argument("--warm-up", type=int, default=30, help="before that (30)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=TARGET) as directory:
        etcd = Etcd(Path(directory) / "etcd")
        etcd.start()
        servers = []
        try:
            servers = [member(directory, etcd, name) for name in SERVERS]
            count = lambda: sum(m["state"] == "ready" for m in servers[0].json("cluster", "status")["members"])
            until("all servers to join", lambda: count() == len(SERVERS), 30)
            for name in DEPTHS:
                words = ("--servers", "3", "--share", "1/3", "--stripe", "4KiB")
                servers[0].cli("volume", "create", name, f"{3 * PART}GiB", *words)
            addresses = ", ".join(f'"nbd+unix://?socket={server.socket}"' for server in servers)
            gateway = start(directory, "gateway", f'[gateway]\nservers = [{addresses}]\nidle = "10m"')
            servers.append(gateway)
            time.sleep(2)
            measure = lambda tenants: rates(gateway, tenants, options.warm_up, options.seconds, directory)
            alone = {name: measure([name])[name] for name in DEPTHS}
            together = measure(DEPTHS)
            round_ms = servers[0].json("cluster", "schedule")["round_ns"] / 1e6
        finally:
            for server in reversed(servers):
                server.kill()
            etcd.kill()
    expected, virtual_ms = virtual()
    print(f"The round is {round_ms:.0f} ms long, in virtual time {virtual_ms} ms.\n")
    print("| tenant | outstanding | alone, 1/s | together, 1/s | kept, of its share | in virtual time | ratio | |")
    print("|" + " --- |" * 8)
    missed = False
    for name, depth in DEPTHS.items():
        kept, of_virtual = 3 * together[name] / alone[name], 3 * expected[name]
        holds = kept >= R and abs(kept / of_virtual - 1) <= OFF_MAX
        missed |= not holds
        cells = [name, depth, f"{alone[name]:.1f}", f"{together[name]:.1f}", f"{kept:.3f}", f"{of_virtual:.3f}"]
        cells += [f"{kept / of_virtual:.3f}", "holds" if holds else "**misses**"]
        print("| " + " | ".join(map(str, cells)) + " |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
