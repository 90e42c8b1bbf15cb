"""Clustered mean field for pairwise models of any cardinality: exact inside clusters.

q is a product over clusters of variables. The best q of one cluster, the others held, is the
cluster's own model with each factor that leaves it replaced by its expectation, a table on one
variable (Saul and Jordan, 1996). Elimination gives that cluster's log Z_c and marginals, so

    bound = sum_c (log Z_c - sum_v q_v . theta_v) + sum over factors between clusters E_q[log t],

theta_v being the expectations that were used for v: log Z_c less their share is the cluster's
entropy plus its own energy. It holds for every q, converged or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.models.preprocess import has_zeros
from tightz.references.exact.elimination import plan
from tightz.references.exact.order import interaction_graph
from tightz.references.exact.run import Elimination
from tightz.runtime.clock import Clock
from tightz.runtime.memory import format_bytes

_TOL = 1e-4
"""Nats that a sweep must gain for another to follow."""

_MAX_BYTES = 1 << 28


class ClusterMeanField:
    """One partition of the variables; `bounds()` yields the bound after every sweep.

    The model has no evidence, positive tables and factors over two variables at most.
    `labels[v]` is the cluster of variable v; `marginals` start where the caller says.
    """

    def __init__(
        self,
        model: FactorGraph,
        labels: NDArray[np.int64],
        marginals: list[NDArray[np.float64]],
    ) -> None:
        lone = bool((model.cardinalities == 1).any())
        if model.arities.max(initial=0) > 2 or has_zeros(model) or model.evidence or lone:
            raise UnsupportedModelError(
                f"{model!r} has zeros, evidence, a one-state variable or a factor over more than "
                "two variables; clustered mean field takes none of these. "
                "tz.block_mean_field takes any model"
            )
        self.model = model
        self.marginals = [np.array(q) for q in marginals]
        count = int(labels.max(initial=-1)) + 1
        self.members = [np.flatnonzero(labels == c) for c in range(count)]
        place = np.zeros(model.n_variables, dtype=np.int64)
        for members in self.members:
            place[members] = np.arange(members.size)
        inside: list[list[tuple[list[int], NDArray[np.float64]]]] = [[] for _ in range(count)]
        self.cross: list[list[tuple[int, int, NDArray[np.float64]]]] = [[] for _ in range(count)]
        self.between: list[tuple[int, int, NDArray[np.float64]]] = []
        self.constant = 0.0
        for scope, table in model.factors:
            if not scope:
                self.constant += float(table)
            elif len({int(labels[v]) for v in scope}) == 1:
                inside[labels[scope[0]]].append(([int(place[v]) for v in scope], table))
            else:
                u, v = scope
                self.between.append((u, v, table))
                self.cross[labels[u]].append((u, v, table))
                self.cross[labels[v]].append((v, u, table.T))
        self.inside = inside
        self.place = place
        self._plans = [plan(self._cluster(c, {})) for c in range(count)]
        self.log2_size = max(
            (math.log2(max(p.sizes(), default=1)) for p in self._plans), default=0.0
        )
        self._entropy_and_energy = [-math.inf] * count

    def _cluster(self, c: int, theta: dict[int, NDArray[np.float64]]) -> FactorGraph:
        """Cluster c as a model; every variable has one table for its expectations, zero or not."""
        members = self.members[c]
        cards = self.model.cardinalities[members]
        own = [
            ([int(self.place[v])], theta.get(v, np.zeros(int(d))))
            for v, d in zip(members.tolist(), cards, strict=True)
        ]
        return FactorGraph(cards, [*self.inside[c], *own])

    def _update(self, c: int) -> None:
        theta: dict[int, NDArray[np.float64]] = {}
        for v, u, table in self.cross[c]:
            part = table @ self.marginals[u]
            theta[v] = theta[v] + part if v in theta else part
        steps = self._plans[c].marginal_schedule(_MAX_BYTES)
        if steps is None:
            raise ResourceError(
                f"cluster {c} of {self.members[c].size} variables is too wide for "
                f"{format_bytes(_MAX_BYTES)}; cut the model into more clusters"
            )
        run = Elimination(self._cluster(c, theta), self._plans[c])
        run.run(steps)
        for v, q in zip(self.members[c].tolist(), run.marginals, strict=True):
            self.marginals[v] = q
        shares = [float(self.marginals[v] @ t) for v, t in theta.items()]
        self._entropy_and_energy[c] = run.log_z - math.fsum(shares)

    def value(self) -> float:
        """The bound of the present q; every cluster must have been updated once."""
        energies = [
            float(self.marginals[u] @ table @ self.marginals[v]) for u, v, table in self.between
        ]
        return self.constant + math.fsum(self._entropy_and_energy) + math.fsum(energies)

    def bounds(self, clock: Clock) -> Iterator[Bound]:
        """Sweeps over the clusters until a sweep gains little or the clock ends."""
        last = -math.inf
        while not clock.expired:
            for c in range(len(self.members)):
                self._update(c)
                if clock.expired and last == -math.inf and c + 1 < len(self.members):
                    continue  # the first sweep must be whole for a value
                if clock.expired:
                    break
            now = self.value()
            yield Bound(
                Side.LOWER, now, Proof.DETERMINISTIC,
                f"clustered mean field, {len(self.members)} clusters", confidence=1.0,
                why="every distribution q gives a lower bound on log Z (paper, eq. 2)",
            )  # fmt: skip
            if now < last + _TOL:
                return
            last = now


def cluster_labels(model: FactorGraph, log2_size: float) -> NDArray[np.int64]:
    """A partition whose clusters are narrow: strips of a lattice, or runs of a sweep order.

    On a lattice a strip of h rows needs tables of d^(h+1) entries, kept to 2^log2_size. Elsewhere
    the variables are swept from one end of the graph to the other (Cuthill and McKee, 1969) and cut
    into runs so short that one table could hold all of a run.
    """
    n = model.n_variables
    bits = math.log2(float(model.cardinalities.max(initial=2)))
    height = max(1, int(log2_size / max(bits, 1.0)) - 1)
    if isinstance(model.layout, Grid) and model.layout.rows * model.layout.cols == n:
        rows = np.arange(n) // model.layout.cols
        return (rows // height).astype(np.int64)
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    ptr, neighbours = interaction_graph(model)
    graph = csr_matrix((np.ones(neighbours.size), neighbours, ptr), shape=(n, n))
    order = np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True), dtype=np.int64)
    labels = np.empty(n, dtype=np.int64)
    labels[order] = np.arange(n) // (height + 1)  # one table may hold all variables of a run
    return labels
