"""A CUDA device that runs on the CPU: records what is captured, and replays exactly that.

In: nothing; `FakeCuda(version).install(monkeypatch)` puts fakes of `torch.cuda` and `cuda.bindings`
(driver API and NVRTC, in the signatures of 12.x or 13.x) in place. Out: graph drivers that run, a list of
all calls, and faults where they would be on a device:

- Work captured is a list of torch operations with the very tensors they had; a replay runs them again into
  the same memory, and asserts that no address has moved. Temporaries are filled with garbage first, as a
  pool would that gives their memory to others.
- While a stream captures, everything that waits for the device, or whose shape depends on data, is refused.
- Every driver call checks the order it is made in, and can be told to fail.
"""

import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORBIDDEN = {
    "_local_scalar_dense", "item", "nonzero", "equal", "masked_select", "unique", "_unique2", "index.Tensor",
    "index_put", "index_put_", "_index_put_impl_", "is_nonzero", "bincount", "repeat_interleave.Tensor",
}  # fmt: skip
"""Operations that wait for the device, or whose result's shape depends on data (boolean masks)."""


def is_forbidden(operation: Any) -> bool:
    packet, overload = operation._schema.name.split("::")[1], operation._schema.overload_name
    return packet in FORBIDDEN or f"{packet}.{overload}" in FORBIDDEN


# What a graph holds


@dataclass(eq=False)
class Graph:
    nodes: list[Any] = field(default_factory=list)


