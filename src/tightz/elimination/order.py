"""Elimination orders: which variable to sum out next, by many cheap heuristics, the best kept.

Costs are in table entries: eliminating v from the clique {v} + N(v) costs prod of its cards.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.buckets import bucket_tree
from tightz.elimination.cut_game import play_with_cuts
from tightz.elimination.game import DEGREE, FILL, SIZE, Played, Rules, play
from tightz.elimination.graph import Graph, Scopes, interaction_graph, scopes_of
from tightz.errors import ParameterError
from tightz.models.factor_graph import FactorGraph, Grid
from tightz.models.observed import observe

_STEPS_A_SECOND = 1e8  # of the elimination game, roughly
_TIE = 1e-9  # costs are sums of floats: of equal orders the first is kept
_TRIVIAL = 20.0  # log2 entries: a millisecond; looking after the buckets takes longer in any order
_MOST_WORK = 3e8  # steps of one game; a model denser than that is hopeless in any order
_USUAL_TABLE = 15.0  # log2 entries: mini-buckets of some seconds
_PRICES = (1.0, 4.0)  # of a cut, in edges per variable of a full table
_TRIAL_NOISE = 0.75  # of an edge: trials differ where several vertices cost about the same


class Order(enum.Enum):
    """How to choose the order in which variables are summed out."""

    AUTO = "try several, keep the tightest"
    PLANNED = "as planned for exact elimination"
    CUTS = "fewest new edges first, counted after cuts, which have a price themselves"
    MIN_FILL = "fewest new edges first"
    MIN_SIZE = "smallest table first"
    BREADTH_FIRST = "level by level from a variable at the rim"
    AS_NUMBERED = "as the model numbers its variables"


@dataclass(frozen=True, eq=False)
class OrderChoice:
    """The order chosen, which heuristic found it, and what it costs.

    log2_cost counts the entries of all tables met, log2_largest those of the largest; width is the
    largest number of variables that one message joins. All are inf where no order is in reach.
    """

    order: NDArray[np.int64]
    heuristic: str
    log2_cost: float = np.inf
    log2_largest: float = np.inf
    width: float = np.inf


class Orders:
    """The elimination orders of one model, each worked out once and handed on.

    Orders number the variables of `model`, which is `source` without its observed variables;
    `numbers` are their numbers in `source`. `planned`: an order of `source` that is known already,
    such as `plan(source).variables`; variables that it lacks (of one state) are summed out first.
    """

    def __init__(self, source: FactorGraph, planned: NDArray[np.int64] | None = None) -> None:
        self.source = source
        observed = observe(source, single_states=False)
        self.model, self.numbers = observed.reduced, observed.kept
        self.scopes: Scopes = scopes_of(self.model)
        self.log2_card = np.log2(self.model.cardinalities.astype(np.float64))
        self._found: dict[Order, NDArray[np.int64]] = {}
        self._cut: dict[tuple[float, int], NDArray[np.int64]] = {}
        if planned is not None:
            self.adopt(planned)

    def adopt(self, planned: NDArray[np.int64]) -> None:
        """Take over an order of `source` that was found elsewhere."""
        known = np.searchsorted(self.numbers, planned)
        lacking = np.setdiff1d(np.arange(self.model.n_variables), known)
        self._found[Order.PLANNED] = np.concatenate([lacking, known]).astype(np.int64)

    def share(
        self,
        found: dict[Order, NDArray[np.int64]],
        cut: dict[tuple[float, int], NDArray[np.int64]],
    ) -> None:
        """Look up orders in these, and leave there what is found: those of the same factors."""
        found.update(self._found)
        self._found, self._cut = found, cut

    @cached_property
    def graph(self) -> Graph:
        return interaction_graph(self.scopes)

    @property
    def kinds(self) -> list[Order]:
        """All that are worth a try, the one of least exact cost first."""
        planned = [Order.PLANNED] if Order.PLANNED in self._found else []
        return [
            *planned, Order.CUTS, Order.MIN_FILL, Order.MIN_SIZE, Order.BREADTH_FIRST,
            Order.AS_NUMBERED,
        ]  # fmt: skip

    def __getitem__(self, kind: Order) -> NDArray[np.int64]:
        """All variables in the order that `kind` sums them out; AUTO is the first of `kinds`."""
        if kind is Order.AUTO:
            kind = self.kinds[0]
        if kind not in self._found:
            self._found[kind] = self._find(kind)
        return self._found[kind]

    def _find(self, kind: Order) -> NDArray[np.int64]:
        if kind is Order.PLANNED:
            raise ParameterError(
                "Order.PLANNED needs an order that is known already; expected "
                "orders=Orders(model, plan(model).variables)"
            )
        if kind is Order.BREADTH_FIRST:
            return self.graph.cuthill_mckee()
        if kind is Order.AS_NUMBERED:
            return np.arange(self.model.n_variables)
        if kind is Order.CUTS:
            return self.cutting(_USUAL_TABLE)
        found = self.greedy(FILL if kind is Order.MIN_FILL else SIZE)
        if not found.finished and kind is Order.MIN_FILL:
            found = self.greedy(SIZE)
        return self._completed(found.order)

    def _completed(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a game left to do when its steps were spent comes last, low degrees first."""
        rest = np.setdiff1d(np.arange(self.model.n_variables), order)
        rest = rest[np.argsort(self.graph.degrees[rest], kind="stable")]
        return np.concatenate([order, rest])

    def cutting(self, log2_table: float, trial: int = 0) -> NDArray[np.int64]:
        """An order for buckets that are cut at 2^log2_table entries; trials differ in price, noise.

        Which trial is best, a few iterations of the bound at that size tell: bounds after five
        iterations and at the end rank them alike. Widths and numbers of cuts tell nothing.
        """
        if (log2_table, trial) not in self._cut:
            bits = self.log2_card
            # One cut costs as many edges as a full table has variables, or several times that: then
            # cuts are put off until all tables are full. Either may be the better.
            usual = float(bits[bits > 0].mean()) if (bits > 0).any() else 1.0
            price = _PRICES[trial % len(_PRICES)] * max(1.0, (log2_table - 1.0) / usual)
            noisy = trial >= len(_PRICES)
            rng = np.random.default_rng(trial)
            order = play_with_cuts(
                self.scopes,
                log2_card=bits,
                log2_table=log2_table,
                cut=price,
                noise=rng.uniform(0, _TRIAL_NOISE, bits.size) if noisy else 0.0,
                work=_MOST_WORK,
            )
            self._cut[log2_table, trial] = self._completed(order)
        return self._cut[log2_table, trial]

    def greedy(
        self,
        cost: int,
        *,
        weighted: bool = False,
        noise: NDArray[np.float64] | float = 0.0,
        log2_total: float = np.inf,
    ) -> Played:
        """One elimination game; `weighted`: a new edge costs the states of its ends multiplied."""
        return play(
            self.graph,
            Rules(cost, log2_total=log2_total, work=_MOST_WORK),
            log2_card=self.log2_card,
            weight=self.model.cardinalities if weighted else 1.0,
            noise=noise,
        )


