"""Crash images: what a power cut could leave of a recorded device. The real server is started on each image.

`harness/recorded.py` defines what an image is. Each test makes one recording, and checks its images until the time is
over; `make test-long` checks thousands.
"""

import json
import os
import queue
import random
import tempfile
import threading
import time
from pathlib import Path

from harness import places, recorded
from harness.case import ServerCase
from harness.files import mounted_image
from harness.load import SECTOR, Load, content
from harness.recorded import Log, Recorded, Replayed, Tape, TapedRegion
from harness.server import MIB, Server, UnixHTTP, run
from harness.wait import until

# For `tests/run.py`.
LANE = 4

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
# In the gate: the time for checking images, seconds. In long tests: the number of images.
SECONDS = 9
RESTARTS_LONG, RAW_IMAGES_LONG = 2000, 5000
# Images that are started concurrently: the machine has at least two cores, and a start mostly waits.
WORKERS = 3
# ext4 does not mount a superblock of which one sector is new and one is old (its checksum is wrong): it relies on an
# atomic write of 1 KiB. Therefore the block that holds it survives whole or not at all.
SUPERBLOCK_BYTES = 4096
# Images of one pass over the log.
PASS_IMAGES = 24
# Small, so that the journal wraps and an image is copied in milliseconds.
DISK_BYTES = 40 * MIB
LOAD_BYTES = 4 * MIB
# Twice the maximum of dirty data in the cache, so that write-back and eviction are in progress.
RAW_BYTES = 8 * MIB
RAW_WRITES = 3000


class Checks:
    """Checks images with several concurrent workers."""

    def __init__(self, check):
        """`check` gets (worker, point, image, expected) and returns problems as texts."""
        self.check = check
        self.work = queue.Queue(WORKERS)
        self.lock = threading.Lock()
        self.count, self.problems = 0, {}
        self.threads = [threading.Thread(target=self._worker, args=(number,)) for number in range(WORKERS)]
        for thread in self.threads:
            thread.start()

    def _worker(self, number):
        while (item := self.work.get()) is not None:
            try:
                found = self.check(number, *item)
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            with self.lock:
                self.count += 1
                if found:
                    self.problems[item[0]] = found

    def finish(self):
        """Waits for the checks in progress; returns (number of images, problems by position)."""
        for _ in self.threads:
            self.work.put(None)
        for thread in self.threads:
            thread.join()
        return self.count, self.problems


def passes(log, points_of, state_of, check, number, seconds, seed, atomic=0):
    """Checks images in passes over the whole log, until there were enough, the time is over, or there is a problem."""
    rng = random.Random(seed)
    checks = Checks(check)
    started = time.monotonic()
    made = 0
    enough = lambda: checks.problems or made >= number or (made and seconds and time.monotonic() - started > seconds)
    while not enough():
        # New for each pass: the expected state, like the images, is computed from the start of the log to its end.
        state = state_of()
        for point, image in log.images(points_of(min(PASS_IMAGES, number - made), rng), rng, atomic):
            checks.work.put((point, image, state(point)))
            made += 1
            if checks.problems:
                break
    return checks.finish()


