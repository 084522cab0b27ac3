"""The pieces of work that are measured. Each sets up its servers, then runs them in turn."""

import contextlib

import nbd

from load import fio
from machine import CLIENT_CORE, SERVER_CORE, cpu_seconds, drop_page_cache, warn
from report import Line
from servers import MIB, Gateway, Ours, nbdkit_gateway, nbdkit_memory, qemu_gateway, qemu_nbd
from harness.server import memory_of
from harness.wait import once_per, until

GIB = 1 << 30
PARTITION = 64 * MIB
HOT_BYTES = 256 * MIB
# This fraction of the blocks may miss (or hit) without changing what is measured.
STRAY = 0.02


class Bench:
    """The common parameters: directory, duration, number of pairs."""

    def __init__(self, directory, pairs, quick):
        self.directory = directory
        self.pairs = pairs
        self.quick = quick
        self.seconds = 3 if quick else 5
        self.miss_bytes = (1 if quick else 4) * GIB
        self.write_bytes = (4 if quick else 8) * PARTITION
        self.sequential_bytes = (2 if quick else 8) * GIB
        self.ours_count = 0

    @contextlib.contextmanager
    def taking_part(self, *makers):
        """Starts servers; afterwards removes them and their data."""
        servers = []
        try:
            for make in makers:
                servers.append(make())
            drop_page_cache()
            yield servers
        finally:
            for server in servers:
                server.stop()
            for file in self.directory.glob("qemu-*.img"):
                file.unlink()
            for data in self.directory.glob("ours*/disks/default/volumes/*.img"):
                data.unlink()

    def ours(self, size, cache):
        """Creates one of our servers."""
        self.ours_count += 1
        name = f"ours{self.ours_count}"
        return lambda: Ours(self.directory, size, f"{cache // MIB}MiB", name=name)

    def in_turns(self, lines, *turns):
        """Runs each once without counting; then all in turn, as often as there are pairs."""
        for turn in turns:
            turn()
        for pair in range(self.pairs):
            found = [turn() for turn in turns]
            for line, pick in lines:
                line.add(*pick(*found))
            warn(f"  {lines[0][0].work}: pair {pair + 1} of {self.pairs}, ratio {lines[0][0].ratios[-1]:.2f}")
        return [line for line, _ in lines]

    def reading(self, server, depth, core=CLIENT_CORE, hits=None):
        """One run of random reads; checks that our server hits (or misses) as the work requires."""

        def turn():
            before = server.read_blocks() if isinstance(server, Ours) else None
            run = fio(
                server.uri, "randread", depth=depth, size=server.size, seconds=self.seconds, core=core, pid=server.pid
            )
            if before is not None and hits is not None:
                hit, miss = (b - a for a, b in zip(before, server.read_blocks()))
                stray = (miss if hits else hit) / max(1, hit + miss)
                expected = 0.0 if hits else PARTITION / server.size
                if stray > expected + STRAY:
                    raise SystemExit(f"meaningless: {stray:.1%} of the reads {'missed' if hits else 'hit'} the cache")
            return run

        return turn


def requests_and_cpu(work, peer, rate, cpu):
    """The two figures of most work, as lines with functions that select them from the runs."""
    return [
        (Line(work, "requests a second", "1/s", peer, ">=", rate), lambda a, b: (a.per_second, b.per_second)),
        (Line(work, "server CPU a request", "us", peer, "<=", cpu), lambda a, b: (a.server_cpu_us, b.server_cpu_us)),
    ]


def hits(bench):
    """Random reads that hit, depth 32."""
    cache = HOT_BYTES * 4
    with bench.taking_part(bench.ours(HOT_BYTES, cache), lambda: nbdkit_memory(bench.directory, HOT_BYTES)) as (
        ours,
        peer,
    ):
        fio(ours.uri, "read", depth=8, bs="1m", size=HOT_BYTES, amount=HOT_BYTES)
        lines = requests_and_cpu("random read hits, depth 32", peer.name, 1.3, 0.6)
        return bench.in_turns(lines, bench.reading(ours, 32, hits=True), bench.reading(peer, 32))


