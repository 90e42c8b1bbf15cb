"""Named arrays in numpy (.npz), MATLAB (.mat) and HDF5 (.h5) files, read and written by ending."""

from __future__ import annotations

import importlib
import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import MissingExtraError, ModelError
from tightz.models.formats.mat import DamagedError, read_matrices
from tightz.models.formats.text_files import FilePath, file_name, read_bytes, write_atomically

HDF5 = b"\x89HDF\r\n\x1a\n"

_ALIASES = {"vishid": "W", "visbiases": "visible_bias", "hidbiases": "hidden_bias"}
"""Names used by Salakhutdinov's and Hinton's published weights."""


def read_arrays(path: FilePath, wanted: Collection[str]) -> dict[str, NDArray]:
    """The arrays of a file by name; of an .npz file those `wanted`, the others named and empty."""
    ending = Path(file_name(path)).suffix.lower()
    if ending == ".mat":
        return read_mat(path)
    return read_hdf5(path) if ending in (".h5", ".hdf5") else _read_npz(path, wanted)


def write_arrays(arrays: Mapping[str, NDArray], path: FilePath) -> None:
    """Write named arrays, atomically."""
    content = io.BytesIO()
    ending = Path(file_name(path)).suffix.lower()
    if ending == ".mat":
        from scipy.io import savemat

        savemat(content, dict(arrays))
    elif ending in (".h5", ".hdf5"):
        with _h5py("writing", path).File(content, "w") as file:
            for name, values in arrays.items():
                file[name] = values
    else:
        np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically([(path, content.getvalue())])


def _read_npz(path: FilePath, wanted: Collection[str]) -> dict[str, NDArray]:
    label = file_name(path)
    content = io.BytesIO(read_bytes(path))
    try:
        archive = np.load(content, allow_pickle=False)
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged archive
        raise ModelError(
            f"{label} is not an .npz file (or a damaged one); expected named arrays"
        ) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ModelError(f"{label} holds a single array; expected an .npz file of named arrays")
    with archive:
        try:
            return {k: archive[k] if k in wanted else np.zeros(0) for k in archive.files}
        except Exception as error:
            raise ModelError(
                f"{label} is damaged, or its arrays hold Python objects; expected plain numbers"
            ) from error


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
    h5py = _h5py("reading", path)
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            found = {k: v[()] for k, v in file.items() if isinstance(v, h5py.Dataset)}
    except Exception as error:
        raise ModelError(f"{label} is not an HDF5 file (or a damaged one): {error}") from error
    names = {k: k if isinstance(k, str) else k.decode("latin-1") for k in found}  # damaged: bytes
    return _renamed({names[k]: np.asarray(v) for k, v in found.items()})


def _h5py(what: str, path: FilePath) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise MissingExtraError(
            f"{what} {file_name(path)} needs h5py: pip install 'tightz[h5]'"
        ) from None


def _renamed(found: dict[str, NDArray]) -> dict[str, NDArray]:
    renamed = {_ALIASES.get(k, k): v for k, v in found.items()}
    if "vishid" in found:  # the name tells which way round the matrix is
        renamed["rows_are_visible"] = np.array(True)
    return renamed
