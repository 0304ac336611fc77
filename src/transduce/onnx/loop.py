"""The decoding rule as one ONNX `Loop`: asynchronous lanes with a windowed joint (docs/decoding.md).

In: encoder frames `[B, T, D]`, their lengths `[B]`, a head. Out: what every lane emitted, as padded
arrays. Each lane is one utterance at its own frame. A step evaluates the joint on the next `window`
frames of every lane, follows blanks to the first label, emits it and runs the predictor; lanes that
found no label move past the window. It equals `transduce.greedy` label for label, and knows neither
encoders nor files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from transduce.onnx.builder import BOOL, FLOAT, INT64, Graph, Value
from transduce.onnx.emissions import Emissions, Packing
from transduce.types import HeadSpec

__all__ = ["Advance", "LoopHead", "State", "default_window", "transducer"]

WINDOWS = ((256, 8), (4096, 4))
"""Window by the most classes it is good for; 1 beyond."""


def default_window(spec: HeadSpec) -> int:
    """Frames that one step looks at. A wide window saves steps, but evaluates frames again after every
    label, which a large vocabulary makes dear (measured: docs/onnx.md)."""
    return next((window for most, window in WINDOWS if spec.num_classes <= most), 1)


Advance: TypeAlias = Callable[[Graph, Value, Value], Sequence[Value]]
"""From labels `[B, 1]` and which lanes found one `[B, 1]` to the next states; the others keep theirs."""


@dataclass(frozen=True, slots=True)
class State:
    """What a head carries from step to step: its value before the first label."""

    start: Value
    element: int


class LoopHead(Protocol):
    """A prediction network and a joint, as operators."""

    def project(self, graph: Graph, encoded: Value) -> Value:
        """What the joint reads of every frame, computed once: `[B, T, D]` to `[B, T, J]`."""
        ...

    def start(self, graph: Graph, encoded: Value) -> Sequence[State]:
        """The states of all lanes before any label."""
        ...

    def step(self, body: Graph, frames: Value, states: Sequence[Value]) -> tuple[Value, Advance]:
        """Logits `[B, W, C + N]` of frames `[B, W, J]`, and how the states go on from here."""
        ...


def transducer(
    graph: Graph, head: LoopHead, spec: HeadSpec, encoded: Value, lengths: Value, window: int
) -> Emissions:
    """Add the decoding of `[B, T, D]` fp32 frames with lengths `[B]` int64 to a graph."""
    with graph.scope("decoder"):
        frames = head.project(graph, encoded)
        first = _first_rows(graph, frames)
        end = graph.op("Add", first, graph.unsqueeze(lengths, 1))
        rows = _one_table(graph, frames, num_spare=window + max(spec.durations))
        states = head.start(graph, encoded)
        body = _Step(graph, head, spec, window, rows, end).build([state.element for state in states])
        place = graph.op("Mul", first, graph.integer(spec.max_symbols))
        starts = [place, *(state.start for state in states)]
        _, scans = graph.loop(body, starts, num_scans=len(body.outputs) - 1 - len(starts))
        return _compact(graph, spec.blank, first, scans)


def _first_rows(graph: Graph, frames: Value) -> Value:
    """Where each lane starts `[B, 1]` when the lanes' frames lie one after another."""
    lanes = graph.arange(graph.scalar_size(frames, 0))
    return graph.unsqueeze(graph.op("Mul", lanes, graph.scalar_size(frames, 1)), 1)


def _one_table(graph: Graph, frames: Value, num_spare: int) -> Value:
    """All lanes' frames `[B, T, J]` one after another, and spare rows that a last window may look at."""
    table = graph.op("Reshape", frames, graph.concat([graph.ints(-1), graph.size(frames, 2)], 0))
    shape = graph.concat([graph.ints(num_spare), graph.size(frames, 2)], 0)
    return graph.concat([table, graph.op("Expand", graph.number(0.0), shape)], 0)


