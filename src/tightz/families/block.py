"""Block mean field: q a product of one table per variable, for variables of any number of states.

The coordinate step is q_v(x) proportional to exp(E_q[log p~ | x_v = x]). With zero potentials q
keeps off forbidden states: a state of v gets no weight when some supported combination of its
neighbours forbids it. Started from a state of positive weight, every step raises the bound, so it
is finite throughout. Point masses are in the family.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ModelError, require_range
from tightz.families.block_projection import (
    BlockProjection,
    blocks_of,
    point_tables,
    project_blocks,
    random_tables,
)
from tightz.families.evidence import JENSEN
from tightz.families.mean_field import MeanField
from tightz.families.projection import Family, Status, heaviest_in_coset
from tightz.families.results import MeanFieldResult
from tightz.judge.products import ProductEvidence
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.models.observed import observe, per_variable
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.projections.coset import Coset
from tightz.reductions.bits import BlockPolynomial
from tightz.reductions.zeros import state_ptr
from tightz.runtime.kernels import inner, kernel
from tightz.runtime.provenance import provenance
from tightz.runtime.seeds import Seed, generator, seed_sequence

_BLOCK_ENTRIES = 1 << 22
"""Table entries that the evaluator expands at a time."""

_NEGLIGIBLE = 1e-290
"""Smaller probabilities become exactly zero: products of a few must not underflow unnoticed."""


@dataclass(frozen=True)
class BlockMeanField:
    """Settings: ascents from `restarts` starts, the temperature lowered over `annealing` sweeps.

    Starts that the caller gives are not annealed. With zero potentials a start must be given.
    As a family of `estimate` it keeps one table per variable over the bits that stay free.
    """

    restarts: int = 4
    tol: float = 1e-6
    max_sweeps: int = 500
    annealing: int = 30

    def __post_init__(self) -> None:
        require_range("restarts", self.restarts, 0)
        require_range("max_sweeps", self.max_sweeps, 0)
        require_range("annealing", self.annealing, 0)

    def project(
        self, coset: Coset, rng: np.random.Generator, states: NDArray | None = None
    ) -> BlockProjection:
        """The best product of tables on a coset; up to three quarters start from `states`."""
        require_range("restarts", self.restarts, 1)
        blocks = blocks_of(coset)
        starts = []
        if states is not None and len(states) and coset.feasible:
            known = heaviest_in_coset(coset, states, -(-3 * self.restarts // 4))
            starts.append((point_tables(blocks, known), 0))
        left = self.restarts - sum(tables.shape[1] for tables, _ in starts)
        if left:
            starts.append((random_tables(blocks, left, rng), self.annealing))
        return project_blocks(coset, starts, tol=self.tol, max_sweeps=self.max_sweeps)


def family_for(
    polynomial: SpinPolynomial, *, restarts: int = 8, tol: float = 1e-6, max_sweeps: int = 1000
) -> Family:
    """Mean field where spins are variables, one table per variable where spins are its bits."""
    if isinstance(polynomial, BlockPolynomial):
        return BlockMeanField(restarts, tol, max_sweeps, annealing=0)
    return MeanField(restarts, tol, max_sweeps)


class _Arrays(NamedTuple):
    """The model as the kernel reads it; factors of variable v are touch[touch_ptr[v]:...], and a
    sweep visits the variables in their `order`."""

    order: NDArray[np.int64]
    ptr: NDArray[np.int64]
    scope_ptr: NDArray[np.int64]
    scope_vars: NDArray[np.int32]
    table_ptr: NDArray[np.int64]
    log_tables: NDArray[np.float64]
    touch_ptr: NDArray[np.int64]
    touch: NDArray[np.int64]


def block_mean_field(
    model: FactorGraph,
    *,
    config: BlockMeanField | None = None,
    states: NDArray | None = None,
    order: NDArray | None = None,
    seed: Seed = None,
) -> MeanFieldResult:
    """The best product of tables from the given `states` (S, n) and from random starts.

    Evidence is observed first; marginals cover observed variables too. Random starts are of no
    use with zero potentials and left out there; without `states` such a model is refused.
    `order`: of all variables, in which a sweep visits them. With zeros it matters: who comes first
    is given freedom that others then lack.
    """
    as_model(model, "block_mean_field", only="FactorGraph")
    start = time.perf_counter()
    config = config or BlockMeanField()
    observed = observe(model, single_states=False)
    reduced, variables = observed.reduced, observed.kept
    rows = np.zeros((0, model.n_variables), dtype=np.int64)
    if states is not None:
        rows = np.atleast_2d(np.asarray(states, dtype=np.int64))
        if rows.shape[1] != model.n_variables or ((rows < 0) | (rows >= model.cardinalities)).any():
            raise ModelError(
                f"states have shape {rows.shape}; expected rows of {model.n_variables}, each entry "
                "a state of its variable (from 0)"
            )
    restarts = config.restarts
    if reduced.has_zeros:
        restarts = 0
        if not len(rows):
            raise ModelError(
                "the model has zero potentials and no states are given; expected a start of "
                "positive weight. tightz.search.feasible.feasible_state(model) looks for one"
            )
    arrays = _arrays(reduced)
    if order is not None:
        place = np.argsort(order)[variables]
        arrays = arrays._replace(order=np.argsort(place))
    root = seed_sequence(seed)
    rng = generator(root)
    best: tuple[float, NDArray[np.float64], bool] | None = None
    values, sweeps = [], 0
    for k in range(len(rows) + restarts):
        if k < len(rows):
            q = np.zeros(int(arrays.ptr[-1]))
            q[arrays.ptr[:-1] + rows[k][variables]] = 1.0
            annealing = 0
        else:
            q = _random_tables(arrays.ptr, rng)
            annealing = config.annealing
        used, converged = _ascend(arrays, q, config.max_sweeps, annealing, config.tol)
        sweeps += used
        values.append(evaluate_tables(reduced, q))
        if best is None or values[-1] > best[0]:
            best = values[-1], q, converged
    if best is None:
        raise ModelError("restarts is 0 and no states are given; expected at least one start")
    marginals = observed.lift_marginals(per_variable(best[1], reduced.cardinalities))
    evidence = ProductEvidence(marginals)
    low, _, rounding = evidence.verdict(model)
    seconds = time.perf_counter() - start
    bound = Bound(
        Side.LOWER, low, Proof.DETERMINISTIC, "block mean field", seconds, 1.0, JENSEN,
        rounding=rounding, evidence=evidence,
    )  # fmt: skip
    return MeanFieldResult(
        bound=bound,
        log_zs=np.array(values),
        marginals=marginals,
        status=Status.CONVERGED if best[2] else Status.NOT_CONVERGED,
        sweeps=sweeps,
        seconds=seconds,
        provenance=provenance(root, model.digest, family=config),
    )


def evaluate_tables(model: FactorGraph, q: NDArray[np.float64]) -> float:
    """E_q[log p~] + H(q) for a product of tables, flat in q; -inf where q supports a zero.

    Independent of the ascent: tables are expanded and summed by numpy in float64.
    """
    ptr = state_ptr(model.cardinalities)
    parts: list[float] = []
    for _, scopes, tables in model.batches():
        size = tables[0].size
        step = max(1, _BLOCK_ENTRIES // max(size, 1))
        for low in range(0, len(tables), step):
            block = tables[low : low + step]
            weight = np.ones((len(block), *(1,) * (tables.ndim - 1)))
            support = np.ones(weight.shape, dtype=bool)
            for axis in range(scopes.shape[1]):
                states = block.shape[axis + 1]
                shape = [len(block), *(1,) * scopes.shape[1]]
                shape[axis + 1] = states
                part = q[ptr[scopes[low : low + step, axis]][:, None] + np.arange(states)]
                weight = weight * part.reshape(shape)
                support = support & (part.reshape(shape) > 0.0)
            if (support & (block == -np.inf)).any():
                return -math.inf
            terms = np.where(support, weight * np.where(support, block, 0.0), 0.0)
            parts += terms.reshape(len(block), -1).sum(axis=1).tolist()
    positive = q[q > 0.0]
    parts += (-positive * np.log(positive)).tolist()
    return math.fsum(parts)


def _arrays(model: FactorGraph) -> _Arrays:
    owner = np.repeat(np.arange(model.n_factors), model.arities)
    by_variable = np.argsort(model.scope_vars, kind="stable")
    counts = np.bincount(model.scope_vars, minlength=model.n_variables)
    return _Arrays(
        np.arange(model.n_variables),
        state_ptr(model.cardinalities),
        model.scope_ptr,
        model.scope_vars,
        model.table_ptr,
        model.log_tables,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        owner[by_variable].astype(np.int64),
    )


def _random_tables(ptr: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    q = rng.exponential(size=int(ptr[-1]))
    if q.size:
        q /= np.repeat(np.add.reduceat(q, ptr[:-1]), np.diff(ptr))
    return q


@inner
def _expected_logs(m, q, v, g):  # type: ignore[no-untyped-def]
    """g[x] = E_q[log p~ | x_v = x] over the factors of v; -inf where q supports a zero."""
    g[: m.ptr[v + 1] - m.ptr[v]] = 0.0
    for j in range(m.touch_ptr[v], m.touch_ptr[v + 1]):
        f = m.touch[j]
        first, arity = m.scope_ptr[f], m.scope_ptr[f + 1] - m.scope_ptr[f]
        digits = np.zeros(arity, dtype=np.int64)
        own = 0
        for a in range(arity):
            if m.scope_vars[first + a] == v:
                own = a
        for e in range(m.table_ptr[f], m.table_ptr[f + 1]):
            weight, supported = 1.0, True
            for a in range(arity):
                if a != own:
                    part = q[m.ptr[m.scope_vars[first + a]] + digits[a]]
                    weight *= part
                    supported = supported and part > 0.0
            if supported:
                if m.log_tables[e] == -np.inf:
                    g[digits[own]] = -np.inf
                else:
                    g[digits[own]] += weight * m.log_tables[e]
            for a in range(arity - 1, -1, -1):
                u = m.scope_vars[first + a]
                digits[a] += 1
                if digits[a] < m.ptr[u + 1] - m.ptr[u]:
                    break
                digits[a] = 0


@kernel
def _ascend(m, q, max_sweeps, annealing, tol):  # type: ignore[no-untyped-def]
    """Coordinate ascent in place; (sweeps, whether the last one moved q by at most tol)."""
    n = m.ptr.size - 1
    widest = 1
    for v in range(n):
        widest = max(widest, m.ptr[v + 1] - m.ptr[v])
    g = np.empty(widest)
    for sweep in range(max_sweeps):
        beta = min(1.0, (sweep + 1.0) / (annealing + 1.0))
        moved = 0.0
        for v in m.order:
            _expected_logs(m, q, v, g)
            states = m.ptr[v + 1] - m.ptr[v]
            top = -np.inf
            for x in range(states):
                top = max(top, g[x])
            if top == -np.inf:
                continue  # nothing is allowed around this q: leave it, the evaluator tells
            total = 0.0
            for x in range(states):
                g[x] = np.exp(beta * (g[x] - top))
                total += g[x]
            for x in range(states):
                fresh = g[x] / total
                if fresh < _NEGLIGIBLE:
                    fresh = 0.0
                moved = max(moved, abs(fresh - q[m.ptr[v] + x]))
                q[m.ptr[v] + x] = fresh
        if beta == 1.0 and moved <= tol:
            return sweep + 1, True
    return max_sweeps, False
