"""Models as named arrays in numpy (.npz), MATLAB (.mat) and HDF5 (.h5) files.

An RBM is its weights: W, visible_bias and hidden_bias (in MATLAB files also vishid, visbiases and
hidbiases). Any other model is its own flat arrays, evidence and layout included, to the bit. Names
of variables and states go with both.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightz.errors import MissingExtraError, ModelError, require_finite
from tightz.models.builders import rbm
from tightz.models.factor_graph import Bipartite, FactorGraph, Grid, Layout
from tightz.models.formats.evidence import Evidence, given
from tightz.models.formats.format import Format
from tightz.models.formats.mat import MOST_RATIO, DamagedError, read_matrices
from tightz.models.formats.text_files import FilePath, file_name, read_bytes, write_atomically
from tightz.models.inputs import as_model, integer_array, real_array, vector

HDF5 = b"\x89HDF\r\n\x1a\n"

_ALIASES = {
    **dict.fromkeys(("vishid", "weight", "weights", "weight_matrix"), "W"),
    **dict.fromkeys(("visbiases", "vbias", "v_bias", "b_v", "bv"), "visible_bias"),
    **dict.fromkeys(("hidbiases", "hbias", "h_bias", "b_h", "bh"), "hidden_bias"),
}
"""Names used by Salakhutdinov's and Hinton's published weights, the package rbms, and PyTorch."""

_UPDATE = "update_"
"""Groups of the package rbms' files: update_1000 holds the weights after so many steps."""


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
            named = {k: k in wanted or k in _ALIASES for k in archive.files}
            return renamed({k: archive[k] if read else np.zeros(0) for k, read in named.items()})
        except Exception as error:
            raise ModelError(
                f"{label} is damaged, or its arrays hold Python objects; expected plain numbers"
            ) from error


def read_mat(path: FilePath) -> dict[str, NDArray]:
    """The arrays of a MATLAB file (version 4 to 7.2), known aliases renamed; numbers only."""
    label = file_name(path)
    content = read_bytes(path)
    if HDF5 in (content[: len(HDF5)], content[512 : 512 + len(HDF5)]):
        raise ModelError(
            f"{label} is a MATLAB 7.3 file, which is HDF5: name it .h5, or save it with -v7"
        )
    try:
        return renamed(read_matrices(content))
    except DamagedError as error:
        raise ModelError(f"{label} is not a MATLAB file (or a damaged one): {error}") from error


def read_hdf5(path: FilePath) -> dict[str, NDArray]:
    """The arrays at the top of an HDF5 file, or of its last update_...; known aliases renamed."""
    label = file_name(path)
    content = read_bytes(path)
    h5py = _h5py("reading", path)
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            group, kind = _last_update(file)
            found = {k: _dataset(v, h5py, len(content)) for k, v in group.items()}
    except Exception as error:
        raise ModelError(f"{label} is not an HDF5 file (or a damaged one): {error}") from error
    if kind not in ("", "BBRBM"):
        raise ModelError(
            f"{label} holds a {kind[:20]} of the package rbms; expected a BBRBM, whose units are "
            "all binary"
        )
    names = {k: k if isinstance(k, str) else k.decode("latin-1") for k in found}  # damaged: bytes
    arrays = renamed({names[k]: np.asarray(v) for k, v in found.items()})
    return {**arrays, _MARK: np.array(True)} if kind else arrays


def _dataset(item: Any, h5py: Any, size: int) -> Any:
    """The values of a dataset in a file of that size; a group is named only, and empty."""
    if not isinstance(item, h5py.Dataset):
        return np.zeros(0)
    if item.nbytes > MOST_RATIO * size:
        raise DamagedError(f"{item.name} claims {item.nbytes} bytes in a file of {size}")
    return item[()]


def _last_update(file: Any) -> tuple[Any, str]:
    """(the group that holds the weights, the kind of machine): of rbms' files the last update."""
    steps = [int(k[len(_UPDATE) :]) for k in file if k[: len(_UPDATE)] == _UPDATE]
    if not steps:
        return file, ""
    group = file[f"{_UPDATE}{max(steps)}"]
    kind = file["model_type"][()].decode() if "model_type" in file else "BBRBM"
    return group.get("params", group), kind


