"""Many launches as one: recorded once, then sent to the device by a single call.

numba takes tens of microseconds for a launch, the driver two for one of a recorded graph. Beside
busy threads every launch waits for the interpreter, a graph once: 6,000 launches took seconds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

from tightz.runtime.gpu.device import SIMULATED, cuda
from tightz.runtime.switching import LAUNCHES, switching


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
    """`work(stream)` launches kernels and does nothing else; what it launches must not change.

    `kernels`: names of those. Nothing can be compiled while it is recorded, so the first time that
    this process needs one of them it is run as it is.
    """

    _compiled: ClassVar[set[Hashable]] = set()

    def __init__(
        self, work: Callable[[Any], None], stream: Any, kernels: Iterable[Hashable]
    ) -> None:
        self._work, self._stream, self._kernels = work, stream, set(kernels)
        self._graph: Any = None

    def play(self) -> None:
        """Run it and wait."""
        if SIMULATED or not self._kernels <= self._compiled:
            self._launch()
        else:
            from cuda.bindings import driver

            if self._graph is None:
                self._graph = self._recorded()
            _checked(driver.cuGraphLaunch(self._graph, int(self._stream.handle)))
        wait(self._stream)
        self._compiled.update(self._kernels)

    def _launch(self) -> None:
        with switching(LAUNCHES):
            self._work(self._stream)

    def _recorded(self) -> Any:
        from cuda.bindings import driver

        handle = int(self._stream.handle)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        _checked(driver.cuStreamBeginCapture(handle, mode))
        try:
            self._launch()
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
