"""What the judge says of evidence that does not hold: each case spoils one thing of sound evidence.

`tests/test_judge.py` and its neighbours show that the sound ones pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

import tightz as tz
from tests.errors.table import Case
from tightz.judge import (
    Audited,
    Evidence,
    LargestEntries,
    ProductEvidence,
    RefutedError,
    StatesEvidence,
    Verdict,
)
from tightz.judge.attractive import AttractiveEvidence
from tightz.judge.cliques import CliquesEvidence
from tightz.judge.clusters import NetworkEvidence
from tightz.judge.collapses import CollapseLink
from tightz.judge.cosets import CosetsEvidence
from tightz.judge.cutsets import Conditioned, CutsetEvidence
from tightz.judge.domains import DomainCourt, DomainsEvidence, Summed
from tightz.judge.domains import Part as StatePart
from tightz.judge.edges import EdgesEvidence
from tightz.judge.elimination import bucket_tree, check_messages
from tightz.judge.fields import FieldsEvidence, Part
from tightz.judge.forests import ForestQ
from tightz.judge.heaviest import heaviest, weights_of
from tightz.judge.layers import LayerQ
from tightz.judge.links import EncodingLink, SpinEvidence, SpinLink
from tightz.judge.parts import Cell, Court, NoStateEvidence, PartsEvidence, joined
from tightz.judge.proposals import cap_excess, check_weights
from tightz.judge.quadratic import QuadraticEvidence
from tightz.judge.reductions import check_barren, check_substitution
from tightz.judge.regions import Ceiling, Conditionals, Product, Proof, halves, whole
from tightz.judge.spanning import Forests
from tightz.judge.spins import ProductQ, SpinDistribution, SpinMap, SpinTerms
from tightz.models.spin_polynomial import SpinPolynomial

NONE = np.zeros(0, dtype=np.int64)
TABLE = [[0.3, -0.3], [-0.3, 0.3]]
PAIR = tz.FactorGraph([2, 2], [((0, 1), TABLE)])
EQUAL = tz.FactorGraph([2, 2], [((0, 1), [[0.3, -math.inf], [-math.inf, 0.3]])])
TRIANGLE = tz.FactorGraph([2] * 3, [((i, j), TABLE) for i, j in ((0, 1), (0, 2), (1, 2))])
TRIPLE = tz.FactorGraph([2] * 3, [((0, 1, 2), np.arange(8.0))])
HUB = tz.FactorGraph([2] * 25, [((0, v), TABLE) for v in range(1, 25)])
WIDE = tz.FactorGraph([5] * 7, [(range(7), np.zeros(5**7))])


def _terms(n: int, *rows: tuple[Sequence[int], float]) -> SpinTerms:
    return SpinTerms.of(SpinPolynomial.from_terms(n, 0.0, list(rows)))


TERMS = _terms(2, ((0, 1), 0.3))
"""What PAIR is over spins."""

CHAIN = _terms(3, ((0, 1), 1.0), ((1, 2), 1.0))
TWO = SpinMap.identity(2)
ENCODING = EncodingLink(TERMS, TWO)
LINK = SpinLink(ENCODING)


def refuted(text: str, act: Callable[[], object]) -> Case:
    """A case of evidence that is refused."""
    return Case(RefutedError, text, act)


def about(model: tz.FactorGraph, text: str, evidence: Evidence) -> Case:
    """A case of evidence that does not hold for this model."""
    return refuted(text, lambda: evidence.verdict(model))


def of_terms(terms: SpinTerms, text: str, q: SpinDistribution) -> Case:
    """A case of a q over spins that is none."""
    return refuted(text, lambda: q.value(terms))


# ---- states, products, networks and claims ------------------------------------------------------


def _network(order=(0, 1, 2), scopes=((1,), (2,), ()), tables=None) -> NetworkEvidence:
    if tables is None:
        tables = [np.ones((2, 2)), np.ones((2, 2)), np.ones(2)]
    return NetworkEvidence(np.array(order), scopes, tables)


PATH = tz.FactorGraph([2] * 3, [((0, 1), TABLE), ((1, 2), TABLE)])
LOOP = [np.ones((2, 2, 2)), np.ones(2), np.ones(2)]

VARIABLES = [
    about(
        PAIR,
        "a state handed in as evidence is not a state of the model",
        StatesEvidence(np.array([[0, 2]])),
    ),
    about(
        PAIR,
        "a product needs one weight for each state of every variable",
        ProductEvidence([np.ones(2)]),
    ),
    about(
        PAIR,
        "a weight of a product is negative, infinite or no number",
        ProductEvidence([np.ones(2), np.array([1.5, -0.5])]),
    ),
    about(
        PAIR,
        "a variable has no state of positive weight in a product",
        ProductEvidence([np.ones(2), np.zeros(2)]),
    ),
    about(
        PAIR.with_evidence({1: 0}),
        "a product gives weight to states of variable 1 never observed",
        ProductEvidence([np.ones(2), np.ones(2)]),
    ),
    about(PATH, "the nodes of a network are not the variables, each once", _network((0, 0, 1))),
    about(
        PATH,
        "a network needs parents and a table for every node",
        _network(scopes=((1,), ())),
    ),
    about(
        PATH,
        "parents of a node are not later nodes in ascending order",
        _network(scopes=((0,), (2,), ())),
    ),
    about(
        PATH,
        "parents of a node do not lie in the bucket of the first",
        _network(scopes=((1, 2), (), ()), tables=LOOP),
    ),
    about(
        PATH,
        "a conditional table has the wrong shape",
        _network(tables=[np.ones((2, 3)), np.ones((2, 2)), np.ones(2)]),
    ),
    about(
        PATH,
        "a conditional table holds a number that is no weight",
        _network(tables=[-np.ones((2, 2)), np.ones((2, 2)), np.ones(2)]),
    ),
    about(TRIANGLE, "a factor joins variables that no bucket of q holds", _network()),
    about(PAIR, "log Z is said to be nan +- 0.0", Audited(math.nan)),
    about(PAIR, "log Z is said to be 100.0, above all states: 1.68...", Audited(100.0)),
    about(PAIR, "log Z is said to be -100.0; one state weighs 0.3", Audited(-100.0)),
    about(PAIR, "no table of the model is zero throughout: Z need not be 0", NoStateEvidence()),
    about(PAIR, "beliefs do not fit the states of the model", AttractiveEvidence(np.zeros(3))),
]


# ---- spins: polynomials, maps and q's -----------------------------------------------------------


def _map(signs: Sequence[float], *support: Sequence[int]) -> SpinMap:
    return SpinMap.of(np.array(support, dtype=bool), np.array(signs, dtype=float))


def _forest(spin_of=(0, 1, 2), sep_ptr=(0, 1, 2, 2), sep=(1, 2), entries=10, weight=1.0) -> ForestQ:
    arrays = (np.array(numbers, dtype=np.int64) for numbers in (spin_of, sep_ptr, sep))
    return ForestQ(SpinMap.identity(len(spin_of)), *arrays, np.full(entries, weight))


def _layer(means: Sequence[Sequence[float]], held: Sequence[int], summed=(0, 1, 0)) -> LayerQ:
    """Every leaf holds the same spins."""
    rows = np.array(means)
    return LayerQ(np.array(summed, dtype=bool), np.tile(np.array(held, bool), (len(rows), 1)), rows)


FREE_3 = ProductQ(SpinMap.identity(3), np.zeros(3))

SPINS = [
    of_terms(
        replace(TERMS, theta=np.array([math.nan])),
        "a coefficient of the polynomial is not a number",
        ProductQ(TWO, np.zeros(2)),
    ),
    of_terms(
        TERMS,
        "a map of free spins has a wrong shape or a sign that is none",
        ProductQ(_map([1.0, 0.5], [1, 0], [0, 1]), np.zeros(2)),
    ),
    of_terms(
        TERMS,
        "free spins do not stand alone in any spin: states may repeat",
        ProductQ(_map([1.0, 1.0], [1, 1], [1, 0]), np.zeros(2)),
    ),
    of_terms(
        TERMS,
        "a term names a spin that the map does not have",
        ProductQ(SpinMap.identity(1), np.zeros(1)),
    ),
    of_terms(
        TERMS,
        "a mean lies outside [-1, 1], or there is not one per free spin",
        ProductQ(TWO, np.array([0.0, 1.5])),
    ),
    of_terms(
        CHAIN, "the nodes of a forest are not the free spins, each once", _forest(spin_of=(0, 0, 1))
    ),
    of_terms(
        CHAIN,
        "a separator is wider than 24 spins",
        _forest(range(26), [0, *[25] * 26], range(1, 26)),
    ),
    of_terms(
        CHAIN,
        "a separator is not made of later nodes in ascending order",
        _forest(sep=(0, 2)),
    ),
    of_terms(CHAIN, "conditional tables have the wrong number of entries", _forest(entries=9)),
    of_terms(CHAIN, "a conditional table holds a number that is no weight", _forest(weight=-1.0)),
    of_terms(
        CHAIN,
        "a separator does not lie in the bucket of its first member",
        _forest(sep_ptr=(0, 2, 2, 2), entries=12),
    ),
    of_terms(
        CHAIN, "leaves of a layer need one mean for every spin", _layer([[0.0, 0.0]], [0, 0, 0])
    ),
    of_terms(
        CHAIN,
        "a term names a spin that the layer does not have",
        _layer([[0.0, 0.0]], [0, 0], summed=(0, 1)),
    ),
    of_terms(
        CHAIN,
        "a mean lies outside [-1, 1], or a held spin is not decided",
        _layer([[0.5, 0.0, 0.0]], [1, 0, 0]),
    ),
    of_terms(CHAIN, "two leaves of a layer share states", _layer([[1.0, 0.0, 0.0]] * 2, [1, 0, 0])),
    of_terms(
        CHAIN,
        "summed spins are not independent given the kept ones",
        _layer([[0.0] * 3], [0, 0, 0], summed=(1, 1, 0)),
    ),
]


# ---- links from spins to a model ----------------------------------------------------------------


def _encodes(model: tz.FactorGraph, text: str, terms: SpinTerms, chart: SpinMap) -> Case:
    """A case of a polynomial that does not stand for the model."""
    free = ProductQ(SpinMap.identity(chart.n_free), np.zeros(chart.n_free))
    return about(model, text, SpinEvidence(SpinLink(EncodingLink(terms, chart)), free))


def _collapses(
    original: SpinTerms, text: str, terms: SpinTerms, kept: Sequence[int], order: Sequence[int]
) -> Case:
    """A case of a polynomial that is not what summing out leaves."""
    link = CollapseLink(terms, np.array(kept), np.array(order))
    return refuted(text, lambda: link.rounding(original))


def _coset(rhs: Sequence[Sequence[int]]) -> CosetsEvidence:
    """q's on s_0 = s_1, said to be on the cosets of x_0 + x_1 = b."""
    q = ProductQ(_map([1.0, 1.0], [1], [1]), np.zeros(1))
    none = np.zeros(len(rhs))
    matrix = np.ones((1, 2), dtype=np.uint8)
    return CosetsEvidence(LINK, matrix, np.array(rhs, dtype=np.uint8), none, none, [q] * len(rhs))


