"""Independent draws from the model itself, wherever elimination is exact."""

from __future__ import annotations

import math

import numpy as np

from tightz.elimination.states import ENTRY_SECONDS, CliqueStates, uncut
from tightz.errors import ModelError, ResourceError, require_range, require_seconds
from tightz.models.formats.evidence import Evidence, given
from tightz.models.given import GraphOrPath, given_model
from tightz.models.prepared import prepared
from tightz.reductions.preparation import prepare
from tightz.runtime.clock import Clock
from tightz.runtime.memory import format_bytes, parse_memory
from tightz.runtime.seeds import Seed, generator
from tightz.workspace.findings import Mixing, Samples

_ROWS = 4096
"""States drawn side by side."""


@prepared("sample")
def sample(
    model: GraphOrPath,
    k: int,
    *,
    evidence: Evidence | None = None,
    seed: Seed = None,
    time_limit: float = 60.0,
    max_memory: str | int = "8GB",
) -> Samples:
    """k independent states (k, variables) from p, exact up to float64 rounding.

    One pass of elimination, then each variable is drawn given those drawn before it. Any number of
    states and zeros are allowed; `evidence` goes beside the model's own. Where elimination would
    need more than `max_memory`, or longer than about `time_limit` seconds, `ResourceError` says so.
    `log_weights` are all log Z, the ratio of p~ to what the states were drawn from.
    """
    model = given(given_model(model, "sample", only="FactorGraph"), evidence)
    require_range("k", k, 0)
    require_seconds("time_limit", time_limit)
    allowed = parse_memory(max_memory)
    clock = Clock(time_limit)
    chain = prepare(model, log2_size=-1.0)  # elimination draws small components as well
    reduced = chain.reduced
    rng = generator(seed)
    if reduced.n_variables:
        cliques, states = uncut(reduced, max_bytes=allowed, seconds=clock.left), None
        if cliques is not None:
            states = CliqueStates(
                reduced, cliques, maximise=False,
                stop=lambda entries: ENTRY_SECONDS * entries >= clock.left,
            )  # fmt: skip
        if states is None or states.stopped:
            raise ResourceError(
                f"drawing from {model!r} by elimination needs more than {format_bytes(allowed)} "
                f"or {time_limit:g} s; raise max_memory or time_limit, or draw weighted states by "
                "tz.log_partition(model).sample(k)"
            )
        log_z = states.value
        if log_z > -math.inf:
            parts = [states.draw(min(_ROWS, k - low), rng) for low in range(0, k, _ROWS)]
            drawn = np.concatenate([np.zeros((0, reduced.n_variables), np.int64), *parts])
    else:
        log_z = -math.inf if reduced.has_zeros else math.fsum(reduced.log_tables.tolist())
        drawn = np.zeros((k, 0), dtype=np.int64)
    if log_z == -math.inf:
        raise ModelError(f"every state of {model!r} has weight zero: there is nothing to draw")
    return Samples(chain.lift_states(drawn, rng), np.full(k, log_z), Mixing.EXACT)
