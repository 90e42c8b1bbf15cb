"""The interpreter's switch interval while several ask for different ones."""

from __future__ import annotations

import sys

import pytest

from tightz.runtime.switching import switching


def test_the_least_that_is_asked_for_holds_until_all_have_left():
    usual = sys.getswitchinterval()
    first, second = switching(usual / 10), switching(usual / 100)
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(usual / 100)
    first.__exit__(None, None, None)  # not in the order in which they came
    assert sys.getswitchinterval() == pytest.approx(usual / 100)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual)
    with switching(10 * usual):
        assert sys.getswitchinterval() == pytest.approx(usual)


def test_no_interval_is_shorter_than_python_can_tell():
    usual = sys.getswitchinterval()
    for _ in range(2):
        with switching(1e-9):
            assert sys.getswitchinterval() > 0.0
        assert sys.getswitchinterval() == pytest.approx(usual)