def _sweeps(model: FactorGraph) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Orders that follow the numbering, or a lattice's columns and diagonals."""
    n = model.n_variables
    yield "natural", np.arange(n)
    yield "reverse", np.arange(n)[::-1].copy()
    if isinstance(model.layout, Grid) and model.layout.rows * model.layout.cols == n:
        rows, cols = np.divmod(np.arange(n), model.layout.cols)
        yield "columns", np.lexsort((rows, cols))
        yield "diagonals", np.lexsort((rows, rows + cols))


class _Search:
    """The best order so far and the steps spent on the way to it."""

    def __init__(self, orders: Orders, log2_cap: float) -> None:
        self.orders, self.log2_cap = orders, log2_cap
        self.best = OrderChoice(np.arange(orders.model.n_variables), "none within reach")
        self.spent = 0.0

    @property
    def _cap(self) -> float:
        return min(self.log2_cap, self.best.log2_cost)

    def greedy(
        self, name: str, cost: int, noise: NDArray | float = 0.0, *, weighted: bool = False
    ) -> None:
        found = self.orders.greedy(cost, weighted=weighted, noise=noise, log2_total=self._cap)
        self.spent += found.work
        if found.finished and found.log2_total < self.best.log2_cost - _TIE:
            width = int(found.touched.max(initial=0))
            self.best = OrderChoice(found.order, name, found.log2_total, found.log2_largest, width)

    def given(self, name: str, order: NDArray[np.int64]) -> None:
        orders = self.orders
        tree = bucket_tree(orders.scopes, order, log2_card=orders.log2_card, log2_total=self._cap)
        self.spent += 8.0 * (orders.scopes.members.size + tree.scope.size)
        if tree.complete and tree.log2_total < self.best.log2_cost - _TIE:
            largest = float(tree.log2_sizes.max())
            self.best = OrderChoice(order, name, tree.log2_total, largest, tree.width)


