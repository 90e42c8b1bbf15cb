"""What the code for the device says; none of it needs one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.elimination.gpu import OutOfRangeError
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.judge import RefutedError


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


def _eliminated(machine=None, marginals=False, **options):
    from tightz.elimination.exact import plan
    from tightz.elimination.gpu import gpu_plan
    from tightz.elimination.gpu.machine import PlainMachine

    model = tz.ising_grid(6, seed=0, **options)
    found = gpu_plan(model, plan(model), max_bytes=1 << 28, marginals=marginals)
    return found.solve(machine or PlainMachine)


def _wrong_sum(patch):
    from tightz.elimination.gpu.machine import PlainMachine

    patch.setattr(PlainMachine, "gather", lambda self, places: np.ones(places.shape))
    _eliminated()


def _not_a_number(patch):
    from tightz.elimination.gpu.machine import PlainMachine

    load = PlainMachine.load

    def spoilt(self, passes):
        passes[0].coefficients[:4] = np.nan
        load(self, passes)

    patch.setattr(PlainMachine, "load", spoilt)
    _eliminated()


def _wrong_belief(patch):
    from tightz.elimination.gpu.machine import PlainMachine

    read = PlainMachine.read
    patch.setattr(PlainMachine, "read", lambda *args: 1.5 * read(*args))
    _eliminated(marginals=True)


def _small_belief(patch):
    from tightz.elimination.gpu.machine import PlainMachine

    read = PlainMachine.read
    patch.setattr(PlainMachine, "read", lambda *args: 1e-280 * read(*args))
    _eliminated(marginals=True)


def _no_belief(patch):
    from tightz.elimination.gpu import marginals

    class Lost(marginals.Runner):
        def run(self, k, known, *, keep=True):
            return super().run(k, known) if keep else None

    patch.setattr(marginals, "Runner", Lost)
    _eliminated(marginals=True)


def _no_answer():
    from tightz.elimination.gpu import cuda

    cuda._checked((2,))


def _no_kernels():
    from tightz.elimination.gpu import cuda

    class Compiler:
        nvrtcCreateProgram = staticmethod(lambda *_: (0, None))
        nvrtcCompileProgram = staticmethod(lambda *_: (6,))
        nvrtcGetProgramLogSize = staticmethod(lambda *_: (0, 3))
        nvrtcGetProgramLog = staticmethod(lambda *_: (0,))

    cuda._compiled(Compiler, "sm_10")


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
    Case(
        OutOfRangeError,
        "gpu: entries of bucket ...'s table may span ... nats; float64 on the ordinary scale holds "
        "650",
        lambda: _eliminated(coupling=(-200, 200)),
    ),
    Case(
        RefutedError,
        "gpu: the pass over buckets 0 to ... left entries that are not the sums of what it read "
        "(off by ...)",
        _wrong_sum,
    ),
    Case(
        RefutedError,
        "gpu: the pass over buckets 0 to ... left entries that are no finite numbers",
        _not_a_number,
    ),
    Case(
        RefutedError,
        "gpu: the belief of bucket 35 sums to exp(0.405) of Z; rounding explains ... nats",
        _wrong_belief,
    ),
    Case(
        OutOfRangeError,
        "gpu: the belief of bucket 35 is too small a part of the tables it comes from; float64 on "
        "the ordinary scale has lost some of it",
        _small_belief,
    ),
    Case(
        OutOfRangeError,
        "gpu: the belief of bucket 35 is too small a part of the tables it comes from; float64 on "
        "the ordinary scale has lost some of it",
        _no_belief,
    ),
    Case(ResourceError, "the GPU answered 2; backend='cpu' does without it", _no_answer),
    Case(ResourceError, "the kernels do not compile for sm_10: ", _no_kernels),
]
