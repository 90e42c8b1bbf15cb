"""The working model of a run: what streams would otherwise prepare each for itself, made once."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tightz.bounds import Side
from tightz.elimination.exact import plan
from tightz.elimination.exact.planning import EliminationPlan
from tightz.elimination.exact.ways import Way, choose_way
from tightz.elimination.order import Orders
from tightz.errors import ResourceError, UnsupportedModelError
from tightz.models.factor_graph import FactorGraph
from tightz.models.kinds import kind_of
from tightz.models.observed import observe
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.reductions.barren import Barren
from tightz.reductions.encoding import SpinEncoding, encode
from tightz.reductions.preparation import prepare
from tightz.reductions.private import Private
from tightz.reductions.reduction import Chain
from tightz.runtime.backends import Backend, on_device
from tightz.runtime.clock import Clock
from tightz.runtime.cores import usable_cores
from tightz.runtime.gpu import why_no_device
from tightz.runtime.memory import MAX_MEMORY, parse_memory
from tightz.runtime.seeds import Seed, generator, seed_sequence, stream
from tightz.workspace.findings import Marginals, Mixing, Samples
from tightz.workspace.once import Once
from tightz.workspace.shared import Shared, factors_of
from tightz.workspace.symmetry import flips_of, symmetrise_marginals, symmetrise_states

if TYPE_CHECKING:  # loaded by the streams that use them: an exact sum needs none
    from tightz.judge.links import SpinLink
    from tightz.runtime.executors import Crew, Submits
    from tightz.workspace.workspace import Workspace

Sampler = Callable[..., Samples]

WARM_UP = 8.0
"""Seconds below which a GPU is not worth its start and its kernels."""

NARROW = 10
"""Components of up to 2^NARROW joint states are summed by themselves when exact is off."""

POOL_SHARE = 0.2
"""Part of the time left that the search for states may take."""

PLAN_SHARE = 0.05
"""Part of the time left that the search for an elimination order may take."""

LARGE = 20_000
"""Factors above which nothing waits for an elimination plan: it takes seconds there."""

UNSEEN = 4
"""Workers that an executor is believed to have before the first answers, for each thread here."""

DENSE_SWEEPS = 1000
"""Tempering sweeps on dense models: only tempering finds the modes; the share may cut it short."""


@dataclass(eq=False)
class Sampled:
    """What samplers said last of the working model; None: nothing yet.

    marginals   that a sampler stands for
    states      (S, variables) that are heavy, for starts
    """

    marginals: Marginals | None = None
    states: NDArray | None = None


@dataclass(eq=False)
class Succession:
    """Two streams that draw for one track of the ledger, one after the other.

    The ledger's proof takes the draws of a track in an order that does not depend on them, and
    which of two streams is ahead may: small weights may take longer to make. So once the second
    begins, the first begins no batch for the track any more, and what the second draws enters after
    all that the first had begun.
    """

    _begun: int = 0  # batches of the first that have not entered
    _taken: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """The first begins a batch; False where the track is the second's."""
        with self._lock:
            self._begun += not self._taken
            return not self._taken

    def entered(self) -> None:
        """A batch of the first has entered."""
        with self._lock:
            self._begun -= 1

    def leave(self) -> None:
        """The first has ended; what it had begun will not enter."""
        with self._lock:
            self._begun, self._taken = 0, True

    def take(self) -> bool:
        """The second has the track; whether its draws may enter yet."""
        with self._lock:
            self._taken = True
            return self._begun == 0


