"""How fast a model is here: every stage from a file to words, and the whole.

In: how to load a model, audio, how often to measure. Out: a Measurement, plain numbers. Times are medians
of rounds, after one that does not count; a hybrid's two heads run in turns. It prints nothing, and knows
no options.
"""

import io
import platform
import sys
import time
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Protocol, cast

import numpy as np

from transduce import audio, synthetic, words
from transduce.checkpoints import Checkpoint
from transduce.choice import Choice
from transduce.errors import (
    AudioError,
    MissingExtraError,
    TransduceError,
    UnsupportedModelError,
    import_extra,
)
from transduce.evaluate import describe_machine
from transduce.segmentation import SILENCE_DB
from transduce.transcriber import Model, backend_of, load_model
from transduce.types import FloatArray, Hypothesis, ModelSpec

__all__ = [
    "STAGES",
    "Measurement",
    "Plan",
    "clips_of",
    "measure",
    "open_model",
    "plot",
    "synthetic_checkpoint",
]

STAGES = ("read", "voice activity", "features", "encoder", "decoder", "one graph", "words")
"""In the order that audio meets them; an engine that runs its graph as one has "one graph"."""

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    batch: int = 8
    seconds: float = 20.0
    """Of each clip."""
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model on one machine. Times in seconds, of one batch where nothing else is said."""

    model: str
    head: str
    engine: str
    device: str
    precision: str
    batch: int
    clip_seconds: float
    stages: Mapping[str, float]
    recognition_seconds: float
    """From samples to labels, the way it runs in earnest."""
    rtfx: float
    """Audio by recognition."""
    total_rtfx: float
    """Audio by all stages, one after another."""
    latency_seconds: Mapping[str, float]
    """Of one clip alone: percentiles 50, 90, 99."""
    labels: int
    labels_per_frame: float
    steps: int | None
    """Of the decoding loop, for the whole batch; known for RNN-T in lanes."""
    decoder_share: float | None
    """Of features, encoder and decoder together."""
    peak_memory_bytes: int | None
    """Of this process so far."""
    ctc_ratio: float | None
    """Recognition with the transducer by that with the CTC head of the same model."""
    notes: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class _Staged(Protocol):
    """What every engine can be asked beside `Backend`."""

    def stage_seconds(self, waveforms: Sequence[FloatArray]) -> Mapping[str, float]: ...


def clips_of(source: str | Path | None, plan: Plan, sample_rate: int) -> list[FloatArray]:
    """A batch of clips: a recording from other places each, or noise. AudioError for no audio, or silence."""
    size = round(plan.seconds * sample_rate)
    if source is None:
        return [synthetic.noise(size, seed) for seed in range(plan.batch)]
    samples = audio.load(source, rate=sample_rate).samples
    if np.max(np.abs(samples), initial=0.0) < 10 ** (SILENCE_DB / 20):
        raise AudioError(
            f"{source}: nothing in it is louder than {SILENCE_DB} dB: give a recording of speech"
        )
    whole = np.resize(samples, max(size, len(samples)))  # a short one is repeated
    starts = [row * len(whole) // plan.batch for row in range(plan.batch)]
    return [np.roll(whole, -start)[:size].copy() for start in starts]


def synthetic_checkpoint(name: str) -> Checkpoint:
    """Random weights of a released model's size. UnsupportedModelError for an unknown name."""
    if name not in synthetic.SIZES:
        known = ", ".join(synthetic.SIZES)
        raise UnsupportedModelError(f"no synthetic model is called {name!r}: use one of {known}")
    made = synthetic.checkpoint(synthetic.SIZES[name])
    waveform = synthetic.noise(6 * made.spec.features.sample_rate)
    return synthetic.speaking(made, _encoder_frames(made, waveform))


