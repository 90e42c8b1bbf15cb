"""One run of `log_partition`: the model, its limits, and what is prepared once for all streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tightz.estimation.preparation import Prepared, prepare
from tightz.models.encoding import SpinEncoding, encode
from tightz.models.factor_graph import FactorGraph
from tightz.runtime.clock import Clock
from tightz.runtime.executors import Submits

NARROW = 10
"""The widest elimination when exact is off."""


@dataclass(frozen=True, eq=False)
class Job:
    """What streams read. Nothing in it changes while they run: they answer by yielding findings."""

    model: FactorGraph
    clock: Clock
    time_limit: float
    delta: float
    seed: np.random.SeedSequence
    exact: bool
    max_memory: int
    executor: Submits | None = None
    _made: dict[str, Any] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        """`make()` by whichever stream asks first; the others wait for it."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    @property
    def prepared(self) -> Prepared:
        """The model without evidence, what zeros decide, leaves and small components."""
        log2_size = 16.0 if self.exact else float(NARROW)
        made: Prepared = self._once("prepared", lambda: prepare(self.model, log2_size=log2_size))
        return made

    @property
    def working(self) -> FactorGraph:
        """What the streams run on: the same log Z as `model`, perhaps fewer variables."""
        return self.prepared.reduced

    @property
    def encoding(self) -> SpinEncoding:
        """`working` as a polynomial of spins; UnsupportedModelError where it has none."""
        made: SpinEncoding = self._once("encoding", lambda: encode(self.working, multivalued=True))
        return made

    def share(self, fraction: float) -> Clock:
        """A clock that ends with the run's or after a fraction of the time limit."""
        return self.clock.child(max(0.0, fraction * self.time_limit - self.clock.elapsed))


Method = Callable[[Job], Iterator[Any]]
"""A stream: it yields findings, bare bounds or a `Launch`, and watches the job's clock."""


class Launch(tuple[Method, ...]):
    """Yielded by a stream that wants other streams started beside it."""
