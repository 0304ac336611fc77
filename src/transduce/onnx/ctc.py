"""CTC's rule as operators: the best path, runs of one label collapsed, blanks dropped.

In: logits `[B, T, C]` and the lengths of the rows. Out: emissions; a label stands for its whole run.
"""

from transduce.onnx.builder import INT64, Graph, Value
from transduce.onnx.emissions import Emissions, Packing

__all__ = ["collapse"]


def collapse(graph: Graph, blank: int, logits: Value, lengths: Value) -> Emissions:
    """Decode fp32 logits (or log-probabilities) of rows with lengths `[B]` int64."""
    with graph.scope("decoder"):
        blank_id = graph.integer(blank)
        best = graph.op("ArgMax", logits, axis=2, keepdims=0, select_last_index=0)
        inside = graph.inside(lengths, graph.scalar_size(logits, 1))
        labels = graph.op("Where", inside, best, blank_id)  # [B, T]
        before = graph.delayed(labels, graph.integer(-1))
        is_label = graph.op("Not", graph.op("Equal", labels, blank_id))
        changes = graph.op("Not", graph.op("Equal", labels, before))
        packing = Packing(graph, graph.op("And", is_label, changes))
        number = graph.op("CumSum", graph.cast(is_label, INT64), graph.integer(1))
        total = graph.reduce("ReduceSum", graph.cast(is_label, INT64), 1, keepdims=True)
        frames = graph.op(
            "Add", graph.op("Mul", labels, graph.integer(0)), graph.arange(graph.scalar_size(labels, 1))
        )
        log_probs = graph.reduce("ReduceMax", graph.op("LogSoftmax", logits, axis=2), 2)
        zero = graph.integer(0)
        return Emissions(
            ids=packing.front(labels, blank_id),
            frames=packing.front(frames, zero),
            # Labelled frames up to the next label's first: only a run's own lie between.
            durations=packing.gaps(number, graph.op("Add", total, graph.integer(1))),
            log_probs=packing.front(log_probs, graph.number(0.0)),
            counts=packing.counts,
        )
