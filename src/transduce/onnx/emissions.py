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
        number = graph.op("CumSum", graph.cast(found, INT64), graph.integer(1))
        self.counts = graph.reduce("ReduceSum", graph.cast(found, INT64), 1)  # [B]
        longest = graph.reduce("ReduceMax", self.counts, None)
        # One column more, for the end of the longest row, and one for what is not found; both are cut off.
        slot = graph.op("Sub", number, graph.integer(1))
        self.slots = graph.op("Where", found, slot, graph.op("Add", longest, graph.integer(1)))
        self.width = graph.op("Reshape", longest, graph.ints(1))
        self.shape = graph.concat([graph.size(found, 0), graph.op("Add", self.width, graph.ints(2))], 0)

    def front(self, values: Value, fill: Value) -> Value:
        """The values that are found `[B, U]`, `fill` behind them."""
        return self.graph.slice(self._placed(values, fill), self.graph.ints(0), self.width, 1)

    def gaps(self, values: Value, last: Value) -> Value:
        """From each value that is found to the next one `[B, U]`, from a row's last to `last` `[B, 1]`."""
        g = self.graph
        placed = self._placed(values, last)
        following = g.slice(placed, g.ints(1), g.op("Add", self.width, g.ints(1)), 1)
        return g.op("Sub", following, g.slice(placed, g.ints(0), self.width, 1))

    def _placed(self, values: Value, fill: Value) -> Value:
        rows = self.graph.op("Expand", fill, self.shape)
        return self.graph.op("ScatterElements", rows, self.slots, values, axis=1)
