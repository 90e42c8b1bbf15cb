"""Discrete factor graphs: p~(x) = prod_f exp(log_table_f(x_scope)), stored as flat arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError
from tightz.models.factor_checks import (
    check_factors,
    checked_cardinalities,
    checked_scope,
    listed_factors,
)
from tightz.models.inputs import integer_array, real_array
from tightz.models.names import Names, States, checked_names, checked_states
from tightz.shown import Shown


class Factor(NamedTuple):
    """One factor: the variables it touches, and its log table (C order, last variable fastest)."""

    scope: tuple[int, ...]
    log_table: NDArray[np.float64]


class FactorBatch(NamedTuple):
    """Factors of one table shape: indices (F,), scopes (F, arity), log_tables (F, *shape)."""

    indices: NDArray[np.int64]
    scopes: NDArray[np.int32]
    log_tables: NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Variables laid out on a rows x cols lattice, row by row."""

    rows: int
    cols: int
    periodic: bool = False


@dataclass(frozen=True)
class Bipartite:
    """Two layers, visible variables first: no factor joins two variables of the same layer."""

    visible: int
    hidden: int


Layout = Grid | Bipartite | None

NamedStates = Iterable[Sequence[str] | None] | Mapping[Any, Sequence[str]] | None
"""States as a caller may name them."""


