"""Ising and QUBO dictionaries, as annealers use them: energies, p~ = exp(-beta * energy).

(`tz.ising` takes log weights instead: its couplings favour agreement where they are positive.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from tightz.errors import ModelError, UnsupportedModelError
from tightz.models.builders import SPIN_STATES, ising
from tightz.models.couplings import names_of
from tightz.models.factor_graph import FactorGraph
from tightz.models.given import GraphOrPath, given_model
from tightz.models.inputs import as_number, shown
from tightz.models.observed import observe
from tightz.models.spin_polynomial import SpinPolynomial

Pairs = Mapping[tuple[Any, Any], float]


def from_ising(
    h: Mapping[Any, float],
    J: Pairs,
    *,
    offset: float = 0.0,
    beta: float = 1.0,
    name: str = "ising",
) -> FactorGraph:
    """energy(s) = offset + sum h_i s_i + sum J_ij s_i s_j, spins s in {-1, +1}; state 0 is +1.

    Labels that are whole numbers >= 0 are variable numbers; others become names, in order of
    appearance, `h` first. Pairs (i, j) and (j, i) add up.
    """
    _check_mappings(h=h, J=J)
    number, names = _numbers([*h, *(k for pair in J for k in pair)])
    fields = dict.fromkeys(range(max(number.values(), default=-1) + 1), 0.0)
    couplings: dict[tuple[int, int], float] = {}
    constant = as_number(offset, "offset")
    scale = as_number(beta, "beta")
    for label, value in h.items():
        fields[number[label]] -= scale * as_number(value, f"h[{label!r}]")
    for (a, b), value in J.items():
        weight = -scale * as_number(value, f"J[{a!r}, {b!r}]")
        if number[a] == number[b]:
            constant += as_number(value, "J")  # s * s = 1
            continue
        pair = (min(number[a], number[b]), max(number[a], number[b]))
        couplings[pair] = couplings.get(pair, 0.0) + weight
    model = _with_constant(ising(couplings, fields, name=name), -scale * constant)
    return model.with_names(names, [SPIN_STATES] * len(names)) if names else model


def from_qubo(
    Q: Pairs,
    *,
    offset: float = 0.0,
    beta: float = 1.0,
    name: str = "qubo",
) -> FactorGraph:
    """energy(x) = offset + sum Q_ij x_i x_j, x in {0, 1}; state k is x = k.

    Q_ii is the linear weight of x_i. Labels as in `from_ising`.
    """
    _check_mappings(Q=Q)
    number, names = _numbers([k for pair in Q for k in pair])
    n = max(number.values(), default=-1) + 1
    scale = as_number(beta, "beta")
    linear = np.zeros(n)
    pairs: dict[tuple[int, int], float] = {}
    for (a, b), value in Q.items():
        weight = -scale * as_number(value, f"Q[{a!r}, {b!r}]")
        i, j = sorted((number[a], number[b]))
        if i == j:
            linear[i] += weight
        else:
            pairs[i, j] = pairs.get((i, j), 0.0) + weight
    factors: list[tuple[tuple[int, ...], Any]] = [
        ((v,), [0.0, weight]) for v, weight in enumerate(linear.tolist())
    ]
    factors += [(pair, [[0.0, 0.0], [0.0, weight]]) for pair, weight in pairs.items()]
    model = FactorGraph(np.full(n, 2), factors, name=name)
    return _with_constant(model, -scale * as_number(offset, "offset")).with_names(names)


def to_ising(model: GraphOrPath) -> tuple[dict[Any, float], dict[tuple[Any, Any], float], float]:
    """(h, J, offset) with energy = -log p~, for a positive binary model of degree two at most.

    Observed and one-state variables are taken out; labels are the names of the model's variables,
    or their numbers where they have none.
    """
    model = given_model(model, "to_ising", only="FactorGraph")
    poly = SpinPolynomial.from_factor_graph(observe(model).reduced)
    if poly.degree > 2:
        raise UnsupportedModelError(
            f"the model has a term of {poly.degree} spins; an Ising model has pairs at most. "
            "A .uai file holds any model"
        )
    if poly.constant == -np.inf:
        raise UnsupportedModelError("no state has weight; an Ising model has Z > 0")
    names = [model.names[v] if model.names else v for v in model.free_variables.tolist()]
    h: dict[Any, float] = dict.fromkeys(names, 0.0)
    couplings: dict[tuple[Any, Any], float] = {}
    for a, theta in enumerate(poly.theta.tolist()):
        members = [names[i] for i in poly.spins[poly.ptr[a] : poly.ptr[a + 1]]]
        if len(members) == 1:
            h[members[0]] = -theta
        else:
            couplings[members[0], members[1]] = -theta
    return h, couplings, -poly.constant


def to_qubo(model: GraphOrPath) -> tuple[dict[tuple[Any, Any], float], float]:
    """(Q, offset) with energy = -log p~; see `to_ising` for which models have one."""
    model = given_model(model, "to_qubo", only="FactorGraph")
    h, couplings, offset = to_ising(model)
    out = {(v, v): -2.0 * value for v, value in h.items()}  # s = 1 - 2x
    offset += math.fsum(h.values()) + math.fsum(couplings.values())
    for (a, b), value in couplings.items():
        out[a, a] -= 2.0 * value
        out[b, b] -= 2.0 * value
        out[a, b] = 4.0 * value
    return out, offset


def _check_mappings(**given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise ModelError(
                f"{name} is {shown(value)}; expected a mapping of labels to numbers "
                "(tz.ising takes matrices)"
            )
        for key in value if name != "h" else ():
            if isinstance(key, str) or not isinstance(key, tuple) or len(key) != 2:
                raise ModelError(f"{name} names {key!r}; expected pairs of labels, such as (0, 1)")


def _numbers(labels: Iterable[Hashable]) -> tuple[dict[Hashable, int], list[str] | None]:
    """The number of each label, and their names where labels are not numbers themselves."""
    distinct = list(dict.fromkeys(labels))
    if all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in distinct):
        numbers = [int(k) for k in distinct]  # type: ignore[call-overload]
        if min(numbers, default=0) >= 0 and max(numbers, default=0) < 10 * len(numbers) + 1000:
            return dict(zip(distinct, numbers, strict=True)), None
    return {label: i for i, label in enumerate(distinct)}, names_of(distinct)


def _with_constant(model: FactorGraph, constant: float) -> FactorGraph:
    if constant == 0.0:
        return model
    return FactorGraph(
        model.cardinalities, [*model.factors, ((), constant)], name=model.name, layout=model.layout
    )
