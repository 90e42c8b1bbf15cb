"""What the end states of annealing say: marginals and samples of the working model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.models.factor_graph import FactorGraph
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.seeds import Seed, generator
from tightz.workspace.findings import Marginals, Mixing, PointEstimate, Samples
from tightz.workspace.symmetry import (
    SYMMETRISED,
    flips_of,
    symmetrise_means,
    symmetrise_states,
)

ENOUGH = 50.0
"""Effective end states below which marginals are not called mixed."""

_ENTRIES = 4_000_000
"""Products of spins held at a time."""


@dataclass(frozen=True, eq=False)
class Ends:
    """Weighted end states (spins, or states), the log weight of each, and which half it counts to.

    Halves share no population, so that each is an estimate by itself. Ends with the same number
    in `ancestors` stem from one start and count as one draw.
    """

    log_weights: NDArray[np.float64]
    ends: NDArray
    first_half: NDArray[np.bool_]
    ancestors: NDArray[np.int64]

    @property
    def effective(self) -> float:
        """Kish's effective number of starts that carry the averages."""
        families = np.bincount(self.ancestors, _normalised(self.log_weights))
        return float(1.0 / (families**2).sum())

    @classmethod
    def joined(cls, parts: Sequence[Ends]) -> Ends:
        """Several rounds as one: every weight has expectation Z, so they may be averaged."""
        firsts = np.cumsum([0] + [len(p.ends) for p in parts[:-1]])
        return cls(
            np.concatenate([p.log_weights for p in parts]),
            np.concatenate([p.ends for p in parts]),
            np.concatenate([p.first_half for p in parts]),
            np.concatenate([p.ancestors + low for p, low in zip(parts, firsts, strict=True)]),
        )

    def last(self, count: int) -> Ends:
        """The last `count` of them."""
        return Ends(*(part[-count:] for part in vars(self).values()))


@dataclass(frozen=True, eq=False)
class StateForm:
    """A model whose end states are states of its variables: nothing to translate."""

    model: FactorGraph
    direct: bool = False

    @property
    def columns(self) -> int:
        return self.model.n_variables

    def lift_states(self, rows: NDArray) -> NDArray[np.int64]:
        states: NDArray[np.int64] = np.asarray(rows, dtype=np.int64)
        return states


Form = SpinEncoding | StateForm


def _normalised(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(log_weights - log_weights.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def weighted_means(
    ends: Ends, pairs: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """E s_i and E s_i s_j at pairs (P, 2): the ends are properly weighted samples of the model."""
    shares, spins = _normalised(ends.log_weights), ends.ends.astype(np.float64)
    products = np.empty(len(pairs))
    step = max(1, _ENTRIES // len(spins))
    for low in range(0, len(pairs), step):
        i, j = pairs[low : low + step].T
        products[low : low + step] = shares @ (spins[:, i] * spins[:, j])
    return shares @ spins, products


def conditional_means(polynomial: SpinPolynomial, spins: NDArray[np.int8]) -> NDArray[np.float64]:
    """(S, n) E[s_i | all other spins] = tanh of the local field, at each row of spins.

    Its average has the same expectation as that of s_i and less variance (Rao and Blackwell).
    """
    from scipy.sparse import csr_array

    s = spins.astype(np.float64)
    fields = np.zeros_like(s)
    for arity, rows, theta in polynomial.by_arity():
        step = max(1, _ENTRIES // (len(s) * arity))
        for low in range(0, len(rows), step):
            part = rows[low : low + step]
            products = theta[low : low + step] * s[:, part].prod(axis=2)
            owner = np.repeat(np.arange(len(part)), arity)
            ones = np.ones(part.size)
            # Sum over terms at each spin as one sparse product: fields (S, n) = products (S, T) @
            # incidence.
            incidence = csr_array((ones, (owner, part.ravel())), shape=(len(part), polynomial.n))
            fields += products @ incidence
    return np.tanh(fields * s)  # products contain s_i itself, and s_i^2 = 1


BLACKWELL = 4.0
"""Draws that a conditional mean is worth, about, where the spin itself is worth one."""


def marginals_of(
    encoding: Form,
    found: Ends,
    basis: NDArray[np.uint8],
    estimate: PointEstimate,
) -> Marginals:
    """Marginals of the working model, and whether the two halves agree on them."""
    halves = found.first_half
    if isinstance(encoding, SpinEncoding) and encoding.direct:
        rows = conditional_means(encoding.polynomial, found.ends)
        values = [symmetrise_means(_average(found, rows, which), basis) for which in _parts(halves)]
        whole, first, second = (encoding.marginals(v) for v in values)
    else:
        states = encoding.lift_states(found.ends)
        cards = encoding.model.cardinalities.astype(np.int64)  # type: ignore[union-attr]
        whole, first, second = (
            _counted(states, _shares(found, which), cards) for which in _parts(halves)
        )
    # Starts, not chains: copies of one ancestor say one thing.
    effective = found.effective
    apart = max((float(np.abs(p - q).max()) for p, q in zip(first, second, strict=True)), default=0)
    # The largest of many differences: 4 standard errors of a half's mean, plus a twentieth that
    # nobody acts upon.
    agree = apart <= 0.05 + 4.0 * math.sqrt(0.5 / max(1.0, effective))
    mixed = agree and effective >= ENOUGH and math.isfinite(estimate.error)
    symmetrised = SYMMETRISED if encoding.direct and basis.any() else ""
    return Marginals(
        list(whole),
        "AIS" + symmetrised,
        BLACKWELL * effective if mixed else -math.inf,
        Mixing.MIXED if mixed else Mixing.NOT_MIXED,
    )


def resampler(
    encoding: Form, found: Ends, estimate: PointEstimate, mixing: Mixing
) -> Callable[..., Any] | None:
    """Draws of the ends in proportion to their weights; None where they do not stand for p."""
    if mixing is not Mixing.MIXED:
        return None
    # Drawing by weight and then setting all weights equal to the estimate of Z is the usual
    # resampling: averages keep their expectation, the effective number stays that of the starts.
    shares = _normalised(found.log_weights)
    basis = flips_of(encoding) if isinstance(encoding, SpinEncoding) else None
    worth = found.effective

    def sample(k: int, seed: Seed = None) -> Samples:
        rng = generator(seed)
        drawn = encoding.lift_states(found.ends[rng.choice(len(shares), size=k, p=shares)])
        if basis is not None:
            drawn = symmetrise_states(drawn, basis, rng)
        most = k * worth / (k + worth)  # they scatter about the ends as the ends do about p
        return Samples(drawn, np.full(k, estimate.log_z), mixing, most)

    return sample


def _parts(halves: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], ...]:
    return np.ones_like(halves), halves, ~halves


def _shares(found: Ends, which: NDArray[np.bool_]) -> NDArray[np.float64]:
    return _normalised(np.where(which, found.log_weights, -np.inf))


def _average(
    found: Ends, rows: NDArray[np.float64], which: NDArray[np.bool_]
) -> NDArray[np.float64]:
    means: NDArray[np.float64] = _shares(found, which) @ rows
    return means


def state_shares(found: Ends, cards: NDArray[Any]) -> list[NDArray[np.float64]]:
    """The weighted share of each state of every variable among end states."""
    return _counted(found.ends, _normalised(found.log_weights), cards)


def _counted(
    states: NDArray[np.int64], shares: NDArray[np.float64], cards: NDArray[Any]
) -> list[NDArray[np.float64]]:
    pairs = zip(states.T, cards, strict=True)
    return [np.asarray(np.bincount(x, shares, minlength=int(d)), np.float64) for x, d in pairs]
