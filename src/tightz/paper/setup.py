"""From the arguments of an estimate to the plan of its trials."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ParameterError, require_range
from tightz.families.block import family_for
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import integer_array, whole
from tightz.paper.batches import TrialTable
from tightz.paper.trials import TrialPlan, batch_size
from tightz.projections.coset import check_level
from tightz.projections.hashing import DenseParity, FirstColumns, HashFamily, PivotPolicy
from tightz.reductions.collapse import Collapsed
from tightz.reductions.encoding import Model, SpinEncoding, model_digest
from tightz.runtime.backends import Backend
from tightz.runtime.executors import Submits
from tightz.workspace.workspace import Auto, Workspace


@dataclass(frozen=True, eq=False)
class Projections:
    """How random projections are drawn, and what is done to tighten them.

    restarts        starts per projection (J) of the default family
    hashing         how parities are drawn
    pivots          which spins are constrained; default the least reliable ones where a search was
                    made (Reliability), else FirstColumns()
    collapse        sum out exactly every spin with at most this many neighbours first; None picks
                    by cost, 0 switches it off. n, cosets and the theory then speak of the
                    collapsed model; log Z and the marginals are the model's own (variables of
                    more than two states: their bits are then taken as independent)
    search_sweeps   parallel-tempering sweeps that look for starts; None picks by cost, 0 is off.
                    With a search, mean field also tries annealed starts and, in every coset, a
                    second basis whose constrained spins are the weakest of the solution so far
    pairs           rows (i, j) of model variables whose joint marginals are wanted (collapse is
                    then off unless given, in which case the pair must survive it)

    `Projections.as_printed()` is the paper's Algorithm 1: no collapse, no search.
    """

    restarts: int = 8
    hashing: HashFamily = field(default_factory=DenseParity)
    pivots: PivotPolicy | None = None
    collapse: int | None = None
    search_sweeps: int | None = None
    pairs: ArrayLike | None = None

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 1)

    @classmethod
    def as_printed(cls, *, restarts: int = 8) -> Projections:
        """Algorithm 1: fair-coin parities, leading variables constrained, random starts."""
        return cls(restarts=restarts, collapse=0, search_sweeps=0)


class Where(NamedTuple):
    """Where trials run: `executor`, `threads` and `backend` as every function takes them."""

    executor: Submits | None = None
    threads: int | None = None
    backend: Backend = "auto"

    @property
    def record(self) -> dict[str, object]:
        """The same for a store."""
        name = None if self.executor is None else type(self.executor).__name__
        return {"threads": self.threads, "executor": name, "backend": self.backend}


DEFAULT_LEVELS = 20
"""The paper's experiments run m = 0..20."""


@dataclass(frozen=True, eq=False)
class Setup:
    """A run's plan, its levels and trials, and the parameters that name it.

    pairs        rows of model variables whose joint marginals are wanted; `spin_pairs` are the
                 encoded model's spins behind them
    parameters   what the numbers depend on, besides the model and the seed
    """

    model: Model
    work: Workspace
    plan: TrialPlan
    levels: list[int]
    trials: int
    pairs: NDArray[np.int64]
    spin_pairs: NDArray[np.int64]
    parameters: dict[str, Any]

    @property
    def batch(self) -> int:
        """Trials that are computed, and committed to a store, together."""
        return batch_size(self.plan, self.levels, self.trials)

    @property
    def spins_are_variables(self) -> bool:
        """Whether the averages of the table are of the model's variables, one spin each."""
        n = self.model.n_variables if isinstance(self.model, FactorGraph) else self.model.n
        return self.work.encoding.products.are_spins(n)

    def with_trials(self, levels: Sequence[int], trials: int) -> Setup:
        """The same plan for other levels and numbers of trials."""
        require_range("trials", trials, 1)
        chosen = _checked_levels(levels, self.plan.polynomial.n)
        parameters = {**self.parameters, "levels": chosen, "trials": trials}
        return replace(self, levels=chosen, trials=trials, parameters=parameters)

    @cached_property
    def digest(self) -> str:
        """The model's identity."""
        return model_digest(self.model)

    def empty_table(self) -> TrialTable:
        """A table with a place for every trial of the run."""
        return TrialTable(
            self.levels,
            self.trials,
            self.plan.family.restarts,
            spins=self.work.encoding.products.signs.size,
            pairs=len(self.plan.pairs),
        )


