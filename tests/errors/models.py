"""What factor graphs, builders, spin polynomials, collapse and RBM training say."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import numpy as np

import tightz as tz
from tests.errors.table import Case, reads
from tightz.errors import (
    MissingExtraError,
    ModelError,
    ParameterError,
    ResourceError,
    TightzError,
    UnsupportedModelError,
)
from tightz.models import SpinPolynomial, mnist
from tightz.models.large_scopes import noisy_or
from tightz.models.train_rbm import train_rbm
from tightz.reductions import affine, collapse_plan
from tightz.reductions.bits import to_bits
from tightz.reductions.collapse import collapse

GRID = tz.ising_grid(3, seed=0)
SPINS = SpinPolynomial.from_factor_graph(GRID)
NAN = float("nan")
INF = float("inf")


def _graph(*factors, cards=(2, 4), **options):
    return tz.FactorGraph(list(cards), factors, **options)


def _named(names=("rain", "wet"), states=None, **options):
    return tz.FactorGraph([2, 2], names=names, states=states, name="pair", **options)


YES = ("no", "yes")
NAMES = [
    (
        "names are a str, 'rain'; expected a sequence of 2 strings, one for each variable",
        lambda: _named("rain"),
    ),
    ("names are 1; expected one for each of 2 variables", lambda: _named(["rain"])),
    ("names: the entry 1 is an int, 3; expected a str of it", lambda: _named(["rain", 3])),
    (
        "names: the entries 0 and 1 are both 'rain'; expected distinct names",
        lambda: GRID.with_names(["rain"] * 9),
    ),
    (
        "states are a str, 'yes'; expected for each variable the names of its states, such as "
        "[('no', 'yes'), ('no', 'yes')]",
        lambda: _named(states="yes"),
    ),
    (
        "states of 1 variables are given and the model has 2; expected names or None for each",
        lambda: _named(states=[YES]),
    ),
    (
        "the states of 'wet' are a str, 'yes'; expected a sequence of 2 strings",
        lambda: _named(states=[YES, "yes"]),
    ),
    (
        "the states of 'wet' are 3; expected one for each of 2 states",
        lambda: _named(states=[YES, ("no", "yes", "soaked")]),
    ),
    (
        "mapping states names 'wind'; the model has 'rain', 'wet'",
        lambda: _named(states={"wind": YES}),
    ),
    (
        "lookup names 'Rain'; the model has no such: did you mean 'rain'? (pair)",
        lambda: _named().index("Rain"),
    ),
    (
        "lookup puts 'rain' in state 'yess'; it has no such: did you mean 'yes'? (pair)",
        lambda: _named(states=[YES, None]).state("rain", "yess"),
    ),
    (
        "evidence puts 'wet' in state 'yes'; it has states without names (pair)",
        lambda: _named(states=[YES, None], evidence={"wet": "yes"}),
    ),
    (
        "'rain' is observed in state no; new evidence says yes",
        lambda: _named(states={"rain": YES}, evidence={"rain": "no"}).with_evidence({0: 1}),
    ),
    (
        "evidence puts 'rain' in two states, the second being 1; expected one (pair)",
        lambda: _named(states={"rain": YES}, evidence={"rain": "no", 0: 1}),
    ),
]

GRAPHS = [
    Case(
        ModelError,
        "table_ptr has shape (1, 2); expected a flat array",
        lambda: tz.FactorGraph.from_arrays([2], [0, 1], [0], [[0, 2]], [0.0, 0.0]),
    ),
    Case(
        ModelError,
        "scope_ptr[2] is 0; expected pointers that never fall, from 0 to 1, the length of "
        "scope_vars",
        lambda: tz.FactorGraph.from_arrays([2], [0, 1, 0, 1], [0], [0, 2, 3, 5], np.zeros(5)),
    ),
    Case(
        ModelError,
        "scope_ptr[1] is 10000000000; expected pointers that never fall, from 0 to 1, the length "
        "of scope_vars",
        lambda: tz.FactorGraph.from_arrays([2], [0, 10**10], [0], [0, 2], np.zeros(2)),
    ),
    Case(
        ModelError,
        "table_ptr[1] is 2; expected pointers that never fall, from 0 to 0, the length of "
        "log_tables",
        lambda: tz.FactorGraph.from_arrays([2], [0, 1], [0], [0, 2], []),
    ),
    Case(
        ModelError,
        "factor 0 has a table of shape (4, 2); its scope (0, 1) needs (2, 4) (or the same"
        " entries flat, last variable fastest)",
        lambda: _graph(((0, 1), np.zeros((4, 2)))),
    ),
    Case(
        ModelError,
        "factor 0 lists 6 entries; its scope (0, 1) with 2 x 4 states needs 8",
        lambda: _graph(((0, 1), np.zeros(6))),
    ),
    Case(
        ModelError,
        "factor 0 names variable 2; the model has variables 0 to 1",
        lambda: _graph(((0, 2), np.zeros((2, 2)))),
    ),
    Case(
        ModelError,
        "factor 0 names variable 0 twice in its scope",
        lambda: _graph(((0, 0), np.zeros((2, 2)))),
    ),
    Case(
        ModelError,
        "factor 0, entry 1: log potential is nan; expected a finite number or -inf",
        lambda: _graph(((0,), [0.0, NAN])),
    ),
    Case(
        ModelError,
        "factor 0, entry 1: potential is -2.0; expected a number >= 0 (the constructor takes logs)",
        lambda: tz.FactorGraph.from_tables([2], [((0,), [1.0, -2.0])]),
    ),
    Case(
        ModelError,
        "cardinalities have shape (2,) and type float64; expected a flat list of "
        "integers, the number of states of each variable",
        lambda: tz.FactorGraph([2.0, 2.5]),
    ),
    Case(
        ModelError,
        "variable 1 has 0 states; expected 1 to 2147483647",
        lambda: tz.FactorGraph([2, 0]),
    ),
    Case(
        ModelError,
        "scope_ptr has 1 entries and table_ptr has 2; expected one more than there are "
        "factors, in both",
        lambda: tz.FactorGraph.from_arrays([2], [0], [], [0, 2], [0.0, 0.0]),
    ),
    Case(
        ModelError,
        "evidence names variable 5; the model has variables 0 to 1",
        lambda: _graph(evidence={5: 0}),
    ),
    Case(
        ModelError,
        "evidence puts variable 1 in state 4; it has states 0 to 3",
        lambda: _graph(evidence={1: 4}),
    ),
    Case(
        ModelError,
        "variable 1 is observed in state 3; new evidence says 0",
        lambda: _graph(evidence={1: 3}).with_evidence({1: 0}),
    ),
    *(Case(ModelError, text, act) for text, act in NAMES),
    Case(
        ModelError,
        "states have 3 columns; the model has 2 variables",
        lambda: _graph().log_weight([0, 1, 0]),
    ),
]


def _many_checks(patch):
    patch.setattr(affine, "_MAX_SYSTEM", 1)
    xor = [[0.0, -INF], [-INF, 0.0]]
    tz.mean_field(tz.FactorGraph([2, 2, 2], [((0, 1), xor), ((1, 2), xor)]))


BUILDERS = [
    Case(
        ModelError,
        "couplings have shape (2, 3); expected a square matrix, or a mapping such as {(0, 1): 0.5}",
        lambda: tz.ising(np.zeros((2, 3))),
    ),
    Case(
        ModelError,
        "couplings[0, 1] is nan; expected a finite number",
        lambda: tz.ising([[0.0, NAN], [NAN, 0.0]]),
    ),
    Case(
        ModelError,
        "couplings[0, 1] is 1.0 and couplings[1, 0] is 2.0: the matrix is neither symmetric nor a "
        "triangle; expected each pair once or the same value at both places: np.triu(J, 1) or "
        "scipy.sparse.triu(J, 1) keeps the upper half",
        lambda: tz.ising([[0.0, 1.0], [2.0, 0.0]]),
    ),
    Case(
        ModelError,
        "couplings[1, 1] is 3.0; expected 0 on the diagonal, since a variable always agrees with "
        "itself: np.fill_diagonal(J, 0) or J.setdiag(0) clears it",
        lambda: tz.ising([[0.0, 1.0], [1.0, 3.0]]),
    ),
    Case(
        ModelError,
        "3 fields for 2 variables; expected one for each, or one number for all",
        lambda: tz.ising(np.zeros((2, 2)), [1.0, 2.0, 3.0]),
    ),
    Case(
        ModelError,
        "coupling (0, 1) is inf; expected a finite number",
        lambda: tz.ising({(0, 1): INF}),
    ),
    Case(
        ModelError,
        "coupling of variable 2 with itself; expected pairs of different variables: a variable "
        "always agrees with itself, so leave (2, 2) out",
        lambda: tz.ising({(2, 2): 1.0}),
    ),
    Case(
        ModelError,
        "fields[1] is nan; expected a finite number",
        lambda: tz.ising({(0, 1): 1.0}, [0.0, NAN]),
    ),
    Case(
        ModelError,
        "fields[1, 1] is nan; expected a finite number",
        lambda: tz.potts({(0, 1): 1.0}, 2, [[0.0, 0.0], [0.0, NAN]]),
    ),
    Case(
        ModelError,
        "1 inhibitors for 2 parents; expected as many",
        lambda: noisy_or(0, [1, 2], [0.5], first_auxiliary=3),
    ),
    Case(
        ModelError,
        "a noisy-or probability is 1.5; expected a number from 0 to 1",
        lambda: noisy_or(0, [1], [1.5], first_auxiliary=2),
    ),
    Case(
        UnsupportedModelError,
        "2 parities over 3 variables follow from zeros, too many to solve; "
        "tz.log_partition and tz.exact treat the zeros as they are",
        _many_checks,
    ),
    Case(
        ModelError,
        "coupling range is (1, -1); expected finite (low, high) with low <= high, or one number "
        "for all",
        lambda: tz.ising_grid(3, coupling=(1, -1)),
    ),
    Case(
        ParameterError, "rows is 0; expected a whole number of at least 1", lambda: tz.ising_grid(0)
    ),
    Case(
        ParameterError,
        "cols is 0; expected a whole number of at least 1",
        lambda: tz.ising_grid(2, 0),
    ),
    Case(
        ModelError,
        "W has shape (2, 3); 3 visible and 2 hidden biases need (3, 2); it is the other way round: "
        "transposed=True",
        lambda: tz.rbm(np.zeros((2, 3)), np.zeros(3), np.zeros(2)),
    ),
    Case(
        ModelError,
        "W[0, 1] is inf; expected a finite number",
        lambda: tz.rbm([[0.0, INF]], [0.0], [0.0, 0.0]),
    ),
    Case(
        ParameterError,
        "states is 0; expected a whole number of at least 1",
        lambda: tz.potts({(0, 1): 1.0}, 0),
    ),
    Case(
        ModelError,
        "fields have shape (2, 2); expected (variables, 3), or one row of 3 for all variables",
        lambda: tz.potts({(0, 1): 1.0}, 3, np.zeros((2, 2))),
    ),
    Case(
        ModelError,
        "2 fields for 5 variables; expected one for each, or one number for all",
        lambda: tz.potts({(0, 4): 1.0}, 3, np.zeros((2, 3))),
    ),
    Case(
        ModelError,
        "coupling (0, 1) is nan; expected a finite number",
        lambda: tz.potts({(0, 1): NAN}, 3),
    ),
    Case(
        ParameterError, "rows is 0; expected a whole number of at least 1", lambda: tz.potts_grid(0)
    ),
    Case(
        ParameterError,
        "cols is -1; expected a whole number of at least 1",
        lambda: tz.potts_grid(2, -1),
    ),
    Case(
        ParameterError,
        "states is 0; expected a whole number of at least 1",
        lambda: tz.potts_grid(2, states=0),
    ),
    Case(
        ModelError,
        "field range is (0.0, inf); expected finite (low, high) with low <= high, or one number "
        "for all",
        lambda: tz.potts_grid(2, field=(0.0, INF)),
    ),
]


def _wide_factor(arity):
    return tz.FactorGraph([2] * arity, [(range(arity), np.zeros((2,) * arity))])


SPIN_POLYNOMIALS = [
    Case(
        ModelError,
        "term [0, 5] names a spin outside 0 to 1",
        lambda: SpinPolynomial.from_terms(2, 0.0, [((0, 5), 1.0)]),
    ),
    Case(
        ModelError,
        "the model has evidence on 1 variables; expected none here. Pass model.condition()",
        lambda: SpinPolynomial.from_factor_graph(GRID.with_evidence({0: 1})),
    ),
    Case(
        UnsupportedModelError,
        "variable 1 has 4 states; this method takes binary models. tz.log_partition and "
        "tz.exact take any discrete model",
        lambda: SpinPolynomial.from_factor_graph(_graph()),
    ),
    Case(
        ModelError,
        "variable 0 has a single state; this method expects 2. Observe it: "
        "model.with_evidence({0: 0}).condition()",
        lambda: SpinPolynomial.from_factor_graph(_graph(cards=(1, 2))),
    ),
    Case(
        UnsupportedModelError,
        "factor 0 has zero entries (hard constraints), which have no finite Walsh "
        "expansion; this method takes positive models. tz.log_partition and tz.exact take"
        " zeros",
        lambda: SpinPolynomial.from_factor_graph(_graph(((0,), [0.0, -INF]), cards=(2,))),
    ),
    Case(
        UnsupportedModelError,
        "factor 0 has arity 17, so up to 2^17 terms; expected arity at most 16. "
        "tz.log_partition and tz.exact may still work",
        lambda: SpinPolynomial.from_factor_graph(_wide_factor(17)),
    ),
    Case(
        ModelError,
        "the model has evidence on 1 variables; expected none here. Pass model.condition()",
        lambda: to_bits(GRID.with_evidence({0: 1})),
    ),
    Case(
        UnsupportedModelError,
        "factor 0 over variables (0, 1) takes 19 bits, so up to 2^19 terms; expected at "
        "most 16 bits. tz.log_partition and tz.exact take the variables as they are",
        lambda: to_bits(_graph(((0, 1), np.zeros((600, 300))), cards=(600, 300))),
    ),
]


def _crowded(patch):
    patch.setattr(collapse_plan, "MAX_TABLE_ENTRIES", 8)
    collapse(SPINS, 3)


COLLAPSE = [
    Case(
        ParameterError,
        "keep names spin 9; the model has spins 0 to 8",
        lambda: collapse(SPINS, 2, keep=[0, 9]),
    ),
    Case(ParameterError, "k is 99; expected between 0 and 20", lambda: collapse(SPINS, 99)),
    Case(ParameterError, "most is 30; expected between 0 and 20", lambda: collapse(SPINS, most=30)),
    Case(
        ParameterError,
        "max_terms is -1; expected at least 0",
        lambda: collapse(SPINS, max_terms=-1),
    ),
    Case(
        ModelError,
        "states have shape (1, 2) for 5 kept spins; expected rows of 5 entries, each +1 or -1",
        lambda: collapse(SPINS, 2).lift_states([[1, -1]]),
    ),
    Case(
        ModelError,
        "means have shape (2,); expected (5,) entries in [-1, 1]",
        lambda: collapse(SPINS, 2).lift_means([2.0, 0.0]),
    ),
    Case(
        ResourceError, "collapse with k = 3 needs tables of more than 8 entries; lower k", _crowded
    ),
]

UNITS = np.array([[0.0, 1.0], [1.0, 0.0]])


def _resumed(tmp, **changed):
    settings = {"hidden": 2, "k": 1, "epochs": 2}
    train_rbm(UNITS, tz.Training(**settings), checkpoint=tmp / "run.npz")
    train_rbm(UNITS, tz.Training(**{**settings, **changed}), checkpoint=tmp / "run.npz")


def _damaged(tmp):
    (tmp / "run.npz").write_bytes(b"nothing")
    train_rbm(UNITS, checkpoint=tmp / "run.npz")


TRAINING = [
    Case(
        ParameterError,
        "training is an int, 100; expected a tz.Training(...)",
        lambda: train_rbm(UNITS, 100),
    ),
    Case(
        ModelError,
        "data have shape (2,); expected (examples, visible units), one of each at least",
        lambda: train_rbm([0.0, 1.0]),
    ),
    Case(
        ModelError,
        "data[0, 1] is 255.0; expected numbers from 0 to 1 (divide grey values by their maximum)",
        lambda: train_rbm([[0.0, 255.0]]),
    ),
    Case(
        ParameterError,
        "hidden is 0; expected a whole number of at least 1",
        lambda: train_rbm(UNITS, tz.Training(hidden=0)),
    ),
    Case(
        ParameterError,
        "weight_decay is -1; expected at least 0.0",
        lambda: train_rbm(UNITS, tz.Training(weight_decay=-1)),
    ),
    Case(
        ParameterError,
        "learning_rate is -1; expected at least 0.0",
        lambda: train_rbm(UNITS, tz.Training(learning_rate=-1)),
    ),
    Case(
        ParameterError,
        "momentum is 1.0; expected between 0.0 and 0.999",
        lambda: train_rbm(UNITS, tz.Training(momentum=1.0)),
    ),
    Case(
        ParameterError,
        "training diverged in epoch 1; learning_rate is 1e+39, choose a smaller one",
        lambda: train_rbm(UNITS, tz.Training(hidden=2, learning_rate=1e39)),
    ),
    Case(
        ParameterError,
        "TMP/run.npz is 2 epochs on; epochs is 1. Ask for at least 2, or pass "
        "resume=False to start again",
        lambda tmp: _resumed(tmp, epochs=1),
    ),
    Case(
        ParameterError,
        "TMP/run.npz was written with other settings (k); pass resume=False to start "
        "again, or another checkpoint",
        lambda tmp: _resumed(tmp, k=2),
    ),
    Case(
        ModelError,
        "TMP/run.npz is not a checkpoint of train_rbm (or a damaged one); delete it, or "
        "pass resume=False",
        _damaged,
    ),
]


def _archive(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _single(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def _weights(**changed):
    plain = {"W": np.zeros((2, 3)), "visible_bias": np.zeros(2), "hidden_bias": np.zeros(3)}
    return _archive(**{**plain, **changed})


def _flat(**changed):
    plain = {
        "cardinalities": np.array([2, 2]),
        "scope_ptr": np.array([0, 1]),
        "scope_vars": np.array([0]),
        "table_ptr": np.array([0, 2]),
        "log_tables": np.zeros(2),
    }
    return _archive(**{**plain, **changed})


RBM_FILES = [
    reads(
        tz.read,
        "r.npz",
        _weights(log_sigma=np.zeros(2)),
        "TMP/r.npz holds 'log_sigma' beside W, visible_bias, hidden_bias, and nothing else is "
        "understood; a model with further terms (more layers, couplings within a layer, units that "
        "are not binary) is built as tz.FactorGraph(cardinalities, factors) or "
        "tz.ising(couplings, fields); what is no part of the model is named: ignore=['log_sigma']",
    ),
    reads(
        tz.read,
        "r.npz",
        _flat(scope_ptr=np.array([0, 10**10])),
        "scope_ptr[1] is 10000000000; expected pointers that never fall, from 0 to 1, the length "
        "of scope_vars (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _flat(evidence=np.array([[0, 1], [0, 0]])),
        "evidence names a variable twice; expected each once (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _flat(grid=np.array([3, 3, 0])),
        "Grid(rows=3, cols=3, periodic=False) has 9 variables; the model has 2 (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _flat(layers=np.array([1, 1, 1])),
        "layers has 3 entries; expected 2 in a row (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        b"nothing",
        "TMP/r.npz is not an .npz file (or a damaged one); expected named arrays",
    ),
    reads(
        tz.read,
        "r.npz",
        _single(np.zeros(3)),
        "TMP/r.npz holds a single array; expected an .npz file of named arrays",
    ),
    reads(
        tz.read,
        "r.npz",
        _archive(W=np.zeros((2, 3)), b=np.zeros(2)),
        "TMP/r.npz has no array visible_bias, hidden_bias; it holds W, b, expected W, "
        "visible_bias, hidden_bias",
    ),
    reads(
        tz.read,
        "r.npz",
        _weights(W=np.array([["a", "b"]])),
        "W holds text; expected numbers. Convert it with float(...) (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _weights(W=np.array([[None]])),
        "TMP/r.npz is damaged, or its arrays hold Python objects; expected plain numbers",
    ),
    reads(
        tz.read,
        "r.npz",
        _weights(visible_bias=np.array([0.0, NAN])),
        "visible_bias[1] is nan; expected a finite number (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _weights(hidden_bias=np.zeros((3, 3))),
        "hidden_bias has shape (3, 3); expected a vector: .ravel() makes one (TMP/r.npz)",
    ),
    reads(
        tz.read,
        "r.npz",
        _weights(visible_bias=np.zeros(7)),
        "W has shape (2, 3); 7 visible and 3 hidden biases need (7, 3) or (3, 7) (TMP/r.npz)",
    ),
]

TRAIN_IMAGES = "train-images-idx3-ubyte"


def _digits(name, content):
    def act(tmp: Path) -> object:
        (tmp / name).write_bytes(content)
        return tz.load_mnist(tmp)

    return act


def _unset(patch):
    patch.delenv("TIGHTZ_DATA", raising=False)
    patch.setitem(sys.modules, "pooch", None)
    tz.load_mnist()


def _offline(patch):
    class Pooch:
        @staticmethod
        def os_cache(name):
            return Path(name)

        @staticmethod
        def retrieve(*_args, **_options):
            raise OSError("no route to host")

    patch.delenv("TIGHTZ_DATA", raising=False)
    patch.setitem(sys.modules, "pooch", Pooch)
    tz.load_mnist()


DIGITS = [
    Case(
        ModelError,
        "train images: not an idx file of bytes (it starts with b'PNG.')",
        lambda: mnist.read_idx(b"PNG.", "train images"),
    ),
    Case(
        ModelError,
        "train images: the idx header ends early, after 6 bytes",
        lambda: mnist.read_idx(b"\0\0\x08\x03\0\0", "train images"),
    ),
    Case(
        ModelError,
        "train labels: 2 entries; its header (5,) needs 5",
        lambda: mnist.read_idx(b"\0\0\x08\x01\0\0\0\x05ab", "train labels"),
    ),
    Case(
        ModelError,
        "TMP/train-images-idx3-ubyte.gz: damaged gzip file (Unknown compression method)",
        _digits(f"{TRAIN_IMAGES}.gz", b"\x1f\x8b damaged"),
    ),
    Case(
        ModelError,
        "TMP/train-images-idx3-ubyte.gz: md5 795f3202b17cb6bc3d4b771d8c6c9eaf of the "
        "content; the original train-images-idx3-ubyte has "
        "6bbc9ace898e44ae57da46a324031adb. Fetch the original file again",
        _digits(f"{TRAIN_IMAGES}.gz", gzip.compress(b"other", mtime=0)),
    ),
    Case(
        ModelError,
        "TMP holds neither train-images-idx3-ubyte.gz nor train-images-idx3-ubyte; put "
        "the four MNIST files there, or unset TIGHTZ_DATA and pass no folder to download "
        "them",
        lambda tmp: tz.load_mnist(tmp),
    ),
    Case(
        MissingExtraError,
        "MNIST is not here (TIGHTZ_DATA is unset) and downloading it needs pooch: pip "
        "install 'tightz[data]'",
        _unset,
    ),
    Case(
        TightzError,
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz could "
        "not be downloaded (no route to host); set TIGHTZ_DATA to a folder with mnist/ in"
        " it, or pass the folder that holds the idx files",
        _offline,
    ),
]

CASES = [*GRAPHS, *BUILDERS, *SPIN_POLYNOMIALS, *COLLAPSE, *TRAINING, *RBM_FILES, *DIGITS]
