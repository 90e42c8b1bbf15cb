"""Every public method that states a bound, as functions of (model, seed) that return its claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import tightz as tz
from tightz.families.clustered import ClusterMeanField, cluster_labels
from tightz.interval.streams.cutset_sum import CutsetSum
from tightz.runtime.clock import Clock
from tightz.search.feasible import Feasibility, feasible_state
from tightz.uppers.tree_reweighted import TreeReweightedStatus

BARE: dict[str, Any] = {"projections": tz.Projections.as_printed(restarts=1), "threads": 1}


class Claim(NamedTuple):
    """One number and its side (lower, upper, both).

    `rounding` above zero says that the number was already moved outward (side both: that log Z
    lies within it), so no further allowance is made; 0 says nothing was declared.
    """

    side: str
    value: float
    rounding: float = 0.0


@dataclass(frozen=True)
class Answer:
    """What a method said: its claims, marginals where it calls them exact, what it got wrong
    whatever the truth is (an interval the wrong way round, a quarantined bound), and ends of
    marginals that hold always."""

    claims: list[Claim]
    marginals: list[NDArray[np.float64]] | None = None
    complaints: list[str] = field(default_factory=list)
    ends: list[NDArray[np.float64]] | None = None


Method = Callable[[tz.FactorGraph, int], Answer]


def claimed(bounds: Iterable[tz.Bound]) -> list[Claim]:
    """The records that hold always, as claims."""
    return [
        Claim(b.side.value, b.log_z, getattr(b, "rounding", 0.0))
        for b in bounds
        if b.proof is tz.Proof.DETERMINISTIC
    ]


def inverted(lower: float, upper: float) -> list[str]:
    return [f"lower {lower!r} exceeds upper {upper!r}"] if lower > upper else []


def mean_field(model: tz.FactorGraph, seed: int) -> Answer:
    return Answer(claimed([tz.mean_field(model, family=tz.MeanField(restarts=2), seed=seed).bound]))


def structured(model: tz.FactorGraph, seed: int) -> Answer:
    family = tz.StructuredMeanField(width=2, restarts=1)
    e = tz.estimate(model, levels=[0], trials=1, family=family, seed=seed, **BARE)
    return Answer(claimed([e.lower_proof]))


def collapsed(model: tz.FactorGraph, seed: int) -> Answer:
    e = tz.estimate(
        model,
        projections=tz.Projections(collapse=2, search_sweeps=0),
        levels=[0],
        trials=1,
        seed=seed,
        threads=1,
    )
    return Answer(claimed([e.lower_proof]))


def coset_sum(model: tz.FactorGraph, seed: int) -> Answer:
    m = 1 + seed % 3
    return Answer(
        claimed(
            [
                tz.coset_sum(
                    model, m, projections=tz.Projections.as_printed(), seed=seed, threads=1
                ).bound
            ]
        )
    )


def layer(model: tz.FactorGraph, seed: int) -> Answer:
    return Answer(
        claimed([tz.mean_field(model, family=tz.LayerMeanField(restarts=2), seed=seed).bound])
    )


def block(model: tz.FactorGraph, seed: int) -> Answer:
    free = model.condition()
    found = feasible_state(free, seed=seed)
    if found.status is Feasibility.IMPOSSIBLE:  # a search that proves Z = 0 is a claim too
        return Answer([Claim("both", -math.inf)])
    if found.state is None:
        raise tz.errors.UnsupportedModelError(
            "block mean field starts from a state of positive weight"
        )
    states = found.state[None, :]
    return Answer(
        claimed([tz.mean_field(free, family=tz.BlockMeanField(), states=states, seed=seed).bound])
    )


def splitting(model: tz.FactorGraph, seed: int) -> Answer:
    tree = tz.split(model, tz.Splitting(max_splits=seed % 5), seed=seed, threads=1)
    ends = [Claim("lower", tree.lower), Claim("upper", tree.upper)]
    return Answer(ends + claimed(tree.history), complaints=inverted(tree.lower, tree.upper))


def tree_reweighted(model: tz.FactorGraph, seed: int) -> Answer:
    return _tree_reweighted(model, tz.TreeReweighted(max_iterations=1 + seed % 12))


def damped_tree_reweighted(model: tz.FactorGraph, seed: int) -> Answer:
    """Damping slows messages: what is exact on a tree after one undamped sweep is not."""
    damping = (0.0, 0.1, 0.5, 0.9)[seed % 4]
    return _tree_reweighted(model, tz.TreeReweighted(max_iterations=1 + seed % 5, damping=damping))


def _tree_reweighted(model: tz.FactorGraph, config: tz.TreeReweighted) -> Answer:
    r = tz.upper_bound(model, method=config)
    exact = [Claim("both", r.log_z, r.rounding)] if r.status is TreeReweightedStatus.EXACT else []
    return Answer(claimed([r.bound]) + exact)


def mini_bucket(model: tz.FactorGraph, seed: int) -> Answer:
    claims = []
    for side in (tz.Side.UPPER, tz.Side.LOWER):
        config = tz.MiniBucket(ibound=1 + seed % 3, iterations=seed % 4, side=side)
        claims += claimed([tz.upper_bound(model, method=config).bound])
    lower = max((c.value for c in claims if c.side != "upper"), default=-math.inf)
    upper = min((c.value for c in claims if c.side != "lower"), default=math.inf)
    same = all(c.side == "both" for c in claims)  # exact twice, by orders of their own
    return Answer(claims, complaints=[] if same else inverted(lower, upper))


def quadratic(model: tz.FactorGraph, seed: int) -> Answer:
    config = tz.Quadratic(tail=seed % 5, iterations=seed % 7)
    return Answer(claimed([tz.upper_bound(model, method=config).bound]))


def exact(model: tz.FactorGraph, seed: int) -> Answer:
    return _exact(model, "1GB")


def sliced(model: tz.FactorGraph, seed: int) -> Answer:
    """Exact with so little memory that variables have to be held and looped over."""
    return _exact(model, 2000)


def _exact(model: tz.FactorGraph, max_memory: str | int) -> Answer:
    r = tz.exact(model, max_memory=max_memory)
    marginals = None
    if r.log_z > -math.inf:
        try:
            marginals = r.marginals
        except tz.errors.ModelError as error:  # refused where log weights are too large for any
            if "no digits" not in str(error):
                raise
    return Answer(claimed([r.bound]), marginals, ends=marginals and r.marginal_bounds)


def bethe(model: tz.FactorGraph, seed: int) -> Answer:
    """Stopped after one sweep, after two, and at the end: a proof needs no convergence."""
    r = tz.bethe(model, max_iterations=(1, 1, 2, 300)[seed % 4], damping=(0.0, 0.5)[seed // 4 % 2])
    return Answer(claimed([r.bound]))


def clustered(model: tz.FactorGraph, seed: int) -> Answer:
    free = model.condition()
    rng = np.random.default_rng(seed)
    labels = cluster_labels(free, (1.0, 3.0, 6.0, 9.0)[seed % 4])
    starts = [rng.dirichlet(np.ones(int(c))) for c in free.cardinalities]
    sweeps = ClusterMeanField(free, labels, starts).bounds(Clock(60.0))
    return Answer(claimed(itertools.islice(sweeps, 1 + seed % 6)))


def cutset_sum(model: tz.FactorGraph, seed: int) -> Answer:
    free = model.condition()
    state = feasible_state(free, seed=seed).state
    if state is None or not free.n_variables:
        raise tz.errors.UnsupportedModelError("cutset sums start from a state of positive weight")
    run = CutsetSum(free, state, np.random.default_rng(seed), Clock(60.0), 2**20)
    first = list(itertools.islice(run.burn_in(), 4))
    return Answer(claimed([*first, *itertools.islice(run.sums((1 + seed % 4,)), 4)]))


def portfolio(model: tz.FactorGraph, seed: int) -> Answer:
    r = tz.log_partition(model, time_limit=0.2, exact=bool(seed % 2), seed=seed)
    complaints = inverted(r.lower, r.upper)
    complaints += [f"quarantined: {one}" for one in r.quarantined]
    complaints += r.failures  # a stream that died is a crash, though the answer survives it
    if math.isnan(r.estimate) or not r.lower <= r.estimate <= r.upper:
        complaints.append(f"estimate {r.estimate!r} outside [{r.lower!r}, {r.upper!r}]")
    ends = claimed([r.lower_proof, r.upper_proof, *r.bounds])
    sure = r.marginals if r.marginal_source == "exact" and r.lower > -math.inf else None
    if r.marginals is not None and r.lower > -math.inf:
        for kind in (r.marginal_bounds, r.confident.marginal_bounds):
            pairs = zip(r.marginals, kind or [], strict=True)
            if any((q < e[:, 0]).any() or (q > e[:, 1]).any() for q, e in pairs):
                complaints.append("a marginal outside its own ends")
    return Answer(ends, sure, complaints, r.marginal_bounds)


def theorems(model: tz.FactorGraph, seed: int) -> Answer:
    """The deterministic ends of the paper's own runs, whose other ends carry a confidence."""
    e = tz.estimate(
        model,
        projections=tz.Projections(restarts=2, collapse=seed % 4, search_sweeps=seed % 3 * 20),
        levels=range(3),
        trials=2,
        seed=seed,
        threads=1,
    )
    return Answer(claimed([e.lower_proof]))


def not_a_bound(model: tz.FactorGraph, seed: int) -> Answer:
    """The negative control: the best of several projections, scaled up, passed off as a bound."""
    e = tz.estimate(model, levels=[1], trials=4, seed=seed, **BARE)
    return Answer([Claim("lower", float(e.log_g.max()))])
