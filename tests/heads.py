"""Heads for decoder tests: random ones of both kinds, and those of the upstream decode vectors.

In: a numpy generator. Out: pairs of heads, one for the scalar rule (`greedy.Head`) and one for lanes
(`step.Head`), that stand for the same model. The tables hold small integers, so that ties are
exact and frequent; the others are real LSTMs in float64, where rounding cannot reach a decision.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support import data

from transduce import greedy
from transduce.greedy import LstmHead
from transduce.nn.step import Head
from transduce.nn.transducer import TransducerHead
from transduce.types import HeadSpec, Hypothesis, LstmLayer, TransducerWeights

Array = npt.NDArray[Any]


# Integer tables


@dataclass(frozen=True, eq=False)
class Tables:
    """A model whose predictor is an automaton: logits = frame + given[state]; state = after[state, label]."""

    given: Array  # [S, C], integers
    after: Array  # [S, num_classes]


@dataclass(frozen=True, eq=False)
class ScalarTables:
    """`greedy.Head` on tables."""

    tables: Tables
    spec: HeadSpec

    @property
    def blank(self) -> int:
        return self.spec.blank

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    def start(self) -> tuple[Array, int]:
        return self.tables.given[0], 0

    def predict(self, label: int, state: int) -> tuple[Array, int]:
        new = int(self.tables.after[state, label])
        return self.tables.given[new], new

    def joint(self, frame: Array, predicted: Array) -> Array:
        return frame + predicted


@dataclass(frozen=True, eq=False)
class BatchedTables:
    """`step.Head` on tables."""

    tables: Tables
    spec: HeadSpec
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> torch.device:
        return self._given.device

    @property
    def joint_size(self) -> int:
        return self.tables.given.shape[1]

    @cached_property
    def start(self) -> tuple[torch.Tensor, ...]:
        return self._given[:1], torch.zeros(1, dtype=torch.int64)

    def project(self, encoded: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(encoded)

    def joint(self, windows: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        windows += predicted.unsqueeze(1)
        return windows.view(-1, self.joint_size)

    def predict(self, labels: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        places = state[1] * self.spec.num_classes + labels
        new = self._after.view(-1).index_select(0, places)
        return self._given.index_select(0, new), new

    @cached_property
    def _given(self) -> torch.Tensor:
        return torch.from_numpy(self.tables.given)

    @cached_property
    def _after(self) -> torch.Tensor:
        return torch.from_numpy(self.tables.after)


# Random models


@dataclass(frozen=True, eq=False)
class Model:
    """One model for both sides, and the width of the encoder frames it takes."""

    spec: HeadSpec
    scalar: Any
    batched: Head
    width: int
    integers: bool

    def frames(self, rng: np.random.Generator, *shape: int) -> Array:
        """Random encoder frames `[..., width]`."""
        if self.integers:
            return rng.integers(-2, 3, (*shape, self.width)).astype(np.float32)
        return rng.standard_normal((*shape, self.width))


DURATIONS = ((0,), (0, 1, 2, 3, 4), (0,), (0, 2), (0, 1), (1, 3), (0,), (2, 0, 5))


def random_model(rng: np.random.Generator, *, integers: bool) -> Model:
    """RNN-T or TDT; blank first, in the middle or last; limits from 1 to 10 labels a frame."""
    durations = DURATIONS[rng.integers(len(DURATIONS))]
    num_classes = int(rng.integers(3, 7))
    blank = int(rng.choice([0, num_classes // 2, num_classes - 1, num_classes - 1]))
    limit = int(rng.choice([1, 2, 3, 10]))
    kind = "rnnt" if len(durations) == 1 else "tdt"
    spec = HeadSpec(kind, num_classes, blank, durations, limit)  # type: ignore[arg-type]
    num_outputs = num_classes + (len(durations) if kind == "tdt" else 0)
    return _table_model(rng, spec, num_outputs) if integers else _lstm_model(rng, spec, num_outputs)


def _table_model(rng: np.random.Generator, spec: HeadSpec, num_outputs: int) -> Model:
    num_states = int(rng.integers(2, 6))
    given = rng.integers(-2, 3, (num_states, num_outputs)).astype(np.float32)
    given[:, spec.blank] += rng.integers(0, 3)
    tables = Tables(given, rng.integers(0, num_states, (num_states, spec.num_classes)))
    return Model(spec, ScalarTables(tables, spec), BatchedTables(tables, spec), num_outputs, integers=True)


def _lstm_model(rng: np.random.Generator, spec: HeadSpec, num_outputs: int) -> Model:
    width, joint, hidden, embedding = (int(size) for size in rng.integers(2, 8, 4))

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    embeddings = normal(spec.num_classes, embedding)
    embeddings[spec.blank] = 0
    sizes = [embedding, *[hidden] * int(rng.integers(1, 3))]
    out_bias = normal(num_outputs)
    out_bias[spec.blank] += rng.uniform(0, 2)
    weights = TransducerWeights(
        embedding=embeddings,
        lstm=tuple(
            LstmLayer(normal(4 * hidden, size), normal(4 * hidden, hidden), normal(4 * hidden))
            for size in sizes[:-1]
        ),
        enc_weight=normal(joint, width),
        enc_bias=normal(joint),
        pred_weight=normal(joint, hidden),
        pred_bias=normal(joint),
        out_weight=normal(num_outputs, joint),
        out_bias=out_bias,
        activation="relu" if rng.integers(2) else "tanh",
    )
    batched = TransducerHead.from_weights(weights, spec, dtype=torch.float64)
    return Model(spec, LstmHead(weights, spec, np.float64), batched, width, integers=False)


# What the scalar rule met


@dataclass(frozen=True, eq=False)
class Watched:
    """A scalar head and the frames `[T, D]` of one utterance; a frame is given as its number.

    `evaluations` are the frame and the logits of every look at the joint, in order.
    """

    head: Any
    frames: Array
    evaluations: list[tuple[int, Array]] = field(default_factory=list)

    @property
    def blank(self) -> int:
        return self.head.spec.blank

    @property
    def num_classes(self) -> int:
        return self.head.spec.num_classes

    def start(self) -> Any:
        return self.head.start()

    def predict(self, label: int, state: Any) -> Any:
        return self.head.predict(label, state)

    def joint(self, frame: Array, predicted: Array) -> Array:
        logits = self.head.joint(self.frames[int(frame)], predicted)
        self.evaluations.append((int(frame), logits))
        return logits


def decode_watched(head: Any, frames: Array) -> tuple[Hypothesis, list[tuple[int, Array]]]:
    """The scalar rule on one utterance, and its evaluations."""
    watched = Watched(head, frames)
    numbers = np.arange(len(frames), dtype=np.float64)
    spec = head.spec
    return greedy.transducer(numbers, watched, spec.durations, spec.max_symbols), watched.evaluations


def rarities(spec: HeadSpec, num_frames: int, evaluations: list[tuple[int, Array]]) -> Counter[str]:
    """How often the cases came up that decoders get wrong; worked out from the logits alone."""
    found: Counter[str] = Counter()
    num_on_frame: Counter[int] = Counter()
    for frame, logits in evaluations:
        tokens, jumps = logits[: spec.num_classes], logits[spec.num_classes :]
        duration = spec.durations[int(np.argmax(jumps))] if len(jumps) else 0
        is_blank = int(np.argmax(tokens)) == spec.blank
        num_on_frame[frame] += not is_blank and duration == 0
        found["token ties"] += int((tokens == tokens.max()).sum() > 1)
        found["duration ties"] += len(jumps) > 0 and int((jumps == jumps.max()).sum() > 1)
        found["blanks of duration 0"] += is_blank and len(jumps) > 0 and duration == 0
        found["labels past the end"] += not is_blank and frame + duration > num_frames
        found["blanks past the end"] += is_blank and frame + duration > num_frames
    found["forced advances"] += sum(count == spec.max_symbols for count in num_on_frame.values())
    return found


# Upstream's vectors


@dataclass(frozen=True, eq=False)
class Vector:
    """A random small model, a batch of encoder frames and what NeMo's decoders answered."""

    spec: HeadSpec
    weights: TransducerWeights
    encoded: Array  # [B, T, D]
    lengths: Array  # [B]
    answers: list[dict[str, list[int]]]


