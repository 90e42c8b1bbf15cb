"""From a binary model to the annealing path that suits it: two layers, or single spins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.clock import leave_if_over
from tightz.runtime.executors import map_ordered
from tightz.sampling.ais.bases import base_log_z, product_base
from tightz.sampling.ais.kernels import (
    Forest,
    Lanes,
    Layers,
    Terms,
    collapsed_chain,
    draw_forest,
    layer_chain,
    spin_chains,
)

_DENSE = 0.25
"""Share of pairs between two layers from which they are treated as layers and not as spins."""

_COLLAPSED_ENTRIES = 32_768
"""Up to this many weights a sweep with the other layer summed out is affordable."""

_LANES = 128
"""Chains side by side; measured, fewer are slower (32: by 20 to 50%)."""

BLOCK, LEAST_BLOCK = 3e7, 8
"""Moves of a chain, and temperatures at least, between two looks at the clock: a tenth of a
second."""

RENEWAL = 0.5
"""A population is resampled where fewer than this share of its chains is effective."""


class Walk(NamedTuple):
    """log weights (C,), the states they belong to, and slopes where asked for.

    Each chain's end state (C, n; spins +1 or -1, or states of variables) with its weight is a
    properly weighted sample of the model. slopes (C, K - 1) are d log p_beta / d beta. Chains of a
    population that stem from one start share its number in `ancestors` (C,): they are no
    independent draws. A device may leave out the first end states.
    """

    log_weights: NDArray[np.float64]
    ends: NDArray[np.int8] | NDArray[np.int32]
    slopes: NDArray[np.float64]
    ancestors: NDArray[np.int64]


def blocks_of(betas: NDArray[np.float64], work: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(row of the slopes, betas) of parts of a walk, whose sweep takes `work` moves.

    A chain makes no sweep at its last beta: each part begins with a step of no length there. Walks
    down are one part, since a part alone would not show where it leads.
    """
    step = max(LEAST_BLOCK, int(BLOCK / max(work, 1))) if betas[0] < betas[-1] else betas.size
    yield 0, betas[: step + 1]
    for at in range(step, betas.size - 1, step):
        leave_if_over()
        yield at - 1, np.concatenate([betas[at : at + 1], betas[at : at + step + 1]])


class Path(Protocol):
    """A way to anneal: `walk` runs one chain per row of `states` (C, 4) through `betas`."""

    @property
    def name(self) -> str: ...

    def width(self, size: int = 1) -> int:
        """Chains, in populations of `size`, that take no longer than a few: thousands on a device,
        which a walk should fill, 1 on the CPU."""
        ...

    def walk(
        self,
        betas: NDArray[np.float64],
        states: NDArray[np.uint64],
        *,
        with_slopes: bool,
        threads: int | None,
    ) -> Walk: ...


@dataclass(frozen=True, eq=False)
class LayerPath:
    """Two layers without inner couplings; the larger one is summed out (units in {0, 1}).

    The base keeps the biases of the summed-out layer, and `base` (none by default) for the kept
    one: on the RBMs of the benchmark none starts closest to the model (see benchmarks/ais.py).
    `kept_at` and `summed_at` say which spins the units are.
    """

    constant: float
    weights: NDArray[np.float64]
    kept: NDArray[np.float64]
    summed: NDArray[np.float64]
    base: NDArray[np.float64]
    kept_at: NDArray[np.int64]
    summed_at: NDArray[np.int64]

    @property
    def collapsed(self) -> bool:
        return self.weights.size <= _COLLAPSED_ENTRIES

    @property
    def name(self) -> str:
        return "collapsed Gibbs on one layer" if self.collapsed else "block Gibbs on two layers"

    def width(self, size: int = 1) -> int:
        return 1

    @property
    def _start(self) -> float:
        """log Z of the base, a product over both layers; the weights are relative to it."""
        return self.constant + float(
            np.logaddexp(0.0, self.base).sum() + np.logaddexp(0.0, self.summed).sum()
        )

    def walk(
        self,
        betas: NDArray[np.float64],
        states: NDArray[np.uint64],
        *,
        with_slopes: bool,
        threads: int | None,
    ) -> Walk:
        base = self.base
        back = np.ascontiguousarray(self.weights.T)
        layers = Layers(self.weights, back, self.kept, base, self.summed, self.summed)
        run = collapsed_chain if self.collapsed else layer_chain
        slopes = np.empty((len(states), betas.size - 1 if with_slopes else 0))
        units = np.empty((len(states), base.size))

        def chain(c: int) -> float:
            leave_if_over()
            return float(run(layers, betas, states[c], slopes[c], units[c]))

        logs = list(map_ordered(chain, range(len(states)), threads=threads))
        alone = np.arange(len(states))
        return Walk(self._start + np.array(logs), self._ends(units, states), slopes, alone)

    def _ends(self, units: NDArray[np.float64], states: NDArray[np.uint64]) -> NDArray[np.int8]:
        """Spins of the kept units, and of the others drawn given them: p(y | x) is a product."""
        from scipy.special import expit

        rng = np.random.default_rng(states[:, 0].copy())
        others = rng.random((len(units), self.summed.size)) < expit(
            self.summed + units @ self.weights
        )
        ends = np.empty((len(units), self.kept_at.size + self.summed_at.size), dtype=np.int8)
        ends[:, self.kept_at] = 1 - 2 * units
        ends[:, self.summed_at] = 1 - 2 * others.astype(np.int8)
        return ends


