"""Sum out a layer: exact over an independent set of spins, mean field over the others.

For RBMs and any pairwise model with a large independent set. Optionally the kept spins are split
on: a partition of the states into leaves, one q each, whose values add up to a lower bound on Z.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ModelError, ParameterError, UnsupportedModelError, require_range
from tightz.families.evidence import link_of
from tightz.families.layer.ascent import LayerProblem, climb_exact, climb_gaussian
from tightz.families.layer.projection import LayerProjection, Leaf, split
from tightz.families.projection import Status
from tightz.families.results import MeanFieldResult
from tightz.judge.layers import LayerQ
from tightz.judge.links import SpinEvidence, SpinLink, lowered
from tightz.models.inputs import as_model, integer_array
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.encoding import Model, encode, model_digest
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence

if TYPE_CHECKING:
    from scipy import sparse

CANDIDATES = 3
"""Local optima of the fast climb that are compared by their rigorous values."""


@dataclass(frozen=True)
class LayerMeanField:
    """q a product over the kept spins, exact given them on the summed ones.

    restarts     random starts of the fast climb
    leaves       parts that the states are split into; 1: a single q
    summed       the spins to sum out, no two of them coupled; default: both sides of a bipartite
                 model are tried and the better one kept, else a greedy independent set
    tol          stop when a step gains less than this many nats
    max_sweeps   steps of each climb at most; the bound holds at any of them
    """

    restarts: int = 20
    leaves: int = 1
    tol: float = 1e-5
    max_sweeps: int = 300
    summed: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.summed is not None:  # a tuple, so that the settings are hashable and stay
            frozen = tuple(integer_array(self.summed, "summed").ravel().tolist())
            object.__setattr__(self, "summed", frozen)
        require_range("restarts", self.restarts, 0)
        require_range("leaves", self.leaves, 1)
        require_range("tol", self.tol, 0.0)
        require_range("max_sweeps", self.max_sweeps, 1)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> LayerProjection:
        """The best q over the whole space, also from `states`; a coset of parities is refused."""
        from scipy.special import logsumexp

        poly = coset.polynomial
        if coset.m or poly.degree > 2:
            raise UnsupportedModelError(
                f"{coset.m} parities over a model with terms of up to {poly.degree} spins; summing "
                "out a layer takes pairwise models as a whole. tz.MeanField takes any"
            )
        root = seed_sequence(rng)
        given = np.zeros((0, poly.n)) if states is None else states[: self.restarts]
        found = [
            _best_leaf(LayerProblem.build(poly, layer), self, given, root)
            for layer in independent_sets(poly)
        ]
        problem, best, converged = max(found, key=lambda item: item[1].log_z)
        leaves, log_gammas = [best], np.array([one[1].log_z for one in found])
        if self.leaves > 1 and best.log_z > -np.inf:
            parts = split(
                problem, best, self.leaves, tol=self.tol, steps=self.max_sweeps,
                rng=generator(root, 1),
            )  # fmt: skip
            if logsumexp([leaf.log_z for leaf in parts]) > best.log_z:
                leaves = parts
        means = np.zeros(poly.n)
        status = Status.CONVERGED if converged else Status.NOT_CONVERGED
        q = LayerProjection(coset, best.log_z, log_gammas, means, 0, status, problem, tuple(leaves))
        if best.log_z == -np.inf:
            return q
        for share, leaf in zip(q.shares, leaves, strict=True):
            means[problem.kept] += share * leaf.means
            means[problem.summed] += share * problem.lower_bound(leaf.means)[1]
        value = float(logsumexp([leaf.log_z for leaf in leaves]))
        return replace(q, log_gamma=value, means=np.clip(means, -1.0, 1.0))


@dataclass(frozen=True, eq=False, repr=False)
class LayerResult(MeanFieldResult):
    """The best q over the kept spins, with the summed ones exact given them.

    means         (kept,) E_q of the kept spins
    spin_means    (n,) E_q of all spins of the model's polynomial
    kept, summed  which spins carry q, and which are summed exactly
    """

    means: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    spin_means: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    kept: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    summed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def layer_mean_field(
    model: Model,
    family: LayerMeanField | None = None,
    *,
    starts: ArrayLike | None = None,
    seed: Seed = None,
    link: SpinLink | None = None,
) -> LayerResult:
    """A deterministic lower bound on log Z of a pairwise binary model.

    starts    further starting points: rows of means or states (S, n) of all the model's spins
    link      for a polynomial that stands for another model (`families.evidence.link_of`): the
              bound can then be judged on that one
    """
    from scipy.special import logsumexp

    as_model(model, "layer_mean_field")
    begun = time.perf_counter()
    method = family or LayerMeanField()
    root = seed_sequence(seed)
    encoding = encode(model)
    poly = encoding.polynomial
    if poly.degree > 2:
        raise UnsupportedModelError(
            f"the model has a term of {poly.degree} spins; summing out a layer takes pairwise "
            "models. tz.mean_field and tz.log_partition take any degree"
        )
    chosen = method.summed
    layers = independent_sets(poly) if chosen is None else [_checked_layer(poly, chosen)]
    given = _checked_starts(starts, poly.n)
    found = [_best_leaf(LayerProblem.build(poly, layer), method, given, root) for layer in layers]
    problem, best, converged = max(found, key=lambda item: item[1].log_z)
    parts = [best]
    if method.leaves > 1 and best.log_z > -np.inf:
        parts = split(
            problem, best, method.leaves, tol=method.tol, steps=method.max_sweeps,
            rng=generator(root, 1),
        )  # fmt: skip
    log_zs = np.array([leaf.log_z for leaf in parts])
    log_z = float(logsumexp(log_zs)) if best.log_z > -np.inf else -np.inf
    if log_z < best.log_z:
        parts, log_zs, log_z = [best], np.array([best.log_z]), best.log_z
    spin_means = np.full(poly.n, np.nan)
    if log_z > -np.inf:
        share = np.exp(log_zs - log_z)
        spin_means[problem.kept] = share @ np.array([leaf.means for leaf in parts])
        outer = np.array([problem.lower_bound(leaf.means)[1] for leaf in parts])
        spin_means[problem.summed] = share @ outer
        spin_means = np.clip(spin_means, -1.0, 1.0)
    evidence = None
    low, rounding = -np.inf, 0.0
    if log_z > -np.inf:
        evidence = SpinEvidence(link or link_of(encoding), _leaves_q(problem, parts, poly.n))
        if isinstance(model, SpinPolynomial):
            low, _, rounding = lowered(*evidence.value)
        else:
            low, _, rounding = evidence.verdict(model)
    seconds = time.perf_counter() - begun
    bound = Bound(
        Side.LOWER, low, Proof.DETERMINISTIC, "layer mean field", seconds, 1.0,
        "every q gives a lower bound on log Z; one layer is summed exactly",
        rounding=rounding, evidence=evidence,
    )  # fmt: skip
    return LayerResult(
        bound=bound,
        log_zs=log_zs,
        marginals=encoding.marginals(spin_means),
        status=Status.CONVERGED if converged else Status.NOT_CONVERGED,
        sweeps=0,
        seconds=seconds,
        provenance=provenance(root, model_digest(model), family=method),
        means=spin_means[problem.kept],
        spin_means=spin_means,
        kept=problem.kept,
        summed=problem.summed,
    )


def _leaves_q(problem: LayerProblem, parts: list[Leaf], n: int) -> LayerQ:
    """The leaves' means and held spins, written down for the judge over all n spins."""
    summed = np.zeros(n, dtype=bool)
    summed[problem.summed] = True
    held, means = np.zeros((len(parts), n), dtype=bool), np.zeros((len(parts), n))
    for k, leaf in enumerate(parts):
        held[k, problem.kept] = leaf.held
        means[k, problem.kept] = leaf.means
    return LayerQ(summed, held, means)


