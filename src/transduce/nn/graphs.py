"""CUDA graphs of the lanes' step: how a GPU decodes a batch without a word from the host.

In: idle `Lanes` on a CUDA device. Out: drivers that replay a captured step until the lanes are done.
It knows the step only as a function; the rule is step.py's. Three ways to repeat it:

    while      a conditional WHILE node by cuda.bindings: one launch decodes a batch
    native     the same by torch 2.14's own calls; tested by a recording fake alone, never chosen by itself
    unrolled   a few steps a replay, with a flag that is read one replay behind; for any driver

A capture holds addresses: of the lanes' tensors, of the head's weights, of temporaries in a pool of its
own. A driver keeps all of them alive, so a replay is safe for as long as the driver is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import torch
from torch import Tensor

from transduce.errors import DeviceError
from transduce.nn.cuda import (
    Bindings,
    CudaError,
    capturing,
    driver_version,
    load_bindings,
    prepare,
    repeat_while,
    side_stream,
)
from transduce.nn.step import Lanes, step, unfinished

__all__ = [
    "DriverChoice",
    "Unrolled",
    "Want",
    "Whole",
    "capture_native",
    "capture_unrolled",
    "capture_while",
    "choose",
    "while_graph",
]

STEPS_PER_REPLAY = 8
"""Steps that `unrolled` captures; at most twice as many run for nothing at the end."""

WHILE_DRIVER_VERSION = 12060
"""CUDA of the first driver trusted with WHILE nodes: 12.3 has them, several faults lasted until 12.6."""

Want = Literal["auto", "reference", "eager", "graph", "while", "unrolled", "native"]


# The choice


@dataclass(frozen=True, slots=True)
class DriverChoice:
    """Which driver runs, and why not a better one: what `transduce info` shows."""

    name: Literal["reference", "eager", "while", "unrolled", "native"]
    reason: str


def choose(device: torch.device, want: Want = "auto") -> DriverChoice:
    """The best driver that works on `device`, or the one asked for; "graph" is the best graph.

    Tries a small WHILE graph on a GPU. Raises DeviceError where a graph is asked for and cannot be.
    """
    if want in ("reference", "eager"):
        return DriverChoice(want, "asked for")
    if device.type == "cpu":
        if want != "auto":
            raise DeviceError(f"decoder {want!r} needs a CUDA device, not a CPU; use eager")
        return DriverChoice("eager", "a CPU looks at values for free; a graph would gain nothing")
    if want in ("unrolled", "native"):
        return DriverChoice(want, "asked for")
    obstacle = _while_obstacle(device)
    if obstacle is None:
        return DriverChoice("while", "the best there is: one launch a batch")
    if want == "while":
        raise DeviceError(f"decoder 'while' cannot run on {device}: {obstacle}; use graph or auto")
    return DriverChoice("unrolled", f"no WHILE node: {obstacle}")


def _while_obstacle(device: torch.device) -> str | None:
    """Why WHILE nodes cannot be used; None where a trial graph has just worked."""
    if torch.version.hip:
        return "ROCm has none"
    try:
        bindings = load_bindings()
    except ImportError as error:
        return f"cuda.bindings cannot be imported ({error}); pip install cuda-bindings"
    version = driver_version(bindings)
    if version < WHILE_DRIVER_VERSION:
        return f"the driver supports CUDA {_dotted(version)}, {_dotted(WHILE_DRIVER_VERSION)} is needed"
    try:
        _try_while(bindings, device)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, another driver decodes the same
        return f"a trial graph failed ({type(error).__name__}: {error})"
    return None


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _try_while(bindings: Bindings, device: torch.device) -> None:
    """Count from 3 to 0 in a WHILE node."""
    left = torch.ones((), dtype=torch.int64, device=device)
    flag = torch.ones((), dtype=torch.bool, device=device)

    def count_down() -> None:
        left.sub_(1)
        torch.gt(left, 0, out=flag)

    graph = while_graph(bindings, device, flag, lambda: None, count_down)
    left.fill_(3)
    flag.fill_(True)
    graph[0].replay()
    if int(left) != 0:
        raise CudaError(f"it should have counted from 3 to 0, and came to {int(left)}")


# The graphs


@dataclass(frozen=True, eq=False)
class Whole:
    """A graph that decodes until the lanes are done or their log is full."""

    lanes: Lanes
    graph: torch.cuda.CUDAGraph
    keep: tuple[object, ...]
    """What the graph points at besides the lanes."""

    def __call__(self, lanes: Lanes) -> None:
        assert lanes is self.lanes, "a graph replays on the tensors that it captured"
        self.graph.replay()


@dataclass(frozen=True, eq=False)
class Unrolled:
    """A graph of a few steps, replayed until a flag says stop. Steps beyond the end change nothing."""

    lanes: Lanes
    graph: torch.cuda.CUDAGraph
    flag: Tensor
    places: tuple[tuple[Tensor, torch.cuda.Event], ...]
    """Two pinned copies of the flag, each with the event after which it can be read."""

    def __call__(self, lanes: Lanes) -> None:
        assert lanes is self.lanes, "a graph replays on the tensors that it captured"
        behind: tuple[Tensor, torch.cuda.Event] | None = None
        for place in cycle(self.places):
            self.graph.replay()
            seen, arrived = place
            seen.copy_(self.flag, non_blocking=True)
            arrived.record()
            if behind is not None and not _read(*behind):
                return
            behind = place


def _read(seen: Tensor, arrived: torch.cuda.Event) -> bool:
    arrived.synchronize()
    return bool(seen)


def capture_while(lanes: Lanes) -> Whole:
    """One launch a batch, by a WHILE node of cuda.bindings. Raises CudaError, RuntimeError, ImportError."""
    flag = _flag(lanes.head.device)

    def look() -> None:
        flag.copy_(unfinished(lanes))

    def body() -> None:
        step(lanes)
        look()

    graph, *keep = while_graph(load_bindings(), lanes.head.device, flag, look, body)
    return Whole(lanes, graph, (flag, *keep))


def while_graph(
    bindings: Bindings,
    device: torch.device,
    flag: Tensor,
    before: Callable[[], None],
    body: Callable[[], None],
) -> tuple[torch.cuda.CUDAGraph, torch.cuda.MemPool, torch.cuda.Stream]:
    """A graph that runs `before`, then `body` while the flag holds; with what must live as long as it.

    Temporaries of the body come from a pool of their own: torch would take them from the ordinary one
    (a body counts as another capture) and hand the memory to others after it.
    """
    with torch.cuda.device(device):  # a pool belongs to the device that is current
        pool = torch.cuda.MemPool()
        outer, inner = side_stream(device), side_stream(device)

        def pooled() -> None:
            with torch.cuda.use_mem_pool(pool, device):
                body()

        prepare(bindings, device)
        _warm_up(outer, before)
        _warm_up(inner, pooled)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, outer):
            before()
            repeat_while(bindings, flag, pooled, inner)
        return graph, pool, inner


def capture_native(lanes: Lanes) -> Whole:
    """The same by torch's own WHILE capture (2.14 on), which no GPU has run yet."""
    flag = _flag(lanes.head.device)
    stream = side_stream(lanes.head.device)

    def body() -> None:
        step(lanes)
        flag.copy_(unfinished(lanes))

    _warm_up(stream, body)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(lanes.head.device), capturing(graph, stream):
        flag.copy_(unfinished(lanes))
        native: Any = graph  # the next three calls are torch 2.14's
        native.begin_capture_to_while_node(flag)
        body()
        native.set_conditional_handle_for_current_node(flag)
        native.end_capture_to_conditional_node()
    return Whole(lanes, graph, (flag,))


def capture_unrolled(lanes: Lanes) -> Unrolled:
    """A few steps a launch, on any driver. Raises RuntimeError where the capture fails."""
    flag = _flag(lanes.head.device)
    stream = side_stream(lanes.head.device)

    def body() -> None:
        for _ in range(STEPS_PER_REPLAY):
            step(lanes)
        # the replay after this one is under way before the flag is read
        flag.copy_(unfinished(lanes, spare_steps=2 * STEPS_PER_REPLAY))

    _warm_up(stream, body)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(lanes.head.device), capturing(graph, stream):
        body()
    return Unrolled(lanes, graph, flag, (_place(), _place()))


def _place() -> tuple[Tensor, torch.cuda.Event]:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return torch.zeros((), dtype=torch.bool).pin_memory(), event


def _flag(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=device)


def _warm_up(stream: torch.cuda.Stream, body: Callable[[], None]) -> None:
    """Run the body once before it is captured: loads its kernels, fills its pool, gives cuBLAS a workspace.

    Idle lanes stay what they are, but for the number of steps in their log, which every run begins at 0.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize(stream.device)
