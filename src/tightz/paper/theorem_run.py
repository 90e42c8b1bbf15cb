"""The theorems' own parameters as one run: T trials at every level from 0 to n."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.bounds import Bound
from tightz.families.projection import Family, Status
from tightz.models.given import ModelOrPath, given_model
from tightz.paper.estimate import run_setup
from tightz.paper.forecast import Forecast, forecast
from tightz.paper.results import Estimate
from tightz.paper.setup import Projections, Setup, Where, set_up
from tightz.paper.stored import Store, opened, table_identity
from tightz.paper.theorems import TheoremStatement, required_trials
from tightz.paper.trials import TrialBatch
from tightz.reductions.encoding import Model
from tightz.results import Result
from tightz.runtime.backends import Backend
from tightz.runtime.executors import Submits, require_executor
from tightz.runtime.seeds import Seed, seed_sequence
from tightz.shown import Members

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CERTIFIED_LEVELS = 20
"""The certificate bets on levels up to here, fixed before any trial: each level is paid for, and
few states survive beyond."""


@dataclass(frozen=True, eq=False, repr=False)
class TheoremRun(Result):
    """What a run at the theorems' parameters says.

    table         the trials; cut to whole repetitions where the run was interrupted
    planned       (levels, trials) that were asked for; `complete` tells whether all were made
    theorem_1     the interval of Theorem 1 and which of its assumptions held
    theorem_2     the same for Theorem 2; None where no state was proven heaviest in its coset
    certificate   the anytime lower bound at 1 - delta, which needs none of the assumptions
    """

    table: Estimate
    delta: float
    planned: tuple[int, int]
    theorem_1: TheoremStatement
    theorem_2: TheoremStatement | None
    certificate: Bound
    _also = ("complete", "log_z", "lower", "lower_proof", *Result._also)

    def members(self) -> Members:
        told = super().members()
        table = told.pop("table")  # a million trials: in a store
        return Members(
            {**told, "n": table.n, "best_level": table.best_level, "by_level": table.by_level}
        )

    @property
    def complete(self) -> bool:
        return self.table.log_gammas.shape[:2] == self.planned

    @property
    def log_z(self) -> float:
        """That of the table (`Estimate.log_z`)."""
        return self.table.log_z

    @property
    def lower(self) -> float:
        """The best coset's part of log Z, which holds always."""
        return self.table.lower

    @property
    def lower_proof(self) -> Bound:
        return self.table.lower_proof

    @property
    def bounds(self) -> list[Bound]:
        """What holds always, the certificate, and the ends of the theorems that are established."""
        told = [self.theorem_1, *([] if self.theorem_2 is None else [self.theorem_2])]
        ends = [end for statement in told for end in statement.bounds(self.seconds)]
        return [self.lower_proof, self.certificate, *ends]

    @property
    def seconds(self) -> float:
        return self.table.seconds

    @property
    def provenance(self) -> dict[str, Any]:
        return self.table.provenance

    def summary(self) -> str:
        """The statements as text."""
        e, (levels, trials) = self.table, self.planned
        made = "" if self.complete else f" of {trials} trials at {levels} levels planned"
        second = "Theorem 2: not stated; it speaks of heaviest states (family=tz.PointMass())"
        return "\n".join(
            [
                f"{e.log_gammas.shape[1]} trials at {len(e.levels)} levels{made}, n = {e.n}, "
                f"{e.log_gammas.shape[2]} restarts, {e.seconds:.1f} s",
                self.theorem_1.summary(),
                second if self.theorem_2 is None else self.theorem_2.summary(),
                f"estimate     log Z ~  {e.log_z:.4f}   (best m = {e.best_level}; "
                f"{e.log_z_source})",
                f"certificate  log Z >= {self.certificate.log_z:.4f}   (with confidence "
                f"{self.certificate.confidence:g}; no assumption)",
                f"lower        log Z >= {self.lower:.4f}   (holds always: {self.lower_proof.why})",
            ]
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Every trial and the median against m; returns the axes."""
        return self.table.plot(ax)

    def __repr__(self) -> str:
        return (
            f"TheoremRun(n={self.table.n}, delta={self.delta:g}, "
            f"{'complete' if self.complete else 'partial'}, "
            f"certificate={self.certificate.log_z:.6f})"
        )


def theorem_run(
    model: ModelOrPath,
    *,
    delta: float = 0.05,
    levels: Sequence[int] | None = None,
    trials: int | None = None,
    family: Family | None = None,
    projections: Projections | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
    store: Store | None = None,
    resume: bool = False,
    on_forecast: Callable[[Forecast], None] | None = None,
    on_batch: Callable[[TrialBatch], None] | None = None,
) -> TheoremRun:
    """Theorems 1 and 2 with their own T = ln(n / delta) / 0.0042 trials at every level 0..n.

    levels, trials   default all levels and the theorem's T; fewer leave it unestablished, said so
    family           default MeanField(restarts); Theorem 2 wants PointMass or ExactPointMass
    projections      default Projections.as_printed(): n is the model's own, and starts and pivots
                     are Algorithm 1's. A collapsed model has the same Z over fewer spins, so the
                     theorems hold for it with its smaller n; a search for heavy states tightens
                     every trial and changes no statement
    store, resume    as in `estimate`: an interrupted run is taken up where it stopped
    on_forecast      called once with the cost, measured by a short pilot before the run
    on_batch         called with each TrialBatch, in a fixed order, stored ones included

    Ctrl-C returns the statements of the whole repetitions made so far. The certificate bets on
    levels 0..20 only, a choice made before any trial.
    """
    model = given_model(model, "theorem_run")
    require_executor(executor)
    start = time.perf_counter()
    kept, root = None, seed_sequence(seed)
    if store is not None:
        kept, root = opened(store, seed, resume)
        kept = replace(kept, kind="theorem", detail={**kept.detail, "delta": delta})
    setup = _plan(model, delta, levels, trials, family, projections, root)
    if kept is not None:
        kept.check(resume, table_identity(setup))
    where = Where(executor, threads, backend)
    if on_forecast is not None:
        on_forecast(forecast(setup, where))
    e = run_setup(
        setup,
        where,
        on_batch=on_batch,
        store=kept,
        resume=resume,
        partial=True,
        start=start,
    )
    return statements(e, delta, planned=(len(setup.levels), setup.trials))


def theorem_forecast(
    model: ModelOrPath,
    *,
    delta: float = 0.05,
    levels: Sequence[int] | None = None,
    trials: int | None = None,
    family: Family | None = None,
    projections: Projections | None = None,
    seed: Seed = None,
    executor: Submits | None = None,
    threads: int | None = None,
    backend: Backend = "auto",
) -> Forecast:
    """What `theorem_run` with the same arguments would cost, by a pilot of a few seconds."""
    model = given_model(model, "theorem_forecast")
    root = seed_sequence(seed)
    setup = _plan(model, delta, levels, trials, family, projections, root)
    return forecast(setup, Where(executor, threads, backend))


def statements(e: Estimate, delta: float, planned: tuple[int, int]) -> TheoremRun:
    """What a table of trials says, complete or not."""
    # by the planned levels: which are bet on must not depend on how far the run came
    highest = max(CERTIFIED_LEVELS, int(e.planned_levels.min()))
    few = e.levels <= highest
    betted = replace(
        e,
        levels=e.levels[few],
        log_gammas=e.log_gammas[few],
        planned_levels=e.planned_levels[e.planned_levels <= highest],
    )
    heaviest = bool((e.statuses == Status.OPTIMAL).any())
    return TheoremRun(
        table=e,
        delta=delta,
        planned=planned,
        theorem_1=e.theorem_1(delta),
        theorem_2=e.theorem_2(delta) if heaviest else None,
        certificate=betted.certificate(delta),
    )


def _plan(
    model: Model,
    delta: float,
    levels: Sequence[int] | None,
    trials: int | None,
    family: Family | None,
    projections: Projections | None,
    root: np.random.SeedSequence,
) -> Setup:
    """All levels of the working model and the theorem's T for it, unless told otherwise."""
    first = set_up(
        model,
        levels=[0],
        trials=1,
        family=family,
        projections=projections or Projections.as_printed(),
        seed=root,
    )
    n = first.plan.polynomial.n
    needed = required_trials(max(n, 1), delta)
    return first.with_trials(
        range(n + 1) if levels is None else levels, needed if trials is None else trials
    )
