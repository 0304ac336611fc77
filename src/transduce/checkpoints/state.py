"""State dicts of upstream checkpoints, read strictly into weights by our own names.

In: a flat dict of arrays as a checkpoint holds it. Out: weights `encoder.*`, `predictor.*`,
`joint.*`, `ctc.*`, `features.*` in fp32. Every key must be taken or be on a named ignore list; a
missing or misshapen one is a CheckpointError that names it. It knows no archives and no configs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.checkpoints.bounds import MOST_SAMPLES, least_hop
from transduce.checkpoints.config import whole
from transduce.errors import CheckpointError
from transduce.tokenizer import Tokenizer
from transduce.types import EncoderSpec, FloatArray, HeadSpec, ModelSpec, Weights

__all__ = [
    "Checkpoint",
    "StateDict",
    "TransducerNames",
    "character_tokenizer",
    "check_vocabulary",
    "ctc_weights",
    "encoder_weights",
    "front_end_size",
    "hop_size",
    "joint_output",
    "transducer_weights",
]

BATCH_NORM_EPSILON = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model file, read: what it is, how it spells, and its numbers."""

    spec: ModelSpec
    tokenizer: Tokenizer
    weights: Weights


@dataclass
class StateDict:
    """The arrays of one checkpoint and which of them were used."""

    arrays: Mapping[str, npt.NDArray[np.generic]]
    source: str
    taken: set[str] = field(default_factory=set)

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of an array, which is not taken by this."""
        return self._get(key).shape

    def take(self, key: str, *shape: int) -> FloatArray:
        """The array in fp32, which must have the shape given."""
        array = self._get(key)
        if array.dtype.kind != "f":
            raise CheckpointError(
                f"{self.source}: {key} holds {array.dtype} numbers, not floating-point ones"
            )
        if array.shape != shape:
            raise CheckpointError(
                f"{self.source}: {key} has shape {list(array.shape)} where {list(shape)} was expected; "
                "the file is damaged or of a kind this version does not know"
            )
        weights = np.ascontiguousarray(array, np.float32)
        if not np.isfinite(weights).all():
            raise CheckpointError(
                f"{self.source}: {key} holds numbers that are not finite; fetch the file again"
            )
        self.taken.add(key)
        return weights

    def count(self, pattern: str) -> int:
        """One more than the highest number that the pattern's group matches; 0 for none."""
        numbers = (match[1] for match in map(re.compile(pattern).match, self.arrays) if match)
        return max((int(number) + 1 for number in numbers), default=0)

    def finish(self, ignored: Iterable[str]) -> None:
        """Hold that nothing is left over but keys that one of the `ignored` patterns matches."""
        patterns = [re.compile(pattern) for pattern in ignored]
        left = [key for key in self.arrays if key not in self.taken]
        unknown = sorted(key for key in left if not any(p.match(key) for p in patterns))
        if unknown:
            names = ", ".join(unknown[:5]) + (" ..." if len(unknown) > 5 else "")
            raise CheckpointError(
                f"{self.source}: {len(unknown)} parameters have no place in the model: {names}; "
                "the architecture is not one this version knows"
            )

    def _get(self, key: str) -> npt.NDArray[np.generic]:
        if key not in self.arrays:
            raise CheckpointError(f"{self.source}: the parameter {key} is missing; the file is incomplete")
        return self.arrays[key]


def front_end_size(value: Any, name: str, source: str, *, least: int = 1) -> int:
    """A size of the front end as a config gives it."""
    return whole(value, f"preprocessor.{name}", source, least=least, most=MOST_SAMPLES)


def hop_size(value: Any, name: str, source: str, rate: int) -> int:
    """Samples from one frame to the next, as a config gives them."""
    return front_end_size(value, name, source, least=least_hop(rate))


def encoder_weights(state: StateDict, spec: EncoderSpec, num_mels: int) -> dict[str, FloatArray]:
    """All `encoder.*` weights; NeMo and GigaAM share these names."""
    _check_sizes(spec, state.source)
    weights = _subsampling_weights(state, spec, num_mels)
    for index in range(spec.num_layers):
        weights |= _layer_weights(state, spec, f"encoder.layers.{index}")
    return weights


