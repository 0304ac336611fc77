"""A graph that another tool exported: opened, and copied into one of ours.

In: an `.onnx` file. Out: a ForeignModel: inputs and outputs in order (names differ between versions
of the same exporter, so nothing here goes by name), weights, and `inline`, which copies the nodes
behind some values into a Graph. Declared shapes inside are dropped: they are often narrower than
what the nodes can do. Knows nothing of speech.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transduce.errors import CheckpointError, UnsupportedModelError, import_extra
from transduce.onnx.builder import FLOAT, FLOAT16, INT32, INT64, Graph, Value

__all__ = ["ForeignModel", "Port", "used"]

OLDEST_OPSET = 13
"""Before it, the operators around a decoder (Squeeze, Split, ReduceSum) took axes as attributes."""

MAX_GRAPH_BYTES = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output."""

    name: str
    element: int
    shape: tuple[int | None, ...]
    """None for a size that varies; declared sizes may be wrong."""


@dataclass(frozen=True, eq=False)
class ForeignModel:
    """Nodes in the order they run."""

    path: Path
    opset: int
    domains: Mapping[str, int]
    metadata: Mapping[str, str]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    nodes: Sequence[Any]
    weights: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def open(cls, path: Path, opset: int | None = None) -> "ForeignModel":
        """Read a file; `opset` converts it where it is of another. CheckpointError if it is damaged."""
        onnx = import_extra("onnx", "cpu")
        model = _parsed(onnx, path)
        own = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        if own < OLDEST_OPSET:
            raise UnsupportedModelError(
                f"{path}: its operators are of opset {own}, and {OLDEST_OPSET} is the oldest one that is "
                "read; export the model again with a newer exporter"
            )
        weights = {tensor.name: _array(onnx, path, tensor) for tensor in model.graph.initializer}
        if opset is not None and own != opset:
            model, own = _converted(onnx, path, model, opset), opset
            weights = {tensor.name: _array(onnx, path, tensor) for tensor in model.graph.initializer}
        graph = model.graph
        return cls(
            path=path,
            opset=own,
            domains={entry.domain: entry.version for entry in model.opset_import if entry.domain},
            metadata={entry.key: entry.value for entry in model.metadata_props},
            inputs=[_port(value) for value in graph.input if value.name not in weights],
            outputs=[_port(value) for value in graph.output],
            nodes=list(graph.node),
            weights=weights,
        )

    @classmethod
    def of(cls, graph: Graph, path: Path) -> "ForeignModel":
        """A graph that was just built, as if it had been read."""
        return cls(
            path=path,
            opset=graph.opset,
            domains={name: version for name, version in graph.domains.items() if name},
            metadata={},
            inputs=[_port(value) for value in graph.inputs],
            outputs=[_port(value) for value in graph.outputs],
            nodes=graph.nodes,
            weights=graph.weights,
        )

    def floats(self, side: Literal["inputs", "outputs"], least: int = 1) -> list[Port]:
        """The inputs or outputs that carry values, in order; UnsupportedModelError if there are fewer."""
        return self._ports(side, (FLOAT, FLOAT16), least, "floating-point")

    def integers(self, side: Literal["inputs", "outputs"], least: int = 1) -> list[Port]:
        """The inputs or outputs that carry labels or lengths."""
        return self._ports(side, (INT32, INT64), least, "integer")

    def _ports(self, side: str, elements: Sequence[int], least: int, what: str) -> list[Port]:
        ports = [p for p in (self.inputs if side == "inputs" else self.outputs) if p.element in elements]
        if len(ports) < least:
            raise self._unlike(f"has {len(ports)} {what} {side} where {least} belong")
        return ports

    def size(self, port: Port, axis: int) -> int:
        """A size of an input or output that must be fixed."""
        rank = len(port.shape)
        size = port.shape[axis] if -rank <= axis < rank else None
        if not size:
            raise self._unlike(f"does not fix axis {axis} of {port.name!r}")
        return size

    def _unlike(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.path}: {what}, so it is not an export of a kind that is read (docs/onnx.md lists them)"
        )

    def stored_shapes(self) -> Iterator[tuple[int, ...]]:
        """Shapes of all weights and constants."""
        yield from (array.shape for array in self.weights.values())
        for node in self.nodes:
            if node.op_type == "Constant":
                yield from (
                    tuple(attribute.t.dims) for attribute in node.attribute if attribute.HasField("t")
                )

    def inline(self, graph: Graph, feeds: Mapping[str, Value], wanted: Sequence[str]) -> list[Value]:
        """Copy what lies between `feeds` (by their names here) and the wanted values into a graph."""
        prefix = graph.fresh(self.path.stem)
        nodes, needed = self._behind(wanted, set(feeds))
        renamed = dict(feeds)
        for name in needed & self.weights.keys() - feeds.keys():
            renamed[name] = graph.weight(self.weights[name], f"{prefix}/{name}")
        graph.nodes += [_renamed(node, renamed, prefix) for node in nodes]
        graph.domains.update(self.domains)
        return [renamed.get(name, f"{prefix}/{name}") for name in wanted]

    def boundary(self, source: str, wanted: Sequence[str]) -> list[str]:
        """Values that depend on the input `source` alone and are used by what depends on others too."""
        varying = {port.name for port in self.inputs}
        depends: dict[str, frozenset[str]] = {name: frozenset({name}) for name in varying}
        found: dict[str, None] = {}
        for node in self._behind(wanted, set())[0]:
            names = list(used(node))
            own = frozenset().union(*(depends.get(name, frozenset()) for name in names))
            depends.update(dict.fromkeys(node.output, own))
            if own - {source}:
                found.update(dict.fromkeys(n for n in names if depends.get(n) == frozenset({source})))
        return list(found)

    def producer(self, name: str) -> Any | None:
        """The node that makes a value."""
        return next((node for node in self.nodes if name in node.output), None)

    def _behind(self, wanted: Sequence[str], given: set[str]) -> tuple[list[Any], set[str]]:
        """The nodes that make the wanted values, and every name these use."""
        needed = set(wanted) - given
        nodes = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.append(node)
                needed.update(name for name in used(node) if name not in given)
        return nodes[::-1], needed


