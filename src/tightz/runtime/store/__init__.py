"""The run store: one SQLite file per run, append-only, readable while the run goes on.

Reading (reports, progress views):

    with RunReader("run.db") as run:
        run.meta() -> RunMeta          kind ("log_partition", "estimate", "theorem"), model_sha256,
                                       seed, parameters, n, levels, trials, restarts, statuses,
                                       shape, detail, versions, created
        run.progress() -> (done, total) trials; total is 0 for a log_partition run
        run.trials() -> TrialColumns   levels, trials, ranks, sweeps, statuses; log_gammas (k, J)
        run.table() -> (L, T, J)       log gammas by level and trial; NaN where not computed
        run.bounds() -> list[Bound]    in order of arrival, seconds cumulative over sessions
        run.moments() -> Iterator      (batch, spin moments, pair moments) packed, in order of batch
        run.answer() -> Answer | None  estimate, marginals, spread, marginal_source: latest session
        run.accounts() -> dict         the certificate's draws by account: (numbers by name, points)
        run.marginals() -> list of probability vectors | None
        run.sessions() -> list[Session]
        run.notes() -> list[str]
        run.seconds() -> float         work so far, all sessions together
        run.verify() -> list[str]      what is damaged, empty when the file is sound

Writing: `RunStore(path).open(identity, description, resume=...)` gives a `RunWriter`; its
`append_batch`, `append_bound`, `write_accounts`, `append_note` and `finish` each commit on their
own. Nothing is ever changed but accounts, which count on.
`tightz.paper.stored.read_estimate(path)` turns a stored table into an `Estimate`.
"""

from __future__ import annotations

from tightz.errors import StoreError
from tightz.runtime.store.reader import RunReader
from tightz.runtime.store.records import Answer, BatchRow, RunMeta, Session, TrialColumns
from tightz.runtime.store.writer import RunStore, RunWriter

__all__ = [
    "Answer",
    "BatchRow",
    "RunMeta",
    "RunReader",
    "RunStore",
    "RunWriter",
    "Session",
    "StoreError",
    "TrialColumns",
]