def set_up(
    model: Model,
    *,
    levels: Sequence[int] | None,
    trials: int,
    family: Family | None,
    projections: Projections,
    seed: np.random.SeedSequence,
) -> Setup:
    """Check the arguments of `estimate`, collapse, search, and lay out the plan.

    The default family is mean field, one table per variable of several bits.
    """
    require_range("trials", trials, 1)
    pairs, collapse, hashing = projections.pairs, projections.collapse, projections.hashing
    levels = None if levels is None else _whole_levels(levels)
    automatic = Auto(at_least=max(levels or (), default=0)) if pairs is None else 0
    work = Workspace.build(
        model,
        seed=seed,
        collapse=automatic if collapse is None else collapse,
        search_sweeps=projections.search_sweeps,
    )
    chosen = _checked_levels(levels, work.polynomial.n)
    spin_pairs = _spin_pairs(work.encoding, pairs)
    policy = work.pivots(projections.pivots)
    if family is None:
        family = family_for(work.polynomial, restarts=projections.restarts)
    plan = TrialPlan(
        polynomial=work.polynomial,
        family=family,
        hashing=hashing,
        pivots=policy,
        seed=seed,
        pairs=_kept_pairs(spin_pairs, work.collapsed),
        states=work.states,
        collapsed=work.collapsed,
        polish=work.guide is not None and isinstance(family, MeanField),
        products=work.encoding.products,
    )
    parameters = {
        "levels": chosen,
        "trials": trials,
        "family": family,
        "hashing": hashing,
        "pivots": _policy_record(policy, work.polynomial.n, projections.pivots is not None),
        "collapse": work.k,
        "search_sweeps": work.search_sweeps,
    }
    named = np.asarray(pairs if pairs is not None else np.zeros((0, 2)), dtype=np.int64)
    return Setup(model, work, plan, chosen, trials, named, spin_pairs, parameters)


def _policy_record(policy: PivotPolicy, n: int, chosen: bool) -> str:
    """A pivot policy by name; one that the caller chose also by the order it makes."""
    name = type(policy).__name__
    if not chosen or isinstance(policy, FirstColumns):
        return name
    order = np.ascontiguousarray(policy.order(n), dtype=np.int64)
    return f"{name} {hashlib.sha256(order.tobytes()).hexdigest()[:16]}"


def _kept_pairs(pairs: NDArray[np.int64], collapsed: Collapsed | None) -> NDArray[np.int64]:
    """Pairs of the model's spins as spins of the working polynomial."""
    if collapsed is None:
        return pairs
    number = np.full(collapsed.original.n, -1, dtype=np.int64)
    number[collapsed.kept] = np.arange(collapsed.kept.size)
    if (number[pairs] < 0).any():
        i, j = pairs[(number[pairs] < 0).any(axis=1)][0]
        raise ParameterError(
            f"pair ({i}, {j}): one of these spins was summed out; use collapse=0 with pairs"
        )
    return number[pairs]


def _checked_levels(levels: Sequence[int] | None, n: int) -> list[int]:
    if levels is None:
        return list(range(min(DEFAULT_LEVELS, n) + 1))
    chosen = [check_level(m, n) for m in _whole_levels(levels)]
    if not chosen or len(set(chosen)) != len(chosen):
        raise ParameterError(f"levels are {chosen}; expected distinct numbers of parities")
    return chosen


def _whole_levels(levels: Sequence[int]) -> list[int]:
    listed = isinstance(levels, Iterable) and not isinstance(levels, str)
    chosen = [whole(m) for m in levels] if listed else [None]
    if None in chosen:
        raise ParameterError(
            f"levels are {levels!r}; expected a list of whole numbers, such as [0, 5, 10]"
        )
    return [m for m in chosen if m is not None]


def _spin_pairs(encoding: SpinEncoding, pairs: ArrayLike | None) -> NDArray[np.int64]:
    """Model variables -> spins; only unobserved binary variables have exactly one."""
    if pairs is None:
        return np.zeros((0, 2), dtype=np.int64)
    rows = integer_array(pairs, "pairs").reshape(-1, 2)
    named, first, spins = np.unique(encoding.variables, return_index=True, return_counts=True)
    spin_of = dict(zip(named[spins == 1].tolist(), first[spins == 1].tolist(), strict=True))
    for i, j in rows.tolist():
        if i not in spin_of or j not in spin_of or i == j:
            raise ParameterError(
                f"pair ({i}, {j}): expected two different unobserved binary variables of the model"
            )
    return np.array([[spin_of[i], spin_of[j]] for i, j in rows.tolist()]).reshape(-1, 2)
