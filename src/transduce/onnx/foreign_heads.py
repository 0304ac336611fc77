"""Predictors and joints of other tools' files as heads of our loop.

In: opened files. Out: loop heads. Two kinds exist: a decoder and a joint of their own, whose output
and states are carried on; and one file for both, which steps the predictor on the last label before
it scores, so that the last label and the state before it are carried. Logits are made fp32.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import UnsupportedModelError
from transduce.onnx.builder import FLOAT, FLOAT16, INT32, INT64, Graph, Value
from transduce.onnx.foreign import ForeignModel, Port
from transduce.onnx.loop import Advance, State
from transduce.onnx.session import Session

__all__ = ["FusedHead", "SplitHead"]

LAST_AXES = (-1, 3)
"""The class axis of logits `[B, T, 1, C]`."""


class SplitHead:
    """A decoder `label, h, c -> output, h, c` and a joint `frames, output -> logits`.

    States: the decoder's output as the joint takes it `[B, H, 1]`, then its own `[layers, B, H]`.
    """

    def __init__(self, decoder: ForeignModel, joint: ForeignModel, blank: int) -> None:
        self.predicted, *new_states = decoder.floats("outputs")
        self.predictor = _Predictor(decoder, decoder.floats("inputs"), new_states)
        frames, self.output, *_ = joint.floats("inputs", 2)
        self.scorer = _Scorer(joint, frames, _before_softmax(joint))
        self.decoder, self.joint = decoder, joint
        self.start_values = self._first_step(blank)
        """Output and states after a blank on zero states, of one lane."""
        self.is_row = self.start_values[0].shape[1] == 1  # [B, 1, H], and the joint takes [B, H, 1]

    def project(self, graph: Graph, encoded: Value) -> Value:
        return self.scorer.project(graph, encoded)

    def start(self, graph: Graph, encoded: Value) -> list[State]:
        output, *states = self.start_values
        output = output.reshape(1, -1, 1)
        batch = graph.size(encoded, 0)
        return [
            State(_lanes(graph, output, batch, 0), self.predicted.element),
            *(
                State(_lanes(graph, state, batch, 1), port.element)
                for state, port in zip(states, self.predictor.states, strict=True)
            ),
        ]

    def step(self, body: Graph, frames: Value, states: Sequence[Value]) -> tuple[Value, Advance]:
        feeds = {self.output.name: states[0], **self.scorer.feeds(body, frames)}
        (logits,) = self.joint.inline(body, feeds, [self.scorer.logits])
        return _plain(body, self.joint, logits), lambda graph, label, found: self._advance(
            graph, label, found, states
        )

    def _advance(self, body: Graph, label: Value, found: Value, states: Sequence[Value]) -> list[Value]:
        feeds = self.predictor.feeds(body, label, states[1:])
        wanted = [self.predicted.name, *(port.name for port in self.predictor.new_states)]
        output, *stepped = self.decoder.inline(body, feeds, wanted)
        if self.is_row:
            output = body.op("Transpose", output, perm=[0, 2, 1])
        kept = body.op("Where", body.unsqueeze(found, 2), output, states[0])
        return [kept, *_kept(body, found, stepped, states[1:])]

    def _first_step(self, blank: int) -> list[npt.NDArray[Any]]:
        graph = Graph(self.decoder.opset)
        label = graph.constant(np.full((1, 1), blank, np.int64), "blank")
        feeds = self.predictor.feeds(
            graph, label, [graph.constant(zero, "zero") for zero in self.predictor.zeros]
        )
        wanted = [self.predicted, *self.predictor.new_states]
        values = self.decoder.inline(graph, feeds, [port.name for port in wanted])
        for index, (value, port) in enumerate(zip(values, wanted, strict=True)):
            graph.add_output(value, port.element, None, f"value{index}")
        return _run(graph, self.decoder, {})


class FusedHead:
    """A `frames, label, h, c -> logits, h, c` that steps its predictor on the last label, then scores.

    States: the last label `[B, 1]`, and h and c `[layers, B, H]` before it.
    """

    def __init__(self, model: ForeignModel, blank: int) -> None:
        frames, *states = model.floats("inputs")
        self.predictor = _Predictor(model, states, model.floats("outputs")[1:])
        self.model = model
        self.blank = blank
        self.scorer = _Scorer(model, frames, _before_softmax(model))

    def project(self, graph: Graph, encoded: Value) -> Value:
        return self.scorer.project(graph, encoded)

    def start(self, graph: Graph, encoded: Value) -> list[State]:
        batch = graph.size(encoded, 0)
        label = _lanes(graph, np.full((1, 1), self.blank, np.int64), batch, 0)
        states = zip(self.predictor.zeros, self.predictor.states, strict=True)
        return [
            State(label, INT64),
            *(State(_lanes(graph, zero, batch, 1), port.element) for zero, port in states),
        ]

    def step(self, body: Graph, frames: Value, states: Sequence[Value]) -> tuple[Value, Advance]:
        last, *before = states
        feeds = {**self.predictor.feeds(body, last, before), **self.scorer.feeds(body, frames)}
        wanted = [self.scorer.logits, *(port.name for port in self.predictor.new_states)]
        logits, *after = self.model.inline(body, feeds, wanted)

        def advance(graph: Graph, label: Value, found: Value) -> list[Value]:
            return [graph.op("Where", found, label, last), *_kept(graph, found, after, before)]

        return _plain(body, self.model, logits), advance


class _Predictor:
    """The inputs and states of a decoder."""

    def __init__(self, model: ForeignModel, states: Sequence[Port], new_states: Sequence[Port]) -> None:
        self.label, *self.lengths = model.integers("inputs")
        self.states = states
        self.new_states = new_states[: len(states)]
        self.zeros = [
            np.zeros((model.size(port, 0), 1, model.size(port, 2)), _DTYPES[port.element]) for port in states
        ]
        if len(self.new_states) < len(states) or not states:
            raise UnsupportedModelError(
                f"{model.path}: takes {len(states)} states and gives {len(new_states)}; docs/onnx.md lists "
                "what is read"
            )

    def feeds(self, graph: Graph, label: Value, states: Sequence[Value]) -> dict[str, Value]:
        """Labels `[B, 1]` int64 and states, and a length of 1 for every lane."""
        feeds = {port.name: state for port, state in zip(self.states, states, strict=True)}
        feeds[self.label.name] = graph.cast(label, self.label.element)
        for port in self.lengths:
            shape = graph.op("Shape", graph.squeeze(label, 1))
            feeds[port.name] = graph.op("Expand", graph.constant(np.array(1, _DTYPES[port.element])), shape)
        return feeds


class _Scorer:
    """The file that scores frames: how much of it needs the frames alone."""

    def __init__(self, model: ForeignModel, frames: Port, logits: str) -> None:
        self.model = model
        self.frames = frames
        self.logits = logits
        self.width = model.size(frames, 1)
        self.boundary, self.tail = self._find_boundary()

    def project(self, graph: Graph, encoded: Value) -> Value:
        """`[B, T, D]` to what the rest of the file needs of every frame `[B, T, J]`."""
        if self.boundary is None:
            return encoded
        (value,) = self._projected(graph, graph.op("Transpose", encoded, perm=[0, 2, 1]))
        return graph.cast(graph.op("Reshape", value, graph.ints(0, 0, -1)), FLOAT)

    def feeds(self, body: Graph, frames: Value) -> dict[str, Value]:
        """The window `[B, W, J]` as the file takes it."""
        frames = body.cast(frames, self.frames.element)
        if self.boundary is None:
            return {self.frames.name: body.op("Transpose", frames, perm=[0, 2, 1])}
        return {self.boundary: body.op("Reshape", frames, body.ints(0, 0, *self.tail))}

    def _projected(self, graph: Graph, frames: Value) -> list[Value]:
        assert self.boundary is not None
        frames = graph.cast(frames, self.frames.element)
        return self.model.inline(graph, {self.frames.name: frames}, [self.boundary])

    def _find_boundary(self) -> tuple[str | None, Sequence[int]]:
        """The one value between frames and the rest, if it has a row for every frame; and a row's shape."""
        names = self.model.boundary(self.frames.name, [self.logits])
        if len(names) != 1 or names[0] == self.frames.name:
            return None, ()
        self.boundary = names[0]
        shapes = [self._shape_of_boundary(num_frames) for num_frames in (2, 3)]
        is_by_frame = [shape[:2] for shape in shapes] == [(1, 2), (1, 3)] and shapes[0][2:] == shapes[1][2:]
        return (names[0], shapes[0][2:]) if is_by_frame else (None, ())

    def _shape_of_boundary(self, num_frames: int) -> tuple[int, ...]:
        graph = Graph(self.model.opset)
        frames = graph.add_input("frames", FLOAT, None)
        (value,) = self._projected(graph, frames)
        graph.add_output(value, self.frames.element, None, "value")
        return _run(graph, self.model, {"frames": np.zeros((1, self.width, num_frames), np.float32)})[0].shape


