"""Deterministic bounds on log Z by splitting the space, two-sided and anytime.

The space is cut into regions by parities of one or two spins; each region has an I-projection as
its lower bound and elimination or mini-buckets as its upper bound. Z is the sum over regions, so
both sides add up, with no probability involved (the coset sum of Hsu, Achim and Ermon's setting,
with the parities chosen; anytime search trees for Z: Lou, Dechter and Ihler, 2017).
"""

from __future__ import annotations

from collections.abc import Iterator

from tightz.bounds import Bound
from tightz.models.inputs import as_model
from tightz.reductions.encoding import Model
from tightz.runtime.backends import Backend
from tightz.runtime.seeds import Seed
from tightz.splitting.results import SplittingResult
from tightz.splitting.run import PRODUCT, STRUCTURED, Family, SplittingTree

__all__ = [
    "PRODUCT",
    "STRUCTURED",
    "Family",
    "SplittingResult",
    "SplittingTree",
    "split",
    "splitting_bounds",
]


def splitting_bounds(
    model: Model,
    *,
    time_limit: float | None = None,
    seed: Seed = None,
    collapse: int | None = None,
    family: Family | None = None,
    upper: bool = True,
    exact_width: int = 10,
    threads: int | None = None,
    max_leaves: int | None = None,
    max_splits: int | None = None,
    backend: Backend = "auto",
) -> Iterator[Bound]:
    """A stream of ever tighter deterministic bounds on log Z; see `SplittingTree`."""
    as_model(model, "splitting_bounds")
    tree = SplittingTree(
        model, time_limit=time_limit, seed=seed, collapse=collapse, family=family, upper=upper,
        exact_width=exact_width, threads=threads, max_leaves=max_leaves, max_splits=max_splits,
        backend=backend,
    )  # fmt: skip
    return tree.run()


def split(
    model: Model,
    *,
    time_limit: float | None = None,
    seed: Seed = None,
    collapse: int | None = None,
    family: Family | None = None,
    upper: bool = True,
    exact_width: int = 10,
    threads: int | None = None,
    max_leaves: int | None = None,
    max_splits: int | None = None,
    backend: Backend = "auto",
) -> SplittingResult:
    """Both ends of log Z by splitting, with the leaves and their mixture; see `SplittingTree`.

    With no limit at all it runs until the interval is closed.
    """
    as_model(model, "split")
    tree = SplittingTree(
        model, time_limit=time_limit, seed=seed, collapse=collapse, family=family, upper=upper,
        exact_width=exact_width, threads=threads, max_leaves=max_leaves, max_splits=max_splits,
        backend=backend,
    )  # fmt: skip
    for _ in tree.run():
        pass
    return tree.result()
