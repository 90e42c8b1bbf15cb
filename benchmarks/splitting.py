"""The splitting tree on grids with known log Z (independent transfer matrix in tests/naive.py).

Nothing wider than k = 10 is eliminated. Targets (issue 4) stand beside the figures. A 10x10 grid
falls to width 10 at once, so the tree itself is shown at exact_width = 6 and 4 as well, the latter
with mean field at the leaves.
"""

from __future__ import annotations

import math
from typing import Any

from tests import naive
from tightz.bounds import Side
from tightz.models.builders import ising_grid
from tightz.models.factor_graph import FactorGraph
from tightz.paper.coset_sum import coset_sum
from tightz.paper.setup import Projections
from tightz.reductions.encoding import encode
from tightz.runtime.clock import Clock
from tightz.splitting import PRODUCT, Splitting, SplittingTree, split
from tightz.splitting.run import SEARCH_SHARE
from tightz.workspace.workspace import Workspace


def main() -> None:
    """Gaps on both sides, seconds and leaves; a bound on the wrong side stops the run."""
    for family in (None, PRODUCT):  # compile
        split(ising_grid(5, seed=0), Splitting(family=family, exact_width=2, max_splits=4), seed=0)
    print("gap = distance from exact log Z; lower and upper ends are deterministic")
    for w, target in ((10.0, 0.01), (3.0, 0.05), (1.0, 0.3)):
        for options in ({}, {"exact_width": 6}, {"exact_width": 4, "family": PRODUCT}):
            _grids(10, (-w, w), range(900, 903), 10.0, f"{target}", options)
    _grids(20, (-10.0, 10.0), range(900, 905), 30.0, "0.25 on each")
    for low in (-1.0, 0.0):
        _grids(15, (low, 1.0), range(900, 901), 60.0, "0.7, interval at most 2")
    _grids(30, (-10.0, 10.0), range(900, 901), 60.0, "none here (an interval)")
    _equal_time()
    _coset_sums()


def _grids(
    side: int,
    coupling: tuple[float, float],
    seeds: range,
    seconds: float,
    target: str,
    options: dict[str, Any] | None = None,
) -> None:
    options = options or {}
    words = ", ".join(f"{k} {type(v).__name__ if k == 'family' else v}" for k, v in options.items())
    print(f"\n{side}x{side}, w in {coupling}, {seconds:g} s{', ' + words if words else ''}; "
          f"lower within {target}")  # fmt: skip
    for seed in seeds:
        model = ising_grid(side, coupling=coupling, seed=seed)
        log_z = naive.grid_log_z(side, side, list(model.factors)) if side <= 20 else math.nan
        tree = _tree(model, seconds, seed, Splitting(**options))
        for bound in tree.run():
            excess = bound.log_z - log_z
            if (excess if bound.side is Side.LOWER else -excess) > 1e-7:
                raise ArithmeticError(f"{bound} on the wrong side of {log_z}, seed {seed}")
        tree.check()
        r = tree.result()
        print(
            f"  seed {seed}: lower gap {log_z - r.lower:9.5f}  upper gap {r.upper - log_z:9.5f}  "
            f"interval {r.upper - r.lower:9.5f}  {len(r.depths)} leaves, "
            f"{int(r.exact.sum())} exact, {r.seconds:.1f} s",
            flush=True,
        )


def _tree(model: FactorGraph, seconds: float, seed: int, settings: Splitting) -> SplittingTree:
    work = Workspace.build(encode(model), seed=seed, time_limit=SEARCH_SHARE * seconds)
    return SplittingTree(work, settings, clock=Clock(seconds), seed=seed)


def _equal_time() -> None:
    print("\n20x20, w in [-10, 10], lower side alone, 15 s: mean field and structured leaves")
    model = ising_grid(20, coupling=(-10.0, 10.0), seed=910)
    log_z = naive.grid_log_z(20, 20, list(model.factors))
    for family in (PRODUCT, None):
        tree = _tree(model, 15.0, 0, Splitting(upper=False, family=family))
        marks = {2.0: math.inf, 5.0: math.inf, 10.0: math.inf, 15.0: math.inf}
        for bound in tree.run():
            for at in marks:
                if bound.side is Side.LOWER and bound.seconds <= at:
                    marks[at] = log_z - bound.log_z
        each = "  ".join(f"{at:g} s: {gap:.4f}" for at, gap in marks.items())
        name = "mean field" if family else "structured"
        print(f"  {name}: {each}  ({tree.result().splits} splits)", flush=True)


def _coset_sums() -> None:
    print("\n10x10, w in [-3, 3], collapse k = 4: coset sums over all 2^m right-hand sides")
    model = ising_grid(10, coupling=(-3.0, 3.0), seed=900)
    log_z = naive.grid_log_z(10, 10, list(model.factors))
    for m in (0, 2, 4, 6, 8):
        found = coset_sum(model, m, projections=Projections(collapse=4), seed=0)
        print(f"  m = {m}: gap {log_z - found.log_z:.4f} in {found.seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