def misses(bench):
    """Random reads that miss, depth 32."""
    size = bench.miss_bytes
    with bench.taking_part(bench.ours(size, PARTITION), lambda: qemu_nbd(bench.directory, size)) as (ours, peer):
        lines = requests_and_cpu("random read misses, depth 32", peer.name, 1.2, 0.6)
        return bench.in_turns(lines, bench.reading(ours, 32, hits=False), bench.reading(peer, 32))


def latency(bench, work, ours, peer, hits):
    """Depth 1: server and client on one core, then on two."""
    done = []
    for where, core, bound in (("one core", SERVER_CORE, 1.05), ("two cores", CLIENT_CORE, None)):
        sign = "<=" if bound else ""
        line = Line(f"{work}, depth 1, {where}", "mean latency", "us", peer.name, sign, bound)
        lines = [(line, lambda a, b: (a.latency_us, b.latency_us))]
        turns = bench.reading(ours, 1, core, hits), bench.reading(peer, 1, core)
        done += bench.in_turns(lines, *turns)
    return done


def latency_hits(bench):
    """Random reads that hit, depth 1."""
    cache = HOT_BYTES * 4
    with bench.taking_part(bench.ours(HOT_BYTES, cache), lambda: nbdkit_memory(bench.directory, HOT_BYTES)) as (
        ours,
        peer,
    ):
        fio(ours.uri, "read", depth=8, bs="1m", size=HOT_BYTES, amount=HOT_BYTES)
        return latency(bench, "random read hits", ours, peer, hits=True)


def latency_misses(bench):
    """Random reads that miss, depth 1."""
    size = bench.miss_bytes
    with bench.taking_part(bench.ours(size, PARTITION), lambda: qemu_nbd(bench.directory, size)) as (ours, peer):
        return latency(bench, "random read misses", ours, peer, hits=False)


def writes(bench):
    """Random writes on an initialised volume, to the end of a flush."""
    size = bench.miss_bytes

    def writing(server):
        return lambda: fio(server.uri, "randwrite", depth=32, size=size, amount=bench.write_bytes, pid=server.pid)

    with bench.taking_part(bench.ours(size, PARTITION), lambda: qemu_nbd(bench.directory, size)) as (ours, peer):
        work = f"random writes and a flush, depth 32, {bench.write_bytes // PARTITION} x the partition"
        lines = [
            (Line(work, "requests a second", "1/s", peer.name, ">=", 1.2), lambda a, b: (a.per_second, b.per_second)),
            (Line(work, "server CPU a request", "us", peer.name), lambda a, b: (a.server_cpu_us, b.server_cpu_us)),
        ]
        return bench.in_turns(lines, writing(ours), writing(peer))


def sequential(bench):
    """1 MiB sequential, depth 8, missing the cache; the better of fio on the file itself and qemu-nbd."""
    size = bench.sequential_bytes

    def turn(target, rw, pid=None):
        limits = {"amount": size} if rw == "write" else {"seconds": None}
        return lambda: fio(target, rw, depth=8, bs="1m", size=size, pid=pid, **limits)

    with bench.taking_part(bench.ours(size, PARTITION), lambda: qemu_nbd(bench.directory, size)) as (ours, peer):
        speed = lambda run: run.mib_per_second
        reads = "1 MiB sequential reads, depth 8"
        done = bench.in_turns(
            [
                (
                    Line(reads, "throughput", "MiB/s", "better of both", ">=", 0.95),
                    lambda a, f, q: (speed(a), max(speed(f), speed(q))),
                ),
                (Line(reads, "throughput", "MiB/s", "fio on the file"), lambda a, f, q: (speed(a), speed(f))),
                (Line(reads, "throughput", "MiB/s", peer.name), lambda a, f, q: (speed(a), speed(q))),
            ],
            turn(ours.uri, "read"),
            turn(peer.file, "read"),
            turn(peer.uri, "read"),
        )
        writes = "1 MiB sequential writes and a flush, depth 8"
        return done + bench.in_turns(
            [
                (
                    Line(writes, "throughput", "MiB/s", "fio on the file", ">=", 0.85),
                    lambda a, f, q: (speed(a), speed(f)),
                ),
                (Line(writes, "throughput", "MiB/s", peer.name), lambda a, f, q: (speed(a), speed(q))),
            ],
            turn(ours.uri, "write"),
            turn(peer.file, "write"),
            turn(peer.uri, "write"),
        )