@dataclass(frozen=True, eq=False)
class Working:
    """What streams read. Nothing in it changes while they run: they answer by yielding findings.
    `sampled` alone is told: the driver puts there what samplers know of `graph`'s variables.

    Everything below is computed when it is first asked for, by whoever asks first, and kept:
    `graph` (the model reduced), its elimination `plan` and the exact `way` to go, its spin
    `encoding` and `link`, the `spins` with collapse and pool of states, the `flips` that leave it
    unchanged.
    """

    model: FactorGraph
    clock: Clock = field(default_factory=Clock)
    delta: float = 0.05
    seed: np.random.SeedSequence = field(default_factory=lambda: seed_sequence(None))
    exact: bool = True
    max_memory: int = field(default_factory=lambda: parse_memory(MAX_MEMORY))
    threads: int = field(default_factory=usable_cores)
    executor: Submits | None = None
    own_workers: bool = False  # the run's own: they start when something is handed out
    backend: Backend = "auto"
    marginals: bool = True  # False: not worth any time once log Z is exact
    crewed: threading.Event = field(default_factory=threading.Event)  # the executor answers
    alone: threading.Event = field(default_factory=threading.Event)  # it does not, or not any more
    sampled: Sampled = field(default_factory=lambda: Sampled())
    capped: Succession = field(default_factory=Succession)  # draws under caps: cores, then a device
    shared: Shared = field(default_factory=Shared)  # with runs on the same factors before and after
    _once: Once = field(default_factory=Once)

    @property
    def crew(self) -> Crew:
        """The executor's workers."""
        from tightz.runtime.executors import Crew

        made: Crew = self._once("crew", lambda: Crew(self.executor))
        return made

    @property
    def hands(self) -> int:
        """How many can work at the same time on what a stream hands out.

        It may change: rounds for 64 hands that two threads do take the whole time.
        """
        if self.executor is None or self.alone.is_set():
            return self.threads
        size = self.crew.size
        return size if self.crewed.is_set() else min(size, UNSEEN * self.threads)

    @property
    def uses_device(self) -> bool:
        """Whether there is a GPU, and time enough for it."""
        worthwhile = self.clock.left > WARM_UP
        return on_device(self.backend, why_no_device, worthwhile=worthwhile)

    @property
    def kind(self) -> str:
        """Of the model, as the registry of kernels knows kinds."""
        made: str = self._once("kind", lambda: kind_of(self.model))
        return made

    @property
    def inner_kind(self) -> str:
        """Of `graph`, where summing variables out has made another kind of it."""
        private = any(isinstance(step, Private) for step in self.reduction.steps)
        return kind_of(self.graph) if private else self.kind

    @property
    def reduction(self) -> Chain:
        """From the model to `graph`: evidence, zeros, barren variables, leaves, components."""
        made: Chain = self._once("reduction", lambda: prepare(self.model, log2_size=self._small))
        return made

    @property
    def is_reduced(self) -> bool:
        """Whether anybody has come to the end of that."""
        return self._once.made("reduction") is not None

    @property
    def _small(self) -> float:
        """log2 of the joint states of a component that is solved by itself."""
        return 16.0 if self.exact else float(NARROW)

    @property
    def graph(self) -> FactorGraph:
        """What the streams run on: the same log Z as `model`, perhaps fewer variables."""
        return self.reduction.reduced

    @property
    def plan(self) -> EliminationPlan | None:
        """How exact elimination would sum `graph`; None where it is too wide for any memory."""
        made: EliminationPlan | None = self._once("plan", self._make_plan)
        return made

    def _make_plan(self) -> EliminationPlan | None:
        return self.shared.plan(self.graph, self._find_plan)

    def _find_plan(self) -> EliminationPlan | None:
        try:
            seconds = PLAN_SHARE * self.clock.left
            return plan(self.graph, most_seconds=seconds, spread=_Spread(self))
        except ResourceError:
            return None

    @property
    def way(self) -> Way | None:
        """How `graph` would be summed exactly; None where no way is within reach."""
        made: Way | None = self._once("way", self._choose_way)
        return made

    def _choose_way(self) -> Way | None:
        reduced = observe(self.graph)
        try:
            return choose_way(
                reduced.reduced, reduced.kept, self.max_memory, marginals=False,
                backend=self.backend, time_limit=self.clock.left, plan=self.plan,
                hopeless=self.plan is None, predicted=self.shared.predicted,
            )  # fmt: skip
        except ResourceError:
            return None

    @property
    def orders(self) -> Orders:
        """Elimination orders of `graph`, the plan's among them."""
        made: Orders = self._once("orders", self._make_orders)
        return made

    def _make_orders(self) -> Orders:
        # On large models the search for a plan takes seconds, and none is found that is of use.
        known = self.exact and self.graph.n_factors <= LARGE
        found = self.plan if known else None
        return self.shared.with_orders(
            Orders(self.graph, None if found is None else found.variables)
        )

    @property
    def encoding(self) -> SpinEncoding:
        """`graph` as a polynomial of spins; UnsupportedModelError where it has none."""
        made: SpinEncoding = self._once("encoding", lambda: encode(self.graph, multivalued=True))
        return made

    @property
    def spins(self) -> Workspace:
        """The polynomial, collapsed, with a pool of states from tempering."""
        made: Workspace = self._once("spins", self._make_spins)
        return made

    def _make_spins(self) -> Workspace:
        from tightz.workspace.workspace import SHARED, Workspace

        return Workspace.build(
            self.encoding,
            seed=self.seed,
            collapse=SHARED,
            search_sweeps=self._sweeps(),
            time_limit=None if math.isinf(self.clock.left) else POOL_SHARE * self.clock.left,
            known=self.shared.states.get(factors_of(self.graph)),
        )

    def leave_states(self) -> None:
        """Let later runs on the same factors know the heavy states that were found here."""
        spins: Workspace | None = self._once.made("spins")
        pool = None if spins is None else spins.found_pool
        if pool is not None:
            self.shared.states[factors_of(self.graph)] = pool.states

    def _sweeps(self) -> int | None:
        """Of tempering: None for as many as the cost allows, 0 where no run would be of use."""
        from tightz.search.pool import least_cost

        if is_dense(self.encoding.polynomial):
            return DENSE_SWEEPS
        seconds, memory = least_cost(self.encoding.polynomial)
        late = seconds > POOL_SHARE * self.clock.left or memory > self.max_memory / 8
        return 0 if late else None

    @property
    def link(self) -> SpinLink:
        """How the encoding stands for `graph`, for the judge."""
        from tightz.families.evidence import link_of

        made: SpinLink = self._once("link", lambda: link_of(self.encoding))
        return made

    @property
    def flips(self) -> NDArray[np.uint8] | None:
        """Flips of `graph`'s variables that leave it unchanged; None where none are known."""
        made: NDArray[np.uint8] | None = self._once("flips", self._find_flips)
        return made

    def _find_flips(self) -> NDArray[np.uint8] | None:
        try:
            basis = flips_of(self.encoding)
        except UnsupportedModelError:
            return None
        return basis if basis is not None and basis.any() else None

    @property
    def with_barren(self) -> Chain | None:
        """The reduction without barren variables' removal, where exact marginals need it."""
        if all(step.lifts_exactly for step in self.reduction.steps if isinstance(step, Barren)):
            return None
        made: Chain = self._once(
            "with_barren", lambda: prepare(self.model, log2_size=self._small, barren=False)
        )
        return made

    def lift_marginals(self, found: Marginals) -> Marginals:
        """Marginals of `graph` as the model's; a known symmetry is used, not broken."""
        vectors = found.vectors
        if found.mixing is not Mixing.EXACT and self.flips is not None:
            vectors = symmetrise_marginals(vectors, self.flips)
        lifted = self.reduction.lift_marginals(vectors)
        if found.mixing is Mixing.EXACT and self.with_barren is not None:
            # counted from draws of the product of what is left: exact draws if nothing is
            status = Mixing.VARIATIONAL if self.graph.n_variables else Mixing.MIXED
            source = f"{found.source}, completed by draws"
            return Marginals(lifted, source, found.quality, status)
        return replace(found, vectors=lifted).rounded(8.0 * self.reduction.rounding)

    def lift_sampler(self, sampler: Sampler) -> Sampler:
        """A sampler of `graph`'s states as one of the model's, spread over known symmetries."""

        def sample(k: int, seed: Seed = None) -> Samples:
            drawn = sampler(k, seed)
            # Symmetrise first, on the reduced graph where the flips are known, then draw what was
            # summed out.
            states = drawn.states
            if self.flips is not None:
                states = symmetrise_states(states, self.flips, generator(stream(seed, 2)))
            return replace(drawn, states=self.reduction.lift_states(states, stream(seed, 1)))

        return sample


