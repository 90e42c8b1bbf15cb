"""Restricted Boltzmann machines in files: arrays W, visible_bias and hidden_bias.

The ending tells the kind: .mat (MATLAB, also with the names vishid, visbiases and hidbiases),
.h5 or .hdf5, otherwise .npz.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.builders import rbm
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.arrays import read_hdf5, read_mat
from tightz.models.text_files import FilePath, read_bytes, write_atomically

_NAMES = ("W", "visible_bias", "hidden_bias")


class _Weights(NamedTuple):
    """W (visible, hidden), visible_bias (visible,), hidden_bias (hidden,), all finite float64."""

    w: NDArray[np.float64]
    visible_bias: NDArray[np.float64]
    hidden_bias: NDArray[np.float64]


def load_rbm(path: FilePath) -> FactorGraph:
    """The RBM in an .npz, .mat or .h5 file as a factor graph: visible units first, state 1 is on.

    W may be stored as (visible, hidden) or transposed: the lengths of the biases tell. With as
    many visible as hidden units they cannot, and W is taken as (visible, hidden). Other arrays in
    the file are ignored.
    """
    label = os.fspath(path)
    weights = _checked(_read_arrays(path, label), f" ({label})")
    return rbm(*weights, name=Path(path).stem)


def save_rbm(
    path: FilePath, weights: ArrayLike, visible_bias: ArrayLike, hidden_bias: ArrayLike
) -> None:
    """Write an .npz file that `load_rbm` reads, atomically, with W as (visible, hidden)."""
    checked = _checked([np.asarray(a) for a in (weights, visible_bias, hidden_bias)], "")
    archive = io.BytesIO()
    np.savez(
        archive, W=checked.w, visible_bias=checked.visible_bias, hidden_bias=checked.hidden_bias
    )
    write_atomically([(path, archive.getvalue())])


def _read_arrays(path: FilePath, label: str) -> list[NDArray]:
    suffix = Path(path).suffix.lower()
    if suffix == ".mat":
        return _named(read_mat(path), label)
    if suffix in (".h5", ".hdf5"):
        return _named(read_hdf5(path), label)
    content = io.BytesIO(read_bytes(path))
    try:
        archive = np.load(content, allow_pickle=False)
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged archive
        raise ModelError(
            f"{label} is not an .npz file (or a damaged one); expected one with {', '.join(_NAMES)}"
        ) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ModelError(
            f"{label} holds a single array; expected an .npz file with {', '.join(_NAMES)}"
        )
    with archive:
        missing = [name for name in _NAMES if name not in archive.files]
        if missing:
            raise ModelError(
                f"{label} has no array {', '.join(missing)}; it holds "
                f"{', '.join(archive.files) or 'nothing'}, expected {', '.join(_NAMES)}"
            )
        try:
            return [archive[name] for name in _NAMES]
        except Exception as error:
            raise ModelError(
                f"{label} is damaged, or its arrays hold Python objects; expected plain numbers"
            ) from error


def _named(found: dict[str, NDArray], label: str) -> list[NDArray]:
    missing = [name for name in _NAMES if name not in found]
    if missing:
        raise ModelError(
            f"{label} has no array {', '.join(missing)}; it holds {', '.join(found) or 'nothing'}, "
            f"expected {', '.join(_NAMES)}"
        )
    return [found[name] for name in _NAMES]


def _checked(arrays: list[NDArray], where: str) -> _Weights:
    converted = []
    for name, array in zip(_NAMES, arrays, strict=True):
        if array.dtype.kind not in "fiu":
            raise ModelError(f"{name} has type {array.dtype}; expected real numbers{where}")
        with np.errstate(over="ignore"):
            values = array.astype(np.float64)
        require_finite(name, values, where)
        if name != "W" and array.size != max(array.shape, default=1):
            raise ModelError(f"{name} has shape {array.shape}; expected a vector{where}")
        converted.append(values)
    w, visible_bias, hidden_bias = converted
    shape = visible_bias.size, hidden_bias.size
    if w.shape not in (shape, shape[::-1]):
        raise ModelError(
            f"W has shape {w.shape}; {shape[0]} visible and {shape[1]} hidden biases need {shape} "
            f"or its transpose{where}"
        )
    return _Weights(w if w.shape == shape else w.T, visible_bias.ravel(), hidden_bias.ravel())
