"""What happens to a model before any method runs: the same log Z over fewer variables.

Evidence and zeros are propagated, barren variables and leaves taken out, and small components
solved by themselves.
"""

from __future__ import annotations

import numpy as np

from tightz.judge.reductions import check_barren, check_substitution, check_sum
from tightz.models.factor_graph import FactorGraph
from tightz.models.observed import Observed, observe
from tightz.reductions.barren import Barren, drop_barren
from tightz.reductions.components import solve_components
from tightz.reductions.leaves import sum_out_leaves
from tightz.reductions.private import Private, sum_out_private
from tightz.reductions.reduction import Chain, Reduction
from tightz.reductions.zeros import Simplified, simplify


def prepare(model: FactorGraph, *, log2_size: float = 16.0, barren: bool = True) -> Chain:
    """Propagate zeros, drop barren variables, sum out leaves and private ones, solve components.

    Components of at most 2^log2_size joint states are solved. `barren=False` keeps barren and
    private variables, whose marginals nothing smaller has exactly.
    """
    steps: list[Reduction] = []

    def take(step: Reduction) -> bool:
        """Whether the step did anything; it is then kept."""
        done = step.reduced is not step.model
        if done:
            _check(step)
            steps.append(step)
        return done

    def now() -> FactorGraph:
        return steps[-1].reduced if steps else model

    take(observe(model))
    if barren:  # before zeros tie variables together: a tied table is no conditional any more
        take(drop_barren(now()))
    while True:
        take(simplify(now()))
        zeros = now().has_zeros
        # A leaf's table on its neighbour hides that the neighbour is barren, so these come first;
        # each may free work for the other.
        while True:
            if barren:
                take(drop_barren(now()))
            if not take(sum_out_leaves(now())) or not barren:
                break
        if not now().has_zeros or zeros:  # sums may show a state to be impossible
            break
    if barren:
        take(sum_out_private(now()))
    take(solve_components(now(), log2_size))
    return Chain(model, steps)


def substitute(model: FactorGraph) -> Chain:
    """The steps that sum nothing: evidence observed, zeros propagated, tied variables merged.

    States of positive weight and those of the reduced model are the same, weights included: the
    heaviest stays the heaviest.
    """
    steps: list[Reduction] = []
    step: Reduction = observe(model)
    if step.reduced is not model:
        steps.append(step)
    step = simplify(step.reduced)
    if step.reduced is not step.model:
        steps.append(step)
    for step in steps:
        _check(step)
    return Chain(model, steps)


def _check(step: Reduction) -> None:
    """Hold a step against the judge; RefutedError where it changed the model."""
    if isinstance(step, Observed):
        fixed = step.only_state
        fixed[step.kept] = -1
        source = np.zeros(step.model.n_variables, dtype=np.int64)
        source[step.kept] = np.arange(step.kept.size)
        maps = [np.arange(int(d)) for d in step.model.cardinalities]
        check_substitution(step.model, step.reduced, source, maps, fixed)
    elif isinstance(step, Simplified):
        if not step.contradiction:
            check_substitution(step.model, step.reduced, step.source, step.maps, step.fixed)
    elif isinstance(step, Barren) and not isinstance(step, Private):
        gone = [(b.variable, b.factor) for b in step.gone]
        check_barren(step.model, step.reduced, gone, step.rounding)
    else:
        check_sum(step.model, step.reduced, step.kept, step.rounding)  # type: ignore[attr-defined]
