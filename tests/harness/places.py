"""Paths: the repository, the built programs, scratch directories."""

import os
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# A Unix socket's path has at most 107 bytes; the scratch directory's path must leave room for the socket's name.
SOCKET_PATH_BYTES = 107
SOCKET_TAIL_BYTES = 48


def binary():
    """The server under test: AEROGEL_BIN, or the program that `make test` builds."""
    return os.environ.get("AEROGEL_BIN") or str(TARGET / "checked" / "aerogel")


def lab():
    """`aerogel-lab`: AEROGEL_LAB_BIN, or the program that `make test` builds."""
    return os.environ.get("AEROGEL_LAB_BIN") or str(TARGET / "checked" / "aerogel-lab")


def scratch(name="t"):
    """A new directory on a real disk (not a tmpfs), with a path short enough for sockets below it."""
    base = Path(os.environ.get("AEROGEL_SCRATCH", TARGET / "scratch"))
    if len(str(base)) > SOCKET_PATH_BYTES - SOCKET_TAIL_BYTES:
        base = Path("/var/tmp/aerogel-scratch")
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name[:8]}-", dir=base))


def discard(directory):
    """Removes a scratch directory with everything in it."""
    shutil.rmtree(directory, ignore_errors=True)
