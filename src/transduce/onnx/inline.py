"""Other tools' exports as graphs of our shape: their networks inside our front end and loop.

In: a ModelSpec and the opened files of one model. Out: a Graph as `graph.build` makes it, and what the
files tell about the model. Predictor and joint become the body of our loop, so the rule is ours; what
the joint does to the frames alone is taken out of the loop and done once. Inputs and outputs are told
apart by position, type and shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import CheckpointError
from transduce.onnx import ctc, frontend, loop
from transduce.onnx.builder import FLOAT, INT64, Graph, Value
from transduce.onnx.foreign import ForeignModel
from transduce.onnx.foreign_heads import FusedHead, SplitHead
from transduce.onnx.loop import LoopHead
from transduce.onnx.session import Session
from transduce.types import ModelSpec, Weights

__all__ = ["Facts", "Fit", "Parts", "build", "facts", "fit", "head_of"]

_PROBE_FRAMES = 12


@dataclass(frozen=True, eq=False)
class Parts:
    """The files of one model, opened."""

    encoder: ForeignModel
    """Of a CTC model: the whole."""
    decoder: ForeignModel | None = None
    """The predictor, or predictor and joint in one where there is no `joint`."""
    joint: ForeignModel | None = None

    @classmethod
    def open(cls, encoder: Path, decoder: Path | None = None, joint: Path | None = None) -> "Parts":
        """Read the files, decoder and joint in the encoder's opset."""
        opened = ForeignModel.open(encoder)
        others = [ForeignModel.open(path, opened.opset) if path else None for path in (decoder, joint)]
        return cls(opened, *others)


@dataclass(frozen=True)
class Facts:
    """What the graphs tell about a model that no file beside them does."""

    num_mels: int
    width: int | None
    """Of an encoder frame; None for CTC models, whose frames stay inside."""
    num_outputs: int
    """Logits of a frame: classes, and durations of TDT."""
    position_limit_frames: int | None
    metadata: Mapping[str, str] = field(default_factory=dict)


def facts(parts: Parts) -> Facts:
    """Raises UnsupportedModelError where a size that must be fixed is not."""
    encoder = parts.encoder
    scorer = parts.joint or parts.decoder or encoder
    return Facts(
        num_mels=encoder.size(encoder.floats("inputs")[0], 1),
        width=None if scorer is encoder else scorer.size(scorer.floats("inputs")[0], 1),
        num_outputs=scorer.size(scorer.floats("outputs")[0], -1),
        position_limit_frames=_position_limit(encoder),
        metadata=encoder.metadata,
    )


def build(spec: ModelSpec, weights: Weights, parts: Parts, window: int) -> Graph:
    """The graph of a model; `weights` are the front end's window and filterbank."""
    encoder = parts.encoder
    graph = Graph(encoder.opset)
    waveforms = graph.add_input("waveforms", FLOAT, ["batch", "samples"])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    features, counts = frontend.log_mel(graph, spec.features, weights, waveforms, lengths)
    encoded, counts = _encode(graph, spec, encoder, features, counts)
    if parts.decoder is None:
        emissions = ctc.collapse(graph, spec.head.blank, encoded, counts)
    else:
        frames = graph.op("Transpose", encoded, perm=[0, 2, 1])  # [B, T, D]
        emissions = loop.transducer(graph, head_of(spec, parts), spec.head, frames, counts, window)
    emissions.declare(graph)
    return graph


def head_of(spec: ModelSpec, parts: Parts) -> LoopHead:
    """The head of a transducer's files."""
    assert parts.decoder is not None
    if parts.joint is None:
        return FusedHead(parts.decoder, spec.head.blank)
    return SplitHead(parts.decoder, parts.joint, spec.head.blank)


def _encode(
    graph: Graph, spec: ModelSpec, encoder: ForeignModel, features: Value, counts: Value
) -> tuple[Value, Value]:
    """The encoder's fp32 output in its own layout, and the number of its frames `[B]`."""
    signal, length = encoder.floats("inputs")[0], encoder.integers("inputs")[0]
    feeds = {
        signal.name: graph.cast(graph.op("Transpose", features, perm=[0, 2, 1]), signal.element),
        length.name: graph.cast(counts, length.element),
    }
    outputs = [encoder.floats("outputs")[0], *encoder.integers("outputs", 0)[:1]]
    with graph.scope("encoder"):
        values = encoder.inline(graph, feeds, [port.name for port in outputs])
    encoded = graph.cast(values[0], FLOAT)
    if len(values) == 2:
        return encoded, graph.cast(values[1], INT64)
    for _ in range(spec.encoder.subsampling_factor.bit_length() - 1):
        counts = graph.op("Div", graph.op("Add", counts, graph.integer(1)), graph.integer(2))
    return encoded, counts


def _position_limit(encoder: ForeignModel) -> int | None:
    """Frames that a stored table of positions covers; None where there is none.

    NeMo stores distances `[1, 2 * n - 1, width]`, GigaAM cosines, then sines `[2 * n, 1, 1, width / heads]`.
    """
    for shape in encoder.stored_shapes():
        if len(shape) == 3 and shape[0] == 1 and shape[1] % 2 == 1 and shape[1] > 1 and shape[2] > 1:
            return (shape[1] + 1) // 2
        if len(shape) == 4 and shape[1:3] == (1, 1) and shape[0] % 2 == 0 and shape[3] > 1:
            return shape[0] // 2
    return None


@dataclass(frozen=True)
class Fit:
    """What the files can do at once."""

    window: int
    lanes: int | None
    """None: any number."""


def fit(spec: ModelSpec, parts: Parts, window: int) -> Fit:
    """The widest use that the decoder's nodes allow: some were exported for one lane or one frame only.

    Raises CheckpointError if they do not run at all.
    """
    if parts.decoder is None:
        return Fit(1, None)
    alone = _decode(spec, parts, 1, lanes=1)
    for tried in (Fit(window, None), Fit(1, None), Fit(window, 1)):
        try:
            found = _decode(spec, parts, tried.window, lanes=tried.lanes or 2)
        except CheckpointError:
            continue
        if all(np.array_equal(lane, only) for lane, only in zip(found, alone, strict=False)):
            return tried
    return Fit(1, 1)


def _decode(spec: ModelSpec, parts: Parts, window: int, lanes: int) -> list[npt.NDArray[np.int64]]:
    """The labels of each lane on the same few frames of noise."""
    assert parts.decoder is not None
    graph = Graph(parts.encoder.opset)
    encoded = graph.add_input("encoded", FLOAT, ["batch", "frames", spec.encoder.width])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    loop.transducer(graph, head_of(spec, parts), spec.head, encoded, lengths, window).declare(graph)
    session = Session.open(
        graph.model("probe").SerializeToString(), str(parts.decoder.path), device="cpu", threads=1
    )
    noise = np.random.default_rng(0).standard_normal((1, _PROBE_FRAMES, spec.encoder.width))
    feeds: dict[str, npt.NDArray[Any]] = {
        "encoded": np.repeat(noise.astype(np.float32), lanes, axis=0),
        "lengths": np.full(lanes, _PROBE_FRAMES, np.int64),
    }
    ids, counts = session.run(["ids", "counts"], feeds)
    return [row[:count] for row, count in zip(ids, counts, strict=True)]
