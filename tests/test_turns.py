"""Turns on the device: in the order of asking, also for who has just been there."""

from __future__ import annotations

import threading
import time

import pytest

from tightz.runtime.gpu.turns import Turns

PATIENCE = 60.0


def waiting(turns, count):
    """Until so many stand in line."""
    until = time.monotonic() + PATIENCE
    while len(turns._line) < count:
        assert time.monotonic() < until
        time.sleep(0.001)


def in_line(turns, seen, name):
    def wait():
        with turns:
            seen.append(name)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_turns_come_in_the_order_of_asking():
    turns, seen, threads = Turns(), [], []
    with turns, turns:  # the holder may ask again
        for name in range(5):
            threads.append(in_line(turns, seen, name))
            waiting(turns, name + 1)
        assert not seen
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == [0, 1, 2, 3, 4]
    with turns:
        assert turns._depth == 1


def test_giving_way_lets_those_in_line_go_first_and_comes_back():
    turns, seen = Turns(), []
    with turns, turns:
        turns.give_way()  # nobody asks: nothing happens
        threads = []
        for name in range(3):
            threads.append(in_line(turns, seen, name))
            waiting(turns, name + 1)
        turns.give_way()
        assert seen == [0, 1, 2]
        seen.append("back")
        late = in_line(turns, seen, "late")
        waiting(turns, 1)
    for thread in [*threads, late]:
        thread.join(PATIENCE)
    assert seen == [0, 1, 2, "back", "late"]


def test_nobody_is_there_twice():
    turns, inside, most = Turns(), [], []

    def work():
        for _ in range(200):
            with turns:
                for _ in range(2):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0)
                    inside.pop()
                    turns.give_way()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(most) == 2400
    assert max(most) == 1


def test_who_is_interrupted_in_line_holds_nobody_up(monkeypatch):
    turns, seen = Turns(), []
    real = threading.Lock

    class Impatient:
        """A gate whose second acquisition is interrupted, as Ctrl-C does."""

        def __init__(self):
            self.asked = 0

        def acquire(self):
            self.asked += 1
            if self.asked == 2:
                raise KeyboardInterrupt

        def release(self):
            pass

    def leave():
        monkeypatch.setattr(threading, "Lock", Impatient)
        try:
            with pytest.raises(KeyboardInterrupt):
                turns.__enter__()
        finally:
            monkeypatch.setattr(threading, "Lock", real)

    with turns:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join(PATIENCE)
        assert not turns._line
        after = in_line(turns, seen, "after")
        waiting(turns, 1)
    after.join(PATIENCE)
    assert seen == ["after"]
