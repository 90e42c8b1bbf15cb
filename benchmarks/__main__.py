"""`python -m benchmarks [NAME [ARGUMENT ...] ...]`: the named benchmark modules, or all of them.

Words that name no benchmark are arguments of the one before them, where it takes any.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    known = sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name[0] != "_"
    )
    chosen: list[tuple[str, list[str]]] = []
    for word in names or known:
        if word in known:
            chosen.append((word, []))
        elif chosen:
            chosen[-1][1].append(word)
        else:
            sys.exit(f"no benchmark named {word}; there are {', '.join(known)}")
    for name, words in chosen:
        run = importlib.import_module(f"benchmarks.{name}").main
        if words and not inspect.signature(run).parameters:
            sys.exit(f"no benchmark named {', '.join(words)}; there are {', '.join(known)}")
        print(f"\n== {name} ==", flush=True)
        run(*words)


if __name__ == "__main__":
    main(sys.argv[1:])