@cache
def vectors() -> tuple[Vector, ...]:
    """The 200 decode vectors."""
    return tuple(_vectors())


def _vectors() -> Iterator[Vector]:
    with np.load(data("golden/decode_vectors.npz"), allow_pickle=False) as file:
        arrays = dict(file.items())
    for number, case in enumerate(json.loads(bytes(arrays["cases"]))["cases"]):
        prefix = f"{number}/"
        own = {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
        yield _vector(case, own)


def _vector(case: dict[str, Any], arrays: dict[str, Array]) -> Vector:
    num_layers, vocab, durations = case["layers"], case["vocab"], tuple(case["durations"])
    lstm = "prediction.dec_rnn.lstm."
    (out,) = (
        name.removesuffix("weight") for name in arrays if name.startswith("joint_net") and "weight" in name
    )
    return Vector(
        spec=HeadSpec(
            "rnnt" if durations == (0,) else "tdt", vocab + 1, vocab, durations, case["max_symbols"]
        ),
        weights=TransducerWeights(
            embedding=arrays["prediction.embed.weight"],
            lstm=tuple(
                LstmLayer(
                    arrays[f"{lstm}weight_ih_l{layer}"],
                    arrays[f"{lstm}weight_hh_l{layer}"],
                    arrays[f"{lstm}bias_ih_l{layer}"] + arrays[f"{lstm}bias_hh_l{layer}"],
                )
                for layer in range(num_layers)
            ),
            enc_weight=arrays["enc.weight"],
            enc_bias=arrays["enc.bias"],
            pred_weight=arrays["pred.weight"],
            pred_bias=arrays["pred.bias"],
            out_weight=arrays[f"{out}weight"],
            out_bias=arrays[f"{out}bias"],
            activation=case["activation"],
        ),
        encoded=arrays["encoder"],
        lengths=arrays["lengths"],
        answers=case["answers"],
    )