def _nowhere(n: int) -> Evidence:
    """A q over n spins of a polynomial that belongs to no model; n = 0: not even to that."""
    collapse = CollapseLink(TERMS, np.arange(2), NONE) if n else None
    return SpinEvidence(SpinLink(None, collapse), ProductQ(SpinMap.identity(n), np.zeros(n)))


STAR = _terms(26, *(((0, v), 0.1) for v in range(1, 26)))

LINKS = [
    _encodes(PAIR, "a map has 3 spins; the model takes 2 bits", TERMS, SpinMap.identity(3)),
    _encodes(
        WIDE,
        "a table over 21 bits is too large to be expanded",
        _terms(21),
        SpinMap.identity(21),
    ),
    _encodes(
        PAIR,
        "a polynomial is 0.1 nats away from the model's tables",
        _terms(2, ((0, 1), 0.4)),
        TWO,
    ),
    _encodes(EQUAL, "a polynomial stands for a table with zeros", TERMS, TWO),
    _encodes(
        EQUAL,
        "a polynomial gives weight to a state that a table forbids",
        _terms(1),
        _map([1.0, -1.0], [1], [1]),
    ),
    _collapses(
        CHAIN,
        "kept and eliminated spins are not all spins, each once",
        _terms(2),
        [0, 1],
        [1],
    ),
    _collapses(CHAIN, "a term names a spin that does not exist", _terms(1), [0], [1]),
    _collapses(
        CHAIN,
        "a collapsed polynomial is ... nats away from its original",
        _terms(2, ((0, 1), 0.7)),
        [0, 2],
        [1],
    ),
    _collapses(
        STAR,
        "spin 0 has 25 neighbours when it is summed out",
        _terms(25),
        range(1, 26),
        [0],
    ),
    about(PAIR, "a q over spins came without the polynomial that it is about", _nowhere(0)),
    about(PAIR, "a q over spins came without its model", _nowhere(2)),
    about(
        PAIR,
        "a collapse keeps or sums out spins that the model has not",
        SpinEvidence(SpinLink(ENCODING, CollapseLink(TERMS, np.arange(3), NONE)), FREE_3),
    ),
    about(PAIR, "q is over 3 spins; there are 2", SpinEvidence(LINK, FREE_3)),
    about(PAIR, "a q does not stay in its coset", _coset([[0], [1]])),
    about(PAIR, "a coset is counted twice", _coset([[0], [0]])),
]


