"""Models as named arrays in .npz, .mat and .h5 files.

An RBM is its weights: W, visible_bias and hidden_bias (in MATLAB files also vishid, visbiases and
hidbiases). Any other model is its own flat arrays, evidence and layout included, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.builders import rbm
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid, Layout
from tightz.models.formats.arrays import read_arrays, write_arrays
from tightz.models.formats.evidence import Evidence, observed
from tightz.models.formats.format import Format
from tightz.models.formats.text_files import FilePath, file_name
from tightz.models.inputs import as_model, integer_array, real_array, vector

_WEIGHTS = ("W", "visible_bias", "hidden_bias")

_MARK = "rows_are_visible"
"""An array of this name says that W is (visible, hidden)."""

_FLAT = ("cardinalities", "scope_ptr", "scope_vars", "table_ptr", "log_tables")

_EXTRA = ("evidence", "grid", "layers")
"""evidence (k, 2): variables and states; grid (rows, cols, periodic); layers (visible, hidden)."""


class Weights(NamedTuple):
    """W (visible, hidden), visible_bias (visible,), hidden_bias (hidden,), all finite float64."""

    w: NDArray[np.float64]
    visible_bias: NDArray[np.float64]
    hidden_bias: NDArray[np.float64]


def read_model(
    path: FilePath, evidence: Evidence | None = None, transposed: bool | None = None
) -> FactorGraph:
    """The model in a file of arrays; an RBM has its visible units first, and state 1 is on.

    W may be stored as (visible, hidden) or transposed: the lengths of the biases tell. With as
    many visible as hidden units they cannot; then the file must say it, as those of `tz.write` and
    arrays named vishid do, or `transposed` (True: W is (hidden, visible)), or W be symmetric:
    anything else is refused, for a guess would be a bound on another model. Other arrays in the
    file are ignored.
    """
    label = file_name(path)
    arrays = read_arrays(path, (*_WEIGHTS, _MARK, *_FLAT, *_EXTRA))
    if _FLAT[-1] in arrays:
        model = _flat_model(arrays, label)
    else:
        model = rbm(*_read_weights(arrays, label, transposed), name=Path(path).stem)
    known = observed(evidence, model.cardinalities)
    return model.with_evidence(known) if known else model


def write_model(model: FactorGraph, path: FilePath) -> None:
    """Write a model as arrays, atomically: an RBM as its weights, any other as it is."""
    as_model(model, "write", only="FactorGraph")
    weights = _weights_of(model)
    if weights is not None:
        save_weights(path, *weights)
        return
    arrays = {name: np.asarray(getattr(model, name)) for name in _FLAT}
    pairs = sorted(model.evidence.items())
    arrays["evidence"] = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    if isinstance(model.layout, Grid):
        shape = model.layout
        arrays["grid"] = np.array([shape.rows, shape.cols, shape.periodic], dtype=np.int64)
    elif isinstance(model.layout, Bipartite):
        arrays["layers"] = np.array([model.layout.visible, model.layout.hidden], dtype=np.int64)
    write_arrays(arrays, path)


def save_weights(
    path: FilePath, weights: ArrayLike, visible_bias: ArrayLike, hidden_bias: ArrayLike
) -> None:
    """Write the weights of an RBM, atomically, with W as (visible, hidden)."""
    checked = _checked([weights, visible_bias, hidden_bias], "", None)
    named = dict(zip(_WEIGHTS, checked, strict=True))
    write_arrays({**named, _MARK: np.array(True)}, path)


def _flat_model(arrays: dict[str, NDArray], label: str) -> FactorGraph:
    _require(arrays, _FLAT, label)
    # MATLAB knows matrices only: a vector comes back as one row.
    flat = {name: np.ravel(arrays[name]) for name in _FLAT}
    pairs = integer_array(arrays.get("evidence", np.zeros((0, 2))), "evidence").reshape(-1, 2)
    layout: Layout = None
    if "grid" in arrays:
        rows, cols, periodic = np.ravel(arrays["grid"]).tolist()
        layout = Grid(int(rows), int(cols), bool(periodic))
    elif "layers" in arrays:
        visible, hidden = np.ravel(arrays["layers"]).tolist()
        layout = Bipartite(int(visible), int(hidden))
    return FactorGraph.from_arrays(
        **flat,
        evidence=dict(zip(*pairs.T.tolist(), strict=True)),
        name=Path(label).stem,
        layout=layout,
    )


def _weights_of(model: FactorGraph) -> Weights | None:
    """The weights of which this very model was built, or None."""
    layers = model.layout
    if not isinstance(layers, Bipartite) or model.evidence:
        return None
    n = layers.visible + layers.hidden
    if model.log_tables.size != 2 * n + 4 * layers.visible * layers.hidden:
        return None
    bias = model.log_tables[1 : 2 * n : 2]
    w = model.log_tables[2 * n + 3 :: 4].reshape(layers.visible, layers.hidden)
    weights = Weights(w, bias[: layers.visible], bias[layers.visible :])
    return weights if np.isfinite(w).all() and rbm(*weights).digest == model.digest else None


def _read_weights(arrays: dict[str, NDArray], label: str, transposed: bool | None) -> Weights:
    _require(arrays, _WEIGHTS, label)
    weights = _checked([arrays[name] for name in _WEIGHTS], f" ({label})", transposed)
    w = weights.w
    told = transposed is not None or _MARK in arrays
    if not told and len(w) == len(w.T) and not np.array_equal(w, w.T):
        raise ModelError(
            f"W is {len(w)} x {len(w)}, so nothing tells whether its rows are visible or hidden "
            f"units; expected a file of tz.write, which says so, or tz.read(path, "
            f"transposed=False) where W[i, j] joins visible i and hidden j, else True; on the "
            f"command line --rbm-rows visible or hidden ({label})"
        )
    return weights


def _require(arrays: dict[str, NDArray], names: Sequence[str], label: str) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ModelError(
            f"{label} has no array {', '.join(missing)}; it holds "
            f"{', '.join(arrays) or 'nothing'}, expected {', '.join(names)}"
        )


def _checked(arrays: Sequence[ArrayLike], where: str, transposed: bool | None) -> Weights:
    """`transposed`: whether W is (hidden, visible); None: its shape tells."""
    w = real_array(arrays[0], "W", where=where)
    b, c = (vector(a, name, where=where) for a, name in zip(arrays[1:], _WEIGHTS[1:], strict=True))
    for name, values in zip(_WEIGHTS, (w, b, c), strict=True):
        require_finite(name, values, where)
    shape = b.size, c.size
    allowed = {None: (shape, shape[::-1]), False: (shape,), True: (shape[::-1],)}[transposed]
    if w.shape not in allowed:
        raise ModelError(
            f"W has shape {w.shape}; {b.size} visible and {c.size} hidden biases need "
            f"{' or '.join(map(str, allowed))}{where}"
        )
    return Weights(w.T if transposed or w.shape != shape else w, b, c)


FORMAT = Format(
    ("npz", "mat", "h5", "hdf5"), read_model, write_model, "RBM weights, or any model as arrays"
)
