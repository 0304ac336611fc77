"""What a model's settings may be, whichever file they come from.

In: a ModelSpec, as a reader understood its file. Out: nothing, or a CheckpointError that names the setting,
its value and its range. The ranges are far wider than those of real models: they keep out what would not be
computed with, or without end. Weights and files are not known here.
"""

from collections.abc import Mapping

from transduce.checkpoints.config import number
from transduce.errors import CheckpointError
from transduce.longform import Cutter, grid_of
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, ModelSpec

__all__ = ["MOST_DURATION", "MOST_POSITION_BASE", "MOST_SAMPLES", "MOST_SYMBOLS", "check_spec", "least_hop"]

MOST_SAMPLES = 400_000
"""Above any sample rate, window or number of mels."""
MOST_SIZE = 1_000_000
"""Above any width, kernel or vocabulary."""
MOST_DURATION = 1000
MOST_SYMBOLS = 1000
MOST_POSITION_BASE = 1e9

_Ranges = Mapping[str, tuple[float, float]]

RANGES: Mapping[type, _Ranges] = {
    ModelSpec: {"max_segment_seconds": (0, 86_400), "position_limit_frames": (1, 1e9)},
    FeatureSpec: {
        "sample_rate": (1000, MOST_SAMPLES),
        "num_mels": (1, MOST_SAMPLES),
        "window_samples": (1, MOST_SAMPLES),
        "hop_samples": (1, MOST_SAMPLES),
        "fft_size": (1, MOST_SAMPLES),
        "preemphasis": (0, 1),
    },
    EncoderSpec: {  # of an encoder that is only a graph most sizes are 0: not known
        "num_layers": (0, 1000),
        "width": (0, MOST_SIZE),
        "num_heads": (0, MOST_SIZE),
        "feed_forward_width": (0, MOST_SIZE),
        "conv_kernel": (0, MOST_SIZE),
        "subsampling_factor": (1, 64),
        "subsampling_channels": (0, MOST_SIZE),
        "subsampling_kernel": (0, MOST_SIZE),
        "rotary_base": (0, MOST_POSITION_BASE),
    },
    HeadSpec: {"num_classes": (2, MOST_SIZE), "blank": (0, MOST_SIZE), "max_symbols": (1, MOST_SYMBOLS)},
}
"""The least and the most of every setting that is a number."""


def check_spec(spec: ModelSpec, source: str) -> None:
    """Hold that every number is in its range and that they go together."""
    heads = [(f"heads[{index}].", head) for index, head in enumerate(spec.heads)]
    for prefix, part in (("", spec), ("features.", spec.features), ("encoder.", spec.encoder), *heads):
        for name, (least, most) in RANGES[type(part)].items():
            value = getattr(part, name)
            if value is not None:  # no limit of positions
                number(value, prefix + name, source, least=least, most=most)
    _check_front_end(spec.features, source)
    for prefix, head in heads:
        _check_head(head, prefix, source)
    _check_frames(spec, source)


def least_hop(rate: int) -> int:
    """Samples from one frame to the next: 10 ms in all models; under 2 ms an encoder would never end."""
    return max(1, rate // 500)


def _check_front_end(spec: FeatureSpec, source: str) -> None:
    least = least_hop(spec.sample_rate)
    number(spec.hop_samples, "features.hop_samples", source, least=least, most=MOST_SAMPLES)
    number(spec.fft_size, "features.fft_size", source, least=spec.window_samples, most=MOST_SAMPLES)


def _check_head(head: HeadSpec, prefix: str, source: str) -> None:
    number(head.blank, f"{prefix}blank", source, least=0, most=head.num_classes - 1)
    number(len(head.durations), f"the length of {prefix}durations", source, least=1, most=MOST_DURATION)
    for value in head.durations:
        number(value, f"{prefix}durations", source, least=0, most=MOST_DURATION)


def _check_frames(spec: ModelSpec, source: str) -> None:
    """Halvings make a frame, and the longest segment holds some."""
    factor = spec.encoder.subsampling_factor
    if factor.bit_count() != 1:
        raise CheckpointError(
            f"{source}: encoder.subsampling_factor = {factor} is no power of 2; the config is damaged"
        )
    try:
        Cutter(grid_of(spec))
    except ValueError as error:
        raise CheckpointError(
            f"{source}: max_segment_seconds = {spec.max_segment_seconds:g}, position_limit_frames = "
            f"{spec.position_limit_frames} and frames of {spec.frame_samples} samples do not fit: {error}"
        ) from error
