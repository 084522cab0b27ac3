"""The servers that are measured: ours, nbdkit's memory plugin, qemu-nbd; each on one core and a Unix socket."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.server import Server  # noqa: E402
from harness.wait import until  # noqa: E402

from machine import SERVER_CORE, cpu_seconds, pinned  # noqa: E402

MIB = 1 << 20
START_SECONDS = 30


def fill(uri, size):
    """Writes noise over a whole volume, since reading blocks that were never written costs next to nothing."""
    command = ["fio", "--name=fill", "--ioengine=nbd", f"--uri={uri}", "--rw=write", "--bs=1m", "--iodepth=8"]
    command += [f"--size={size}", "--end_fsync=1", "--refill_buffers", "--randrepeat=0"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def help_of(binary):
    """The help text of `serve` of a release."""
    return subprocess.run([binary, "serve", "--help"], check=True, capture_output=True, text=True).stdout


class Ours:
    """Aerogel with one volume that has the whole cache."""

    name = "aerogel"

    def __init__(self, directory, size, cache, core=SERVER_CORE, name="ours", binary=None):
        # A release without automatic probes does not have the option to disable them.
        probe = binary is not None and "--no-probe" not in help_of(binary)
        self.server = Server(directory, cache=cache, name=name, binary=binary, probe=probe)
        self.server.start(preexec_fn=pinned(core))
        self.size = size
        self.uri = self.server.create("bench", str(size), "--prealloc", "full")
        fill(self.uri, size)

    @property
    def pid(self):
        """The process id."""
        return self.server.pid

    def move(self, core):
        """Moves it to another core, with all threads."""
        move(self.pid, core)

    def read_blocks(self):
        """Bytes of blocks read so far as (hits, misses)."""
        samples = self.server.metrics()
        of = lambda result: sum(
            value
            for key, value in samples.items()
            if key.startswith("aerogel_volume_cache_read_bytes_total") and f'result="{result}"' in key
        )
        return of("hit"), of("miss")

    def stop(self):
        """Stops it."""
        self.server.kill()


class Gateway(Ours):
    """Aerogel with one volume that is the export of another server, or striped over those of several."""

    def __init__(self, directory, exports, cache, core, name):
        self.server = Server(directory, cache=cache, name=name)
        self.server.start(preexec_fn=pinned(core))
        self.size = len(exports) * min(export.size for export in exports)
        words = [word for export in exports for word in ("--from", export.uri)]
        self.server.cli("volume", "create", "bench", *words)
        self.uri = self.server.uri("bench")


class Peer:
    """A server that is started with one command."""

    def __init__(self, directory, size, name, command, core=SERVER_CORE):
        self.name = name
        self.size = size
        self.socket = Path(directory) / f"{name.split()[0]}-{os.getpid()}-{size}.sock"
        self.uri = f"nbd+unix:///?socket={self.socket}"
        command = [str(self.socket) if part is None else str(part) for part in command]
        self.process = subprocess.Popen(
            command, preexec_fn=pinned(core), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until(f"{self.name} to listen", self.socket.is_socket, START_SECONDS, gone=self._ended)

    def _ended(self):
        return None if self.process.poll() is None else f"{self.name} exited with {self.process.returncode}"

    @property
    def pid(self):
        """The process id."""
        return self.process.pid

    def move(self, core):
        """Moves it to another core, with all threads."""
        move(self.pid, core)

    def stop(self):
        """Stops it."""
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)


def nbdkit_memory(directory, size):
    """nbdkit's memory plugin, with its data written."""
    peer = Peer(directory, size, "nbdkit memory", ["nbdkit", "--foreground", "--unix", None, "memory", size])
    fill(peer.uri, size)
    return peer


def qemu_nbd(directory, size):
    """qemu-nbd on an allocated and written file, with direct I/O and io_uring."""
    file = Path(directory) / f"qemu-{size}.img"
    with open(file, "wb") as image:
        os.posix_fallocate(image.fileno(), 0, size)
    command = ["qemu-nbd", "--persistent", "--shared=64", "--format=raw", "--cache=none", "--aio=io_uring"]
    peer = Peer(directory, size, "qemu-nbd", [*command, "--discard=unmap", "--socket", None, file])
    peer.file = file
    fill(peer.uri, size)
    return peer


def nbdkit_gateway(directory, export, core):
    """nbdkit, forwarding an export."""
    command = ["nbdkit", "--foreground", "--unix", None, "nbd", f"uri={export.uri}"]
    return Peer(directory, export.size, "nbdkit-nbd", command, core)


def qemu_gateway(directory, export, core):
    """qemu-nbd, forwarding an export."""
    command = ["qemu-nbd", "--persistent", "--shared=64", "--format=raw", "--socket", None, export.uri]
    return Peer(directory, export.size, "qemu-nbd-gateway", command, core)


def move(pid, core):
    """Pins all threads of a process."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


__all__ = [
    "MIB",
    "Gateway",
    "Ours",
    "Peer",
    "cpu_seconds",
    "nbdkit_gateway",
    "nbdkit_memory",
    "qemu_gateway",
    "qemu_nbd",
]
