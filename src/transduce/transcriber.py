"""From recordings to transcripts: the flow, and the only place that chooses parts.

In: a model's name or file, then recordings. Out: a Model, then Transcripts. `pipeline` turns recordings
into labels and `words` spells them; this one puts the two in a line. It knows no output formats and no
command line.
"""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from transduce import checkpoints, pipeline, words
from transduce.errors import (
    CheckpointError,
    DeviceError,
    TransduceError,
    UnsupportedModelError,
    import_extra,
)
from transduce.pipeline import WHOLE, Cut, Limits, Part, Recording
from transduce.sources import AudioSource
from transduce.tokenizer import Tokenizer
from transduce.transcript import Transcript
from transduce.types import Backend, HeadSpec, Hypothesis, ModelSpec, Segment
from transduce.words import Unfinished

__all__ = ["BUNDLED", "Model", "load_model"]

BUNDLED = {"demo": "demo/hybrid.nemo"}
"""Models that ship with the package, by name."""

DEFAULT_LIMITS = Limits()


def _ignore(seconds: float) -> None:
    """Nobody wants to know the progress."""


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
        limits: Limits = DEFAULT_LIMITS,
    ) -> Transcript:
        """Transcribe a path, bytes, a binary file or an array of samples, of any length.

        `sample_rate` is an array's (left out: the model's); `channel` picks one instead of mixing;
        `start` and `end` are seconds. Raises AudioError or ResourceError, and what `limits` cannot be.
        """
        cut = Cut(sample_rate, channel, track, start, end)
        (found,) = self.transcribe_each([source], cut, limits)
        return _raised(found)[0]

    def stream(
        self, source: AudioSource, cut: Cut = WHOLE, limits: Limits = DEFAULT_LIMITS
    ) -> Generator[Segment, None, Transcript]:
        """Transcribe a recording and give each segment once nothing can change it, in order.

        The generator's return value is the whole transcript. Closing it ends the work. Raises as
        `transcribe`; segments that came before an error are right.
        """
        self._check_open()
        if cut.channel == "each":
            raise ValueError("a stream is of one channel, or of the mix")
        limits = replace(limits, pool_batches=1)  # so that the first segments need not wait for much audio
        unfinished: Unfinished | None = None
        with closing(pipeline.run([source], cut, limits, self.backend, _ignore)) as updates:
            for update in updates:
                if not isinstance(update, Part):
                    (recording,) = update
                    break
                breaks_frames = update.recording.stitcher.breaks_frames
                if unfinished is None:
                    unfinished = Unfinished(self.spec, self.tokenizer, update.recording.start_seconds)
                yield from unfinished.add(update.labels, breaks_frames)
        (transcript,) = _raised(self._outcome([recording]))
        assert unfinished is not None, "a recording's last part comes before its end"
        yield from unfinished.finish(breaks_frames, recording.num_seconds)
        return transcript

    def transcribe_channels(
        self, source: AudioSource, cut: Cut = WHOLE, limits: Limits = DEFAULT_LIMITS
    ) -> list[Transcript]:
        """Transcribe every channel of a recording on its own, in their order; `cut.channel` is not read."""
        (found,) = self.transcribe_each([source], replace(cut, channel="each"), limits)
        return _raised(found)

    def transcribe_batch(
        self,
        sources: Iterable[AudioSource],
        *,
        sample_rate: int | None = None,
        raise_errors: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> list[Transcript | TransduceError]:
        """Transcribe many recordings; a failed one is its error, in its place, unless `raise_errors`."""
        results: list[Transcript | TransduceError] = []
        with closing(self.transcribe_many(sources, Cut(sample_rate), limits)) as found:
            for result in found:
                if raise_errors and isinstance(result, TransduceError):
                    raise result
                results.append(result)
        return results

    def transcribe_many(
        self, sources: Iterable[AudioSource], cut: Cut = WHOLE, limits: Limits = DEFAULT_LIMITS
    ) -> Generator[Transcript | TransduceError, None, None]:
        """The same, lazily and in order: sources are taken in another thread, a few batches' worth ahead.

        Closing the generator ends that thread.
        """
        if cut.channel == "each":
            raise ValueError("a transcript is of one channel, or of the mix: use transcribe_each")
        with closing(self.transcribe_each(sources, cut, limits)) as found:
            for result in found:
                yield result if isinstance(result, TransduceError) else result[0]

    def transcribe_each(
        self,
        sources: Iterable[AudioSource],
        cut: Cut = WHOLE,
        limits: Limits = DEFAULT_LIMITS,
        on_progress: Callable[[float], None] = _ignore,
    ) -> Generator[list[Transcript] | TransduceError, None, None]:
        """As `transcribe_many`, with a list for each source: of its channels if `cut.channel` is "each".

        `on_progress` is told how many seconds of audio were done since its last call.
        """
        self._check_open()
        with closing(pipeline.run(sources, cut, limits, self.backend, on_progress)) as updates:
            for update in updates:
                if not isinstance(update, Part):
                    yield self._outcome(update)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this model is closed: load it again")

    def _outcome(self, recordings: Sequence[Recording]) -> list[Transcript] | TransduceError:
        failures = (recording.error for recording in recordings if recording.error is not None)
        return next(failures, None) or [self._transcript(recording) for recording in recordings]

    def _transcript(self, recording: Recording) -> Transcript:
        assembled = words.assemble(
            Hypothesis.joined(recording.parts),
            spec=self.spec,
            tokenizer=self.tokenizer,
            duration_seconds=recording.num_seconds,
            offset_seconds=recording.start_seconds,
            breaks_frames=recording.stitcher.breaks_frames,
        )
        return Transcript(
            text=assembled.text,
            segments=assembled.segments,
            words=assembled.words,
            tokens=assembled.tokens,
            duration=recording.start_seconds + recording.num_seconds,
            source=recording.name,
            model=self.spec.name,
            head=self.spec.head.kind,
            language=self.spec.language,
            channel=recording.channel,
            warnings=recording.warnings,
        )


def _raised(found: list[Transcript] | TransduceError) -> list[Transcript]:
    """The transcripts; an error in their place is raised."""
    if isinstance(found, TransduceError):
        raise found
    return found
