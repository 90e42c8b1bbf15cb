"""The q of layer mean field: a product over the kept spins, exact given them on the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.layer.ascent import LayerProblem
from tightz.families.layer.split import Leaf
from tightz.families.projection import Drawn, IProjection, check_states
from tightz.judge.layers import LayerQ


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
