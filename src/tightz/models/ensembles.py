"""Spin models of statistical physics: lattices in any dimension, random graphs, dense glasses.

Energies are E(s) = -sum J_ij s_i s_j - sum h_i s_i, so that exp(-E) is the model at temperature 1;
`tz.free_energy` takes it to others. Couplings and fields are one number for all, a range (low,
high) to draw uniformly from, or a distribution: `Normal(mean, deviation)`, `PlusMinus(strength)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, ParameterError, require_range
from tightz.models.builders import spins
from tightz.models.couplings import Coupled
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.models.inputs import as_count, as_number, as_range, real_array
from tightz.runtime.seeds import Seed, generator


@dataclass(frozen=True)
class PlusMinus:
    """+strength or -strength, each alone: the +-J spin glass.

    share   probability of +strength; 1 is a ferromagnet
    """

    strength: float = 1.0
    share: float = 0.5

    def __post_init__(self) -> None:
        as_number(self.strength, "strength")
        require_range("share", self.share, 0.0, 1.0)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        return np.where(rng.random(size) < self.share, self.strength, -self.strength)

    def __str__(self) -> str:
        return f"+-{self.strength:g}"


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers."""

    mean: float = 0.0
    deviation: float = 1.0

    def __post_init__(self) -> None:
        as_number(self.mean, "mean")
        require_range("deviation", as_number(self.deviation, "deviation"), 0.0)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        return rng.normal(self.mean, self.deviation, size)

    def __str__(self) -> str:
        return f"N({self.mean:g}, {self.deviation:g}^2)"


Drawn = float | tuple[float, float] | PlusMinus | Normal
"""One number for all, a range to draw uniformly from, or a distribution."""


def _drawn(how: Any, what: str, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    if isinstance(how, PlusMinus | Normal):
        return how.draw(rng, size)
    return rng.uniform(*as_range(how, what), size=size)


def _random(
    pairs: NDArray[np.int64], n: int, coupling: Drawn, field: Drawn, rng: np.random.Generator,
    name: str, layout: Grid | None = None,
) -> FactorGraph:  # fmt: skip
    """The model over these pairs: couplings are drawn first, then fields."""
    found = Coupled(n, pairs, _drawn(coupling, "coupling", rng, len(pairs)))
    return spins(found, _drawn(field, "field", rng, n), name=name, layout=layout)


def ising_lattice(
    shape: int | Sequence[int],
    *,
    coupling: Drawn = 1.0,
    field: Drawn = 0.0,
    seed: Seed = None,
    periodic: bool = False,
) -> FactorGraph:
    """Spins on a lattice of any dimension, each coupled to its nearest neighbours.

    shape      sites along each side: (6, 6, 6) is a cube; a single number a chain
    periodic   every direction is closed to a ring (a side of 2 or less is not: its bonds would be
               doubled)
    """
    sides = [shape] if not isinstance(shape, Sequence | np.ndarray) else list(shape)
    sides = [as_count(side, "a side of shape") for side in sides]
    if not sides:
        raise ParameterError("shape is empty; expected the length of each side, such as (6, 6, 6)")
    n = math.prod(sides)
    site = np.arange(n).reshape(sides)
    joined = []
    for axis, side in enumerate(sides):
        line = np.moveaxis(site, axis, 0)
        joined.append((line[:-1], line[1:]))
        if periodic and side > 2:
            joined.append((line[0], line[-1]))
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in joined])
    layout = Grid(sides[0], sides[1], periodic) if len(sides) == 2 else None
    name = f"{'x'.join(map(str, sides))} {'periodic ' if periodic else ''}lattice"
    return _random(pairs, n, coupling, field, generator(seed), name, layout)


