"""`python -m benchmarks [NAME ...]`: run the named benchmark modules, or all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    known = sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name[0] != "_"
    )
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in names or known:
        print(f"\n== {name} ==", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
