"""From recordings to transcripts: the flow, and the only place that chooses parts.

In: a model's name or file, then recordings. Out: a Model, then Transcripts. Reading, cutting,
recognising, joining and spelling are each another module's; this one puts them in a line. It knows
no output formats and no command line.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from transduce import audio, batching, checkpoints, longform, words
from transduce.audio import Audio
from transduce.errors import (
    CheckpointError,
    DeviceError,
    ResourceError,
    TransduceError,
    UnsupportedModelError,
    import_extra,
)
from transduce.sources import AudioSource, describe_source
from transduce.tokenizer import Tokenizer
from transduce.transcript import Transcript
from transduce.types import Backend, FloatArray, HeadSpec, Hypothesis, ModelSpec

__all__ = ["BUNDLED", "WHOLE", "Cut", "Model", "load_model"]

BUNDLED = {"demo": "demo/hybrid.nemo"}
"""Models that ship with the package, by name."""

POOL_SECONDS = 4 * batching.BATCH_SECONDS
POOL_SIZE = 64
"""Recordings are read until there is this much audio, or this many of them, then recognised together."""

TOO_QUIET = (
    f"nothing in it is louder than {longform.SILENCE_DB} dB, so it was taken for silence: "
    "amplify it if it holds speech"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a recording to transcribe."""

    sample_rate: int | None = None
    """Rate of an array; None: the model's. Files say their own."""
    channel: int | Literal["mix"] = "mix"
    track: int | None = None
    """Audio track of a container; None: its default one."""
    start_seconds: float = 0.0
    end_seconds: float | None = None


WHOLE = Cut()
"""All of it, channels mixed."""


def load_model(
    name_or_path: str | Path,
    *,
    backend: str = "auto",
    device: str = "auto",
    precision: str = "fp32",
    head: str = "auto",
) -> "Model":
    """Load a checkpoint by path, or `demo`, the bundled one.

    `backend`: auto or torch. `device`: auto, cpu, cuda or cuda:N. `precision` of the encoder: fp32
    (exact), bf16, fp16 or auto. `head`: auto, rnnt, tdt or ctc, for checkpoints that hold two.
    Raises CheckpointError, UnsupportedModelError, MissingExtraError or DeviceError.
    """
    if backend not in ("auto", "torch"):
        raise DeviceError(f"unknown backend {backend!r}: use auto or torch")
    import_extra("torch", "torch")
    from transduce.nn.backend import TorchBackend

    checkpoint = checkpoints.load(_locate(name_or_path))
    spec = replace(checkpoint.spec, head=_choose_head(checkpoint.spec, head))
    if str(name_or_path) in BUNDLED:
        spec = replace(spec, name=str(name_or_path))
    engine = TorchBackend(spec, checkpoint.weights, device=device, precision=precision)
    return Model(engine, checkpoint.tokenizer)


def _locate(name_or_path: str | Path) -> Path:
    path = Path(name_or_path).expanduser()
    if os.path.exists(path):  # False also for what is too long to be a name
        return path
    if str(name_or_path) in BUNDLED:
        return Path(str(files("transduce") / "models" / BUNDLED[str(name_or_path)]))
    raise CheckpointError(
        f"{name_or_path}: no such file, and no model of that name; "
        f"give the path of a .nemo or .ckpt file, or one of: {', '.join(BUNDLED)}"
    )


def _choose_head(spec: ModelSpec, wanted: str) -> HeadSpec:
    if wanted == "auto":
        return spec.head
    for head in spec.heads:
        if head.kind == wanted:
            return head
    kinds = ", ".join(head.kind for head in spec.heads)
    raise UnsupportedModelError(f"{spec.name}: has no {wanted} head; it has: {kinds}")


