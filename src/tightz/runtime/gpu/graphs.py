"""Many launches as one: recorded once, then sent to the device by a single call.

numba takes tens of microseconds for a launch, the driver two for one of a recorded graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tightz.runtime.gpu.device import SIMULATED, cuda

OFTEN = 2
"""The time from which it is recorded, which takes as long as playing it. The first is needed to
compile kernels. Beside busy threads every launch waits for the interpreter, a graph once."""


def own_stream() -> Any:
    """A stream that waits for no other, so that launches elsewhere do not disturb a recording."""
    if SIMULATED:
        return 0
    from cuda.bindings import driver

    cuda.current_context()
    flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    handle = int(_checked(driver.cuStreamCreate(flag)))
    stream = cuda.external_stream(handle)
    weakref.finalize(stream, driver.cuStreamDestroy, handle).atexit = False
    return stream


def wait(stream: Any) -> None:
    """Until all that was asked of the stream is done."""
    if not SIMULATED:
        stream.synchronize()


class Recording:
    """`work(stream)` launches kernels and does nothing else; what it launches must not change."""

    def __init__(self, work: Callable[[Any], None], stream: Any) -> None:
        self._work, self._stream = work, stream
        self._graph: Any = None
        self._played = 0

    def play(self) -> None:
        """Run it and wait. The first time as it is: kernels are compiled."""
        self._played += 1
        if SIMULATED:
            self._work(self._stream)
            return
        if self._graph is None and self._played == OFTEN:
            self._graph = self._recorded()
        if self._graph is None:
            self._work(self._stream)
        else:
            from cuda.bindings import driver

            _checked(driver.cuGraphLaunch(self._graph, int(self._stream.handle)))
        wait(self._stream)

    def _recorded(self) -> Any:
        from cuda.bindings import driver

        handle = int(self._stream.handle)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked(driver.cuStreamBeginCapture(handle, mode))
        try:
            self._work(self._stream)
        finally:
            graph = _checked(driver.cuStreamEndCapture(handle))
        try:
            made = _checked(driver.cuGraphInstantiate(graph, 0))
            weakref.finalize(self, driver.cuGraphExecDestroy, made).atexit = False
            return made
        finally:
            _checked(driver.cuGraphDestroy(graph))


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if int(status):
        raise RuntimeError(f"the CUDA driver answered {status}")
    return values[0] if values else None
