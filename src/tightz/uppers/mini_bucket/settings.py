"""Settings of a weighted mini-bucket run and the ways in which it ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tightz.bounds import Side
from tightz.elimination.order import Order
from tightz.errors import ParameterError, require_range
from tightz.runtime.memory import parse_memory

MAX_IBOUND = 40


class MiniBucketStatus(enum.Enum):
    """How a run ended; the value is the advice. The bound holds in every case."""

    EXACT = "exact: no bucket was cut, so the bound is log Z itself"
    CONVERGED = "converged: raise ibound for a tighter bound"
    ITERATION_LIMIT = "stopped early: raise iterations for a tighter bound"
    TIME_LIMIT = "stopped by the time limit: raise time_limit for a tighter bound"
    VACUOUS = "no information: zero potentials force this lower bound to -inf; raise ibound"
    OVERFLOW = "no information: the potentials are too large for sums in float64; rescale the model"


@dataclass(frozen=True)
class MiniBucket:
    """Settings of the weighted mini-bucket bound.

    `ibound`: clique tables hold at most 2^(ibound + 1) entries, that is ibound + 1 binary
    variables (a factor that is larger by itself is kept whole). `side` is UPPER or LOWER. The run
    ends after `iterations`, or when five of them gain less than `tol` (nats), or after
    `time_limit` seconds (looked at between iterations). `order` AUTO tries several elimination
    orders for a few iterations each and keeps the tightest.
    """

    ibound: int = 10
    iterations: int = 100
    tol: float = 1e-3
    order: Order = Order.AUTO
    side: Side = Side.UPPER
    max_memory: str | int = "2GB"
    time_limit: float | None = None

    def __post_init__(self) -> None:
        require_range("ibound", self.ibound, 1, MAX_IBOUND)
        require_range("iterations", self.iterations, 0)
        require_range("tol", self.tol, 0.0)
        if self.side not in (Side.UPPER, Side.LOWER):
            raise ParameterError(f"side is {self.side}; expected Side.UPPER or Side.LOWER")
        if self.time_limit is not None:
            require_range("time_limit", self.time_limit, 0.0)
        parse_memory(self.max_memory)
