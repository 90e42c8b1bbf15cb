"""What a `log_partition` run keeps in its store, and what a resumed one starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tightz.bounds import Bound, Proof
from tightz.errors import StoreError
from tightz.interval.board import BETS, Board
from tightz.interval.interval import LogPartition
from tightz.models.factor_graph import FactorGraph
from tightz.paper.stored import model_shape, seed_record
from tightz.runtime.seeds import stream
from tightz.runtime.store import Answer, RunReader, RunStore, RunWriter
from tightz.sampling.ledger import Ledger
from tightz.workspace.findings import Marginals, Mixing, PointEstimate
from tightz.workspace.working import Method

SESSION = 2**31 + 1
"""Key of a resumed session's random streams; levels never reach it."""


class IntervalSession:
    """One session of a stored interval.

    Proven ends are facts about the model and carry over as they are. The certificate is one for
    all sessions: its ledger is stored, and a later session goes on betting with the wealth that it
    finds, on random streams of its own, so that all confident ends of the run, however many
    sessions it takes, hold together with probability 1 - delta.
    """

    def __init__(self, writer: RunWriter, delta: float) -> None:
        self.writer = writer
        with RunReader(writer.path) as reader:
            self.bounds: list[Bound] = reader.bounds()
            self.answer: Answer | None = reader.answer()
            stored = reader.accounts()
        self.ledger = Ledger.from_records(delta, stored.values())
        self._written = {n: a.drawn for n, a in zip(stored, self.ledger.accounts, strict=True)}

    @classmethod
    def open(
        cls,
        store: RunStore,
        model: FactorGraph,
        root: np.random.SeedSequence,
        *,
        resume: bool,
        delta: float,
        exact: bool,
        methods: Sequence[Method],
        time_limit: float,
        max_memory: int,
    ) -> IntervalSession:
        """Limits of time and memory belong to the session; the rest must be the stored run's."""
        names = [method.__name__ for method in methods]
        writer = store.open(
            {
                "kind": "log_partition",
                "model_sha256": model.digest,
                "seed": seed_record(root),
                "parameters": {"delta": delta, "exact": exact, "methods": names},
            },
            {"n": model.n_variables, "shape": model_shape(model), **model.naming.record()},
            resume=resume,
            options={"time_limit": time_limit, "max_memory": max_memory},
        )
        return cls(writer, delta)

    @property
    def before(self) -> float:
        """Seconds that earlier sessions worked."""
        return self.writer.before

    def keep_ledger(self, ledger: Ledger) -> None:
        """Write down the accounts that have grown."""
        numbers = [*self._written]
        # damage may have left gaps: a number is never given twice
        first = 1 + max(numbers, default=0)
        numbers += range(first, first + len(ledger.accounts) - len(numbers))
        accounts = dict(zip(numbers, ledger.accounts, strict=True))
        news = {n: a for n, a in accounts.items() if a.drawn != self._written.get(n)}
        if news:
            self.writer.write_accounts({n: a.record() for n, a in news.items()})
            self._written |= {n: a.drawn for n, a in news.items()}

    def seed(self, root: np.random.SeedSequence) -> np.random.SeedSequence:
        """This session's random streams: fresh ones after the first."""
        return root if self.writer.session == 1 else stream(root, SESSION, self.writer.session)

    def prepare(self, board: Board) -> None:
        """Lay out what earlier sessions concluded, and say what is resumed."""
        board.notes.extend(self.writer.lost)
        if self.writer.session > 1:
            drawn = sum(account.drawn for account in self.ledger.accounts)
            board.notes.append(
                f"session {self.writer.session}: {len(self.bounds)} bounds of the first "
                f"{self.before:.1f} s taken over, the certificate goes on from {drawn:,} draws; "
                "searches and trees start anew"
            )
        # Facts about the same model (its digest was compared): they hold whatever this session
        # does.
        board.recall([b for b in self.bounds if self._goes_on(b)])
        board.read()
        if self.answer is None:
            return
        # Ends that hold always go on; those with confidence were their own session's.
        board.earlier = self.answer.always
        told = self.answer.record
        if self.answer.marginals is not None:
            board.marginals = Marginals(
                self.answer.marginals,
                str(told["marginal_source"]),
                float(told["marginal_quality"]),
                Mixing[str(told["marginal_status"])],
            )
        # Of estimates only a sampler's is evidence by itself, independent of this session's; the
        # middle of an interval is known from the interval.
        if told["estimate_error"] != "inf" and str(told["estimate_family"]).startswith("ais"):
            error = float(told["estimate_error"])
            board.estimates["earlier"] = PointEstimate(
                float(told["estimate"]), error, "earlier sessions", "earlier"
            )

    def _goes_on(self, bound: Bound) -> bool:
        """Whether a bound of an earlier session is part of what this one says.

        Proven ones are. Of certificates the ledger's are, since its wealth goes on; one that a
        stream made by itself was its session's.
        """
        return bound.proof is Proof.DETERMINISTIC or bound.why == BETS

    @property
    def lacks_marginals(self) -> bool:
        """Whether an exact answer is stored whose marginals were never reached."""
        exact = bool(self.bounds) and self.bounds[-1].log_z > -math.inf
        return exact and (self.answer is None or self.answer.marginals is None)

    def conclude(
        self, result: LogPartition, marginals: Marginals | None, family: str
    ) -> LogPartition:
        """Write down the answer and end the session; the result says so where that failed."""
        try:
            if result.store_error is None:
                self._write(result, marginals, family)
                return result
            error = result.store_error
        except StoreError as trouble:
            error = trouble
            note = f"the answer is not in its store: {error}"
            result = replace(result, store_error=error, failures=[*result.failures, note],
                             notes=[*result.notes, note])  # fmt: skip
        with suppress(StoreError):
            self.writer.finish(f"failed: {error}")
        return result

    def _write(self, result: LogPartition, marginals: Marginals | None, family: str) -> None:
        for note in result.notes:
            if note not in self.writer.lost:
                self.writer.append_note(note)
        self.writer.append_answer(
            {
                "lower": result.lower,
                "upper": result.upper,
                "confident": {
                    "lower": result.confident.lower,
                    "upper": result.confident.upper,
                    "confidence": result.confident.confidence,
                },
                "estimate": result.estimate,
                "estimate_error": result.estimate_error,
                "estimate_source": result.estimate_source,
                "estimate_family": family,
                "marginal_source": result.marginal_source,
                "marginal_quality": -math.inf if marginals is None else marginals.quality,
                "marginal_status": "" if marginals is None else marginals.mixing.name,
            },
            result.marginals,
            ends=result._marginal_ends(),
        )
        self.writer.finish("interrupted" if result.interrupted else "finished")
