"""What public functions take for a model: a model, or the path of a file that holds one."""

from __future__ import annotations

import os
from typing import Any, Literal, overload

from tightz.models.factor_graph import FactorGraph
from tightz.models.inputs import as_model
from tightz.models.scale import require_moderate
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
    require_moderate(found, where)
    return found
