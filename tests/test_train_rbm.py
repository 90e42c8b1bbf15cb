"""Contrastive divergence against exact gradients, resuming to the bit, and MNIST files."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import naive
from tightz.errors import ModelError, ParameterError
from tightz.models import mnist
from tightz.models.formats.array_files import read_model
from tightz.models.mnist import load_mnist, read_idx
from tightz.models.train_rbm import Training, train_rbm


def _patterns(count: int, seed: int = 0) -> np.ndarray:
    """Rows near one of two patterns: correlated units, so the weights have something to learn."""
    rng = np.random.default_rng(seed)
    base = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]], dtype=float)
    rows = base[rng.integers(0, 2, count)]
    return np.where(rng.random(rows.shape) < 0.08, 1.0 - rows, rows)


def _log_likelihood(data, w, b, c) -> float:
    """Mean log p(v) of binary rows, by enumeration."""
    free = data @ b + np.logaddexp(0.0, data @ w + c).sum(axis=1)
    return float(free.mean()) - naive.rbm_expectations(w, b, c)[0]


def test_a_step_follows_the_exact_gradient(tmp_path):
    data = _patterns(20_000)
    how = Training(hidden=2, k=20, epochs=40, batch_size=20_000, learning_rate=2.0)
    place = tmp_path / "run.npz"
    before = train_rbm(data, how, seed=3, checkpoint=place)
    after = train_rbm(data, replace(how, epochs=41), seed=3, checkpoint=place)
    w, b, c = before.weights, before.visible_bias, before.hidden_bias
    assert np.abs(w).max() > 1.0  # a model worth testing on
    _, vh, v, h = naive.rbm_expectations(w, b, c)
    up = 1.0 / (1.0 + np.exp(-(data @ w + c)))
    exact = (data.T @ up) / len(data) - vh, data.mean(axis=0) - v, up.mean(axis=0) - h
    moved = after.weights - w, after.visible_bias - b, after.hidden_bias - c
    error = 5.0 * 0.5 / np.sqrt(len(data))  # five standard errors of a mean of 0/1 draws
    for step, gradient in zip(moved, exact, strict=True):
        assert np.abs(step / 2.0 - gradient).max() < error
    wrong = [
        np.abs(step / 2.0 + gradient).max() for step, gradient in zip(moved, exact, strict=True)
    ]
    assert max(wrong) > error  # the negative control: the test can see a sign


def test_training_raises_the_likelihood_and_lowers_the_error():
    data = _patterns(2000)
    seen = []
    start = train_rbm(data, Training(hidden=3, k=2, epochs=0), seed=1)
    end = train_rbm(data, Training(hidden=3, k=2, epochs=8), seed=1, on_epoch=seen.append)
    first, last = (
        _log_likelihood(data, r.weights, r.visible_bias, r.hidden_bias) for r in (start, end)
    )
    assert last > first + 0.5
    assert end.reconstruction_error[-1] < 0.8 * end.reconstruction_error[0]
    assert [e.number for e in seen] == list(range(1, 9))
    assert [e.reconstruction_error for e in seen] == end.reconstruction_error.tolist()
    assert "8 epochs" in repr(end)
    assert "8 epochs" in end.summary()


def test_no_learning_rate_no_change():
    data = _patterns(100)
    still = train_rbm(data, Training(hidden=3, k=1, epochs=2, learning_rate=0.0), seed=1)
    start = train_rbm(data, Training(hidden=3, k=1, epochs=0), seed=1)
    assert np.array_equal(still.weights, start.weights)


def test_weight_decay_shrinks_weights():
    data = _patterns(2000)
    free = train_rbm(data, Training(hidden=3, k=1, epochs=4), seed=1)
    held = train_rbm(data, Training(hidden=3, k=1, epochs=4, weight_decay=0.05), seed=1)
    assert np.square(held.weights).sum() < 0.8 * np.square(free.weights).sum()


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_resumes_to_the_bit(tmp_path, momentum):
    data = 0.5 * _patterns(310) + 0.2  # grey values, and a last batch that is not full
    how = Training(hidden=4, k=2, epochs=5, momentum=momentum, learning_rate=0.05)
    whole = train_rbm(data, how, seed=7)
    place = tmp_path / "folder" / "run.npz"

    def cut(epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_rbm(data, how, seed=7, checkpoint=place, on_epoch=cut)
    rest = train_rbm(data, how, seed=7, checkpoint=place)
    assert rest.resumed_from == 2
    done = train_rbm(data, how, seed=7, checkpoint=place)  # nothing left to do
    spent = "seconds", "processor_seconds"
    assert [getattr(done, name) for name in spent] == [getattr(rest, name) for name in spent]
    assert min(getattr(done, name) for name in spent) > 0.0
    for name in ("weights", "visible_bias", "hidden_bias", "reconstruction_error"):
        assert np.array_equal(getattr(whole, name), getattr(rest, name))
    other = train_rbm(data, how, seed=8)
    assert not np.array_equal(other.weights, whole.weights)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    data = _patterns(60)
    place = tmp_path / "run.npz"
    train_rbm(data, Training(hidden=2, k=1, epochs=2), checkpoint=place)
    with pytest.raises(ParameterError, match=r"other settings \(k\)"):
        train_rbm(data, Training(hidden=2, k=2, epochs=3), checkpoint=place)
    with pytest.raises(ParameterError, match="data_sha256"):
        train_rbm(1.0 - data, Training(hidden=2, k=1, epochs=3), checkpoint=place)
    with pytest.raises(ParameterError, match="2 epochs on"):
        train_rbm(data, Training(hidden=2, k=1, epochs=1), checkpoint=place)
    again = train_rbm(data, Training(hidden=2, k=2, epochs=1), checkpoint=place, resume=False)
    assert again.resumed_from == 0
    place.write_bytes(b"not an archive")
    with pytest.raises(ModelError, match="not a checkpoint"):
        train_rbm(data, Training(hidden=2, k=2, epochs=3), checkpoint=place)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros(5), {}, "shape"),
        (np.zeros((0, 4)), {}, "shape"),
        (np.full((3, 4), 255.0), {}, "is 255.0; expected numbers from 0 to 1"),
        (np.full((3, 4), np.nan), {}, "is nan; expected numbers from 0 to 1"),
        (np.zeros((3, 4)), {"hidden": 0}, "hidden is 0"),
        (np.zeros((3, 4)), {"k": 0}, "k is 0"),
        (np.zeros((3, 4)), {"batch_size": 0}, "batch_size is 0"),
        (np.zeros((3, 4)), {"momentum": 1.0}, "momentum is 1.0"),
        (_patterns(200), {"learning_rate": 1e38, "momentum": 0.9}, "diverged"),
    ],
)
def test_bad_input_is_refused(data, options, message):
    with pytest.raises((ModelError, ParameterError), match=message):
        train_rbm(data, Training(**{"hidden": 2, "k": 1, "epochs": 3, **options}))


def test_the_model_and_the_file_are_the_same_rbm(tmp_path):
    result = train_rbm(_patterns(200), Training(hidden=3, k=1, epochs=2))
    result.save(tmp_path / "rbm.npz")
    states = np.random.default_rng(0).integers(0, 2, size=(20, 9))
    v, h = states[:, :6], states[:, 6:]
    expected = v @ result.visible_bias + h @ result.hidden_bias
    expected = expected + np.einsum("ni,ij,nj->n", v, result.weights, h)
    assert np.allclose(result.model.log_weight(states), expected, atol=1e-12)
    assert np.allclose(read_model(tmp_path / "rbm.npz").log_weight(states), expected, atol=1e-12)


def _idx(array: np.ndarray) -> bytes:
    lengths = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


def test_idx_arrays_are_read():
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(read_idx(_idx(array), "here"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0", "not an idx file"),
        (b"\0\0\x08\x03\0\0", "header ends early"),
        (_idx(np.zeros((2, 3)))[:-1], "5 entries"),
        (_idx(np.zeros((2, 3))) + b"\0", "7 entries"),
    ],
)
def test_damaged_idx_is_refused(content, message):
    with pytest.raises(ModelError, match=message):
        read_idx(content, "here")


def test_a_substitute_for_mnist_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="neither"):
        load_mnist(tmp_path)
    packed = tmp_path / "train-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(_idx(np.zeros((2, 28, 28)))))
    with pytest.raises(ModelError, match="md5"):
        load_mnist(tmp_path)
    packed.write_bytes(packed.read_bytes()[:-6])
    with pytest.raises(ModelError, match="damaged"):
        load_mnist(tmp_path)
    monkeypatch.setenv("TIGHTZ_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="unset TIGHTZ_DATA"):
        load_mnist()


def test_a_download_is_checked_and_its_failure_explained(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.delenv("TIGHTZ_DATA", raising=False)
    asked = []

    def retrieve(url: str, known_hash: str, **_: object) -> str:
        asked.append((url, known_hash))
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(Exception, match=r"could not be downloaded .*TIGHTZ_DATA"):
        load_mnist()
    url, known = asked[0]
    assert url.startswith(mnist.MIRROR)
    assert known == "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"


@pytest.mark.skipif("TIGHTZ_DATA" not in os.environ, reason="needs TIGHTZ_DATA")
def test_mnist_is_the_real_one(tmp_path):
    digits = load_mnist(test=True)
    assert digits.images.shape == (10_000, 28, 28)
    assert np.bincount(digits.labels)[:3].tolist() == [980, 1135, 1032]
    grey = digits.probabilities()
    assert grey.dtype == np.float32
    assert (grey.min(), grey.max()) == (0.0, 1.0)
    source = Path(os.environ["TIGHTZ_DATA"]) / "mnist"
    for kind in ("images-idx3", "labels-idx1"):
        packed = (source / f"t10k-{kind}-ubyte.gz").read_bytes()
        (tmp_path / f"t10k-{kind}-ubyte").write_bytes(gzip.decompress(packed))
    assert np.array_equal(load_mnist(tmp_path, test=True).images, digits.images)