# ---- upper bounds: cliques and edges ------------------------------------------------------------

CUT = CliquesEvidence(
    order=np.arange(3),
    scopes=[(1, 0), (2, 0), (2, 1), (2,)],
    factors=[[0], [1], [2], []],
    parents=np.array([2, 3, 3, -1]),
    weights=np.array([0.5, 0.5, 1.0, 1.0]),
    pairs=np.array([[0, 1]]),
    shift_ptr=np.array([0, 2]),
    shifts=np.zeros(2),
    claimed=math.inf,
)
"""TRIANGLE with the bucket of variable 0 cut in two."""


def _cut(text: str, **changes: object) -> Case:
    return about(TRIANGLE, text, replace(CUT, **changes))


EDGES = np.array([[0, 1], [0, 2], [1, 2]])
THIRDS = np.full(3, 0.66)


def _edges(model: tz.FactorGraph, text: str, **changes: object) -> Case:
    """The one edge of PAIR, spoiled."""
    sound = EdgesEvidence(
        np.ones(1), Forests(np.array([[0, 1]]), None), np.ones(1), np.zeros(2), np.zeros(2)
    )
    return about(model, text, replace(sound, **changes))


def _mixture(
    text: str,
    rho: np.ndarray,
    weights: Sequence[float],
    start: np.ndarray | None = None,
    edges: np.ndarray = EDGES,
) -> Case:
    """Forests of a triangle that do not attain rho."""
    return refuted(text, lambda: Forests(edges, start).check(rho, np.array(weights)))