def independent_sets(poly: SpinPolynomial) -> list[NDArray[np.int64]]:
    """Candidate layers: both sides of a bipartite graph (spins without a neighbour go with each),
    or a maximal independent set that takes spins of low degree first.
    """
    from scipy import sparse

    pairs = np.zeros((0, 2), dtype=np.int64)
    for arity, rows, _ in poly.by_arity():
        if arity == 2:
            pairs = rows.astype(np.int64)
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    graph = sparse.csr_array(
        (np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(poly.n, poly.n)
    )
    degree = np.diff(graph.indptr)
    if not len(pairs):
        return [np.arange(poly.n)]
    side = _two_colours(graph)
    if (side[pairs[:, 0]] != side[pairs[:, 1]]).all():
        lone = degree == 0
        return [np.flatnonzero((side == 0) | lone), np.flatnonzero((side == 1) | lone)]
    free = np.ones(poly.n, dtype=bool)
    chosen = []
    for i in np.argsort(degree, kind="stable").tolist():
        if free[i]:
            chosen.append(i)
            free[graph.indices[graph.indptr[i] : graph.indptr[i + 1]]] = False
    return [np.array(sorted(chosen), dtype=np.int64)]


def _two_colours(graph: sparse.csr_array) -> NDArray[np.int8]:
    """Parity of the distance from the first spin of each component; a colouring if one exists.

    In every component the larger colour class gets 0.
    """
    from scipy.sparse.csgraph import connected_components

    count, component = connected_components(graph, directed=False)
    side = np.full(graph.shape[0], -1, dtype=np.int8)
    _, frontier = np.unique(component, return_index=True)
    colour = 0
    while frontier.size:
        side[frontier] = colour
        near = np.unique(graph[frontier].indices)
        frontier = near[side[near] < 0]
        colour = 1 - colour
    ones = np.bincount(component, side, minlength=count)
    swap = 2 * ones > np.bincount(component, minlength=count)
    return np.where(swap[component], 1 - side, side).astype(np.int8)


def _best_leaf(
    problem: LayerProblem,
    method: LayerMeanField,
    given: NDArray[np.float64],
    root: np.random.SeedSequence,
) -> tuple[LayerProblem, Leaf, bool]:
    """The best q over all states: fast climbs from all starts, then the rigorous one."""
    count = problem.kept.size
    held = np.zeros(count, dtype=bool)
    if count == 0 or problem.constant == -np.inf:
        means = np.zeros(count)
        value = -np.inf if problem.constant == -np.inf else problem.lower_bound(means)[0]
        return problem, Leaf(held, means, value), True
    drawn = generator(root, 0).uniform(-1.0, 1.0, size=(method.restarts, count))
    v = np.concatenate([given[:, problem.kept], drawn]).T
    if v.shape[1] == 0:
        raise ParameterError("restarts is 0 and no starts are given; expected at least one")
    free = np.zeros(v.shape, dtype=bool)
    means, values, converged = climb_gaussian(problem, v, free, method.tol, method.max_sweeps)
    order = np.argsort(-values, kind="stable")
    fresh = np.abs(np.diff(values[order], prepend=np.inf)) > 1e-3
    tried = order[fresh][:CANDIDATES]
    top = max(tried.tolist(), key=lambda r: problem.lower_bound(means[:, r])[0])
    best, value, finished = climb_exact(problem, means[:, top], held, method.tol, method.max_sweeps)
    return problem, Leaf(held, best, value), converged and finished


def _checked_layer(poly: SpinPolynomial, summed: ArrayLike) -> NDArray[np.int64]:
    layer = np.unique(np.asarray(summed, dtype=np.int64))
    outside = layer[(layer < 0) | (layer >= poly.n)]
    if outside.size:
        raise ParameterError(
            f"summed names spin {outside[0]}; the model has spins 0 to {poly.n - 1}"
        )
    inside = np.zeros(poly.n, dtype=bool)
    inside[layer] = True
    for arity, rows, _ in poly.by_arity():
        clash = inside[rows].all(axis=1) & (arity > 1)
        if clash.any():
            i, j = rows[clash][0].tolist()
            raise ParameterError(
                f"summed holds spins {i} and {j}, which are coupled; expected an independent set"
            )
    return layer


def _checked_starts(starts: ArrayLike | None, n: int) -> NDArray[np.float64]:
    if starts is None:
        return np.zeros((0, n))
    rows = np.atleast_2d(np.asarray(starts, dtype=np.float64))
    if rows.shape[1] != n or not (np.abs(rows) <= 1.0).all():
        raise ModelError(
            f"starts have shape {rows.shape}; expected rows of {n} means or spins in [-1, 1]"
        )
    return rows