def _storage(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins; packed weights do not tell, and nobody changes them."""
    return 0 if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


@dataclass(eq=False)
class Operation:
    """A torch operation with its tensors and their addresses at capture."""

    call: Any
    args: Any
    kwargs: Any
    results: list[torch.Tensor]

    def __post_init__(self) -> None:
        self.inputs = [
            leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        self.addresses = self._addresses()
        given = {_storage(leaf) for leaf in self.inputs}
        self.fresh = [_storage(result) not in given for result in self.results]

    def _addresses(self) -> list[tuple[int, int]]:
        tensors = (*self.inputs, *self.results)
        return [(_storage(tensor), 0 if tensor.is_mkldnn else tensor.data_ptr()) for tensor in tensors]

    def poison(self) -> None:
        for result, fresh in zip(self.results, self.fresh, strict=True):
            if fresh:
                result.fill_(True if result.dtype == torch.bool else -77)

    def run(self, device: "FakeCuda") -> None:
        assert self._addresses() == self.addresses, f"a tensor of {self.call} has moved since the capture"
        results = tree_leaves(self.call(*self.args, **self.kwargs))
        for recorded, new, fresh in zip(self.results, results, self.fresh, strict=True):
            if fresh:
                assert recorded.shape == new.shape
                recorded.copy_(new)


@dataclass(eq=False)
class SetConditional:
    """Our kernel: reads the flag from memory when it runs."""

    handle: int
    address: int

    def run(self, device: "FakeCuda") -> None:
        device.conditions[self.handle] = bool(ctypes.c_bool.from_address(self.address).value)


@dataclass(eq=False)
class While:
    handle: int
    body: Graph

    def run(self, device: "FakeCuda") -> None:
        for _ in range(100_000):
            if not device.conditions[self.handle]:
                return
            device.num_iterations += 1
            device.run(self.body)
        raise AssertionError("a WHILE node does not end")


# The device


class Recorder(TorchDispatchMode):
    """Routes what torch does to the graph that the current stream captures into."""

    def __init__(self, device: "FakeCuda") -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_forbidden(func):
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        graph = self.device.captures.get(self.device.stream.cuda_stream)
        if graph is None:
            raise RuntimeError(f"{func} runs on a stream that is not capturing, while another one is")
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        operation = Operation(func, args, kwargs or {}, tensors)
        if graph in self.device.bodies and any(operation.fresh):
            assert self.device.pools, f"the body of a node allocates ({func}) without a pool of its own"
        graph.nodes.append(operation)
        return result


class Stream:
    def __init__(self, owner: "FakeCuda", device: Any, number: int) -> None:
        self.owner, self.device, self.cuda_stream = owner, device, number

    def wait_stream(self, other: "Stream") -> None:
        self.owner.refuse_in_capture("wait_stream")


class FakeCuda:
    """State of the device, and what was called on it."""

    def __init__(self, version: int = 13000, *, fail: str | None = None) -> None:
        """`fail` names a driver, NVRTC or torch call that does not succeed from now on."""
        self.version, self.fail = version, fail
        self.calls: list[str] = []
        self.captures: dict[int, Graph] = {}  # stream -> what it captures into
        self.bodies: set[Graph] = set()
        self.pools: list[object] = []
        self.warm: set[int] = set()  # streams on which something has run
        self.conditions: dict[int, bool] = {}
        self.num_iterations = self.num_replays = self.num_streams = 0
        self.stream = Stream(self, torch.device("cpu"), 0)
        self.recorder = Recorder(self)

    def refuse_in_capture(self, what: str) -> None:
        if self.captures:
            raise RuntimeError(f"{what} is not permitted when a stream is capturing")

    def new_stream(self, where: Any) -> Stream:
        self.num_streams += 1
        return Stream(self, where, self.num_streams)

    @contextmanager
    def on_stream(self, new: Stream) -> Iterator[None]:
        before, self.stream = self.stream, new
        try:
            yield
        finally:
            self.stream = before
            if not self.captures:
                self.warm.add(new.cuda_stream)

    @contextmanager
    def in_pool(self, pool: object, where: Any) -> Iterator[None]:
        self.pools.append(pool)
        try:
            yield
        finally:
            self.pools.pop()

    def begin(self, stream: int, graph: Graph) -> None:
        assert stream != 0, "the default stream cannot be captured"
        assert stream in self.warm, "nothing ran on this stream before: cuBLAS has no workspace for it"
        assert stream not in self.captures
        if not self.captures:
            self.recorder.__enter__()
        self.captures[stream] = graph

    def end(self, stream: int) -> Graph:
        graph = self.captures.pop(stream)
        if not self.captures:
            self.recorder.__exit__(None, None, None)
        return graph

    def run(self, graph: Graph) -> None:
        for node in graph.nodes:
            if isinstance(node, Operation):
                node.poison()
        for node in graph.nodes:
            node.run(self)

    def leaks(self) -> list[str]:
        """What is still under way: nothing, once an error has been dealt with."""
        counts = Counter(self.calls)
        programs = counts["nvrtcCreateProgram:ok"] - counts["nvrtcDestroyProgram"]
        return [
            *(f"stream {stream} captures" for stream in self.captures),
            *(["a pool is in use"] if self.pools else []),
            *([f"{programs} NVRTC programs"] if programs else []),
            *([] if self.stream.cuda_stream == 0 else ["a side stream is current"]),
        ]

    def install(self, patch: pytest.MonkeyPatch) -> "FakeCuda":
        for name, value in _torch_cuda(self).items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        driver, nvrtc = (_module(self, name, calls) for name, calls in _bindings(self).items())
        package = ModuleType("cuda.bindings")
        package.driver, package.nvrtc = driver, nvrtc  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "cuda", ModuleType("cuda"))
        patch.setitem(sys.modules, "cuda.bindings", package)
        return self


# torch.cuda


class CUDAGraph:
    """`torch.cuda.CUDAGraph`, of the device that a subclass names."""

    device: FakeCuda

    def capture_begin(self, capture_error_mode: str) -> None:
        self.device.calls.append("capture_begin")
        assert capture_error_mode == "thread_local"
        self.graph, self.stream = Graph(), self.device.stream.cuda_stream
        self.device.begin(self.stream, self.graph)
        if self.device.fail == "capture_begin":
            self.device.end(self.stream)
            raise RuntimeError("capture_begin failed")

    def capture_end(self) -> None:
        self.device.calls.append("capture_end")
        assert len(self.device.captures) <= 1, "a body's capture is still under way"
        self.device.end(self.stream)
        if self.device.fail == "capture_end":
            raise RuntimeError("capture_end failed")

    def replay(self) -> None:
        self.device.refuse_in_capture("replay")
        self.device.num_replays += 1
        self.device.run(self.graph)

    # torch 2.14

    def begin_capture_to_while_node(self, flag: torch.Tensor) -> None:
        self.device.calls.append("begin_capture_to_while_node")
        assert (flag.shape, flag.dtype) == ((), torch.bool)
        handle, self.outer = len(self.device.conditions), self.device.captures[self.stream]
        self.device.conditions[handle] = False
        self.node = While(handle, Graph())
        self.outer.nodes += [SetConditional(handle, flag.data_ptr()), self.node]
        self.device.captures[self.stream] = self.node.body

    def set_conditional_handle_for_current_node(self, flag: torch.Tensor) -> None:
        self.device.calls.append("set_conditional_handle_for_current_node")
        self.node.body.nodes.append(SetConditional(self.node.handle, flag.data_ptr()))

    def end_capture_to_conditional_node(self) -> None:
        self.device.calls.append("end_capture_to_conditional_node")
        self.device.captures[self.stream] = self.outer


class Event:
    """`torch.cuda.Event`, of the device that a subclass names."""

    device: FakeCuda
    recorded = False

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded
        self.device.refuse_in_capture("synchronize")


def _torch_cuda(device: FakeCuda) -> dict[str, Any]:
    return {
        "CUDAGraph": type("CUDAGraph", (CUDAGraph,), {"device": device}),
        "Event": type("Event", (Event,), {"device": device}),
        "MemPool": type("MemPool", (), {}),
        "Stream": device.new_stream,
        "current_stream": lambda where=None: device.stream,
        "device": lambda where: nullcontext(),
        "get_device_capability": lambda where: (9, 0),
        "stream": device.on_stream,
        "synchronize": lambda where=None: device.refuse_in_capture("synchronize"),
        "use_mem_pool": device.in_pool,
    }


# cuda.bindings


class Code(IntEnum):
    """CUresult and nvrtcResult."""

    SUCCESS = 0
    INVALID_VALUE = 1


def _module(device: FakeCuda, name: str, calls: dict[str, Any]) -> ModuleType:
    """A module whose functions note that they were called, and fail when they are told to."""
    module = ModuleType(f"cuda.bindings.{name}")
    for called, value in calls.items():
        is_call = called.startswith(("cu", "nvrtc"))  # types and enumerations start with CU
        setattr(module, called, _noted(device, called, value) if is_call else value)
    return module


def _noted(device: FakeCuda, name: str, function: Any) -> Any:
    def call(*args: Any) -> tuple[Any, ...]:
        device.calls.append(name)
        if device.fail == name:
            if name == "cuStreamEndCapture":  # a capture that cannot be ended well is over all the same
                function(*args)
            return (Code.INVALID_VALUE, None)
        result = function(*args)
        device.calls.append(f"{name}:ok")
        return (Code.SUCCESS, *result)

    return call


def _bindings(device: FakeCuda) -> dict[str, dict[str, Any]]:
    return {
        "driver": _driver_13(device) if device.version >= 13000 else _driver_12(device),
        "nvrtc": _nvrtc(device),
    }


def _driver_12(device: FakeCuda) -> dict[str, Any]:
    """As cuda-bindings 12.8: no edge data beside nodes."""
    shared = _Driver(device)
    return shared.names() | {
        "cuStreamGetCaptureInfo": lambda stream: shared.capture_info(stream),
        "cuGraphAddNode": lambda graph, nodes, num, params: shared.add_node(graph, nodes, num, params),
        "cuStreamUpdateCaptureDependencies": lambda stream, nodes, num, flags: shared.update(
            stream, nodes, num, flags
        ),
    }


def _driver_13(device: FakeCuda) -> dict[str, Any]:
    """As cuda-bindings 13.0: a list of edge data, or None, after every list of nodes."""
    shared = _Driver(device)

    def info(stream: int) -> tuple[Any, ...]:
        status, number, graph, nodes, num = shared.capture_info(stream)
        return status, number, graph, nodes, [SimpleNamespace(edge=True) for _ in nodes], num

    def add(graph: Graph, nodes: Any, edges: Any, num: int, params: Any) -> tuple[Any, ...]:
        assert edges is None or len(edges) == num
        return shared.add_node(graph, nodes, num, params)

    def update(stream: int, nodes: Any, edges: Any, num: int, flags: int) -> tuple[Any, ...]:
        assert edges is None or len(edges) == num
        return shared.update(stream, nodes, num, flags)

    return shared.names() | {
        "cuStreamGetCaptureInfo": info,
        "cuGraphAddNode": add,
        "cuStreamUpdateCaptureDependencies": update,
    }


class _Driver:
    """The driver API as far as WHILE nodes need it."""

    ACTIVE, CONDITIONAL, WHILE, SET, THREAD_LOCAL = 1, 13, 1, 1, 1

    def __init__(self, device: FakeCuda) -> None:
        self.device = device

    def names(self) -> dict[str, Any]:
        return {
            "CUstreamCaptureStatus": SimpleNamespace(CU_STREAM_CAPTURE_STATUS_ACTIVE=self.ACTIVE),
            "CUgraphNodeType": SimpleNamespace(CU_GRAPH_NODE_TYPE_CONDITIONAL=self.CONDITIONAL),
            "CUgraphConditionalNodeType": SimpleNamespace(CU_GRAPH_COND_TYPE_WHILE=self.WHILE),
            "CUstreamUpdateCaptureDependencies_flags": SimpleNamespace(
                CU_STREAM_SET_CAPTURE_DEPENDENCIES=self.SET
            ),
            "CUstreamCaptureMode": SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=self.THREAD_LOCAL),
            "CUgraphNodeParams": lambda: SimpleNamespace(
                type=None, conditional=SimpleNamespace(phGraph_out=[None])
            ),
            "cuDriverGetVersion": lambda: (self.device.version,),
            "cuCtxGetCurrent": lambda: ("context",),
            "cuModuleLoadData": self.load,
            "cuModuleGetFunction": self.function,
            "cuGraphConditionalHandleCreate": self.handle,
            "cuStreamBeginCaptureToGraph": self.begin,
            "cuStreamEndCapture": lambda stream: (self.device.end(stream),),
            "cuLaunchKernel": self.launch,
        }

    def load(self, image: bytes) -> tuple[str]:
        self.device.refuse_in_capture("cuModuleLoadData")
        assert image.startswith(b" ")
        return ("module",)

    def function(self, module: str, name: bytes) -> tuple[str]:
        assert (module, name) == ("module", b"set_conditional")
        return ("kernel",)

    def capture_info(self, stream: int) -> tuple[Any, ...]:
        graph = self.device.captures.get(stream)
        if graph is None:
            return 0, 0, None, [], 0
        return self.ACTIVE, 7, graph, graph.nodes[-1:], len(graph.nodes[-1:])

    def handle(self, graph: Graph, context: str, default: int, flags: int) -> tuple[int]:
        assert (context, default, flags) == ("context", 0, 0)
        assert graph in self.device.captures.values()
        handle = 100 + len(self.device.conditions)
        self.device.conditions[handle] = False
        return (handle,)

    def add_node(self, graph: Graph, nodes: list[Any], num: int, params: Any) -> tuple[While]:
        assert nodes == graph.nodes[-1:], "the node must wait for all before it"
        assert len(nodes) == num
        assert isinstance(nodes[0], SetConditional), "the condition is set before the node is reached"
        wanted = params.conditional
        assert (params.type, wanted.type, wanted.size) == (self.CONDITIONAL, self.WHILE, 1)
        assert wanted.ctx == "context"
        node = While(wanted.handle, Graph())
        graph.nodes.append(node)
        self.device.bodies.add(node.body)
        wanted.phGraph_out = [node.body]
        return (node,)

    def update(self, stream: int, nodes: list[While], num: int, flags: int) -> tuple[()]:
        assert (len(nodes), num, flags) == (1, 1, self.SET)
        assert self.device.captures[stream].nodes[-1:] == nodes
        return ()

    def begin(self, stream: int, graph: Graph, nodes: None, edges: None, num: int, mode: int) -> tuple[()]:
        assert (nodes, edges, num, mode) == (None, None, 0, self.THREAD_LOCAL)
        self.device.begin(stream, graph)
        return ()

    def launch(self, kernel: str, *rest: Any) -> tuple[()]:
        *grid, shared_bytes, stream, parameters, extra = rest
        assert (kernel, grid, shared_bytes, extra) == ("kernel", [1] * 6, 0, 0)
        values, types = parameters
        assert types == (ctypes.c_ulonglong, ctypes.c_void_p)
        self.device.captures[stream].nodes.append(SetConditional(*values))
        return ()


def _nvrtc(device: FakeCuda) -> dict[str, Any]:
    def create(source: bytes, name: bytes, num: int, headers: list[bytes], names: list[bytes]) -> tuple[str]:
        device.refuse_in_capture("nvrtcCreateProgram")
        assert b"cudaGraphSetConditional(handle, *flag)" in source
        return ("program",)

    def compile_program(program: str, num: int, options: list[bytes]) -> tuple[()]:
        assert (num, options) == (1, [b"--gpu-architecture=sm_90"])
        return ()

    return {
        "nvrtcCreateProgram": create,
        "nvrtcCompileProgram": compile_program,
        "nvrtcGetCUBINSize": lambda program: (8,),
        "nvrtcGetCUBIN": lambda program, buffer: (),
        "nvrtcDestroyProgram": lambda program: (),
    }
