"""Small models for the ONNX decoder's tests, numpy only: these tests also run where torch is not.

In: a numpy generator. Out: heads for the scalar rule (`greedy.Head`) and for the loop (`loop.LoopHead`)
that stand for the same model. Tables hold small integers, so that ties are exact and frequent; the
others are LSTMs, compared where no step of the scalar rule in float64 comes near a tie.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from support import data

from transduce import features, greedy
from transduce.checkpoints.onnx_layouts import GIGAAM_V3
from transduce.greedy import LstmHead
from transduce.onnx import loop
from transduce.onnx.builder import FLOAT, INT64, Graph, Value
from transduce.onnx.heads import WeightsHead
from transduce.onnx.loop import Advance, LoopHead, State
from transduce.onnx.session import Session
from transduce.types import EncoderSpec, HeadSpec, Hypothesis, LstmLayer, ModelSpec, TransducerWeights

Array = npt.NDArray[Any]

OUTPUTS = ("ids", "frames", "durations", "log_probs", "counts")


# Running the loop


def session(head: LoopHead, spec: HeadSpec, width: int, window: int, opset: int = 17) -> Session:
    """The loop alone, as a model `encoded [B, T, width], lengths [B] -> emissions`."""
    graph = Graph(opset)
    encoded = graph.add_input("encoded", FLOAT, ["batch", "frames", width])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    loop.transducer(graph, head, spec, encoded, lengths, window).declare(graph)
    return Session.of_graph(graph, "loop", threads=1)


def decode(runner: Session, encoded: Array, lengths: Array) -> list[Hypothesis]:
    *columns, counts = runner.run(OUTPUTS, {"encoded": encoded.astype(np.float32), "lengths": lengths})
    return [Hypothesis(*(c[row, :count] for c in columns)) for row, count in enumerate(counts)]


def labels(found: Hypothesis) -> list[tuple[int, int, int]]:
    return list(zip(found.ids.tolist(), found.frames.tolist(), found.durations.tolist(), strict=True))


# Integer tables


@dataclass(frozen=True, eq=False)
class Tables:
    """A predictor that is an automaton: logits = frame + given[state]; state = after[state, label]."""

    spec: HeadSpec
    given: Array  # [S, C], integers
    after: Array  # [S, num_classes]

    # As a greedy.Head; the state is a number.

    @property
    def blank(self) -> int:
        return self.spec.blank

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    def start(self) -> tuple[Array, int]:
        return self.given[0], 0

    def predict(self, label: int, state: int) -> tuple[Array, int]:
        new = int(self.after[state, label])
        return self.given[new], new

    def joint(self, frame: Array, predicted: Array) -> Array:
        return frame + predicted


@dataclass(frozen=True, eq=False)
class LoopTables:
    """The same as a loop head; the state is a column of numbers `[B, 1]`."""

    tables: Tables

    def project(self, graph: Graph, encoded: Value) -> Value:
        return graph.op("Identity", encoded)

    def start(self, graph: Graph, encoded: Value) -> list[State]:
        shape = graph.concat([graph.size(encoded, 0), graph.ints(1)], 0)
        return [State(graph.op("Expand", graph.integer(0), shape), INT64)]

    def step(self, body: Graph, frames: Value, states: Sequence[Value]) -> tuple[Value, Advance]:
        given = body.constant(self.tables.given)
        logits = body.op("Add", frames, body.op("Gather", given, states[0], axis=0))

        def advance(graph: Graph, label: Value, found: Value) -> list[Value]:
            after = graph.constant(self.tables.after.reshape(-1))
            row = graph.op("Mul", states[0], graph.integer(self.tables.num_classes))
            new = graph.op("Gather", after, graph.op("Add", row, label), axis=0)
            return [graph.op("Where", found, new, states[0])]

        return logits, advance


# Random models

DURATIONS = ((0,), (0, 1, 2, 3, 4), (0,), (0, 2), (0, 1), (1, 3), (0,), (2, 0, 5))


@dataclass(frozen=True, eq=False)
class Case:
    """A model for both sides, and a batch of encoder frames."""

    spec: HeadSpec
    scalar: Any
    looped: LoopHead
    encoded: Array  # [B, T, D]
    lengths: Array  # [B]
    window: int
    opset: int


def random_case(rng: np.random.Generator, *, integers: bool) -> Case:
    """RNN-T or TDT, blank anywhere, 1 to 9 lanes of 0 to T frames, windows from 1 to 8."""
    durations = DURATIONS[rng.integers(len(DURATIONS))]
    num_classes = int(rng.integers(3, 8))
    blank = int(rng.choice([0, num_classes // 2, num_classes - 1, num_classes - 1]))
    kind = "rnnt" if len(durations) == 1 else "tdt"
    limit = int(rng.choice([1, 2, 3, 10]))
    activation = "relu" if rng.integers(2) else "tanh"
    spec = HeadSpec(kind, num_classes, blank, durations, limit, activation)  # type: ignore[arg-type]
    num_outputs = num_classes + (len(durations) if kind == "tdt" else 0)
    shape = (int(rng.integers(1, 10)), int(rng.integers(1, 30)))
    lengths = rng.integers(0, shape[1] + 1, shape[0])
    if integers:
        tables = _random_tables(rng, spec, num_outputs)
        scalar, looped, encoded = tables, LoopTables(tables), rng.integers(-2, 3, (*shape, num_outputs))
    else:
        weights = random_weights(rng, spec, num_outputs)
        scalar, looped = LstmHead(weights, spec, np.float64), WeightsHead(weights, spec)
        encoded = rng.standard_normal((*shape, weights.enc_weight.shape[1])).astype(np.float32)
    window, opset = int(rng.choice([1, 2, 3, 4, 8])), int(rng.choice([17, 18, 21]))
    return Case(spec, scalar, looped, encoded, lengths, window, opset)


def _random_tables(rng: np.random.Generator, spec: HeadSpec, num_outputs: int) -> Tables:
    num_states = int(rng.integers(2, 6))
    given = rng.integers(-2, 3, (num_states, num_outputs)).astype(np.float32)
    given[:, spec.blank] += rng.integers(0, 3)
    return Tables(spec, given, rng.integers(0, num_states, (num_states, spec.num_classes)))


def random_weights(rng: np.random.Generator, spec: HeadSpec, num_outputs: int) -> TransducerWeights:
    width, joint, hidden, embedding = (int(size) for size in rng.integers(2, 9, 4))

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    embeddings = normal(spec.num_classes, embedding)
    embeddings[spec.blank] = 0
    sizes = [embedding, *[hidden] * int(rng.integers(1, 3))]
    out_bias = normal(num_outputs)
    out_bias[spec.blank] += rng.uniform(0, 2)
    return TransducerWeights(
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
        activation=spec.activation,
    )


# What the scalar rule met


@dataclass(eq=False)
class Watched:
    """A scalar head that notes its logits; frames are given by number, so that they can be told apart."""

    head: Any
    frames: Array
    evaluations: list[tuple[int, Array]] = field(default_factory=list)

    @property
    def blank(self) -> int:
        return int(self.head.blank)

    @property
    def num_classes(self) -> int:
        return int(self.head.num_classes)

    def start(self) -> Any:
        return self.head.start()

    def predict(self, label: int, state: Any) -> Any:
        return self.head.predict(label, state)

    def joint(self, frame: Array, predicted: Array) -> Array:
        logits = self.head.joint(self.frames[int(frame)], predicted)
        self.evaluations.append((int(frame), logits))
        return logits


def by_the_rule(case: Case, lane: int) -> tuple[Hypothesis, list[tuple[int, Array]]]:
    """What `greedy` makes of one lane, and every evaluation on the way."""
    frames = case.encoded[lane, : case.lengths[lane]]
    watched = Watched(case.scalar, frames)
    numbers = np.arange(len(frames), dtype=np.float64)
    found = greedy.transducer(numbers, watched, case.spec.durations, case.spec.max_symbols)
    return found, watched.evaluations


def smallest_margin(spec: HeadSpec, evaluations: Sequence[tuple[int, Array]]) -> float:
    """The smallest distance between the best and the second token, or duration, at any step."""
    margins = [np.inf]
    for _, logits in evaluations:
        for part in (logits[: spec.num_classes], logits[spec.num_classes :]):
            if len(part) > 1:
                second, first = np.partition(part, -2)[-2:]
                margins.append(float(first - second))
    return min(margins)


def rarities(spec: HeadSpec, num_frames: int, evaluations: Sequence[tuple[int, Array]]) -> Counter[str]:
    """How often the cases came up that decoders get wrong; worked out from the logits alone."""
    found: Counter[str] = Counter()
    on_frame: Counter[int] = Counter()
    for frame, logits in evaluations:
        tokens, jumps = logits[: spec.num_classes], logits[spec.num_classes :]
        duration = spec.durations[int(np.argmax(jumps))] if len(jumps) else 0
        is_blank = int(np.argmax(tokens)) == spec.blank
        on_frame[frame] += not is_blank and duration == 0
        found["token ties"] += int((tokens == tokens.max()).sum() > 1)
        found["duration ties"] += len(jumps) > 0 and int((jumps == jumps.max()).sum() > 1)
        found["blanks of duration 0"] += is_blank and len(jumps) > 0 and duration == 0
        found["jumps past the end"] += frame + duration > num_frames
    found["forced advances"] += sum(count == spec.max_symbols for count in on_frame.values())
    return found


# Upstream's vectors


@dataclass(frozen=True, eq=False)
class Vector:
    """A small model, a batch of encoder frames and what NeMo's decoders answered."""

    spec: HeadSpec
    weights: TransducerWeights
    encoded: Array
    lengths: Array
    answers: list[dict[str, list[int]]]