@dataclass(frozen=True, eq=False)
class _Spread:
    """Has pieces done at the same time and waits for them: for what must be there first."""

    working: Working

    @property
    def hands(self) -> int:
        return self.working.hands

    def __call__(self, function: Callable[[Any], Any], tasks: list[Any], /) -> list[Any]:
        from tightz.runtime.executors import map_ordered
        from tightz.runtime.parcels import ExecutorError

        try:
            if self.working.crewed.is_set():
                done = [self.working.crew.send(function, task) for task in tasks]
                return [one.result().value for one in done]
        except ExecutorError:
            pass  # the race will say so; threads do as well
        return list(map_ordered(function, tasks, threads=self.hands))


def is_dense(polynomial: SpinPolynomial) -> bool:
    """Pairwise with many couplings a spin, as in an RBM: no narrow structure to exploit."""
    return polynomial.degree <= 2 and polynomial.n_terms > 8 * polynomial.n


Method = Callable[[Working, Clock], Iterator[Any]]
"""A stream: it yields findings, bare bounds or a `Launch` about `working.graph`, until the clock
ends or it has nothing more to say."""


def name_of(method: Method) -> str:
    """What a stream is called in notes and in the registry of kernels."""
    return getattr(method, "__name__", type(method).__name__)


@dataclass(frozen=True)
class Planned:
    """A stream that plans its own time and gets at least `share` of all workers' time.

    The race measures what steps have brought; work that pays at its end (tables that cap draws)
    would be starved by streams that pay at once. proves: its bounds hold always, so it keeps its
    share where the confident interval is narrow already. beatable: the side of its bounds that ends
    it where they stay behind what is known.
    """

    method: Method
    share: float
    proves: bool = False
    beatable: Side | None = Side.UPPER

    @property
    def __name__(self) -> str:
        return self.method.__name__

    def __call__(self, working: Working, clock: Clock) -> Iterator[Any]:
        return self.method(working, clock)


