"""Block mean field on a coset: one table per variable over its bits that stay free.

Let w_c = E_q[chi_c] for a subset c of the free bits of one variable. A term of the model is a
signed product of free spins on the coset (its image), and q is a product over variables, so the
term's expectation is the product over variables of w for the part of the image that lies there.
The objective is therefore linear in the w of one variable, sum_c g_c w_c, and the best table given
the others is q(y) proportional to exp(sum_c g_c chi_c(y)). At m = 0 this is block mean field; where
every variable is one bit it is mean field. Point masses are in the family.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.projection import Drawn, IProjection, Status, chart_of, check_states
from tightz.judge.forests import ForestQ
from tightz.projections.coset import Coset
from tightz.runtime.kernels import kernel, spliced

MAX_BITS = 12
"""Free bits of one variable: a table of 2^12 entries at most."""


_CHUNK = 4096
"""Terms whose images are held at a time."""


class Blocks(NamedTuple):
    """Free spins by variable: block b has spins first[b] to first[b + 1] - 1, all neighbours.

    Its table, and its w, are entries table_ptr[b] to table_ptr[b + 1] - 1; spin first[b] + j is
    bit j of an entry's number.
    """

    first: NDArray[np.int64]
    table_ptr: NDArray[np.int64]
    block_of: NDArray[np.int64]


class _Terms(NamedTuple):
    """Images as products of w, block by block: incidences block_ptr[b] to block_ptr[b + 1] - 1
    say which term meets block b and in which entry; theta has the signs of the images.
    """

    theta: NDArray[np.float64]
    block_ptr: NDArray[np.int64]
    term: NDArray[np.int64]
    entry: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockProjection(IProjection):
    """The best product of tables found; `tables` is flat, as `blocks` says.

    `means` are the free spins' own means; expectations come from the tables.
    """

    blocks: Blocks
    tables: NDArray[np.float64]

    def expectations(self, ptr: NDArray, spins: NDArray) -> NDArray[np.float64]:
        """E_q[prod of spins[ptr[a]:ptr[a+1]]] for each a; NaN where Z(A, b) = 0."""
        if not self.coset.feasible:
            return np.full(len(ptr) - 1, np.nan)
        return _expectations(self.coset, self.blocks, self.tables[:, None], ptr, spins)[:, 0]

    def evaluated(self) -> float:
        """log_gamma afresh, from q alone."""
        return float(evaluate_blocks(self.coset, self.blocks, self.tables[:, None])[0])

    def condition(self, parity: tuple[int, ...], sign: int) -> None:
        """Not offered: a parity may tie bits of several variables."""
        return None

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """`count` independent states of q: one entry of every variable's table."""
        check_states(self)
        y, log_q = np.ones((count, self.coset.n_free)), np.zeros(count)
        at = self.blocks.table_ptr.tolist()
        for b, (low, high) in enumerate(itertools.pairwise(self.blocks.first.tolist())):
            table = self.tables[at[b] : at[b + 1]]
            entry = rng.choice(table.size, size=count, p=table / table.sum())
            y[:, low:high] = 1.0 - 2.0 * (entry[:, None] >> np.arange(high - low) & 1)
            log_q += np.log(table[entry])
        return Drawn(self.coset.spins_from_free(y), log_q)

    def distribution(self) -> ForestQ:
        """A table over the bits of a variable as conditionals: bit j given bits j + 1 and up."""
        first, at = self.blocks.first.tolist(), self.blocks.table_ptr.tolist()
        sizes: list[int] = []
        separators: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
        tables: list[NDArray[np.float64]] = [np.zeros(0)]
        for b, (low, high) in enumerate(itertools.pairwise(first)):
            joint = self.tables[at[b] : at[b + 1]]
            for k in range(low, high):
                sizes.append(high - k - 1)
                separators.append(np.arange(k + 1, high))
                tables.append(joint)
                joint = joint[0::2] + joint[1::2]
        ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        spins = np.arange(self.coset.n_free)
        return ForestQ(
            chart_of(self.coset), spins, ptr, np.concatenate(separators), np.concatenate(tables)
        )