def measure(model: str | Checkpoint, choice: Choice, clips: Sequence[FloatArray], plan: Plan) -> Measurement:
    """Load a model by name, or run one that was made, and time it on a batch.

    Raises what `load_model` raises.
    """
    opened = open_model(model, choice)
    other = _ctc_of(opened, model, choice)
    found = opened.backend.recognize(clips)
    recognition, with_ctc = _in_turns([opened, *([other] if other else [])], clips, plan.rounds)
    latencies = [
        _seconds(partial(opened.backend.recognize, [clip])) for clip in clips for _ in range(plan.rounds)
    ]
    if other:
        other.close()
    stages = _stages(model, choice, opened, clips, found, plan.rounds)
    spec, notes = opened.spec, dict(opened.backend.describe())
    audio_seconds = sum(map(len, clips)) / spec.features.sample_rate
    num_frames = [spec.num_frames(len(clip)) for clip in clips]
    between = sum(stages.get(name, 0.0) for name in ("features", "encoder", "decoder"))
    around = sum(stages.get(name, 0.0) for name in ("read", "voice activity", "words"))
    num_labels = sum(map(len, found))
    measured = Measurement(
        model=spec.name,
        head=spec.head.kind,
        engine=notes.pop("engine"),
        device=notes.pop("device"),
        precision=notes.pop("precision"),
        batch=len(clips),
        clip_seconds=plan.seconds,
        stages=stages,
        recognition_seconds=recognition,
        rtfx=audio_seconds / recognition,
        total_rtfx=audio_seconds / (recognition + around),
        latency_seconds={f"p{p}": float(np.percentile(latencies, p)) for p in PERCENTILES},
        labels=num_labels,
        labels_per_frame=num_labels / max(1, sum(num_frames)),
        steps=_num_steps(spec, found, num_frames, notes.get("decoder", "")),
        decoder_share=stages["decoder"] / between if "decoder" in stages else None,
        peak_memory_bytes=_peak_memory_bytes(),
        ctc_ratio=recognition / with_ctc if other else None,
        notes=notes,
        machine=describe_machine(),
    )
    opened.close()
    return measured


def open_model(model: str | Checkpoint, choice: Choice) -> Model:
    """A model by name, or of a checkpoint that was made; errors as of `load_model`."""
    if isinstance(model, str):
        return load_model(model, choice)
    if choice.backend == "auto" and find_spec("torch") is None:
        choice = replace(choice, backend="onnx")
    head = model.spec.head
    if choice.head != "auto":
        head = next((each for each in model.spec.heads if each.kind == choice.head), head)
    return Model(backend_of(replace(model.spec, head=head), model.weights, choice), model.tokenizer)


def _ctc_of(opened: Model, model: str | Checkpoint, choice: Choice) -> Model | None:
    """The same model with its CTC head, where the head that decodes is another."""
    if opened.spec.head.kind == "ctc" or not any(head.kind == "ctc" for head in opened.spec.heads):
        return None
    return open_model(model, replace(choice, head="ctc"))


def _in_turns(models: Sequence[Model], clips: Sequence[FloatArray], rounds: int) -> tuple[float, float]:
    """Medians of the first and the last model, which take turns after a round that does not count."""
    works = [partial(model.backend.recognize, clips) for model in models]
    for work in works:
        work()
    times = [[_seconds(work) for work in works] for _ in range(rounds)]
    return median(each[0] for each in times), median(each[-1] for each in times)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# Stages


def _stages(
    model: str | Checkpoint,
    choice: Choice,
    opened: Model,
    clips: Sequence[FloatArray],
    found: Sequence[Hypothesis],
    rounds: int,
) -> dict[str, float]:
    """Medians; those inside an ONNX graph are taken on the same graph in three parts."""
    rate = opened.spec.features.sample_rate
    files = [_wav(clip, rate) for clip in clips]
    works: dict[str, Callable[[], object]] = {
        "read": lambda: [audio.load(file, rate=rate) for file in files],
        "words": lambda: [
            _assembled(opened, each, len(c) / rate) for each, c in zip(found, clips, strict=True)
        ],
    }
    if (listen := _listener(rate)) is not None:
        works["voice activity"] = lambda: [listen(clip) for clip in clips]
    medians = {name: median(_seconds(work) for _ in range(rounds)) for name, work in works.items()}
    medians |= _inside(model, choice, opened, clips, rounds)
    return {name: medians[name] for name in STAGES if name in medians}


def _inside(
    model: str | Checkpoint, choice: Choice, opened: Model, clips: Sequence[FloatArray], rounds: int
) -> dict[str, float]:
    spent = cast(_Staged, opened.backend).stage_seconds(clips)
    staged = opened
    if "one graph" in spent:
        try:
            staged = open_model(model, replace(choice, backend="onnx", staged=True))
        except TransduceError:  # a graph that cannot be taken apart, or no onnx to do it with
            return dict(spent)
    backend = cast(_Staged, staged.backend)
    backend.stage_seconds(clips)
    all_rounds = [backend.stage_seconds(clips) for _ in range(rounds)]
    if staged is not opened:
        staged.close()
    return {name: median(each[name] for each in all_rounds) for name in all_rounds[0]}


