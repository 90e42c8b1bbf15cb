"""Marginals from what a count recorded: one pass from the result down to its parts.

The trace is a graph of sums (a decision's two branches) and products (literals, free variables and
components of a branch), shared where the cache was hit. With the share of each branch in its node,
the probability that a branch holds is that of its node times its share, and a literal's marginal is
the sum over the branches that set it (Darwiche, "A differential approach to inference in Bayesian
networks", 2003).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.clauses import arrays as a
from tightz.runtime.kernels import kernel


def literal_marginals(work: a.Work) -> NDArray[np.float64]:
    """(2n,) the probability of each literal; the count is finished and not zero."""
    formula, r, trace = work.formula, work.registers, work.trace
    n = work.trail.value.size
    shift = np.maximum(formula.exponent - np.repeat(formula.either_exponent, 2), -2000)
    with np.errstate(under="ignore"):
        alone = np.ldexp(formula.mantissa / np.repeat(formula.either_mantissa, 2), shift)
    out = np.zeros(2 * n)
    root = int(work.levels.record[0, 0])
    nodes = int(r[a.NODES])
    _flow(nodes, root, trace.records, trace.ends, trace.share, trace.items, alone, out)
    total = out[0::2] + out[1::2]
    return out / np.repeat(np.where(total > 0.0, total, 1.0), 2)


@kernel
def _flow(nodes, root, records, ends, share, items, alone, out):  # type: ignore[no-untyped-def]
    """Probabilities downwards: nodes refer to earlier ones only, so from the last to the first."""
    flow = np.zeros(nodes + 1)
    for node in range(nodes, -1, -1):
        for b in range(2):
            if node == nodes:  # the root: one branch with all of the mass
                k, p = (root, 1.0) if b == 0 else (-1, 0.0)
            else:
                k = records[node, b]
                p = flow[node] * share[k] if k >= 0 else 0.0
            if k < 0 or p == 0.0:
                continue
            for i in range(ends[k - 1, 2] if k else 0, ends[k, 0]):
                out[items[i]] += p
            for i in range(ends[k, 0], ends[k, 1]):
                v = items[i]
                out[2 * v] += p * alone[2 * v]
                out[2 * v + 1] += p * alone[2 * v + 1]
            for i in range(ends[k, 1], ends[k, 2]):
                flow[items[i]] += p
