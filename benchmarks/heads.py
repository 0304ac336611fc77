"""Transducer heads of real sizes that speak on cue, for benchmarks without trained weights.

In: a size. Out: weights whose products cost what the real ones cost, and encoder frames on which they
decode as on speech. RNN-T: a label every 1 to 5 frames (3 on average), each followed by a blank on its own
frame. TDT: stretches of what a trained model did on a talk of five minutes, jump by jump (`talk.json`, which
`emission.py` made): a label in five frames, and as many blanks as labels.

How: nearly all weights are small noise, and a few are a script. Frames that speak carry a key, +1 and -1
in turn. Labels are of two classes, and one LSTM unit remembers the class of the last one. The joint
compares the two: a label of the key's class wins where they differ, blank wins where they agree, which
they do once the label is out. For TDT, frames also carry how far to go.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from transduce.types import HeadSpec, LstmLayer, TransducerWeights

__all__ = ["SIZES", "Size", "speaking_frames", "speaking_head"]

Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

TDT = (0, 1, 2, 3, 4)
NOISE = 0.01
LONGEST_GAP = 5
USUAL_JUMP = 3


@dataclass(frozen=True)
class Size:
    """A head as it ships: width of LSTM and joint, layers, encoder width, classes with blank, durations."""

    width: int
    num_layers: int
    encoder_width: int
    num_classes: int
    durations: tuple[int, ...] = (0,)
    nemo: tuple[float, ...] = ()
    """Microseconds a frame of NeMo's label looping on one CPU thread, B = 1, 8, 32, as issue 4 gives them."""

    @property
    def spec(self) -> HeadSpec:
        kind = "tdt" if len(self.durations) > 1 else "rnnt"
        return HeadSpec(kind, self.num_classes, self.num_classes - 1, self.durations)  # type: ignore[arg-type]


SIZES = {
    "gigaam-34": Size(320, 1, 768, 34, nemo=(813, 133, 64)),
    "gigaam-1025": Size(320, 1, 768, 1025, nemo=(599, 202, 107)),
    "parakeet-rnnt-1025": Size(640, 2, 1024, 1025, nemo=(4051, 877, 381)),
    "parakeet-tdt-1025": Size(640, 2, 1024, 1025, TDT, nemo=(3563, 657, 253)),
    "parakeet-rnnt-8193": Size(640, 2, 1024, 8193),
    "parakeet-tdt-8193": Size(640, 2, 1024, 8193, TDT),
}


def speaking_head(size: Size, seed: int = 0) -> TransducerWeights:
    """Weights of a head of that size."""
    rng = np.random.default_rng(seed)

    def noise(*shape: int) -> Array:
        return (rng.standard_normal(shape) * NOISE).astype(np.float32)

    width, num_classes = size.width, size.num_classes
    embedding = noise(num_classes, width)
    embedding[:, 0] = np.where(np.arange(num_classes) % 2 == 0, 1, -1)  # the class of a label
    embedding[-1] = 0
    enc, pred = noise(width, size.encoder_width), noise(width, width)
    enc_bias = noise(width)
    num_durations = len(size.durations) if len(size.durations) > 1 else 0
    out = 10 * noise(num_classes + num_durations, width)  # labels of a class are far apart: few near ties
    out_bias = noise(num_classes + num_durations)

    # joint units 0 and 1: the key is +1 (-1), and the last label was of the other class
    enc[:2], pred[:2] = 0, 0
    enc[:2, 0], pred[:2, 0], enc_bias[:2] = (1, -1), (-1 / np.tanh(1), 1 / np.tanh(1)), -1.4
    out[:, :2] = 0
    out[0 : num_classes - 1 : 2, 0] = 20
    out[1 : num_classes - 1 : 2, 1] = 20
    out_bias[num_classes - 1] = 6
    for place in range(num_durations):  # joint units 2 and on: how far the next key is
        enc[2 + place], pred[2 + place] = 0, 0
        enc[2 + place, 1 + place] = 1
        out[num_classes + place, 2 + place] = 20
    return TransducerWeights(
        embedding=embedding,
        lstm=tuple(_layer(width, noise) for _ in range(size.num_layers)),
        enc_weight=enc,
        enc_bias=enc_bias,
        pred_weight=pred,
        pred_bias=noise(width),
        out_weight=out,
        out_bias=out_bias,
        activation="relu",
    )


def _layer(width: int, noise: Callable[..., Array]) -> LstmLayer:
    """Noise, but for unit 0: it holds the class that comes in, and forgets the one before."""
    weight_ih, weight_hh, bias = noise(4 * width, width), noise(4 * width, width), noise(4 * width)
    input_gate, forget_gate, value, output_gate = (number * width for number in range(4))
    for row in (input_gate, forget_gate, value, output_gate):
        weight_ih[row], weight_hh[row], bias[row] = 0, 0, 0
    bias[[input_gate, output_gate]], bias[forget_gate] = 10, -10
    weight_ih[value, 0], bias[value] = 5, -2.5  # before any label: as after one of the second class
    return LstmLayer(weight_ih, weight_hh, bias)


def speaking_frames(size: Size, num: int, num_frames: int, seed: int = 0) -> tuple[Array, int]:
    """Encoder frames `[num, num_frames, encoder_width]`, and how many labels they hold in all."""
    rng = np.random.default_rng(seed)
    frames = rng.standard_normal((num, num_frames, size.encoder_width)).astype(np.float32)
    frames[:, :, : 1 + len(TDT)] = 0
    script = _talk_script if size.spec.kind == "tdt" else _even_script
    num_labels = 0
    for row in frames:
        places, jumps = script(rng, num_frames)
        row[places, 0] = np.where(np.arange(len(places)) % 2 == 0, 1, -1)
        row[np.arange(num_frames), 1 + jumps] = 1
        num_labels += len(places)
    return frames, num_labels


Script = tuple[IntArray, IntArray]
"""The frames that speak, and how far each frame jumps `[num_frames]`."""


def _even_script(rng: np.random.Generator, num_frames: int) -> Script:
    places = np.cumsum(rng.integers(1, LONGEST_GAP + 1, num_frames)) - 1
    return places[places < num_frames], np.zeros(num_frames, np.int64)


def _talk_script(rng: np.random.Generator, num_frames: int) -> Script:
    """A stretch of the talk that starts at one of its evaluations."""
    speaks, jumps = _talk()
    evaluated = np.flatnonzero(jumps[:-num_frames])
    first = int(rng.choice(evaluated))
    part = slice(first, first + num_frames)
    return np.flatnonzero(speaks[part]), np.where(jumps[part] > 0, jumps[part], USUAL_JUMP)


@cache
def _talk() -> tuple[IntArray, IntArray]:
    """Of every frame, whether a label is there, and how far the model jumped from it; 0: it did not look."""
    talk = json.loads(Path(__file__).with_name("talk.json").read_text(encoding="utf-8"))
    speaks, jumps = np.zeros((2, talk["num_frames"]), np.int64)
    for frame, duration in talk["blanks"] + talk["labels"]:
        jumps[frame] = duration
    speaks[[frame for frame, _ in talk["labels"]]] = 1
    return speaks, jumps
