"""Models of real sizes with random weights that speak as on speech, for measuring without a download.

In: a size's name. Out: a Checkpoint with a transducer and a CTC head. Products cost what they cost in the
real model. The labels are meaningless, but as many as in speech: a frame gives at most one label, and
about one frame in three (six, where frames are twice as long and the model is TDT) gives one, which
`speaking` arranges by looking at encoder frames.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from transduce import features
from transduce.checkpoints import Checkpoint
from transduce.errors import UnsupportedModelError
from transduce.greedy import LstmHead, transducer
from transduce.tokenizer import Tokenizer
from transduce.types import (
    EncoderSpec,
    FeatureSpec,
    FloatArray,
    HeadSpec,
    ModelSpec,
    TransducerWeights,
    Weights,
)

__all__ = ["SIZES", "Size", "checkpoint", "noise", "speaking"]

LABELS_A_SECOND = 4.0
"""Of tokens of a few letters, as models with a thousand of them emit."""


MOST_FRAMES = 64
"""That the rate is measured on: each of ten tries decodes them one by one."""


@dataclass(frozen=True, slots=True)
class Size:
    """What makes a model as large as it is; `checkpoint` fills in what its family always has."""

    spec: ModelSpec
    hidden: int
    """Of the prediction network and the joint."""
    num_lstm_layers: int


_NEMO_FRONT = FeatureSpec(
    sample_rate=16000,
    num_mels=128,
    window_samples=400,
    hop_samples=160,
    fft_size=512,
    padding="constant",
    num_frames_rule="floor",
    preemphasis=0.97,
    log="add",
    normalize="per_feature",
    mel_scale="slaney",
    periodic_window=False,
)
_GIGAAM_FRONT = FeatureSpec(
    sample_rate=16000,
    num_mels=64,
    window_samples=320,
    hop_samples=160,
    fft_size=320,
    padding="none",
    num_frames_rule="whole_windows",
    preemphasis=0.0,
    log="clamp",
    normalize="none",
    mel_scale="htk",
    periodic_window=True,
)
_GIGAAM_ENCODER = EncoderSpec(
    num_layers=16,
    width=768,
    num_heads=16,
    feed_forward_width=3072,
    conv_kernel=5,
    conv_norm="layer_norm",
    subsampling="conv1d",
    subsampling_factor=4,
    subsampling_channels=768,
    subsampling_kernel=5,
    attention="rotary",
    rotary_base=5000.0,
    bias=True,
    xscaling=False,
)
_NEMO_ENCODER = EncoderSpec(
    num_layers=24,
    width=1024,
    num_heads=8,
    feed_forward_width=4096,
    conv_kernel=9,
    conv_norm="batch_norm",
    subsampling="dw_striding",
    subsampling_factor=8,
    subsampling_channels=256,
    subsampling_kernel=3,
    attention="rel_pos",
    rotary_base=0.0,
    bias=False,
    xscaling=False,
)


def _heads(kind: str, num_classes: int, durations: tuple[int, ...] = (0,)) -> tuple[HeadSpec, ...]:
    """A transducer that gives at most one label a frame, and CTC."""
    blank = num_classes - 1
    main = HeadSpec(kind, num_classes, blank, durations, max_symbols=1)  # type: ignore[arg-type]
    return main, HeadSpec("ctc", num_classes, blank)


def _gigaam(name: str, first: int) -> Size:
    heads = _heads("rnnt", 1025)
    spec = ModelSpec(name, "gigaam", _GIGAAM_FRONT, _GIGAAM_ENCODER, heads, heads[first], 25.0)
    return Size(spec, 320, 1)


def _parakeet(name: str, num_layers: int, heads: tuple[HeadSpec, ...], num_mels: int) -> Size:
    front = replace(_NEMO_FRONT, num_mels=num_mels)
    encoder = replace(_NEMO_ENCODER, num_layers=num_layers)
    return Size(ModelSpec(name, "nemo", front, encoder, heads, heads[0], 30.0), 640, 2)


SIZES = {
    "gigaam-v3-rnnt": _gigaam("gigaam-v3-rnnt", 0),
    "gigaam-v3-ctc": _gigaam("gigaam-v3-ctc", 1),
    "parakeet-tdt-0.6b": _parakeet("parakeet-tdt-0.6b", 24, _heads("tdt", 8193, (0, 1, 2, 3, 4)), 128),
    "parakeet-rnnt-1.1b": _parakeet("parakeet-rnnt-1.1b", 42, _heads("rnnt", 1025), 80),
}
"""As released, but for the limit of one label a frame; all have a CTC head beside the transducer."""


def checkpoint(size: Size, seed: int = 0) -> Checkpoint:
    """A model of that size, whose transducer gives any number of labels until `speaking` has seen frames."""
    rng, spec = np.random.default_rng(seed), size.spec
    weights = {
        name: array for part in (_front(spec), _encoder(spec, rng), _head(size, rng)) for name, array in part
    }
    labels = ["<unk>", *(f"▁{number:x}" for number in range(1, spec.head.num_classes - 1))]
    return Checkpoint(spec, Tokenizer.from_pieces(labels, spec.name), weights)


def speaking(made: Checkpoint, frames: FloatArray) -> Checkpoint:
    """The same model with heads that give about `LABELS_A_SECOND` on encoder frames `[T, D]` like these.

    What the heads read of a frame is spread to mean 0 and deviation 2, since a random encoder hardly
    varies; then the blank's bias is found by bisection.
    """
    weights = dict(made.weights)
    for name in ("joint.enc", "ctc"):
        weight = weights[f"{name}.weight"] * np.float32(2 / max(float(frames.std(axis=0).mean()), 1e-6))
        weights[f"{name}.weight"] = weight
        weights[f"{name}.bias"] = weights[f"{name}.bias"] - weight @ frames.mean(axis=0)
    wanted = LABELS_A_SECOND * made.spec.frame_samples / made.spec.features.sample_rate
    frames = frames[:MOST_FRAMES]
    for head in made.spec.heads:
        name = "ctc.bias" if head.kind == "ctc" else "joint.out.bias"
        low, high = -100.0, 100.0
        for _ in range(10):
            weights[name] = weights[name].copy()
            weights[name][head.blank] = (low + high) / 2
            rate = _num_labels(weights, head, frames) / len(frames)
            low, high = ((low + high) / 2, high) if rate > wanted else (low, (low + high) / 2)
    return replace(made, weights=weights)


def _num_labels(weights: Weights, head: HeadSpec, frames: FloatArray) -> int:
    if head.kind == "ctc":
        best = (frames @ weights["ctc.weight"].T + weights["ctc.bias"]).argmax(axis=1)
        return int(((best != head.blank) & (best != np.append(-1, best[:-1]))).sum())
    scalar = LstmHead(TransducerWeights.of(weights, head), head)
    return len(transducer(frames, scalar, head.durations, head.max_symbols))


def noise(num_samples: int, seed: int = 0) -> FloatArray:
    """Noise `[n]` whose loudness changes ten times a second."""
    rng = np.random.default_rng(seed)
    loudness = np.repeat(rng.uniform(0, 0.3, num_samples // 1600 + 1), 1600)[:num_samples]
    return (loudness * rng.standard_normal(num_samples)).astype(np.float32)


# Weights

_Named = Iterator[tuple[str, FloatArray]]


def _front(spec: ModelSpec) -> _Named:
    front = spec.features
    yield "features.window", features.hann_window(front.window_samples, periodic=front.periodic_window)
    yield "features.filterbank", features.mel_filterbank(front)


def _random(
    rng: np.random.Generator, name: str, *shape: int, bias: bool = True, scale: float = 1.0
) -> _Named:
    """A weight that keeps the size of what it multiplies, and a bias of zeros."""
    deviation = np.float32(scale / math.sqrt(math.prod(shape[1:])))
    yield f"{name}.weight", rng.standard_normal(shape, np.float32) * deviation
    if bias:
        yield f"{name}.bias", np.zeros(shape[0], np.float32)


def _norm(name: str, width: int) -> _Named:
    yield f"{name}.weight", np.ones(width, np.float32)
    yield f"{name}.bias", np.zeros(width, np.float32)


def _encoder(spec: ModelSpec, rng: np.random.Generator) -> _Named:
    encoder = spec.encoder
    yield from _subsampling(encoder, spec.features.num_mels, rng)
    for index in range(encoder.num_layers):
        yield from _layer(encoder, f"encoder.layers.{index}", rng)


def _subsampling(encoder: EncoderSpec, num_mels: int, rng: np.random.Generator) -> _Named:
    channels, kernel = encoder.subsampling_channels, encoder.subsampling_kernel
    if encoder.subsampling == "conv1d":
        yield from _random(rng, "encoder.pre_encode.conv.0", channels, num_mels, kernel)
        yield from _random(rng, "encoder.pre_encode.conv.2", channels, channels, kernel)
        return
    if encoder.subsampling != "dw_striding":
        raise UnsupportedModelError(f"no random weights are made for {encoder.subsampling} subsampling")
    yield from _random(rng, "encoder.pre_encode.conv.0", channels, 1, kernel, kernel)
    index = 2
    for _ in range(encoder.subsampling_factor.bit_length() - 2):
        yield from _random(rng, f"encoder.pre_encode.conv.{index}", channels, 1, kernel, kernel)
        yield from _random(rng, f"encoder.pre_encode.conv.{index + 1}", channels, channels, 1, 1)
        index += 3
    for _ in range(encoder.subsampling_factor.bit_length() - 1):
        num_mels = (num_mels + 1) // 2
    yield from _random(rng, "encoder.pre_encode.out", encoder.width, channels * num_mels)


def _layer(encoder: EncoderSpec, layer: str, rng: np.random.Generator) -> _Named:
    width, bias = encoder.width, encoder.bias
    for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
        yield from _norm(f"{layer}.norm_{norm}", width)
    for number in (1, 2):
        inner = f"{layer}.feed_forward{number}"
        yield from _random(rng, f"{inner}.linear1", encoder.feed_forward_width, width, bias=bias)
        yield from _random(
            rng, f"{inner}.linear2", width, encoder.feed_forward_width, bias=bias, scale=RESIDUE
        )
    for part in "qkv":
        yield from _random(rng, f"{layer}.self_attn.linear_{part}", width, width, bias=bias)
    yield from _random(rng, f"{layer}.self_attn.linear_out", width, width, bias=bias, scale=RESIDUE)
    if encoder.attention == "rel_pos":
        yield from _random(rng, f"{layer}.self_attn.linear_pos", width, width, bias=False)
        for name in ("pos_bias_u", "pos_bias_v"):
            shape = (encoder.num_heads, width // encoder.num_heads)
            yield f"{layer}.self_attn.{name}", np.zeros(shape, np.float32)
    yield from _random(rng, f"{layer}.conv.pointwise_conv1", 2 * width, width, bias=bias)
    yield from _random(rng, f"{layer}.conv.depthwise_conv", width, 1, encoder.conv_kernel)
    if encoder.conv_norm == "layer_norm":
        yield from _norm(f"{layer}.conv.layer_norm", width)
    yield from _random(rng, f"{layer}.conv.pointwise_conv2", width, width, bias=bias, scale=RESIDUE)


RESIDUE = 0.2
"""What a layer adds: a random one that adds much leaves nothing of the frame it was given."""


def _head(size: Size, rng: np.random.Generator) -> _Named:
    spec, hidden, width = size.spec, size.hidden, size.spec.encoder.width
    head = spec.heads[0]
    num_outputs = head.num_classes + (len(head.durations) if head.kind == "tdt" else 0)
    embedding = rng.standard_normal((head.num_classes, hidden), np.float32)
    embedding[head.blank] = 0
    yield "predictor.embed.weight", embedding
    for layer in range(size.num_lstm_layers):
        for name in ("weight_ih", "weight_hh"):
            matrix = rng.standard_normal((4 * hidden, hidden), np.float32) / np.float32(math.sqrt(hidden))
            yield f"predictor.lstm.{name}_l{layer}", matrix
        yield f"predictor.lstm.bias_l{layer}", np.zeros(4 * hidden, np.float32)
    yield from _random(rng, "joint.enc", hidden, width)
    yield from _random(rng, "joint.pred", hidden, hidden)
    yield from _random(rng, "joint.out", num_outputs, hidden)
    yield from _random(rng, "ctc", spec.heads[1].num_classes, width)