@cache
def vectors() -> tuple[Vector, ...]:
    with np.load(data("golden/decode_vectors.npz"), allow_pickle=False) as file:
        arrays = dict(file.items())
    cases = json.loads(bytes(arrays["cases"]))["cases"]
    return tuple(_vector(case, arrays, f"{number}/") for number, case in enumerate(cases))


def _vector(case: dict[str, Any], arrays: dict[str, Array], prefix: str) -> Vector:
    def of(name: str) -> Array:
        return arrays[prefix + name]

    durations, size = tuple(case["durations"]), case["vocab"] + 1
    kind = "rnnt" if durations == (0,) else "tdt"
    (out,) = (n for n in arrays if n.startswith(f"{prefix}joint_net.") and n.endswith(".weight"))
    return Vector(
        spec=HeadSpec(kind, size, size - 1, durations, case["max_symbols"], case["activation"]),
        weights=TransducerWeights(
            embedding=of("prediction.embed.weight"),
            lstm=tuple(_layer(of, layer) for layer in range(case["layers"])),
            enc_weight=of("enc.weight"),
            enc_bias=of("enc.bias"),
            pred_weight=of("pred.weight"),
            pred_bias=of("pred.bias"),
            out_weight=arrays[out],
            out_bias=arrays[out.removesuffix("weight") + "bias"],
            activation=case["activation"],
        ),
        encoded=of("encoder"),
        lengths=of("lengths"),
        answers=case["answers"],
    )


