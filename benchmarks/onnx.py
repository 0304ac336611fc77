"""What does decoding inside the graph gain over a loop in Python, and what does RNN-T cost beside CTC?

    OMP_NUM_THREADS=1 python benchmarks/onnx.py [--heads NAME ...] [--batches 1 8] [--windows 1 4] [--bursts]
    python benchmarks/onnx.py --end-to-end [--layers 16] [--seconds 10] [--batch 4] [--threads 1]

Heads of real sizes that speak on cue, a label in three frames (`heads.py`); with `--bursts` random ones
whose blank is tuned to as many labels (`--rate`), which come up to ten on a frame, as in no speech. All ways
get the same weights and threads, in one run, in turns:

- graph: onnxruntime on our Loop, from encoder frames to labels, for several windows; * marks the default;
- steps: a loop in Python over two sessions, decoder and joint as upstream exports them, both run at every
  step, one utterance after another: GigaAM's own ONNX path;
- best: the fastest such loop we could write: a frame of every lane a step, the decoder only after labels.

Microseconds a frame of one utterance, the best of the rounds; with one thread CPU time of this process, so
that other work on the machine does not count. `--end-to-end` runs whole models of GigaAM v3's size, samples
to labels, with an RNN-T and with a CTC head. Gate: every way must give the labels of the scalar rule. The
last line is JSON.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from heads import SIZES, Size, speaking_frames, speaking_head

from transduce import features, greedy
from transduce.onnx import encoder, frontend, loop
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.heads import WeightsHead
from transduce.onnx.precision import precision_named
from transduce.onnx.session import Session
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, LstmLayer, ModelSpec, TransducerWeights

Array = npt.NDArray[Any]

LABELS_PER_FRAME = 1 / 3
NUM_FRAMES = 240
OUTPUTS = ("ids", "frames", "durations", "log_probs", "counts")


def random_weights(size: Size, rng: np.random.Generator) -> TransducerWeights:
    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.08).astype(np.float32)

    width = size.width
    num_outputs = size.num_classes + (len(size.durations) if size.spec.kind == "tdt" else 0)
    embedding = normal(size.num_classes, width)
    embedding[-1] = 0
    return TransducerWeights(
        embedding=embedding,
        lstm=tuple(
            LstmLayer(normal(4 * width, width), normal(4 * width, width), normal(4 * width))
            for _ in range(size.num_layers)
        ),
        enc_weight=normal(width, size.encoder_width),
        enc_bias=normal(width),
        pred_weight=normal(width, width),
        pred_bias=normal(width),
        out_weight=normal(num_outputs, width),
        out_bias=normal(num_outputs),
        activation="relu",
    )


def speaking(
    weights: TransducerWeights, spec: HeadSpec, encoded: Array, wanted: float = LABELS_PER_FRAME
) -> TransducerWeights:
    """The blank's bias set, by bisection over one utterance, for the wanted labels a frame."""
    low, high = -100.0, 100.0
    for _ in range(14):
        bias = weights.out_bias.copy()
        bias[spec.blank] = (low + high) / 2
        weights = replace(weights, out_bias=bias)
        rate = len(by_the_rule(weights, spec, encoded)) / len(encoded)
        low, high = (bias[spec.blank], high) if rate > wanted else (low, bias[spec.blank])
    return weights


def by_the_rule(weights: TransducerWeights, spec: HeadSpec, encoded: Array) -> list[int]:
    head = greedy.LstmHead(weights, spec)
    return greedy.transducer(encoded, head, spec.durations, spec.max_symbols).ids.tolist()


# The three ways


def graph_session(weights: TransducerWeights, spec: HeadSpec, window: int, threads: int) -> Session:
    graph = Graph(17)
    encoded = graph.add_input("encoded", FLOAT, None)
    lengths = graph.add_input("lengths", INT64, None)
    loop.transducer(graph, WeightsHead(weights, spec), spec, encoded, lengths, window).declare(graph)
    return Session.of_graph(graph, "loop", threads=threads)


def run_graph(session: Session, encoded: Array) -> list[list[int]]:
    lengths = np.full(len(encoded), encoded.shape[1], np.int64)
    ids, *_, counts = session.run(OUTPUTS, {"encoded": encoded, "lengths": lengths})
    return [row[:count].tolist() for row, count in zip(ids, counts, strict=True)]


