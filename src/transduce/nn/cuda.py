"""WHILE nodes in torch's CUDA graphs, by the driver API of cuda.bindings 12.x and 13.x.

In: a flag on the device and what to repeat while it is true. Out: nodes in the graph that torch is
capturing. It knows no lanes. Only the driver API is used: the bindings' own CUDA runtime may be newer
than the driver (error 35), and the driver serves torch's streams as well. Every return code is
checked. Signatures were read from cuda-bindings 12.8, 13.0 and 13.5; docs/decoding.md says what has run.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Bindings",
    "CudaError",
    "capturing",
    "driver_version",
    "load_bindings",
    "prepare",
    "repeat_while",
    "side_stream",
]

SET_CONDITIONAL = b"""
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(unsigned long long, unsigned int);
extern "C" __global__ void set_conditional(unsigned long long handle, const bool *flag) {
    cudaGraphSetConditional(handle, *flag);
}
"""
"""The only kernel of ours: it tells a conditional node whether to run (again)."""


class CudaError(RuntimeError):
    """A call of the CUDA driver or of NVRTC did not succeed."""


@dataclass(frozen=True)
class Bindings:
    """The modules `cuda.bindings.driver` and `cuda.bindings.nvrtc`."""

    driver: ModuleType
    nvrtc: ModuleType

    def cuda(self, name: str, *arguments: Any) -> Any:
        """Call a driver function; its results without the return code (None, one, or a tuple)."""
        return _checked(self.driver, name, arguments)

    def compiler(self, name: str, *arguments: Any) -> Any:
        """Call an NVRTC function, likewise."""
        return _checked(self.nvrtc, name, arguments)


def _checked(module: ModuleType, name: str, arguments: tuple[Any, ...]) -> Any:
    code, *results = getattr(module, name)(*arguments)
    if int(code) != 0:
        raise CudaError(f"{name} returned {int(code)} ({getattr(code, 'name', code)})")
    return results[0] if len(results) == 1 else tuple(results) or None


def load_bindings() -> Bindings:
    """Raises ImportError where cuda.bindings is not installed."""
    from cuda.bindings import driver, nvrtc

    return Bindings(driver, nvrtc)


def driver_version(bindings: Bindings) -> int:
    """The CUDA version that the driver supports, as 1000 * major + 10 * minor; 0 without a driver."""
    try:
        return int(bindings.cuda("cuDriverGetVersion"))
    except RuntimeError:  # CudaError, or the bindings' own where libcuda cannot be loaded
        return 0


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture into `graph` on a side stream. An error inside ends the capture and is the one raised.

    `torch.cuda.graph` would hide it behind the error of ending a capture that is no longer valid.
    """
    torch.cuda.synchronize(stream.device)
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of its own on `device`, whichever device is current."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def prepare(bindings: Bindings, device: torch.device) -> None:
    """Compile and load our kernel for the current device: not allowed while a capture is under way."""
    _kernel(bindings, device)


def repeat_while(
    bindings: Bindings, flag: Tensor, body: Callable[[], None], stream: torch.cuda.Stream
) -> None:
    """Add a node to the capture under way that runs `body` while `flag` (bool `[]`) is true.

    The flag is read on entry too. `body` is called once, on `stream`, which must have no other work;
    it must set the flag and must not allocate from the graph's own pool (docs/decoding.md).
    """
    outer = torch.cuda.current_stream(stream.device)
    graph, _, _ = _capture(bindings, outer)
    context = bindings.cuda("cuCtxGetCurrent")
    handle = bindings.cuda("cuGraphConditionalHandleCreate", graph, context, 0, 0)
    _launch_set(bindings, handle, flag, outer)
    body_graph = _add_while_node(bindings, handle, context, outer)
    with _capturing_to(bindings, body_graph, stream):
        body()
        _launch_set(bindings, handle, flag, stream)


def _capture(bindings: Bindings, stream: torch.cuda.Stream) -> tuple[Any, list[Any], list[Any] | None]:
    """The graph a stream captures into, the nodes its next one will wait for, and (13.x) their edges."""
    status, _, graph, nodes, *edges, _ = bindings.cuda("cuStreamGetCaptureInfo", stream.cuda_stream)
    if status != bindings.driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise CudaError(f"the stream is not capturing: {status}")
    return graph, nodes, edges[0] if edges else None


def _add_while_node(bindings: Bindings, handle: Any, context: Any, stream: torch.cuda.Stream) -> Any:
    """Append an empty WHILE node to the stream's capture; the graph of its body."""
    driver = bindings.driver
    graph, nodes, edges = _capture(bindings, stream)
    has_edges = edges is not None  # 13.x takes edge data beside every list of nodes
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    before = (nodes, edges) if has_edges else (nodes,)
    node = bindings.cuda("cuGraphAddNode", graph, *before, len(nodes), params)
    replace = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    after = ([node], None) if has_edges else ([node],)
    bindings.cuda("cuStreamUpdateCaptureDependencies", stream.cuda_stream, *after, 1, int(replace))
    return params.conditional.phGraph_out[0]


@contextmanager
def _capturing_to(bindings: Bindings, graph: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture torch's work into an existing graph; an error inside is the one raised."""
    mode = bindings.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    bindings.cuda("cuStreamBeginCaptureToGraph", stream.cuda_stream, graph, None, None, 0, mode)
    try:
        with torch.cuda.stream(stream):
            yield
    except BaseException:
        with suppress(RuntimeError):
            bindings.cuda("cuStreamEndCapture", stream.cuda_stream)
        raise
    bindings.cuda("cuStreamEndCapture", stream.cuda_stream)


def _launch_set(bindings: Bindings, handle: Any, flag: Tensor, stream: torch.cuda.Stream) -> None:
    """One thread sets the condition of `handle` to the flag."""
    kernel = _kernel(bindings, flag.device)
    parameters = ((int(handle), flag.data_ptr()), (ctypes.c_ulonglong, ctypes.c_void_p))
    bindings.cuda("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream.cuda_stream, parameters, 0)


@cache
def _kernel(bindings: Bindings, device: torch.device) -> Any:
    """Our kernel, compiled once a device and never unloaded: graphs keep using it.

    Machine code for the real architecture, because an older driver refuses newer PTX (error 222).
    """
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    options = [f"--gpu-architecture={architecture}".encode()]
    program = bindings.compiler("nvrtcCreateProgram", SET_CONDITIONAL, b"set_conditional.cu", 0, [], [])
    try:
        bindings.compiler("nvrtcCompileProgram", program, len(options), options)
        cubin = b" " * bindings.compiler("nvrtcGetCUBINSize", program)
        bindings.compiler("nvrtcGetCUBIN", program, cubin)
    finally:
        bindings.compiler("nvrtcDestroyProgram", program)
    module = bindings.cuda("cuModuleLoadData", cubin)
    return bindings.cuda("cuModuleGetFunction", module, b"set_conditional")
