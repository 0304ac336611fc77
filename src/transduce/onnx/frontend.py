"""The log-mel front end as operators: the ONNX twin of `transduce.features`.

In: waveforms `[B, N]` fp32 and their lengths `[B]`. Out: features `[B, T, M]`, zero past each row's
own frames, and the number of frames `[B]`. Framing is a reshape, the transform a matrix product:
ONNX's own `STFT` lacks kernels on some devices. What lies in the padding of the input never matters.
"""

import numpy as np

from transduce.features import DEVIATION_OFFSET, LOG_OFFSET, LOG_RANGE
from transduce.onnx.builder import FLOAT, Graph, Value
from transduce.types import FeatureSpec, FloatArray, Weights

__all__ = ["log_mel"]


def log_mel(
    graph: Graph, spec: FeatureSpec, weights: Weights, waveforms: Value, lengths: Value
) -> tuple[Value, Value]:
    """Features of waveforms whose lengths are int64; T is what the longest row could have, at least 1."""
    with graph.scope("features"):
        size = graph.scalar_size(waveforms, 1)
        frames = graph.op("Max", _num_frames(graph, spec, size), graph.integer(1))
        counts = _num_frames(graph, spec, lengths)
        signal = _emphasize(graph, spec, waveforms, graph.inside(lengths, size))
        power = _mel_power(graph, spec, weights, _frames(graph, spec, signal, lengths, frames))
        mask = graph.unsqueeze(graph.inside(counts, frames), 2)  # [B, T, 1]
        values = _log(graph, spec, power)
        if spec.normalize == "per_feature":
            values = _normalize(graph, values, mask, counts)
        return graph.op("Where", mask, values, graph.number(0.0)), counts


def _num_frames(graph: Graph, spec: FeatureSpec, samples: Value) -> Value:
    """`FeatureSpec.num_frames` of int64 values of any shape."""
    hop = graph.integer(spec.hop_samples)
    if spec.num_frames_rule == "whole_windows":
        # One hop more and no one after the division, because integer division rounds to zero.
        spare = graph.op("Add", samples, graph.integer(spec.hop_samples - spec.window_samples))
        return graph.op("Div", graph.op("Max", spare, graph.integer(0)), hop)
    whole = graph.op("Div", samples, hop)
    return whole if spec.num_frames_rule == "floor" else graph.op("Add", whole, graph.integer(1))


def _emphasize(graph: Graph, spec: FeatureSpec, waveforms: Value, inside: Value) -> Value:
    """The samples with pre-emphasis, zero past each row's end."""
    zero = graph.number(0.0)
    signal = graph.op("Where", inside, waveforms, zero)
    if not spec.preemphasis:
        return signal
    before = graph.op("Mul", graph.delayed(signal, zero), graph.number(spec.preemphasis))
    emphasized = graph.op("Sub", signal, before)
    return graph.op("Where", inside, emphasized, zero)


