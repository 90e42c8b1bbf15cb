"""What `log_partition` returns: the interval, who proved each end, and how it got there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side, no_minus
from tightz.errors import ResourceError, StoreError
from tightz.interval.board import Quarantined
from tightz.interval.evidence import (
    Contradiction,
    EvidenceProbability,
    contradiction,
    log_z_of_network,
)
from tightz.models.factor_graph import FactorGraph
from tightz.models.names import Names
from tightz.results import ByVariable, Result
from tightz.runtime.clock import Clock
from tightz.runtime.seeds import Seed
from tightz.sampling.calibration import mixing_of
from tightz.sampling.ledger import Ledger
from tightz.shown import ASIDE, Members, Recorded
from tightz.workspace.findings import Mixing, PointEstimate

LEAST = 0.05
"""Seconds of a tree that draws need."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tightz.interval.pairs import Pairs
    from tightz.models.ends import Ends
    from tightz.models.pair_marginals import PairMarginal
    from tightz.workspace.findings import Samples


@dataclass(frozen=True, eq=False)
class Confident(Recorded):
    """An interval of which both ends hold together with probability `confidence`.

    At any stopping time: it may be read while it narrows, and the run stopped when it suffices.
    An end that is no better than the proven one is the proven one.

    marginal_bounds   one (states, 2) array per variable of the model: ends of its marginals, which
                      hold all together with the same confidence, beside those of log Z; None where
                      no marginals were asked for
    """

    lower_proof: Bound
    upper_proof: Bound
    confidence: float
    marginal_bounds: list[NDArray[np.float64]] | None = field(default=None, repr=False)
    _also = ("lower", "upper")

    @property
    def lower(self) -> float:
        return self.lower_proof.low

    @property
    def upper(self) -> float:
        return self.upper_proof.high

    @property
    def width(self) -> float:
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def reason(self) -> str:
        """With which confidence it holds, and whose draws carry each end."""
        proofs = (self.lower_proof, self.upper_proof)
        likely = [bound.proof is Proof.CONFIDENCE for bound in proofs]
        who = "no better than what holds always"
        if any(likely):
            who = _makers(*(
                bound.method if drawn else f"{bound.method} (holds always)"
                for bound, drawn in zip(proofs, likely, strict=True)
            ))  # fmt: skip
        return f"with confidence {self.confidence:g}, both ends: {who}"