def _layer(of: Any, layer: int) -> LstmLayer:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ih, hh, *biases = (of(f"prediction.dec_rnn.lstm.{name}_l{layer}") for name in names)
    return LstmLayer(ih, hh, biases[0] + biases[1])


def cases(rng: np.random.Generator, count: int, *, integers: bool) -> Iterator[Case]:
    return (random_case(rng, integers=integers) for _ in range(count))


# Small whole models


def small_spec(kind: str = "rnnt", num_pieces: int = 5) -> ModelSpec:
    """GigaAM v3's front end, one rotary layer, 8 wide."""
    durations = (0, 1, 2) if kind == "tdt" else (0,)
    head = HeadSpec(kind, num_pieces + 1, num_pieces, durations)  # type: ignore[arg-type]
    encoder = EncoderSpec(
        num_layers=1,
        width=8,
        num_heads=2,
        feed_forward_width=16,
        conv_kernel=3,
        conv_norm="layer_norm",
        subsampling="conv1d",
        subsampling_factor=4,
        subsampling_channels=8,
        subsampling_kernel=5,
        attention="rotary",
        rotary_base=5000.0,
        bias=True,
        xscaling=False,
    )
    return ModelSpec("small", "gigaam", GIGAAM_V3, encoder, (head,), head, max_segment_seconds=25.0)


