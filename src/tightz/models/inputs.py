"""What comes from outside, checked once: an index, a state, a number, an array, a range, a model.

numpy would take 0.9 for variable 0, -1 for the last one, a complex number for its real part and a
masked entry for what the mask hides. A bound on another model than the caller's is worth nothing,
so each of these is refused here, naming what came, where, and the remedy.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import ModelError, ParameterError

if TYPE_CHECKING:
    from tightz.models.factor_graph import FactorGraph
    from tightz.models.spin_polynomial import SpinPolynomial

_KINDS = {
    "c": "complex numbers; expected real ones. Pass its .real if the rest is known to be zero",
    "U": "text; expected numbers. Convert it with float(...)",
    "S": "bytes; expected numbers. Convert it with float(...)",
    "M": "dates; expected numbers",
    "m": "durations; expected numbers",
    "V": "records; expected numbers",
    "b": "True and False; expected logs of potentials (tz.FactorGraph.from_tables takes 0 and 1)",
}
"""What is wrong with an array, by its numpy kind."""


def shown(value: Any) -> str:
    """A value for a message: its type, and itself where that is short."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    if isinstance(value, str | bytes | numbers.Number | os.PathLike):
        text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
        return f"{article} {kind}, {text if len(text) <= 60 else text[:57] + '...'}"
    return f"{article} {kind}"


def told(value: Any) -> str:
    """A value as the caller wrote it: quotes around text, no type around a number."""
    return str(value) if isinstance(value, numbers.Number | np.ndarray) else repr(value)


def whole(value: Any) -> int | None:
    """A whole number as an int, None where it is not one. 3.0 is one; True, '3' and 0.9 are not."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return int(value)
    return None


def as_index(value: Any, what: str, remedy: str = "") -> int:
    """The number of a variable: whole and not negative (-1 is not the last one)."""
    number = whole(value)
    if number is None or number < 0:
        raise ModelError(
            f"{what} is {told(value)}; expected the number of a variable, a whole number >= 0"
            + (f". {remedy}" if remedy else "")
        )
    return number


def as_state(value: Any, what: str) -> int:
    """The number of a state: whole and not negative; True and False are 1 and 0."""
    number = int(value) if isinstance(value, bool | np.bool_) else whole(value)
    if number is None or number < 0:
        raise ModelError(
            f"{what} is {told(value)}; expected the number of a state, a whole number >= 0"
        )
    return number


def as_count(value: Any, what: str, low: int = 1) -> int:
    """A parameter that counts: a whole number of at least `low`."""
    number = whole(value)
    if number is None or number < low:
        raise ParameterError(f"{what} is {told(value)}; expected a whole number of at least {low}")
    return number


def as_number(value: Any, what: str) -> float:
    """A finite real number."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    real = isinstance(value, numbers.Real | np.number) and not isinstance(value, np.complexfloating)
    if not real or not math.isfinite(value):
        raise ModelError(f"{what} is {told(value)}; expected a finite number")
    return float(value)


def real_array(
    values: Any, what: str, *, where: str = "", bools: bool = True
) -> NDArray[np.float64]:
    """An array of real numbers as float64; infinities and NaN are the caller's to judge.

    `bools`: whether True and False stand for 1 and 0. `where` is a place, as " (file.npz)".
    """
    if isinstance(values, np.ndarray) and values.dtype == np.float64 and type(values) is np.ndarray:
        return values
    if is_sparse(values):
        raise ModelError(
            f"{what} is a sparse matrix; expected a dense array here: .toarray() makes one{where}"
        )
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ModelError(
            f"{what} has {int(np.ma.count_masked(values))} masked entries; expected a number in "
            f"each: .filled(value) puts one there{where}"
        )
    try:
        array = np.asarray(values)
    except Exception as error:  # a ragged list, a tensor that wants to be detached, ...
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"{what} is {shown(values)} that is no array of numbers ({reason}); expected numbers "
            f"in rows of equal length{where}"
        ) from None
    problem = _KINDS.get(array.dtype.kind, "")
    if array.dtype.kind == "O":
        first = next((v for v in array.ravel() if not isinstance(v, numbers.Real)), None)
        came = shown(values) if array.ndim == 0 else f"Python objects such as {shown(first)}"
        problem = f"{came}; expected plain real numbers"
    if array.dtype.kind in "fiu" or (array.dtype.kind == "b" and (bools or not array.size)):
        with np.errstate(over="ignore"):  # a long double beyond: inf, which the caller refuses
            return array.astype(np.float64)
    raise ModelError(f"{what} holds {problem}{where}")


