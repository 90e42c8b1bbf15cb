"""The command line: every command is a few lines over one public function."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from tightz.cli import exits


def entry() -> None:
    """The console script: leave at once, without waiting for a kernel that a time limit cut off."""
    code: str | int | None = 0
    exits.leave_at_once()
    from tightz.cli.main import main

    try:
        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # between two commands of click
        code = exits.interrupt_code()
    if threading.active_count() == 1:
        sys.exit(code)
    with contextlib.suppress(OSError, ValueError):  # a closed or full stdout was reported already
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)
