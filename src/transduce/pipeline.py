"""Many recordings of any length on their way to labels: reading, cutting, recognising, joining.

In: sources, which part of each, and a backend. Out: for each source, in order, its `Recording`s with all
their labels; and, on the way, each stretch of labels that is final. Three things go on at once, with
bounded queues between them: one thread reads blocks of audio, one cuts them into pieces, and the caller's
recognises batches of pieces, of all recordings together (`recognizing`). What is held does not grow with a
recording's length, but for its labels. Text, words and models' names are not known here.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, get_args

from transduce.audio import is_finite, open_stream
from transduce.background import Background
from transduce.batching import BATCH_SECONDS
from transduce.errors import MissingExtraError, ResourceError, TransduceError, UnsupportedModelError
from transduce.longform import Cutter, Listener, Piece, Stitcher, grid_of
from transduce.onnx.vad import SAMPLE_RATE, SpeechDetector, shared_detector
from transduce.recognizing import MOST_ENDED, Budget, Ended, Item, Recording, Update, Work, recognized
from transduce.sources import AudioSource, describe_source
from transduce.types import Backend, FloatArray, ModelSpec

__all__ = ["WHOLE", "Cut", "Limits", "Vad", "check", "check_numbers", "claimed_seconds", "run"]

Vad: TypeAlias = Literal["auto", "on", "off"]

READ_AHEAD_SECONDS = 60.0
"""Audio that may wait to be cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a recording to transcribe."""

    sample_rate: int | None = None
    """Rate of an array; None: the model's. Files say their own."""
    channel: int | Literal["mix", "each"] = "mix"
    track: int | None = None
    """Audio track of a container; None: its default one."""
    start_seconds: float = 0.0
    end_seconds: float | None = None


WHOLE = Cut()
"""All of it, channels mixed."""


def claimed_seconds(source: AudioSource, cut: Cut) -> float | None:
    """How long a recording's cut claims to be; None where it makes no claim. Its audio is not read.

    Raises AudioError for what cannot be opened, MissingExtraError for an address.
    """
    rate = 16000  # any: it only matters to samples
    with open_stream(
        source,
        rate=rate,
        track=cut.track,
        start_seconds=cut.start_seconds,
        end_seconds=cut.end_seconds,
    ) as stream:
        return stream.expected_seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """How recordings are cut for the model, and put together again in batches."""

    vad: Vad = "auto"
    """Whether pauses are found by voice activity detection: auto for recordings over a segment's length,
    on for all; off: what can be heard is speech."""
    max_segment_seconds: float | None = None
    """Longest stretch for one pass; None: the model's own limit. Positions in a model file limit it too."""
    batch_seconds: float = BATCH_SECONDS
    """Audio that one batch may hold, padding counted."""
    first_batch_seconds: float = 20.0
    """Of the first batch, so that results begin soon; each later one may hold twice as much as the last."""
    pool_batches: int = 2
    """So many batches' worth of pieces is looked at, to find those of similar length."""


def run(
    sources: Iterable[AudioSource],
    cut: Cut,
    limits: Limits,
    backend: Backend,
    on_progress: Callable[[float], None],
) -> Generator[Update, None, None]:
    """Recognise `sources`, which are taken one after the other, and in another thread.

    A source that fails is a single `Recording` with its error. `on_progress` is told how many seconds of
    audio were done since it was last called. Raises MissingExtraError or UnsupportedModelError where
    `vad="on"` is not possible, ValueError for limits that make no sense, TypeError for one source in place
    of several.
    """
    if isinstance(sources, (str, bytes, bytearray, os.PathLike)) or hasattr(sources, "read"):
        raise TypeError(f"sources are several recordings: give a list, not one {type(sources).__name__}")
    spec = backend.spec
    rate = spec.features.sample_rate
    cutting = _Cutting(spec, limits)
    batch_samples = int(limits.batch_seconds * rate)
    budget = Budget(int(limits.first_batch_seconds * rate), batch_samples, limits.pool_batches)
    pool_samples = batch_samples * limits.pool_batches
    with Background() as background:
        reading = _read(sources, cut, rate)
        events = background.ahead(reading, READ_AHEAD_SECONDS * rate, partial(_event_weight, rate))
        cut_items = cutting.items(events)
        items = background.ahead(cut_items, pool_samples, partial(_item_weight, pool_samples))
        yield from recognized(items, backend, budget, on_progress)


def check(spec: ModelSpec, limits: Limits) -> None:
    """Raise what `run` would raise for these limits."""
    _Cutting(spec, limits)


def check_numbers(limits: Limits) -> None:
    """Raise TypeError for what is no Limits, ValueError for a value that suits no model."""
    if not isinstance(limits, Limits):
        raise TypeError(f"limits is a transduce.Limits, not {limits!r}")
    if limits.vad not in get_args(Vad):
        raise ValueError(f"vad is one of {', '.join(get_args(Vad))}, not {limits.vad!r}")
    for name in ("batch_seconds", "first_batch_seconds", "pool_batches"):
        value = getattr(limits, name)
        if not is_finite(value) or value <= 0:
            raise ValueError(f"{name} is more than 0, and a number; not {value!r}")
    seconds = limits.max_segment_seconds
    if seconds is not None and not is_finite(seconds):
        raise ValueError(f"max_segment_seconds is a number or None, not {seconds!r}")


# Reading


@dataclass(frozen=True, slots=True)
class _Opened:
    name: str
    channels: tuple[int | None, ...]
    start_seconds: float