def choose_order(
    model: FactorGraph,
    *,
    seconds: float | None = None,
    most_seconds: float = math.inf,
    log2_cap: float = 100.0,
) -> OrderChoice:
    """The cheapest order that the heuristics find in about `seconds`.

    Greedy smallest clique, least fill and least degree (Rose, 1972; Kjaerulff, 1990), fill weighted
    by the states of its ends where those differ (Kask and others, 2011), sweeps along the numbering
    or the lattice, Cuthill-McKee, and in the time given noisy repeats of the greedy ones. A try
    stops as soon as it costs more than the best so far or more than 2^`log2_cap` entries; with none
    below that the cost is inf. By default the search takes a small share of what the elimination
    itself would, at most 0.4 s. Time is counted in operations, not by a clock: the same model
    always has the same order.
    """
    n = model.n_variables
    if n == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return OrderChoice(nothing, "nothing to eliminate", -np.inf, -np.inf, 0)
    orders = Orders(model)
    search = _Search(orders, log2_cap)
    states_vary = bool((model.cardinalities != model.cardinalities[0]).any())
    games = [("min-size", SIZE), ("min-fill", FILL), ("min-degree", DEGREE)]
    for name, cost in games:
        search.greedy(name, cost)
        # Where the first games neither end nor fit into the time, no sweep will.
        if search.best.log2_cost == math.inf and search.spent > most_seconds * _STEPS_A_SECOND:
            return search.best
    if states_vary:
        search.greedy("weighted min-fill", FILL, weighted=True)
    for name, order in _sweeps(model):
        search.given(name, order)
    sweep = orders[Order.BREADTH_FIRST]
    search.given("cuthill-mckee", sweep)
    search.given("reverse cuthill-mckee", sweep[::-1].copy())
    if seconds is None:
        # More search than the elimination takes cannot pay (it visits about 1e9 entries a second);
        # where much is left to do, contraction trees gain more than further orders (`trees`).
        share = 0.1 * 2.0 ** min(search.best.log2_cost, 60.0) / 1e9
        seconds = min(0.05, 1e-4 * n) + min(share, 0.3)
        if search.best.log2_cost <= _TRIVIAL:
            seconds = 0.0
    seconds = min(seconds, most_seconds)
    rng = np.random.default_rng(0)
    trial, search.spent = 0, 0.0
    while search.spent < seconds * _STEPS_A_SECOND:
        if trial % 2:
            search.greedy("noisy min-size", SIZE, rng.uniform(0, 1.5, n))
        else:
            weighted = states_vary and trial % 4 == 2
            noise = rng.uniform(0, 0.75, n)
            if weighted:
                noise *= float(model.cardinalities.mean()) ** 2
            search.greedy("noisy min-fill", FILL, noise, weighted=weighted)
        search.spent += n  # the draw itself; also: an empty search must end
        trial += 1
    return search.best