class Model:
    """A loaded model. Any number of threads may use it; it is a context manager."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self._closed = False

    @property
    def spec(self) -> ModelSpec:
        return self.backend.spec

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free what the model holds; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self.backend.close()

    def describe(self) -> dict[str, Any]:
        """What the model is and what runs it: the content of `transduce info --json`."""
        features, encoder, head = self.spec.features, self.spec.encoder, self.spec.head
        return {
            "name": self.spec.name,
            "family": self.spec.family,
            "heads": ", ".join(each.kind for each in self.spec.heads),
            "head": head.kind,
            "labels": head.num_classes - 1,
            "durations": list(head.durations) if head.kind == "tdt" else None,
            "max_symbols": None if head.kind == "ctc" else head.max_symbols,
            "language": self.spec.language,
            "sample_rate": features.sample_rate,
            "mels": features.num_mels,
            "encoder": f"{encoder.num_layers} layers, {encoder.width} wide, {encoder.num_heads} heads, "
            f"{encoder.attention}, {encoder.subsampling} x{encoder.subsampling_factor}",
            "frame_seconds": self.spec.frame_samples / features.sample_rate,
            "max_segment_seconds": self.spec.max_segment_seconds,
            **self.backend.describe(),
        }

    def transcribe(
        self,
        source: AudioSource,
        *,
        sample_rate: int | None = None,
        channel: int | Literal["mix"] = "mix",
        track: int | None = None,
        start: float = 0.0,
        end: float | None = None,
    ) -> Transcript:
        """Transcribe a path, bytes, a binary file or an array of samples.

        `sample_rate` is an array's (left out: the model's); `channel` picks one instead of mixing;
        `start` and `end` are seconds. Raises AudioError or ResourceError.
        """
        cut = Cut(sample_rate, channel, track, start, end)
        self._check_open()
        return self._finish([self._read(source, cut)])[0].result()

    def transcribe_channels(self, source: AudioSource, cut: Cut = WHOLE) -> list[Transcript]:
        """Transcribe every channel of a recording on its own, in their order; `cut.channel` is not read."""
        self._check_open()
        channels = audio.load_channels(
            source,
            rate=self.spec.features.sample_rate,
            sample_rate=cut.sample_rate,
            track=cut.track,
            start_seconds=cut.start_seconds,
            end_seconds=cut.end_seconds,
        )
        jobs = self._finish([self._plan(describe_source(source), channel) for channel in channels])
        return [job.result() for job in jobs]

    def transcribe_batch(
        self, sources: Iterable[AudioSource], *, sample_rate: int | None = None, raise_errors: bool = False
    ) -> list[Transcript | TransduceError]:
        """Transcribe many recordings; a failed one is its error, in its place, unless `raise_errors`."""
        results: list[Transcript | TransduceError] = []
        for result in self.transcribe_many(sources, Cut(sample_rate)):
            if raise_errors and isinstance(result, TransduceError):
                raise result
            results.append(result)
        return results

    def transcribe_many(
        self, sources: Iterable[AudioSource], cut: Cut = WHOLE
    ) -> Iterator[Transcript | TransduceError]:
        """The same, lazily and in order: a few batches' worth of audio is read at a time."""
        self._check_open()
        pool: list[_Job] = []
        for source in sources:
            pool.append(self._read(source, cut))
            if sum(job.num_seconds for job in pool) >= POOL_SECONDS or len(pool) >= POOL_SIZE:
                yield from (job.outcome() for job in self._finish(pool))
                pool = []
        yield from (job.outcome() for job in self._finish(pool))

    def _read(self, source: AudioSource, cut: Cut) -> "_Job":
        """Load one recording and plan its spans; what goes wrong is kept with the job."""
        name = describe_source(source)
        try:
            loaded = audio.load(
                source,
                rate=self.spec.features.sample_rate,
                sample_rate=cut.sample_rate,
                channel=cut.channel,
                track=cut.track,
                start_seconds=cut.start_seconds,
                end_seconds=cut.end_seconds,
            )
        except TransduceError as error:
            return _Job(name, error=error)
        except MemoryError:
            return _Job(name, error=ResourceError(f"{name} does not fit into the memory that is free"))
        return self._plan(name, loaded)

    def _plan(self, name: str, loaded: Audio) -> "_Job":
        spans = longform.plan(loaded.samples, self.spec)
        if not spans and loaded.samples.any():
            loaded = replace(loaded, warnings=(*loaded.warnings, TOO_QUIET))
        return _Job(name, loaded, spans)

    def _finish(self, jobs: list["_Job"]) -> list["_Job"]:
        """Recognise the spans of all jobs together and put the transcripts into them."""
        self._check_open()
        found = iter(batching.recognize(self.backend, [piece for job in jobs for piece in job.pieces()]))
        for job in jobs:
            outcomes = [next(found) for _ in job.spans]
            failures = [outcome for outcome in outcomes if isinstance(outcome, TransduceError)]
            if failures:
                job.error = _named(job.name, failures[0])
            elif job.audio:
                hypotheses = [outcome for outcome in outcomes if isinstance(outcome, Hypothesis)]
                job.transcript = self._transcript(job.name, job.audio, job.spans, hypotheses)
        return jobs

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this model is closed: load it again")

    def _transcript(
        self, name: str, loaded: Audio, spans: Sequence[longform.Span], hypotheses: Sequence[Hypothesis]
    ) -> Transcript:
        assembled = words.assemble(
            longform.stitch(spans, hypotheses, self.spec),
            spec=self.spec,
            tokenizer=self.tokenizer,
            duration_seconds=loaded.duration_seconds,
            offset_seconds=loaded.start_seconds,
            breaks_frames=longform.start_frames(spans, self.spec)[1:],
        )
        return Transcript(
            text=assembled.text,
            segments=assembled.segments,
            words=assembled.words,
            tokens=assembled.tokens,
            duration=loaded.start_seconds + loaded.duration_seconds,
            source=name,
            model=self.spec.name,
            head=self.spec.head.kind,
            language=self.spec.language,
            channel=loaded.channel,
            warnings=loaded.warnings,
        )


def _named(name: str, error: TransduceError) -> TransduceError:
    """An error of the backend, which does not know whose audio it was."""
    named = type(error)(f"{name}: {error}")
    named.__cause__ = error
    return named


@dataclass(slots=True)
class _Job:
    """One recording on its way: read and cut, then recognised; or the error it met."""

    name: str
    audio: Audio | None = None
    spans: Sequence[longform.Span] = ()
    error: TransduceError | None = None
    transcript: Transcript | None = None

    @property
    def num_seconds(self) -> float:
        return self.audio.duration_seconds if self.audio else 0.0

    def pieces(self) -> list[FloatArray]:
        return [span.of(self.audio.samples) for span in self.spans] if self.audio else []

    def outcome(self) -> Transcript | TransduceError:
        outcome = self.error or self.transcript
        assert outcome is not None
        return outcome

    def result(self) -> Transcript:
        outcome = self.outcome()
        if isinstance(outcome, TransduceError):
            raise outcome
        return outcome