@dataclass(frozen=True, slots=True)
class _Closed:
    name: str
    warnings: tuple[str, ...]
    error: TransduceError | None


_Event: TypeAlias = _Opened | FloatArray | _Closed
"""A source begins; a block of it `[n, channels]`; it ends, as it should or by an error."""


def _read(sources: Iterable[AudioSource], cut: Cut, rate: int) -> Generator[_Event, None, None]:
    for source in sources:
        name = describe_source(source)
        warnings: tuple[str, ...] = ()
        error: TransduceError | None = None
        try:
            with open_stream(
                source,
                rate=rate,
                sample_rate=cut.sample_rate,
                channel=cut.channel,
                track=cut.track,
                start_seconds=cut.start_seconds,
                end_seconds=cut.end_seconds,
            ) as stream:
                yield _Opened(name, stream.channels, stream.start_seconds)
                yield from stream.blocks
                warnings = stream.warnings()
        except TransduceError as problem:
            error = problem
        except MemoryError:
            error = _no_memory(name)
        yield _Closed(name, warnings, error)


def _no_memory(name: str) -> ResourceError:
    return ResourceError(f"{name} does not fit into the memory that is free")


def _event_weight(rate: int, event: _Event) -> int:
    """Samples, and for each recording a second's more, so that empty ones are bounded too."""
    return rate if isinstance(event, _Opened) else 0 if isinstance(event, _Closed) else len(event)


# Cutting


class _Cutting:
    """How the recordings of one run are cut."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        check_numbers(limits)
        self.spec = spec
        self.vad = limits.vad
        self.grid = grid_of(spec, limits.max_segment_seconds)
        Cutter(self.grid)  # refuses a limit that is too short
        self.why_not = ""
        """Why there is no voice activity detection, where it was wanted."""
        if self.vad == "on":
            self._detect()

    def listen(self) -> Listener | None:
        """What tells speech in one more recording; None: its loudness."""
        if self.vad == "off":
            return None
        try:
            return self._detect().stream()
        except (MissingExtraError, UnsupportedModelError) as error:
            self.why_not = str(error)
            return None

    def _detect(self) -> SpeechDetector:
        rate = self.spec.features.sample_rate
        if rate != SAMPLE_RATE:
            raise UnsupportedModelError(
                f"{self.spec.name} takes {rate} samples a second, voice activity detection {SAMPLE_RATE}"
            )
        return shared_detector()

    def items(self, events: Iterator[_Event]) -> Generator[Item, None, None]:
        """Pieces of all recordings, each as soon as it is certain."""
        lanes: list[_Lane] = []
        for event in events:
            if isinstance(event, _Opened):
                lanes = [_Lane(self, event, channel) for channel in event.channels]
            elif isinstance(event, _Closed):
                lanes = lanes or [_Lane(self, _Opened(event.name, (None,), 0.0), None)]
                for lane in lanes:
                    yield from lane.finish(event)
                yield Ended([lane.recording for lane in lanes], sum(lane.rest_seconds for lane in lanes))
                lanes = []
            else:
                for lane, column in zip(lanes, event.T, strict=True):
                    yield from lane.feed(column)


class _Lane:
    """One recording that is being cut. Memory that runs out meanwhile is its own error."""

    def __init__(self, cutting: _Cutting, opened: _Opened, channel: int | None) -> None:
        self._cutting = cutting
        self._share = 1 / len(opened.channels)
        """Of the source's time: channels pass at the same time."""
        self._done_samples = 0
        self.recording = Recording(opened.name, channel, opened.start_seconds, Stitcher(cutting.spec))
        try:
            self._cutter = Cutter(cutting.grid, cutting.listen, one_pass=cutting.vad != "on")
        except MemoryError:
            self._cutter = Cutter(cutting.grid)  # is given nothing
            self.recording.error = _no_memory(opened.name)

    def feed(self, samples: FloatArray) -> list[Work]:
        return self._works(lambda: self._cutter.feed(samples))

    def finish(self, closed: _Closed) -> list[Work]:
        works = [] if closed.error else self._works(self._cutter.finish)
        recording, cutter = self.recording, self._cutter
        recording.num_seconds = cutter.num_samples / self._rate
        recording.error = recording.error or closed.error
        recording.warnings = (*closed.warnings, *cutter.warnings)
        if self._cutting.why_not and not cutter.is_one_pass:
            recording.warnings += (f"long audio was cut at quiet places: {self._cutting.why_not}",)
        return works

    @property
    def rest_seconds(self) -> float:
        """What follows the last piece."""
        return self._seconds(self._cutter.num_samples - self._done_samples)

    def _works(self, cut: Callable[[], list[Piece]]) -> list[Work]:
        if self.recording.error is not None:
            return []
        try:
            pieces = cut()
        except MemoryError:
            self.recording.error = _no_memory(self.recording.name)
            return []
        works = []
        for piece in pieces:
            end_samples = piece.span.end_samples
            seconds = self._seconds(end_samples - self._done_samples)
            self._done_samples = end_samples
            works.append(Work(self.recording, piece.span, piece.samples, seconds))
        return works

    def _seconds(self, num_samples: int) -> float:
        return num_samples * self._share / self._rate

    @property
    def _rate(self) -> int:
        return self._cutting.grid.sample_rate


def _item_weight(pool_samples: int, item: Item) -> int:
    """Samples, and for each end a share of the pool, so that empty recordings are bounded too."""
    return len(item.samples) if isinstance(item, Work) else -(-pool_samples // MOST_ENDED)