def integer_array(values: Any, what: str) -> NDArray[np.int64]:
    """An array of whole numbers as int64; 2.0 counts as whole, 0.5 is refused."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return values.astype(np.int64, copy=False)
    array = real_array(values, what)
    bad = ~((array == np.rint(array)) & (np.abs(array) < 2.0**63))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f"[{', '.join(map(str, at))}]" if at else ""
        raise ModelError(f"{what}{place} is {array[at]}; expected whole numbers")
    whole_values: NDArray[np.int64] = array.astype(np.int64)
    return whole_values


def vector(values: Any, what: str, *, where: str = "") -> NDArray[np.float64]:
    """A flat array of real numbers; a single row or column counts as flat."""
    array = real_array(values, what, where=where)
    if array.ndim == 0 or array.size != max(array.shape):
        raise ModelError(
            f"{what} has shape {array.shape}; expected a vector: .ravel() makes one{where}"
        )
    return array.ravel()


def as_range(bounds: Any, what: str) -> tuple[float, float]:
    """A finite range (low, high) with low <= high; one number is a range of its own."""
    if whole(bounds) is not None or isinstance(bounds, float | np.floating):
        bounds = (bounds, bounds)
    ends = real_array(bounds, what, bools=False)
    if ends.shape != (2,) or not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise ModelError(
            f"{what} range is {bounds!r}; expected finite (low, high) with low <= high, or one "
            "number for all"
        )
    return float(ends[0]), float(ends[1])


_BRIDGES = {
    "networkx": "tz.ising(graph) makes a model of an undirected graph",
    "pgmpy": "tz.from_pgmpy(model) makes one of it",
    "pyagrum": "tz.from_pyagrum(model) makes one of it",
    "dimod": "tz.from_dimod(bqm) makes one of it",
    "sklearn": "tz.from_sklearn_rbm(rbm) makes one of a BernoulliRBM",
    "pandas": "tz.ising(couplings, fields) makes a model of couplings",
}
"""What makes a model of another library's things, by the library's name."""


def other_library(value: Any) -> str:
    """How a thing of another library becomes a model, or nothing."""
    return _BRIDGES.get(type(value).__module__.partition(".")[0].lower(), "")


def is_sparse(values: Any) -> bool:
    """Whether it is one of scipy's sparse matrices or arrays, told without importing scipy."""
    return hasattr(values, "tocoo") and hasattr(values, "nnz")


def as_model(model: Any, where: str, *, only: str = "") -> FactorGraph | SpinPolynomial:
    """`model` itself where it is one; `only` names the one type that the function `where` takes.

    Both types say what they are (`model_kind`), since they use this module and not it them.
    """
    kind = getattr(type(model), "model_kind", "")
    if kind and only in ("", kind):
        accepted: FactorGraph | SpinPolynomial = model
        return accepted
    remedy = "tz.FactorGraph(cardinalities, factors) builds a model, tz.read(path) reads one"
    if isinstance(model, str | os.PathLike):
        remedy = "read the file first: tz.read(path)"
    elif kind == "FactorGraph":
        remedy = "SpinPolynomial.from_factor_graph(model) makes one of a positive binary model"
    elif kind == "SpinPolynomial":
        remedy = "pass the factor graph that it was made from"
    elif isinstance(model, Mapping | np.ndarray) or is_sparse(model):
        remedy = "tz.ising(couplings, fields) makes a model of couplings"
    else:
        remedy = other_library(model) or remedy
    expected = "a SpinPolynomial" if only == "SpinPolynomial" else "a tz.FactorGraph"
    raise ModelError(f"{where} was given {shown(model)}; expected {expected}: {remedy}")
