"""Decoded rows of different lengths as padded arrays: what every graph of ours returns.

In: values `[B, S]` and a mask of those that count. Out: those values moved to the front of each row.
"""

from dataclasses import dataclass

from transduce.onnx.builder import FLOAT, INT64, Graph, Value

__all__ = ["OUTPUTS", "Emissions", "Packing"]

OUTPUTS = ("ids", "frames", "durations", "log_probs", "counts")
"""Names of the outputs of our graphs, in order."""


@dataclass(frozen=True, slots=True)
class Emissions:
    """The labels of every row; `U` is the longest. Past its own count a row holds blanks and zeros."""

    ids: Value  # [B, U] int64
    frames: Value  # [B, U] int64
    durations: Value  # [B, U] int64
    log_probs: Value  # [B, U] fp32
    counts: Value  # [B] int64

    def declare(self, graph: Graph) -> None:
        """Make these the outputs of a graph."""
        for name in OUTPUTS:
            element = FLOAT if name == "log_probs" else INT64
            shape = ["batch"] if name == "counts" else ["batch", "labels"]
            graph.add_output(getattr(self, name), element, shape, name)


class Packing:
    """Where the values that `found` `[B, S]` marks go in their rows."""

    def __init__(self, graph: Graph, found: Value) -> None:
        self.graph = graph
        self.found = found
        number = graph.op("CumSum", graph.cast(found, INT64), graph.integer(1))
        self.slots = graph.op("Sub", number, graph.integer(1))  # [B, S], of a value that is found
        self.counts = graph.reduce("ReduceSum", graph.cast(found, INT64), 1)  # [B]
        longest = graph.reduce("ReduceMax", self.counts, None)
        self.spare = longest
        """The slot behind the longest row: what goes there is cut off."""
        self.width = graph.op("Reshape", longest, graph.ints(1))
        self.shape = graph.concat([graph.size(found, 0), graph.op("Add", self.width, graph.ints(1))], 0)

    def front(self, values: Value, fill: Value) -> Value:
        """The values that are found `[B, U]`, `fill` behind them."""
        return self._scatter(self.found, values, fill, "none")

    def sums(self, mask: Value) -> Value:
        """How many of `mask` `[B, S]` lie at each found place or after it, before the next `[B, U]`."""
        return self._scatter(mask, self.graph.cast(mask, INT64), self.graph.integer(0), "add")

    def _scatter(self, mask: Value, values: Value, fill: Value, reduction: str) -> Value:
        g = self.graph
        slots = g.op("Where", mask, self.slots, self.spare)
        rows = g.op("Expand", fill, self.shape)
        rows = g.op("ScatterElements", rows, slots, values, axis=1, reduction=reduction)
        return g.slice(rows, g.ints(0), self.width, 1)
