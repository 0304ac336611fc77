"""A checkpoint's prediction network and joint as operators: what `loop.transducer` calls.

In: weights by our names. Out: a loop head, fp32 throughout. It knows neither schedules nor encoders.
"""

from collections.abc import Sequence

import numpy as np

from transduce.greedy import LstmHead
from transduce.onnx.builder import FLOAT, Graph, Value
from transduce.onnx.loop import Advance, State
from transduce.types import FloatArray, HeadSpec, LstmLayer, TransducerWeights

__all__ = ["WeightsHead"]


class WeightsHead:
    """A loop head over a checkpoint's own weights.

    The input half of the first LSTM layer is a table, one row a label; the biases of both joint
    projections are added to the frames once; the step before any label is computed here, once.
    States: the projected predictor output `[B, 1, J]`, then h and c `[B, 1, H]` of every layer.
    """

    def __init__(self, weights: TransducerWeights, spec: HeadSpec) -> None:
        self.weights = weights
        self.layers = [_sigmoids_together(layer) for layer in weights.lstm]
        first = self.layers[0]
        self.table = weights.embedding @ first.weight_ih.T + first.bias  # [C, 4H]
        self.start_output, self.start_state = LstmHead(weights, spec).start()

    def project(self, graph: Graph, encoded: Value) -> Value:
        w = self.weights
        product = graph.op("MatMul", encoded, graph.weight(w.enc_weight.T, "joint.enc.weight"))
        return graph.op("Add", product, graph.weight(w.enc_bias + w.pred_bias, "joint.enc.bias"))

    def start(self, graph: Graph, encoded: Value) -> list[State]:
        predicted = self.weights.pred_weight @ self.start_output
        values = [predicted, *(value for layer in self.start_state for value in layer)]
        lanes = graph.concat([graph.size(encoded, 0), graph.ints(1, 1)], 0)
        return [
            State(graph.op("Expand", graph.constant(value[None, None], "start"), lanes), FLOAT)
            for value in values
        ]

    def step(self, body: Graph, frames: Value, states: Sequence[Value]) -> tuple[Value, Advance]:
        w = self.weights
        activation = {"relu": "Relu", "tanh": "Tanh"}[w.activation]
        hidden = body.op(activation, body.op("Add", frames, states[0]))
        logits = _linear(body, hidden, w.out_weight, w.out_bias, "joint.out")
        return logits, lambda graph, label, found: self._advance(graph, label, found, states)

    def _advance(self, body: Graph, label: Value, found: Value, states: Sequence[Value]) -> list[Value]:
        found = body.unsqueeze(found, 2)
        inputs = body.op("Gather", body.weight(self.table, "predictor.table"), label, axis=0)
        kept: list[Value] = []
        for index, layer in enumerate(self.layers):
            h, c = states[1 + 2 * index : 3 + 2 * index]
            if index:
                inputs = _linear(body, inputs, layer.weight_ih, layer.bias, f"predictor.ih_l{index}")
            stepped = _cell(body, inputs, h, c, layer, index)
            inputs = stepped[0]
            kept += [body.op("Where", found, new, old) for new, old in zip(stepped, (h, c), strict=True)]
        # Projecting the kept h gives a lane without a label the same predictor output again.
        predicted = body.op("MatMul", kept[-2], body.weight(self.weights.pred_weight.T, "joint.pred.weight"))
        return [predicted, *kept]


def _sigmoids_together(layer: LstmLayer) -> LstmLayer:
    """Gates in the order i, f, o, g: three of them are sigmoids, and one operator can do them all."""

    def reordered(array: FloatArray) -> FloatArray:
        i, f, g, o = np.split(array, 4)
        return np.concatenate([i, f, o, g])

    return LstmLayer(reordered(layer.weight_ih), reordered(layer.weight_hh), reordered(layer.bias))


def _linear(graph: Graph, x: Value, weight: FloatArray, bias: FloatArray, name: str) -> Value:
    product = graph.op("MatMul", x, graph.weight(weight.T, f"{name}.weight"))
    return graph.op("Add", product, graph.weight(bias, f"{name}.bias"))


def _cell(
    body: Graph, inputs: Value, h: Value, c: Value, layer: LstmLayer, index: int
) -> tuple[Value, Value]:
    """One LSTM step on gates i, f, o, g whose input half `[B, 1, 4H]` is there already."""
    width = layer.weight_hh.shape[1]
    recurrent = body.op("MatMul", h, body.weight(layer.weight_hh.T, f"predictor.hh_l{index}.weight"))
    sigmoids, g = body.split(body.op("Add", inputs, recurrent), [3 * width, width])
    i, f, o = body.split(body.op("Sigmoid", sigmoids), [width] * 3)
    c = body.op("Add", body.op("Mul", f, c), body.op("Mul", i, body.op("Tanh", g)))
    return body.op("Mul", o, body.op("Tanh", c)), c