@dataclass(frozen=True, eq=False)
class SpinPath:
    """Any positive binary model, from independent spins or a forest of pairs, `base`."""

    constant: float
    terms: Terms
    base: Forest

    @property
    def name(self) -> str:
        return "single-site Gibbs"

    def width(self, size: int = 1) -> int:
        return 1

    def walk(
        self,
        betas: NDArray[np.float64],
        states: NDArray[np.uint64],
        *,
        with_slopes: bool,
        threads: int | None,
    ) -> Walk:
        parts = [states[low : low + _LANES] for low in range(0, len(states), _LANES)]
        walks = map_ordered(
            lambda part: self._lanes(betas, part, with_slopes), parts, threads=threads
        )
        return self._joined(list(walks))

    def populations(
        self, betas: NDArray[np.float64], states: NDArray[np.uint64], size: int
    ) -> Walk:
        """As `walk`, with the chains in populations of `size` that are resampled on the way.

        Only the mean weight of a population is unbiased; `ancestors` says who shares a start.
        """
        block = max(1, _LANES // size) * size
        parts = [states[low : low + block] for low in range(0, len(states), block)]
        return self._joined([self._lanes(betas, part, False, size, RENEWAL) for part in parts])

    def _lanes(
        self,
        betas: NDArray[np.float64],
        part: NDArray[np.uint64],
        with_slopes: bool,
        size: int = 1,
        renewal: float = 0.0,
    ) -> Walk:
        words = np.ascontiguousarray(part.T)
        lanes = len(part)
        spins = np.empty((self.base.fields.size, lanes))
        draw_forest(self.base, words, spins)
        slopes = np.empty((betas.size - 1 if with_slopes else 0, lanes))
        walkers = Lanes(
            spins,
            np.zeros(lanes),
            slopes,
            np.arange(lanes),
            np.empty(lanes, dtype=np.int64),
        )
        for row, block in blocks_of(betas, lanes * (len(spins) + self.terms.others.size)):
            rest = walkers._replace(slopes=slopes[row:])
            spin_chains(self.terms, self.base, block, words, rest, size, renewal)
        return Walk(walkers.log_w, spins.T.astype(np.int8), slopes.T, walkers.ancestors)

    def _joined(self, walks: list[Walk]) -> Walk:
        start = self.constant + base_log_z(self.base)
        firsts = np.cumsum([0] + [len(w.log_weights) for w in walks[:-1]])
        return Walk(
            start + np.concatenate([w.log_weights for w in walks]),
            np.concatenate([w.ends for w in walks]),
            np.concatenate([w.slopes for w in walks]),
            np.concatenate([w.ancestors + low for w, low in zip(walks, firsts, strict=True)]),
        )


def annealing_path(model: FactorGraph) -> Path | float:
    """The path for a model, or log Z itself where no spin is left to sample."""
    settled = np.flatnonzero(model.cardinalities == 1).tolist()
    if settled:
        model = model.with_evidence(dict.fromkeys(settled, 0))
    return polynomial_path(SpinPolynomial.from_factor_graph(model.condition()))


def polynomial_path(poly: SpinPolynomial) -> Path | float:
    """The path for a polynomial; the base of single spins is the model's own fields."""
    n = poly.n
    if poly.constant == -np.inf or n == 0:
        return poly.constant
    fields = np.zeros(n)
    single = poly.arities == 1
    fields[poly.spins[poly.ptr[:-1][single]]] = poly.theta[single]
    theta, arities = poly.theta[~single], poly.arities[~single]
    ptr = np.concatenate([[0], np.cumsum(arities)]).astype(np.int64)
    first = int(poly.ptr[int(single.sum())])  # terms are sorted by arity: singles come first
    spins = poly.spins[first:].astype(np.int64)
    # Two layers without inner couplings allow block moves and an exact sum over one layer, worth
    # it only where most pairs between the layers are coupled.
    if poly.degree == 2:
        layers = _layers(n, spins.reshape(-1, 2))
        if layers is not None:
            kept, summed = layers
            if len(theta) >= _DENSE * kept.size * summed.size:
                return _layer_path(poly.constant, fields, spins.reshape(-1, 2), theta, kept, summed)
    # Terms of each spin: a stable sort of the members by spin, their owners carried along.
    by_site = np.argsort(spins, kind="stable")
    owner = np.repeat(np.arange(len(theta)), arities)
    sites = np.bincount(spins, minlength=n)
    site_ptr = np.concatenate([[0], np.cumsum(sites)]).astype(np.int64)
    other_ptr, others = _others(ptr, spins, owner, by_site)
    terms = Terms(ptr, spins, theta, site_ptr, owner[by_site], other_ptr, others, fields)
    return SpinPath(poly.constant, terms, product_base(terms, fields))


def _others(
    ptr: NDArray[np.int64],
    spins: NDArray[np.int64],
    owner: NDArray[np.int64],
    by_site: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each member of a term, in the order `by_site`, the term's other members."""
    sizes = np.diff(ptr)[owner[by_site]]
    ends = np.cumsum(sizes)
    within = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    members = np.repeat(ptr[owner[by_site]], sizes) + within
    kept = members != np.repeat(by_site, sizes)
    return np.concatenate([[0], np.cumsum(sizes - 1)]).astype(np.int64), spins[members[kept]]


def _layers(n: int, pairs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Two-colour the coupled spins, the smaller class of each component first; None if odd cycle.

    Spins without couplings go to the second layer, which is summed out.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    ends = (np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]]))
    graph = coo_array((np.ones(2 * len(pairs)), ends), shape=(n, n)).tocsr()
    count, component = connected_components(graph, directed=False)
    colour = np.zeros(n, dtype=np.int64)
    starts = np.unique(component, return_index=True)[1]
    # Breadth first from one spin per component: a spin's colour is the opposite of its parent's.
    # An odd cycle shows as an edge between equal colours.
    for start in starts:
        nodes, parents = breadth_first_order(graph, start, directed=False)
        for v in nodes[1:]:
            colour[v] = 1 - colour[parents[v]]
    if (colour[pairs[:, 0]] == colour[pairs[:, 1]]).any():
        return None
    # Colours are arbitrary per component: in each, the rarer one is kept and the other summed out.
    ones = np.bincount(component, colour, minlength=count)
    zeros = np.bincount(component, minlength=count) - ones
    keep = colour == np.where(ones[component] < zeros[component], 1, 0)
    keep &= (ones + zeros)[component] > 1
    return np.flatnonzero(keep), np.flatnonzero(~keep)