_DTYPES: Mapping[int, type[np.generic]] = {
    FLOAT: np.float32,
    FLOAT16: np.float16,
    INT32: np.int32,
    INT64: np.int64,
}


def _before_softmax(model: ForeignModel) -> str:
    """The logits: a softmax at the end would only cost time, and its rounding can tie two labels."""
    name = model.floats("outputs")[0].name
    last = model.producer(name)
    if last is None or last.op_type != "LogSoftmax":
        return name
    axis = next((attribute.i for attribute in last.attribute if attribute.name == "axis"), -1)
    return str(last.input[0]) if axis in LAST_AXES else name


def _plain(body: Graph, model: ForeignModel, logits: Value) -> Value:
    """`[B, W, 1, C]` or `[B, W, C]` as fp32 `[B, W, C]`."""
    port = model.floats("outputs")[0]
    logits = body.cast(logits, FLOAT)
    return body.squeeze(logits, 2) if len(port.shape) == 4 else logits


def _lanes(graph: Graph, value: npt.NDArray[Any], batch: Value, axis: int) -> Value:
    """A value of one lane for all of them."""
    shape = [graph.ints(size) for size in value.shape]
    shape[axis] = batch
    return graph.op("Expand", graph.constant(value, "start"), graph.concat(shape, 0))


def _kept(body: Graph, found: Value, new: Sequence[Value], old: Sequence[Value]) -> list[Value]:
    """States `[layers, B, H]`: new ones for lanes with a label."""
    found = body.unsqueeze(found, 0)  # [1, B, 1]
    return [body.op("Where", found, *pair) for pair in zip(new, old, strict=True)]


def _run(graph: Graph, model: ForeignModel, feeds: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    names = [output.name for output in graph.outputs]
    session = Session.open(graph.model("probe").SerializeToString(), str(model.path), device="cpu", threads=1)
    return session.run(names, feeds)