def _h5py(what: str, path: FilePath) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise MissingExtraError(
            f"{what} {file_name(path)} needs h5py: pip install 'tightz[h5]'"
        ) from None


def renamed(found: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Arrays under their usual names; not those of which two would have the same."""
    named = dict(found)
    for name in _WEIGHTS:
        others = [k for k in found if _ALIASES.get(k) == name]
        if name not in found and len(others) == 1:
            named[name] = named.pop(others[0])
    if "vishid" in found:  # the name tells which way round the matrix is
        named[_MARK] = np.array(True)
    return named


_WEIGHTS = ("W", "visible_bias", "hidden_bias")

_MARK = "rows_are_visible"
"""An array of this name says that W is (visible, hidden)."""

_FLAT = ("cardinalities", "scope_ptr", "scope_vars", "table_ptr", "log_tables")

_EXTRA = ("evidence", "grid", "layers", "naming")
"""evidence (k, 2): variables and states; grid (rows, cols, periodic); layers (visible, hidden);
naming: names and states as the bytes of a JSON text, since MATLAB files have no lists of words."""

_REMARK = "logZ"
"""Arrays whose name begins so tell a result, as published weights do; they change no model."""


class Weights(NamedTuple):
    """W (visible, hidden), visible_bias (visible,), hidden_bias (hidden,), all finite float64."""

    w: NDArray[np.float64]
    visible_bias: NDArray[np.float64]
    hidden_bias: NDArray[np.float64]


def read_model(
    path: FilePath,
    evidence: Evidence | None = None,
    transposed: bool | None = None,
    ignore: Collection[str] = (),
) -> FactorGraph:
    """The model in a file of arrays; an RBM has its visible units first, and state 1 is on.

    W may be stored as (visible, hidden) or transposed: the lengths of the biases tell. With as
    many visible as hidden units they cannot; then the file must say it, as those of `tz.write` and
    arrays named vishid do, or `transposed` (True: W is (hidden, visible)), or W be symmetric:
    anything else is refused, for a guess would be a bound on another model. So is a file with an
    array that is not understood, which may be a further term of the model; those that are known
    to be none are named in `ignore`.
    """
    label = file_name(path)
    arrays = read_arrays(path, (*_WEIGHTS, _MARK, *_FLAT, *_EXTRA))
    try:
        if _FLAT[-1] in arrays:
            model = _flat_model(arrays, label, ignore)
        else:
            weights = read_weights(arrays, label, transposed, ignore, also=("naming",))
            model = rbm(*weights, name=Path(path).stem)
        if "naming" in arrays:
            model = model.with_names(*_read_naming(arrays["naming"], label))
    except ModelError as error:
        if label in str(error):
            raise
        raise ModelError(f"{error} ({label})") from None
    return given(model, evidence)


def write_model(model: FactorGraph, path: FilePath) -> None:
    """Write a model as arrays, atomically: an RBM as its weights, any other as it is."""
    as_model(model, "write", only="FactorGraph")
    weights = _weights_of(model)
    if weights is not None:
        write_arrays({**_named_weights(weights), **_naming(model)}, path)
        return
    arrays = {name: np.asarray(getattr(model, name)) for name in _FLAT}
    pairs = sorted(model.evidence.items())
    arrays["evidence"] = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    if isinstance(model.layout, Grid):
        shape = model.layout
        arrays["grid"] = np.array([shape.rows, shape.cols, shape.periodic], dtype=np.int64)
    elif isinstance(model.layout, Bipartite):
        arrays["layers"] = np.array([model.layout.visible, model.layout.hidden], dtype=np.int64)
    write_arrays({**arrays, **_naming(model)}, path)


def save_weights(
    path: FilePath, weights: ArrayLike, visible_bias: ArrayLike, hidden_bias: ArrayLike
) -> None:
    """Write the weights of an RBM, atomically, with W as (visible, hidden)."""
    write_arrays(_named_weights(_checked([weights, visible_bias, hidden_bias], "", None)), path)


def _named_weights(weights: Weights) -> dict[str, NDArray]:
    return {**dict(zip(_WEIGHTS, weights, strict=True)), _MARK: np.array(True)}


def _naming(model: FactorGraph) -> dict[str, NDArray]:
    """Names and states as an array; nothing where the model has none."""
    if model.names is None and model.states is None:
        return {}
    text = json.dumps([model.names, model.states])
    return {"naming": np.frombuffer(text.encode(), dtype=np.uint8)}


def _read_naming(array: NDArray, label: str) -> tuple[Any, Any]:
    try:
        names, states = json.loads(np.ravel(array).astype(np.uint8).tobytes())
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(
            f"the array naming of {label} holds no names ({error}); expected that of tz.write, or "
            "a file without it"
        ) from error
    return names, states


def _flat_model(arrays: dict[str, NDArray], label: str, ignore: Collection[str]) -> FactorGraph:
    _require(arrays, _FLAT, label)
    _refuse_others(arrays, (*_FLAT, *_EXTRA), label, ignore)
    # MATLAB knows matrices only: a vector comes back as one row.
    flat = {name: np.ravel(arrays[name]) for name in _FLAT}
    pairs = _whole(arrays, "evidence", 2)
    model = FactorGraph.from_arrays(
        **flat,
        evidence=dict(pairs.tolist()),
        name=Path(label).stem,
        layout=_layout(arrays, flat["cardinalities"].size),
    )
    if len(model.evidence) < len(pairs):
        raise ModelError("evidence names a variable twice; expected each once")
    return model


def _layout(arrays: dict[str, NDArray], variables: int) -> Layout:
    layout: Layout = None
    size = variables
    for rows, cols, periodic in _whole(arrays, "grid", 3).tolist():
        layout, size = Grid(rows, cols, bool(periodic)), rows * cols
    for visible, hidden in _whole(arrays, "layers", 2).tolist():
        layout, size = Bipartite(visible, hidden), visible + hidden
    if size != variables:
        raise ModelError(f"{layout} has {size} variables; the model has {variables}")
    return layout


def _whole(arrays: dict[str, NDArray], name: str, columns: int) -> NDArray[np.int64]:
    """Rows of so many whole numbers; none where the array is not there."""
    found = integer_array(arrays.get(name, np.zeros(0)), name)
    if found.size % columns or (name != "evidence" and name in arrays and found.size != columns):
        raise ModelError(f"{name} has {found.size} entries; expected {columns} in a row")
    return found.reshape(-1, columns)


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


def read_weights(
    arrays: Mapping[str, Any],
    label: str,
    transposed: bool | None,
    ignore: Collection[str],
    also: Sequence[str] = (),
) -> Weights:
    """The weights of an RBM among named arrays; `transposed`, `ignore` as in `read_model`."""
    _require(arrays, _WEIGHTS, label)
    _refuse_others(arrays, (*_WEIGHTS, _MARK, *also), label, ignore)
    if transposed is None and _MARK in arrays and not np.any(arrays[_MARK]):
        transposed = True
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


def _refuse_others(
    arrays: Mapping[str, Any], understood: Sequence[str], label: str, ignore: Collection[str]
) -> None:
    """Refuse arrays that are not understood: each may be a further term of the model."""
    ignored = {ignore} if isinstance(ignore, str) else {*ignore}
    others = [
        name
        for name in arrays
        if name not in understood and name not in ignored and not name.startswith(_REMARK)
    ]
    if others:
        raise ModelError(
            f"{label} holds {', '.join(map(repr, others[:8]))}{' ...' * (len(others) > 8)} beside "
            f"{', '.join(name for name in understood if name in arrays)}, and nothing else is "
            f"understood; a model with further terms (more layers, couplings within a layer, units "
            f"that are not binary) is built as tz.FactorGraph(cardinalities, factors) or "
            f"tz.ising(couplings, fields); what is no part of the model is named: "
            f"ignore={others[:2]!r}"
        )


def _require(arrays: Mapping[str, Any], names: Sequence[str], label: str) -> None:
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
