"""What the code for the device says; none of it needs one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.errors.table import Case
from tightz.errors import UnsupportedModelError


def _too_many_long_terms(patch):
    from tightz.paper.gpu import model

    patch.setattr(model, "SLOTS", (1, 96))
    patch.setattr(model, "WIDTH", 32)
    model.slots_for(np.array([5, 3073]))


def _escaped_mean(patch):
    """A chunk of two projections with two restarts each, one of whose bounds came back NaN."""
    from tightz.paper.gpu import chunk

    class Evaluation:
        def __getitem__(self, _grid):
            return lambda *_: None

    def on_device(values):
        return SimpleNamespace(copy_to_host=lambda: np.array(values))

    patch.setattr(chunk, "evaluate", Evaluation())
    one = chunk.Chunk.__new__(chunk.Chunk)
    one.size = 2
    one.model = SimpleNamespace(
        family=SimpleNamespace(restarts=2),
        terms=None,
        plan=SimpleNamespace(polynomial=SimpleNamespace(constant=0.0)),
    )
    one.cosets = one.d_feasible = one.v = None
    one.d_sweeps = one.d_gains = on_device([[1, 1], [1, 1]])
    patch.setattr(one, "_device", lambda *_: on_device([[0.0, np.nan], [0.0, 0.0]]), raising=False)
    one.evaluate()


CASES = [
    Case(
        UnsupportedModelError,
        "a projection leaves 3073 long terms; the device kernels hold 3072. Use backend='cpu' or "
        "fewer parities",
        _too_many_long_terms,
    ),
    Case(
        ArithmeticError,
        "1 of 4 ascents left a mean outside [-1, 1]: this is a bug in the ascent kernel; "
        "backend='cpu' does without it",
        _escaped_mean,
    ),
]
