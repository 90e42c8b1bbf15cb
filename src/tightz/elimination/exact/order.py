"""Elimination orders: which variable to sum out next, by many cheap heuristics, the best kept.

Costs are in table entries: eliminating v from the clique {v} + N(v) costs prod of its cards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.exact.game import (
    GIVEN,
    MIN_FILL,
    MIN_SIZE,
    bit_rows,
    eliminate_bits,
    eliminate_sets,
)
from tightz.models.factor_graph import FactorGraph, Grid

_BITSET_LIMIT = 6000  # variables; beyond this n^2 bits are too many
_WORDS_A_SECOND = 4e8  # of `eliminate_bits`, roughly
_WORDS_A_FACTOR = 2e4  # what a round of contraction paths costs, in the same currency
_PATH_LIMIT = 20_000  # factors; beyond this contraction paths take seconds


@dataclass(frozen=True)
class OrderChoice:
    """The order chosen, which heuristic found it, and what it costs (log2 of table entries)."""

    order: NDArray[np.int64]
    heuristic: str
    log2_cost: float


def interaction_graph(model: FactorGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ptr, neighbours): which variables share a factor, as compressed sparse rows, sorted."""
    n = model.n_variables
    keys = [np.zeros(0, dtype=np.int64)]
    for _, scopes, _ in model.batches():
        wide = scopes.astype(np.int64)
        for a, b in itertools.permutations(range(wide.shape[1]), 2):
            keys.append(wide[:, a] * n + wide[:, b])
    edges = np.unique(np.concatenate(keys))
    counts = np.bincount(edges // max(n, 1), minlength=n)
    return np.concatenate([[0], np.cumsum(counts)]), edges % max(n, 1)


def _breadth_first(ptr: NDArray[np.int64], neighbours: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cuthill-McKee: sweeps the graph from one end to the other, good on strips and lattices."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    n = ptr.size - 1
    graph = csr_matrix((np.ones(neighbours.size), neighbours, ptr), shape=(n, n))
    return np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True), dtype=np.int64)


def _sweeps(model: FactorGraph) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Orders that follow the numbering, or a lattice's columns and diagonals."""
    n = model.n_variables
    yield "natural", np.arange(n)
    yield "reverse", np.arange(n)[::-1].copy()
    if isinstance(model.layout, Grid) and model.layout.rows * model.layout.cols == n:
        rows, cols = np.divmod(np.arange(n), model.layout.cols)
        yield "columns", np.lexsort((rows, cols))
        yield "diagonals", np.lexsort((rows, rows + cols))


def _symbol(v: int) -> str:
    """cotengrust names an index by one character; surrogates are not characters."""
    return chr(v + 0x100 if v + 0x100 < 0xD800 else v + 0x900)


def _numbers_suffice(terms: int) -> bool:
    """Whether cotengrust's node numbers hold every node that its simplification can make.

    It numbers nodes in 8 bits below 128 terms and in 16 bits from there, which is enough for the
    2 terms - 1 nodes of a path. Simplifying can renumber each of them once more (a node loses the
    indices only it has), so the numbers wrap and the library panics ("no entry found for key").
    """
    return 4 * terms < (1 << 8 if terms < 128 else 1 << 16)


def _contraction_path(scopes: Sequence[tuple[int, ...]], cards: NDArray, trials: int, seed: int):  # type: ignore[no-untyped-def]
    """cotengrust's path over `scopes`; None where the library panics.

    A panic arrives as a BaseException whose class no module exports; it says nothing about the
    model, so the heuristic is skipped. Everything else (an interrupt, say) goes on.
    """
    from cotengrust import optimize_random_greedy_track_flops

    inputs = [tuple(_symbol(v) for v in s) for s in scopes]
    sizes = {_symbol(v): float(c) for v, c in enumerate(cards)}
    try:
        path, _ = optimize_random_greedy_track_flops(
            inputs, [], sizes, trials, seed=seed, simplify=_numbers_suffice(len(inputs)),
            use_ssa=True,
        )  # fmt: skip
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None
    return path


