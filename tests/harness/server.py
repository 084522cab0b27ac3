"""A private server in a scratch directory: started, queried, stopped or killed."""

import http.client
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import nbd

from . import places
from .wait import until

MIB = 1 << 20
GIB = 1 << 30
START_SECONDS = 60
STOP_SECONDS = 60
COMMAND_SECONDS = 60


class Failed(Exception):
    """A command that failed: exit status and output."""

    def __init__(self, command, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        super().__init__(f"`{' '.join(map(str, command))}` exited with {self.status}:\n{self.out}{self.err}".rstrip())


def run(*command, check=True, seconds=COMMAND_SECONDS, **more):
    """Runs a command to its end; raises `Failed` with its output."""
    command = [str(part) for part in command]
    more = {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace", **more}
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, **more)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"`{' '.join(command)}` did not end within {seconds} s") from None
    if check and done.returncode != 0:
        raise Failed(command, done)
    return done


class Server:
    """`aerogel serve` on its own directory and Unix sockets. Use as a context manager."""

    def __init__(
        self,
        directory,
        *,
        reactor=None,
        cache="64MiB",
        config="",
        http=(),
        nbd=(),
        name="data",
        data=None,
        binary=None,
        probe=False,
        prefix=(),
    ):
        self.directory = Path(directory)
        self.binary = binary or places.binary()
        self.data = Path(data) if data else self.directory / name
        self.socket = self.data / "nbd.sock"
        self.http_socket = self.data / "http.sock"
        self.config = self.directory / f"{name}.toml"
        self.log_path = self.directory / f"{name}.log"
        self.http, self.nbd, self.prefix = list(http), list(nbd), list(prefix)
        # Automatic probes only where they are tested, since they use disk time that other tests measure.
        self.probe = probe
        self.process = None
        reactor = reactor or os.environ.get("AEROGEL_TEST_REACTOR", "")
        lines = [f'cache = "{cache}"', f'reactor = "{reactor}"' if reactor else "", config]
        self.config.write_text("\n".join(line for line in lines if line) + "\n")

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, trace):
        if error is not None:
            error.add_note(f"The server's last lines:\n{self.log_tail()}")
        self.kill()

    # Life

    def start(self, **more):
        """Starts it and waits until it serves."""
        self.spawn(**more)
        until("the server to be ready", self.ready, START_SECONDS, gone=self.ended)
        return self

    def spawn(self, **more):
        """Starts it without waiting."""
        assert self.process is None or self.process.poll() is not None, "the server is running already"
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)

    def command(self):
        """Its command line."""
        command = [*self.prefix, self.binary, "serve", "--config", self.config, "--data", self.data]
        command += ["--nbd", f"unix:{self.socket}", "--http", f"unix:{self.http_socket}"]
        command += [] if self.probe else ["--no-probe"]
        for address in self.nbd:
            command += ["--nbd", address]
        for address in self.http:
            command += ["--http", address]
        return [str(part) for part in command]

    def ready(self):
        """Whether it answers on all its sockets."""
        return self.connects() and self.cli("status", check=False).returncode == 0

    def connects(self):
        """Whether its sockets accept connections."""
        for path in (self.socket, self.data / "api.sock"):
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                except OSError:
                    return False
        return True

    def ended(self):
        """Why it has ended, if it has."""
        status = self.process.poll()
        if status is None:
            return None
        return f"the server exited with {status}:\n{self.log_tail()}"

    def stop(self, seconds=STOP_SECONDS):
        """Stops it with SIGTERM; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def kill(self):
        """Kills it with SIGKILL, as in a crash."""
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait()

    def restart(self):
        """Stops it normally and starts it again."""
        status = self.stop()
        assert status == 0, f"SIGTERM ended the server with status {status}:\n{self.log_tail()}"
        return self.start()

    def log(self):
        """Its whole log."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=30):
        """The last lines of it."""
        return "\n".join(self.log().splitlines()[-lines:])

    @property
    def pid(self):
        """The process id."""
        return self.process.pid

    # Asking it

    def cli(self, *words, check=True, **more):
        """Runs a subcommand for this server."""
        first, *rest = words
        return run(self.binary, first, "--data", self.data, *rest, check=check, **more)

    def json(self, *words):
        """The answer of a subcommand with --json."""
        return json.loads(self.cli(*words, "--json").stdout)

    def refused(self, *words):
        """The output of a subcommand that must fail."""
        done = self.cli(*words, check=False)
        assert done.returncode != 0, f"`aerogel {' '.join(words)}` succeeded, but was to be refused:\n{done.stdout}"
        return done.stdout + done.stderr

    def create(self, name, size="64MiB", *more):
        """Creates a volume; returns its URI."""
        self.cli("volume", "create", name, size, *more)
        return self.uri(name)

    def uri(self, name):
        """The URI of a volume."""
        return f"nbd+unix:///{name}?socket={self.socket}"

    def tcp(self):
        """(host, port) of its first TCP listener for NBD."""
        address = next(at for at in self.json("status")["nbd"] if at.startswith("tcp:"))
        host, port = address.split(",")[0].removeprefix("tcp:").rsplit(":", 1)
        return host, int(port)

    def open(self, name, prepare=lambda handle: None):
        """A libnbd handle. Its own checks are off, since the server is tested."""
        handle = nbd.NBD()
        handle.set_strict_mode(0)
        prepare(handle)
        handle.connect_uri(self.uri(name))
        return handle

    def get(self, path):
        """(status, body) of a GET over the HTTP socket."""
        connection = UnixHTTP(self.http_socket)
        try:
            connection.request("GET", path, headers={"Host": "localhost"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        status, body = self.get("/metrics")
        assert status == 200, f"/metrics answered {status}: {body}"
        samples = {}
        for line in body.splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                samples[key] = float(value)
        return samples


class UnixHTTP(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def memory_of(pid, field):
    """A line of /proc/PID/status such as VmRSS, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def cpu_seconds(pid):
    """User and system time of all threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
