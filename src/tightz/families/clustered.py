"""Clustered mean field for pairwise models of any cardinality: exact inside clusters.

Eliminating v from the sum F(v, S) of the tables that meet in its bucket leaves m(S) = log sum_v
exp F; exp(F - m) is the exact q(v | S) of the cluster. In reverse order these tables are a network
that the judge can evaluate with no knowledge of how they came about.

q is a product over clusters of variables. The best q of one cluster, the others held, is the
cluster's own model with each factor that leaves it replaced by its expectation, a table on one
variable (Saul and Jordan, 1996). Elimination gives it as conditional tables (`cluster_tables`),
and these are all that the bound is made of: the judge evaluates energy and entropy from them alone
and the elimination's own log Z is not used, because with wrong marginals it bounded nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Bound, Proof, Side
from tightz.elimination.exact.elimination import plan
from tightz.elimination.graph import interaction_graph, scopes_of
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.judge.clusters import NetworkEvidence
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.runtime.clock import Clock
from tightz.runtime.memory import format_bytes

Table = tuple[tuple[int, ...], NDArray[np.float64]]
"""(axes, ascending positions in the order; log entries)."""


class ClusterTables:
    """The elimination of one cluster, laid out once and run for every new set of fields.

    order     the cluster's variables, first eliminated first
    scopes    for each position the later positions that its conditional depends on
    """

    def __init__(
        self,
        order: NDArray[np.int64],
        cards: Sequence[int],
        factors: Sequence[tuple[Sequence[int], NDArray[np.float64]]],
    ) -> None:
        """`factors` over the cluster's variables; cards[b] are the states of order[b]."""
        self.order, self.cards = order, list(cards)
        place = {int(v): b for b, v in enumerate(order)}
        self.own: list[list[Table]] = [[] for _ in order]
        joined: list[set[int]] = [{b} for b in range(len(order))]
        for scope, table in factors:
            places = [place[int(v)] for v in scope]
            axes = sorted(range(len(places)), key=places.__getitem__)
            ordered = tuple(sorted(places))
            self.own[ordered[0]].append((ordered, np.asarray(table).transpose(axes)))
            joined[ordered[0]].update(ordered)
        self.scopes: list[tuple[int, ...]] = []
        for b in range(len(order)):
            scope = tuple(sorted(joined[b] - {b}))
            self.scopes.append(scope)
            if scope:
                joined[scope[0]].update(scope)

    @property
    def entries(self) -> int:
        """Entries of all conditional tables."""
        return sum(
            math.prod(self.cards[a] for a in (b, *scope)) for b, scope in enumerate(self.scopes)
        )

    def conditionals(self, fields: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
        """q(v | S) for every position, fields[b] added to the log weights of order[b].

        Single precision is enough to say which q is meant: the judge normalises and evaluates it.
        """
        waiting: list[list[Table]] = [[] for _ in self.scopes]
        out = []
        for b, scope in enumerate(self.scopes):
            axes = (b, *scope)
            total = np.zeros([self.cards[a] for a in axes])
            for held, table in [((b,), fields[b]), *self.own[b], *waiting[b]]:
                total += table.reshape([self.cards[a] if a in held else 1 for a in axes])
            waiting[b] = []
            top = total.max(axis=0)
            weights = np.exp(total - top)
            sums = weights.sum(axis=0)
            if scope:
                waiting[scope[0]].append((scope, top + np.log(sums)))
            out.append((weights / sums).astype(np.float32))
        return out

    def marginals(self, tables: list[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """q(v) of every position, from the last to the first."""
        above: dict[int, NDArray[np.float64]] = {}
        out: list[NDArray[np.float64]] = [np.zeros(0)] * len(tables)
        below: list[list[int]] = [[] for _ in tables]
        for b, scope in enumerate(self.scopes):
            if scope:
                below[scope[0]].append(b)
        for b in range(len(tables) - 1, -1, -1):
            axes = (b, *self.scopes[b])
            joint = tables[b] * above.pop(b, np.ones(()))
            single = joint.reshape(self.cards[b], -1).sum(axis=1)
            out[b] = single / single.sum()
            for child in below[b]:
                drop = tuple(j for j, a in enumerate(axes) if a not in self.scopes[child])
                above[child] = joint.sum(axis=drop)
        return out


_TOL = 1e-4
"""Nats that a sweep must gain for another to follow."""

_MAX_BYTES = 1 << 28
"""Conditional tables of all clusters together: q is written down in full."""


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
        if model.arities.max(initial=0) > 2 or model.has_zeros or model.evidence or lone:
            raise UnsupportedModelError(
                f"{model!r} has zeros, evidence, a one-state variable or a factor over more than "
                "two variables; clustered mean field takes none of these. "
                "tz.BlockMeanField takes any model"
            )
        self.model = model
        self.marginals = [np.array(q) for q in marginals]
        count = int(labels.max(initial=-1)) + 1
        self.members = [np.flatnonzero(labels == c) for c in range(count)]
        inside: list[list[tuple[tuple[int, ...], NDArray[np.float64]]]] = [[] for _ in range(count)]
        self.cross: list[list[tuple[int, int, NDArray[np.float64]]]] = [[] for _ in range(count)]
        for scope, table in model.factors:
            if len({int(labels[v]) for v in scope}) == 1:
                inside[labels[scope[0]]].append((scope, table))
            elif scope:
                u, v = scope
                self.cross[labels[u]].append((u, v, table))
                self.cross[labels[v]].append((v, u, table.T))
        self.clusters = [
            _laid_out(model, members, own)
            for members, own in zip(self.members, inside, strict=True)
        ]
        entries = [cluster.entries for cluster in self.clusters]
        if 4 * sum(entries) > _MAX_BYTES:
            c = int(np.argmax(entries))
            raise ResourceError(
                f"cluster {c} of {self.members[c].size} variables is too wide for "
                f"{format_bytes(_MAX_BYTES)}; cut the model into more clusters"
            )
        self._tables: list[list[NDArray[np.float32]]] = [[] for _ in range(count)]

    def _update(self, c: int) -> None:
        """The best q of cluster c, the marginals of the others held."""
        theta = {v: np.zeros(int(self.model.cardinalities[v])) for v in self.members[c].tolist()}
        for v, u, table in self.cross[c]:
            theta[v] += table @ self.marginals[u]
        cluster = self.clusters[c]
        self._tables[c] = cluster.conditionals([theta[v] for v in cluster.order.tolist()])
        found = cluster.marginals(self._tables[c])
        for v, q in zip(cluster.order.tolist(), found, strict=True):
            self.marginals[v] = q

    @property
    def evidence(self) -> NetworkEvidence:
        """The present q, all clusters one after the other; each must have been updated once."""
        scopes: list[tuple[int, ...]] = []
        orders = [np.zeros(0, dtype=np.int64)]
        for cluster in self.clusters:
            shift = len(scopes)
            scopes += [tuple(a + shift for a in scope) for scope in cluster.scopes]
            orders.append(cluster.order)
        tables = [table for some in self._tables for table in some]
        return NetworkEvidence(np.concatenate(orders), scopes, tables)

    def draw(self, count: int, rng: np.random.Generator) -> tuple[NDArray, NDArray[np.float64]]:
        """(states (count, n), log q) of independent draws from the present q."""
        states = np.zeros((count, self.model.n_variables), dtype=np.int64)
        log_q = np.zeros(count)
        for cluster, tables in zip(self.clusters, self._tables, strict=True):
            # Last eliminated first: a conditional's own scope lies later in the order.
            for b in range(len(tables) - 1, -1, -1):
                given = tuple(states[:, cluster.order[a]] for a in cluster.scopes[b])
                table = np.moveaxis(np.asarray(tables[b], dtype=np.float64), 0, -1)
                q = np.broadcast_to(table[given], (count, table.shape[-1]))
                edges = np.cumsum(q / q.sum(axis=1, keepdims=True), axis=1)
                drawn = (rng.random((count, 1)) >= edges[:, :-1]).sum(axis=1)
                states[:, cluster.order[b]] = drawn
                log_q += np.log(q[np.arange(count), drawn] / q.sum(axis=1))
        return states, log_q

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
            evidence = self.evidence
            now, _, rounding = evidence.verdict(self.model)
            yield Bound(
                Side.LOWER, now, Proof.DETERMINISTIC,
                f"clustered mean field, {len(self.members)} clusters", confidence=1.0,
                why="every distribution q gives a lower bound on log Z (paper, eq. 2)",
                rounding=rounding, evidence=evidence,
            )  # fmt: skip
            if now < last + _TOL:
                return
            last = now


def _laid_out(
    model: FactorGraph,
    members: NDArray[np.int64],
    factors: list[tuple[tuple[int, ...], NDArray[np.float64]]],
) -> ClusterTables:
    """A cluster's elimination along the order that exact elimination would take."""
    place = {int(v): k for k, v in enumerate(members)}
    cards = model.cardinalities[members]
    local = [([place[v] for v in scope], table) for scope, table in factors]
    order = members[plan(FactorGraph(cards, local)).order]
    return ClusterTables(order, model.cardinalities[order].tolist(), factors)


def cluster_labels(model: FactorGraph, log2_size: float) -> NDArray[np.int64]:
    """A partition whose clusters are narrow: strips of a lattice, or runs of a sweep order.

    On a lattice a strip of h rows needs tables of d^(h+1) entries, kept to 2^log2_size. Elsewhere
    the variables are swept from one end of the graph to the other (Cuthill and McKee, 1969) and cut
    into runs so short that one table could hold all of a run.
    """
    n = model.n_variables
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    bits = math.log2(float(model.cardinalities.max(initial=2)))
    height = max(1, int(log2_size / max(bits, 1.0)) - 1)
    if isinstance(model.layout, Grid) and model.layout.rows * model.layout.cols == n:
        rows = np.arange(n) // model.layout.cols
        return (rows // height).astype(np.int64)
    order = interaction_graph(scopes_of(model)).cuthill_mckee()
    labels = np.empty(n, dtype=np.int64)
    labels[order] = np.arange(n) // (height + 1)  # one table may hold all variables of a run
    return labels
