"""How the encoder multiplies by its weights: fp32, fp16, or int8 products between fp32 values.

Everything outside the encoder is fp32 at every precision: logits decide, and coarse ones tie.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from transduce.errors import DeviceError
from transduce.onnx.builder import FLOAT, FLOAT16, UINT8, Graph, Value
from transduce.onnx.session import Session
from transduce.types import FloatArray

__all__ = ["Precision", "PrecisionName", "Ranges", "int8_saturates", "precision_named"]

Ranges: TypeAlias = Mapping[str, tuple[float, float]]

PrecisionName: TypeAlias = Literal["fp32", "fp16", "int8"]

_INT8_PROBE = (
    b'\x08\x08:>\n\x18\n\x01a\n\x01b\x12\x01y"\rMatMulInteger\x12\x01pZ\t\n\x01a\x12\x04\n\x02\x08\x02Z\t\n\x01b'
    b"\x12\x04\n\x02\x08\x03b\t\n\x01y\x12\x04\n\x02\x08\x06B\x04\n\x00\x10\x11"
)
"""The model y = MatMulInteger(a, b), serialized: running an int8 export does not need onnx."""
_RUNTIMES_DOMAIN = "com.microsoft"

_SMALLEST_SCALE = 1e-20
"""Keeps a row of zeros from being divided by zero."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The element type of the encoder's values, and how it multiplies by weights."""

    name: PrecisionName
    element: int
    dtype: type[np.floating]
    ranges: Ranges | None = None
    """Of int8: what the inputs of products are scaled by, by the names of their weights; None: by each row's
    own largest value."""
    probed: dict[str, tuple[Value, Value]] | None = None
    """Where to note the least and the largest input of each product `[1]`."""

    def matmul(self, graph: Graph, x: Value, weight: FloatArray, name: str) -> Value:
        """`x [..., K] @ weight.T`, weight `[N, K]`."""
        if self.name == "int8":
            if self.ranges is not None:
                return _static_matmul(graph, x, weight, name, self.ranges[name])
            return _int8_matmul(graph, x, weight, name)
        if self.probed is not None:
            ends = [graph.reduce(kind, x, None) for kind in ("ReduceMin", "ReduceMax")]
            least, most = (graph.op("Reshape", end, graph.ints(1)) for end in ends)
            self.probed[name] = (least, most)
            # onnxruntime's own product, because transposing would copy each weight, for a few runs.
            graph.domains[_RUNTIMES_DOMAIN] = 1
            stored = graph.weight(weight, name)
            return graph.op("FusedMatMul", x, stored, transB=1, domain=_RUNTIMES_DOMAIN)
        return graph.op("MatMul", x, graph.weight(weight.T.astype(self.dtype, copy=False), name))

    def enter(self, graph: Graph, x: Value) -> Value:
        """An fp32 value as one of the encoder's."""
        return x if self.element == FLOAT else graph.cast(x, self.element)

    def leave(self, graph: Graph, x: Value) -> Value:
        """A value of the encoder's as fp32."""
        return x if self.element == FLOAT else graph.cast(x, FLOAT)


def precision_named(name: str) -> Precision:
    """The precision of that name, auto being fp32; DeviceError for one that ONNX graphs do not have."""
    name = "fp32" if name == "auto" else name
    if name not in _PRECISIONS:
        raise DeviceError(
            f"precision {name!r} is not one of an ONNX graph's: use {', '.join(_PRECISIONS)} or auto"
        )
    return _PRECISIONS[name]


_PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", FLOAT, np.float32),
    "fp16": Precision("fp16", FLOAT16, np.float16),
    "int8": Precision("int8", FLOAT, np.float32),
}


def _static_matmul(graph: Graph, x: Value, weight: FloatArray, name: str, ends: tuple[float, float]) -> Value:
    """Activations scaled by a range that is known beforehand, weights output by output.

    Written as a product of dequantized values, which runtimes turn into one of bytes.
    """
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    step = max((high - low) / 255, _SMALLEST_SCALE)
    scale, zero = graph.number(step), graph.constant(np.array(round(-low / step), np.uint8), "zero")
    rows = graph.op("DequantizeLinear", graph.op("QuantizeLinear", x, scale, zero), scale, zero)
    scales, quantized = _quantized(weight)
    columns = graph.op(
        "DequantizeLinear",
        graph.weight(quantized, name),
        graph.weight(scales, f"{name}.scales"),
        graph.weight(np.zeros(len(scales), np.int8), f"{name}.zeros"),
        axis=1,
    )
    return graph.op("MatMul", rows, columns)


def _quantized(weight: FloatArray) -> tuple[FloatArray, npt.NDArray[np.int8]]:
    """Scales `[N]` and bytes `[K, N]` of a weight `[N, K]`."""
    scales = np.maximum(np.abs(weight).max(axis=1), _SMALLEST_SCALE) / 127
    return scales.astype(np.float32), np.round(weight / scales[:, None]).astype(np.int8).T


def _int8_matmul(graph: Graph, x: Value, weight: FloatArray, name: str) -> Value:
    """Activations scaled row by row, weights output by output.

    A scale for each row, not one for the whole tensor as `DynamicQuantizeLinear` has it, keeps an
    utterance independent of its batch. Unsigned by signed is what onnxruntime has fast kernels for.
    """
    scales, quantized = _quantized(weight)
    peak = graph.reduce("ReduceMax", graph.op("Abs", x), -1, keepdims=True)
    scale = graph.op("Max", graph.op("Mul", peak, graph.number(1 / 127)), graph.number(_SMALLEST_SCALE))
    shifted = graph.op("Add", graph.op("Div", x, scale), graph.number(128.0))
    rows = graph.cast(graph.op("Round", shifted), UINT8)
    zero = graph.constant(np.array(128, np.uint8), "zero")
    product = graph.op("MatMulInteger", rows, graph.weight(quantized, name), zero)
    product = graph.op("Mul", graph.cast(product, FLOAT), scale)
    return graph.op("Mul", product, graph.weight(scales, f"{name}.scales"))


def int8_saturates() -> bool:
    """Whether this CPU's products of bytes overflow: those without VNNI add two of them in 16 bits."""
    rows, columns = np.full((1, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    session = Session.open(_INT8_PROBE, "int8 probe", threads=1)
    (product,) = session.run(["y"], {"a": rows, "b": columns})
    return bool((product != 255 * 127 * 64).any())