def blocks_of(coset: Coset) -> Blocks:
    """The free spins by variable; each spin by itself where the polynomial names no blocks."""
    labels = getattr(coset.polynomial, "blocks", None)
    free = np.arange(coset.n_free) if labels is None else np.asarray(labels)[coset.free]
    starts = np.flatnonzero(np.diff(free, prepend=-1 if free.size == 0 else free[0] - 1))
    first = np.append(starts, coset.n_free).astype(np.int64)
    sizes = np.diff(first)
    if sizes.max(initial=0) > MAX_BITS:
        raise UnsupportedModelError(
            f"a variable has {sizes.max()} free bits; block tables hold at most {MAX_BITS}. "
            "tz.MeanField treats bits one by one"
        )
    table_ptr = np.concatenate([[0], np.cumsum(1 << sizes)]).astype(np.int64)
    return Blocks(first, table_ptr, np.repeat(np.arange(sizes.size), sizes))


def project_blocks(
    coset: Coset,
    starts: list[tuple[NDArray[np.float64], int]],
    *,
    tol: float,
    max_sweeps: int,
) -> BlockProjection:
    """Ascend from groups of starts, (tables (entries, lanes), annealing sweeps), and keep the best.

    The inverse temperature rises linearly over a group's annealing sweeps. Values are evaluated
    apart from the ascent, in float64, from the model's own terms.
    """
    blocks = blocks_of(coset)
    lanes = sum(tables.shape[1] for tables, _ in starts)
    if not coset.feasible or coset.polynomial.constant == -np.inf:
        status = Status.CONVERGED if coset.feasible else Status.INFEASIBLE
        nothing, flat = np.zeros(coset.n_free), np.zeros(int(blocks.table_ptr[-1]))
        values = np.full(lanes, -np.inf)
        return BlockProjection(coset, -np.inf, values, nothing, 0, status, blocks, flat)
    terms = _terms(coset, blocks)
    sweeps, converged = 0, True
    for tables, annealing in starts:
        betas = np.arange(1, annealing + 1) / (annealing + 1.0)
        done, moved = _ascend(blocks, terms, tables, betas, tol, max_sweeps + annealing)
        sweeps += done * tables.shape[1]
        converged &= bool(moved <= tol)
    every = np.concatenate([tables for tables, _ in starts], axis=1)
    values = evaluate_blocks(coset, blocks, every)
    top = int(np.argmax(values))
    best = np.ascontiguousarray(every[:, top])
    single = coset.free.astype(np.int32)
    means = _expectations(coset, blocks, best[:, None], np.arange(single.size + 1), single)[:, 0]
    status = Status.CONVERGED if converged else Status.NOT_CONVERGED
    return BlockProjection(coset, float(values[top]), values, means, sweeps, status, blocks, best)


