"""Waiting for a condition: the only place in the tests that sleeps."""

import time


def until(what, condition, seconds=30.0, gone=None):
    """Polls `condition` until it returns a true value, and returns that value.

    `gone` may return a reason why the condition cannot become true any more.
    """
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        found = condition()
        if found:
            return found
        reason = gone and gone()
        if reason:
            raise AssertionError(f"waited for {what}, but {reason}")
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def once_per(seconds, times, sample):
    """Takes `times` samples, evenly spaced."""
    taken = []
    for i in range(times):
        if i:
            time.sleep(seconds)
        taken.append(sample())
    return taken
