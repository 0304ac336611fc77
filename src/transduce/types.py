"""The data that flows through the package, and the one seam (`Backend`).

Everything here is frozen and plain: specs say what a model is, a hypothesis says what was
decoded (integers and log-probabilities; no text, no seconds); tokens, words and segments say
what a person reads (text and seconds). Nothing here knows torch, onnxruntime, files or tokenizers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Backend",
    "EncoderSpec",
    "FeatureSpec",
    "FloatArray",
    "HeadSpec",
    "Hypothesis",
    "IntArray",
    "LstmLayer",
    "ModelSpec",
    "Segment",
    "Token",
    "TransducerWeights",
    "Weights",
    "Word",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

Weights: TypeAlias = Mapping[str, FloatArray]
"""Parameters by our own names, fp32: `features.*`, `encoder.*`, `predictor.*`, `joint.*`, `ctc.*`."""


# What a model is


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """The log-mel front end. Window and filterbank themselves are weights (`features.*`)."""

    sample_rate: int
    num_mels: int
    window_samples: int
    hop_samples: int
    fft_size: int
    """At least `window_samples`; the window sits in the middle of the transform."""
    padding: Literal["constant", "reflect", "none"]
    """How the signal is extended by fft_size // 2 at both ends; none: frames start at sample 0."""
    num_frames_rule: Literal["floor", "floor_plus_one", "whole_windows"]
    """n // hop; n // hop + 1; or (n - window) // hop + 1."""
    preemphasis: float
    """y[i] = x[i] - preemphasis * x[i - 1]; 0 switches it off."""
    log: Literal["add", "clamp"]
    """log(power + 2**-24) as NeMo, or log(clip(power, 1e-9, 1e9)) as GigaAM."""
    normalize: Literal["per_feature", "none"]
    """per_feature: zero mean and unit (unbiased) deviation of each mel over the valid frames."""
    mel_scale: Literal["slaney", "htk"]
    """How the filterbank is computed where the checkpoint does not carry one."""
    periodic_window: bool
    """Which Hann window, where the checkpoint does not carry one."""

    def num_frames(self, num_samples: int) -> int:
        """Valid feature frames of a signal of `num_samples`."""
        if self.num_frames_rule == "whole_windows":
            return max(0, (num_samples - self.window_samples) // self.hop_samples + 1)
        return num_samples // self.hop_samples + (self.num_frames_rule == "floor_plus_one")


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """A Conformer / FastConformer encoder: subsampling convolutions, then identical layers."""

    num_layers: int
    width: int
    num_heads: int
    feed_forward_width: int
    conv_kernel: int
    conv_norm: Literal["batch_norm", "layer_norm"]
    subsampling: Literal["striding", "dw_striding", "conv1d"]
    """Full 2-d convolutions; depthwise-separable 2-d ones; or 1-d ones over the mels."""
    subsampling_factor: int
    subsampling_channels: int
    subsampling_kernel: int
    attention: Literal["rel_pos", "rotary"]
    rotary_base: float
    """Base of the rotary angles (GigaAM passes its pos_emb_max_len here); unused by rel_pos."""
    bias: bool
    """Whether linear layers and convolutions of the layers have biases."""
    xscaling: bool
    """Whether the layers' input is multiplied by sqrt(width)."""

    def num_frames(self, num_feature_frames: int) -> int:
        """Encoder frames for a number of feature frames: each stride-2 stage halves, rounding up."""
        frames = num_feature_frames
        for _ in range(self.subsampling_factor.bit_length() - 1):
            frames = (frames + 1) // 2
        return frames


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """What turns encoder frames into labels."""

    kind: Literal["rnnt", "tdt", "ctc"]
    num_classes: int
    """Labels and blank together; duration outputs not counted."""
    blank: int
    durations: tuple[int, ...] = (0,)
    """TDT's table of frame jumps; RNN-T is TDT with (0,) and no duration logits."""
    max_symbols: int = 10
    """Most labels with duration 0 on one frame before time moves on by itself."""
    activation: Literal["relu", "tanh"] = "relu"
    """The joint's non-linearity; unused by ctc."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """All that is known of a model besides its weights and its tokenizer."""

    name: str
    family: Literal["nemo", "gigaam"]
    features: FeatureSpec
    encoder: EncoderSpec
    heads: tuple[HeadSpec, ...]
    """Every head in the file, the default one first (a hybrid has two)."""
    head: HeadSpec
    """The head that decodes."""
    max_segment_seconds: float
    """Longest audio for one pass; longer audio is cut."""
    position_limit_frames: int | None = None
    """Encoder frames that a baked-in positional table covers; None: any number."""
    language: str | None = None

    @property
    def frame_samples(self) -> int:
        """Audio samples that one encoder frame stands for."""
        return self.features.hop_samples * self.encoder.subsampling_factor

    def num_frames(self, num_samples: int) -> int:
        """Encoder frames of a signal of `num_samples`."""
        return self.encoder.num_frames(self.features.num_frames(num_samples))


@dataclass(frozen=True, slots=True, eq=False)
class LstmLayer:
    """One LSTM layer, gates in the order i, f, g, o; the two upstream biases are added up."""

    weight_ih: FloatArray  # [4 * H, D]
    weight_hh: FloatArray  # [4 * H, H]
    bias: FloatArray  # [4 * H]


@dataclass(frozen=True, slots=True, eq=False)
class TransducerWeights:
    """Prediction network and joint: logits = out(act(enc(frame) + pred(lstm(embed(label)))))."""

    embedding: FloatArray  # [num_classes, D], the blank row is zero
    lstm: tuple[LstmLayer, ...]
    enc_weight: FloatArray  # [J, encoder width]
    enc_bias: FloatArray  # [J]
    pred_weight: FloatArray  # [J, H]
    pred_bias: FloatArray  # [J]
    out_weight: FloatArray  # [num_classes (+ num_durations), J]
    out_bias: FloatArray  # [num_classes (+ num_durations)]
    activation: Literal["relu", "tanh"]

    @classmethod
    def of(cls, weights: Weights, head: HeadSpec) -> "TransducerWeights":
        """The `predictor.*` and `joint.*` part of a model's weights."""
        num_layers = sum(name.startswith("predictor.lstm.bias_l") for name in weights)
        names = ("weight_ih", "weight_hh", "bias")
        return cls(
            embedding=weights["predictor.embed.weight"],
            lstm=tuple(
                LstmLayer(*(weights[f"predictor.lstm.{name}_l{layer}"] for name in names))
                for layer in range(num_layers)
            ),
            enc_weight=weights["joint.enc.weight"],
            enc_bias=weights["joint.enc.bias"],
            pred_weight=weights["joint.pred.weight"],
            pred_bias=weights["joint.pred.bias"],
            out_weight=weights["joint.out.weight"],
            out_bias=weights["joint.out.bias"],
            activation=head.activation,
        )


# What was decoded


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """One decoded utterance. The arrays have one entry a label and own their memory."""

    ids: IntArray  # [U]
    frames: IntArray  # [U], encoder frame at which the label was emitted
    durations: IntArray  # [U], frames: 0 for RNN-T, the run length for CTC, the model's for TDT
    log_probs: FloatArray  # [U], of the label among labels and blank at its own frame

    def __post_init__(self) -> None:
        sizes = {len(self.ids), len(self.frames), len(self.durations), len(self.log_probs)}
        if len(sizes) != 1:
            raise ValueError(f"the arrays of a hypothesis differ in length: {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def joined(cls, parts: Sequence["Hypothesis"]) -> "Hypothesis":
        """The labels of all parts, one after the other."""
        return cls(
            ids=np.concatenate([np.empty(0, np.int64), *(part.ids for part in parts)]),
            frames=np.concatenate([np.empty(0, np.int64), *(part.frames for part in parts)]),
            durations=np.concatenate([np.empty(0, np.int64), *(part.durations for part in parts)]),
            log_probs=np.concatenate([np.empty(0, np.float32), *(part.log_probs for part in parts)]),
        )

    def part(self, first: int, end: int) -> "Hypothesis":
        """Copies of the labels from number `first` to before `end`."""
        arrays = (self.ids, self.frames, self.durations, self.log_probs)
        return Hypothesis(*(array[first:end].copy() for array in arrays))

    def at(self, frames: IntArray) -> "Hypothesis":
        """The same labels at other frames."""
        return Hypothesis(self.ids, frames, self.durations, self.log_probs)


class Backend(Protocol):
    """The seam: waveforms in, hypotheses out. Padding, devices and sessions stay behind it."""

    @property
    def spec(self) -> ModelSpec: ...

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """Decode mono waveforms `[n]` at the model's rate, in order, as one batch."""
        ...

    def describe(self) -> Mapping[str, str]:
        """What really runs: engine, device, precision, decoder, and why not a better one."""
        ...

    def close(self) -> None:
        """Free what the backend holds; it is not used afterwards."""
        ...


# What a person reads


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted label, in the order of the text; times in seconds."""

    id: int
    text: str
    """The characters that the token adds; its leading space is part of it."""
    frame: int
    duration_frames: int
    start: float
    end: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Word:
    """A run of tokens between spaces, punctuation attached; times in seconds."""

    word: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A sentence or a stretch between pauses; its words joined by spaces are its text."""

    id: int
    start: float
    end: float
    text: str
    confidence: float
    words: tuple[Word, ...]
