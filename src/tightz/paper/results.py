"""What MFRP returns: every value kept, aggregates computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ParameterError
from tightz.families.projection import Status
from tightz.models.names import Names, numbers_of
from tightz.models.pair_marginals import PairMarginal
from tightz.paper.theorems import (
    Assumptions,
    TheoremStatement,
    lower_median,
    required_trials,
    theorem_1,
    theorem_2,
)
from tightz.results import ByVariable, Result
from tightz.sampling.certificates import (
    anytime_certificate,
    mean_certificate,
    median_certificate,
    product_certificate,
)
from tightz.shown import ASIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_2 = math.log(2.0)


UNJUDGED = Bound(
    Side.LOWER, -math.inf, Proof.DETERMINISTIC, "best coset", 0.0, 1.0,
    "not judged: no session of this run has ended in order",
)  # fmt: skip


@dataclass(frozen=True)
class LevelSummary:
    """One level: log(2^m * aggregate of gamma) over its trials, natural log.

    median is the paper's estimate (lower median), mean the average in Theorem 1, best the largest.
    """

    m: int
    median: float
    mean: float
    best: float
    infeasible: int
    trials: int


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(ByVariable, Result):
    """The table of trials over levels and what follows from it.

    levels            (L,) numbers of parities m; those reached, where the first repetition was cut
    planned_levels    the levels fixed before the first trial, and the number of trials of each:
    planned_trials    what a certificate pays for, however early the run was stopped
    log_gammas        (L, T, J) log gamma of every restart; -inf where A x = b is infeasible
    marginals         (n, 2) average of q over projections, weighted by 2^m gamma
    marginal_spread   (n,) weighted standard deviation of P(state 1) between projections
    lower_proof       the deterministic bound in the table: the best coset's, as the judge finds it
    pair_marginals    (pairs, 2, 2) the same for the requested pairs; pair_spread their spread
    """

    levels: NDArray[np.int64]
    log_gammas: NDArray[np.float64]
    sweeps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    statuses: NDArray[np.object_]
    planned_levels: NDArray[np.int64]
    planned_trials: int
    n: int
    marginals: NDArray[np.float64]
    marginal_spread: NDArray[np.float64]
    pairs: NDArray[np.int64]
    pair_marginals: NDArray[np.float64]
    pair_spread: NDArray[np.float64]
    strongly_universal: bool
    seconds: float
    lower_proof: Bound = UNJUDGED
    provenance: dict[str, Any] = field(default_factory=dict)
    named: Names | None = field(metadata=ASIDE, default=None)
    _also = (
        "log_z",
        "log_z_source",
        "median",
        "best_level",
        "complete",
        "lower",
        "by_level",
        *Result._also,
    )

    @property
    def naming(self) -> Names:
        return self.named or numbers_of(self.marginals)

    @property
    def lower(self) -> float:
        """The best coset's part of log Z, which holds always."""
        return self.lower_proof.log_z

    @property
    def bounds(self) -> list[Bound]:
        """The bound that holds always, and the certificate at 95%."""
        return [self.lower_proof, self.certificate()]

    def _pair(self, i: int, j: int) -> PairMarginal:
        """Of the pairs that were asked for; their spread is no error, and nothing is proven."""
        for (a, b), table in zip(self.pairs.tolist(), self.pair_marginals, strict=True):
            if (i, j) in ((a, b), (b, a)):
                ends = np.tile([0.0, 1.0], (2, 2, 1))
                return PairMarginal(
                    (i, j), table if (i, j) == (a, b) else table.T, ends, ends, 0.0,
                    "the average of q over projections, weighted by 2^m gamma", self.naming,
                )  # fmt: skip
        raise ParameterError(
            f"{self.naming.said(i)} and {self.naming.said(j)} are no pair that was asked for; give "
            f"tz.estimate(model, projections=tz.Projections(pairs=[({i}, {j})])), or ask "
            "tz.log_partition(model), which knows any two"
        )

    @property
    def complete(self) -> bool:
        """Whether every planned trial was made."""
        return self.log_gammas.shape[:2] == (len(self.planned_levels), self.planned_trials)

    @property
    def log_gamma(self) -> NDArray[np.float64]:
        """(L, T) the best restart of each trial."""
        return self.log_gammas.max(axis=2)

    @property
    def log_g(self) -> NDArray[np.float64]:
        """(L, T) log(2^m gamma): each has expectation at most Z on the ordinary scale."""
        return self.log_gamma + self.levels[:, None] * LOG_2

    @property
    def by_level(self) -> list[LevelSummary]:
        """Aggregates of each level, in the order of `levels`."""
        from scipy.special import logsumexp

        out: list[LevelSummary] = []
        for m, row in zip(self.levels.tolist(), self.log_g, strict=True):
            mean = float(logsumexp(row) - math.log(row.size)) if row.max() > -np.inf else -math.inf
            out.append(
                LevelSummary(
                    m=m,
                    median=float(lower_median(row)),
                    mean=mean,
                    best=float(row.max()),
                    infeasible=int((self.statuses[len(out)] == Status.INFEASIBLE).sum()),
                    trials=row.size,
                )
            )
        return out

    @cached_property
    def log_z(self) -> float:
        """The estimate: `median`, or what the same trials prove or certify at 95% where it is more.

        A selection over m, not a bound.
        """
        return max(self.median, self.lower, self.certificate().log_z)

    @property
    def median(self) -> float:
        """The paper's estimate as printed: max over m of 2^m Median(gamma)."""
        return float(lower_median(self.log_g).max())

    @property
    def log_z_source(self) -> str:
        """What `log_z` is, in words."""
        if self.log_z > self.median:
            return "max over m of the median, raised to the bounds below; not a bound"
        return "max over m of the median; not a bound"

    @property
    def best_level(self) -> int:
        """The m with the largest median."""
        return int(self.levels[np.argmax(lower_median(self.log_g))])

    @property
    def updates(self) -> int:
        """Coordinate steps made in all, the unit of equal-work comparisons."""
        return int((self.sweeps * (self.n - self.ranks)).sum())

    @property
    def trials(self) -> Iterator[tuple[int, int, int, float]]:
        """(level, trial, restart, log gamma) for every ascent."""
        for i, m in enumerate(self.levels.tolist()):
            for t in range(self.log_gammas.shape[1]):
                for j in range(self.log_gammas.shape[2]):
                    yield m, t, j, float(self.log_gammas[i, t, j])

    def certificate(self, delta: float = 0.05, *, kind: str = "anytime") -> Bound:
        """A lower bound on log Z that holds with probability 1 - delta, selection over m paid for.

        `kind`: "anytime" (a mixture of bets), or the classical "mean", "median" and "product", each
        at its best level with delta split over the planned levels. Every kind holds for a run that
        was stopped, whatever made one stop. The kind must be chosen before looking at the values:
        to take the best of all four, take each at delta / 4.
        """
        table, levels = self.log_g, len(self.planned_levels)
        classical: dict[str, Callable[..., float]] = {
            "mean": mean_certificate,
            "median": partial(median_certificate, planned_trials=self.planned_trials),
            "product": product_certificate,
        }
        if kind == "anytime":
            value = -math.inf  # where none of the levels bet on was reached
            if table.size:
                value = anytime_certificate(table, delta, planned_levels=levels)
            why = "a mixture of bets over stakes and levels reached 1/delta (Ville's inequality)"
        elif kind in classical:
            value = max((classical[kind](row, delta / levels) for row in table), default=-math.inf)
            why = f"the {kind} of 2^m gamma at the best level, delta split over {levels} levels"
        else:
            raise ParameterError(
                f"certificate kind is {kind!r}; expected 'anytime', 'mean', 'median' or 'product'"
            )
        return Bound(
            Side.LOWER, value, Proof.CONFIDENCE, f"projections ({kind})", self.seconds,
            1.0 - delta, why,
        )  # fmt: skip

    def assumptions(self, delta: float = 0.05) -> Assumptions:
        """Which of the theorems' assumptions this run meets."""
        proven = (
            (self.statuses == Status.OPTIMAL)
            | (self.statuses == Status.INFEASIBLE)
            | (self.ranks == self.n)
        )
        return Assumptions(
            # T is fixed in advance: a run stopped at a moment of one's choice has another law
            enough_trials=self.complete
            and self.planned_trials >= required_trials(max(self.n, 1), delta),
            all_levels=set(self.levels.tolist()) == set(range(self.n + 1)),
            strongly_universal=self.strongly_universal,
            global_optima=bool(proven.all()),
        )

    def theorem_1(self, delta: float = 0.05) -> TheoremStatement:
        """Theorem 1 for this table, with the assumptions that held."""
        return theorem_1(
            self.levels, self.log_gamma, self.n, delta=delta, assumptions=self.assumptions(delta)
        )

    def theorem_2(self, delta: float = 0.05) -> TheoremStatement:
        """Theorem 2 for this table: meaningful when the family is PointMass."""
        if not bool((self.statuses == Status.OPTIMAL).any()):
            raise ParameterError(
                "no trial found a proven heaviest state, which Theorem 2 speaks of; run "
                "tz.estimate(model, family=tz.PointMass()) or tz.wish(model)"
            )
        return theorem_2(
            self.levels, self.log_gamma, delta=delta, assumptions=self.assumptions(delta)
        )

    def summary(self) -> str:
        """A table of levels and the statements that follow, as text."""
        lines = [f"{'m':>4} {'median':>14} {'mean':>14} {'best':>14} {'infeasible':>11}"]
        for row in self.by_level:
            lines.append(
                f"{row.m:>4} {row.median:>14.4f} {row.mean:>14.4f} {row.best:>14.4f} "
                f"{row.infeasible:>5}/{row.trials}"
            )
        certificate = self.certificate(0.05)
        lines += [
            f"estimate  log Z ~ {self.log_z:.4f}  ({self.log_z_source})",
            f"lower     log Z >= {self.lower:.4f}  (holds always)",
            f"lower     log Z >= {certificate.log_z:.4f}  (with confidence 0.95)",
        ]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Every trial and the median against m; returns the axes."""
        from tightz.plots import plot_levels

        return plot_levels(self, ax=ax)

    def __repr__(self) -> str:
        return (
            f"Estimate(log_z={self.log_z:.6f} at m={self.best_level}, "
            f"levels={len(self.levels)}, trials={self.log_gammas.shape[1]}, "
            f"restarts={self.log_gammas.shape[2]})"
        )
