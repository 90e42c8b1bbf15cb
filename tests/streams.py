"""Streams run by hand: handouts are done here, in turn."""

from __future__ import annotations

from tightz.workspace.working import alone


def outcome(steps):
    """What a generator returns in the end; what it yields on the way must be handouts."""
    try:
        item = next(alone(steps))
    except StopIteration as end:
        return end.value
    raise AssertionError(f"nothing but handouts was expected, and {item!r} came")


def drawn(run, hands=1, left=60.0):
    """The next draws of an annealing run."""
    return outcome(run.step(left, hands))