class _Step:
    """The body of the loop. Lanes are columns `[B, 1]`; times are rows of the one table of frames.

    A lane's whole position is one number, its place: row * max_symbols + the labels given on that row. One
    more label is one place more, and the label that fills a row moves the lane to the next by itself.
    """

    def __init__(
        self, graph: Graph, head: LoopHead, spec: HeadSpec, window: int, table: Value, end: Value
    ) -> None:
        self.g = graph.body()
        self.head = head
        self.spec = spec
        self.window = window
        self.table = table  # [B * T + spare, J]
        self.end = end  # [B, 1], the first row that is not the lane's own
        self.limit = graph.integer(spec.max_symbols)
        self.end_place = graph.op("Mul", end, self.limit)
        self.blank = self.g.integer(spec.blank)
        self.offsets = self.g.constant(np.arange(window), "offsets")
        self.is_tdt = spec.kind == "tdt"
        self.beyond = self._beyond(graph)

    def _beyond(self, graph: Graph) -> Value:
        """Columns that a jump out of the window can reach `[B, max duration]`; each leads to itself."""
        columns = graph.constant(self.window + np.arange(max(*self.spec.durations, 1)), "beyond")
        return graph.op("Add", columns, graph.op("Mul", self.end, graph.integer(0)))

    def build(self, elements: Sequence[int]) -> Graph:
        """States: place, the head's. Scans: label (or blank), row, log-probability, duration (TDT)."""
        g = self.g
        g.add_input(g.fresh("iteration"), INT64, [])
        g.add_input(g.fresh("go_on"), BOOL, [])
        place = g.add_input(g.fresh("place"), INT64, None)
        states = [g.add_input(g.fresh("state"), element, None) for element in elements]

        at = g.op("Div", place, self.limit)
        rows = g.op("Add", at, self.offsets)  # [B, W]
        logits, advance = self.head.step(g, g.op("Gather", self.table, rows, axis=0), states)
        tokens, durations = self._choose(logits)
        landing, column, label = self._search(rows, tokens, durations)
        found = g.op("Less", landing, g.integer(self.window))
        row = g.op("Min", g.op("Add", at, landing), self.end)
        duration = self._duration(durations, column, found)
        next_place = self._move(place, row, found, duration)
        next_states = self._next_states(advance, label, found, states, elements)

        g.add_output(self._any_left(next_place), BOOL, [])
        g.add_output(next_place, INT64, None)
        for state, element in zip(next_states, elements, strict=True):
            g.add_output(state, element, None)
        g.add_output(label, INT64, None)
        g.add_output(row, INT64, None)
        g.add_output(self._log_prob(tokens, column), FLOAT, None)
        if duration is not None:
            g.add_output(duration, INT64, None)
        return g

    def _choose(self, logits: Value) -> tuple[Value, Value | None]:
        """Token logits `[B, W, C]`, and of TDT the best duration of every column `[B, W]`."""
        if not self.is_tdt:
            return logits, None
        g, durations = self.g, np.array(self.spec.durations, np.int64)
        tokens, jumps = g.split(logits, [self.spec.num_classes, len(durations)])
        return tokens, g.op("Gather", g.constant(durations, "durations"), self._first_best(jumps), axis=0)

    def _first_best(self, logits: Value) -> Value:
        return self.g.op("ArgMax", logits, axis=-1, keepdims=0, select_last_index=0)

    def _search(self, rows: Value, tokens: Value, durations: Value | None) -> tuple[Value, Value, Value]:
        """Where blanks lead from column 0 (W or more: past the window), the last column up to there that the
        window has, and the label: blank for a lane that found none."""
        g = self.g
        inside = g.op("Less", rows, self.end)
        labels = g.op("Where", inside, self._first_best(tokens), self.blank)  # [B, W]
        is_blank = g.op("Equal", labels, self.blank)
        if durations is None:
            stops = g.op("Where", is_blank, g.integer(self.window), self.offsets)
            landing = g.reduce("ReduceMin", stops, 1, keepdims=True)
        else:
            landing = self._chase(is_blank, durations)
        column = g.op("Min", landing, g.integer(self.window - 1))
        label = g.op("GatherElements", labels, column, axis=1)
        if durations is not None:  # a jump may have passed over a label in the last column
            passed = g.op("Greater", landing, g.integer(self.window - 1))
            label = g.op("Where", passed, self.blank, label)
        return landing, column, label

    def _chase(self, is_blank: Value, durations: Value) -> Value:
        """Follow blanks, each by its duration but at least one frame, until a label or past the window."""
        g = self.g
        jump = g.op("Where", is_blank, g.op("Max", durations, g.integer(1)), g.integer(0))
        leads_to = g.concat([g.op("Add", self.offsets, jump), self.beyond], 1)
        hops = 1
        while 2 * hops < self.window:
            leads_to = g.op("GatherElements", leads_to, leads_to, axis=1)
            hops *= 2
        landing = g.slice(leads_to, g.ints(0), g.ints(1), 1)
        return landing if self.window == 1 else g.op("GatherElements", leads_to, landing, axis=1)

    def _duration(self, durations: Value | None, column: Value, found: Value) -> Value | None:
        """How far the label of a lane carries; 0 where none was found."""
        if durations is None:
            return None
        duration = self.g.op("GatherElements", durations, column, axis=1)
        return self.g.op("Where", found, duration, self.g.integer(0))

    def _move(self, place: Value, row: Value, found: Value, duration: Value | None) -> Value:
        """The next place: of the row that was reached, one further for a label, further by a duration."""
        g = self.g
        reached = g.op("Max", place, g.op("Mul", row, self.limit))
        place = g.op("Add", reached, g.cast(found, INT64))
        if duration is None:
            return place
        return g.op("Max", place, g.op("Mul", g.op("Add", row, duration), self.limit))

    def _next_states(
        self, advance: Advance, label: Value, found: Value, states: Sequence[Value], elements: Sequence[int]
    ) -> list[Value]:
        """The predictor runs if any lane found a label: a lone lane often finds none."""
        g = self.g
        then, otherwise = g.body(), g.body()
        for new, old, element in zip(advance(then, label, found), states, elements, strict=True):
            then.add_output(new, element, None)
            otherwise.add_output(otherwise.op("Identity", old), element, None)
        any_found = g.op("Greater", g.reduce("ReduceMax", g.cast(found, INT64), None), g.integer(0))
        return g.choose(any_found, then, otherwise, len(states))

    def _any_left(self, place: Value) -> Value:
        g = self.g
        return g.op("Greater", g.reduce("ReduceMax", g.op("Sub", self.end_place, place), None), g.integer(0))

    def _log_prob(self, tokens: Value, column: Value) -> Value:
        """Of the best token in the column where the lane landed `[B, 1]`."""
        g = self.g
        chosen = g.op("GatherND", tokens, column, batch_dims=1)  # [B, C]
        return g.reduce("ReduceMax", g.op("LogSoftmax", chosen, axis=-1), 1, keepdims=True)


def _compact(graph: Graph, blank: int, first: Value, scans: Sequence[Value]) -> Emissions:
    """What the lanes emitted, out of scans `[steps, B, 1]`."""
    label, row, log_prob, *durations = (
        graph.op("Transpose", graph.squeeze(scan, 2), perm=[1, 0]) for scan in scans
    )
    packing = Packing(graph, graph.op("Not", graph.op("Equal", label, graph.integer(blank))))
    zero = graph.integer(0)
    ids = packing.front(label, graph.integer(blank))
    return Emissions(
        ids=ids,
        frames=packing.front(graph.op("Sub", row, first), zero),
        durations=packing.front(durations[0], zero) if durations else graph.op("Mul", ids, zero),
        log_probs=packing.front(log_prob, graph.number(0.0)),
        counts=packing.counts,
    )
