"""From recordings to transcripts: the flow, and the only place that chooses parts.

In: a model's name or file, then recordings. Out: a Model, then Transcripts. `pipeline` turns recordings
into labels and `words` spells them; this one puts the two in a line. It knows no output formats and no
command line.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from transduce import checkpoints, hub, pipeline, words
from transduce.checkpoints import Checkpoint
from transduce.choice import Choice
from transduce.errors import DeviceError, TransduceError, UnsupportedModelError, import_extra
from transduce.guarded import Guarded
from transduce.onnx.pick import Engine
from transduce.pipeline import WHOLE, Cut, Limits
from transduce.recognizing import Part, Recording, Update
from transduce.sources import AudioSource
from transduce.tokenizer import Tokenizer
from transduce.transcript import Transcript
from transduce.types import Backend, HeadSpec, Hypothesis, ModelSpec, Segment, Weights
from transduce.words import Unfinished

__all__ = ["Model", "backend_of", "load_model", "read_checkpoint"]

DEFAULT_LIMITS = Limits()


def _ignore(seconds: float) -> None:
    """Nobody wants to know the progress."""


def load_model(
    name_or_path: str | Path,
    choice: Choice | None = None,
    *,
    backend: str = "auto",
    device: str = "auto",
    precision: str = "fp32",
    head: str = "auto",
    offline: bool = False,
    settings: hub.Settings | None = None,
) -> "Model":
    """Load a model by path (a `.nemo`, a `.ckpt`, an ONNX folder) or by name; `demo` is bundled.

    `choice` says everything that the four keywords after it say, and more. A name is downloaded
    where it is not in the cache yet, unless `offline`. Raises CheckpointError, UnsupportedModelError,
    DownloadError, MissingExtraError or DeviceError.
    """
    choice = choice or Choice(backend, device, precision, head)
    settings = settings or hub.Settings.from_environment()
    found = hub.find_model(str(name_or_path), settings.catalogue)
    name = None if isinstance(found, Path) else found.name
    path = hub.resolve(
        str(name_or_path),
        engines=choice.engines,
        precision=choice.precision,
        offline=offline,
        settings=settings,
    )
    is_onnx = path.is_dir() or path.suffix == ".onnx"
    return _of_onnx(path, choice) if is_onnx else _of_checkpoint(path, choice, name)


def _onnx_engine(choice: Choice) -> Engine:
    """Who multiplies matrices: OpenVINO if asked for, or if any precision will do and it is there."""
    if choice.backend == "openvino":
        import_extra("openvino", "openvino")
        return "openvino"
    is_free = choice.backend == "auto" and choice.precision == "auto" and choice.device in ("auto", "cpu")
    other: Engine = "staged" if choice.staged else "onnx"
    return "openvino" if is_free and find_spec("openvino") else other


def _check_decoder(choice: Choice) -> None:
    """An ONNX graph decodes in its own loop."""
    if choice.decoder != "auto":
        raise DeviceError(
            f"decoder {choice.decoder!r} is one of torch's, and this model runs in ONNX: leave --decoder out"
        )


_ONE_HEAD = (
    "; a model in ONNX has one, its checkpoint may have more, which torch reads: "
    'pip install "transduce[torch]", and leave --backend out'
)


def _of_onnx(path: Path, choice: Choice) -> "Model":
    """An ONNX folder or file, of `transduce export` or of another tool."""
    if choice.backend == "torch":
        raise UnsupportedModelError(
            f"{path}: is in ONNX, which the torch engine does not run; leave --backend out"
        )
    _check_decoder(choice)
    import_extra("onnxruntime", "cpu")
    from transduce.checkpoints import onnx_layouts

    engine = _onnx_engine(choice)
    backend, tokenizer = onnx_layouts.load(
        path, device=choice.device, precision=choice.precision, threads=choice.threads, engine=engine
    )
    _choose_head(backend.spec, choice.head, _ONE_HEAD)
    return Model(backend, tokenizer)


def _of_checkpoint(path: Path, choice: Choice, name: str | None) -> "Model":
    """A `.nemo` or `.ckpt`: torch reads it, whichever engine runs it."""
    checkpoint = _checkpoint(path, choice.head, name)
    return Model(backend_of(checkpoint.spec, checkpoint.weights, choice), checkpoint.tokenizer)


def read_checkpoint(name_or_path: str | Path, *, head: str = "auto", offline: bool = False) -> Checkpoint:
    """A checkpoint by path or name, read but not run; its spec has the head asked for. Needs torch."""
    found = hub.find_model(str(name_or_path), hub.catalogue())
    path = hub.resolve(str(name_or_path), engines=("torch",), offline=offline)
    return _checkpoint(path, head, None if isinstance(found, Path) else found.name)


def _checkpoint(path: Path, head: str, name: str | None) -> Checkpoint:
    """Read a file; `name` is the catalogue's."""
    checkpoint = checkpoints.load(path)
    spec = checkpoint.spec
    spec = replace(spec, name=name or spec.name, head=_choose_head(spec, head))
    return replace(checkpoint, spec=spec)


