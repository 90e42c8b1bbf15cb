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


class _Kernel:
    """Does nothing, or writes a number."""

    def __init__(self, value=None):
        self.value = value

    def __getitem__(self, _grid):
        return self

    def __call__(self, *arrays):
        if self.value is not None:
            arrays[-1][0] = self.value


class _Array(np.ndarray):
    def copy_to_host(self):
        return self


_CUDA = SimpleNamespace(to_device=lambda values: np.array(values).view(_Array))


def _driver_refused():
    from tightz.runtime.gpu import graphs

    graphs._checked((2,))


def _no_room_for_draws(patch):
    from tightz.uppers.mini_bucket.gpu import descent

    patch.setattr(descent, "free_bytes", lambda: 8)
    one = descent.DeviceDescent.__new__(descent.DeviceDescent)
    one.program = SimpleNamespace(messages=SimpleNamespace(high=1000))
    one.snapshot()


def _infinite_shift(patch):
    from tightz.judge.gpu import cliques

    patch.setattr(cliques, "cuda", _CUDA)
    patch.setattr(cliques, "_infinite", _Kernel(1))
    cliques.root_messages(SimpleNamespace(shifts=np.array([np.inf])), 1.0)


def _many_terms(patch):
    from tightz.judge.gpu import cliques

    patch.setattr(cliques, "MOST_TERMS", -1)
    tree = SimpleNamespace(shapes=[(2,)], terms_of=SimpleNamespace(ptr=[0, 0]))
    cliques._page(tree, 0, {})


def _zeros_on_device():
    from tightz.judge.cliques import _DeviceTree
    from tightz.uppers.mini_bucket import mini_bucket

    model = tz.FactorGraph([2, 2], [((0, 1), np.array([[0.0, -np.inf], [0.0, 0.0]]))])
    _DeviceTree(mini_bucket(model).bound.evidence, model)


def _tables(**given):
    from tightz.judge.gpu.proposals import Table, Tables

    known = {
        "pool": None,
        "tables": [[Table(0, 1, 0.0, (0,))]],
        "scopes": [(0,)],
        "bucket_ptr": np.array([0, 1]),
        "cardinalities": np.array([2]),
    }
    return Tables(**{**known, **given})


def _large_clique(patch):
    from tightz.judge.gpu import proposals

    patch.setattr(proposals, "MOST_TERMS", 0)
    proposals.cap_excess(_tables(), np.ones(1))


def _infinite_table(patch):
    from tightz.judge.gpu import proposals

    patch.setattr(proposals, "cuda", _CUDA)
    patch.setattr(proposals, "_largest", _Kernel())
    proposals.cap_excess(_tables(), np.ones(1))


def _no_cap():
    from tightz.judge.gpu.proposals import _shares

    _shares(np.array([0, 2]), np.array([1.5, -0.5]))


def _foreign_table():
    from tightz.judge.gpu.proposals import _strides

    _strides(_tables(cardinalities=np.array([2, 2])), (0,), (1,))


def _wrong_weight(patch):
    from tightz.judge.gpu import proposals

    patch.setattr(proposals, "_read", lambda _, places: np.zeros(places.shape))
    model = tz.FactorGraph([2], [((0,), np.zeros(2))])
    proposals.check_weights(model, _tables(), np.zeros((1, 1), np.int64), np.array([1.0]), 1e-6)


def _many_states():
    from tightz.sampling.capped.gpu import DeviceProposal

    descent = SimpleNamespace(parts=SimpleNamespace(cardinalities=np.array([65])), program=None)
    DeviceProposal.of(None, descent)


def _lost_tables():
    from tightz.sampling.capped.proposal import proposal_of

    proposal_of(None, SimpleNamespace())


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
    Case(RuntimeError, "the CUDA driver answered 2", _driver_refused),
    Case(
        ResourceError,
        "drawing on the GPU needs 4 kB beside the tables of the bound; 8 B are free",
        _no_room_for_draws,
    ),
    Case(RefutedError, "a shift in device memory is not a finite number", _infinite_shift),
    Case(ValueError, "clique 0 has 0 terms over (2,): numpy judges it", _many_terms),
    Case(ValueError, "zeros and lower bounds are judged by numpy", _zeros_on_device),
    Case(ValueError, "clique 0 is too large to be judged on a device", _large_clique),
    Case(RefutedError, "a table of the proposal is not finite", _infinite_table),
    Case(RefutedError, "weights [ 1.5 -0.5] of a bucket prove no cap", _no_cap),
    Case(RefutedError, "a table over (1,) is said to lie in clique (0,)", _foreign_table),
    Case(
        RefutedError,
        "draws under a cap: a weight differs from p~ / q by 0.307 nats",
        _wrong_weight,
    ),
    Case(ResourceError, "variables of more than 64 states: no draws on a GPU", _many_states),
    Case(ResourceError, "drawing on the GPU failed: ...", _lost_tables),
]