def bare(method: Method) -> Method:
    """The stream itself, whatever was promised to it."""
    return bare(method.method) if isinstance(method, Planned) else method


class Launch(tuple[Method, ...]):
    """Yielded by a stream that wants other streams started beside it."""


@dataclass(frozen=True, eq=False)
class Handout:
    """Yielded by a stream with work that others can do: `results = yield Handout(function, tasks)`.

    Other threads take the tasks, or the workers of the run's executor: function, tasks and results
    must be picklable, a task should take a tenth of a second or more, and what it returns must
    depend on the task alone. Results are in the order of the tasks, whoever did them. The stream
    should keep the function: the same object travels once. `near`: not worth the way, for threads.

    keep: so many of the tasks handed out last may stay under way; the results are those of all
    earlier ones that were not given yet. A stream that hands out the next tasks before it asks for
    the last ones' results leaves nobody idle, and what it learns does not depend on who was fast.
    """

    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    near: bool = False
    keep: int = 0


class Underway:
    """Answers a stream's handouts; `start(function, task)` gives a call that ends with the result.

    With `partial` a task is done when its result is asked for, by whoever asks.
    """

    def __init__(self, start: Callable[..., Callable[[], Any]] = partial) -> None:
        self._start = start
        self._out: deque[Callable[[], Any]] = deque()

    def __call__(self, handout: Handout) -> list[Any]:
        """The results that are due."""
        self._out += [self._start(handout.function, task) for task in handout.tasks]
        return [self._out.popleft()() for _ in range(len(self._out) - handout.keep)]


def alone(steps: Generator[Any, Any, Any]) -> Generator[Any, None, Any]:
    """What a stream yields, its handouts done in this thread."""
    go_on, answer = partial(next, steps), Underway()
    while True:
        try:
            item = go_on()
        except StopIteration as end:
            return end.value
        if not isinstance(item, Handout):
            yield item
            go_on = partial(next, steps)
            continue
        try:
            go_on = partial(steps.send, answer(item))
        except Exception as error:
            go_on = partial(steps.throw, error)
