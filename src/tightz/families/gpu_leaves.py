"""Mean field on many regions of one model at once: a thread an ascent, spins pinned by fields.

The step is the CPU kernel's (`tightz.families.ascent`), compiled for the device from the same
source and in float64; only the loop over sweeps is written again, since an ascent on the device
stops by itself while the CPU's lanes stop together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.families.ascent import SMALLEST, _commit, _local_field, _start_sweep, tanh
from tightz.projections.grouped import GroupedPolynomial
from tightz.runtime.gpu import alone
from tightz.runtime.gpu.device import SIMULATED, arrays_to_device, cuda

THREADS = 2 if SIMULATED else 64
MOST_BYTES = 2**30
"""Scratch memory of one launch."""


class Scratch(NamedTuple):
    """What the CPU kernel allocates, a column a thread; step (2, T) is a field and a new mean."""

    after: NDArray[np.float64]
    before: NDArray[np.float64]
    tail: NDArray[np.float64]
    linear: NDArray[np.float64]
    step: NDArray[np.float64]


@cuda.jit
def _ascend(poly, fields, means, scratch, tol, max_sweeps):  # type: ignore[no-untyped-def]
    """Thread t ascends from means[:, t] with external fields fields[:, t]; scratch likewise."""
    t = cuda.grid(1)
    if t >= means.shape[1]:
        return
    mine = GroupedPolynomial(
        poly.constant, fields[:, t], poly.adj_ptr, poly.adj_to, poly.adj_w, poly.base_ptr,
        poly.base_spins, poly.coef, poly.in_ptr, poly.in_group, poly.in_theta, poly.out_ptr,
        poly.out_group, poly.out_theta, poly.inverse,
    )  # fmt: skip
    v = means[:, t : t + 1]
    a, b = scratch.after[:, t : t + 1], scratch.before[:, t : t + 1]
    c, d = scratch.tail[:, t : t + 1], scratch.linear[:, t : t + 1]
    field, new = scratch.step[0, t : t + 1], scratch.step[1, t : t + 1]
    for _ in range(max_sweeps):
        _start_sweep(mine, v, a, b, c, d)
        gain = 0.0
        for k in range(v.shape[0]):
            _local_field(mine, v, k, a, b, c, d, field)
            value = tanh(field[0])
            if mine.inverse[k] and abs(value) < SMALLEST:
                value = SMALLEST if field[0] >= 0.0 else -SMALLEST
            change = abs(value - v[k, 0])
            gain += 0.5 * change * change / max(1.0 - value * value, change, 1e-300)
            new[0] = value
            _commit(mine, v, k, new, a, b, c, d)
        if gain <= tol:
            return


@alone
def ascend_on_device(
    poly: GroupedPolynomial,
    fields: NDArray[np.float64],
    means: NDArray[np.float64],
    tol: float,
    max_sweeps: int,
) -> None:
    """Ascend from every column of means (n, T), in place; `fields` (n, T) replace poly.field."""
    room = 8 * (4 * poly.n + poly.base_spins.size + 3 * poly.coef.size + 2)
    most = max(THREADS, MOST_BYTES // room)
    on_device = arrays_to_device(poly)
    for first in range(0, means.shape[1], most):
        part = slice(first, first + most)
        v = cuda.to_device(np.ascontiguousarray(means[:, part]))
        count = v.shape[1]
        groups = (poly.coef.size, count)
        shapes = ((poly.base_spins.size, count), groups, groups, groups, (2, count))
        scratch = Scratch(*(cuda.device_array(shape) for shape in shapes))
        mine = cuda.to_device(np.ascontiguousarray(fields[:, part]))
        _ascend[-(-count // THREADS), THREADS](on_device, mine, v, scratch, tol, max_sweeps)
        means[:, part] = v.copy_to_host()
