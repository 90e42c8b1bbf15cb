"""The shapes a structured q may take on a coset: which terms it keeps, and where they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ResourceError
from tightz.families.structured.clusters import (
    Partition,
    grow_partition,
    lattice_partitions,
    lattice_shape,
    log_cosh,
    thin,
)
from tightz.families.structured.junction import Forest, build_forest
from tightz.families.structured.terms import Images, Terms, cut_terms
from tightz.projections.coset import Coset

MAX_THINNED = 100_000
"""Largest number of free spins that are thinned as one cluster."""

MAX_DENSITY = 16
"""Most coupled pairs per spin for that: each dropped term is followed through the tree."""

MAX_VARIED = 500
"""Up to this many free spins, further restarts thin the graph in another way."""

SPREAD, FINER = 0.3, 1.5
"""Standard deviation of the logarithmic perturbation of weights between restarts, the largest, and
decades below it down to the least: a hundredth changes what fits and hardly what is tried first,
and where couplings are of order one the largest cost 3 nats of 100x100 spins."""


LEAST_VARIANCE = 1e-6
"""Of a spin, where terms are weighed by them: among frozen spins the heavier term still leads."""


class Shape(NamedTuple):
    """A forest, the polynomial cut along it, and the visits of each tree (see `visits`)."""

    forest: Forest
    terms: Terms
    events: NDArray[np.int64]
    event_ptr: NDArray[np.int64]


def given_shape(coset: Coset, work: Images, clusters: Partition, width: int) -> Shape:
    """The shape of explicit clusters of model spins."""
    return _cut(work, cluster_forest(coset.n_free, work, _on_free(clusters, coset), width))


def auto_shapes(
    coset: Coset,
    work: Images,
    width: int,
    count: int,
    rng: np.random.Generator | None,
    means: NDArray[np.float64] | None = None,
) -> list[Shape]:
    """Up to `count` shapes, most promising first; the width is lowered until the tables fit.

    A sparse graph is one cluster that keeps its heaviest terms within the width; what is dropped
    is still seen through the correlations of the others, so this beats cutting the graph apart.
    Larger lattices are cut into strips, other graphs into grown clusters.

    means: of a q that is good already. To second order a product loses theta^2 / 2 times the
    variances of its spins where it cannot follow a term: a heavy one between frozen spins costs
    nothing and need not be kept. With them even the first shape is varied by `rng`.
    """
    alive = None if means is None else _spread(work, means, rng) * _varied(work, rng)
    n = coset.n_free
    while True:
        pairs, weights = _pair_weights(work, width)
        coupled = len(np.unique(pairs, axis=0))
        try:
            if width == 0 or coupled == 0:
                return [_cut(work, cluster_forest(n, work, [], 0))]
            if n <= MAX_THINNED and coupled <= MAX_DENSITY * n:
                everything = [list(range(n))]
                shapes = [_cut(work, cluster_forest(n, work, everything, width, alive))]
                if shapes[0].terms.slot_node.size and n <= MAX_VARIED:
                    for _ in range(count - 1):
                        forest = cluster_forest(n, work, everything, width, _varied(work, rng))
                        shapes.append(_cut(work, forest))
                return shapes
            partitions = _partitions(coset, pairs, weights, width)[:count]
            return [given_shape(coset, work, clusters, width) for clusters in partitions]
        except ResourceError:
            if width <= 0:
                raise
            width -= max(1, width // 8)


def _spread(
    work: Images, means: NDArray[np.float64], rng: np.random.Generator | None
) -> NDArray[np.float64]:
    """Per term the product of its spins' standard deviations.

    `rng` draws the least variance: the larger, the more a cluster that is frozen in one of its
    states may turn over.
    """
    if not work.theta.size:
        return np.zeros(0)
    least = LEAST_VARIANCE if rng is None else LEAST_VARIANCE ** rng.random()
    deviations = np.sqrt(np.maximum(1.0 - means**2, least))
    product: NDArray[np.float64] = np.multiply.reduceat(deviations[work.free], work.ptr[:-1])
    return product


def _varied(work: Images, rng: np.random.Generator | None) -> NDArray[np.float64]:
    """A random factor for the weight of every term; 1 without `rng`."""
    size = work.theta.size
    if rng is None:
        return np.ones(size)
    spread = SPREAD * 10.0 ** (-FINER * rng.random())
    factors: NDArray[np.float64] = np.exp(spread * rng.standard_normal(size))
    return factors


def _partitions(
    coset: Coset, pairs: NDArray[np.int64], weights: NDArray[np.float64], width: int
) -> list[Partition]:
    """Strips in both directions on a lattice, else grown clusters."""
    poly = coset.polynomial
    if poly.degree == 2:
        ends = poly.spins[poly.ptr[:-1][poly.arities == 2][:, None] + np.arange(2)]
        shape = lattice_shape(poly.n, ends.astype(np.int64))
        if shape is not None:
            cost = log_cosh(poly.theta[poly.arities == 2])
            return lattice_partitions(*shape, ends.astype(np.int64), cost, width)
    grown = grow_partition(coset.n_free, pairs, weights, width)
    return [tuple(tuple(coset.free[list(c)].tolist()) for c in grown)]


def _pair_weights(work: Images, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Couplings between free spins; a term of r <= width + 1 spins is shared over its pairs."""
    pairs, weights = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
    for r in range(2, width + 2):
        which, rows = work.rows(r)
        for i in range(r):
            for j in range(i):
                pairs.append(rows[:, [j, i]])
                weights.append(log_cosh(work.theta[which]) / (r - 1))
    return np.concatenate(pairs), np.concatenate(weights)