def evaluate_blocks(
    coset: Coset, blocks: Blocks, tables: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log gamma of each column of `tables` (entries, lanes): theta . E_q[chi] + entropy.

    Independent of the ascent: it starts from the model's own terms and the coset's supports.
    """
    poly = coset.polynomial
    sums = np.add.reduceat(tables, blocks.table_ptr[:-1], axis=0) if len(tables) else np.ones(1)
    if np.isnan(tables).any() or (tables < 0.0).any() or (np.abs(sums - 1.0) > 1e-9).any():
        raise ArithmeticError("a table is no distribution: this is a bug in the optimiser")
    chi = _expectations(coset, blocks, tables, poly.ptr, poly.spins)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(tables > 0.0, tables * np.log(tables), 0.0).sum(axis=0)
    return poly.constant + np.einsum("t,tr->r", poly.theta, chi) + entropy


def random_tables(blocks: Blocks, lanes: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Tables (entries, lanes) drawn uniformly from the simplex of each block."""
    tables = rng.exponential(size=(int(blocks.table_ptr[-1]), lanes))
    if len(tables):
        totals = np.add.reduceat(tables, blocks.table_ptr[:-1], axis=0)
        tables /= np.repeat(totals, np.diff(blocks.table_ptr), axis=0)
    return tables


def point_tables(blocks: Blocks, free_spins: NDArray) -> NDArray[np.float64]:
    """Tables (entries, lanes) with all weight on the given states (lanes, n_free)."""
    bits = np.asarray(free_spins).T < 0
    place = np.arange(len(bits)) - blocks.first[blocks.block_of]
    codes = np.zeros((blocks.first.size - 1, bits.shape[1]), dtype=np.int64)
    np.add.at(codes, blocks.block_of, bits.astype(np.int64) << place[:, None])
    tables = np.zeros((int(blocks.table_ptr[-1]), bits.shape[1]))
    tables[blocks.table_ptr[:-1, None] + codes, np.arange(bits.shape[1])] = 1.0
    return tables


def _terms(coset: Coset, blocks: Blocks) -> _Terms:
    poly = coset.polynomial
    parts: list[tuple[NDArray, NDArray, NDArray]] = []
    signs = np.empty(poly.n_terms)
    for low in range(0, poly.n_terms, _CHUNK):
        high = min(low + _CHUNK, poly.n_terms)
        words, signs[low:high] = coset.images(poly.ptr[low : high + 1], poly.spins)
        count = int(np.bitwise_count(words).sum())  # no fewer than the incidences
        term, block, entry = (np.empty(count, dtype=np.int64) for _ in range(3))
        used = _list_parts(words, blocks, term, block, entry)
        parts.append((term[:used] + low, block[:used], entry[:used]))
    none = (np.zeros(0, dtype=np.int64),) * 3
    term, block, entry = (np.concatenate(part) for part in zip(none, *parts, strict=True))
    order = np.argsort(block, kind="stable")
    counts = np.bincount(block, minlength=blocks.first.size - 1)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return _Terms(poly.theta * signs, ptr, term[order], entry[order])


@kernel
def _list_parts(words, blocks, term, block, entry):  # type: ignore[no-untyped-def]
    """One incidence per (term, block that its image meets), with the entry of that part."""
    at = 0
    for a in range(words.shape[0]):
        last = -1
        for w in range(words.shape[1]):
            bits = words[a, w]
            k = w << 6
            while bits != np.uint64(0):
                if bits & np.uint64(1):
                    b = blocks.block_of[k]
                    if b != last:
                        term[at], block[at], entry[at] = a, b, blocks.table_ptr[b]
                        at += 1
                        last = b
                    entry[at - 1] += 1 << (k - blocks.first[b])
                bits >>= np.uint64(1)
                k += 1
    return at


@spliced
def _walsh(values, low, high, lanes):  # type: ignore[no-untyped-def]
    """In place on rows low to high: f(c) <- sum_y f(y) chi_c(y), its own inverse up to 1/size."""
    step = 1
    while step < high - low:
        for start in range(low, high, 2 * step):
            for i in range(start, start + step):
                for r in range(lanes):
                    x, y = values[i, r], values[i + step, r]
                    values[i, r] = x + y
                    values[i + step, r] = x - y
        step *= 2


@kernel
def _ascend(blocks, terms, q, betas, tol, max_sweeps):  # type: ignore[no-untyped-def]
    """Sweep over blocks, q (entries, lanes) in place; (sweeps, the last sweep's largest gain).

    A step's gain is KL(new table || old), summed over a sweep to second order as |dq|^2 / (2 q).
    """
    lanes = q.shape[1]
    n_blocks = blocks.first.size - 1
    w = q.copy()
    for b in range(n_blocks):
        _walsh(w, blocks.table_ptr[b], blocks.table_ptr[b + 1], lanes)
    widest = 1
    for b in range(n_blocks):
        widest = max(widest, blocks.table_ptr[b + 1] - blocks.table_ptr[b])
    g = np.empty((widest, lanes))
    after = np.empty((terms.term.size, lanes))
    before = np.empty((terms.theta.size, lanes))
    tail = np.empty((terms.theta.size, lanes))
    gains = np.empty(lanes)
    largest = np.inf
    for sweep in range(max_sweeps):
        beta = betas[sweep] if sweep < betas.size else 1.0
        for a in range(terms.theta.size):
            for r in range(lanes):
                before[a, r] = terms.theta[a]
                tail[a, r] = 1.0
        for p in range(terms.term.size - 1, -1, -1):
            a, e = terms.term[p], terms.entry[p]
            for r in range(lanes):
                after[p, r] = tail[a, r]
                tail[a, r] *= w[e, r]
        gains[:] = 0.0
        for b in range(n_blocks):
            low, high = blocks.table_ptr[b], blocks.table_ptr[b + 1]
            size = high - low
            for i in range(size):
                for r in range(lanes):
                    g[i, r] = 0.0
            for p in range(terms.block_ptr[b], terms.block_ptr[b + 1]):
                a, i = terms.term[p], terms.entry[p] - low
                for r in range(lanes):
                    g[i, r] += before[a, r] * after[p, r]
            _walsh(g, 0, size, lanes)
            for r in range(lanes):
                top = g[0, r]
                for i in range(1, size):
                    top = max(top, g[i, r])
                total = 0.0
                for i in range(size):
                    g[i, r] = np.exp(beta * (g[i, r] - top))
                    total += g[i, r]
                for i in range(size):
                    new = g[i, r] / total
                    change = abs(new - q[low + i, r])
                    gains[r] += 0.5 * change * change / max(new, change, 1e-300)
                    q[low + i, r] = new
                    w[low + i, r] = new
            _walsh(w, low, high, lanes)
            for p in range(terms.block_ptr[b], terms.block_ptr[b + 1]):
                a, e = terms.term[p], terms.entry[p]
                for r in range(lanes):
                    before[a, r] *= w[e, r]
        largest = gains[0]
        for r in range(1, lanes):
            # A gain that is no number stays: it must not pass for convergence.
            if gains[r] > largest or np.isnan(gains[r]):
                largest = gains[r]
        if sweep + 1 > betas.size and largest <= tol:
            return sweep + 1, largest
    return max_sweeps, largest


def _expectations(
    coset: Coset, blocks: Blocks, tables: NDArray[np.float64], ptr: NDArray, spins: NDArray
) -> NDArray[np.float64]:
    """(terms, lanes) E_q of products of model spins, straight from the tables."""
    count = len(ptr) - 1
    out = np.empty((count, tables.shape[1]))
    for low in range(0, count, _CHUNK):
        high = min(low + _CHUNK, count)
        words, signs = coset.images(ptr[low : high + 1], spins)
        out[low:high] = signs[:, None]
        _multiply_parts(words, blocks, np.ascontiguousarray(tables), out[low:high])
    return out


@kernel
def _multiply_parts(words, blocks, tables, out):  # type: ignore[no-untyped-def]
    """out[a] times, for each block met by image a, sum_y q(y) (-1)^(bits of y in the image)."""
    lanes = tables.shape[1]
    for a in range(words.shape[0]):
        done = -1  # the last spin of the block multiplied last
        for w in range(words.shape[1]):
            if words[a, w] == np.uint64(0):
                continue
            for k in range(max(w << 6, done + 1), (w + 1) << 6):
                if k <= done or not (words[a, w] >> np.uint64(k & 63)) & np.uint64(1):
                    continue
                b = blocks.block_of[k]
                mask = 0
                for j in range(k, blocks.first[b + 1]):
                    if (words[a, j >> 6] >> np.uint64(j & 63)) & np.uint64(1):
                        mask |= 1 << (j - blocks.first[b])
                done = blocks.first[b + 1] - 1
                low = blocks.table_ptr[b]
                for r in range(lanes):
                    mean = 0.0
                    for y in range(blocks.table_ptr[b + 1] - low):
                        odd = 0
                        both = y & mask
                        while both:
                            odd ^= both & 1
                            both >>= 1
                        mean += -tables[low + y, r] if odd else tables[low + y, r]
                    out[a, r] *= mean
