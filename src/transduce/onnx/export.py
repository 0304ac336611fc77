"""Export: a model as a folder that onnxruntime alone can run.

In: spec, weights and tokenizer of a model, a folder, a precision. Out: the files that `layout` names.
Weights beyond what one protobuf holds go to a file beside the graph, written one after another, never
copied as a whole.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import ResourceError
from transduce.hub.disk import FULL
from transduce.onnx import layout
from transduce.onnx.builder import Graph
from transduce.onnx.calibration import calibrated
from transduce.onnx.graph import build
from transduce.onnx.layout import DATA, MODEL, Exported
from transduce.onnx.loop import default_window
from transduce.onnx.precision import precision_named
from transduce.tokenizer import Tokenizer
from transduce.types import FloatArray, ModelSpec, Weights

__all__ = ["FILES", "export", "write_graph"]

FILES = (layout.SPEC, MODEL, DATA, layout.SENTENCEPIECE)
"""What an export may consist of."""

LARGEST_INLINE_BYTES = 1_900_000_000
"""Of weights inside model.onnx: protobuf ends at 2 GiB, and the graph itself needs some of it."""

_ALIGNMENT = 4096
"""Of a tensor in the data file, so that runtimes can map it."""


def export(
    spec: ModelSpec,
    weights: Weights,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    precision: str = "fp32",
    calibration: Sequence[FloatArray] = (),
    window: int | None = None,
    largest_inline_bytes: int = LARGEST_INLINE_BYTES,
) -> Exported:
    """Write the model with the head that its spec chooses, and no other, to `folder`, which is made where
    missing.

    `calibration` is speech `[n]` for int8: with it inputs of products are scaled by ranges seen in it, which
    is faster than row by row, and which OpenVINO multiplies as bytes.
    The files appear whole or not at all. Raises UnsupportedModelError where int8 changes too much,
    ResourceError when the disk is full.
    """
    chosen = precision_named(precision)
    if calibration and chosen.name == "int8":
        chosen = calibrated(spec, weights, calibration)
    window = window or default_window(spec.head)
    spec = replace(spec, heads=(spec.head,))
    graph = build(spec, weights, chosen, window)
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=folder) as made:
            written = Exported(Path(made), spec, tokenizer, chosen.name, window)
            write_graph(graph, written.model, spec.name, largest_inline_bytes)
            layout.write(written)
            _replace(Path(made), folder)
    return Exported(folder, spec, tokenizer, chosen.name, window)


def write_graph(
    graph: Graph, path: Path, name: str, largest_inline_bytes: int = LARGEST_INLINE_BYTES
) -> None:
    """Write `model.onnx`, and `model.onnx.data` if the weights are larger than that."""
    if graph.num_bytes <= largest_inline_bytes:
        path.write_bytes(graph.model(name).SerializeToString())
        return
    with (path.parent / DATA).open("wb") as data:
        tensors = [_written(graph, data, key, array) for key, array in graph.weights.items()]
    path.write_bytes(graph.model(name, tensors).SerializeToString())


def _written(graph: Graph, data: Any, name: str, array: npt.NDArray[Any]) -> Any:
    """Append an array to the data file; the tensor that points at it. Small ones stay in the graph."""
    if array.nbytes < _ALIGNMENT:
        return graph.tensor(name, array)
    data.write(b"\0" * (-data.tell() % _ALIGNMENT))
    tensor = graph.tensor_apart(name, array, DATA, data.tell())
    np.asarray(array, order="C").tofile(data)
    return tensor


def _replace(made: Path, folder: Path) -> None:
    """Move the new files into place, and drop what an earlier export left; the spec comes last."""
    names = [path.name for path in made.iterdir()]
    for name in (layout.SPEC, DATA, layout.SENTENCEPIECE):
        (folder / name).unlink(missing_ok=True)
    for name in sorted(names, key=layout.SPEC.__eq__):
        os.replace(made / name, folder / name)
    assert MODEL in names


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "free space, or choose" if error.errno in FULL else "choose"
        raise ResourceError(
            f"{folder}: the export could not be written ({reason}); {advice} another folder"
        ) from error
