"""Hypothesis strategies: small models and parity systems."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import tightz as tz
from tightz.projections import Parities


@st.composite
def binary_models(draw, max_variables=7, max_arity=3, scale=3.0, min_variables=1):
    """Binary factor graphs with positive tables, isolated variables and repeated scopes allowed."""
    n = draw(st.integers(min_variables, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    strength = draw(st.sampled_from([0.1, 1.0, scale, 10.0]))
    factors = []
    for _ in range(draw(st.integers(0, 2 * n))):
        arity = int(rng.integers(0, min(max_arity, n) + 1))
        scope = rng.choice(n, size=arity, replace=False).tolist()
        factors.append((scope, strength * rng.normal(size=(2,) * arity)))
    return tz.FactorGraph([2] * n, factors)


@st.composite
def parity_systems(draw, n, max_m=None):
    """(A, b) with m up to n: dense, sparse or rank-deficient, feasible or not."""
    m = draw(st.integers(0, n if max_m is None else min(n, max_m)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix = (rng.random((m, n)) < draw(st.sampled_from([0.2, 0.5, 0.8]))).astype(np.uint8)
    if m >= 2 and draw(st.booleans()):
        matrix[-1] = matrix[0] ^ matrix[m // 2]
    return Parities(matrix, rng.integers(0, 2, size=m, dtype=np.uint8))


@st.composite
def projected_models(draw, max_variables=7, max_arity=3):
    """A model with a parity system over its variables."""
    model = draw(binary_models(max_variables=max_variables, max_arity=max_arity))
    return model, draw(parity_systems(model.n_variables))


@st.composite
def models_with_zeros(draw, max_variables=6, max_states=4, zeros=(0.0, 0.3, 0.6)):
    """Factor graphs of many states with zeros, evidence, one-state variables and constants."""
    n = draw(st.integers(1, max_variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = rng.integers(1, max_states + 1, size=n)
    share = draw(st.sampled_from(zeros))
    factors = []
    for _ in range(draw(st.integers(0, 2 * n))):
        scope = rng.choice(n, size=int(rng.integers(0, min(3, n) + 1)), replace=False)
        table = 2.0 * rng.normal(size=tuple(cards[scope]))
        barred = rng.random(table.shape) < (share if scope.size else 0.0)
        factors.append((scope.tolist(), np.where(barred, -np.inf, table)))
    seen = {v: int(rng.integers(cards[v])) for v in range(n) if rng.random() < 0.15}
    return tz.FactorGraph(cards, factors, evidence=seen)
