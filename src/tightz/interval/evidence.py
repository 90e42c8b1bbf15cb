"""P(evidence): how much of Z agrees with what is observed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightz.bounds import figure
from tightz.judge.verdict import UNIT
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.preparation import prepare
from tightz.workspace.working import LARGE

if TYPE_CHECKING:
    from tightz.interval.interval import LogPartition

LOG_10 = math.log(10.0)


@dataclass(frozen=True)
class EvidenceProbability:
    """log P(evidence) = log Z with it less log Z without: a value (an estimate unless the ends
    meet), and the ends that hold always."""

    log_p: float
    lower: float
    upper: float
    exact: bool

    @classmethod
    def of(cls, with_it: LogPartition, low: float, high: float) -> EvidenceProbability:
        """From the interval with the evidence and [low, high] for log Z without it."""
        value = with_it.lower_proof.log_z if with_it.is_exact else with_it.estimate
        if math.isinf(value) or math.isinf(low):
            return cls(value, with_it.lower, min(0.0, with_it.upper), with_it.is_exact)
        upper = min(0.0, _outward(with_it.upper, low, math.inf))
        log_p = min(0.0, value - (low + high) / 2.0)
        exact = with_it.is_exact and high - low < 1e-6
        return cls(log_p, _outward(with_it.lower, high, -math.inf), upper, exact)

    def summary(self) -> str:
        """P(evidence) and its log, and in which interval it lies."""
        if self.exact:
            return f"P(evidence) = {probability(self.log_p)}   (log {figure(self.log_p, 8)}, exact)"
        ends = f"[{probability(self.lower)}, {probability(self.upper)}]"
        logs = f"log in [{figure(self.lower)}, {figure(self.upper)}]"
        return (
            f"P(evidence) in {ends}   ({logs}, holds always; about {probability(self.log_p, 3)}, "
            "not proven)"
        )


def _outward(a: float, b: float, towards: float) -> float:
    """a - b, on the safe side of its rounding."""
    return math.nextafter(a - b, towards)


def probability(log_p: float, digits: int = 8) -> str:
    """exp(log_p) for people: as a power of ten where it is below what doubles hold."""
    if log_p == -math.inf:
        return "0"
    return f"{math.exp(log_p):.{digits}g}" if log_p > -700.0 else f"10^{log_p / LOG_10:.6f}"


def log_z_of_network(model: FactorGraph) -> tuple[float, float] | None:
    """The ends of log Z without evidence where the reductions alone find it to be 0, else None."""
    likely = model.evidence and model.log_tables.max(initial=0.0) <= 1e-9
    if not likely or model.n_factors > LARGE:
        return None
    reduced = prepare(model.without_evidence())
    if reduced.reduced.n_variables or reduced.contradiction:
        return None
    value = math.fsum(reduced.reduced.log_tables)
    error = reduced.rounding + UNIT * abs(value)
    return (value - error, value + error) if abs(value) < 1e-6 else None
