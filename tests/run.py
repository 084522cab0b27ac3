#!/usr/bin/python3
"""Runs the tests with real clients: `tests/run.py [-k PATTERN]… [--long] [--list]`.

The server under test is AEROGEL_BIN, or target/checked/aerogel as `make test` builds it.
"""

import argparse
import os
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import places  # noqa: E402


class Lines(unittest.TestResult):
    """One line a test; what failed is told in full, with the server's last words."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.buffer = False

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()
        self.bad_parts = False

    def say(self, word, test, reason=""):
        name = test.id().removeprefix("test_")
        took = time.monotonic() - getattr(self, "started", time.monotonic())
        print(f"{word:<7} {took:6.1f} s  {name}{reason and ': ' + reason}", flush=True)

    def tell(self, test, error):
        self.say("FAILED", test)
        print(self._exc_info_to_string(error, test).rstrip())
        if hasattr(test, "last_lines"):
            print(test.last_lines())
        sys.stdout.flush()

    def addSuccess(self, test):
        if not self.bad_parts:
            self.passed += 1
            self.say("ok", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.tell(test, error)

    def addError(self, test, error):
        super().addError(test, error)
        self.tell(test, error)

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.bad_parts = True
            self.tell(part, error)
            print(test.last_lines() if hasattr(test, "last_lines") else "")

    def addSkip(self, test, reason):
        # What needs minutes is left to `make test-long`; in CI nothing else may be left out.
        if os.environ.get("CI") and "make test-long" not in reason:
            return self.addFailure(test, (AssertionError, AssertionError(f"skipped in CI: {reason}"), None))
        super().addSkip(test, reason)
        self.say("skipped", test, reason)


def each(suite):
    """The tests of a suite, one by one."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from each(part)
        else:
            yield part


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", action="append", metavar="PATTERN", help="only tests whose name has this in it")
    parser.add_argument("--long", action="store_true", help="more rounds of what is random, and what takes minutes")
    parser.add_argument("--list", action="store_true", help="name the tests, run none")
    options = parser.parse_args()
    if options.long:
        os.environ["AEROGEL_TEST_LONG"] = "1"

    loader = unittest.TestLoader()
    if options.k:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in options.k]
    suite = loader.discover(str(HERE), pattern="test_*.py", top_level_dir=str(HERE))
    if options.list:
        print("\n".join(test.id() for test in each(suite)))
        return 0
    if not os.access(places.binary(), os.X_OK):
        print(f"{places.binary()} is not there: run `make test-clients`, which builds it, or set AEROGEL_BIN")
        return 1

    started = time.monotonic()
    result = Lines()
    suite.run(result)
    failed = len(result.failures) + len(result.errors)
    took = time.monotonic() - started
    print(f"real clients: {result.passed} passed, {failed} failed, {len(result.skipped)} skipped in {took:.0f} s")
    return 1 if failed or not result.passed else 0


if __name__ == "__main__":
    sys.exit(main())
