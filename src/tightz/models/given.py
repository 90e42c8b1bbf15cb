"""What public functions take for a model: a model, or the path of a file that holds one."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

import numpy as np

from tightz.errors import ModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.models.scale import BELOW, LARGEST, place
from tightz.models.spin_polynomial import SpinPolynomial

GraphOrPath = FactorGraph | str | os.PathLike[str]
ModelOrPath = SpinPolynomial | GraphOrPath


def opened(model: Any) -> Any:
    """What the file holds where `model` is a path, else `model` itself."""
    if not isinstance(model, str | os.PathLike):
        return model
    from tightz.models.formats import read  # readers are not loaded for models that are there

    return read(model)


@overload
def given_model(model: GraphOrPath, where: str, *, only: Literal["FactorGraph"]) -> FactorGraph: ...
@overload
def given_model(
    model: ModelOrPath, where: str, *, only: str = ""
) -> FactorGraph | SpinPolynomial: ...
def given_model(model: Any, where: str, *, only: str = "") -> FactorGraph | SpinPolynomial:
    """The model that the function `where` was called with; `only` as in `as_model`.

    Its entries are within `scale.LARGEST`, which is checked here and nowhere else.
    """
    found = as_model(opened(model), where, only=only)
    _require_moderate(found, where)
    return found


def _require_moderate(model: FactorGraph | SpinPolynomial, where: str) -> None:
    """Refuse a model with an entry beyond `LARGEST`; `where` names the function it was given to."""
    if isinstance(model, SpinPolynomial):
        entries = np.append(model.theta, model.constant)
    else:
        entries = model.log_tables
    large = (entries > LARGEST) | ((entries < -LARGEST) & (entries > -np.inf))
    if not large.any():
        return
    k = int(np.argmax(large))
    at = f"term {k}" if isinstance(model, SpinPolynomial) else place(model, k)
    remedy = (
        f"where it was written for a zero, model.with_zeros() makes zeros of such numbers "
        f"(tightz ... --zeros-below {BELOW:g})"
        if entries[k] < 0.0
        else "scale the model down, or take a constant off its tables"
    )
    raise ModelError(
        f"{where} was given a model whose {at} is {entries[k]:g}; expected -inf (a zero) or a "
        f"number from {-LARGEST:g} to {LARGEST:g}, of which float64 holds all sums: {remedy}"
    )