def small_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Array]:
    """Random weights of `small_spec`, by our names."""
    rng = np.random.default_rng(seed)
    width, hidden, mels = spec.encoder.width, spec.encoder.feed_forward_width, spec.features.num_mels
    weights: dict[str, Array] = {
        "features.window": features.hann_window(spec.features.window_samples, periodic=True),
        "features.filterbank": features.mel_filterbank(spec.features),
    }

    def add(name: str, *shape: int, scale: float = 0.4) -> None:
        weights[f"{name}.weight"] = (scale * rng.standard_normal(shape)).astype(np.float32)
        weights[f"{name}.bias"] = (0.4 * rng.standard_normal(shape[0])).astype(np.float32)

    add("encoder.pre_encode.conv.0", 8, mels, 5, scale=0.02)
    add("encoder.pre_encode.conv.2", 8, 8, 5)
    layer = "encoder.layers.0"
    for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
        add(f"{layer}.norm_{norm}", width, scale=1.0)
    for number in (1, 2):
        add(f"{layer}.feed_forward{number}.linear1", hidden, width)
        add(f"{layer}.feed_forward{number}.linear2", width, hidden)
    for part in ("q", "k", "v", "out"):
        add(f"{layer}.self_attn.linear_{part}", width, width)
    add(f"{layer}.conv.pointwise_conv1", 2 * width, width)
    add(f"{layer}.conv.depthwise_conv", width, 1, spec.encoder.conv_kernel)
    add(f"{layer}.conv.layer_norm", width, scale=1.0)
    add(f"{layer}.conv.pointwise_conv2", width, width)
    num_outputs = spec.head.num_classes + (len(spec.head.durations) if spec.head.kind == "tdt" else 0)
    if spec.head.kind == "ctc":
        add("ctc", num_outputs, width)
        return weights
    add("predictor.embed", spec.head.num_classes, 6, scale=1.0)
    del weights["predictor.embed.bias"]
    weights["predictor.embed.weight"][spec.head.blank] = 0
    for name, shape in (("weight_ih_l0", (24, 6)), ("weight_hh_l0", (24, 6)), ("bias_l0", (24,))):
        weights[f"predictor.lstm.{name}"] = rng.standard_normal(shape).astype(np.float32)
    add("joint.enc", 7, width)
    add("joint.pred", 7, 6)
    add("joint.out", num_outputs, 7, scale=1.0)
    return weights


def speech(seed: int, *seconds: float) -> list[Array]:
    """Noise that changes over time, so that labels change too."""
    rng = np.random.default_rng(seed)
    return [_noise(rng, round(16000 * length)) for length in seconds]


def _noise(rng: np.random.Generator, size: int) -> Array:
    loudness = np.repeat(rng.uniform(0, 0.3, size // 1600 + 1), 1600)[:size]
    return (loudness * rng.standard_normal(size)).astype(np.float32)