def _wav(samples: FloatArray, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def _listener(rate: int) -> Callable[[FloatArray], object] | None:
    """Voice activity of a clip, where it can be had."""
    from transduce.onnx import vad

    if rate != vad.SAMPLE_RATE:
        return None
    try:
        detector = vad.shared_detector()
    except MissingExtraError:
        return None
    return lambda clip: detector.stream().feed(clip)


def _assembled(model: Model, found: Hypothesis, seconds: float) -> object:
    return words.assemble(
        found,
        spec=model.spec,
        tokenizer=model.tokenizer,
        duration_seconds=seconds,
        offset_seconds=0.0,
        breaks_frames=(),
    )


def _num_steps(
    spec: ModelSpec, found: Sequence[Hypothesis], num_frames: Sequence[int], decoder: str
) -> int | None:
    """Steps of the loop of the slowest lane, which are the batch's: one for a label, one for an empty window.

    TDT jumps over frames by blanks, of which hypotheses know nothing.
    """
    window = decoder.rpartition("window of ")[2]
    if spec.head.kind != "rnnt" or not window.isdecimal():
        return None
    lanes = (
        _lane_steps(each.frames.tolist(), frames, int(window), spec.head.max_symbols)
        for each, frames in zip(found, num_frames, strict=True)
    )
    return max(lanes, default=0)


def _lane_steps(frames: Sequence[int], num_frames: int, window: int, max_symbols: int) -> int:
    at = steps = on_frame = 0
    last = -1
    for frame in frames:
        steps += (frame - at) // window + 1
        on_frame = on_frame + 1 if frame == last else 1
        last, at = frame, frame + (on_frame == max_symbols)
    return steps + max(0, -(-(num_frames - at) // window))


def _peak_memory_bytes() -> int | None:
    if platform.system() == "Windows":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _encoder_frames(made: Checkpoint, waveform: FloatArray) -> FloatArray:
    """Frames `[T, D]` by whichever engine is there; MissingExtraError where none is."""
    spec = replace(made.spec, head=made.spec.heads[0])
    if find_spec("torch") is not None:
        from transduce.nn.backend import TorchBackend

        encoded, _ = TorchBackend(spec, made.weights, device="cpu").encode(waveform[None], [len(waveform)])
        frames: FloatArray = encoded[0].numpy()
        return frames
    from transduce.onnx import graph, precision, staged

    whole = graph.build(spec, made.weights, precision.precision_named("fp32"))
    session = staged.StagedSession.of_graph(
        whole, spec.name, num_mels=spec.features.num_mels, in_openvino=False
    )
    rows: FloatArray = session.encode(waveform[None], np.array([len(waveform)]))[0][0]
    return rows


# Plot


def plot(measured: Sequence[Measurement], path: Path) -> None:
    """Stages as bars, one a measurement, in a PNG. MissingExtraError without matplotlib."""
    matplotlib = import_extra("matplotlib", "plot")
    matplotlib.use("Agg")
    pyplot = import_extra("matplotlib.pyplot", "plot")
    figure, axes = pyplot.subplots(figsize=(9, 1.6 + 0.8 * len(measured)), layout="constrained")
    rows = range(len(measured))
    left = np.zeros(len(measured))
    for stage in STAGES:
        values = np.array([each.stages.get(stage, 0.0) for each in measured])
        if values.any():
            axes.barh(rows, values, left=left, height=0.6, label=stage)
            left += values
    axes.set_yticks(
        rows, [f"{m.model}\n{m.head}, {m.precision}, {m.engine.partition(',')[0]}" for m in measured]
    )
    for row, each in enumerate(measured):
        axes.text(left[row], row, f"  {each.rtfx:.0f} x real time", va="center")
    first = measured[0]
    axes.set_xlabel(f"seconds for {first.batch} x {first.clip_seconds:g} s of audio")
    axes.set_xlim(0, left.max() * 1.25)
    axes.invert_yaxis()
    figure.legend(ncols=len(STAGES), fontsize="small", loc="outside lower center")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
