"""What all chunks of a run share: the plan, and the polynomial's arrays on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.mean_field import MeanField
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.paper.gpu.ascent import SLOTS
from tightz.paper.trials import TrialPlan
from tightz.projections.coset import Coset
from tightz.projections.gf2 import pack
from tightz.projections.hashing import SparseParity
from tightz.runtime.gpu.device import WIDTH, cuda
from tightz.search.annealing import AnnealedMeanField


@dataclass(frozen=True, eq=False)
class DeviceModel:
    """Arrays on the device, float64 for the evaluator and float32 for the ascent.

    terms         (ptr, spins, theta) of the polynomial
    pairs         (near, weight, field): partners per spin in two-spin terms, and one-spin terms
    singles       (ptr, spins) products whose averages are wanted: all spins, or none without lift
    wanted        (ptr, spins) the plan's pairs
    order         (n,) pivots, most wanted first
    betas         inverse temperatures of the first sweeps; spread: starts lie in [-spread, spread]
    states        (words, S) the plan's states as bits, bit n set; None without
    density       of the parities; -1 for fair coins
    most_long     (n + 1,) most long terms that each level can leave
    """

    plan: TrialPlan
    family: MeanField | AnnealedMeanField
    terms: tuple[Any, Any, Any]
    pairs: tuple[Any, Any, Any]
    singles: tuple[Any, Any]
    wanted: tuple[Any, Any]
    order: Any
    betas: Any
    spread: float
    density: float
    states: Any
    most_long: NDArray[np.int64]

    @classmethod
    def build(cls, plan: TrialPlan) -> DeviceModel:
        poly, n = plan.polynomial, plan.polynomial.n
        family = plan.family
        assert isinstance(family, MeanField | AnnealedMeanField)
        betas, spread = np.zeros(0), 1.0
        if isinstance(family, AnnealedMeanField):
            betas, spread = family.schedule(Coset.build(poly)), family.spread
        every = n if plan.lift else 0
        wanted = np.asarray(plan.pairs, np.int32).reshape(-1, 2)
        return cls(
            plan=plan,
            family=family,
            terms=_to_device(poly.ptr, poly.spins, poly.theta),
            pairs=_to_device(*_pairs(poly)),
            singles=_to_device(np.arange(every + 1), np.arange(every, dtype=np.int32)),
            wanted=_to_device(2 * np.arange(len(wanted) + 1), wanted.ravel()),
            order=cuda.to_device(plan.pivots.order(n).astype(np.int64)),
            betas=cuda.to_device(betas.astype(np.float32)),
            spread=spread,
            density=plan.hashing.density if isinstance(plan.hashing, SparseParity) else -1.0,
            states=_state_bits(plan) if isinstance(family, MeanField) else None,
            most_long=most_long(poly),
        )

    @property
    def n(self) -> int:
        return self.plan.polynomial.n

    @cached_property
    def sweep_limit(self) -> int:
        return self.family.max_sweeps + int(self.betas.size)

    def holds(self, level: int) -> bool:
        """Whether the largest kernel holds the long terms that this level may leave."""
        return bool(self.most_long[level] <= SLOTS[-1] * WIDTH)

    @property
    def crowded(self) -> bool:
        """Whether some spin has more partners than an ascent has lanes."""
        return bool(self.pairs[0].shape[1] > WIDTH)

    @cached_property
    def bytes_by_level(self) -> NDArray[np.int64]:
        """(n + 1,) device memory for one projection, at most."""
        words, level = self.n // 64 + 1, np.arange(self.n + 1)
        masks = 4 * WIDTH * (self.most_long // (32 * WIDTH) + 1) * self.n
        means = self.n * (4 * (2 + self.family.restarts) + 8)
        terms = 8 * self.plan.polynomial.n_terms + 8 * words * self.most_long
        states = 0 if self.states is None else 8 * (words + 1) * self.states.shape[1]
        return level * (8 * words + 1) + terms + masks + means + states


def slots_for(long_terms: NDArray) -> NDArray[np.int64]:
    """The smallest kernel that holds this many long terms, elementwise."""
    most = int(long_terms.max(initial=0))
    if most > SLOTS[-1] * WIDTH:
        raise UnsupportedModelError(
            f"a projection leaves {most} long terms; the device kernels hold "
            f"{SLOTS[-1] * WIDTH}. Use backend='cpu' or fewer parities"
        )
    sizes = np.array(SLOTS)
    return sizes[np.searchsorted(sizes * WIDTH, long_terms)]


def most_long(poly: SpinPolynomial) -> NDArray[np.int64]:
    """(n + 1,) the most long terms that m parities can leave: those of three spins or more, and
    those that one of m constrained spins touches."""
    short = poly.arities <= 2
    touching = np.bincount(poly.spins[np.repeat(short, poly.arities)], minlength=poly.n)
    worst = np.concatenate([[0], np.cumsum(np.sort(touching)[::-1])])
    return int((~short).sum()) + np.minimum(worst, int(short.sum()))


def _state_bits(plan: TrialPlan) -> Any:
    """The plan's states as words of bits, 1 for spin -1; bit n meets the parities' right side."""
    if plan.states is None or not len(plan.states):
        return None
    right_side = np.ones((len(plan.states), 1), np.uint8)
    down = (np.asarray(plan.states) < 0).astype(np.uint8)
    return cuda.to_device(np.ascontiguousarray(pack(np.concatenate([down, right_side], axis=1)).T))


def _to_device(*arrays: NDArray) -> tuple[Any, ...]:
    return tuple(cuda.to_device(np.ascontiguousarray(a)) for a in arrays)


def _pairs(poly: SpinPolynomial) -> tuple[NDArray, ...]:
    """(near, weight, field): partners and weights of the two-spin terms (n, largest degree), each
    row filled up with weight 0, and the one-spin terms."""
    n = poly.n
    field = np.zeros(n, np.float32)
    ends, theta_of = np.zeros((0, 2), np.int32), np.zeros(0)
    for arity, rows, theta in poly.by_arity():
        if arity == 1:
            field[rows[:, 0]] = theta
        elif arity == 2:
            ends, theta_of = rows, theta
    both = np.concatenate([ends, ends[:, ::-1]])
    by_spin = np.argsort(both[:, 0], kind="stable")
    spin, partner = both[by_spin].T
    degrees = np.bincount(spin, minlength=n)
    slot = np.arange(spin.size) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    near = np.zeros((n, max(1, degrees.max(initial=0))), np.uint32)
    weight = np.zeros(near.shape, np.float32)
    near[spin, slot] = partner
    weight[spin, slot] = np.concatenate([theta_of, theta_of])[by_spin]
    return near, weight, field
