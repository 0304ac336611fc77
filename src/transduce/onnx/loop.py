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

WINDOWS = {"rnnt": ((256, 8), (4096, 4)), "tdt": ((256, 8), (4096, 4))}
"""Window by the most classes it is good for; 1 beyond."""


NEVER = 1 << 62
"""A row behind all rows."""


def default_window(spec: HeadSpec) -> int:
    """Frames that one step looks at. A wide window saves steps, but evaluates frames again after every
    label, which a large vocabulary makes dear (measured: docs/onnx.md). 1 for CTC, which has no steps."""
    return next((window for most, window in WINDOWS.get(spec.kind, ()) if spec.num_classes <= most), 1)


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

    Whether blank wins is read off the largest logit of the labels. Which label that is, and how probable, is
    looked up once a lane, and only in steps where a lane found one: an argmax over a window is dear.
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
        self.is_tdt = spec.kind == "tdt"
        self.offsets = self.g.constant(np.arange(window), "offsets")
        zero = graph.op("Mul", end, graph.integer(0))
        self.beyond = self._beyond(graph, zero)
        self.no_label = graph.op("Add", zero, graph.integer(spec.blank))
        self.no_log_prob = graph.cast(zero, FLOAT)

    def _beyond(self, graph: Graph, zero: Value) -> Value:
        """Columns that a jump out of the window can reach `[B, max duration]`; each leads to itself."""
        columns = graph.constant(self.window + np.arange(max(*self.spec.durations, 1)), "beyond")
        return graph.op("Add", columns, zero)

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
        is_blank, durations = self._decide(logits)
        row, column, found = self._search(at, rows, is_blank, durations)
        duration = self._duration(durations, column, found)
        given = g.cast(found, INT64)
        next_place = self._move(place, row, given, duration)
        any_found = g.op("Greater", g.reduce("ReduceMax", given, None), g.integer(0))
        then, label, log_prob = self._read(logits, column, found)
        news = [label, log_prob, *advance(then, label, found)]
        olds = [self.no_label, self.no_log_prob, *states]
        label, log_prob, *states = _either(g, any_found, then, news, olds, [INT64, FLOAT, *elements])

        g.add_output(self._any_left(next_place), BOOL, [])
        g.add_output(next_place, INT64, None)
        for state, element in zip(states, elements, strict=True):
            g.add_output(state, element, None)
        g.add_output(label, INT64, None)
        g.add_output(row, INT64, None)
        g.add_output(log_prob, FLOAT, None)
        if duration is not None:
            g.add_output(duration, INT64, None)
        return g

    def _decide(self, logits: Value) -> tuple[Value, Value | None]:
        """Where blank wins `[B, W]`, and of TDT the best duration of every column `[B, W]`."""
        g, spec = self.g, self.spec
        sizes = [spec.blank, 1, spec.num_classes - 1 - spec.blank, len(spec.durations) * self.is_tdt]
        parts = iter(g.split(logits, [size for size in sizes if size]))
        before, blank, after, jumps = (next(parts) if size else None for size in sizes)
        assert blank is not None, "every head has a blank"
        # The first of equal values wins, so blank has to beat what is before it.
        wins = [
            g.op(kind, blank, g.reduce("ReduceMax", labels, 2, keepdims=True))
            for kind, labels in (("Greater", before), ("GreaterOrEqual", after))
            if labels is not None
        ]
        is_blank = g.squeeze(wins[0] if len(wins) == 1 else g.op("And", *wins), 2)
        return is_blank, None if jumps is None else self._best_duration(jumps)

    def _best_duration(self, jumps: Value) -> Value:
        g, durations = self.g, self.spec.durations
        best = g.op("ArgMax", jumps, axis=-1, keepdims=0, select_last_index=0)
        if durations == tuple(range(len(durations))):
            return best
        return g.op("Gather", g.constant(np.array(durations, np.int64), "durations"), best, axis=0)

    def _search(
        self, at: Value, rows: Value, is_blank: Value, durations: Value | None
    ) -> tuple[Value, Value, Value]:
        """The row that blanks lead to, at most the lane's end; its column, or for lanes that left the window
        the last one; whether a label stands there."""
        g = self.g
        if durations is None:
            label_rows = g.op("Where", is_blank, g.integer(NEVER), rows)
            first = g.reduce("ReduceMin", label_rows, 1, keepdims=True)
            row = g.op("Min", first, g.op("Add", at, g.integer(self.window)), self.end)
            landing, found = g.op("Sub", row, at), g.op("Less", first, self.end)
        else:
            landing = self._chase(is_blank, durations)
            reached = g.op("Add", at, landing)
            row = g.op("Min", reached, self.end)
            is_inside = g.op("Less", landing, g.integer(self.window))
            found = g.op("And", is_inside, g.op("Less", reached, self.end))
        return row, g.op("Min", landing, g.integer(self.window - 1)), found

    def _chase(self, is_blank: Value, durations: Value) -> Value:
        """Follow blanks, each by its duration but at least one frame, until a label or past the window."""
        g = self.g
        jump = g.op("Where", is_blank, g.op("Max", durations, g.integer(1)), g.integer(0))
        if self.window == 1:
            return jump
        leads_to = g.concat([g.op("Add", self.offsets, jump), self.beyond], 1)
        hops = 1
        while 2 * hops < self.window:
            leads_to = g.op("GatherElements", leads_to, leads_to, axis=1)
            hops *= 2
        landing = g.slice(leads_to, g.ints(0), g.ints(1), 1)
        return g.op("GatherElements", leads_to, landing, axis=1)

    def _duration(self, durations: Value | None, column: Value, found: Value) -> Value | None:
        """How far the label of a lane carries; 0 where none was found."""
        if durations is None:
            return None
        duration = self.g.op("GatherElements", durations, column, axis=1)
        return self.g.op("Where", found, duration, self.g.integer(0))

    def _move(self, place: Value, row: Value, given: Value, duration: Value | None) -> Value:
        """The next place: of the row that was reached, one further for a label, further by a duration."""
        g = self.g
        reached = g.op("Max", place, g.op("Mul", row, self.limit))
        place = g.op("Add", reached, given)
        if duration is None:
            return place
        return g.op("Max", place, g.op("Mul", g.op("Add", row, duration), self.limit))

    def _read(self, logits: Value, column: Value, found: Value) -> tuple[Graph, Value, Value]:
        """A graph for steps that found a label, in it the labels `[B, 1]` and their log-probabilities."""
        g = self.g.body()
        tokens = g.op("GatherND", logits, column, batch_dims=1)
        if self.is_tdt:
            tokens, _ = g.split(tokens, [self.spec.num_classes, len(self.spec.durations)])
        best = g.op("ArgMax", tokens, axis=-1, keepdims=1, select_last_index=0)
        log_prob = g.reduce("ReduceMax", g.op("LogSoftmax", tokens, axis=-1), 1, keepdims=True)
        return g, g.op("Where", found, best, self.no_label), log_prob

    def _any_left(self, place: Value) -> Value:
        g = self.g
        return g.op("Greater", g.reduce("ReduceMax", g.op("Sub", self.end_place, place), None), g.integer(0))


def _either(
    g: Graph,
    condition: Value,
    then: Graph,
    news: Sequence[Value],
    olds: Sequence[Value],
    kinds: Sequence[int],
) -> list[Value]:
    """The new values, computed in `then`, where the condition holds, else the old ones."""
    otherwise = g.body()
    for new, old, kind in zip(news, olds, kinds, strict=True):
        then.add_output(new, kind, None)
        otherwise.add_output(otherwise.op("Identity", old), kind, None)
    return g.choose(condition, then, otherwise, len(kinds))


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
