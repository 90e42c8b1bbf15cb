"""Runs a function of a test module under the CUDA simulator, in a process of its own.

NUMBA_DISABLE_JIT lets the simulated threads run the Python source of kernels that the CPU shares.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys


def simulated(call: str, module: str, folder) -> object:
    """The value of `call`, an expression in the names of `module`, computed on the fake device."""
    program = (
        f"import pickle, sys\nfrom {module} import *\npickle.dump({call}, open(sys.argv[1], 'wb'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(folder / "out.pkl")],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with open(folder / "out.pkl", "rb") as file:
        return pickle.load(file)
