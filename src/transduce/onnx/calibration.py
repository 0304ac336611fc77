"""What an encoder's matrix products see on real speech: the ranges that static int8 needs.

In: a model's weights and some recordings. Out: the least and the largest value of every product's input,
by the name of its weight; and what int8 by these ranges changes. It knows no files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import UnsupportedModelError
from transduce.onnx import encoder, frontend
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.graph import OPSET
from transduce.onnx.precision import Precision, Ranges, precision_named
from transduce.onnx.session import Session
from transduce.types import FloatArray, ModelSpec, Weights

__all__ = ["MOST_ERROR", "Seen", "calibrated", "int8_by", "relative_error", "watched"]

MOST_ERROR = 0.1
"""Of encoder frames against fp32, by their norms: more than this is refused. bf16 has 0.01 to 0.03."""

CLIP_SECONDS = 20.0
"""Longer recordings are looked at in clips."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the encoder showed on one clip, in fp32."""

    ranges: Ranges
    """The least and the largest input of each product, by the name of its weight."""
    frames: FloatArray
    """`[T, D]`."""


def calibrated(
    spec: ModelSpec, weights: Weights, waveforms: Sequence[FloatArray], threads: int | None = None
) -> Precision:
    """int8 with the ranges that these waveforms `[n]` show.

    Raises UnsupportedModelError where the encoder's frames then differ too much from fp32's.
    """
    clips = [clip for waveform in waveforms for clip in _clips(spec, waveform)]
    seen = watched(spec, weights, clips, threads)
    judges = list(islice(seen, 2))
    chosen = int8_by(chain(judges, seen))
    session = Session.of_graph(_encoder(spec, weights, chosen), spec.name, threads=threads)
    coarse = [session.run(["encoded"], _feeds(clip))[0][0] for clip in clips[:2]]
    error = relative_error(coarse, [each.frames for each in judges])
    if not error <= MOST_ERROR:
        raise UnsupportedModelError(
            f"{spec.name}: int8 with these recordings changes the encoder's frames by {error:.0%}, more than "
            f"{MOST_ERROR:.0%}; calibrate with other speech, or export in fp32"
        )
    return chosen


def watched(
    spec: ModelSpec, weights: Weights, clips: Sequence[FloatArray], threads: int | None = None
) -> Iterator[Seen]:
    """Run the encoder in fp32 on each clip `[n]`, in order."""
    probed: dict[str, tuple[str, str]] = {}
    graph = _encoder(spec, weights, replace(precision_named("fp32"), probed=probed))
    outputs = [f"range {number}" for number in range(len(probed))]
    for (least, most), output in zip(probed.values(), outputs, strict=True):
        graph.add_output(graph.concat([least, most], 0), FLOAT, [2], output)
    session = Session.of_graph(graph, spec.name, threads=threads, lasts=False)
    for clip in clips:
        frames, *ends = session.run(["encoded", *outputs], _feeds(clip))
        ranges = {name: (float(low), float(high)) for name, (low, high) in zip(probed, ends, strict=True)}
        yield Seen(ranges, frames[0])


def int8_by(seen: Iterable[Seen]) -> Precision:
    """int8 with the widest ranges of all clips."""
    widest: dict[str, tuple[float, float]] = {}
    for each in seen:
        for name, (low, high) in each.ranges.items():
            least, most = widest.get(name, (low, high))
            widest[name] = min(low, least), max(high, most)
    return replace(precision_named("int8"), ranges=widest)


def relative_error(coarse: Sequence[FloatArray], exact: Sequence[FloatArray]) -> float:
    """How far frames `[T, D]` of some clips are from exact ones, by their norms."""
    difference = np.concatenate(coarse) - np.concatenate(exact)
    return float(np.linalg.norm(difference) / np.linalg.norm(np.concatenate(exact)))


def _encoder(spec: ModelSpec, weights: Weights, precision: Precision) -> Graph:
    graph = Graph(OPSET)
    waveforms = graph.add_input("waveforms", FLOAT, ["batch", "samples"])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    features, counts = frontend.log_mel(graph, spec.features, weights, waveforms, lengths)
    encoded, _ = encoder.encode(graph, spec.encoder, weights, precision, features, counts)
    graph.add_output(encoded, FLOAT, ["batch", "frames", spec.encoder.width], "encoded")
    return graph


def _clips(spec: ModelSpec, waveform: FloatArray) -> list[FloatArray]:
    size = round(CLIP_SECONDS * spec.features.sample_rate)
    return [waveform[first : first + size] for first in range(0, len(waveform), size)]


def _feeds(clip: FloatArray) -> dict[str, npt.NDArray[Any]]:
    return {"waveforms": clip[None], "lengths": np.array([len(clip)], np.int64)}
