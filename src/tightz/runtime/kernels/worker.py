"""A process that compiles kernels: a name and a signature a line in, a line out when it is kept.

It ends when its input does or at an empty line, after what it is compiling then, so that nothing
under way is lost when the process that asked ends. Interrupts are not for it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
import time
from typing import Any


def dispatcher_of(function: str) -> Any:
    """The kernel that a registry entry names."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def compile_kernel(function: str, signature: str) -> bool:
    """Compile, or load what is kept. Whether the file is there afterwards."""
    from tightz.runtime.kernels import registry, store
    from tightz.runtime.kernels.signatures import from_text

    dispatcher_of(function).compile(from_text(signature))
    return store.has(registry.file_name(function, signature))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is not an answer
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            if not line.strip():
                break
            job = json.loads(line)
            begun = time.process_time()
            try:
                answer: dict[str, Any] = {"kept": compile_kernel(job["function"], job["signature"])}
            except Exception as error:  # the asking process will meet it itself
                answer = {"kept": False, "error": f"{type(error).__name__}: {error}"}
            answer["seconds"] = time.process_time() - begun
            print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