def _on_free(clusters: Sequence[Sequence[int]], coset: Coset) -> list[list[int]]:
    """Clusters over free positions; constrained spins are passed over."""
    return [[int(k) for k in coset.free_index[list(c)] if k >= 0] for c in clusters if len(c)]


def cluster_forest(
    n: int,
    work: Images,
    clusters: list[list[int]],
    width: int,
    factor: NDArray[np.float64] | None = None,
) -> Forest:
    """The forest of `clusters` (spins not listed stand alone), each thinned to `width`.

    The weight of a term is |theta|, times `factor` if given.
    """
    weight = np.abs(work.theta) if factor is None else np.abs(work.theta) * factor
    home = np.full(n, -1, dtype=np.int64)
    local = np.zeros(n, dtype=np.int64)
    for c, cluster in enumerate(clusters):
        home[cluster] = c
        local[cluster] = np.arange(len(cluster))
    members: list[list[NDArray]] = [[] for _ in clusters]
    weights: list[list[float]] = [[] for _ in clusters]
    for length in range(2, width + 2):
        which, rows = work.rows(length)
        inside = (home[rows] == home[rows[:, :1]]).all(axis=1) & (home[rows[:, 0]] >= 0)
        for a, row in zip(which[inside], rows[inside], strict=True):
            members[home[row[0]]].append(local[row])
            weights[home[row[0]]].append(float(weight[a]))
    order: list[int] = []
    kept: list[NDArray] = []
    for cluster, terms, heavy in zip(clusters, members, weights, strict=True):
        local_order, local_terms = thin(len(cluster), terms, np.array(heavy), width)
        spins = np.asarray(cluster, dtype=np.int64)
        order += spins[local_order].tolist()
        kept += [spins[term] for term in local_terms]
    return build_forest(n, order + np.flatnonzero(home < 0).tolist(), kept)


def _cut(work: Images, forest: Forest) -> Shape:
    return Shape(forest, cut_terms(forest, work), *visits(forest))


def visits(forest: Forest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(events, event_ptr): depth-first through each tree, k on the way down, ~k on the way up."""
    events: list[int] = []
    entered = np.zeros(forest.n, dtype=bool)
    for k in range(forest.n):
        path = []
        at = k
        while at >= 0 and not entered[at]:
            entered[at] = True
            path.append(at)
            at = int(forest.parent[at])
        events += path[::-1]
        events.append(~k)
    return np.array(events, dtype=np.int64), 2 * forest.tree_ptr


def product_tables(forest: Forest, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Conditional tables of the product distribution with E y_k = means[k]."""
    v = np.clip(means[forest.spin_of], -1.0, 1.0)
    each = np.stack([(1.0 + v) / 2.0, (1.0 - v) / 2.0], axis=1)
    return np.repeat(each, np.diff(forest.msg_ptr), axis=0).ravel()