def _parsed(onnx: Any, path: Path) -> Any:
    protobuf = import_extra("google.protobuf.message", "cpu")
    try:
        if path.stat().st_size > MAX_GRAPH_BYTES:
            raise CheckpointError(f"{path}: larger than an ONNX graph can be; it is not one")
        model = onnx.load(path, load_external_data=False)
    except (OSError, protobuf.DecodeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as an ONNX graph; it is damaged or cut short ({error})"
        ) from error
    if not model.graph.node or not model.graph.output:
        raise CheckpointError(f"{path}: holds no ONNX graph; it is damaged or cut short")
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _converted(onnx: Any, path: Path, model: Any, opset: int) -> Any:
    """The model in another opset: one graph has one."""
    onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    try:
        return onnx.version_converter.convert_version(model, opset)
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"{path}: of another opset than its encoder ({opset}), and cannot be converted ({error})"
        ) from error


def _array(onnx: Any, path: Path, tensor: Any) -> npt.NDArray[Any]:
    """A tensor's values; those of a data file are mapped, not read."""
    try:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            array: npt.NDArray[Any] = onnx.numpy_helper.to_array(tensor)
            return array
        return _mapped(onnx, path, tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: the tensor {tensor.name} is damaged ({error})") from error


def _mapped(onnx: Any, path: Path, tensor: Any) -> npt.NDArray[Any]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries.get("location", "")
    file = path.parent / name
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise CheckpointError(f"{path}: keeps weights in {name!r}, outside its own folder; it was not opened")
    if not file.is_file():
        raise CheckpointError(f"{file}: the weights of {path.name} are missing; put that file beside it")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape, offset = tuple(tensor.dims), int(entries.get("offset", 0))
    if file.stat().st_size < offset + int(np.prod(shape)) * dtype.itemsize:
        raise CheckpointError(f"{file}: too short for the weights of {path.name}; fetch it again")
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(file, dtype, "r", offset, shape)


def _port(value: Any) -> Port:
    kind = value.type.tensor_type
    dims = kind.shape.dim
    return Port(
        value.name, kind.elem_type, tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
    )


def used(node: Any) -> Iterator[str]:
    """Every name a node reads, captures of nested graphs included (their own names do no harm)."""
    yield from (name for name in node.input if name)
    for graph in _nested(node):
        for inner in graph.node:
            yield from used(inner)
        yield from (value.name for value in graph.output)


def _nested(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _renamed(node: Any, renamed: Mapping[str, Value], prefix: str) -> Any:
    """A copy whose values have the new names; all others get the prefix, in nested graphs too."""

    def new(name: str) -> str:
        return renamed.get(name, f"{prefix}/{name}") if name else ""

    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = ""  # quantizers leave names out or repeat them
    copy.input[:] = [new(name) for name in node.input]
    copy.output[:] = [new(name) for name in node.output]
    for graph in _nested(copy):
        del graph.value_info[:]
        inner = [_renamed(each, renamed, prefix) for each in graph.node]
        del graph.node[:]
        graph.node.extend(inner)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = new(value.name)
    return copy
