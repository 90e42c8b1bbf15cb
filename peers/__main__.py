"""`python -m peers [TASK ...]`: tightz beside its peers; `page` and `files` are other things to do.

Without a word all tasks run. Results go to out/peers.json; tasks that are not run keep theirs.
`page [JSON]` copies them to docs/peers.json and writes docs/comparison.md and its figure.
`files FOLDER ...` reads and solves every model file, cross-checked by the peers.
`planning` compares plans of contraction with cotengra's, on models of TIGHTZ_DATA.

Environment: PEERS_SECONDS (10) of CPU time for each run, PEERS_MEMORY (8) GiB, PEERS_ENGINES how
the names of the engines start that run (the others keep their rows), TIGHTZ_PEERS the interpreter
that has the peers (.venv-peers/bin/python), TIGHTZ_DATA for a few models more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from peers.settings import ENGINES
from peers.tasks import NAMES

OUT = Path("out/peers.json")


def main(words: list[str]) -> None:
    if words and words[0] in ("files", "page", "planning"):
        import importlib

        importlib.import_module(f"peers.{words[0]}").main(*words[1:])
        return
    unknown = [word for word in words if word not in NAMES]
    if unknown:
        sys.exit(f"no task named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    from peers import results

    for name in words or NAMES:
        old = json.loads(OUT.read_text()) if OUT.exists() else {}
        OUT.parent.mkdir(exist_ok=True)
        text = json.dumps(results.run([name], old, ENGINES), indent=1)
        OUT.write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
