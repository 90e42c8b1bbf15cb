"""Upper ends: quadratic elimination, planar models with weak fields."""

from __future__ import annotations

from collections.abc import Iterator

from tightz.bounds import Bound
from tightz.errors import UnsupportedModelError
from tightz.runtime.clock import Clock
from tightz.uppers.planar_fields import planar_field_bounds
from tightz.uppers.quadratic import Quadratic, quadratic_bounds
from tightz.workspace.findings import Finding
from tightz.workspace.working import Working, is_dense


def planar_fields(working: Working, clock: Clock) -> Iterator[Bound | Finding]:
    """Both ends of a planar spin model from its exact sum without fields, where these are weak."""
    for found in planar_field_bounds(
        working.graph, time_limit=clock.left, max_memory=working.max_memory // 4
    ):
        yield Finding() if found is None else found


SPARSE, DENSE = 600, 3000
"""Spins up to which quadratic elimination is tried: it takes n^3 steps whatever the couplings, and
where they are few and the model large, tables do better."""


def quadratic(working: Working, clock: Clock) -> Iterator[Bound]:
    """Quadratic elimination of spins: where couplings are dense nothing else comes near."""
    try:
        encoding = working.encoding
    except UnsupportedModelError:
        return
    polynomial = encoding.polynomial
    most = DENSE if is_dense(polynomial) else SPARSE
    if encoding.coset is None and polynomial.degree <= 2 and polynomial.n <= most:
        yield from quadratic_bounds(encoding, Quadratic(iterations=10**6, time_limit=clock.left))
