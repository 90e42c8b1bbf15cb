"""The CUDA device: whether there is one, and what all its users share."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, wraps
from pathlib import PurePath
from typing import Any, TypeVar, cast

NO_DEVICE = (
    "no CUDA device or driver was found; `nvidia-smi` should list a GPU, and "
    "pip install 'tightz[gpu]' brings the compiler"
)


_ASKING = threading.Lock()


class Turns:
    """A lock that is handed on in the order in which it was asked for; its holder may ask again.

    Python's own goes to whoever is quickest, which is the thread that has just let go of it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: deque[tuple[int, threading.Lock]] = deque()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self._holder in (None, me):
                self._holder, self._depth = me, self._depth + 1
                return
            place = me, threading.Lock()
            place[1].acquire()
            self._line.append(place)
        try:
            place[1].acquire()  # opened by who leaves, and then it is ours
        except BaseException:  # Ctrl-C: nobody may wait for us
            with self._mutex:
                waiting = place in self._line
                if waiting:
                    self._line.remove(place)
            if not waiting:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            self._holder = None
            if self._line:
                self._holder, gate = self._line.popleft()
                self._depth = 1
                gate.release()

    def give_way(self) -> None:
        """In the middle of something long: let all go first who have asked by now."""
        if not self._line:
            return
        with self._mutex:
            depth, self._depth = self._depth, 1
        self.__exit__()
        self.__enter__()
        with self._mutex:
            self._depth = depth


DEVICE = Turns()

Call = TypeVar("Call", bound=Callable[..., Any])


def alone(function: Call) -> Call:
    """One thread at a time on the device: what numba keeps about it (memory to let go, modules
    loaded) is not made for several. Streams take turns by the call; what takes longer than a few
    hundredths of a second calls `DEVICE.give_way()` between its launches.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with DEVICE:
            return function(*args, **options)

    return cast(Call, call)


def why_no_device(simulator: bool = True) -> str:
    """Empty where a CUDA device is usable, else the reason with its remedy."""
    # One at a time: while one thread starts the driver, numba tells a second one that it runs.
    with _ASKING:
        return _why_no_device(simulator)


@cache
def _why_no_device(simulator: bool) -> str:
    from numba.core import config

    # Importing numba.cuda takes half a second: not worth it to learn that there is no GPU.
    if not config.ENABLE_CUDASIM and not _has_driver():  # type: ignore[attr-defined]
        return NO_DEVICE
    try:
        from tightz.runtime.gpu.device import SIMULATED, cuda

        if SIMULATED:
            return "" if simulator else "NUMBA_ENABLE_CUDASIM is set: there is only a simulator"
        return "" if cuda.is_available() else NO_DEVICE
    except ImportError as error:
        return f"{error}; pip install 'tightz[gpu]'"
    except Exception as error:  # whatever the driver says: without it there is the CPU
        return f"{type(error).__name__}: {error}; {NO_DEVICE}"


def _has_driver() -> bool:
    """Whether the driver's library loads and counts a device, asked where numba.cuda asks.

    With CUDA_VISIBLE_DEVICES empty, or in a container without a GPU, the library is there alone.
    """
    driver = _driver()
    if driver is None or driver.cuInit(0) != 0:
        return False
    count = ctypes.c_int(0)
    return driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def _driver() -> Any:
    names, folders = ["libcuda.so", "libcuda.so.1"], ["/usr/lib", "/usr/lib64"]
    if sys.platform == "win32":
        names, folders = ["nvcuda.dll"], ["\\windows\\system32"]
    elif sys.platform == "darwin":
        names, folders = ["libcuda.dylib"], ["/usr/local/cuda/lib"]
    for path in [*names, *(str(PurePath(folder, name)) for folder in folders for name in names)]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None