UPPER = [
    _cut("the tables of this bound were judged on another model and left", shifts=None),
    _cut("a bound of 0.0 is claimed, 2.2... is proven", claimed=0.0),
    _cut("the elimination order is not one of the model's free variables", order=np.arange(2)),
    _cut("scopes, parents and weights of cliques differ in number", weights=np.ones(3)),
    _cut(
        "clique 0 has scope (0, 1), which the order does not allow",
        scopes=[(0, 1), *CUT.scopes[1:]],
    ),
    _cut(
        "the message of clique 0 does not fit clique 3",
        parents=np.array([3, 3, 3, -1]),
    ),
    _cut("the placed factors do not list one entry per clique", factors=[[0], [1], [2]]),
    _cut(
        "factor 0 is placed twice, or not inside clique 0",
        factors=[[0, 0], [1], [2], []],
    ),
    _cut("factor 0 is in no clique", factors=[[], [1], [2], []]),
    _cut(
        "weights [0.5, 0.4] of variable 0 are not those of Hoelder",
        weights=np.array([0.5, 0.4, 1.0, 1.0]),
    ),
    _cut(
        "weights of mixed signs bound neither side",
        scopes=[*CUT.scopes, (1,)],
        factors=[*CUT.factors, []],
        parents=np.array([2, 3, 3, -1, -1]),
        weights=np.array([0.5, 0.5, 2.0, 1.0, -1.0]),
    ),
    _cut("shifts and pairs differ in number", shift_ptr=np.array([0, 1, 2])),
    _cut("shift 0 is between cliques 0 and 0", pairs=np.array([[0, 0]])),
    _cut(
        "shift 0 does not fit cliques 0 and 1",
        shift_ptr=np.array([0, 3]),
        shifts=np.zeros(3),
    ),
    _cut("shift 0 holds numbers that are none", shifts=np.array([0.0, math.nan])),
    _cut(
        "a shift claims zeros that the model's tables do not imply",
        shifts=np.array([0.0, -math.inf]),
    ),
    refuted(
        "an elimination order does not name every variable once",
        lambda: bucket_tree(PAIR, np.array([0, 0])),
    ),
    refuted(
        "an elimination order needs tables beyond what the judge makes",
        lambda: bucket_tree(HUB, np.arange(25)),
    ),
    _edges(TRIPLE, "evidence about pairs was handed in for a model with larger factors"),
    _edges(TRIANGLE, "the forests are not made of the model's edges"),
    _edges(PAIR, "messages do not fit the states of the edges' ends", into_first=np.zeros(3)),
    _edges(PAIR, "a message is not a number", into_second=np.array([0.0, math.nan])),
    _mixture("weights of forests are negative, or there are more than forests", THIRDS, [0.5, 0.5]),
    _mixture("weights of forests sum to more than one", THIRDS, [1.1]),
    _mixture("edge 0 has probability 0.7; forests give 0.66...", 0.7 * np.ones(3), [1.0]),
    _mixture("a forest in the mixture has a cycle", THIRDS, [1.0], np.ones((1, 3), dtype=bool)),
    _mixture(
        "the uniform spanning forest of so many vertices is not judged",
        np.ones(1500),
        [1.0],
        edges=np.stack([np.arange(1500), np.arange(1, 1501)], axis=1),
    ),
]


