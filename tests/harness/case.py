"""The base class of all tests with a server."""

import os
import threading
import unittest

from . import places
from .server import Server

LOG_LINES = 30
# Client libraries wait for ever, so the servers of a test that takes longer than this are killed.
TEST_SECONDS = 1800 if os.environ.get("AEROGEL_TEST_LONG") else 300


class ServerCase(unittest.TestCase):
    """A scratch directory per test, and servers that end with it."""

    # The reactor of this class's servers; None is the default.
    reactor = None

    def setUp(self):
        self.log_starts = {}
        self.scratch = places.scratch(type(self).__name__)
        self.addCleanup(places.discard, self.scratch)
        self.servers = []
        self.overdue = False
        watchdog = threading.Timer(TEST_SECONDS, self.give_up)
        watchdog.daemon = True
        watchdog.start()
        self.addCleanup(watchdog.cancel)

    def give_up(self):
        """Kills the servers, so that nothing waits for them any more."""
        self.overdue = True
        for server in self.servers:
            if server.process:
                server.process.kill()

    def serve(self, **more):
        """A running server; its log is shown when the test fails."""
        more.setdefault("reactor", self.reactor)
        server = Server(more.pop("directory", self.scratch), **more)
        self.servers.append(server)
        self.addCleanup(server.kill)
        return server.start()

    def last_lines(self):
        """The last log lines of its servers during this test, for the report of a failure."""
        told = [f"(it was given up after {TEST_SECONDS} s)"] if getattr(self, "overdue", False) else []
        for server in getattr(self, "servers", ()):
            text = server.log()[self.log_starts.get(server, 0) :]
            told.append(f"--- {server.log_path.name}\n" + "\n".join(text.splitlines()[-LOG_LINES:]))
        return "\n".join(told)


class SharedServerCase(ServerCase):
    """One server for all tests of a class, for tests that leave it as they found it."""

    cache = "64MiB"

    @classmethod
    def setUpClass(cls):
        cls.shared_scratch = places.scratch(cls.__name__)
        cls.addClassCleanup(places.discard, cls.shared_scratch)
        cls.server = Server(cls.shared_scratch, reactor=cls.reactor, cache=cls.cache)
        cls.addClassCleanup(cls.server.kill)
        cls.server.start()

    def setUp(self):
        super().setUp()
        self.servers = [self.server]
        self.log_starts[self.server] = len(self.server.log())
        if self.server.ended():
            self.server.start()
        self.addCleanup(self.alive)

    def alive(self):
        """Fails the test in which the server ends."""
        self.assertIsNone(self.server.ended())

    def volume(self, size="64MiB", *more):
        """A volume named after the test, deleted afterwards."""
        name = self.id().rsplit(".", 1)[1][:60]
        self.server.create(name, size, *more)
        self.addCleanup(self.server.cli, "volume", "delete", name, "--yes", "--force", check=False)
        return name