def _check_sizes(spec: EncoderSpec, source: str) -> None:
    """Sizes whose shapes may agree with each other and still not be computed with."""
    head_width = spec.width / max(1, spec.num_heads)
    is_split = head_width.is_integer() and spec.num_heads > 0
    is_even = spec.width % 2 == 0 and (spec.attention == "rel_pos" or head_width % 2 == 0)
    is_centred = spec.conv_kernel % 2 == 1 and spec.subsampling_kernel % 2 == 1
    if not (spec.width and is_split and is_even and is_centred):
        raise CheckpointError(
            f"{source}: an encoder {spec.width} wide with {spec.num_heads} heads and kernels of "
            f"{spec.conv_kernel} and {spec.subsampling_kernel} is not possible; the file is damaged"
        )


def _subsampling_weights(state: StateDict, spec: EncoderSpec, num_mels: int) -> dict[str, FloatArray]:
    channels, kernel, prefix = spec.subsampling_channels, spec.subsampling_kernel, "encoder.pre_encode"
    num_stages = spec.subsampling_factor.bit_length() - 1
    shapes: list[tuple[int, ...]] = []  # of each convolution, in order
    position = 0
    indices: list[int] = []  # of each convolution in upstream's Sequential, ReLUs between
    mels = num_mels
    for stage in range(num_stages):
        mels = (mels + 1) // 2
        inputs = channels if stage else (num_mels if spec.subsampling == "conv1d" else 1)
        if spec.subsampling == "conv1d":
            stage_shapes: list[tuple[int, ...]] = [(channels, inputs, kernel)]
        elif spec.subsampling == "dw_striding" and stage:
            stage_shapes = [(channels, 1, kernel, kernel), (channels, channels, 1, 1)]
        else:
            stage_shapes = [(channels, inputs, kernel, kernel)]
        shapes += stage_shapes
        indices += range(position, position + len(stage_shapes))
        position += len(stage_shapes) + 1
    weights = {}
    for index, shape in zip(indices, shapes, strict=True):
        weights[f"{prefix}.conv.{index}.weight"] = state.take(f"{prefix}.conv.{index}.weight", *shape)
        weights[f"{prefix}.conv.{index}.bias"] = state.take(f"{prefix}.conv.{index}.bias", channels)
    if spec.subsampling != "conv1d":
        weights |= _linear(state, f"{prefix}.out", spec.width, channels * mels, bias=True)
    return weights


