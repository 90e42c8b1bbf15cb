"""Test-wide settings: hypothesis is seeded and has no deadline (kernels compile on first use).

TIGHTZ_HUNT=1000 draws that many fresh random examples per property instead.

A test fails where Python calls a kernel with arguments that the registry does not list: a user's
first run would meet that compilation inside its time limit. TIGHTZ_KERNELS=FILE notes them instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from verification.kernels import Calls

hunt = os.environ.get("TIGHTZ_HUNT")
settings.register_profile("seeded", deadline=None, derandomize=True)
settings.register_profile("hunt", deadline=None, max_examples=int(hunt or 100))
settings.load_profile("hunt" if hunt else "seeded")

os.environ.setdefault("MPLBACKEND", "Agg")

_calls = Calls()
_watch = _calls.watch()


LONG = ("test_verification.py", "test_docs.py")
"""Files of few and long tests: one that begins last is waited for by the other process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_configure(config: pytest.Config) -> None:
    _watch.__enter__()


def pytest_unconfigure(config: pytest.Config) -> None:
    _watch.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def kernels_are_registered() -> Iterator[None]:
    from tightz.runtime.kernels.registry import everything

    before = len(_calls.seen)
    yield
    new = list(_calls.seen)[before:]
    listed = {(kernel.function, kernel.signature) for kernel in everything()}
    unknown = [f"{function} {text}" for function, text in new if (function, text) not in listed]
    if unknown and os.environ.get("TIGHTZ_KERNELS"):
        with open(os.environ["TIGHTZ_KERNELS"], "a", encoding="utf-8") as notes:
            notes.writelines(f"{os.environ.get('PYTEST_CURRENT_TEST')} {u}\n" for u in unknown)
    else:
        assert not unknown, "called, and not in the registry of kernels (`make kernels`)"
