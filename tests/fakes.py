"""A recogniser of clicks, for tests of everything around a backend.

A click is one loud sample in silence; its level is its label: 0.1 is label 0, 0.2 label 1, and so on. So a
test writes recordings whose transcripts, times and order are known exactly, and no weights are run.
"""

import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.pipeline import Limits
from transduce.tokenizer import Tokenizer
from transduce.transcriber import Model
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, Hypothesis, ModelSpec

__all__ = [
    "FRAME_SAMPLES",
    "LOUD",
    "RATE",
    "SPEC",
    "TOKENIZER",
    "WORDS",
    "ClickBackend",
    "click_model",
    "clicks",
    "decode_clicks",
    "spec_at",
    "write_wav",
]

FloatArray = npt.NDArray[np.float32]

RATE = 16000
FRAME_SAMPLES = 1280
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
"""What the labels 0, 1, ... say; label 8 is "teen", which goes on with the word before it."""
TOKENIZER = Tokenizer.from_pieces([*(f"\u2581{word}" for word in WORDS), "teen"], "clicks")

_FEATURES = FeatureSpec(
    sample_rate=RATE,
    num_mels=80,
    window_samples=400,
    hop_samples=160,
    fft_size=512,
    padding="constant",
    num_frames_rule="floor_plus_one",
    preemphasis=0.97,
    log="add",
    normalize="per_feature",
    mel_scale="slaney",
    periodic_window=False,
)
_ENCODER = EncoderSpec(
    num_layers=1,
    width=8,
    num_heads=1,
    feed_forward_width=8,
    conv_kernel=3,
    conv_norm="batch_norm",
    subsampling="dw_striding",
    subsampling_factor=8,
    subsampling_channels=8,
    subsampling_kernel=3,
    attention="rel_pos",
    rotary_base=10000.0,
    bias=True,
    xscaling=False,
)
_HEAD = HeadSpec(kind="rnnt", num_classes=10, blank=9)
SPEC = ModelSpec(
    name="clicks",
    family="nemo",
    features=_FEATURES,
    encoder=_ENCODER,
    heads=(_HEAD,),
    head=_HEAD,
    max_segment_seconds=30.0,
)
"""16 kHz, a frame of 0.08 s, spans of at most 30 s."""


LOUD = Limits(vad="off")
"""For long recordings of clicks, which are no speech."""


def spec_at(rate: int) -> ModelSpec:
    """The same frames of 0.08 s at another rate, for long recordings of few samples."""
    return replace(SPEC, features=replace(_FEATURES, sample_rate=rate, hop_samples=rate // 100))


def clicks(num_seconds: float, places: Mapping[float, int], rate: int = RATE) -> FloatArray:
    """Silence `[n]` with a click at each place in seconds, by its label."""
    samples = np.zeros(round(num_seconds * rate), np.float32)
    for seconds, label in places.items():
        samples[round(seconds * rate)] = (label + 1) / 10
    return samples


def write_wav(path: Path, *channels: FloatArray) -> Path:
    """A 16-bit file of one or more channels `[n]` at `RATE`; gives its path."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.stack(channels, axis=1) * 32767).round().astype("<i2").tobytes())
    return path


def decode_clicks(samples: FloatArray, frame_samples: int = FRAME_SAMPLES) -> Hypothesis:
    """The clicks of a waveform, each at its frame."""
    places = np.flatnonzero(samples > 0.05)
    return Hypothesis(
        ids=np.round(samples[places] * 10).astype(np.int64) - 1,
        frames=places // frame_samples,
        durations=np.zeros(len(places), np.int64),
        log_probs=np.zeros(len(places), np.float32),
    )


@dataclass
class ClickBackend:
    """A `types.Backend`; `fault` may refuse a batch with an exception."""

    spec: ModelSpec = SPEC
    fault: Callable[[Sequence[FloatArray]], Exception | None] = lambda waveforms: None
    batches: list[list[int]] = field(default_factory=list)
    """The lengths in samples of every batch that was asked for."""
    num_closed: int = 0

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        self.batches.append([len(waveform) for waveform in waveforms])
        if error := self.fault(waveforms):
            raise error
        return [decode_clicks(waveform, self.spec.frame_samples) for waveform in waveforms]

    def describe(self) -> Mapping[str, str]:
        return {"engine": "clicks 1.0", "device": "cpu", "precision": "fp32"}

    def close(self) -> None:
        self.num_closed += 1


def click_model(backend: ClickBackend | None = None) -> Model:
    return Model(backend or ClickBackend(), TOKENIZER)
