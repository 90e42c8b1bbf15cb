"""Passes on an NVIDIA GPU: CUDA C++ compiled when first used, through NVIDIA's Python bindings.

cuda-bindings comes with numba-cuda, so the `gpu` extra needs nothing more; numba itself cannot be
told which of a thread's numbers to keep in registers.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.elimination.gpu.lowering import FUSED, Header, Lowered
from tightz.elimination.gpu.machine import Range
from tightz.elimination.gpu.program import BITS
from tightz.errors import ResourceError

THREADS = 256
_BLOCKS_A_PROCESSOR = 8


class _Locals(ctypes.Structure):
    """As in `kernels.cu`."""

    _fields_ = (
        ("source", ctypes.c_longlong * BITS),
        ("target", ctypes.c_longlong * BITS),
        ("loaded", ctypes.c_int),
        ("stored", ctypes.c_int),
        ("lanes_read", ctypes.c_int),
        ("lanes_written", ctypes.c_int),
    )


class _Kernels(NamedTuple):
    fused: Any
    fused_lanes: Any
    joined: Any
    gather: Any
    processors: int


class CudaMachine:
    """`entries` doubles in device memory; see `machine.Machine`."""

    def __init__(self, entries: int) -> None:
        _enter()
        self._kernels = kernels()
        self._memory = _allocate(8 * entries)
        self._held = [self._memory]
        self._starts: list[int] = []
        self._passes: list[tuple[int, Header]] = []

    def load(self, passes: list[Lowered]) -> None:
        """All words in one copy, all coefficients in another."""
        driver = _driver()
        for buffer in self._held[1:]:
            _checked(driver.cuMemFree(buffer))
        self._held = [self._memory]  # an allocation that fails leaves the others to `close`
        words = np.concatenate([one.words for one in passes] or [np.zeros(1, np.int64)])
        edges = np.cumsum([0, *(one.words.size for one in passes)]).tolist()
        self._words = _allocate(words.nbytes)
        self._range = _allocate(16)
        self._places, self._found = _allocate(8 << 13), _allocate(8 << 13)
        self._held = [self._memory, self._words, self._range, self._places, self._found]
        _upload(self._words, words)
        self._starts = edges
        self._passes = [
            (one.kind, Header(*one.words[: len(Header._fields)].tolist())) for one in passes
        ]
        self._locals = [
            _locals(one, head) for one, (_, head) in zip(passes, self._passes, strict=True)
        ]
        if passes:
            first = passes[0].coefficients_at
            last = passes[-1].coefficients_at + passes[-1].coefficients.size
            flat = np.zeros(last - first)
            for one in passes:
                at = one.coefficients_at - first
                flat[at : at + one.coefficients.size] = one.coefficients
            _upload(self._memory + 8 * first, flat)

    def run(self, k: int, scale: float) -> Range:
        kind, head = self._passes[k]
        kernel = self._kernels.joined
        shared = 8 * head.rows
        if kind == FUSED:
            lanes = head.lanes_read or head.lanes_written
            kernel = self._kernels.fused_lanes if lanes else self._kernels.fused
            shared += 8 * (head.n_coefficients + head.small)
        found = np.array([np.inf, 0.0])
        _upload(self._range, found)
        blocks = min(head.outer, _BLOCKS_A_PROCESSOR * self._kernels.processors)
        words = self._words + 8 * self._starts[k]
        values = [_pointer(self._memory), _pointer(words), ctypes.c_double(scale)]
        values.append(_pointer(self._range))
        if kind == FUSED:
            values.append(self._locals[k])
        _launch(kernel, blocks, shared, values)
        _download(found, self._range)
        return Range(*found.tolist())

    def gather(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        flat = np.ascontiguousarray(places.ravel())
        out = np.empty(flat.size)
        for low in range(0, flat.size, 1 << 13):
            part = flat[low : low + (1 << 13)]
            _upload(self._places, part)
            values = [_pointer(x) for x in (self._memory, self._places, self._found)]
            blocks = -(-part.size // THREADS)
            _launch(self._kernels.gather, blocks, 0, [*values, ctypes.c_int(part.size)])
            _download(out[low : low + part.size], self._found)
        return out.reshape(places.shape)

    def read(self, start: int, size: int) -> NDArray[np.float64]:
        out = np.empty(size)
        _download(out, self._memory + 8 * start)
        return out

    def write(self, start: int, values: NDArray[np.float64]) -> None:
        _upload(self._memory + 8 * start, np.ascontiguousarray(values))

    def close(self) -> None:
        for buffer in self._held:
            _checked(_driver().cuMemFree(buffer))
        self._held = []


def free_bytes() -> int:
    """Device memory that is free now."""
    _enter()
    return int(_checked(_driver().cuMemGetInfo())[0])


@cache
def kernels() -> _Kernels:
    """The kernels, compiled for this device; a few seconds the first time."""
    from cuda.bindings import nvrtc

    driver = _driver()
    device = _enter()
    attribute = driver.CUdevice_attribute
    major, minor, processors = (
        int(_checked(driver.cuDeviceGetAttribute(name, device)))
        for name in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
    )
    module = _checked(driver.cuModuleLoadData(_compiled(nvrtc, f"sm_{major}{minor}")))
    functions = {
        name: _checked(driver.cuModuleGetFunction(module, name.encode()))
        for name in ("fused", "fused_lanes", "joined", "gather")
    }
    return _Kernels(**functions, processors=processors)


def _compiled(nvrtc: Any, architecture: str) -> bytes:
    source = files(__package__).joinpath("kernels.cu").read_bytes()
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], []))
    options = [f"-DBITS={BITS}".encode(), f"--gpu-architecture={architecture}".encode()]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if int(status) != 0:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = " ".join(log.decode().split())
        raise ResourceError(f"the kernels do not compile for {architecture}: {text}")
    cubin = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@cache
def _primary() -> tuple[Any, Any]:
    """The device, and its primary context, which numba and others share."""
    driver = _driver()
    _checked(driver.cuInit(0))
    device = _checked(driver.cuDeviceGet(0))
    return device, _checked(driver.cuDevicePrimaryCtxRetain(device))


def _enter() -> Any:
    """The device, its context being this thread's from here on."""
    device, context = _primary()
    _checked(_driver().cuCtxSetCurrent(context))
    return device


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the bindings returned, or an error."""
    if int(result[0]) != 0:
        raise ResourceError(f"the GPU answered {result[0]!s}; backend='cpu' does without it")
    return result[1] if len(result) == 2 else result[1:]


def _allocate(size: int) -> int:
    return int(_checked(_driver().cuMemAlloc(max(size, 8))))


def _upload(to: int, values: NDArray) -> None:
    _checked(_driver().cuMemcpyHtoD(to, values.ctypes.data, values.nbytes))


def _download(values: NDArray, start: int) -> None:
    _checked(_driver().cuMemcpyDtoH(values.ctypes.data, start, values.nbytes))


def _locals(one: Lowered, head: Header) -> _Locals:
    out = _Locals(
        loaded=head.loaded,
        stored=head.stored,
        lanes_read=head.lanes_read,
        lanes_written=head.lanes_written,
    )
    if one.kind == FUSED:
        strides = one.words[head.locals : head.locals + 2 * BITS].tolist()
        out.source[:], out.target[:] = strides[:BITS], strides[BITS:]
    return out


_pointer = ctypes.c_void_p


def _launch(kernel: Any, blocks: int, shared: int, values: list[Any]) -> None:
    """`values` are ctypes objects, one per parameter of the kernel."""
    places = np.array([ctypes.addressof(value) for value in values], dtype=np.uint64)
    _checked(
        _driver().cuLaunchKernel(
            kernel, blocks, 1, 1, THREADS, 1, 1, shared, 0, places.ctypes.data, 0
        )
    )
