"""The q of layer mean field, in parts: split on kept spins, exact given them on the others."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.layer.ascent import LayerProblem, climb_exact, climb_gaussian
from tightz.families.projection import Drawn, IProjection, check_states
from tightz.judge.layers import LayerQ

LOOK_AHEAD = 6
"""Spins tried per leaf; the one whose two halves gain most is split on."""

LOOSE = 1e-3
"""Nats: the least tolerance of a climb inside a leaf, since there are many of them."""

MAX_SCORED = 3000
"""Up to this many kept spins the coupling between them is weighed when choosing what to try."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """The states whose `held` spins equal means (+-1 there), and a bound on their log weight."""

    held: NDArray[np.bool_]
    means: NDArray[np.float64]
    log_z: float


def split(
    problem: LayerProblem,
    root: Leaf,
    leaves: int,
    *,
    tol: float,
    steps: int,
    rng: np.random.Generator,
) -> list[Leaf]:
    """At most `leaves` leaves that partition the states of `root`, each with a rigorous value.

    The leaf whose best split gains most by look-ahead (Gaussian fields) is split first.
    """
    tol = max(tol, LOOSE)
    value = float(problem.gaussian(root.means[:, None])[0][0])
    heap: list[tuple[float, int, Leaf, list[Leaf]]] = []
    made = 0

    def push(leaf: Leaf) -> None:
        nonlocal made
        gain, halves = _best_split(problem, leaf, tol, steps, rng)
        # The gain in the total, not in the leaf: weigh it by the leaf's share.
        worth = leaf.log_z + np.log(max(gain, 1e-300)) if halves else -np.inf
        heapq.heappush(heap, (-worth, made, leaf, halves))
        made += 1

    push(Leaf(root.held, root.means, value))
    while len(heap) < leaves and heap[0][3]:
        _, _, _, halves = heapq.heappop(heap)
        for half in halves:
            push(half)
    if len(heap) == 1:
        return [root]
    done = []
    for _, _, leaf, _ in heap:
        means, log_z, _ = climb_exact(problem, leaf.means, leaf.held, tol, steps)
        done.append(Leaf(leaf.held, means, log_z))
    return done


def _best_split(
    problem: LayerProblem, leaf: Leaf, tol: float, steps: int, rng: np.random.Generator
) -> tuple[float, list[Leaf]]:
    """(relative gain exp(new - old) - 1, the two halves) of the best spin tried; Gaussian values.

    Each half is climbed from the leaf's own means and from a random point.
    """
    tried = _candidates(problem, leaf)
    if not tried.size:
        return 0.0, []
    count = problem.kept.size
    starts = np.repeat(leaf.means[:, None], 4 * tried.size, axis=1)
    held = np.repeat(leaf.held[:, None], 4 * tried.size, axis=1)
    for at, k in enumerate(tried):
        columns = slice(4 * at, 4 * at + 4)
        held[k, columns] = True
        for offset in (1, 3):  # the second and fourth: random where free
            noise = rng.uniform(-1.0, 1.0, size=count)
            starts[:, 4 * at + offset] = np.where(leaf.held, leaf.means, noise)
        starts[k, columns] = [1.0, 1.0, -1.0, -1.0]
    means, values, _ = climb_gaussian(problem, starts, held, tol, steps)
    table = values.reshape(tried.size, 2, 2)
    pick = table.argmax(axis=2)
    best = table.max(axis=2)
    total = np.logaddexp(best[:, 0], best[:, 1])
    top = int(np.argmax(total))
    pair = [4 * top + pick[top, 0], 4 * top + 2 + pick[top, 1]]
    halves = [Leaf(held[:, c], means[:, c], float(values[c])) for c in pair]
    return float(np.expm1(min(total[top] - leaf.log_z, 700.0))), halves


def _candidates(problem: LayerProblem, leaf: Leaf) -> NDArray[np.int64]:
    """Undecided spins whose value moves the others most, to second order in the couplings.

    Fixing s_k shifts the field of l by c_kl (s_k - v_k), which is worth about half of
    (1 - v_k^2) sum_l c_kl^2 (1 - v_l^2), with c the couplings that the summed spins mediate.
    """
    room = np.where(leaf.held, 0.0, 1.0 - leaf.means**2)
    score = room.copy()
    if problem.kept.size <= MAX_SCORED:
        couplings, _ = problem.matrices
        full = couplings if isinstance(couplings, np.ndarray) else couplings.toarray()
        curve = problem.curvature(leaf.means)
        mediated = full.T @ (curve[:, None] * full) + problem.inner.toarray()
        np.fill_diagonal(mediated, 0.0)
        score = room * (mediated**2 @ room)
    order = np.argsort(-score, kind="stable")[:LOOK_AHEAD]
    return order[~leaf.held[order]]


@dataclass(frozen=True, eq=False)
class LayerProjection(IProjection):
    """Leaves share no state; each weighs exp(log_z), its own bound.

    `means` are of all spins: summed ones follow from the kept ones.
    """

    problem: LayerProblem
    leaves: tuple[Leaf, ...]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(leaves,) the mixture's weights."""
        logs = np.array([leaf.log_z for leaf in self.leaves])
        weights = np.exp(logs - logs.max())
        return weights / weights.sum()

    def evaluated(self) -> float:
        """log_gamma afresh, from the leaves' means alone."""
        values = [self.problem.lower_bound(leaf.means)[0] for leaf in self.leaves]
        return float(np.logaddexp.reduce(values))

    def expectations(self, ptr: NDArray, spins: NDArray) -> NDArray[np.float64]:
        """E_q of products of kept spins, and of single summed ones."""
        if self.log_gamma == -np.inf:
            return np.full(len(ptr) - 1, np.nan)
        number = np.full(self.coset.polynomial.n, -1, dtype=np.int64)
        number[self.problem.kept] = np.arange(self.problem.kept.size)
        at, sizes = number[np.asarray(spins)], np.diff(ptr)
        owner = np.repeat(np.arange(sizes.size), sizes)
        summed = np.zeros(sizes.size, dtype=bool)
        summed[owner[at < 0]] = True
        if (summed & (sizes > 1)).any():
            raise UnsupportedModelError(
                "the mean of a product with a summed-out spin was asked for; layer mean field "
                "knows those of kept spins and of single ones. tz.MeanField knows all"
            )
        out = np.zeros(sizes.size)
        for share, leaf in zip(self.shares, self.leaves, strict=True):
            values = np.ones(sizes.size)
            np.multiply.at(values, owner, np.append(leaf.means, 1.0)[at])
            out += share * values
        out[summed] = self.means[np.asarray(spins)[at < 0]]
        return out

    def condition(self, parity: tuple[int, ...], sign: int) -> None:
        """Not offered: the family splits its kept spins itself (`leaves`)."""
        return None

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """`count` independent states: a leaf, its kept spins, the summed ones given these."""
        check_states(self)
        problem, shares = self.problem, self.shares
        home = rng.choice(shares.size, size=count, p=shares)
        v = np.array([leaf.means for leaf in self.leaves])[home]
        kept = np.where(rng.random(v.shape) < (1.0 + v) / 2.0, 1.0, -1.0)
        fields = problem.summed_field + kept @ problem.weights.T
        up = 0.5 * (1.0 + np.tanh(fields))
        summed = np.where(rng.random(fields.shape) < up, 1.0, -1.0)
        log_q = np.log(shares[home]) + np.log((1.0 + kept * v) / 2.0).sum(axis=1)
        log_q -= np.logaddexp(0.0, -2.0 * summed * fields).sum(axis=1)
        states = np.ones((count, self.coset.polynomial.n), dtype=np.int8)
        states[:, problem.kept], states[:, problem.summed] = kept, summed
        return Drawn(states, log_q)

    def distribution(self) -> LayerQ:
        """The leaves' means and held spins, explicitly, for the judge."""
        n, problem = self.coset.polynomial.n, self.problem
        shape = len(self.leaves), n
        summed = np.zeros(n, dtype=bool)
        summed[problem.summed] = True
        held, means = np.zeros(shape, dtype=bool), np.zeros(shape)
        for k, leaf in enumerate(self.leaves):
            held[k, problem.kept] = leaf.held
            means[k, problem.kept] = leaf.means
        return LayerQ(summed, held, means)