# ---- disjoint parts, and what was done before a run ---------------------------------------------


def _tree(text: str, root: Cell, encoding: EncodingLink | None = ENCODING) -> Case:
    """A tree over the spins of PAIR."""
    return refuted(text, lambda: PartsEvidence(Court(TERMS, 2, encoding), root).verdict(PAIR))


def _half(parity: tuple[int, ...], proof: Proof) -> Cell:
    """The proof is about the side where the parity's product is +1."""
    return Cell((), parity, (Cell((proof,)), Cell(())))


def _above(graph: tz.FactorGraph) -> Cell:
    return Cell((Ceiling(graph, LargestEntries()),))


def _ceiling_elsewhere() -> None:
    court, ceiling = Court(TERMS, 2, ENCODING), Ceiling(PAIR, LargestEntries())
    ceiling.judge(court, whole(2))
    ceiling.judge(court, halves(whole(2), (0,))[0])


def _same_side_twice() -> Cell:
    side = Cell((Product(np.arange(2), np.zeros(2)),))
    return Cell((), (0,), (side, side))


LOOSE = Conditionals(np.arange(2), np.zeros(3, np.int64), NONE, np.ones(4))
STRONGER = tz.FactorGraph([2, 2], [((0, 1), 2.0 * np.array(TABLE))])

PARTS = [
    refuted(
        "a region's lower bound 1.0 exceeds its upper bound 0.0",
        lambda: joined([Verdict(lower=1.0), Verdict(upper=0.0)]),
    ),
    _tree("a tree over spins came without the model it is about", Cell(()), encoding=None),
    _tree(
        "one cell stands for both sides of a parity: it is counted twice",
        _same_side_twice(),
    ),
    _tree(
        "(5,) is no parity of one or two free spins of the region it cuts",
        Cell((), (5,), (Cell(()), Cell(()))),
    ),
    _tree(
        "a q does not have one mean per spin",
        Cell((Product(np.arange(2), np.zeros(1)),)),
    ),
    _tree("a structured q cannot follow tied spins", _half((0, 1), LOOSE)),
    _tree("a q puts weight outside its region", _half((0,), LOOSE)),
    refuted("an upper bound was judged on one region and is shown for another", _ceiling_elsewhere),
    _tree(
        "a region's model does not have one binary variable per free spin",
        _above(tz.FactorGraph([2], [((0,), [0.0, 1.0])])),
    ),
    _tree("a region's model has observed variables or zeros", _above(EQUAL)),
    about(
        PAIR,
        "held and summed out variables are not all variables, each once",
        CutsetEvidence(Conditioned(np.array([0]), np.array([0])), [np.array([0])]),
    ),
    about(
        PAIR,
        "an assignment does not give one state to each held variable",
        CutsetEvidence(Conditioned(np.array([0]), np.array([1])), [np.array([0, 0])]),
    ),
    about(
        PAIR,
        "a held variable is given a state that it does not have",
        CutsetEvidence(Conditioned(np.array([0]), np.array([1])), [np.array([2])]),
    ),
    refuted(
        "exact: bucket 0: a message says 0.0 where its tables sum to 0.69...",
        lambda: check_messages(np.zeros((1, 2)), np.zeros(1), 1.0, 1e-9, "exact: bucket 0"),
    ),
    refuted(
        "a substitution before the run changed the model: a state weighs ...0.6 after it, ...0.3 "
        "before",
        lambda: check_substitution(
            PAIR, STRONGER, np.arange(2), [np.arange(2)] * 2, np.full(2, -1)
        ),
    ),
]