def memory_and_idle(bench):
    """64 connections, 100 volumes: resident memory after load, CPU without any."""
    connections, volumes = 64, 100
    with bench.taking_part(bench.ours(64 * MIB, PARTITION)) as (ours,):
        server = ours.server
        for i in range(volumes - 1):
            server.create(f"v{i}", "64MiB", "--sparse")
        handles = [server.open(f"v{i}") for i in range(connections)]
        for handle in handles:
            cookies = [handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(MIB)), at * MIB) for at in range(8)]
            while not all([handle.aio_command_completed(cookie) for cookie in cookies][-1:]):
                handle.poll(10_000)
            handle.flush()
        peak = Line("64 connections, 100 volumes", "resident at the peak", "MiB", "cache + 64 MiB", "<=", 1.0)
        peak.add(memory_of(ours.pid, "VmHWM") / MIB, PARTITION / MIB + 64)
        until("write-back to end", lambda: server.json("status")["disks"][0]["dirty_bytes"] == 0, 60)
        idle = Line("64 connections, idle", "CPU of one core", "%", "1 %", "<=", 1.0)
        samples = once_per(bench.seconds, 4, lambda: cpu_seconds(ours.pid))
        for before, after in zip(samples, samples[1:]):
            idle.add(100 * (after - before) / bench.seconds, 1.0)
        return [peak, idle]


def policies(bench):
    """What insulation costs the processor beside the policy `none`: slices, and fair queueing without heads."""

    def by(server, policy, needs_slices, hits):
        run = bench.reading(server, 32, hits=hits)

        def turn():
            server.server.cli("disk", "set", "default", "--policy", policy)
            server.server.cli("disk", "set", "default", "--profile", f"needs_slices={needs_slices}")
            return run()

        return turn

    def against_none(server, work, allowed_us, hits):
        def line(kind, at):
            of = Line(work, f"server CPU a request, {kind}", "us", f"none + {allowed_us} us", "<=", 1.0)
            return of, lambda *runs: (runs[at].server_cpu_us, runs[0].server_cpu_us + allowed_us)

        lines = [line("slices", 1), line("no heads", 2)]
        turns = [
            by(server, policy, slices, hits) for policy, slices in (("none", 1), ("insulated", 1), ("insulated", 0))
        ]
        return bench.in_turns(lines, *turns)

    with bench.taking_part(bench.ours(HOT_BYTES, HOT_BYTES * 4)) as (ours,):
        fio(ours.uri, "read", depth=8, bs="1m", size=HOT_BYTES, amount=HOT_BYTES)
        done = against_none(ours, "random read hits, depth 32", 0.3, hits=True)
    with bench.taking_part(bench.ours(bench.miss_bytes, PARTITION)) as (ours,):
        return done + against_none(ours, "random read misses, depth 32", 1.5, hits=False)


def noise(bench):
    """The same server against itself: how far the ratios of pairs are from 1 without any reason."""
    with bench.taking_part(lambda: nbdkit_memory(bench.directory, HOT_BYTES)) as (peer,):
        lines = requests_and_cpu("noise: hits of nbdkit memory", "itself", None, None)
        done = bench.in_turns(lines, bench.reading(peer, 32), bench.reading(peer, 32))
    with bench.taking_part(lambda: qemu_nbd(bench.directory, bench.miss_bytes)) as (peer,):
        lines = requests_and_cpu("noise: misses of qemu-nbd", "itself", None, None)
        return done + bench.in_turns(lines, bench.reading(peer, 32), bench.reading(peer, 32))


