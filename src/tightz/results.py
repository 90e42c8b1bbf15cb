"""What every public function returns, whatever the method: one way to look at a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tightz.bounds import Bound
from tightz.errors import MissingExtraError, TightzError
from tightz.shown import Members, Recorded, Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from pandas import DataFrame

    from tightz.models.names import Names
    from tightz.models.pair_marginals import Moment, PairMarginal


class Result(Recorded, Shown):
    """Base of all results. `to_json()` writes one, `summary()` says it, `plot()` draws it.

    bounds       what it says about log Z (natural logs), each with its proof; in order of time
    seconds      how long it took
    provenance   versions, seed, parameters and the model's digest

    `lower`, `upper`, `log_z` and `estimate`, where a result has them, are floats; `lower_proof`
    and `upper_proof` are the bounds behind them.
    """

    __slots__ = ()
    _also: ClassVar[tuple[str, ...]] = ("bounds", "seconds", "provenance")

    if TYPE_CHECKING:  # fields of some results, properties of others

        @property
        def bounds(self) -> list[Bound]: ...

        @property
        def seconds(self) -> float: ...

        @property
        def provenance(self) -> dict[str, Any]: ...

    def summary(self) -> str:
        """The result in a few lines of text."""
        lines = [bound.summary() for bound in self.bounds]
        status = getattr(self, "status", None)
        if status is not None:
            lines.append(f"status: {status.value}")
        return "\n".join([*lines, f"{self.seconds:.2f} s"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """A picture of the result; returns the axes."""
        from tightz.plots import plot_bounds

        return plot_bounds(self, ax=ax)


class ByVariable(Recorded, Shown):
    """What has `marginals`, one vector per variable of the model, and knows its `naming`."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def marginals(self) -> Any: ...

        @property
        def naming(self) -> Names: ...

    def members(self) -> Members:
        told = super().members()
        for name in ("marginals", "marginal_bounds"):
            if told.get(name) is not None:
                # rows of an array are as long as the longest
                rows = zip(told[name], self.naming.cardinalities.tolist(), strict=True)
                told[name] = self.naming.by_variable(row[:count] for row, count in rows)
        return told

    def marginal(self, variable: Any) -> dict[str, float]:
        """The distribution of a variable, given by name or number, as {state: probability}."""
        v = self.naming.index(variable)
        return self.naming.distribution(v, self._vectors()[v])

    def marginal_bound(
        self, variable: Any, *, confident: bool = False
    ) -> dict[str, tuple[float, float]]:
        """Ends of a variable's marginals, {state: (lower, upper)}.

        They hold always; with `confident` those of all variables together with the run's
        confidence, and they are no wider.
        """
        v = self.naming.index(variable)
        ends = self._marginal_ends()
        if ends is None:
            raise TightzError(
                f"{type(self).__name__} proves nothing about marginals; "
                "tz.log_partition(model).marginal_bound(variable) does"
            )
        both = zip(self.naming.state_labels(v), ends[confident][v].tolist(), strict=True)
        return {state: (low, high) for state, (low, high) in both}

    def pair_marginal(self, variable: Any, other: Any) -> PairMarginal:
        """The joint distribution of two variables, given by name or number, with its ends."""
        return self._pair(self.naming.index(variable), self.naming.index(other))

    def correlation(self, variable: Any, other: Any, **how: Any) -> Moment:
        """<s_i s_j> of two spins; `pair_marginal(...).covariance` is less <s_i><s_j>."""
        return self.pair_marginal(variable, other, **how).correlation

    def to_dataframe(self) -> DataFrame:
        """A pandas table of all marginals: variable, state, probability; their ends where known.

        These are lower and upper, which hold always, and confident_lower and confident_upper.
        """
        names, vectors, ends = self.naming, self._vectors(), self._marginal_ends()
        columns = ["variable", "state", "probability"]
        if ends is not None:
            columns += ["lower", "upper", "confident_lower", "confident_upper"]
        rows = [
            (names.label(v), state, float(vector[s]))
            + (() if ends is None else tuple(float(x) for e in ends for x in e[v][s]))
            for v, vector in enumerate(vectors)
            for s, state in enumerate(names.state_labels(v))
        ]
        return dataframe(rows, columns)

    def _marginal_ends(self) -> tuple[list[NDArray], list[NDArray]] | None:
        """Those that hold always, and with confidence: (states, 2) for each variable."""
        return None

    def _pair(self, i: int, j: int) -> PairMarginal:
        raise TightzError(
            f"{type(self).__name__} says nothing about pairs of variables; "
            "tz.log_partition(model).pair_marginal(i, j) does"
        )

    def _vectors(self) -> Any:
        if self.marginals is None:
            raise TightzError(
                "the run ended without marginals; give it more time (time_limit), and "
                "marginals=True"
            )
        return self.marginals


def dataframe(rows: Sequence[Any] | Mapping[str, Any], columns: Sequence[str]) -> DataFrame:
    """A pandas table, or an error that says how to get pandas."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("to_dataframe needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(columns))


class OneBound(Result):
    """A result that makes one statement about log Z, its `bound`.

    What it does not speak of is -inf below and inf above.
    """

    __slots__ = ()
    _also: ClassVar[tuple[str, ...]] = ("lower", "upper", *Result._also)

    if TYPE_CHECKING:

        @property
        def bound(self) -> Bound: ...

    def members(self) -> Members:
        told = super().members()
        told.pop("bound", None)  # it is the one of `bounds`
        return told

    @property
    def bounds(self) -> list[Bound]:
        return [self.bound]

    @property
    def lower(self) -> float:
        return self.bound.low

    @property
    def upper(self) -> float:
        return self.bound.high

    @property
    def lower_proof(self) -> Bound:
        return self.bound

    @property
    def upper_proof(self) -> Bound:
        return self.bound