def _layer_path(
    constant: float,
    fields: NDArray[np.float64],
    pairs: NDArray[np.int64],
    theta: NDArray[np.float64],
    kept: NDArray[np.int64],
    summed: NDArray[np.int64],
) -> LayerPath:
    """Spins s = 1 - 2x to units x: J s t = J - 2J x - 2J y + 4J x y."""
    n = fields.size
    pull = np.bincount(pairs[:, 0], theta, minlength=n) + np.bincount(
        pairs[:, 1], theta, minlength=n
    )
    bias = -2.0 * (fields + pull)
    place = np.empty(n, dtype=np.int64)
    place[kept] = np.arange(kept.size)
    place[summed] = np.arange(summed.size)
    is_kept = np.zeros(n, dtype=bool)
    is_kept[kept] = True
    swap = is_kept[pairs[:, 0]]
    rows = np.where(swap, pairs[:, 0], pairs[:, 1])
    columns = np.where(swap, pairs[:, 1], pairs[:, 0])
    weights = np.zeros((kept.size, summed.size))
    np.add.at(weights, (place[rows], place[columns]), 4.0 * theta)
    total = constant + float(fields.sum()) + float(theta.sum())
    return LayerPath(total, weights, bias[kept], bias[summed], np.zeros(kept.size), kept, summed)


def tuned_schedule(
    betas: NDArray[np.float64], slopes: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """`count` betas, dense where the slope of log p_beta varies most among pilot chains.

    The variance of a log weight is about sum_k (step_k * deviation_k)^2: equal shares of
    step * deviation are best. A tenth of the mean deviation keeps every stretch sampled.
    """
    steps = np.diff(betas)
    # The deviation is estimated from few pilot chains: a moving average takes out its noise.
    width = min(11, len(steps))
    deviation = np.convolve(np.pad(slopes.std(axis=0), width // 2, mode="edge"), np.ones(width))
    deviation = deviation[width - 1 : width - 1 + len(steps)] / width
    floor = 0.1 * float((deviation * steps).sum()) + 1e-12
    # Invert the cumulated share: equal increments of it are equal contributions to the variance.
    share = np.concatenate([[0.0], np.cumsum((deviation + floor) * steps)])
    out = np.interp(np.linspace(0.0, share[-1], count), share, betas)
    out[0], out[-1] = 0.0, 1.0
    return out