class FactorGraph(Shown):
    """A discrete graphical model: cardinalities, factors as log tables, and evidence.

    `factors` lists pairs (scope, log_table). A log table holds -inf (a zero potential) and numbers
    from -1e100 to 1e100; functions refuse a model with others, `with_zeros` makes zeros of some.
    Use `FactorGraph.from_tables` for potentials on the ordinary scale.

    Z sums over the states that agree with `evidence`, {variable: state}.

    names    one string for each variable, all different; None: numbers only
    states   for each variable one string for each of its states, or None; or {variable: strings}

    A variable or a state given as a str is meant by its name, an int is its number. Names change
    no result and no `digest`.
    """

    model_kind: ClassVar[str] = "FactorGraph"
    cardinalities: NDArray[np.int32]
    scope_ptr: NDArray[np.int64]
    scope_vars: NDArray[np.int32]
    table_ptr: NDArray[np.int64]
    log_tables: NDArray[np.float64]
    evidence: dict[int, int]
    name: str
    layout: Layout
    names: tuple[str, ...] | None
    states: States | None

    def __init__(
        self,
        cardinalities: ArrayLike,
        factors: Iterable[tuple[Sequence[int], ArrayLike]] = (),
        *,
        evidence: Mapping[Any, Any] | None = None,
        name: str = "",
        layout: Layout = None,
        names: Iterable[str] | None = None,
        states: NamedStates = None,
    ) -> None:
        scopes: list[tuple[int, ...]] = []
        tables: list[NDArray[np.float64]] = []
        for f, (scope, table) in enumerate(listed_factors(factors)):
            scopes.append(checked_scope(f, scope))
            tables.append(real_array(table, f"the log table of factor {f}", bools=False))
        sizes = np.array([t.size for t in tables], dtype=np.int64)
        arities = np.array([len(s) for s in scopes], dtype=np.int64)
        cards = checked_cardinalities(cardinalities)
        for f, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
            if all(0 <= v < cards.size for v in scope):
                shape = tuple(int(cards[v]) for v in scope)
                if table.shape not in (shape, (table.size,)):
                    raise ModelError(
                        f"factor {f} has a table of shape {table.shape}; its scope {scope} needs "
                        f"{shape} (or the same entries flat, last variable fastest)"
                    )
        self._fill(
            cards,
            np.concatenate([[0], np.cumsum(arities)]),
            np.array([v for s in scopes for v in s], dtype=np.int64),
            np.concatenate([[0], np.cumsum(sizes)]),
            np.concatenate([t.ravel() for t in tables]) if tables else np.zeros(0),
            evidence,
            name,
            layout,
            names,
            states,
        )

    @classmethod
    def from_arrays(
        cls,
        cardinalities: ArrayLike,
        scope_ptr: ArrayLike,
        scope_vars: ArrayLike,
        table_ptr: ArrayLike,
        log_tables: ArrayLike,
        *,
        evidence: Mapping[Any, Any] | None = None,
        name: str = "",
        layout: Layout = None,
        names: Iterable[str] | None = None,
        states: NamedStates = None,
    ) -> FactorGraph:
        """Build from the flat arrays themselves: no Python object per factor."""
        model = cls.__new__(cls)
        model._fill(
            checked_cardinalities(cardinalities),
            integer_array(scope_ptr, "scope_ptr"),
            integer_array(scope_vars, "scope_vars"),
            integer_array(table_ptr, "table_ptr"),
            real_array(log_tables, "log_tables", bools=False),
            evidence,
            name,
            layout,
            names,
            states,
        )
        return model

    @classmethod
    def from_tables(
        cls,
        cardinalities: ArrayLike,
        factors: Iterable[tuple[Sequence[int], ArrayLike]],
        *,
        evidence: Mapping[Any, Any] | None = None,
        name: str = "",
        names: Iterable[str] | None = None,
        states: NamedStates = None,
    ) -> FactorGraph:
        """Build from non-negative potentials on the ordinary scale."""
        logs = []
        for f, (scope, table) in enumerate(listed_factors(factors)):
            values = real_array(table, f"the table of factor {f}")
            bad = ~(values >= 0)
            if bad.any():
                at = int(np.argmax(bad.ravel()))
                raise ModelError(
                    f"factor {f}, entry {at}: potential is {values.ravel()[at]}; expected a number "
                    ">= 0 (the constructor takes logs)"
                )
            with np.errstate(divide="ignore"):
                logs.append((scope, np.log(values)))
        return cls(cardinalities, logs, evidence=evidence, name=name, names=names, states=states)

    def _fill(
        self,
        cardinalities: NDArray,
        scope_ptr: NDArray[np.int64],
        scope_vars: NDArray[np.int64],
        table_ptr: NDArray[np.int64],
        log_tables: NDArray[np.float64],
        evidence: Mapping[Any, Any] | None,
        name: str,
        layout: Layout,
        names: Iterable[str] | None,
        states: NamedStates,
    ) -> None:
        check_factors(cardinalities, scope_ptr, scope_vars, table_ptr, log_tables)
        self.cardinalities = _frozen(cardinalities, np.int32)
        self.scope_ptr = _frozen(scope_ptr, np.int64)
        self.scope_vars = _frozen(scope_vars, np.int32)
        self.table_ptr = _frozen(table_ptr, np.int64)
        self.log_tables = _frozen(log_tables, np.float64)
        self.name = name
        self.layout = layout
        self.names = checked_names(names, self.n_variables)
        self.states = checked_states(states, self.names, self.cardinalities)
        self.evidence = self.naming.numbered(evidence)

    @property
    def n_variables(self) -> int:
        return int(self.cardinalities.size)

    @property
    def n_factors(self) -> int:
        return int(self.scope_ptr.size - 1)

    @property
    def is_binary(self) -> bool:
        """Whether every variable without evidence has at most two states."""
        free = np.ones(self.n_variables, dtype=bool)
        free[list(self.evidence)] = False
        return bool((self.cardinalities[free] <= 2).all())

    @cached_property
    def arities(self) -> NDArray[np.int64]:
        return np.diff(self.scope_ptr)

    @cached_property
    def has_zeros(self) -> bool:
        """Whether a table holds a zero potential."""
        return bool((self.log_tables == -np.inf).any())

    @cached_property
    def free_variables(self) -> NDArray[np.int64]:
        """Variables that can vary: not observed, and of more than one state."""
        free = self.cardinalities > 1
        free[list(self.evidence)] = False
        return np.flatnonzero(free)

    def factor(self, f: int) -> Factor:
        """Factor `f` as (scope, log_table), the table shaped by its scope."""
        scope = tuple(self.scope_vars[self.scope_ptr[f] : self.scope_ptr[f + 1]].tolist())
        shape = tuple(int(self.cardinalities[v]) for v in scope)
        flat = self.log_tables[self.table_ptr[f] : self.table_ptr[f + 1]]
        return Factor(scope, flat.reshape(shape))

    @property
    def factors(self) -> Iterator[Factor]:
        """All factors in order."""
        return (self.factor(f) for f in range(self.n_factors))

    def batches(self) -> Iterator[FactorBatch]:
        """Factors grouped by table shape, so that work over many of them vectorises."""
        groups = _by_shape(self)
        groups.sort(key=lambda group: (group[0] == (2, 2), int(group[1][0])))
        for shape, fs in groups:
            size = int(np.prod(shape, dtype=np.int64))
            scopes = self.scope_vars[self.scope_ptr[fs][:, None] + np.arange(len(shape))]
            tables = self.log_tables[self.table_ptr[fs][:, None] + np.arange(size)]
            yield FactorBatch(fs, scopes, tables.reshape(len(fs), *shape))

    @cached_property
    def naming(self) -> Names:
        """Names of variables and states to numbers and back."""
        return Names(self.cardinalities, self.names, self.states, self.name)

    def index(self, variable: Any) -> int:
        """The number of a variable, given by name or number."""
        return self.naming.index(variable)

    def state(self, variable: Any, state: Any) -> int:
        """The number of a state, given by name or number, of a variable given likewise."""
        return self.naming.state(variable, state)

    def with_names(self, names: Iterable[str] | None, states: NamedStates = None) -> FactorGraph:
        """The same model with these names of its variables and of their states."""
        checked = checked_names(names, self.n_variables)
        return self._named(checked, checked_states(states, checked, self.cardinalities))

    def _named(self, names: tuple[str, ...] | None, states: States | None) -> FactorGraph:
        """A copy under names that were checked already; tables are shared."""
        named = copy(self)
        named.__dict__.pop("naming", None)
        named.names, named.states = names, states
        return named

    def with_evidence(self, evidence: Mapping[Any, Any]) -> FactorGraph:
        """The same model with further variables observed; a contradiction is refused.

        `evidence` is {variable: state}, each by name or number.
        """
        merged = dict(self.evidence)
        for v, state in self.naming.numbered(evidence).items():
            if merged.setdefault(v, state) != state:
                label = repr(self.names[v]) if self.names else f"variable {v}"
                old, new = (self.naming.state_labels(v)[s] for s in (merged[v], state))
                raise ModelError(f"{label} is observed in state {old}; new evidence says {new}")
        return self._observing(merged)

    def without_evidence(self) -> FactorGraph:
        """The same model with nothing observed."""
        return self._observing({})

    def _observing(self, evidence: dict[int, int]) -> FactorGraph:
        """A copy under evidence that was checked already; tables are shared."""
        other = copy(self)
        for made in ("digest", "free_variables"):  # they depend on what is observed
            other.__dict__.pop(made, None)
        other.evidence = evidence
        return other

    def with_zeros(self, below: float = -1e9) -> FactorGraph:
        """A copy in which log potentials that only stand for zeros are zeros (-inf).

        These are the finite entries lower than their table's largest by more than -`below`, such
        as -1e30 for a forbidden pair. Methods that know zeros then see them, and sums no longer
        round away what is small beside 1e30. Entries are only lowered, so Z can only shrink: a
        lower bound for the copy is one for this model. `tightz.models.scale.log_removed` bounds
        what Z loses, N exp(d + the sum of the tables' largest) for N states and removed entries
        at least -d below their table's largest: nothing that float64 can show, unless the copy
        has no possible state at all.
        """
        from tightz.models.scale import with_zeros

        return with_zeros(self, below)

    def scale_warnings(self) -> list[str]:
        """What the size of the log potentials does to float64: one line for each matter, or none.

        Entries that look like zeros written as numbers, and rounding of more than 1e-6 nats; each
        names a factor, its entry and the remedy.
        """
        from tightz.models.scale import scale_warnings

        return scale_warnings(self)

    def condition(self) -> FactorGraph:
        """The model over its unobserved variables, which keep their order.

        log Z of the result equals log Z of this model: tables are sliced at the evidence, and
        factors left without a variable become constants (scope ()). `tightz.models.observed` also
        knows the way back.
        """
        if not self.evidence:
            return self
        keep = np.ones(self.n_variables, dtype=bool)
        keep[list(self.evidence)] = False
        new_number = np.cumsum(keep) - 1
        sliced = []
        for scope, table in self.factors:
            index = tuple(self.evidence.get(v, slice(None)) for v in scope)
            rest = [int(new_number[v]) for v in scope if keep[v]]
            sliced.append((rest, table[index]))
        rest_of = FactorGraph(self.cardinalities[keep], sliced, name=self.name)
        return rest_of._named(*self.naming.of(np.flatnonzero(keep)))

    def log_weight(self, states: ArrayLike) -> NDArray[np.float64]:
        """log p~(x) for each row of `states` (S, n); -inf where the evidence is contradicted."""
        x = np.atleast_2d(integer_array(states, "states"))
        if x.ndim != 2 or x.shape[1] != self.n_variables:
            raise ModelError(
                f"states have {x.shape[-1]} columns; the model has {self.n_variables} variables"
            )
        outside = (x < 0) | (x >= self.cardinalities)
        if outside.any():
            row, v = (int(i) for i in np.argwhere(outside)[0])
            raise ModelError(
                f"states[{row}, {v}] is {x[row, v]}; variable {v} has states 0 to "
                f"{self.cardinalities[v] - 1}"
            )
        total = np.zeros(len(x))
        for batch in self.batches():
            arity = batch.scopes.shape[1]
            index = tuple(x[:, batch.scopes[:, j]] for j in range(arity))
            total += batch.log_tables[(np.arange(len(batch.indices))[None, :], *index)].sum(axis=1)
        for v, state in self.evidence.items():
            total[x[:, v] != state] = -np.inf
        return total

    @cached_property
    def digest(self) -> str:
        """SHA-256 over cardinalities, scopes, tables and evidence: the model's identity."""
        h = hashlib.sha256()
        for array in (self.cardinalities, self.scope_ptr, self.scope_vars, self.log_tables):
            h.update(np.ascontiguousarray(array).tobytes())
        h.update(repr(sorted(self.evidence.items())).encode())
        return h.hexdigest()

    def __repr__(self) -> str:
        cards = np.unique(self.cardinalities)
        states = f"{cards[0]}" if cards.size == 1 else f"up to {cards[-1]}" if cards.size else "no"
        name = f"{self.name!r}, " if self.name else ""
        seen = f", {len(self.evidence)} observed" if self.evidence else ""
        return (
            f"FactorGraph({name}{self.n_variables} variables of {states} states, "
            f"{self.n_factors} factors of arity up to {self.arities.max(initial=0)}{seen})"
        )


def _by_shape(model: FactorGraph) -> list[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """(table shape, factors of it), without a Python loop over factors."""
    groups = []
    for arity in np.unique(model.arities).tolist():
        fs = np.flatnonzero(model.arities == arity)
        cards = model.cardinalities[
            model.scope_vars[model.scope_ptr[fs][:, None] + np.arange(arity)]
        ]
        label = np.zeros(len(fs), dtype=np.int64)
        for column in cards.T:  # numbers of the distinct rows so far: at most as many as factors
            _, state = np.unique(column, return_inverse=True)
            _, label = np.unique(label * (state.max() + 1) + state, return_inverse=True)
        order = np.argsort(label, kind="stable")
        edges = np.flatnonzero(np.diff(label[order])) + 1
        for part in np.split(order, edges):
            groups.append((tuple(cards[part[0]].tolist()), fs[part]))
    return groups


def _frozen(array: NDArray, dtype: type) -> NDArray:
    out: NDArray = np.array(array, dtype=dtype, order="C")
    out.flags.writeable = False
    return out
