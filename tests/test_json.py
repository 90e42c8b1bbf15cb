"""Every result as JSON: one schema, nothing that is not JSON, and back again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

import tightz as tz
from tests.schema import SCHEMA, check, loads
from tightz.bounds import Bound, Proof, Side
from tightz.cli.main import main
from tightz.models import SpinPolynomial
from tightz.shown import Recorded, as_json, from_json

GRID = tz.ising_grid(3, seed=0)
SMALL = tz.ising_grid(2, seed=0)
NAMED = tz.FactorGraph(
    [2, 3],
    [((0,), [0.0, 1.0]), ((0, 1), [[0.0, -np.inf, 0.5], [1.0, 2.0, -np.inf]])],
    names=["rain", "sky"],
    states=[("no", "yes"), ("clear", "grey", "black")],
)
MACHINE = tz.rbm(np.ones((3, 2)), np.zeros(3), np.zeros(2))

RESULTS = {
    "Bound": lambda: Bound(Side.LOWER, -math.inf, Proof.NONE, "none"),
    "ExactResult": lambda: tz.exact(GRID),
    "ExactResult without digits": lambda: tz.exact(
        tz.FactorGraph([2, 2], [((0, 1), [[1e99, 0.0], [2.0, -1e99]])] * 3)
    ),
    "ExactResult without marginals": lambda: tz.exact(NAMED, marginals=False),
    "LogPartition": lambda: tz.log_partition(NAMED, evidence="rain=yes", time_limit=5, seed=0),
    "LogPartition of nothing": lambda: tz.log_partition(NAMED.with_evidence(CLASH), seed=0),
    "LogPartition within bounds": lambda: tz.log_partition(
        GRID, exact=False, only=[_nothing], time_limit=1, seed=0
    ),
    "Query": lambda: tz.query(NAMED, "sky", evidence="rain=yes", seed=0),
    "Query of nothing": lambda: tz.query(NAMED.with_evidence(CLASH), seed=0),
    "SweepRow": lambda: next(iter(tz.sweep(NAMED, [{"rain": "yes"}], "sky", seed=0))),
    "SweepRow of nothing": lambda: next(iter(tz.sweep(NAMED, [CLASH], "sky", seed=0))),
    "SweepRow with a problem": lambda: next(iter(tz.sweep(NAMED, [{"snow": 1}], seed=0))),
    "LogLikelihood": lambda: tz.log_likelihood(GRID, np.zeros((2, 9)), seed=0, time_limit=5),
    "FreeEnergy": lambda: tz.free_energy(GRID, [1.0, math.inf], time_limit=5, seed=0),
    "MeanFieldResult": lambda: tz.mean_field(GRID, seed=0),
    "MeanFieldResult with a variable of one state": lambda: tz.mean_field(
        tz.FactorGraph([1, 2], [((0, 1), [[0.0, 1.0]])])
    ),
    "LayerResult": lambda: tz.mean_field(MACHINE, family=tz.LayerMeanField(), seed=0),
    "Estimate": lambda: tz.estimate(SMALL, levels=[0, 3], trials=3, seed=0),
    "WishResult": lambda: tz.wish(SMALL, trials=3, seed=0),
    "TheoremRun": lambda: tz.theorem_run(SMALL, trials=3, levels=[0, 1], seed=0),
    "Forecast": lambda: tz.theorem_forecast(SMALL, trials=3, levels=[0, 1], seed=0),
    "CosetSum": lambda: tz.coset_sum(GRID, 1, seed=0),
    "MiniBucketResult": lambda: tz.upper_bound(GRID, method=tz.MiniBucket(iterations=2)),
    "TreeReweightedResult": lambda: tz.upper_bound(
        GRID, method=tz.TreeReweighted(max_iterations=2)
    ),
    "QuadraticResult": lambda: tz.upper_bound(GRID, method=tz.Quadratic(iterations=2)),
    "AisResult": lambda: tz.ais(GRID, chains=4, temperatures=5, seed=0),
    "Samples": lambda: tz.sample(NAMED, 3, seed=0),
    "BetheResult": lambda: tz.bethe(GRID, max_iterations=3),
    "SplittingResult": lambda: tz.split(GRID, time_limit=1, seed=0),
    "GroundState": lambda: tz.ground_state(NAMED, k=2, seed=0),
    "GroundState of spins": lambda: tz.ground_state(
        SpinPolynomial.from_factor_graph(SMALL), seed=0
    ),
    "GroundState of nothing": lambda: tz.ground_state(NAMED.with_evidence(CLASH)),
    "RbmTraining": lambda: tz.train_rbm(
        np.ones((4, 3)), tz.Training(hidden=2, k=1, epochs=1, batch_size=2)
    ),
    "PairMarginal": lambda: tz.exact(GRID).pair_marginal(0, 1),
    "PairMarginal of other states": lambda: tz.exact(NAMED).pair_marginal("rain", "sky"),
    "Moment": lambda: tz.exact(GRID).correlation(0, 1),
}
"""A call for every type of result, and for those that have something missing."""

CLASH = {"rain": "no", "sky": "grey"}


def _nothing(working, clock) -> Iterator[Bound]:
    yield from ()


def test_every_type_is_called_here_and_in_the_schema():
    for name in tz.__all__:
        getattr(tz, name)

    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    bases = {"Recorded", "Result", "OneBound", "ByVariable", "Posteriors", "Confident"}
    ours = {kind.__name__ for kind in below(Recorded) if kind.__module__.startswith("tightz.")}
    assert ours - bases == {name.partition(" ")[0] for name in RESULTS}
    assert ours - bases == set(SCHEMA["properties"]["result"]["enum"])


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_follows_the_schema(name):
    result = RESULTS[name]()
    record = loads(result.to_json())
    assert record["result"] == name.partition(" ")[0]
    check(record)
    assert record == result.record()
    for member, value in result.members().items():
        array = isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size
        if isinstance(value, float) or array:
            np.testing.assert_array_equal(from_json(record, member), value)


def test_nulls_say_what_they_are_and_come_back():
    told = {"a": [1.0, math.inf, [-math.inf, math.nan]], "b": None, "c": {"x": math.inf}, "d": 2}
    record = loads(json.dumps(as_json(told), allow_nan=False))
    assert record["a"] == [1.0, None, [None, None]]
    assert record["a_null"] == ["infinity", "-infinity", "not a number"]
    assert (record["b_null"], record["c_null"]) == ("none", "infinity")
    assert "d_null" not in record
    assert repr({name: from_json(record, name) for name in told}) == repr(told)


def test_the_same_thing_has_the_same_shape(tmp_path):
    """Posteriors and P(evidence) of a query and of a sweep, marginals of three methods."""
    asked = tz.query(NAMED, "sky", evidence="rain=yes", seed=0).record()
    (row,) = (found.record() for found in tz.sweep(NAMED, [{"rain": "yes"}], "sky", seed=0))
    for name in ("evidence", "log_p_evidence", "contradiction", "posteriors"):
        assert asked[name].keys() == row[name].keys() if asked[name] else not row[name]
    ours, theirs = asked["posteriors"]["sky"], row["posteriors"]["sky"]
    assert ours.keys() == theirs.keys()
    assert ours["probabilities"] == pytest.approx(theirs["probabilities"])
    tz.write(NAMED, tmp_path / "m.npz")
    for command in ("marginals", "logz", "query"):
        done = CliRunner().invoke(main, [command, str(tmp_path / "m.npz"), "--json"])
        record = loads(done.stdout)
        check(record)
        key = "posteriors" if command == "query" else "marginals"
        assert list(record[key]) == ["rain", "sky"]
