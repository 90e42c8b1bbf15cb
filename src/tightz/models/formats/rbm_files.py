"""Restricted Boltzmann machines in files: arrays W, visible_bias and hidden_bias.

The ending tells the kind: .mat (MATLAB, also with the names vishid, visbiases and hidbiases),
.h5 or .hdf5, otherwise .npz.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import ModelError, require_finite
from tightz.models.builders import rbm
from tightz.models.factor_graph import FactorGraph
from tightz.models.formats.arrays import read_hdf5, read_mat
from tightz.models.formats.text_files import FilePath, file_name, read_bytes, write_atomically
from tightz.models.inputs import real_array, vector

_NAMES = ("W", "visible_bias", "hidden_bias")

_MARK = "rows_are_visible"
"""An array of this name says that W is (visible, hidden)."""


class _Weights(NamedTuple):
    """W (visible, hidden), visible_bias (visible,), hidden_bias (hidden,), all finite float64."""

    w: NDArray[np.float64]
    visible_bias: NDArray[np.float64]
    hidden_bias: NDArray[np.float64]


def load_rbm(path: FilePath, *, transposed: bool | None = None) -> FactorGraph:
    """The RBM in an .npz, .mat or .h5 file as a factor graph: visible units first, state 1 is on.

    W may be stored as (visible, hidden) or transposed: the lengths of the biases tell. With as
    many visible as hidden units they cannot; then the file must say it, as those of `save_rbm` and
    arrays named vishid do, or `transposed` (True: W is (hidden, visible)), or W be symmetric:
    anything else is refused, for a guess would be a bound on another model. Other arrays in the
    file are ignored.
    """
    label = file_name(path)
    arrays, oriented = _read_arrays(path, label)
    weights = _checked(arrays, f" ({label})", transposed)
    w = weights.w
    if transposed is None and not oriented and len(w) == len(w.T) and not np.array_equal(w, w.T):
        raise ModelError(
            f"W is {len(w)} x {len(w)}, so nothing tells whether its rows are visible or hidden "
            f"units; expected a file of tz.save_rbm, which says so, or tz.load_rbm(path, "
            f"transposed=False) where W[i, j] joins visible i and hidden j, else True; on the "
            f"command line --rbm-rows visible or hidden ({label})"
        )
    return rbm(*weights, name=Path(path).stem)


def save_rbm(
    path: FilePath, weights: ArrayLike, visible_bias: ArrayLike, hidden_bias: ArrayLike
) -> None:
    """Write an .npz file that `load_rbm` reads, atomically, with W as (visible, hidden)."""
    checked = _checked([weights, visible_bias, hidden_bias], "", None)
    archive = io.BytesIO()
    np.savez(
        archive,
        W=checked.w,
        visible_bias=checked.visible_bias,
        hidden_bias=checked.hidden_bias,
        rows_are_visible=np.array(True),
    )
    write_atomically([(path, archive.getvalue())])


def _read_arrays(path: FilePath, label: str) -> tuple[list[NDArray], bool]:
    """W and the biases, and whether the file says that W is (visible, hidden)."""
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
            return [archive[name] for name in _NAMES], _MARK in archive.files
        except Exception as error:
            raise ModelError(
                f"{label} is damaged, or its arrays hold Python objects; expected plain numbers"
            ) from error


def _named(found: dict[str, NDArray], label: str) -> tuple[list[NDArray], bool]:
    missing = [name for name in _NAMES if name not in found]
    if missing:
        raise ModelError(
            f"{label} has no array {', '.join(missing)}; it holds {', '.join(found) or 'nothing'}, "
            f"expected {', '.join(_NAMES)}"
        )
    return [found[name] for name in _NAMES], _MARK in found


def _checked(arrays: Sequence[ArrayLike], where: str, transposed: bool | None) -> _Weights:
    """`transposed`: whether W is (hidden, visible); None: its shape tells."""
    w = real_array(arrays[0], "W", where=where)
    b, c = (vector(a, name, where=where) for a, name in zip(arrays[1:], _NAMES[1:], strict=True))
    for name, values in zip(_NAMES, (w, b, c), strict=True):
        require_finite(name, values, where)
    shape = b.size, c.size
    allowed = {None: (shape, shape[::-1]), False: (shape,), True: (shape[::-1],)}[transposed]
    if w.shape not in allowed:
        raise ModelError(
            f"W has shape {w.shape}; {b.size} visible and {c.size} hidden biases need "
            f"{' or '.join(map(str, allowed))}{where}"
        )
    return _Weights(w.T if transposed or w.shape != shape else w, b, c)