def _from_contraction_path(model: FactorGraph, trials: int, seed: int) -> NDArray[np.int64] | None:
    """The order in which a cotengrust contraction path sums variables out; None without one."""
    n = model.n_variables
    scopes = sorted({model.factor(f).scope for f in range(model.n_factors)} - {()})
    if not scopes:
        return np.arange(n)
    path = _contraction_path(scopes, model.cardinalities, trials, seed)
    if path is None:
        return None
    uses = np.zeros(n, dtype=np.int64)
    terms: dict[int, dict[int, int]] = {}  # term -> {variable: inputs below it that hold it}
    for k, scope in enumerate(scopes):
        terms[k] = dict.fromkeys(scope, 1)
        uses[list(terms[k])] += 1
    order: list[int] = [v for v in range(n) if uses[v] == 0]
    for new, pair in enumerate(path, start=len(scopes)):
        merged: dict[int, int] = {}
        for k in pair:
            for v, count in terms.pop(k).items():
                merged[v] = merged.get(v, 0) + count
        done = [v for v, count in merged.items() if count == uses[v]]
        order += done
        for v in done:
            del merged[v]
        terms[new] = merged
    left = np.ones(n, dtype=bool)
    left[order] = False
    return np.concatenate([order, np.flatnonzero(left)]).astype(np.int64)


def choose_order(
    model: FactorGraph, *, seconds: float | None = None, log2_cap: float = 100.0
) -> OrderChoice:
    """The cheapest order that the heuristics find in about `seconds`.

    Greedy smallest clique and least fill (Rose, 1972; Kjaerulff, 1990), sweeps along the
    numbering or the lattice, Cuthill-McKee, contraction paths of cotengrust, and noisy repeats
    of the greedy ones. A try stops as soon as it costs more than the best so far or more than
    2^`log2_cap` entries; with none below that the cost is inf. By default the search takes a small
    share of what the elimination itself would, at most 2 s. Time is counted in operations, not
    by a clock: the same model always has the same order.
    """
    n = model.n_variables
    if n == 0:
        return OrderChoice(np.zeros(0, dtype=np.int64), "nothing to eliminate", -np.inf)
    ptr, neighbours = interaction_graph(model)
    log2_card = np.log2(model.cardinalities.astype(np.float64))
    best = OrderChoice(np.arange(n), "none within reach", np.inf)
    quiet = np.zeros(n)
    large = n > _BITSET_LIMIT
    rows = np.zeros((0, 0), dtype=np.uint64) if large else bit_rows(ptr, neighbours)
    spent = 0.0

    def attempt(name: str, rule: int, given: NDArray[np.int64], noise: NDArray[np.float64]) -> None:
        nonlocal best, spent
        cap = min(log2_cap, best.log2_cost)
        if large:
            order, cost = eliminate_sets(ptr, neighbours, log2_card, rule, given, cap)
        else:
            order = np.empty(n, dtype=np.int64)
            work, cost = eliminate_bits(rows.copy(), log2_card, rule, given, noise, cap, order)
            spent += work + rows.size
        if cost < best.log2_cost:
            best = OrderChoice(order, name, float(cost))

    attempt("min-size", MIN_SIZE, best.order, quiet)
    if not large:
        attempt("min-fill", MIN_FILL, best.order, quiet)
    for name, order in _sweeps(model):
        attempt(name, GIVEN, order, quiet)
    sweep = _breadth_first(ptr, neighbours)
    attempt("cuthill-mckee", GIVEN, sweep, quiet)
    attempt("reverse cuthill-mckee", GIVEN, sweep[::-1].copy(), quiet)
    if seconds is None:
        # More search than the elimination takes cannot pay (it visits about 1e9 entries a second),
        # and a hopeless model stays so.
        share = 0.1 * 2.0 ** min(best.log2_cost, 60.0) / 1e9
        seconds = min(0.05, 1e-4 * n) + min(share, 2.0 if best.log2_cost < 48.0 else 0.5)
    rng = np.random.default_rng(0)
    trial = 0
    while spent < seconds * _WORDS_A_SECOND:
        if trial % 8 == 0 and model.n_factors <= _PATH_LIMIT:
            path = _from_contraction_path(model, 8, trial)
            if path is not None:
                attempt("cotengrust", GIVEN, path, quiet)
            spent += _WORDS_A_FACTOR * model.n_factors
        if large:
            break
        rule, name = [(MIN_FILL, "noisy min-fill"), (MIN_SIZE, "noisy min-size")][trial % 2]
        attempt(name, rule, best.order, rng.uniform(0, 1.5, n))
        spent += n  # the draw itself; also: an empty search must end
        trial += 1
    return best