def ising_triangular(
    rows: int,
    cols: int | None = None,
    *,
    coupling: Drawn = 1.0,
    field: Drawn = 0.0,
    seed: Seed = None,
    periodic: bool = False,
) -> FactorGraph:
    """A triangular lattice: rows x cols sites, joined right, down, and right and down.

    `periodic=True` closes both directions, which needs sides of at least 3.
    """
    rows = as_count(rows, "rows", 3 if periodic else 1)
    cols = rows if cols is None else as_count(cols, "cols", 3 if periodic else 1)
    row, col = np.divmod(np.arange(rows * cols), cols)
    found = []
    for down, right in ((0, 1), (1, 0), (1, 1)):
        inside = (row + down < rows) & (col + right < cols) | periodic
        other = (row + down) % rows * cols + (col + right) % cols
        found.append(np.stack([np.arange(rows * cols), other], axis=1)[inside])
    pairs = np.sort(np.concatenate(found), axis=1)
    name = f"triangular {rows}x{cols}{', periodic' if periodic else ''}"
    return _random(
        pairs, rows * cols, coupling, field, generator(seed), name, Grid(rows, cols, periodic)
    )


def random_regular(
    n: int, degree: int = 3, *, coupling: Drawn = 1.0, field: Drawn = 0.0, seed: Seed = None
) -> FactorGraph:
    """Spins on a random graph in which every one has `degree` neighbours.

    Ends of edges are paired at random; pairs that would be loops or repeat an edge are paired
    again, and all of them from the start where that does not end.
    """
    n, degree = as_count(n, "n"), as_count(degree, "degree", 0)
    if n * degree % 2 or degree >= n:
        raise ParameterError(
            f"no graph of {n} spins gives each {degree} neighbours; expected a degree below n with "
            "n * degree even"
        )
    rng = generator(seed)
    pairs = None
    while pairs is None:
        pairs = _paired(n, degree, rng)
    return _random(pairs, n, coupling, field, rng, f"random {degree}-regular graph, n = {n}")


def _paired(n: int, degree: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
    """Edges (E, 2); None where the ends that are left over cannot be joined."""
    edges: set[tuple[int, int]] = set()
    ends = np.repeat(np.arange(n), degree)
    while ends.size:
        left: list[int] = []
        before = len(edges)
        for a, b in np.sort(rng.permutation(ends).reshape(-1, 2), axis=1).tolist():
            if a == b or (a, b) in edges:
                left += [a, b]
            else:
                edges.add((a, b))
        if len(edges) == before and _stuck(left, edges):
            return None
        ends = np.array(left, dtype=np.int64)
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


def _stuck(left: list[int], edges: set[tuple[int, int]]) -> bool:
    """Whether no two of the ends left over may be joined."""
    few = sorted(set(left))
    return all((a, b) in edges for i, a in enumerate(few) for b in few[i + 1 :])


def sherrington_kirkpatrick(n: int, *, field: Drawn = 0.0, seed: Seed = None) -> FactorGraph:
    """Every pair of n spins coupled by a normal number of variance 1/n (Sherrington, Kirkpatrick).

    The critical temperature of large n is 1.
    """
    n = as_count(n, "n")
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    coupling = Normal(0.0, n**-0.5)
    return _random(pairs, n, coupling, field, generator(seed), f"SK, n = {n}")


def hopfield(
    patterns: ArrayLike | int, n: int | None = None, *, field: Drawn = 0.0, seed: Seed = None
) -> FactorGraph:
    """J_ij = 1/n sum over patterns of xi_i xi_j (Hopfield): a memory of these patterns.

    patterns   (p, n) of +1 and -1, or how many to draw
    n          spins, where patterns are drawn
    """
    rng = generator(seed)
    if n is not None:
        shape = as_count(patterns, "patterns"), as_count(n, "n")
        xi = np.where(rng.random(shape) < 0.5, 1.0, -1.0)
    else:
        xi = real_array(patterns, "patterns")
        if xi.ndim != 2 or (np.abs(xi) != 1.0).any():
            raise ModelError(
                "patterns are not rows of +1 and -1, all of one length; expected an array (p, n), "
                "or two numbers: tz.hopfield(2, 100) draws 2 patterns of 100 spins"
            )
    size = xi.shape[1]
    pairs = np.stack(np.triu_indices(size, 1), axis=1)
    weights = (xi.T @ xi)[pairs[:, 0], pairs[:, 1]] / size
    some = weights != 0.0
    found = Coupled(size, pairs[some], weights[some])
    name = f"Hopfield, {len(xi)} patterns, n = {size}"
    return spins(found, _drawn(field, "field", rng, size), name=name)
