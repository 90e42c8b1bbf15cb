"""Results in memory as report data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError
from tightz.reports.data import Assumption, LevelTable, ReportData, Statement, as_marginals
from tightz.reports.words import describe
from tightz.results import Result

if TYPE_CHECKING:
    from tightz.interval.interval import LogPartition
    from tightz.models.factor_graph import FactorGraph
    from tightz.paper.results import Estimate
    from tightz.paper.theorem_run import TheoremRun
    from tightz.paper.theorems import TheoremStatement
    from tightz.paper.wish import WishResult

SAYS = {
    "Theorem 1": "4 Z >= max over m of 2^m Median(gamma) >= Z / (32 (n + 1))",
    "Theorem 2": "the sum over i of 2^(i-1) Median(heaviest state) is within a factor 32 of Z",
}

Shape = tuple[int, int] | None


def from_result(
    result: Any, *, model: FactorGraph | None = None, shape: Shape = None
) -> ReportData:
    """Any result of this library: an interval, a table of trials, or a single bound."""
    from tightz.interval.interval import LogPartition
    from tightz.paper.results import Estimate
    from tightz.paper.theorem_run import TheoremRun
    from tightz.paper.wish import WishResult

    if isinstance(result, LogPartition):
        data = from_interval(result, shape=shape)
    elif isinstance(result, Estimate):
        data = from_estimate(result, model=model, shape=shape)
    elif isinstance(result, WishResult):
        data = from_wish(result)
    elif isinstance(result, TheoremRun):
        data = from_theorem(result, model=model, shape=shape)
    elif isinstance(result, Result) and result.bounds:
        data = from_bound(result, model=model, shape=shape)
    else:
        raise ParameterError(
            f"a report cannot be made from {type(result).__name__}; expected a result such as "
            "log_partition(...) or estimate(...) returns, or the path of a run store or JSON record"
        )
    model = model if model is not None else getattr(result, "model", None)
    return data if model is None else replace(data, title=model.name, model=describe(model))


def from_interval(result: LogPartition, *, shape: Shape = None) -> ReportData:
    return ReportData(
        title=result.model.name,
        method="log_partition",
        bounds=result.bounds,
        confident_lower=_random(result.confident.lower_proof),
        confident_upper=_random(result.confident.upper_proof),
        together=math.nan if result.is_exact else result.confident.confidence,
        estimate=result.estimate if math.isfinite(result.estimate_error) else None,
        estimate_error=result.estimate_error,
        estimate_source=result.estimate_source,
        marginals=as_marginals(
            result.marginals,
            result.marginal_origin,
            model=result.model,
            shape=shape,
            ends=result._marginal_ends(),
            confidence=result.confident.confidence,
        ),
        notes=[*(f"DEFECT: {one}" for one in result.quarantined), *result.notes],
        interrupted=result.interrupted,
        seconds=result.seconds,
        provenance=result.provenance,
    )


def _random(bound: Bound) -> Bound | None:
    """The end of a confident interval, where it is not one that holds always."""
    return bound if bound.proof is Proof.CONFIDENCE else None


def best_confident(bounds: Sequence[Bound], side: Side) -> Bound | None:
    """The best end of a certificate that may be read at any time."""
    found = [b for b in bounds if b.proof is Proof.CONFIDENCE and b.side is side]
    sign = 1.0 if side is Side.LOWER else -1.0
    return max(found, key=lambda b: sign * b.log_z, default=None)


def joint_confidence(bounds: Sequence[Bound]) -> float:
    """With which all certificates among `bounds` hold together; NaN where there is none.

    All ends of one certificate (one `why`, one confidence) share its probability of error; those
    of several certificates add up (union bound).
    """
    shares = {(b.why, b.confidence or 0.0) for b in bounds if b.proof is Proof.CONFIDENCE}
    return max(0.0, 1.0 - sum(1.0 - share for _, share in shares)) if shares else math.nan


def from_estimate(
    result: Estimate,
    *,
    delta: float = 0.05,
    certificate: Bound | None = None,
    model: FactorGraph | None = None,
    shape: Shape = None,
) -> ReportData:
    """A table of trials; `certificate` is one that is known already (a large table takes long)."""
    from tightz.families.projection import Status

    statements = [as_statement(result.theorem_1(delta), result.n, result.log_gammas.shape[1])]
    if (result.statuses == Status.OPTIMAL).any():
        statements.append(
            as_statement(result.theorem_2(delta), result.n, result.log_gammas.shape[1])
        )
    certificate = result.certificate(delta) if certificate is None else certificate
    held = [_upper_end(s, result.seconds) for s in statements if s.upper_holds]
    source = "the average of q over projections, weighted by 2^m gamma: an estimate"
    return ReportData(
        title="",
        method="estimate",
        bounds=[result.lower_proof, certificate, *held],
        confident_lower=certificate,
        confident_upper=held[-1] if held else None,
        estimate=result.log_z,
        estimate_source=f"{result.log_z_source}; best m = {result.best_level}",
        table=LevelTable(result.levels, result.log_g),
        statements=statements,
        marginals=as_marginals(
            result.marginals, source, model=model, shape=shape, names=result.naming
        ),
        seconds=result.seconds,
        provenance=result.provenance,
    )


def _upper_end(statement: Statement, seconds: float) -> Bound:
    """The upper half of a theorem whose assumptions held."""
    return Bound(
        Side.UPPER, statement.upper, Proof.CONFIDENCE, statement.theorem, seconds,
        statement.confidence, statement.says,
    )  # fmt: skip


def from_theorem(
    run: TheoremRun, *, model: FactorGraph | None = None, shape: Shape = None
) -> ReportData:
    """A run at the theorems' parameters, with the certificate that run itself states."""
    data = from_estimate(
        run.table, delta=run.delta, certificate=run.certificate, model=model, shape=shape
    )
    assert data.table is not None
    planned = run.planned[0] * run.planned[1]
    return replace(data, method="theorem", table=replace(data.table, planned=planned))


