"""RBM weights in .npz files: orientation, round trips, and what each bad file is told."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

import tightz as tz
from tests import naive
from tightz.errors import ModelError, TightzError
from tightz.models.builders import rbm
from tightz.models.factor_graph import Bipartite
from tightz.models.formats.array_files import read_model, save_weights, write_arrays
from tightz.models.formats.mat import OTHER, read_matrices


def small(visible: int = 3, hidden: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "W": rng.normal(size=(visible, hidden)),
        "visible_bias": rng.normal(size=visible),
        "hidden_bias": rng.normal(size=hidden),
    }


def put(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "weights.npz"
    np.savez(path, **arrays)
    return path


def message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_model(path)
    return str(caught.value)


def test_log_z_is_that_of_the_formula(tmp_path: Path) -> None:
    arrays = small()
    model = read_model(put(tmp_path, **arrays))
    states = naive.all_states([2] * 5)
    v, h = states[:, :3], states[:, 3:]
    logs = v @ arrays["visible_bias"] + h @ arrays["hidden_bias"]
    logs += np.einsum("si,ij,sj->s", v, arrays["W"], h)
    np.testing.assert_allclose(model.log_weight(states), logs, rtol=1e-13, atol=1e-13)
    assert model.layout == Bipartite(3, 2)
    assert model.name == "weights"


def test_orientation_follows_the_biases(tmp_path: Path) -> None:
    arrays = small()
    expected = rbm(*arrays.values()).digest
    turned = {**arrays, "W": arrays["W"].T}
    assert read_model(put(tmp_path, **turned)).digest == expected
    assert read_model(put(tmp_path, **arrays)).digest == expected


def test_square_weights_must_say_which_way_round_they_are(tmp_path: Path) -> None:
    arrays = small(3, 3)
    path = put(tmp_path, **arrays)
    assert "nothing tells whether its rows are visible or hidden" in message(path)
    assert read_model(path, transposed=False).digest == rbm(*arrays.values()).digest
    turned = rbm(arrays["W"].T, arrays["visible_bias"], arrays["hidden_bias"])
    assert read_model(path, transposed=True).digest == turned.digest


@pytest.mark.parametrize("shape", [(1, -1), (-1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_row_and_column_biases_and_other_number_types(tmp_path: Path, shape, dtype) -> None:
    arrays = {name: np.round(3 * array).astype(dtype) for name, array in small().items()}
    expected = rbm(*arrays.values()).digest
    arrays["visible_bias"] = arrays["visible_bias"].reshape(shape)
    arrays["hidden_bias"] = arrays["hidden_bias"].reshape(shape)
    assert read_model(put(tmp_path, **arrays)).digest == expected


@given(st.integers(0, 4), st.integers(0, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_round_trip(tmp_path_factory, visible, hidden, turned, seed) -> None:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(visible, hidden)) * 10.0 ** rng.integers(-3, 7)
    b, c = rng.normal(size=visible), rng.normal(size=hidden)
    path = tmp_path_factory.mktemp("rbm") / "exactly_this_name"
    save_weights(path, w.T if turned and visible != hidden else w, b, c)
    assert read_model(path).digest == rbm(w, b, c).digest
    assert [p.name for p in path.parent.iterdir()] == ["exactly_this_name"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"W": np.zeros((4, 2))}, "W has shape (4, 2); 3 visible and 2 hidden biases need (3, 2) "),
        ({"W": np.zeros((3, 3))}, "W has shape (3, 3); 3 visible and 2 hidden biases need (3, 2) "),
        (
            {"W": np.zeros(6)},
            "W has shape (6,); 3 visible and 2 hidden biases need (3, 2) or (2, 3)",
        ),
        ({"visible_bias": np.zeros(4)}, "W has shape (3, 2); 4 visible and 2 hidden biases need "),
        ({"hidden_bias": np.zeros((2, 2))}, "hidden_bias has shape (2, 2); expected a vector"),
        ({"W": np.full((3, 2), np.nan)}, "W[0, 0] is nan; expected a finite number"),
        (
            {"visible_bias": np.array([0, 0, np.inf])},
            "visible_bias[2] is inf; expected a finite number",
        ),
        (
            {"hidden_bias": np.array([0, -np.inf])},
            "hidden_bias[1] is -inf; expected a finite number",
        ),
        ({"W": np.zeros((3, 2), dtype=complex)}, "W holds complex numbers; expected real ones"),
        ({"hidden_bias": np.array(["a", "b"])}, "hidden_bias holds text; expected numbers"),
    ],
)
def test_refused_arrays(tmp_path: Path, change: dict, expected: str) -> None:
    arrays = {**small(), **change}
    path = put(tmp_path, **arrays)
    found = message(path)
    assert found.startswith(expected)
    assert found.endswith(f"({path})")
    path.unlink()
    with pytest.raises(ModelError) as caught:
        save_weights(path, *arrays.values())
    assert str(caught.value).startswith(expected.rstrip())
    assert not list(tmp_path.iterdir())


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    path = put(tmp_path, W=np.zeros((3, 2)), bias=np.zeros(3))
    assert message(path) == (
        f"{path} has no array visible_bias, hidden_bias; it holds W, bias, "
        "expected W, visible_bias, hidden_bias"
    )


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    assert message(path) == f"{path} does not exist"
    assert message(tmp_path) == f"{tmp_path} is a directory; expected a file"
    for content in (b"", b"MARKOV 0 0", b"PK\x03\x04 no archive", bytes(range(256))):
        path.write_bytes(content)
        assert message(path) == (
            f"{path} is not an .npz file (or a damaged one); expected named arrays"
        )
    np.save(tmp_path / "single.npy", np.zeros(3))
    assert "holds a single array; expected an .npz file of named arrays" in message(
        tmp_path / "single.npy"
    )
    objects = put(tmp_path, **{**small(), "W": np.array([{}, None], dtype=object)})
    assert "is damaged, or its arrays hold Python objects; expected plain numbers" in message(
        objects
    )


def test_damaged_archives_give_a_model_or_a_model_error(tmp_path: Path) -> None:
    whole = put(tmp_path, **small()).read_bytes()
    path = tmp_path / "damaged.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        content = bytearray(whole)
        for at in rng.integers(len(content), size=rng.integers(1, 4)):
            content[at] = rng.integers(256)
        if rng.random() < 0.3:
            del content[rng.integers(len(content)) :]
        path.write_bytes(bytes(content))
        try:
            read_model(path)
        except ModelError:
            refused += 1
    assert 100 < refused < 400


def test_failed_writes_leave_everything_as_it_was(tmp_path: Path) -> None:
    path = put(tmp_path, **small())
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"W\[0, 0\] is nan"):
        save_weights(path, [[np.nan]], [0.0], [0.0])
    nowhere = tmp_path / "missing" / "x.npz"
    with pytest.raises(ModelError) as caught:
        save_weights(nowhere, *small().values())
    assert str(caught.value) == (
        f"cannot write {nowhere}: its folder does not exist; create it first"
    )
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["weights.npz"]


@pytest.mark.parametrize(
    ("name", "visible", "hidden"),
    [("rbm_mnist_tiny_15", 784, 15), ("rbm_mnist_CD25_500_salakhutdinov", 784, 500)],
)
def test_published_machines_load(name: str, visible: int, hidden: int) -> None:
    root = os.environ.get("TIGHTZ_DATA")
    if not root:
        pytest.skip("TIGHTZ_DATA is not set")
    path = Path(root) / "rbm" / f"{name}.npz"
    model = read_model(path)
    assert model.layout == Bipartite(visible, hidden)
    with np.load(path) as arrays:
        w, b, c = (arrays[key] for key in ("W", "visible_bias", "hidden_bias"))
        known = float(arrays["logZ_exact"]) if "logZ_exact" in arrays else None
    states = np.random.default_rng(0).integers(2, size=(3, visible + hidden))
    v, h = states[:, :visible], states[:, visible:]
    expected = v @ b + h @ c + ((v @ w) * h).sum(axis=1)
    np.testing.assert_allclose(model.log_weight(states), expected, rtol=1e-10)
    if known is not None:  # few enough hidden units to sum over them all
        hidden_states = naive.all_states([2] * hidden)
        fields = hidden_states @ w.T + b
        logs = hidden_states @ c + np.logaddexp(0, fields).sum(axis=1)
        assert naive.log_sum_exp(logs) == pytest.approx(known, abs=1e-6)


@pytest.mark.parametrize("suffix", ["npz", "mat", "h5"])
@pytest.mark.parametrize("name", ["log_sigma", "L", "W2", "U", "scale", "beta"])
def test_an_array_that_is_not_understood_is_refused(tmp_path: Path, suffix: str, name: str) -> None:
    if suffix == "h5":
        pytest.importorskip("h5py", reason="the extra h5 is not installed")
    path = tmp_path / f"x.{suffix}"
    for arrays in (small(), flat()):
        write_arrays({**arrays, name: np.ones(1)}, path)
        with pytest.raises(ModelError, match=f"x.{suffix} holds '{name}' beside .*ignore="):
            tz.read(path)
        write_arrays({**arrays, "logZ_exact": np.ones(1)}, path)
        assert tz.read(path).digest == tz.read(path, ignore=["note"]).digest
        write_arrays({**arrays, name: np.ones(1)}, path)
        assert tz.read(path, ignore=[name]).n_variables > 1


def test_what_is_no_numeric_array_is_refused_too(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {**small(), "net": {"sigma": np.ones(2)}})
    assert "x.mat holds 'net' beside" in message(tmp_path / "x.mat")
    h5py = pytest.importorskip("h5py", reason="the extra h5 is not installed")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, values in small().items():
            file[name] = values
        file["second/W"] = np.zeros((2, 2))
    assert "x.h5 holds 'second' beside" in message(tmp_path / "x.h5")


@pytest.mark.parametrize("rows_are_visible", [True, False])
def test_a_file_that_says_which_way_round_its_square_matrix_is(tmp_path, rows_are_visible) -> None:
    arrays = small(3, 3)
    w = arrays["W"] if rows_are_visible else arrays["W"].T
    path = put(tmp_path, **{**arrays, "W": w}, rows_are_visible=np.array(rows_are_visible))
    assert read_model(path).digest == rbm(*arrays.values()).digest


def flat() -> dict[str, np.ndarray]:
    """The arrays of a model of three factors, evidence and a layout."""
    model = tz.ising_grid(2, 2, seed=0)
    names = ("cardinalities", "scope_ptr", "scope_vars", "table_ptr", "log_tables")
    return {
        **{name: np.array(getattr(model, name)) for name in names},
        "evidence": np.array([[1, 0]]),
        "grid": np.array([2, 2, 0]),
        "naming": np.frombuffer(b'[["a","b","c","d"],null]', dtype=np.uint8).copy(),
    }


NUMBERS = [-1, 0, 1, 7, 10**10, -(2**63), 2**63 - 1, 2**31, np.nan, np.inf, -np.inf, 0.5, 1e300]


def damaged(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """One array with an entry, its length, its shape or its type changed."""
    kind = rng.integers(6)
    if kind == 0 or (kind < 4 and not array.size):
        return np.array(NUMBERS[rng.integers(len(NUMBERS))])
    if kind == 1:
        return array.ravel()[: int(rng.integers(array.size))]
    if kind == 2:
        return np.concatenate([array.ravel(), array.ravel()[: int(rng.integers(array.size + 1))]])
    if kind == 3:
        with np.errstate(invalid="ignore"):
            out = array.astype(np.float64 if rng.random() < 0.5 else array.dtype)
            value = np.array(NUMBERS[rng.integers(len(NUMBERS))]).astype(out.dtype)
        out.ravel()[rng.integers(array.size)] = value
        return out
    if kind == 4:
        return array.astype(["S8", "U8", "c16", "M8[s]", "f4", "i1", "V8"][rng.integers(7)])
    return array[None]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed_arrays", [small, flat])
def test_fuzz_arrays(tmp_path: Path, seed_arrays) -> None:
    """Arrays that contradict each other give a model or an error that names the file."""
    rng = np.random.default_rng(0)
    path = tmp_path / "fuzz.npz"
    said: list[str] = []
    for _ in range(FUZZ):
        arrays = seed_arrays()
        for name in rng.choice(sorted(arrays), size=rng.integers(1, 3), replace=False):
            arrays[name] = damaged(rng, arrays[name])
        if rng.random() < 0.1:
            del arrays[str(rng.choice(sorted(arrays)))]
        np.savez(path, **arrays)
        try:
            model = tz.read(path)
        except TightzError as error:
            said.append(str(error))
            continue
        assert len(list(model.factors)) == model.n_factors
        assert model.log_weight(np.zeros((1, model.n_variables), dtype=int)).shape == (1,)
    assert 0 < len(said) < FUZZ
    assert all("fuzz." in text for text in said)


FUZZ = int(os.environ.get("TIGHTZ_FUZZ", "400"))


def seed_file(folder: Path, suffix: str, arrays: dict[str, np.ndarray]) -> bytes:
    """A small valid file of each kind, uncompressed so that mutations reach the numbers."""
    if suffix == "h5":
        pytest.importorskip("h5py", reason="the extra h5 is not installed")
    write_arrays(arrays, folder / f"seed.{suffix}")
    return (folder / f"seed.{suffix}").read_bytes()


@pytest.mark.filterwarnings("ignore")  # scipy warns of some damage before it fails
@pytest.mark.parametrize("suffix", ["npz", "mat", "h5"])
@pytest.mark.parametrize("seed_arrays", [small, flat])
def test_fuzz(tmp_path: Path, suffix: str, seed_arrays) -> None:
    """Damaged files give a model of finite numbers or an error that names the file."""
    whole = seed_file(tmp_path, suffix, seed_arrays())
    rng = np.random.default_rng(0)
    path = tmp_path / f"fuzz.{suffix}"
    valid = 0
    for _ in range(FUZZ):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 9))):
            at = int(rng.integers(len(data)))
            count = int(rng.choice([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1]))
            data[at : at + 4] = (
                count.to_bytes(4, "little")
                if rng.random() < 0.3
                else rng.bytes(1) + data[at + 1 : at + 4]
            )
        if rng.random() < 0.2:
            del data[int(rng.integers(len(data))) :]
        path.write_bytes(bytes(data))
        try:
            finite = not np.isnan(read_model(path).log_tables).any()
            said = "fuzz."
            valid += 1
        except TightzError as error:
            finite, said = True, str(error)
        assert finite
        assert "fuzz." in said
    assert 0 < valid < FUZZ


@given(st.sampled_from(["4", "5"]), st.booleans(), st.integers(0, 2**32 - 1))
def test_mat_files_of_scipy(version: str, compressed: bool, seed: int) -> None:
    """Every numeric type and shape that scipy writes comes back; the rest is named."""
    rng = np.random.default_rng(seed)
    kinds = ["f8", "f4", "i4", "i2", "u2", "u1"] + (["i8", "u4", "i1"] if version == "5" else [])
    arrays = {
        f"a{i}": (100 * rng.normal(size=rng.integers(0, 5, size=2))).astype(
            kinds[rng.integers(len(kinds))]
        )
        for i in range(4)
    }
    file = io.BytesIO()
    others = {"text": "words", "z": np.array([[1j]])}
    scipy.io.savemat(file, {**arrays, **others}, format=version, do_compression=compressed)
    found = read_matrices(file.getvalue())
    assert set(found) == {*arrays, *others}
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
    assert all(found[name] is OTHER for name in others)


def test_the_command_line_can_say_what_the_rows_of_a_square_matrix_are(tmp_path):
    from click.testing import CliRunner

    from tightz.cli.main import main

    rng = np.random.default_rng(3)
    w, b, c = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    path = tmp_path / "square.npz"
    np.savez(path, W=w, visible_bias=b, hidden_bias=c)
    asked = CliRunner().invoke(main, ["exact", str(path)])
    assert asked.exit_code == 2
    assert "--rbm-rows" in asked.output
    for rows, matrix in (("visible", w), ("hidden", w.T)):
        done = CliRunner().invoke(main, ["exact", str(path), "--rbm-rows", rows, "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.output)["log_z"]
        assert found == pytest.approx(tz.exact(tz.rbm(matrix, b, c)).log_z, abs=1e-9)


def _rbms_file(path: Path, arrays: dict, *steps: int, kind: str | None = "BBRBM") -> Path:
    """As the package rbms writes: a group for each update, the weights in params and beside it."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for k, step in enumerate(steps):
            group = file.create_group(f"update_{step}")
            inner = group.create_group("params")
            for name, theirs in (("W", "weight_matrix"), ("visible_bias", "vbias"),
                                 ("hidden_bias", "hbias")):  # fmt: skip
                inner[theirs] = arrays[name] * (k + 1)
                group[theirs] = inner[theirs]
            group["time"] = 1.0
        if kind is not None:
            file["model_type"] = kind
        file["parallel_chains"] = np.zeros((2, 3))
    return path


@pytest.mark.parametrize("kind", ["BBRBM", None])
def test_the_last_update_of_a_file_of_rbms_is_read(tmp_path: Path, kind: str | None) -> None:
    arrays = small(3, 3)  # square: rbms says which way round its matrix is
    path = _rbms_file(tmp_path / "run.h5", arrays, 9, 10, 2, kind=kind)
    expected = rbm(*(2 * a for a in arrays.values()))
    assert tz.read(path).digest == expected.digest


def test_another_machine_of_rbms_is_refused(tmp_path: Path) -> None:
    path = _rbms_file(tmp_path / "run.h5", small(), 1, kind="PBRBM")
    assert message(path) == (
        f"{path} holds a PBRBM of the package rbms; expected a BBRBM, whose units are all binary"
    )