def _frames(graph: Graph, spec: FeatureSpec, signal: Value, lengths: Value, num_frames: Value) -> Value:
    """Frames of `window_samples` `[B, T, W]`, as pieces of one hop put side by side."""
    hop, window = spec.hop_samples, spec.window_samples
    pieces = -(-window // hop)
    total = graph.op("Add", num_frames, graph.integer(pieces - 1))
    extended = _extend(graph, spec, signal, lengths, graph.op("Mul", total, graph.integer(hop)))
    rows = graph.op("Reshape", extended, graph.ints(0, -1, hop))  # [B, T + pieces - 1, hop]
    frames = []
    for piece in range(pieces):
        end = graph.op("Add", graph.op("Reshape", num_frames, graph.ints(1)), graph.ints(piece))
        frames.append(graph.slice(rows, graph.ints(piece), end, 1))
    last = window - hop * (pieces - 1)
    frames[-1] = graph.slice(frames[-1], graph.ints(0), graph.ints(last), 2)
    return graph.concat(frames, 2)


def _extend(graph: Graph, spec: FeatureSpec, signal: Value, lengths: Value, total: Value) -> Value:
    """`total` samples of each row's padded signal, from the first window's first sample on."""
    # A window narrower than the transform sits in its middle; the zeros around it only shift the phase.
    before = 0 if spec.padding == "none" else spec.fft_size // 2 - (spec.fft_size - spec.window_samples) // 2
    if spec.padding == "reflect":
        return _reflected(graph, signal, lengths, total, before)
    padded = graph.op("Pad", signal, graph.ints(0, before, 0, spec.window_samples + 2 * spec.hop_samples))
    return graph.slice(padded, graph.ints(0), graph.op("Reshape", total, graph.ints(1)), 1)


def _reflected(graph: Graph, signal: Value, lengths: Value, total: Value, before: int) -> Value:
    """Samples -before, 1 - before, ... reflected at each row's own ends, as often as it takes."""
    index = graph.op("Abs", graph.op("Sub", graph.arange(total), graph.integer(before)))
    period = graph.op("Mul", graph.op("Sub", graph.unsqueeze(lengths, 1), graph.integer(1)), graph.integer(2))
    period = graph.op("Max", period, graph.integer(1))  # [B, 1]
    folded = graph.op("Mod", index, period)
    folded = graph.op("Min", folded, graph.op("Sub", period, folded))
    # A row may be empty in a batch without a single sample; there a zero stands in.
    signal = graph.op("Pad", signal, graph.ints(0, 0, 0, 1))
    last = graph.op("Sub", graph.scalar_size(signal, 1), graph.integer(1))
    return graph.op("GatherElements", signal, graph.op("Min", folded, last), axis=1)


def _mel_power(graph: Graph, spec: FeatureSpec, weights: Weights, frames: Value) -> Value:
    """`[B, T, W]` samples to `[B, T, M]` power; the window is part of the transform."""
    basis = graph.weight(_fourier(weights["features.window"], spec.fft_size), "features.transform")
    parts = graph.op("MatMul", frames, basis)  # cosine, then sine parts
    filterbank = np.tile(weights["features.filterbank"], (2, 1))
    squares = graph.op("Mul", parts, parts)
    return graph.op("MatMul", squares, graph.weight(filterbank, "features.filterbank"))


def _fourier(window: FloatArray, fft_size: int) -> FloatArray:
    """Windowed cosines and sines `[W, 2 * (fft_size // 2 + 1)]`, computed in double precision."""
    cycles = np.outer(np.arange(len(window)), np.arange(fft_size // 2 + 1)) % fft_size
    angles = 2 * np.pi / fft_size * cycles
    basis = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * window[:, None].astype(np.float64)
    return basis.astype(np.float32)


def _log(graph: Graph, spec: FeatureSpec, power: Value) -> Value:
    if spec.log == "add":
        return graph.op("Log", graph.op("Add", power, graph.number(LOG_OFFSET)))
    return graph.op("Log", graph.op("Clip", power, *(graph.number(bound) for bound in LOG_RANGE)))


def _normalize(graph: Graph, values: Value, mask: Value, counts: Value) -> Value:
    """Zero mean and unit unbiased deviation of each mel over a row's own frames."""
    zero, one = graph.number(0.0), graph.number(1.0)
    count = graph.cast(graph.unsqueeze(counts, 1, 2), FLOAT)  # [B, 1, 1]
    centred = graph.op("Where", mask, values, zero)
    # Twice: the rounding of one long sum would shift a quiet mel by much of its small deviation.
    for _ in range(2):
        total = graph.reduce("ReduceSum", centred, 1, keepdims=True)
        mean = graph.op("Div", total, graph.op("Max", count, one))
        centred = graph.op("Where", mask, graph.op("Sub", centred, mean), zero)
    squares = graph.reduce("ReduceSum", graph.op("Mul", centred, centred), 1, keepdims=True)
    variance = graph.op("Div", squares, graph.op("Max", graph.op("Sub", count, one), one))
    deviation = graph.op("Add", graph.op("Sqrt", variance), graph.number(DEVIATION_OFFSET))
    return graph.op("Div", centred, deviation)