@contextlib.contextmanager
def gateways(bench, core):
    """An export of nbdkit in memory on one core; three gateways to it on another one, or on the same."""
    with bench.taking_part(lambda: nbdkit_memory(bench.directory, GIB)) as (export,):
        bench.ours_count += 1
        name = f"ours{bench.ours_count}"
        with bench.taking_part(
            lambda: Gateway(bench.directory, [export], "64MiB", core, name),
            lambda: qemu_gateway(bench.directory, export, core),
            lambda: nbdkit_gateway(bench.directory, export, core),
        ) as servers:
            yield servers


BETTER = "better of qemu-nbd, nbdkit"


def gateway(bench):
    """Reads and writes through a gateway that caches nothing of them, beside qemu-nbd and nbdkit."""
    rate = lambda run: run.per_second
    speed = lambda run: run.mib_per_second
    cpu = lambda run: run.server_cpu_us
    most = lambda pick: lambda a, q, n: (pick(a), max(pick(q), pick(n)))
    least = lambda pick: lambda a, q, n: (pick(a), min(pick(q), pick(n)))
    with gateways(bench, CLIENT_CORE) as servers:
        reads = "gateway: random read misses, depth 32"
        done = bench.in_turns(
            [
                (Line(reads, "requests a second", "1/s", BETTER, ">=", 1.2), most(rate)),
                (Line(reads, "gateway CPU a request", "us", BETTER, "<=", 0.7), least(cpu)),
            ],
            *(bench.reading(server, 32) for server in servers),
        )
        for rw in ("read", "write"):
            work = f"gateway: 1 MiB sequential {rw}s, depth 8" + (" and a flush" if rw == "write" else "")
            limits = {"amount": GIB} if rw == "write" else {"seconds": bench.seconds}
            turn = lambda server, rw=rw, limits=limits: lambda: fio(
                server.uri, rw, depth=8, bs="1m", size=GIB, pid=server.pid, **limits
            )
            line = Line(work, "throughput", "MiB/s", BETTER, ">=", 0.9)
            done += bench.in_turns([(line, most(speed))], *map(turn, servers))
    return done