def _layer_weights(state: StateDict, spec: EncoderSpec, prefix: str) -> dict[str, FloatArray]:
    width, wide, bias = spec.width, spec.feed_forward_width, spec.bias
    weights: dict[str, FloatArray] = {}
    for name in ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"):
        weights |= _norm(state, f"{prefix}.{name}", width)
    for name in ("feed_forward1", "feed_forward2"):
        weights |= _linear(state, f"{prefix}.{name}.linear1", wide, width, bias=bias)
        weights |= _linear(state, f"{prefix}.{name}.linear2", width, wide, bias=bias)
    for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
        weights |= _linear(state, f"{prefix}.self_attn.{name}", width, width, bias=bias)
    if spec.attention == "rel_pos":
        weights |= _linear(state, f"{prefix}.self_attn.linear_pos", width, width, bias=False)
        for name in ("pos_bias_u", "pos_bias_v"):
            key = f"{prefix}.self_attn.{name}"
            weights[key] = state.take(key, spec.num_heads, width // spec.num_heads)
    return weights | _convolution_weights(state, spec, f"{prefix}.conv")


def _convolution_weights(state: StateDict, spec: EncoderSpec, prefix: str) -> dict[str, FloatArray]:
    """The convolution module; pointwise kernels of 1 become matrices, batch norm is folded in."""
    width, bias = spec.width, spec.bias
    weights: dict[str, FloatArray] = {}
    for name, outputs in (("pointwise_conv1", 2 * width), ("pointwise_conv2", width)):
        key = f"{prefix}.{name}"
        weights[f"{key}.weight"] = state.take(f"{key}.weight", outputs, width, 1)[..., 0]
        if bias:
            weights[f"{key}.bias"] = state.take(f"{key}.bias", outputs)
    key = f"{prefix}.depthwise_conv"
    kernel = state.take(f"{key}.weight", width, 1, spec.conv_kernel)
    offset = state.take(f"{key}.bias", width) if bias else np.zeros(width, np.float32)
    norm = _norm(state, f"{prefix}.batch_norm", width)
    scale, shift = norm.values()
    if spec.conv_norm == "batch_norm":
        mean = state.take(f"{prefix}.batch_norm.running_mean", width)
        variance = state.take(f"{prefix}.batch_norm.running_var", width)
        if variance.min() < 0:
            raise CheckpointError(f"{state.source}: {prefix}.batch_norm.running_var has negative variances")
        factor = scale / np.sqrt(variance.astype(np.float64) + BATCH_NORM_EPSILON)
        kernel = (kernel * factor[:, None, None]).astype(np.float32)
        offset = ((offset - mean) * factor + shift).astype(np.float32)
    else:  # upstream's layer norm sits in a module that is still called batch_norm
        weights |= {f"{prefix}.layer_norm.weight": scale, f"{prefix}.layer_norm.bias": shift}
    weights[f"{key}.weight"] = kernel
    if bias or spec.conv_norm == "batch_norm":
        weights[f"{key}.bias"] = offset
    return weights


def _norm(state: StateDict, prefix: str, width: int) -> dict[str, FloatArray]:
    return {f"{prefix}.{name}": state.take(f"{prefix}.{name}", width) for name in ("weight", "bias")}


def _linear(state: StateDict, prefix: str, outputs: int, inputs: int, *, bias: bool) -> dict[str, FloatArray]:
    weights = {f"{prefix}.weight": state.take(f"{prefix}.weight", outputs, inputs)}
    if bias:
        weights[f"{prefix}.bias"] = state.take(f"{prefix}.bias", outputs)
    return weights


@dataclass(frozen=True, slots=True)
class TransducerNames:
    """Where a checkpoint keeps the parts of its transducer head."""

    embed: str
    lstm: str
    joint: str


def transducer_weights(
    state: StateDict, head: HeadSpec, width: int, names: TransducerNames
) -> dict[str, FloatArray]:
    """`predictor.*` and `joint.*`; hidden sizes are read from shapes."""
    joint = names.joint
    hidden = state.shape(f"{joint}.pred.weight")[0]
    outputs = head.num_classes + (len(head.durations) if head.kind == "tdt" else 0)
    weights, predicted = _predictor_weights(state, names)
    for ours, theirs, shape in (
        ("enc", f"{joint}.enc", (hidden, width)),
        ("pred", f"{joint}.pred", (hidden, predicted)),
        ("out", joint_output(state, joint), (outputs, hidden)),
    ):
        weights[f"joint.{ours}.weight"] = state.take(f"{theirs}.weight", *shape)
        weights[f"joint.{ours}.bias"] = state.take(f"{theirs}.bias", shape[0])
    return weights


def _predictor_weights(state: StateDict, names: TransducerNames) -> tuple[dict[str, FloatArray], int]:
    """`predictor.*` and the width of what it puts out."""
    num_classes, inputs = state.shape(f"{names.embed}.weight")
    weights = {"predictor.embed.weight": state.take(f"{names.embed}.weight", num_classes, inputs)}
    num_layers = state.count(re.escape(names.lstm) + r"\.weight_hh_l(\d+)$")
    for layer in range(max(1, num_layers)):
        hidden = state.shape(f"{names.lstm}.weight_hh_l{layer}")[-1]
        for name, size in (("weight_ih", inputs), ("weight_hh", hidden)):
            key = f"{names.lstm}.{name}_l{layer}"
            weights[f"predictor.lstm.{name}_l{layer}"] = state.take(key, 4 * hidden, size)
        biases = [state.take(f"{names.lstm}.bias_{name}_l{layer}", 4 * hidden) for name in ("ih", "hh")]
        weights[f"predictor.lstm.bias_l{layer}"] = biases[0] + biases[1]
        inputs = hidden
    return weights, inputs


def joint_output(state: StateDict, joint: str) -> str:
    """The joint's last layer, whose index depends on whether a dropout comes before it."""
    last = state.count(re.escape(joint) + r"\.joint_net\.(\d+)\.") - 1
    return f"{joint}.joint_net.{last}"


def ctc_weights(state: StateDict, head: HeadSpec, width: int, prefix: str) -> dict[str, FloatArray]:
    """`ctc.*`, upstream's convolution of kernel 1 as a matrix."""
    return {
        "ctc.weight": state.take(f"{prefix}.weight", head.num_classes, width, 1)[..., 0],
        "ctc.bias": state.take(f"{prefix}.bias", head.num_classes),
    }


def character_tokenizer(labels: Any, source: str) -> Tokenizer:
    """The characters that a config lists."""
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"{source}: the config's vocabulary is not a list of characters; it is damaged")
    return Tokenizer.from_characters(labels, source)


def check_vocabulary(tokenizer: Tokenizer, head: HeadSpec, source: str) -> None:
    """Hold that the tokenizer has a piece for every label but blank."""
    if tokenizer.size != head.num_classes - 1:
        raise CheckpointError(
            f"{source}: the tokenizer has {tokenizer.size} pieces, the head {head.num_classes - 1} labels; "
            "tokenizer and weights do not belong together"
        )