_ROWS = np.log([[0.5, 0.5], [0.25, 0.75]])
_NETWORK = tz.FactorGraph([2, 2], [((0, 1), _ROWS), ((0,), np.log([0.4, 0.6]))])

BARREN = [
    refuted(
        "variable 0 is no barren one: factors [0, 1] name it",
        lambda: check_barren(_NETWORK, tz.FactorGraph([], []), [(0, 0)], 0.0),
    ),
    refuted(
        "barren variables were taken out of a model that still names them",
        lambda: check_barren(_NETWORK, _NETWORK, [(1, 0)], 0.0),
    ),
]

_AT = np.array([0, 2])
_ONE = np.array([0, 1])
_HALVES = np.full(2, 0.5, dtype=np.float32)
_COIN = tz.FactorGraph([2], [((0,), np.log([0.5, 0.5]))])


def _excess(tables: np.ndarray, weight: float) -> float:
    return cap_excess(np.array([2]), _AT, _ONE, tables.astype(np.float32), np.array([weight]))


PROPOSALS = [
    refuted(
        "a clique's weight is not positive: its bucket proves no cap",
        lambda: _excess(_HALVES, -1.0),
    ),
    refuted("the weights of a bucket sum to 0.5, not to 1", lambda: _excess(_HALVES, 0.5)),
    refuted("a table of the proposal is not finite", lambda: _excess(_HALVES * np.inf, 1.0)),
    refuted(
        "draws under a cap: a weight differs from p~ / q by 1 nats",
        lambda: check_weights(
            _COIN, [(0,)], _AT, _ONE, _HALVES, np.zeros((1, 1), dtype=np.int64), np.ones(1), 1e-6
        ),
    ),
]

_STATES = tz.FactorGraph([3, 3], [((0, 1), np.zeros((3, 3)))])
_SKEW = tz.FactorGraph([2, 2], [((0, 1), [[0.3, 0.1], [-0.3, 0.2]])])
_EVEN = Part(PAIR, LargestEntries())

FIELDS = [
    about(
        TRIANGLE,
        "a part is a model over other variables, states or scopes",
        FieldsEvidence(_EVEN),
    ),
    about(
        _STATES,
        "a variable that is no spin has no flip",
        FieldsEvidence(Part(_STATES, LargestEntries())),
    ),
    about(
        PAIR,
        "tables with zeros, or a part that a flip of all spins changes",
        FieldsEvidence(Part(_SKEW, LargestEntries())),
    ),
    about(PAIR, "a share of 1.0 is not between 0 and 1", FieldsEvidence(_EVEN, _EVEN, share=1.0)),
]


def _quadratic(
    order=(0, 1), mu=(), v=(), spins=None, signs=None, multiples=(), terms=TERMS, chart=TWO
) -> QuadraticEvidence:
    count = len(multiples)
    return QuadraticEvidence(
        EncodingLink(terms, chart),
        np.array(order),
        np.array(mu, dtype=np.float64),
        np.array(v, dtype=np.float64),
        np.array([[0, 1, 2]] * count if spins is None else spins, np.int64).reshape(-1, 3),
        np.array([[1, 1, 1]] * count if signs is None else signs).reshape(-1, 3),
        np.array(multiples, dtype=np.float64),
    )


