#!/usr/bin/python3
"""Runs the tests with real clients: `tests/run.py [-k PATTERN]… [--long] [--list]`.

The server under test is AEROGEL_BIN, or target/checked/aerogel as `make test` builds it. Test modules with a
`LANE` spend their time waiting for timeouts: those of each lane run in a process of their own, beside the others.
"""

import argparse
import json
import os
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import places  # noqa: E402


class Lines(unittest.TestResult):
    """One line per test; failures are shown in full, with the end of the server's log."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.buffer = False
        self.told = []

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()
        self.bad_parts = False

    def say(self, word, test, reason=""):
        name = test.id().removeprefix("test_")
        took = time.monotonic() - getattr(self, "started", time.monotonic())
        # In one write, since two processes print.
        sys.stdout.write(f"{word:<7} {took:6.1f} s  {name}{reason and ': ' + reason}\n")
        sys.stdout.flush()

    def tell(self, test, error):
        said = self._exc_info_to_string(error, test).rstrip()
        case = getattr(test, "test_case", test)
        if hasattr(case, "last_lines"):
            said += f"\n{case.last_lines()}"
        self.say("FAILED", test, f"\n{said}")
        self.told.append(f"{test.id().removeprefix('test_')}\n{said}")

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

    def addSkip(self, test, reason):
        # In CI, only tests that need minutes may be skipped; `make test-long` runs them.
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


def run(tests):
    """(passed, failed, skipped), and what was said of those that failed."""
    result = Lines()
    unittest.TestSuite(tests).run(result)
    return [result.passed, len(result.failures) + len(result.errors), len(result.skipped)], result.told


class Beside:
    """Tests that run concurrently in another process."""

    def __init__(self, tests):
        self.counts, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Whatever fails here, this process must end here and not run the code of its parent.
            status = 1
            try:
                os.write(theirs, json.dumps(run(tests)).encode())
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(theirs)

    def join(self):
        """What `run` found there; a process that was killed counts as a failure."""
        with os.fdopen(self.counts, "rb") as counts:
            said = counts.read()
        _, status = os.waitpid(self.pid, 0)
        return json.loads(said) if status == 0 else ([0, 1, 0], ["the tests beside the others were killed"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", action="append", metavar="PATTERN", help="only tests whose name has this in it")
    without = "no tests whose name has this in it"
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN", help=without)
    parser.add_argument("--long", action="store_true", help="more rounds of what is random, and what takes minutes")
    parser.add_argument("--list", action="store_true", help="name the tests, run none")
    options = parser.parse_args()
    if options.long:
        os.environ["AEROGEL_TEST_LONG"] = "1"

    loader = unittest.TestLoader()
    if options.k:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in options.k]
    suite = loader.discover(str(HERE), pattern="test_*.py", top_level_dir=str(HERE))
    tests = [test for test in each(suite) if not any(pattern in test.id() for pattern in options.without)]
    if options.list:
        print("\n".join(test.id() for test in tests))
        return 0
    if not os.access(places.binary(), os.X_OK):
        print(f"{places.binary()} is not there: run `make test-clients`, which builds it, or set AEROGEL_BIN")
        return 1

    started = time.monotonic()
    others, lanes = [], {}
    for test in tests:
        lane = getattr(sys.modules[type(test).__module__], "LANE", None)
        (others if lane is None else lanes.setdefault(lane, [])).append(test)
    lanes = [Beside(lane) for lane in lanes.values()]
    found = [run(others), *(lane.join() for lane in lanes)]
    passed, failed, skipped = map(sum, zip(*(counts for counts, _ in found)))
    took = time.monotonic() - started
    # Once more, where the end of a long log is all that is kept of it.
    for said in [said for _, told in found for said in told]:
        print(f"failed above: {said}")
    print(f"real clients: {passed} passed, {failed} failed, {skipped} skipped in {took:.0f} s")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
