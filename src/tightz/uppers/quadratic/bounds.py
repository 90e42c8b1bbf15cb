"""Quadratic elimination: upper bounds on log Z of pairwise models of two-state variables.

Spins are summed out one after the other, and each log 2cosh that this leaves is replaced by a
quadratic above it, so that a pairwise model is left (`elimination`). Inequalities that hold
for spins but not in the relaxation are added with multipliers (`cuts`). Any order, quadratics and
multipliers give a bound; they are chosen by descent. What is reported is what the judge proves from
these numbers (`tightz.judge.quadratic`), its own rounding added.

Made for dense couplings (spin glasses, Hopfield networks, Boltzmann machines), where tables of any
size are too small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding, encode
from tightz.results import OneBound
from tightz.runtime.blas_threads import one_blas_thread
from tightz.runtime.provenance import provenance
from tightz.uppers.quadratic.run import Quadratic, QuadraticStatus, Run, Spins

Array = NDArray[np.float64]

_JUDGING = 0.1
"""Time of a judgement in parts of that from it to the next one, the first one apart."""

_RESERVED = 1.5
"""Judgements for which there must be time left at the end."""

_SILENT = 0.3
"""Seconds after which a stream shows its bound again, so that others get their turn."""

_WORTH = 1e-3
"""Nats that a bound in a stream must gain on the one before."""


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticResult(OneBound):
    """An upper bound on log Z from one run of quadratic elimination.

    `log_z` is what the judge proves, rounding included; `bound` carries the evidence. `history` is
    the value of each iterate of the order that was kept, as the optimiser saw it in float64.
    `order` lists the spins as they were summed out.
    """

    bound: Bound
    status: QuadraticStatus
    history: Array
    order: NDArray[np.int64]
    seconds: float
    config: Quadratic
    provenance: dict[str, Any]

    @property
    def log_z(self) -> float:
        return self.bound.log_z

    @property
    def rounding(self) -> float:
        return self.bound.rounding

    def summary(self) -> str:
        return (
            f"log Z <= {self.log_z:.6f} (quadratic elimination, {len(self.history) - 1} "
            f"iterations, {self.seconds:.3g} s)\n{self.status.value}"
        )

    def __repr__(self) -> str:
        return (
            f"QuadraticResult(log_z={self.log_z:.6f}, status={self.status.name}, "
            f"iterations={len(self.history) - 1}, seconds={self.seconds:.3g})"
        )


def quadratic(model: FactorGraph, config: Quadratic | None = None) -> QuadraticResult:
    """An upper bound on log Z of a model of two-state variables with factors of at most two."""
    started = time.perf_counter()
    config = config or Quadratic()
    run = Run(Spins.of(encode(model, multivalued=True)), config, started)
    with one_blas_thread():
        for _ in run.improvements():
            pass
        bound = run.judged(model)
    assert run.best is not None
    return QuadraticResult(
        bound=bound,
        status=run.status if math.isfinite(bound.log_z) else QuadraticStatus.OVERFLOW,
        history=np.array(run.best.history),
        order=run.best.order,
        seconds=time.perf_counter() - started,
        config=config,
        provenance=provenance(None, model.digest, method=config),
    )


def quadratic_bounds(encoding: SpinEncoding, config: Quadratic | None = None) -> Iterator[Bound]:
    """Judged bounds on the model of `encoding`, none above the one before; may be left at any time.

    The same bound comes again where none better was judged for a while.
    """
    assert isinstance(encoding.model, FactorGraph)
    started = time.perf_counter()
    run = Run(Spins.of(encoding), config or Quadratic(), started)
    bound: Bound | None = None
    free = shown = 0.0  # when the next judgement is due, when the bound was shown last
    steps = run.improvements()
    while True:
        with one_blas_thread():
            value = next(steps, None)
            if value is None:
                return
            begun = time.perf_counter()
            best = math.inf if bound is None else bound.log_z
            fresh = value < best - _WORTH and (begun >= free or run.ended)
            if fresh:
                found = run.judged(encoding.model)
                ended = time.perf_counter()
                # The first one also compares the spins with the model, once.
                free = ended + (ended - begun) * (1.0 if bound is None else 1.0 / _JUDGING)
                run.reserve = _RESERVED * (ended - begun)
                bound = found if found.log_z < best else bound
        if bound is not None and (fresh or begun - shown > _SILENT):
            shown = time.perf_counter()
            yield bound