MANY = tz.FactorGraph([2] * 8193)
UNIFORM = tz.FactorGraph([2] * 2)
THREE = tz.FactorGraph([2] * 3)
QUADRATIC = [
    about(
        PAIR,
        "spins of a quadratic bound are not all the bits of the model",
        _quadratic(chart=SpinMap(2, TWO.ptr, TWO.free, -TWO.sign)),
    ),
    about(
        MANY,
        "a quadratic bound is over 8193 spins; at most 8192 fit",
        _quadratic(terms=_terms(8193), chart=SpinMap.identity(8193)),
    ),
    about(
        PAIR,
        "the order of a quadratic bound does not name every spin once",
        _quadratic(order=(0, 0)),
    ),
    about(
        PAIR,
        "a quadratic bound does not have one mu and one v for each spin",
        _quadratic(mu=(0.0,)),
    ),
    about(
        PAIR,
        "a mu or a v of a quadratic bound is not a number",
        _quadratic(mu=(0.0,), v=(np.nan,)),
    ),
    about(
        PAIR,
        "inequalities of a quadratic bound do not have three spins each",
        _quadratic(spins=[], multiples=(1.0,)),
    ),
    about(
        PAIR,
        "an inequality of a quadratic bound is not one of spins and signs",
        _quadratic(spins=[[0, 1, 3]], multiples=(1.0,)),
    ),
    about(
        PAIR,
        "a multiple of an inequality is negative or not a number",
        _quadratic(multiples=(-1.0,)),
    ),
    about(
        PAIR,
        "an inequality of a quadratic bound names a spin twice",
        _quadratic(spins=[[0, 0, 2]], multiples=(1.0,)),
    ),
    about(
        THREE,
        "a quadratic bound is about a polynomial that is none",
        _quadratic(
            order=range(3),
            terms=SpinTerms(0.0, np.array([0, 3]), np.arange(3), np.zeros(1)),
            chart=SpinMap.identity(3),
        ),
    ),
    about(
        UNIFORM,
        "a quadratic bound is about a polynomial with other spins",
        _quadratic(terms=SpinTerms(0.0, np.array([0, 1]), np.array([2]), np.zeros(1))),
    ),
    about(
        UNIFORM,
        "a quadratic bound is about a polynomial with a repeated spin",
        _quadratic(terms=SpinTerms(0.0, np.array([0, 2]), np.array([1, 1]), np.zeros(1))),
    ),
]

NO_STATE = np.full((1, 2), 2)
HEAVIEST = [
    refuted(
        "a state handed in as a heavy one is not a state of the model",
        lambda: weights_of(PAIR, NO_STATE),
    ),
    refuted(
        "a state handed in as a heavy one is not a state of the model",
        lambda: heaviest(bucket_tree(PAIR, np.arange(2)), PAIR, NO_STATE),
    ),
    refuted(
        "the tables of this bound were judged before and left",
        lambda: heaviest(replace(bucket_tree(PAIR, np.arange(2)), shifts=None), PAIR),
    ),
]

TERNARY = tz.FactorGraph([3, 2], [((0, 1), np.arange(6.0))])


def _cut(variable: int, states: tuple[int, ...], model: tz.FactorGraph = TERNARY) -> Evidence:
    """A tree of states with one cut."""
    sides = StatePart((Summed(8),)), StatePart((Summed(8),))
    return DomainsEvidence(DomainCourt(model), StatePart((), variable, states, sides))


def _one_part_twice() -> Evidence:
    one = StatePart((Summed(8),))
    return DomainsEvidence(DomainCourt(TERNARY), StatePart((), 0, (0,), (one, one)))


DOMAINS = [
    about(
        TERNARY,
        "a sum needs tables of more than 2 entries",
        DomainsEvidence(DomainCourt(TERNARY), StatePart((Summed(2),))),
    ),
    about(
        TERNARY,
        "a part is cut at variable 5; the model has no such variable",
        _cut(5, (0,)),
    ),
    about(TERNARY, "(0, 1, 2) are no proper part of the states of variable 0", _cut(0, (0, 1, 2))),
    about(
        TERNARY,
        "one part stands for both sides of a cut: it is counted twice",
        _one_part_twice(),
    ),
    about(PAIR, "a tree of states is about another model", _cut(0, (0,))),
]

CASES = [
    *VARIABLES, *SPINS, *LINKS, *UPPER, *PARTS, *BARREN, *PROPOSALS, *FIELDS, *QUADRATIC,
    *HEAVIEST, *DOMAINS,
]  # fmt: skip
