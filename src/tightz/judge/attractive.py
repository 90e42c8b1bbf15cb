"""Beliefs of an attractive model as evidence: the Bethe free energy is a lower bound.

Theorem (Ruozzi 2012): if all potentials of a binary model are log-supermodular, the largest value
of the Bethe free energy over the local polytope is at most log Z. So its value at ANY locally
consistent pseudo-marginals is a lower bound: no fixed point and no convergence is needed, only
exact consistency, and no term may be left out. The evidence is one number per variable, its log
odds; each pair gets the best table with exactly those margins (Welling and Teh 2001). Relabelling
the states of some variables changes neither side, so models that become attractive by flipping
spins count too.

The point is exact by construction: the smaller probability of a variable and the smaller
off-diagonal entry d of a pair are floats taken as they are, everything else follows from them as a
real number, and what is computed for it is charged by how far it can be off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.judge.pairwise import Pairs, pairs_of
from tightz.judge.spanning import components
from tightz.judge.verdict import LIBRARY, UNIT, RefutedError, Verdict
from tightz.models.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class AttractiveEvidence:
    """log_beliefs: one number per state of every variable of the model, variable by variable.

    Only differences between the states that can be count. The verdict says nothing where the
    theorem does not apply: more than two states, zero pair potentials, a frustrated cycle.
    """

    log_beliefs: NDArray[np.float64]

    def verdict(self, model: FactorGraph) -> Verdict:
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                pairs = pairs_of(model)
        except RefutedError:
            return Verdict()
        if self.log_beliefs.shape != pairs.unary.value.shape:
            raise RefutedError("beliefs do not fit the states of the model")
        sizes = np.concatenate([pairs.unary.size, pairs.tables.size])
        if not np.isfinite(sizes).all():
            return Verdict()
        if pairs.empty:
            return Verdict(upper=-math.inf)
        spins = _spins(pairs, self.log_beliefs)
        # Where the theorem does not apply the verdict is silent, which is not a refutation: the
        # numbers may be fine, they just prove nothing.
        if spins is None:
            return Verdict()
        couplings = _couplings(pairs, spins)
        if couplings is None:
            return Verdict()
        terms, charge = _free_energy(pairs, spins, couplings)
        value = math.fsum([*pairs.constants, *terms])
        rounding = charge * 1.001 + 4.0 * UNIT * abs(value)
        return Verdict(lower=value - rounding, rounding=rounding)


class _Spins(NamedTuple):
    """Per variable: the places of its two states (equal where there is one), the lesser of the two.

    `small` is exact; the state `at[:, lesser]` has it, the other one 1 - small.
    """

    at: NDArray[np.int64]
    small: NDArray[np.float64]
    lesser: NDArray[np.int64]

    def probability(self, v: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.float64]:
        """P(state k of v), relative error at most u."""
        return np.where(self.lesser[v] == k, self.small[v], 1.0 - self.small[v])


class _Couplings(NamedTuple):
    tables: NDArray[np.float64]
    errors: NDArray[np.float64]
    weights: NDArray[np.float64]
    charge: float


class _Entries(NamedTuple):
    """One entry of every pair: its probability, how far that is off, log table, its error."""

    p: NDArray[np.float64]
    off: NDArray[np.float64]
    table: NDArray[np.float64]
    error: NDArray[np.float64]


def _spins(pairs: Pairs, log_beliefs: NDArray[np.float64]) -> _Spins | None:
    live = pairs.unary.value > -np.inf
    if not pairs.cards.size:
        return _Spins(np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0, np.int64))
    count = np.add.reduceat(live.astype(np.int64), pairs.var_ptr[:-1])
    if count.max() > 2:
        return None
    places = np.flatnonzero(live)
    last = np.cumsum(count) - 1
    at = np.stack([places[last - count + 1], places[last]], axis=1)
    with np.errstate(invalid="ignore"):
        odds = log_beliefs[at[:, 1]] - log_beliefs[at[:, 0]]
    if np.isnan(odds[count == 2]).any():
        return None
    # The smaller probability is taken as the exact float that this gives; the larger is 1 minus it
    # as a real number. So the margins are consistent by definition, whatever exp rounded.
    small = np.exp(-np.abs(odds))
    small = np.where(count == 2, small / (1.0 + small), 0.0)
    return _Spins(at, np.minimum(small, 0.5), np.where(count == 2, odds < 0.0, 0).astype(np.int64))


def _couplings(pairs: Pairs, spins: _Spins) -> _Couplings | None:
    """Two by two tables of live states and their couplings; None where the theorem is silent."""
    i, j = pairs.edges.T
    width = pairs.cards[j]
    rows, columns = spins.at[i] - pairs.var_ptr[i][:, None], spins.at[j] - pairs.var_ptr[j][:, None]
    at = pairs.edge_ptr[:-1, None, None] + rows[:, :, None] * width[:, None, None]
    at = at + columns[:, None, :]
    tables, errors = pairs.tables.value[at], pairs.tables.error()[at]
    if np.isneginf(tables).any():
        return None
    # log-supermodular or -submodular is the sign of this second difference, which the pair's
    # margins do not change.
    weights = (tables[:, 0, 0] - tables[:, 0, 1]) + (tables[:, 1, 1] - tables[:, 1, 0])
    doubt = errors.sum(axis=(1, 2)) + 4.0 * UNIT * np.abs(tables).sum(axis=(1, 2))
    # A coupling within its rounding has no sign. A table at most 2 `doubt` away has none at all;
    # log Z and the free energy of that one differ by as much each.
    unsure = np.abs(weights) <= doubt
    signs = np.where(unsure, 0, np.sign(weights)).astype(np.int64)
    if not _balanced(pairs.cards.size, i, j, signs):
        return None
    charge = float(4.0 * doubt[unsure & (doubt > 0.0)].sum())
    return _Couplings(tables, errors, np.where(unsure, 0.0, weights), charge)


def _balanced(n: int, i: NDArray[np.int64], j: NDArray[np.int64], signs: NDArray[np.int64]) -> bool:
    """Whether flips of spins make every edge attractive: no spin is joined to its own flip.

    Vertex v is spin v, vertex n + v its flip; a repulsive edge joins a spin to the other's flip.
    """
    i, j, flip = i[signs != 0], j[signs != 0], n * (signs[signs != 0] < 0)
    u = np.concatenate([i, i + n])
    v = np.concatenate([j + flip, j + n - flip])
    part = components(2 * n, u, v)
    return not (part[:n] == part[n:]).any()


def _free_energy(pairs: Pairs, spins: _Spins, couplings: _Couplings) -> tuple[list[float], float]:
    """Terms of the Bethe free energy, and how far their sum can be from the exact one."""
    v = np.arange(pairs.cards.size)
    # Each pair's entropy contains both ends' entropies once more than they should count: deg - 1
    # times.
    more = np.bincount(pairs.edges.ravel(), minlength=v.size) - 1.0
    error, terms, charge = pairs.unary.error(), [], couplings.charge
    for k in (0, 1):
        # One state left: small = 0 belongs to the first of two equal places.
        p = spins.probability(v, np.full(v.size, k))
        at = spins.at[:, k]
        terms += (p * pairs.unary.value[at] + more * p_log_p(p)).tolist()
        charge += float((p * error[at]).sum())
        charge += float((4.0 * UNIT * (p * np.abs(pairs.unary.value[at]))).sum())
        charge += (LIBRARY + 8.0 * UNIT) * float((np.abs(more) * (p > 0.0)).sum())
    for p, off, table, doubt in _pair_terms(pairs, spins, couplings):
        terms += (p * table - p_log_p(p)).tolist()
        charge += float((p * doubt + 4.0 * UNIT * p * np.abs(table) + LIBRARY * (p > 0)).sum())
        # |d (p log p)| <= off (1 + |log off|) for a change of p by off, at least 1e-17.
        charge += float((off * (np.abs(table) + doubt + 800.0)).sum())
    return terms, charge


def _pair_terms(pairs: Pairs, spins: _Spins, couplings: _Couplings) -> Iterator[_Entries]:
    """The four entries of all pairs, and how far their probabilities can be off."""
    i, j = pairs.edges.T
    flip = (couplings.weights < 0.0).astype(np.int64)
    none = np.zeros(i.size, dtype=np.int64)
    joint = joint_tables(
        (spins.small[i], spins.lesser[i] == 0),
        (spins.small[j], spins.lesser[j] == flip),
        np.exp(-np.abs(couplings.weights)),
    )
    e = np.arange(i.size)
    places = ((none, flip), (none, 1 - flip), (none + 1, flip), (none + 1, 1 - flip))
    for (p, off), (x, y) in zip(joint, places, strict=True):
        yield _Entries(p, off, couplings.tables[e, x, y], couplings.errors[e, x, y])


Margin = tuple[NDArray[np.float64], NDArray[np.bool_]]


def joint_tables(
    first: Margin, second: Margin, kappa: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(probability, its largest error) of A and B, A only, B only, neither, for many pairs (A, B).

    A margin is (s, is_small): P(A) = s exactly where is_small, else 1 - s, s <= 1/2. With low =
    min(P(A), P(B)) and rest = 1 - max the four are low - d, d, |P(A) - P(B)| + d, rest - d. The
    best d for an attraction -log kappa solves kappa (low - d)(rest - d) = d (|..| + d); any d up to
    low and rest is valid, and it keeps a distance from them that outweighs their rounding.
    """
    (s, s_small), (t, t_small) = first, second
    same = s_small == t_small
    first_less = np.where(same, np.where(s_small, s <= t, s >= t), s_small)
    low = np.where(first_less, np.where(s_small, s, 1.0 - s), np.where(t_small, t, 1.0 - t))
    rest = np.where(first_less, np.where(t_small, 1.0 - t, t), np.where(s_small, 1.0 - s, s))
    gap = np.where(same, np.abs(s - t), (1.0 - s) - t)
    # The root of a quadratic in the form 2c / (b + sqrt(b^2 + 4ac)), which does not cancel.
    c = kappa * low * rest
    linear = gap + kappa * (1.0 - gap)
    root = linear + np.sqrt(linear * linear + 4.0 * (1.0 - kappa) * c)
    d = np.where(c > 0.0, 2.0 * c / np.where(root > 0.0, root, 1.0), 0.0)
    # Any d in this range is a valid table: a poor d lowers the bound, it cannot make it false.
    d = np.minimum(d, np.minimum(low, rest) * (1.0 - 8.0 * UNIT))
    # Of one kind, the margins differ by gap (1 + u); of two kinds by gap and two roundings of one.
    off = 4.0 * UNIT * np.where(same, gap + d, 1.0)
    none = np.zeros_like(d)
    return [
        (low - d, 4.0 * UNIT * low),
        (np.where(first_less, d, gap + d), np.where(first_less, none, off)),
        (np.where(first_less, gap + d, d), np.where(first_less, off, none)),
        (rest - d, 4.0 * UNIT * rest),
    ]


def p_log_p(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(p > 0.0, p * np.log(np.where(p > 0.0, p, 1.0)), 0.0)
