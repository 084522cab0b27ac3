"""A network namespace as another machine, with a cable that can be pulled."""

import itertools
import os
import shutil
import unittest

from .server import run

NUMBERS = itertools.count()


def needed():
    """Skips a test if no namespace can be created."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root, to make network namespaces")
    if not shutil.which("ip"):
        raise unittest.SkipTest("needs ip: run `scripts/setup test`")


class Elsewhere:
    """A namespace, removed with its test. Processes that are started with `prefix` listen at `address`."""

    def __init__(self, case):
        needed()
        # Of the range that is set aside for tests of network devices (RFC 2544); others may be under test now.
        number = (os.getpid() * 16 + next(NUMBERS) % 16) % (1 << 15)
        net = f"198.{18 + (number >> 14)}.{number >> 6 & 255}"
        here, self.address = (f"{net}.{(number & 63) * 4 + end}" for end in (1, 2))
        self.name, cable = f"aerogel-{number}", f"aerogel{number}"
        # Not `ip netns exec` or `ip -n`, which also copy the mounts: they would stay in use.
        self.prefix = ["nsenter", f"--net=/run/netns/{self.name}"]
        run("ip", "netns", "add", self.name)
        case.addCleanup(run, "ip", "netns", "delete", self.name, check=False)
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "far", "netns", self.name)
        run("ip", "address", "add", f"{here}/30", "dev", cable)
        run("ip", "link", "set", cable, "up")
        self.inside("address", "add", f"{self.address}/30", "dev", "far")
        self.inside("link", "set", "lo", "up")
        self.plug()

    def inside(self, *words):
        run(*self.prefix, "ip", *words)

    def pull(self):
        """Nothing passes any more; neither end is told."""
        self.inside("link", "set", "far", "down")

    def plug(self):
        self.inside("link", "set", "far", "up")
