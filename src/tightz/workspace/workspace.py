"""The working model: encoded, collapsed, and with what a search knows about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.errors import require_range
from tightz.families.evidence import link_of
from tightz.families.projection import IProjection
from tightz.judge.links import SpinLink
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.pivots import FirstColumns, PivotPolicy, Reliability
from tightz.reductions.bits import BlockPolynomial
from tightz.reductions.collapse import Collapsed, collapse
from tightz.reductions.encoding import Model, SpinEncoding, encode
from tightz.runtime.seeds import Seed, stream
from tightz.workspace.guide import Guide, build_guide, search_effort

SEARCH = 2**31
"""Key of the search's random stream; levels never reach it."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """`polynomial` is what cosets are drawn on: the encoded model, collapsed where that is on.

    original     the encoded model's polynomial
    collapsed    the record of summed-out spins, None when collapse is off
    guide        heavy states and reliabilities, None when no search was made
    """

    encoding: SpinEncoding
    original: SpinPolynomial
    collapsed: Collapsed | None
    polynomial: SpinPolynomial
    guide: Guide | None
    search_sweeps: int

    @classmethod
    def build(
        cls,
        model: Model | SpinEncoding,
        *,
        seed: Seed,
        collapse: int | None = None,
        search_sweeps: int | None = None,
        at_least: int = 0,
        time_limit: float | None = None,
    ) -> Workspace:
        """collapse: None picks by cost, 0 is off. search_sweeps: None picks by cost, 0 is off.

        An automatic collapse leaves at least `at_least` spins where the model has that many;
        `time_limit` may cut the search short.
        """
        encoding = model if isinstance(model, SpinEncoding) else encode(model, multivalued=True)
        original = encoding.polynomial
        collapsed = collapse_safely(original, collapse, at_least)
        sweeps = search_effort(original) if search_sweeps is None else search_sweeps
        require_range("search_sweeps", sweeps, 0)
        guide = None
        if sweeps:
            guide = build_guide(
                original,
                collapsed,
                sweeps=sweeps,
                seed=stream(seed, SEARCH),
                time_limit=time_limit,
            )
        polynomial = original if collapsed is None else collapsed.polynomial
        if collapsed is not None and isinstance(original, BlockPolynomial):
            polynomial = original.carried(polynomial, collapsed.kept)
        return cls(encoding, original, collapsed, polynomial, guide, sweeps)

    @cached_property
    def link(self) -> SpinLink:
        """How `polynomial` stands for the model, for the judge; checked once."""
        return link_of(self.encoding, self.collapsed)

    @property
    def states(self) -> NDArray[np.int8] | None:
        return None if self.guide is None else self.guide.states

    def original_states(self) -> NDArray[np.int8] | None:
        """The guide's states with summed-out spins at their heaviest values."""
        if self.guide is None or self.collapsed is None:
            return self.states
        return self.collapsed.lift_states(self.guide.states)

    @property
    def k(self) -> int:
        """The collapse in force, 0 for none."""
        return 0 if self.collapsed is None else self.collapsed.k

    def pivots(self, chosen: PivotPolicy | None = None) -> PivotPolicy:
        """The chosen policy; by default the least reliable spins where a search was made."""
        if chosen is not None:
            return chosen
        return FirstColumns() if self.guide is None else Reliability(self.guide.reliability)


def collapse_safely(polynomial: SpinPolynomial, k: int | None, at_least: int) -> Collapsed | None:
    """The collapsed model, its constant lowered by the rounding it declares; None when off.

    k=None picks by cost, and less where fewer than `at_least` spins would remain.
    """
    if k == 0 or polynomial.n == 0 or polynomial.constant == -np.inf:
        return None
    collapsed = collapse(polynomial, k)
    while k is None and collapsed.polynomial.n < at_least:
        if collapsed.k <= 1:
            return None
        collapsed = collapse(polynomial, collapsed.k - 1)
    safe = replace(collapsed.polynomial, constant=collapsed.polynomial.constant - collapsed.dropped)
    return replace(collapsed, polynomial=safe)


def lifted_means(best: IProjection, collapsed: Collapsed | None) -> NDArray[np.float64]:
    """E s_i of all the encoded model's spins: summed-out ones follow from the kept ones."""
    if collapsed is None:
        return best.spin_means()
    if best.log_gamma == -np.inf:
        return np.full(collapsed.original.n, np.nan)
    return collapsed.lift_means(best.expectations)
