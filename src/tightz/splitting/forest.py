"""Structured lower bounds on regions: conditional tables on one forest, pinned or conditioned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightz.families.structured import StructuredMeanField
from tightz.families.structured.evaluate import expectations, images, structured_bound
from tightz.families.structured.junction import Forest
from tightz.families.structured.kernels import ascend as ascend_tables
from tightz.families.structured.shape import Shape, product_tables, visits
from tightz.families.structured.terms import Images, cut_terms, merged_images
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.splitting.fits import START, Fit, Fitter, pins_of
from tightz.splitting.region import Region


@dataclass(frozen=True, eq=False)
class TreeFitter:
    """Structured mean field: conditional tables on one forest for all regions."""

    coset: Coset
    family: StructuredMeanField
    shape: Shape
    piece: NDArray[np.int64]

    @classmethod
    def build(
        cls,
        poly: SpinPolynomial,
        family: StructuredMeanField,
        rng: np.random.Generator,
        states: NDArray[np.int8],
    ) -> tuple[TreeFitter, Fit]:
        """The shape of the best root projection, and that projection."""
        coset = Coset.build(poly)
        best = family.project(coset, rng, states)
        work = _with_singles(merged_images(coset), coset.n_free)
        terms = cut_terms(best.forest, work)
        lone = np.flatnonzero(terms.piece_mask == 1)
        piece = np.empty(coset.n_free, dtype=np.int64)
        piece[best.forest.spin_of[terms.piece_node[lone]]] = lone
        shape = Shape(best.forest, terms, *visits(best.forest))
        return cls(coset, family, shape, piece), Fit(best.log_gamma, best.tables)

    def fit(
        self, region: Region, parent: NDArray[np.float64] | None, states: NDArray[np.int8]
    ) -> Fit:
        at, pins = pins_of(self.coset, region)
        forest, terms = self.shape.forest, self.shape.terms
        fixed = terms.fixed.copy()
        fixed[self.piece[at]] += pins * (1e3 + 4.0 * np.abs(self.coset.polynomial.theta).sum())
        starts = [product_tables(forest, START * s.astype(np.float64)) for s in states]
        if parent is not None:
            starts.insert(0, parent)
        if not starts:
            starts = [product_tables(forest, np.zeros(forest.n))]
        held = terms._replace(fixed=fixed)
        trace = np.empty(self.family.max_sweeps)
        best, reached = starts[0], -np.inf
        for start in starts:  # compared by the ascent's own value, which the pins shift alike
            tables = start.copy()
            _pin(forest, tables, forest.node_of[at], pins)
            done = ascend_tables(
                forest, held, self.shape.events, self.shape.event_ptr, tables, self.family.tol,
                self.family.max_sweeps, trace,
            )  # fmt: skip
            if trace[done - 1] > reached:
                best, reached = tables, trace[done - 1]
        _pin(forest, best, forest.node_of[at], pins)
        return Fit(structured_bound(self.coset, forest, best), best)

    def condition(self, q: NDArray[np.float64], spin: int, sign: int) -> NDArray[np.float64]:
        out = q.copy()
        node = int(self.shape.forest.node_of[self.coset.free_index[spin]])
        _condition(self.shape.forest, q, node, 0 if sign > 0 else 1, out)
        return out

    def expectations(
        self, q: NDArray[np.float64], ptr: NDArray, spins: NDArray
    ) -> NDArray[np.float64]:
        image_ptr, free, signs = images(self.coset, ptr, spins)
        return signs * expectations(self.shape.forest, q, image_ptr, free)

    def draw(
        self, q: NDArray[np.float64], count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        forest = self.shape.forest
        y = np.ones((count, forest.n))
        log_q = np.zeros(count)
        _draw(forest, q, rng.random((count, forest.n)), y, log_q)
        return self.coset.spins_from_free(y[:, forest.node_of]), log_q

    def tied(self, region: Region, parity: tuple[int, int]) -> None:
        """Not supported: a tie across the forest would change its shape."""
        return None


def _with_singles(work: Images, n: int) -> Images:
    """The same terms and, with coefficient 0, the single spins that are missing."""
    missing = np.setdiff1d(np.arange(n), work.free[work.ptr[:-1][work.lengths == 1]])
    return Images(
        work.constant,
        np.concatenate([np.arange(missing.size), work.ptr + missing.size]),
        np.concatenate([missing, work.free]),
        np.concatenate([np.zeros(missing.size), work.theta]),
    )


def cut_strength(fitter: Fitter) -> NDArray[np.float64]:
    """(n,) sum of |theta| of the terms at each spin that a q of this shape cannot follow."""
    poly = fitter.coset.polynomial
    owner = np.repeat(np.arange(poly.n_terms), poly.arities)
    weight = np.abs(poly.theta)
    if isinstance(fitter, TreeFitter):
        weight = weight * _outside(fitter.shape.forest, poly.ptr, poly.spins.astype(np.int64))
    return np.bincount(poly.spins, weight[owner], minlength=poly.n).astype(np.float64)


def _outside(forest: Forest, ptr: NDArray, spins: NDArray) -> NDArray[np.bool_]:
    """Which terms do not lie inside one bucket of the forest."""
    out = np.zeros(len(ptr) - 1, dtype=np.bool_)
    _cut(forest, ptr, spins, out)
    return out


@njit(cache=True, nogil=True)
def _cut(f, ptr, spins, out):  # type: ignore[no-untyped-def]
    """out[a]: some member of term a is not in the bucket of its first node."""
    for a in range(out.size):
        nodes = np.sort(f.node_of[spins[ptr[a] : ptr[a + 1]]])
        sep = f.sep[f.sep_ptr[nodes[0]] : f.sep_ptr[nodes[0] + 1]]
        for i in nodes[1:]:
            out[a] |= not (sep == i).any()


@njit(cache=True, nogil=True)
def _pin(f, tables, nodes, pins):  # type: ignore[no-untyped-def]
    """Make the tables of pinned nodes deterministic."""
    for i in range(nodes.size):
        for x in range(f.tab_ptr[nodes[i]], f.tab_ptr[nodes[i] + 1], 2):
            tables[x] = 1.0 if pins[i] > 0.0 else 0.0
            tables[x + 1] = 1.0 - tables[x]


@njit(cache=True, nogil=True)
def _condition(f, tables, node, state, out):  # type: ignore[no-untyped-def]
    """out = tables of q(. | y_node = state): Bayes' rule at the node and at its ancestors."""
    base = f.tab_ptr[node]
    message = tables[base + state : f.tab_ptr[node + 1] : 2].copy()
    out[base : f.tab_ptr[node + 1]] = 0.0
    out[base + state : f.tab_ptr[node + 1] : 2] = 1.0
    k, p = node, f.parent[node]
    while p >= 0:
        base = f.tab_ptr[p]
        size = f.tab_ptr[p + 1] - base
        proj = f.proj[f.proj_ptr[k] : f.proj_ptr[k + 1]]
        up = np.empty(size >> 1)
        for j in range(size >> 1):
            plus = tables[base + 2 * j] * message[proj[2 * j]]
            minus = tables[base + 2 * j + 1] * message[proj[2 * j + 1]]
            up[j] = plus + minus
            if up[j] > 0.0:
                out[base + 2 * j] = plus / up[j]
                out[base + 2 * j + 1] = minus / up[j]
        message = up
        k, p = p, f.parent[p]


@njit(cache=True, nogil=True)
def _draw(f, tables, uniform, y, log_q):  # type: ignore[no-untyped-def]
    """Ancestors first: y[s, k] from q(y_k | y_S_k); log_q[s] is the probability of the row."""
    for s in range(y.shape[0]):
        for k in range(f.parent.size - 1, -1, -1):
            j = 0
            for i in range(f.sep_ptr[k], f.sep_ptr[k + 1]):
                if y[s, f.sep[i]] < 0.0:
                    j |= 1 << (i - f.sep_ptr[k])
            up = tables[f.tab_ptr[k] + 2 * j]
            if uniform[s, k] < up:
                y[s, k] = 1.0
                log_q[s] += np.log(up)
            else:
                y[s, k] = -1.0
                log_q[s] += np.log(tables[f.tab_ptr[k] + 2 * j + 1])