@dataclass(frozen=True, eq=False, repr=False)
class LogPartition(ByVariable, Result):
    """An interval on log Z (natural log) with the proof of each end.

    lower, upper     the best proven ends, rounding included; `lower_proof` and `upper_proof` are
                     their records
    confident        the interval that holds with confidence 1 - delta, both ends together, at any
                     stopping time; inside [lower, upper]
    estimate         a point inside [lower, upper], labelled by `estimate_source`, and its error:
                     the truth lies within two of them in about 19 of 20 runs; the rounding where
                     it is exact, inf where nothing honest is known
    marginals        one probability vector per variable, from `marginal_source`; None where no
                     method gave any; `marginal_status` says how far to trust them
    marginal_bounds  one (states, 2) array per variable: lower and upper ends of its marginals that
                     hold always, [0, 1] where nothing is proven; `confident.marginal_bounds` are
                     narrower. The marginals lie inside both
    bounds           every record in the order it arrived, `seconds` since the start
    quarantined      bounds that the judge refused or that contradict what is proven, with the
                     reason: a defect, please report it. Nothing of them is in the answer
    ledger           all weights that were drawn, binned, and the bets on them behind `confident`
    compile_seconds  of `seconds`, those while kernels were compiled: the first run of a machine
    failures         streams that ended in an error; the answer rests on the others
    interrupted      whether Ctrl-C, `stop` or `on_bound` ended the run
    store_error      why the store lacks a part of this answer; None where it has all of it
    """

    lower_proof: Bound
    upper_proof: Bound
    confident: Confident
    estimate: float
    estimate_error: float
    estimate_source: str
    marginals: list[NDArray[np.float64]] | None
    marginal_bounds: list[NDArray[np.float64]] | None
    marginal_source: str
    marginal_status: Mixing | None
    bounds: list[Bound]
    notes: list[str]
    quarantined: list[Quarantined]
    failures: list[str]
    interrupted: bool
    seconds: float
    model: FactorGraph = field(metadata=ASIDE)
    compile_seconds: float = 0.0
    sampler: Callable[..., Samples] | None = field(metadata=ASIDE, default=None)
    ledger: Ledger | None = field(metadata=ASIDE, default=None)
    provenance: dict[str, Any] = field(default_factory=dict)
    store_error: StoreError | None = None
    _also = ("lower", "upper", "is_exact", *Result._also)

    def members(self) -> Members:
        told, confident = super().members(), self.confident.members()
        if confident["marginal_bounds"] is not None:
            ends = self.naming.by_variable(confident["marginal_bounds"])
            confident["marginal_bounds"] = ends
        return Members(
            {
                **told,
                "confident": confident,
                "evidence": self.naming.observed(self.model.evidence),
                "log_p_evidence": self.evidence,
                "contradiction": self.contradiction,
                "quarantined": [str(one) for one in self.quarantined],
            }
        )

    def brief(self) -> Members:
        """What is said about log Z, without bounds and marginals, for results that rest on it."""
        c = self.confident
        return Members(
            {
                "estimate": self.lower_proof.log_z if self.is_exact else self.estimate,
                "estimate_error": self.estimate_error,
                "lower": self.lower,
                "upper": self.upper,
                "confident_lower": c.lower,
                "confident_upper": c.upper,
                "is_exact": self.is_exact,
            }
        )

    @property
    def naming(self) -> Names:
        """Names of the model's variables and states."""
        return self.model.naming

    @property
    def lower(self) -> float:
        return self.lower_proof.low

    @property
    def upper(self) -> float:
        return self.upper_proof.high

    @property
    def width(self) -> float:
        """upper - lower: twice the rounding when exact, inf where an end is unknown."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    @property
    def is_exact(self) -> bool:
        return self.lower_proof.side is Side.BOTH

    def summary(self) -> str:
        """The answer in a few lines of text: one where it is exact, else the three statements."""
        if self.is_exact:
            proof = self.lower_proof
            value = _figure(proof.log_z, 8)
            lines = [f"log Z  = {value} +- {proof.rounding:.1g}   (exact: {proof.why})"]
            if self.lower == -math.inf:
                lines = ["log Z  = -inf   (the partition function is zero: no state has weight)"]
        else:
            lines = self.statements()
        if self.contradiction is not None:
            lines.append(self.contradiction.summary())
        elif self.evidence is not None:
            lines.append(self.evidence.summary())
        if self.marginals is not None and self.marginal_status is not Mixing.EXACT:
            lines.append(f"marginals: {self.marginal_origin}")
        if self.quarantined:
            lines += [f"DEFECT: {one}" for one in self.quarantined]
            lines.append("DEFECT: these bounds are not in the answer; please report them")
        lines += [f"note: {note}" for note in self.notes]
        tail = "interrupted after" if self.interrupted else "in"
        lines.append(f"{len(self.bounds)} bounds {tail} {self.seconds:.2f} s")
        if self.compile_seconds:
            lines[-1] += f", {self.compile_seconds:.0f} of them compiling, once on this machine"
        return "\n".join(lines)

    @cached_property
    def evidence(self) -> EvidenceProbability | None:
        """P(evidence) of a Bayesian network; None without evidence, and where Z is no constant 1.

        Whether the model is a network shows in its tables: without evidence the reductions sum
        every one of them to a constant.
        """
        prior = log_z_of_network(self.model)
        return None if prior is None else EvidenceProbability.of(self, *prior)

    @cached_property
    def contradiction(self) -> Contradiction | None:
        """Which observations no state agrees with, where P(evidence) = 0."""
        return contradiction(self.model) if self.upper == -math.inf else None

    def statements(self) -> list[str]:
        """What is said about log Z where it is not exact: always, with confidence, not proven."""
        c = self.confident
        rows = [
            (_between(self.lower, self.upper), f"width {self.width:.4g}", self._always()),
            (_between(c.lower, c.upper), f"width {c.width:.4g}", c.reason()),
            (
                f"log Z ~   {_figure(self.estimate)} +- {self.estimate_error:.2g}", "",
                f"not proven: {self.estimate_source}",
            ),
        ]  # fmt: skip
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        return [f"{a:<{first}}   {b:<{second}}   {c}" for a, b, c in rows]

    def _always(self) -> str:
        return f"holds always: {_makers(self.lower_proof.method, self.upper_proof.method)}"

    @property
    def marginal_origin(self) -> str:
        """Where the marginals come from and how far to trust them, in words."""
        if self.marginal_status is None or self.marginal_status is Mixing.EXACT:
            return self.marginal_source
        return f"{self.marginal_source} ({self.marginal_status.value})"

    def _marginal_ends(self) -> tuple[Ends, Ends] | None:
        likely = self.confident.marginal_bounds
        if self.marginal_bounds is None or likely is None:
            return None
        return self.marginal_bounds, likely

    def pair_marginal(
        self,
        variable: Any,
        other: Any,
        *,
        exact: bool = True,
        time_limit: float = 10.0,
        draws: int = 10_000,
        seed: Seed = 0,
    ) -> PairMarginal:
        """The joint distribution of two variables, given by name or number, with its ends.

        By sums where these take less than two thirds of `time_limit` seconds, unless `exact`
        forbids it; what is summed for one variable serves all its pairs. Elsewhere the weighted
        shares of up to `draws` states from `sample`, as many as the time is enough for, with their
        error, inside what the ends of both marginals say of them (Frechet).
        """
        names = self.naming
        i, j = names.index(variable), names.index(other)
        return self._pairs.pair(
            i, j, exact=exact, time_limit=time_limit, draws=draws, seed=seed
        )  # fmt: skip

    @cached_property
    def _pairs(self) -> Pairs:
        from tightz.interval.pairs import Pairs

        return Pairs(self)

    def sample(self, k: int, seed: Seed = None, *, time_limit: float = 60.0) -> Samples:
        """`k` states with log p~(x) - log q(x), their effective number and a status.

        The weights turn averages over the states into estimates under the model itself. The draws
        come from annealing where its runs agree, otherwise from the splitting tree's mixture;
        where the run had neither, from elimination (`tz.sample`) or, where that does not fit into
        `time_limit` seconds, from a tree of up to 5 s.
        """
        clock = Clock(time_limit)
        draw = self.sampler
        if draw is None:
            from tightz.sampling.ancestral import sample
            from tightz.splitting import Splitting, split

            try:
                drawn = sample(self.model, k, seed=seed, time_limit=0.5 * clock.left)
                return replace(drawn, naming=self.naming)
            except ResourceError:
                pass

            seconds = max(LEAST, min(5.0, 0.5 * clock.left))
            draw = split(self.model, Splitting(upper=False), time_limit=seconds, seed=seed).sample
        drawn = replace(draw(k, seed), naming=self.naming)
        if drawn.status is Mixing.VARIATIONAL and k > 1:
            point = PointEstimate(
                self.estimate, self.estimate_error, "", "exact" if self.is_exact else "result"
            )
            drawn = replace(drawn, status=mixing_of(drawn.log_weights, point))
        return drawn

    def plot(self, ax: Axes | None = None) -> Axes:
        """Both intervals narrowing over time, and the estimate; returns the axes."""
        from tightz.plots import plot_interval

        return plot_interval(self, ax=ax)

    def __repr__(self) -> str:
        if self.is_exact:
            log_z = self.lower_proof.log_z
            return f"LogPartition(log_z={_figure(log_z, 8)}, exact, {self.seconds:.2f} s)"
        c = self.confident
        return (
            f"LogPartition([{self.lower:.6f}, {self.upper:.6f}] always, [{c.lower:.6f}, "
            f"{c.upper:.6f}] with confidence {c.confidence:g}, {self.seconds:.2f} s)"
        )


def _figure(value: float, digits: int = 6) -> str:
    """A number with its decimals, unless it is so large that they would be noise."""
    decimals = abs(value) < 1e12 or math.isinf(value)
    return no_minus(f"{value:.{digits}f}" if decimals else f"{value:.17g}")


def _between(low: float, high: float) -> str:
    return f"log Z in [{_figure(low)}, {_figure(high)}]"


def _makers(lower: str, upper: str) -> str:
    """Who made the lower end, and who the upper; one name where it is the same."""
    return lower if lower == upper else f"{lower}; {upper}"