class TwoSessions:
    """Decoder and joint as upstream exports them, driven step by step from Python."""

    def __init__(self, weights: TransducerWeights, spec: HeadSpec, threads: int) -> None:
        self.spec = spec
        self.hidden = weights.pred_weight.shape[1]
        self.num_layers = len(weights.lstm)
        self.decoder = Session.of_graph(_decoder(weights), "decoder", threads=threads)
        self.joint = Session.of_graph(_joint(weights), "joint", threads=threads)
        self.durations = np.array(spec.durations)

    def steps(self, encoded: Array) -> list[list[int]]:
        """Both sessions at every step, one utterance after another."""
        return [self._steps(row) for row in np.ascontiguousarray(encoded)[..., None]]

    def _steps(self, frames: Array) -> list[int]:
        spec, found = self.spec, [self.spec.blank]
        h = c = np.zeros((self.num_layers, 1, self.hidden), np.float32)
        t = count = 0
        while t < len(frames):
            predicted, new_h, new_c = self.predict(np.array([[found[-1]]]), h, c)
            (logits,) = self.joint.run(["logits"], {"enc": frames[t][None], "dec": predicted})
            label, duration = (int(value[0]) for value in self.choose(logits[:, 0, 0]))
            if label == spec.blank:
                t, count = t + max(duration, 1), 0
                continue
            found.append(label)
            h, c, count = new_h, new_c, count + 1
            if duration > 0 or count >= spec.max_symbols:
                t, count = t + max(duration, 1), 0
        return found[1:]

    def best(self, encoded: Array) -> list[list[int]]:
        """A frame of every lane a step; the decoder runs when a lane has a new label."""
        spec, num = self.spec, len(encoded)
        frames = np.ascontiguousarray(encoded.transpose(1, 0, 2))[..., None]  # [T, B, D, 1]
        lanes, t, count = np.arange(num), np.zeros(num, np.int64), np.zeros(num, np.int64)
        h = c = np.zeros((self.num_layers, num, self.hidden), np.float32)
        predicted, h, c = self.predict(np.full((num, 1), spec.blank), h, c)
        found: list[list[int]] = [[] for _ in range(num)]
        while (live := t < len(frames)).any():
            window = frames[np.minimum(t, len(frames) - 1), lanes]
            (logits,) = self.joint.run(["logits"], {"enc": window, "dec": predicted})
            label, duration = self.choose(logits[:, 0, 0])
            emits = live & (label != spec.blank)
            count = np.where(emits, count + 1, 0)
            forced = (count >= spec.max_symbols) & (duration == 0)
            t = t + np.where(emits, np.maximum(duration, forced), np.maximum(duration, 1))
            count[(duration > 0) | forced] = 0
            for lane in lanes[emits]:
                found[lane].append(int(label[lane]))
            if emits.any():
                new = self.predict(label[:, None], h, c)
                predicted = np.where(emits[:, None, None], new[0], predicted)
                h, c = (np.where(emits[None, :, None], a, b) for a, b in zip(new[1:], (h, c), strict=True))
        return found

    def predict(self, label: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
        output, h, c = self.decoder.run(["dec", "ho", "co"], {"x": label, "hi": h, "ci": c})
        return output.transpose(0, 2, 1), h, c

    def choose(self, logits: Array) -> tuple[Array, Array]:
        tokens, jumps = logits[:, : self.spec.num_classes], logits[:, self.spec.num_classes :]
        duration = self.durations[jumps.argmax(1)] if jumps.size else np.zeros(len(logits), np.int64)
        return tokens.argmax(1), duration


def _decoder(weights: TransducerWeights) -> Graph:
    """`x [B, 1], hi, ci -> dec [B, 1, H], ho, co` with onnxruntime's own LSTM."""
    graph = Graph(17)
    x = graph.add_input("x", INT64, None)
    states = [graph.add_input(name, FLOAT, None) for name in ("hi", "ci")]
    value = graph.op("Gather", graph.weight(weights.embedding, "embed"), x, axis=0)
    value = graph.op("Transpose", value, perm=[1, 0, 2])  # [1, B, D]
    parts = [graph.split(state, [1] * len(weights.lstm), axis=0) for state in states]
    new: list[tuple[str, str]] = []
    for number, layer in enumerate(weights.lstm):
        order = [gate[None] for gate in _onnx_gates(layer)]
        names = [graph.weight(a, f"{n}{number}") for a, n in zip(order, ("W", "R", "B"), strict=True)]
        hidden = layer.weight_hh.shape[1]
        h, c = (part[number] for part in parts)
        value, *state = graph.ops("LSTM", value, *names, "", h, c, num_outputs=3, hidden_size=hidden)
        value = graph.squeeze(value, 1)
        new.append((state[0], state[1]))
    graph.add_output(graph.op("Transpose", value, perm=[1, 0, 2]), FLOAT, None, "dec")
    for name, layers in zip(("ho", "co"), zip(*new, strict=True), strict=True):
        graph.add_output(graph.concat(layers, 0), FLOAT, None, name)
    return graph


def _onnx_gates(layer: LstmLayer) -> list[Array]:
    """Gates i, f, g, o in ONNX's order i, o, f, c."""

    def ordered(array: Array) -> Array:
        i, f, g, o = np.split(array, 4)
        return np.concatenate([i, o, f, g])

    bias = ordered(layer.bias)
    return [ordered(layer.weight_ih), ordered(layer.weight_hh), np.concatenate([bias, np.zeros_like(bias)])]


def _joint(weights: TransducerWeights) -> Graph:
    """`enc [B, D, 1], dec [B, H, 1] -> logits [B, 1, 1, C]`."""
    graph = Graph(17)
    hidden = []
    for name, weight, bias, axis in (
        ("enc", weights.enc_weight, weights.enc_bias, 2),
        ("dec", weights.pred_weight, weights.pred_bias, 1),
    ):
        value = graph.op("Transpose", graph.add_input(name, FLOAT, None), perm=[0, 2, 1])
        value = graph.op("MatMul", value, graph.weight(weight.T, f"{name}.weight"))
        hidden.append(graph.unsqueeze(graph.op("Add", value, graph.weight(bias, f"{name}.bias")), axis))
    value = graph.op("Relu", graph.op("Add", *hidden))
    value = graph.op("MatMul", value, graph.weight(weights.out_weight.T, "out.weight"))
    graph.add_output(
        graph.op("Add", value, graph.weight(weights.out_bias, "out.bias")), FLOAT, None, "logits"
    )
    return graph


# Decoding alone


@dataclass(frozen=True)
class Result:
    """Microseconds a frame of one utterance."""

    head: str
    batch: int
    labels_per_frame: float
    default_window: int
    graph: dict[int, float]
    steps: float
    best: float

    @property
    def gains(self) -> tuple[float, float]:
        """Over the two loops in Python."""
        ours = self.graph[self.default_window]
        return self.steps / ours, self.best / ours


def measure(name: str, batch: int, arguments: argparse.Namespace) -> Result:
    size, threads = SIZES[name], arguments.threads
    if arguments.bursts:
        rng = np.random.default_rng(0)
        encoded = 2 * rng.standard_normal((batch, NUM_FRAMES, size.encoder_width)).astype(np.float32)
        weights = speaking(random_weights(size, rng), size.spec, encoded[0], arguments.rate)
    else:
        encoded, _ = speaking_frames(size, batch, NUM_FRAMES)
        weights = speaking_head(size)
    default = loop.default_window(size.spec)
    expected = [by_the_rule(weights, size.spec, row) for row in encoded]
    ways: dict[object, Callable[[], list[list[int]]]] = {}
    for window in sorted({*arguments.windows, default}):
        session = graph_session(weights, size.spec, window, threads)
        ways[window] = lambda session=session: run_graph(session, encoded)  # type: ignore[misc]
    two = TwoSessions(weights, size.spec, threads)
    ways |= {"steps": lambda: two.steps(encoded), "best": lambda: two.best(encoded)}
    for way, call in ways.items():
        if call() != expected:
            raise SystemExit(f"{name}, batch {batch}, {way}: not the labels of the rule")
    best = in_turns(ways, arguments.rounds, clock_of(threads))
    micros = {way: seconds * 1e6 / (batch * NUM_FRAMES) for way, seconds in best.items()}
    rate = sum(map(len, expected)) / (batch * NUM_FRAMES)
    return Result(
        head=name,
        batch=batch,
        labels_per_frame=round(rate, 2),
        default_window=default,
        steps=micros.pop("steps"),
        best=micros.pop("best"),
        graph={int(str(window)): value for window, value in micros.items()},
    )


def clock_of(threads: int) -> Callable[[], float]:
    """CPU time of this process where that is the time it takes."""
    return time.process_time if threads == 1 else time.perf_counter


def in_turns(
    ways: Mapping[Any, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> dict[Any, float]:
    """The best time of each way in seconds, all of them once a round."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for way, call in ways.items():
            started = clock()
            call()
            best[way] = min(best[way], clock() - started)
    return best


def decode_table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    print(f"{'head':20} {'B':>3} {'labels':>6}  {'graph, by window':40} {'steps':>7} {'best':>7}  gains")
    for name in arguments.heads:
        for batch in arguments.batches:
            r = measure(name, batch, arguments)
            graph = " ".join(
                f"{w}:{v:.1f}{'*' if w == r.default_window else ''}" for w, v in sorted(r.graph.items())
            )
            print(
                f"{name:20} {batch:3} {r.labels_per_frame:6.2f}  {graph:40} {r.steps:7.1f} {r.best:7.1f} "
                f" {r.gains[0]:.1f}x {r.gains[1]:.1f}x",
                flush=True,
            )
            results.append(asdict(r) | {"gains": [round(gain, 2) for gain in r.gains]})
    return results


# Whole models


def model_spec(num_layers: int, head: HeadSpec) -> ModelSpec:
    """GigaAM v3."""
    front = FeatureSpec(
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
    conformer = EncoderSpec(
        num_layers=num_layers,
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
    return ModelSpec("gigaam-v3-size", "gigaam", front, conformer, (head,), head, 25.0)


def encoder_weights(spec: ModelSpec, rng: np.random.Generator) -> dict[str, Array]:
    width, hidden, mels = spec.encoder.width, spec.encoder.feed_forward_width, spec.features.num_mels
    weights: dict[str, Array] = {
        "features.window": features.hann_window(spec.features.window_samples, periodic=True),
        "features.filterbank": features.mel_filterbank(spec.features),
    }

    def add(name: str, *shape: int) -> None:
        scale = np.float32(1 / np.sqrt(np.prod(shape[1:])))
        if name.endswith(("linear2", "linear_out", "pointwise_conv2")):
            scale *= np.float32(0.2)  # a random layer that adds much leaves nothing of the frame it was given
        weights[f"{name}.weight"] = rng.standard_normal(shape, np.float32) * scale
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)

    def add_norm(name: str) -> None:
        weights[f"{name}.weight"] = np.ones(width, np.float32)
        weights[f"{name}.bias"] = np.zeros(width, np.float32)

    add("encoder.pre_encode.conv.0", width, mels, 5)
    add("encoder.pre_encode.conv.2", width, width, 5)
    for layer in (f"encoder.layers.{index}" for index in range(spec.encoder.num_layers)):
        for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
            add_norm(f"{layer}.norm_{norm}")
        add_norm(f"{layer}.conv.layer_norm")
        for number in (1, 2):
            add(f"{layer}.feed_forward{number}.linear1", hidden, width)
            add(f"{layer}.feed_forward{number}.linear2", width, hidden)
        for part in ("q", "k", "v", "out"):
            add(f"{layer}.self_attn.linear_{part}", width, width)
        add(f"{layer}.conv.pointwise_conv1", 2 * width, width)
        add(f"{layer}.conv.depthwise_conv", width, 1, spec.encoder.conv_kernel)
        add(f"{layer}.conv.pointwise_conv2", width, width)
    return weights


def noise(rng: np.random.Generator, size: int) -> Array:
    """Of a loudness that changes ten times a second."""
    loudness = np.repeat(rng.uniform(0, 0.3, size // 1600 + 1), 1600)[:size]
    return (loudness * rng.standard_normal(size)).astype(np.float32)


def encoded_frames(spec: ModelSpec, weights: dict[str, Array], waveform: Array) -> Array:
    graph = Graph(17)
    samples, lengths = graph.add_input("waveforms", FLOAT, None), graph.add_input("lengths", INT64, None)
    values, counts = frontend.log_mel(graph, spec.features, weights, samples, lengths)
    encoded, _ = encoder.encode(graph, spec.encoder, weights, precision_named("fp32"), values, counts)
    graph.add_output(encoded, FLOAT, None, "encoded")
    feeds = {"waveforms": waveform[None], "lengths": np.array([len(waveform)])}
    frames: Array = Session.of_graph(graph, "encoder").run(["encoded"], feeds)[0][0]
    return frames


def spread(weights: TransducerWeights, frames: Array) -> TransducerWeights:
    """The joint's view of the frames with mean 0 and deviation 2: a random encoder hardly varies."""
    weight = weights.enc_weight * (2 / frames.std(axis=0))
    return replace(weights, enc_weight=weight, enc_bias=weights.enc_bias - weight @ frames.mean(axis=0))


def named(weights: TransducerWeights) -> dict[str, Array]:
    """A head's weights by the names of a model."""
    (layer,) = weights.lstm
    return {
        "predictor.embed.weight": weights.embedding,
        "predictor.lstm.weight_ih_l0": layer.weight_ih,
        "predictor.lstm.weight_hh_l0": layer.weight_hh,
        "predictor.lstm.bias_l0": layer.bias,
        "joint.enc.weight": weights.enc_weight,
        "joint.enc.bias": weights.enc_bias,
        "joint.pred.weight": weights.pred_weight,
        "joint.pred.bias": weights.pred_bias,
        "joint.out.weight": weights.out_weight,
        "joint.out.bias": weights.out_bias,
    }


def end_to_end(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    size = SIZES["gigaam-1025"]
    ctc = HeadSpec("ctc", 257, 256)
    spec = model_spec(arguments.layers, size.spec)
    weights = encoder_weights(spec, rng)
    # One recording that starts elsewhere in every row: a random encoder answers each noise in its own way.
    clip = noise(rng, round(16000 * arguments.seconds))
    clips = [np.roll(clip, row * len(clip) // arguments.batch) for row in range(arguments.batch)]
    frames = encoded_frames(spec, weights, clips[0])
    head = speaking(spread(random_weights(size, rng), frames), size.spec, frames)
    ctc_weights = {
        "ctc.weight": rng.standard_normal((257, 768), np.float32),
        "ctc.bias": np.zeros(257, np.float32),
    }
    models = {
        "rnnt": OnnxBackend.of_weights(spec, weights | named(head), device="cpu", threads=arguments.threads),
        "ctc": OnnxBackend.of_weights(
            replace(spec, head=ctc), weights | ctc_weights, device="cpu", threads=arguments.threads
        ),
    }
    if [h.ids.tolist() for h in models["rnnt"].recognize(clips[:1])] != [
        by_the_rule(head, size.spec, frames)
    ]:
        raise SystemExit("end to end: not the labels of the rule")
    ways = {name: lambda m=m: m.recognize(clips) for name, m in models.items()}
    best = in_turns(ways, arguments.rounds, clock_of(arguments.threads))
    rate = np.mean([len(h) for h in models["rnnt"].recognize(clips)]) / len(frames)
    audio = arguments.seconds * arguments.batch
    for name, seconds in best.items():
        print(f"{name:5} {seconds:6.2f} s for {audio:.0f} s of audio, {audio / seconds:.1f} times real time")
    ratio = best["rnnt"] / best["ctc"]
    print(f"rnnt / ctc {ratio:.3f}, {rate:.2f} labels a frame")
    return [{"end_to_end": {str(k): round(v, 3) for k, v in best.items()}, "ratio": round(ratio, 3)}]


def main() -> None:
    # This file is called like the library that the package imports.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--windows", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--bursts", action="store_true", help="random heads, which do not speak on cue")
    parser.add_argument("--rate", type=float, default=LABELS_PER_FRAME, help="their labels a frame")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--end-to-end", action="store_true")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    results = end_to_end(arguments) if arguments.end_to_end else decode_table(arguments)
    print(json.dumps({"machine": platform.processor(), "threads": arguments.threads, "results": results}))


if __name__ == "__main__":
    main()
