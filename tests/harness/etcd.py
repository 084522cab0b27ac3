"""A private etcd in a scratch directory, on loopback ports of its own."""

import json
import os
import socket
import subprocess

from .server import run
from .wait import until

START_SECONDS = 30


def free_ports(count):
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Etcd:
    """One etcd without peers."""

    def __init__(self, directory, more=(), scheme="http"):
        client, peer = free_ports(2)
        self.directory, self.more, self.scheme = directory, list(more), scheme
        self.url, self.peer = f"{scheme}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.log_path = directory.parent / f"{directory.name}.log"
        self.process = None

    def command(self):
        """Its command line. It does not sync its files: machines do not fail here."""
        command = ["etcd", "--name", "e", "--data-dir", self.directory, "--listen-client-urls", self.url]
        command += ["--advertise-client-urls", self.url, "--listen-peer-urls", self.peer]
        command += ["--initial-advertise-peer-urls", self.peer, "--initial-cluster", f"e={self.peer}"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "250", "--logger", "zap", *self.more]
        return [str(part) for part in command]

    def start(self):
        """Starts it, and waits until it answers."""
        environment = {"ETCD_UNSUPPORTED_ARCH": os.uname().machine, **os.environ}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        until("etcd to listen", self.listens, START_SECONDS, gone=self.ended)
        return self

    def listens(self):
        """Whether it accepts connections, which it does when it has a leader."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.url.rsplit(":", 1)[1]))) == 0

    def ended(self):
        """Why it has ended, if it has."""
        status = self.process.poll()
        return None if status is None else f"etcd exited with {status}:\n{self.log_path.read_text(errors='replace')}"

    def kill(self):
        """Kills it with SIGKILL."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def ctl(self, *words, check=True):
        """Runs etcdctl."""
        environment = {**os.environ, "ETCDCTL_API": "3"}
        return run("etcdctl", "--endpoints", self.url, *words, check=check, env=environment).stdout

    def keys(self, prefix):
        """{key: value} of all keys below a prefix."""
        lines = self.ctl("get", "--prefix", prefix).splitlines()
        return {key: json.loads(value) for key, value in zip(lines[::2], lines[1::2], strict=True)}
