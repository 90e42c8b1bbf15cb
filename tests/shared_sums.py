"""Sums over blocks of two threads that ask for their shared array at the same time."""

from __future__ import annotations

import time

import numpy as np

from tightz.runtime.gpu.device import cuda


@cuda.jit
def total(out):
    shared = cuda.shared.array(2, np.float64)
    shared[cuda.threadIdx.x] = out[0]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[1] = shared[0] + shared[1]


def slow_sums():
    """Of two threads with 3, 5 and 7 each, where making an array takes long."""

    def slow(*arguments):
        time.sleep(0.01)
        return made(*arguments)

    found = []
    for value in (3.0, 5.0, 7.0):
        out = cuda.to_device(np.array([value, 0.0]))
        made, np.empty = np.empty, slow
        try:
            total[1, 2](out)
        finally:
            np.empty = made
        found.append(float(out.copy_to_host()[1]))
    return found
