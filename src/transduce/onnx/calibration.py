"""What an encoder's matrix products see on real speech: the ranges that static int8 needs.

In: a model's weights and some recordings. Out: the least and the largest value of every product's input,
by the name of its weight; and what int8 by these ranges changes. It knows no files.
"""

from collections.abc import Sequence
from dataclasses import replace
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

__all__ = ["MOST_ERROR", "calibrated", "relative_error"]

MOST_ERROR = 0.1
"""Of encoder frames against fp32, by their norms: more than this is refused. bf16 has 0.01 to 0.03."""

CLIP_SECONDS = 20.0
"""Longer recordings are looked at in clips."""


def calibrated(
    spec: ModelSpec, weights: Weights, waveforms: Sequence[FloatArray], threads: int | None = None
) -> Precision:
    """int8 with the ranges that these waveforms `[n]` show.

    Raises UnsupportedModelError where the encoder's frames then differ too much from fp32's.
    """
    clips = [clip for waveform in waveforms for clip in _clips(spec, waveform)]
    probed: dict[str, tuple[str, str]] = {}
    probing = replace(precision_named("fp32"), probed=probed)
    graph = _encoder(spec, weights, probing)
    names = {name: f"range {number}" for number, name in enumerate(probed)}
    for name, (least, most) in probed.items():
        graph.add_output(graph.concat([least, most], 0), FLOAT, [2], names[name])
    session = Session.of_graph(graph, spec.name, threads=threads)
    found = [session.run(list(names.values()), _feeds(clip)) for clip in clips]
    low, high = np.min(found, axis=0)[:, 0], np.max(found, axis=0)[:, 1]
    ranges: Ranges = {
        name: (float(least), float(most)) for name, least, most in zip(names, low, high, strict=True)
    }
    chosen = replace(precision_named("int8"), ranges=ranges)
    error = relative_error(spec, weights, chosen, clips[:2], threads)
    if not error <= MOST_ERROR:
        raise UnsupportedModelError(
            f"{spec.name}: int8 with these recordings changes the encoder's frames by {error:.0%}, more than "
            f"{MOST_ERROR:.0%}; calibrate with other speech, or export in fp32"
        )
    return chosen


def relative_error(
    spec: ModelSpec,
    weights: Weights,
    precision: Precision,
    waveforms: Sequence[FloatArray],
    threads: int | None = None,
) -> float:
    """How far encoder frames in a precision are from those in fp32, by their norms."""
    pair = [
        Session.of_graph(_encoder(spec, weights, each), spec.name, threads=threads)
        for each in (precision_named("fp32"), precision)
    ]
    exact, coarse = (
        np.concatenate([session.run(["encoded"], _feeds(clip))[0][0] for clip in waveforms])
        for session in pair
    )
    return float(np.linalg.norm(coarse - exact) / np.linalg.norm(exact))


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