def from_wish(result: WishResult) -> ReportData:
    low, high = result.band
    scale = np.log(2.0) * result.levels[:, None]
    return ReportData(
        title="",
        method="wish",
        bounds=result.bounds,
        confident_lower=low,
        confident_upper=high,
        estimate=result.log_z,
        estimate_source="the sum of medians of Theorem 2",
        table=LevelTable(result.levels, result.log_maxima + scale, "log(2^m heaviest state)"),
        statements=[as_statement(result.statement, result.n, result.log_maxima.shape[1])],
        seconds=result.seconds,
        provenance=result.provenance,
    )


def from_bound(
    result: Result, *, model: FactorGraph | None = None, shape: Shape = None
) -> ReportData:
    """A result that is one bound (mean field, exact, an upper bound) or a short stream of them."""
    bounds = result.bounds
    last = bounds[-1]
    estimate = last.side is Side.ESTIMATE
    model = model if model is not None else getattr(result, "model", None)
    status = getattr(result, "status", None)
    return ReportData(
        title="",
        method=last.method,
        bounds=[b for b in bounds if b.side is not Side.ESTIMATE],
        confident_lower=best_confident(bounds, Side.LOWER),
        confident_upper=best_confident(bounds, Side.UPPER),
        estimate=last.log_z if estimate else None,
        estimate_error=float(getattr(result, "standard_error", math.nan)),
        estimate_source=last.method if estimate else "",
        marginals=as_marginals(
            getattr(result, "marginals", None),
            last.method,
            model=model,
            shape=shape,
            names=getattr(result, "naming", None),
        ),
        notes=[] if status is None else [status.value],
        seconds=result.seconds,
        provenance=dict(result.provenance),
    )


def as_statement(statement: TheoremStatement, n: int, trials: int) -> Statement:
    """A theorem's statement with its assumptions in words and numbers."""
    from tightz.paper.theorems import required_trials

    held = statement.assumptions
    share = (1.0 - statement.confidence) / (2.0 if statement.theorem == "Theorem 1" else 1.0)
    needed = required_trials(max(n, 1), share)
    return Statement(
        theorem=statement.theorem,
        says=SAYS[statement.theorem],
        lower=statement.lower,
        upper=statement.upper,
        lower_holds=statement.lower_holds,
        upper_holds=statement.upper_holds,
        confidence=statement.confidence,
        assumptions=(
            Assumption(
                f"at least {needed:,} trials at every level; this run has {trials:,}",
                held.enough_trials,
            ),
            Assumption(f"every level m = 0..{n} was run", held.all_levels),
            Assumption(
                "the parities keep states pairwise independently (strongly universal)",
                held.strongly_universal,
            ),
            Assumption("every I-projection is a proven global optimum", held.global_optima),
        ),
    )
