"""One run of `log_partition`: the model, its limits, and what is prepared once for all streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightz.errors import UnsupportedModelError
from tightz.families.evidence import link_of
from tightz.judge.links import SpinLink
from tightz.models.factor_graph import FactorGraph
from tightz.reductions.encoding import SpinEncoding, encode
from tightz.reductions.preparation import Prepared, prepare
from tightz.runtime.clock import Clock
from tightz.runtime.executors import Submits
from tightz.runtime.seeds import Seed, generator, stream
from tightz.workspace.findings import Marginals, Mixing
from tightz.workspace.samples import Samples
from tightz.workspace.symmetry import flips_of, symmetrise_marginals, symmetrise_states

Sampler = Callable[..., Samples]

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

    @property
    def link(self) -> SpinLink:
        """How the encoding stands for `working`, for the judge."""
        made: SpinLink = self._once("link", lambda: link_of(self.encoding))
        return made

    @property
    def flips(self) -> NDArray[np.uint8] | None:
        """Flips of `working`'s variables that leave it unchanged; None where none are known."""
        made: NDArray[np.uint8] | None = self._once("flips", self._find_flips)
        return made

    def _find_flips(self) -> NDArray[np.uint8] | None:
        try:
            basis = flips_of(self.encoding)
        except UnsupportedModelError:
            return None
        return basis if basis is not None and basis.any() else None

    def lift_marginals(self, found: Marginals) -> Marginals:
        """Marginals of `working` as the model's; a known symmetry is used, not broken."""
        vectors = found.vectors
        if found.mixing is not Mixing.EXACT and self.flips is not None:
            vectors = symmetrise_marginals(vectors, self.flips)
        return replace(found, vectors=self.prepared.lift_marginals(vectors))

    def lift_sampler(self, sampler: Sampler) -> Sampler:
        """A sampler of `working`'s states as one of the model's, spread over known symmetries."""

        def sample(k: int, seed: Seed = None) -> Samples:
            drawn = sampler(k, seed)
            states = drawn.states
            if self.flips is not None:
                states = symmetrise_states(states, self.flips, generator(stream(seed, 2)))
            return replace(drawn, states=self.prepared.lift_states(states, stream(seed, 1)))

        return sample

    def share(self, fraction: float) -> Clock:
        """A clock that ends with the run's or after a fraction of the time limit."""
        return self.clock.child(max(0.0, fraction * self.time_limit - self.clock.elapsed))


Method = Callable[[Job], Iterator[Any]]
"""A stream: it yields findings, bare bounds or a `Launch`, and watches the job's clock."""


class Launch(tuple[Method, ...]):
    """Yielded by a stream that wants other streams started beside it."""
