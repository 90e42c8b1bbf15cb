"""Named arrays in MATLAB (.mat) and HDF5 (.h5) files."""

from __future__ import annotations

import importlib
import io

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError, ModelError
from tightz.models.formats.mat import DamagedError, read_matrices
from tightz.models.formats.text_files import FilePath, file_name, read_bytes

HDF5 = b"\x89HDF\r\n\x1a\n"

_ALIASES = {"vishid": "W", "visbiases": "visible_bias", "hidbiases": "hidden_bias"}
"""Names used by Salakhutdinov's and Hinton's published weights."""


def read_mat(path: FilePath) -> dict[str, NDArray]:
    """The numeric arrays of a MATLAB file (version 4 to 7.2), known aliases renamed."""
    label = file_name(path)
    content = read_bytes(path)
    if HDF5 in (content[: len(HDF5)], content[512 : 512 + len(HDF5)]):
        raise ModelError(
            f"{label} is a MATLAB 7.3 file, which is HDF5: name it .h5, or save it with -v7"
        )
    try:
        return _renamed(read_matrices(content))
    except DamagedError as error:
        raise ModelError(f"{label} is not a MATLAB file (or a damaged one): {error}") from error


def read_hdf5(path: FilePath) -> dict[str, NDArray]:
    """The arrays at the top of an HDF5 file, known aliases renamed."""
    label = file_name(path)
    content = read_bytes(path)
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise MissingExtraError(f"reading {label} needs h5py: pip install 'tightz[h5]'") from None
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            found = {k: v[()] for k, v in file.items() if isinstance(v, h5py.Dataset)}
    except Exception as error:
        raise ModelError(f"{label} is not an HDF5 file (or a damaged one): {error}") from error
    names = {k: k if isinstance(k, str) else k.decode("latin-1") for k in found}  # damaged: bytes
    return _renamed({names[k]: np.asarray(v) for k, v in found.items()})


def _renamed(found: dict[str, NDArray]) -> dict[str, NDArray]:
    renamed = {_ALIASES.get(k, k): v for k, v in found.items()}
    if "vishid" in found:  # the name tells which way round the matrix is
        renamed["rows_are_visible"] = np.array(True)
    return renamed