def backend_of(spec: ModelSpec, weights: Weights, choice: Choice) -> Backend:
    """What runs a checkpoint that was read; errors as of `load_model`."""
    engine = _onnx_engine(choice)
    if choice.backend == "onnx" or engine == "openvino":
        _check_decoder(choice)
        import_extra("onnxruntime", "cpu")
        from transduce.onnx.backend import OnnxBackend

        return OnnxBackend.of_weights(
            spec,
            weights,
            device=choice.device,
            precision=choice.precision,
            threads=choice.threads,
            engine=engine,
        )
    from transduce.nn.backend import TorchBackend

    return TorchBackend(
        spec,
        weights,
        device=choice.device,
        precision=choice.precision,
        decoder=choice.decoder,
        threads=choice.threads,
    )


def _choose_head(spec: ModelSpec, wanted: str, note: str = "") -> HeadSpec:
    if wanted == "auto":
        return spec.head
    for head in spec.heads:
        if head.kind == wanted:
            return head
    kinds = ", ".join(head.kind for head in spec.heads)
    raise UnsupportedModelError(f"{spec.name}: has no {wanted} head; it has: {kinds}{note}")


class Model:
    """A loaded model. Any number of threads may use it; it is a context manager."""

    def __init__(self, backend: Backend, tokenizer: Tokenizer) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self._guarded = Guarded(backend)

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
        """Free what the model holds; calling it again does nothing.

        Where other threads use it, this waits for the batches that run; their calls then raise DeviceError.
        """
        self._guarded.close()

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

    def check(self, limits: Limits) -> None:
        """Raise ValueError for limits that make no sense.

        Where `vad="on"` is not possible: MissingExtraError or UnsupportedModelError.
        """
        pipeline.check(self.spec, limits)

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
        `start` and `end` are seconds. Raises AudioError or ResourceError, DeviceError if the model is closed,
        and what `limits` cannot be.
        """
        cut = Cut(sample_rate, channel, track, start, end)
        (found,) = self.transcribe_each([source], cut, _at_once(limits))
        return _raised(found)[0]

    def stream(
        self,
        source: AudioSource,
        cut: Cut = WHOLE,
        limits: Limits = DEFAULT_LIMITS,
        on_progress: Callable[[float], None] = _ignore,
    ) -> Generator[Segment, None, Transcript]:
        """Transcribe a recording and give each segment once nothing can change it, in order.

        The generator's return value is the whole transcript. Closing it ends the work. Raises as
        `transcribe`; segments that came before an error are right. `on_progress` is told how many seconds
        of audio were done since its last call.
        """
        if cut.channel == "each":
            raise ValueError("a stream is of one channel, or of the mix")
        pipeline.check_numbers(limits)
        limits = replace(limits, pool_batches=1)  # so that the first segments need not wait for much audio
        unfinished: Unfinished | None = None
        with closing(self._updates([source], cut, limits, on_progress)) as updates:
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
        (found,) = self.transcribe_each([source], replace(cut, channel="each"), _at_once(limits))
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
        limits = _at_once(limits)
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

        Each result comes as soon as it and all before it are complete; sources that are slow to come hold up
        none before them. Closing the generator ends that thread.
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
        with closing(self._updates(sources, cut, limits, on_progress)) as updates:
            for update in updates:
                if not isinstance(update, Part):
                    yield self._outcome(update)

    def _updates(
        self,
        sources: Iterable[AudioSource],
        cut: Cut,
        limits: Limits,
        on_progress: Callable[[float], None],
    ) -> Generator[Update, None, None]:
        """What the pipeline gives, until the model is closed."""
        self._guarded.check()
        with closing(pipeline.run(sources, cut, limits, self._guarded, on_progress)) as updates:
            for update in updates:
                self._guarded.check()
                yield update

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


def _at_once(limits: Limits) -> Limits:
    """The same with full batches from the first one on, where nothing is given out before the end."""
    pipeline.check_numbers(limits)
    return replace(limits, first_batch_seconds=limits.batch_seconds)


def _raised(found: list[Transcript] | TransduceError) -> list[Transcript]:
    """The transcripts; an error in their place is raised."""
    if isinstance(found, TransduceError):
        raise found
    return found
