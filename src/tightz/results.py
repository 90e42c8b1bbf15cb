"""What every public function returns, whatever the method: one way to look at a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightz.bounds import Bound
from tightz.shown import Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Result(Shown):
    """Base of all results.

    bounds       what it says about log Z (natural logs), each with its proof; in order of time
    seconds      how long it took
    provenance   versions, seed, parameters and the model's digest

    `lower`, `upper`, `log_z` and `estimate`, where a result has them, are floats; `lower_proof`
    and `upper_proof` are the bounds behind them.
    """

    __slots__ = ()

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


class OneBound(Result):
    """A result that makes one statement about log Z, its `bound`.

    What it does not speak of is -inf below and inf above.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def bound(self) -> Bound: ...

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
