"""The server behind a gateway: ours, nbdkit or qemu-nbd, in a network namespace, with the export `db`."""

import os
import random
import signal
import subprocess
import time

from .network import Elsewhere
from .wait import until

PORT = 10809


class Behind:
    """A server that is running; it can be killed and started again."""

    def __init__(self, case, kind, size):
        self.elsewhere = Elsewhere(case)
        self.uri = f"nbd://{self.elsewhere.address}:{PORT}/db"
        self.rng = random.Random(kind)
        if kind == "ours":
            listen, config = f"tcp:{self.elsewhere.address}:{PORT}", "allow_insecure_remote = true"
            self.server = case.serve(name="behind", prefix=self.elsewhere.prefix, nbd=[listen], config=config)
            self.server.create("db", str(size), "--sparse")
        else:
            file = case.scratch / "behind.img"
            file.write_bytes(b"")
            os.truncate(file, size)
            self.server = Stranger(kind, file, self.elsewhere)
            case.addCleanup(self.server.kill)
            self.server.start()

    def forwarded(self, gateway, volume, *options):
        """Creates a volume of a gateway that is this export, as soon as this server listens."""
        create = ["volume", "create", volume, "--from", self.uri, *options]
        until("the gateway to reach the server", lambda: gateway.cli(*create, check=False).returncode == 0, 30)

    def faults(self, turn, seconds, work):
        """It is stopped, killed, and cut off, for so many seconds at most. `work` waits until its clients go on."""
        work()
        os.kill(self.server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.server.pid, signal.SIGCONT)
        work()
        self.restart(self.rng.random() / 4)
        work()
        self.elsewhere.pull()
        time.sleep(seconds / 2 * self.rng.random())
        if turn % 2 == 1:
            # The gateway learns of it when the cable is back: from the new server, which knows no connection.
            self.restart(0)
        time.sleep(seconds / 2)
        self.elsewhere.plug()
        work()

    def restart(self, seconds):
        """It is killed, and started again after some time."""
        self.server.kill()
        time.sleep(seconds)
        self.server.start()


class Stranger:
    """A server of another make on a file."""

    def __init__(self, kind, file, elsewhere):
        at = {"nbdkit": "--ipaddr", "qemu-nbd": "--bind"}[kind]
        own = {
            "nbdkit": ["nbdkit", "--foreground", "file", file],
            "qemu-nbd": ["qemu-nbd", "--persistent", "--shared=64", "--format=raw", "--export-name=db", file],
        }[kind]
        self.command = [*elsewhere.prefix, own[0], f"{at}={elsewhere.address}", f"--port={PORT}", *own[1:]]
        self.process = None

    def start(self):
        """It listens a little later."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)

    def kill(self):
        """With SIGKILL."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def pid(self):
        """The process id."""
        return self.process.pid