def gateway_striped(bench):
    """Reads through a gateway that stripes over two exports, beside qemu-nbd and nbdkit with one."""
    least = lambda pick: lambda a, q, n: (pick(a), min(pick(q), pick(n)))
    sizes = (GIB // 2, GIB // 2 + MIB)
    memory = lambda size: lambda: nbdkit_memory(bench.directory, size)
    done = []
    for depth, core in ((32, CLIENT_CORE), (1, SERVER_CORE)):
        with gateways(bench, core) as (_, qemu, nbdkit), bench.taking_part(*map(memory, sizes)) as exports:
            ours = lambda core=core: Gateway(bench.directory, exports, "64MiB", core, f"striped{core}")
            with bench.taking_part(ours) as (striped,):
                turns = [bench.reading(server, depth, SERVER_CORE) for server in (striped, qemu, nbdkit)]
                reads = f"gateway, striped over two: random read misses, depth {depth}"
                if depth == 1:
                    line = Line(f"{reads}, one core", "mean latency", "us", BETTER, "<=", 1.3)
                    done += bench.in_turns([(line, least(lambda run: run.latency_us))], *turns)
                    continue
                line = Line(reads, "gateway CPU a request", "us", BETTER, "<=", 1.3)
                done += bench.in_turns([(line, least(lambda run: run.server_cpu_us))], *turns)
                with bench.taking_part(bench.ours(GIB, 2 * PARTITION)) as (local,):
                    line = Line(reads, "gateway CPU a request", "us", "own miss of a local volume + 8 us", "<=", 1.0)
                    pick = lambda far, near: (far.server_cpu_us, near.server_cpu_us + 8)
                    both = bench.reading(striped, depth, SERVER_CORE), bench.reading(local, depth, CLIENT_CORE)
                    done += bench.in_turns([(line, pick)], *both)
    return done


def gateway_latency(bench):
    """Random reads through a gateway, depth 1, all on one core."""
    with gateways(bench, SERVER_CORE) as servers:
        line = Line("gateway: random read misses, depth 1, one core", "mean latency", "us", BETTER, "<=", 1.1)
        pick = lambda a, q, n: (a.latency_us, min(q.latency_us, n.latency_us))
        return bench.in_turns([(line, pick)], *(bench.reading(server, 1, SERVER_CORE) for server in servers))


def another_disk(bench):
    """4 KiB writes to a volume whose data is on another disk of the same process, beside those to a local one."""
    with bench.taking_part(bench.ours(GIB, 2 * PARTITION)) as (ours,):
        ours.server.cli("disk", "add", "other", bench.directory / "other", "--force")
        store = ours.server.create("store", str(GIB), "--prealloc", "full", "--disk", "other")
        ours.server.cli("volume", "create", "remote", "--from", store)
        writing = lambda uri: lambda: fio(uri, "randwrite", depth=32, size=GIB, amount=GIB // 2, pid=ours.pid)
        work = "random 4 KiB writes and a flush, depth 32, to another disk of the same process"
        line = Line(work, "server CPU a request", "us", "local + 12 us", "<=", 1.0)
        pick = lambda remote, local: (remote.server_cpu_us, local.server_cpu_us + 12)
        return bench.in_turns([(line, pick)], writing(ours.server.uri("remote")), writing(ours.uri))


def offload(bench):
    """4 KiB writes that go to a store on another server, beside those to the disk: CPU, and memory of the range map."""
    size, whole = 256 * MIB, 4 * GIB
    with bench.taking_part(bench.ours(GIB, PARTITION), bench.ours(4 * MIB, PARTITION)) as (ours, host):
        host.move(CLIENT_CORE)
        host.server.cli("store", "create", "spare", "--disk", "default", "--size", "8GiB")
        # The first write of a block costs a store more than later ones do.
        state = lambda: host.server.json("volume", "show", "spare")["initialised_ratio"]
        until("the store to be zeroed", lambda: state() == 1.0, 120)
        # A disk that is overloaded by any write, so that part of a volume is in the store as a whole after a while.
        ours.server.cli("disk", "add", "slow", "sim:cheetah-15k5", "--size", "8GiB")
        away = ours.server.create("away", str(whole), "--disk", "slow")
        for name in ("away", "bench"):
            ours.server.cli("volume", "set", name, "--write-cache", "none")
        store = f"nbd+unix:///spare?socket={host.server.socket}"
        thresholds = ["--base-threshold", "0", "--store-threshold", "1000", "--limit", "100GiB", "--reclaim-depth", "1"]
        ours.server.cli("offload", "enable", "slow", "--store", store, *thresholds)
        offloaded = lambda: ours.server.json("offload", "show", "slow")["offloaded_bytes"]
        # Frames and buffers are in use then.
        fio(away, "randwrite", depth=64, size=size, amount=size // 8)
        before = memory_of(ours.pid, "VmRSS"), offloaded()
        # Few blocks twice: what was overwritten takes memory, too, until it is deleted in the store.
        fio(away, "randwrite", depth=64, size=whole, amount=size)
        memory = Line("off-loaded 4 KiB writes", "memory a range", "bytes", "64 bytes", "<=", 1.0)
        memory.add((memory_of(ours.pid, "VmRSS") - before[0]) / ((offloaded() - before[1]) / 4096), 64)
        # A part of it as a whole, so that all further writes of this part go there.
        fio(away, "randwrite", depth=64, size=size, amount=4 * size)
        writing = lambda uri, of: lambda: fio(uri, "randwrite", depth=32, size=of, seconds=bench.seconds, pid=ours.pid)
        line = Line("off-loaded 4 KiB writes", "server CPU a request", "us", "local + 12 us", "<=", 1.0)
        pick = lambda remote, local: (remote.server_cpu_us, local.server_cpu_us + 12)
        return [memory, *bench.in_turns([(line, pick)], writing(away, size), writing(ours.uri, GIB))]


ALL = {
    "noise": noise,
    "hits": hits,
    "misses": misses,
    "latency-hits": latency_hits,
    "latency-misses": latency_misses,
    "writes": writes,
    "sequential": sequential,
    "memory": memory_and_idle,
    "policies": policies,
    "gateway": gateway,
    "gateway-latency": gateway_latency,
    "gateway-striped": gateway_striped,
    "another-disk": another_disk,
    "offload": offload,
}
