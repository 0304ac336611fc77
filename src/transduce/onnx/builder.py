"""A small writer of ONNX graphs: operators appended one by one, in the order they run.

In: operator names and values. Out: a `GraphProto` for a model, or for the body of a `Loop`. A value
is the name of a tensor, so building reads like the arithmetic it stands for. What differs between
opset 17 and later ones is hidden here. It knows no models.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from transduce.errors import import_extra

__all__ = ["BOOL", "FLOAT", "FLOAT16", "INT32", "INT64", "UINT8", "Graph", "Value"]

Value: TypeAlias = str
"""The name of a tensor in a graph."""

FLOAT, UINT8, INT32, INT64, BOOL, FLOAT16 = 1, 2, 6, 7, 9, 10  # onnx.TensorProto's numbers

Dim: TypeAlias = int | str | None
Attribute: TypeAlias = int | float | str | Sequence[int]

_LONGEST_SHARED = 4
"""Constants of at most that many elements are stored once a graph, by value."""


class Graph:
    """Nodes, weights, inputs and outputs of one graph; `body` opens a graph nested in it."""

    def __init__(self, opset: int, names: Iterator[int] | None = None) -> None:
        self.onnx = import_extra("onnx", "cpu")
        self.opset = opset
        self.domains = {"": opset}
        """Operator sets that the model imports, by name."""
        self.nodes: list[Any] = []
        self.weights: dict[str, npt.NDArray[Any]] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._names = count() if names is None else names
        self._shared: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._scope = ""

    def body(self) -> "Graph":
        """A graph for a `Loop` or `If` in this one: sees this graph's values, never reuses their names."""
        return Graph(self.opset, self._names)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of what is added inside, so that a viewer shows where a node belongs."""
        outer, self._scope = self._scope, f"{self._scope}{name}/"
        try:
            yield
        finally:
            self._scope = outer

    # Interface

    def add_input(self, name: str, element: int, shape: Sequence[Dim] | None) -> Value:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, element, shape))
        return name

    def add_output(
        self, value: Value, element: int, shape: Sequence[Dim] | None, name: str | None = None
    ) -> None:
        """Declare a value as the next output; `name` gives it a name for callers."""
        if name is not None:
            self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        info = self.onnx.helper.make_tensor_value_info(name or value, element, shape)
        self.outputs.append(info)

    def fresh(self, hint: str) -> str:
        """A name that nothing else in this graph or around it has."""
        return f"{self._scope}{hint}.{next(self._names)}"

    # Values

    def weight(self, array: npt.NDArray[Any], name: str) -> Value:
        """A stored tensor under its own name; adding the same name again gives the stored one."""
        self.weights.setdefault(name, array)
        return name

    def constant(self, array: npt.NDArray[Any], hint: str = "constant") -> Value:
        """A stored tensor without a name of its own; small ones are shared."""
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= _LONGEST_SHARED else None
        if key is not None and key in self._shared:
            return self._shared[key]
        name = f"{hint}.{next(self._names)}"
        self.weights[name] = array
        if key is not None:
            self._shared[key] = name
        return name

    def ints(self, *values: int) -> Value:
        """An int64 vector: axes, shapes, starts."""
        return self.constant(np.array(values, np.int64))

    def integer(self, value: int) -> Value:
        """An int64 scalar."""
        return self.constant(np.array(value, np.int64))

    def number(self, value: float, dtype: npt.DTypeLike = np.float32) -> Value:
        """A floating-point scalar."""
        return self.constant(np.array(value, dtype))

    # Operators

    def op(self, kind: str, *inputs: Value, **attributes: Attribute) -> Value:
        """Append an operator with one output and return it."""
        return self.ops(kind, *inputs, num_outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: Value, num_outputs: int, **attributes: Attribute) -> list[Value]:
        """Append an operator with several outputs."""
        outputs = [self.fresh(kind) for _ in range(num_outputs)]
        node = self.onnx.helper.make_node(kind, list(inputs), outputs, name=outputs[0], **attributes)
        self.nodes.append(node)
        return outputs

    def cast(self, value: Value, element: int) -> Value:
        return self.op("Cast", value, to=element)

    def reduce(self, kind: str, value: Value, axis: int | None, keepdims: bool = False) -> Value:
        """ReduceMax and its kin; `None` reduces all axes. Axes became an input at different opsets."""
        keep = int(keepdims)
        if axis is None:
            return self.op(kind, value, keepdims=keep)
        if kind == "ReduceSum" or self.opset >= 18:
            return self.op(kind, value, self.ints(axis), keepdims=keep)
        return self.op(kind, value, axes=[axis], keepdims=keep)

    def split(self, value: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
        return self.ops("Split", value, self.ints(*sizes), num_outputs=len(sizes), axis=axis)

    def slice(self, value: Value, start: Value, end: Value, axis: int) -> Value:
        """`value[start:end]` along an axis; start and end are int64 vectors of one element."""
        return self.op("Slice", value, start, end, self.ints(axis))

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        return self.op("Unsqueeze", value, self.ints(*axes))

    def squeeze(self, value: Value, *axes: int) -> Value:
        return self.op("Squeeze", value, self.ints(*axes))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return self.op("Concat", *values, axis=axis)

    def size(self, value: Value, axis: int) -> Value:
        """Length of an axis, as an int64 vector of one element."""
        return self.slice(self.op("Shape", value), self.ints(axis), self.ints(axis + 1), 0)

    def scalar_size(self, value: Value, axis: int) -> Value:
        """Length of an axis, as an int64 scalar."""
        return self.op("Gather", self.op("Shape", value), self.integer(axis), axis=0)

    def arange(self, end: Value) -> Value:
        """0, 1, ... below an int64 scalar."""
        return self.op("Range", self.integer(0), end, self.integer(1))

    def inside(self, lengths: Value, size: Value) -> Value:
        """Mask `[B, size]`, true inside each row's length: lengths `[B]`, size an int64 scalar."""
        return self.op("Less", self.arange(size), self.unsqueeze(lengths, 1))

    def delayed(self, value: Value, first: Value) -> Value:
        """`[B, N]` one step later: `first` in column 0, the last column gone.

        Not by a negative pad, which onnxruntime 1.20 gets wrong for N = 1.
        """
        padded = self.op("Pad", value, self.ints(0, 1, 0, 0), first)
        return self.slice(padded, self.ints(0), self.ints(-1), 1)

    def loop(self, body: "Graph", states: Sequence[Value], num_scans: int) -> tuple[list[Value], list[Value]]:
        """Run a body until its condition is false, at least once: the last states, the stacked scans."""
        names = [*(self.fresh("state") for _ in states), *(self.fresh("scan") for _ in range(num_scans))]
        entry = self.constant(np.array(True))
        node = self.onnx.helper.make_node(
            "Loop", ["", entry, *states], names, name=self.fresh("Loop"), body=body.proto("body")
        )
        self.nodes.append(node)
        return names[: len(states)], names[len(states) :]

    def choose(self, condition: Value, then: "Graph", otherwise: "Graph", num_outputs: int) -> list[Value]:
        """Run one of two bodies by a boolean scalar; their outputs in order."""
        names = [self.fresh("If") for _ in range(num_outputs)]
        node = self.onnx.helper.make_node(
            "If",
            [condition],
            names,
            name=self.fresh("If"),
            then_branch=then.proto("then"),
            else_branch=otherwise.proto("else"),
        )
        self.nodes.append(node)
        return names

    # Results

    @property
    def num_bytes(self) -> int:
        """Size of the weights, those of bodies left out."""
        return sum(array.nbytes for array in self.weights.values())

    def tensor(self, name: str, array: npt.NDArray[Any]) -> Any:
        """A tensor that holds its values."""
        return self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)

    def tensor_apart(
        self, name: str, array: npt.NDArray[Any], location: str = "apart", offset: int = 0
    ) -> Any:
        """A tensor whose values are in another file, or are handed to the session."""
        tensor = self.onnx.TensorProto(
            name=name,
            dims=array.shape,
            data_type=self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=self.onnx.TensorProto.EXTERNAL,
        )
        for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def proto(self, name: str, tensors: Sequence[Any] | None = None) -> Any:
        """The graph; `tensors` stand for its weights where they are stored elsewhere."""
        if tensors is None:
            tensors = [self.tensor(key, array) for key, array in self.weights.items()]
        return self.onnx.helper.make_graph(self.nodes, name, self.inputs, self.outputs, tensors)

    def model(self, name: str, tensors: Sequence[Any] | None = None) -> Any:
        """A model of this graph, which must be under 2 GB with what its tensors hold."""
        opsets = [self.onnx.helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        oldest = self.onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        return self.onnx.helper.make_model(
            self.proto(name, tensors), opset_imports=opsets, producer_name="transduce", ir_version=oldest
        )
