"""A whole model as one graph: samples in, labels out.

In: a ModelSpec and weights by our names. Out: a Graph with inputs `waveforms` `[B, N]` fp32 and
`lengths` `[B]` int64, and the outputs of `emissions`: front end, encoder, head and decoding rule, no
host in between. It knows no files and no sessions.
"""

from transduce.onnx import ctc, encoder, frontend, loop
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.heads import WeightsHead
from transduce.onnx.precision import Precision
from transduce.types import ModelSpec, TransducerWeights, Weights

__all__ = ["INPUTS", "OPSET", "build"]

OPSET = 17
"""The oldest opset that has LayerNormalization, so that the oldest runtimes read our graphs."""

INPUTS = ("waveforms", "lengths")


def build(
    spec: ModelSpec, weights: Weights, precision: Precision, window: int | None = None, opset: int = OPSET
) -> Graph:
    """The graph of a model with the head that decodes; `window` is by default the head's own."""
    graph = Graph(opset)
    waveforms = graph.add_input("waveforms", FLOAT, ["batch", "samples"])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    features, counts = frontend.log_mel(graph, spec.features, weights, waveforms, lengths)
    encoded, counts = encoder.encode(graph, spec.encoder, weights, precision, features, counts)
    if spec.head.kind == "ctc":
        with graph.scope("decoder"):  # fp32, whatever runs the encoder: rounded logits tie
            product = graph.op("MatMul", encoded, graph.weight(weights["ctc.weight"].T, "ctc.weight"))
            logits = graph.op("Add", product, graph.weight(weights["ctc.bias"], "ctc.bias"))
        emissions = ctc.collapse(graph, spec.head.blank, logits, counts)
    else:
        head = WeightsHead(TransducerWeights.of(weights, spec.head), spec.head)
        emissions = loop.transducer(
            graph, head, spec.head, encoded, counts, window or loop.default_window(spec.head)
        )
    emissions.declare(graph)
    return graph