class Operations:
    """Changes of volumes, with the position of the log before and after each; and the data that is written to them."""

    def __init__(self, server, position, tape):
        self.server, self.position, self.tape = server, position, tape
        # (before, after, name, size or None), and per name its incarnations as (before, region).
        self.done = []
        self.regions = {}
        self.sequence = 1 << 32

    def change(self, name, size, *command):
        """Runs a command after which the volume has that size, or does not exist."""
        before = self.position()
        self.server.cli("volume", *command)
        self.done.append((before, self.position(), name, size))
        return before

    def create(self, name, size, *options):
        before = self.change(name, size, "create", name, str(size), *options)
        # Has room for the volume's growth.
        region = TapedRegion(0, 4 * size // SECTOR, self.tape)
        self.regions.setdefault(name, []).append((before, region))
        self.write(name, size)

    def grow(self, name, size):
        self.change(name, size, "grow", name, str(size))
        self.write(name, size)

    def delete(self, name):
        shown = lambda: self.server.json("volume", "show", name)
        until("clients to be disconnected", lambda: shown()["connections"] == 0)
        self.change(name, None, "delete", name, "--yes")

    def write(self, name, size):
        """Writes the first, the last and some other sectors; first with a flush, then some without."""
        region = self.regions[name][-1][1]
        handle = self.server.open(name)
        rng = random.Random(self.sequence)
        for durable in (True, False):
            last = size // SECTOR
            for start, count in ((0, 3), (last - 8, 8), (rng.randrange(last - 64), 64)):
                self.sequence += 1
                region.sent(start, count, self.sequence)
                handle.pwrite(b"".join(content(start + i, self.sequence) for i in range(count)), start * SECTOR)
                region.done(start, count, False)
            if durable:
                mark = region.mark()
                handle.flush()
                region.flushed(mark)
        handle.shutdown()

    def allowed(self, point):
        """{name: sizes that it may have}; None means that the volume does not exist."""
        sizes = {}
        for before, after, name, size in self.done:
            if after <= point:
                sizes[name] = [size]
            elif before <= point:
                sizes[name] = sizes.get(name, [None]) + [size]
        return sizes

    def region(self, name, point):
        """The incarnation of a volume that exists at a position."""
        return [region for before, region in self.regions[name] if before <= point][-1]


class Restarts(ServerCase):
    """The server's directory, with its disk, on ext4 on a recorded device."""

    def setUp(self):
        recorded.needed()
        super().setUp()

    def record(self, rounds):
        """Creates, grows and deletes volumes while another one is written to."""
        make = ("/usr/sbin/mkfs.ext4", "-q", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0")
        device = Recorded(self, DISK_BYTES, "recorded", lambda image: run(*make, image))
        at = self.scratch / "fs"
        at.mkdir()
        with mounted_image(device.path, at):
            server = Server(self.scratch, cache="16MiB", config='[limits]\ndirty_age = "100ms"', data=at / "data")
            self.servers.append(server)
            self.addCleanup(server.kill)
            server.start()
            tape = Tape(device.position)
            story = Operations(server, device.position, tape)
            started = device.position()
            story.change("load", LOAD_BYTES, "create", "load", str(LOAD_BYTES))
            load = Load(LOAD_BYTES, writers=2)
            load.regions = [TapedRegion(region.first, region.sectors, tape) for region in load.regions]
            load.start(lambda: server.open("load"))
            for round in range(rounds):
                story.create("a", 256 << 10)
                story.create("b", MIB, *(["--sparse"], ["--prealloc", "full"])[round % 2])
                story.grow("a", 768 << 10)
                story.delete("b")
                story.grow("a", MIB)
                story.delete("a")
            load.stop()
            self.assertEqual(load.unexpected, [])
            server.kill()
        device.stop()
        return device, story, load, tape, started

    def restart(self, number, _point, image, expected):
        """The problems of one image, as texts."""
        path, at = self.images / f"{number}.img", self.scratch / f"fs{number}"
        directory = self.scratch / f"server{number}"
        path.write_bytes(image)
        at.mkdir(exist_ok=True)
        directory.mkdir(exist_ok=True)
        with mounted_image(path, at):
            server = Server(directory, cache="16MiB", data=at / "data")
            server.spawn()
            try:
                until("the server to serve", server.connects, 60, gone=server.ended)
                return self.compare(server, *expected)
            finally:
                server.kill()

    def compare(self, server, sizes, regions, load):
        """Compares the state of the server with the expected one."""
        connection = UnixHTTP(server.data / "api.sock")
        connection.request("GET", "/v1/volumes", headers={"Host": "localhost"})
        volumes = {volume["name"]: volume for volume in json.loads(connection.getresponse().read())}
        connection.close()
        problems, present = [], set(volumes)
        for name, allowed in sizes.items():
            volume = volumes.pop(name, None)
            size = volume and volume["size_bytes"]
            if size not in allowed:
                problems.append(f"volume {name} has size {size}, allowed is one of {allowed}")
            elif volume and volume["condition"] != "online":
                problems.append(f"volume {name} is {volume['condition']}: {volume['reason']}")
            elif volume:
                handle = server.open(name)
                data = b"".join(handle.pread(min(MIB, size - at), at) for at in range(0, size, MIB))
                for region in load if name == "load" else regions[name]:
                    part = data[region.first * SECTOR : (region.first + region.sectors) * SECTOR]
                    found = [problem for problem, _ in region.compare(part) if problem]
                    problems += [f"volume {name}, {problem}" for problem in found[:5]]
                handle.shutdown()
        problems += self.blocked(server, [name for name, allowed in sizes.items() if name not in present])
        return problems + [f"volume {name} was never created" for name in volumes]

    def blocked(self, server, names):
        """Names of volumes that do not exist and cannot be created."""
        problems = []
        for name in names:
            connection = UnixHTTP(server.data / "api.sock")
            body = json.dumps({"name": name, "size": 64 << 10, "allocation": "sparse"})
            headers = {"Host": "localhost", "Content-Type": "application/json"}
            connection.request("POST", "/v1/volumes", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status >= 300:
                problems.append(f"volume {name} is not there and cannot be created: {text}")
            connection.close()
        return problems

    def expected(self, story, load, tape):
        """A function that returns the expected state at a position. Positions only increase."""
        replayed = Replayed(tape)

        def state(point):
            replayed.advance(point)
            sizes = story.allowed(point)
            present = [name for name in sizes if name in story.regions and sizes[name] != [None]]
            regions = {name: [replayed.snapshot(story.region(name, point))] for name in present}
            return sizes, regions, [replayed.snapshot(region) for region in load.regions]

        return state

    def test_restarts_from_crash_images(self):
        device, story, load, tape, started = self.record(rounds=4 if LONG else 1)
        self.images = in_memory(self)
        log = Log(device)
        ends = [end for end in log.ends if end >= started]
        changing = [end for end in ends if any(before <= end <= after for before, after, _, _ in story.done)]
        # Half of the positions are during changes of volumes, half anywhere.
        points = lambda count, rng: rng.choices(changing, k=(count + 1) // 2) + rng.choices(ends, k=count // 2)
        state = lambda: self.expected(story, load, tape)
        number, seconds = (RESTARTS_LONG, None) if LONG else (RESTARTS_LONG, SECONDS)
        count, problems = passes(log, points, state, self.restart, number, seconds, 1, SUPERBLOCK_BYTES)
        print(f"        {count} restarts, images of {len(log.writes)} writes, {len(log.flushes)} flushes", flush=True)
        self.assertEqual(problems, {})
        # A disk that ignores flushes must be detected; otherwise the test above proves nothing.
        lying = Log(device, loses=lambda number: True)
        _, problems = passes(lying, points, state, self.restart, 2 * WORKERS, None, 2, SUPERBLOCK_BYTES)
        self.assertNotEqual(problems, {}, "a disk that loses every flush was not noticed")


class Contents(ServerCase):
    """A volume whose data is a recorded device: a restarted server would serve exactly the content of the image."""

    def setUp(self):
        recorded.needed()
        super().setUp()

    def compare(self, _worker, _point, image, regions):
        """The problems of one image, as texts."""
        problems = []
        for region in regions:
            part = image[region.first * SECTOR : (region.first + region.sectors) * SECTOR]
            problems += [problem for problem, _ in region.compare(part) if problem]
        return problems[:10]

    def test_contents_of_crash_images(self):
        device = Recorded(self, RAW_BYTES, "recorded")
        server = self.serve(cache="16MiB", config='[limits]\ndirty_age = "100ms"')
        server.cli("volume", "create", "v", "--device", device.path)
        tape, load = Tape(device.position), Load(RAW_BYTES, writers=4)
        load.regions = [TapedRegion(region.first, region.sectors, tape) for region in load.regions]
        load.start(lambda: server.open("v"))
        enough = lambda: load.writes >= RAW_WRITES and load.flushes >= RAW_WRITES // 50
        until("verified writes and flushes", enough, 120, gone=lambda: server.ended() or (load.unexpected or [None])[0])
        server.kill()
        load.join()
        # The ring's last requests end after its process.
        until("the kernel to let go of the device", lambda: exclusive(device.path))
        device.stop()

        def state_of():
            replayed = Replayed(tape)

            def state(point):
                replayed.advance(point)
                return [replayed.snapshot(region) for region in load.regions]

            return state

        log = Log(device)
        points = lambda count, rng: rng.choices(log.ends, k=count)
        number, seconds = RAW_IMAGES_LONG, None if LONG else SECONDS / 2
        count, problems = passes(log, points, state_of, self.compare, number, seconds, seed=3)
        print(f"        {count} images of {len(log.writes)} writes, {len(log.flushes)} flushes compared", flush=True)
        self.assertEqual(problems, {})
        lying = Log(device, loses=lambda number: number % 2 == 1)
        _, problems = passes(lying, points, state_of, self.compare, 1000, None, seed=4)
        self.assertNotEqual(problems, {}, "a disk that loses every other flush was not noticed")


def exclusive(path):
    """Whether no process has a device open."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))
    except OSError:
        return False
    return True


def in_memory(case):
    """A directory for images: in memory if possible, since they are written thousands of times."""
    if not os.access("/dev/shm", os.W_OK):
        return case.scratch
    directory = Path(tempfile.mkdtemp(prefix="aerogel-images-", dir="/dev/shm"))
    case.addCleanup(places.discard, directory)
    return directory
