"""Streams for dense pairwise models such as RBMs: sum a layer out, put q on the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.layer import LayerMeanField, layer_mean_field
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.encoding import SpinEncoding
from tightz.runtime.seeds import stream
from tightz.search.pool import thin
from tightz.search.ranking import rank
from tightz.workspace.findings import Finding, Marginals
from tightz.workspace.workspace import SEARCH

if TYPE_CHECKING:
    from tightz.workspace.job import Job

DENSE_SWEEPS = 1000
"""Tempering sweeps: only tempering finds the modes; a fifth of the time limit may cut it short."""

LAYER_LEAVES = 16
"""Parts into which the kept layer is split where a summed-out layer took little time."""


def is_dense(polynomial: SpinPolynomial) -> bool:
    """Pairwise with many couplings a spin, as in an RBM: no narrow structure to exploit."""
    return polynomial.degree <= 2 and polynomial.n_terms > 8 * polynomial.n


def layers(job: Job, encoding: SpinEncoding, states: NDArray | None) -> Iterator[Finding]:
    """A layer summed out, from the states that mean field likes best; then, if cheap, in parts."""
    if states is not None:
        states = _ranked(job, encoding.polynomial, states)
    begun = job.clock.elapsed
    yield from one_layer(job, encoding, restarts=4, states=states)
    spent = job.clock.elapsed - begun
    if LAYER_LEAVES * spent < 0.3 * job.clock.left:
        few = None if states is None else states[:2]
        yield from one_layer(job, encoding, restarts=1, states=few, leaves=LAYER_LEAVES)


def _ranked(job: Job, polynomial: SpinPolynomial, states: NDArray) -> NDArray:
    """States by the value mean field reaches, as many as a tenth of the time allows."""
    begun = job.clock.elapsed
    best, _ = rank(polynomial, thin(states, 32))
    spent = max(job.clock.elapsed - begun, 1e-3)
    more = int(min(512, 32 * 0.1 * job.clock.left / spent))
    if more > 64:
        best, _ = rank(polynomial, thin(states, more))
    return best


def one_layer(
    job: Job,
    encoding: SpinEncoding,
    *,
    restarts: int,
    states: NDArray | None = None,
    leaves: int = 1,
) -> Iterator[Finding]:
    """Sum out an independent set exactly, mean field on the rest, also from given states."""
    try:
        r = layer_mean_field(
            encoding.polynomial,
            LayerMeanField(restarts=restarts, leaves=leaves),
            seed=stream(job.seed, SEARCH, restarts),
            starts=None if states is None else states[:16],
            link=job.link,
        )
    except UnsupportedModelError:  # couplings too large for its integral
        return
    marginals = list(encoding.marginals(r.spin_means))
    yield Finding(r.bound, Marginals(marginals, r.bound.method, r.log_z))
