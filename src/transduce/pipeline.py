"""Many recordings of any length on their way to labels: reading, cutting, recognising, joining.

In: sources, which part of each, and a backend. Out: for each source, in order, its `Recording`s with all
their labels; and, on the way, each stretch of labels that is final. Three things go on at once, with
bounded queues between them: one thread reads blocks of audio, one cuts them into pieces, and the caller's
recognises batches of pieces, of all recordings together. What is held does not grow with a recording's
length, but for its labels. Text, words and models' names are not known here.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, get_args

from transduce.audio import open_stream
from transduce.background import Background
from transduce.batching import BATCH_SECONDS, recognize_each
from transduce.errors import MissingExtraError, ResourceError, TransduceError, UnsupportedModelError
from transduce.longform import Cutter, Listener, Piece, Stitcher, grid_of
from transduce.memory import give_back
from transduce.onnx.vad import SAMPLE_RATE, SpeechDetector, shared_detector
from transduce.sources import AudioSource, describe_source
from transduce.types import Backend, FloatArray, Hypothesis, ModelSpec

__all__ = ["WHOLE", "Cut", "Limits", "Part", "Recording", "Update", "Vad", "check", "run"]

Vad: TypeAlias = Literal["auto", "on", "off"]

READ_AHEAD_SECONDS = 60.0
"""Audio that may wait to be cut."""
GIVE_BACK_SECONDS = 100
"""After so much audio free memory goes back to the system; it takes about a hundredth of the work."""
POOL_SIZE = 64
"""Recordings that may end in one pool, and as many that may wait for the next one."""


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
    pool_batches: int = 2
    """So many batches' worth of pieces is collected, to be batched by length."""


@dataclass(eq=False, slots=True)
class Recording:
    """One recording, or one channel of it."""

    name: str
    channel: int | None
    start_seconds: float
    stitcher: Stitcher
    num_seconds: float = 0.0
    """Complete, as are warnings and error, when the recording has ended."""
    warnings: tuple[str, ...] = ()
    error: TransduceError | None = None
    parts: list[Hypothesis] = field(default_factory=list)
    """What was decoded, with frames of the whole."""


@dataclass(frozen=True, slots=True)
class Part:
    """Labels of a recording that are final."""

    recording: Recording
    labels: Hypothesis


Update: TypeAlias = Part | list[Recording]
"""Labels as they come; and the recordings of one source, at its end."""


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
    pool_samples = int(limits.pool_batches * limits.batch_seconds * rate)
    with Background() as background:
        reading = _read(sources, cut, rate)
        events = background.ahead(reading, READ_AHEAD_SECONDS * rate, partial(_event_weight, rate))
        cut_items = cutting.items(events)
        items = background.ahead(cut_items, pool_samples, partial(_item_weight, pool_samples))
        for pool in _pools(items, pool_samples):
            yield from _recognized(pool, backend, limits.batch_seconds, on_progress)
            pool.clear()  # its audio is not kept while the next one is collected


def check(spec: ModelSpec, limits: Limits) -> None:
    """Raise what `run` would raise for these limits."""
    _Cutting(spec, limits)


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


@dataclass(frozen=True, slots=True)
class _Work:
    """A piece to recognise."""

    recording: Recording
    piece: Piece
    seconds: float
    """Of audio that are done with it: its own, and what was left out before it."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """All pieces of a source's recordings are out."""

    recordings: list[Recording]
    seconds: float


_Item: TypeAlias = _Work | _Ended


class _Cutting:
    """How the recordings of one run are cut."""

    def __init__(self, spec: ModelSpec, limits: Limits) -> None:
        if limits.vad not in get_args(Vad):
            raise ValueError(f"vad is one of {', '.join(get_args(Vad))}, not {limits.vad!r}")
        if limits.batch_seconds <= 0:
            raise ValueError(f"batch_seconds is more than 0, not {limits.batch_seconds!r}")
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

    def items(self, events: Iterator[_Event]) -> Generator[_Item, None, None]:
        """Pieces of all recordings, each as soon as it is certain."""
        lanes: list[_Lane] = []
        for event in events:
            if isinstance(event, _Opened):
                lanes = [_Lane(self, event, channel) for channel in event.channels]
            elif isinstance(event, _Closed):
                lanes = lanes or [_Lane(self, _Opened(event.name, (None,), 0.0), None)]
                for lane in lanes:
                    yield from lane.finish(event)
                yield _Ended([lane.recording for lane in lanes], sum(lane.rest_seconds for lane in lanes))
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

    def feed(self, samples: FloatArray) -> list[_Work]:
        return self._works(lambda: self._cutter.feed(samples))

    def finish(self, closed: _Closed) -> list[_Work]:
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

    def _works(self, cut: Callable[[], list[Piece]]) -> list[_Work]:
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
            works.append(_Work(self.recording, piece, seconds))
        return works

    def _seconds(self, num_samples: int) -> float:
        return num_samples * self._share / self._rate

    @property
    def _rate(self) -> int:
        return self._cutting.grid.sample_rate


# Recognising


def _item_weight(pool_samples: int, item: _Item) -> int:
    return len(item.piece.samples) if isinstance(item, _Work) else -(-pool_samples // POOL_SIZE)


def _pools(items: Iterator[_Item], pool_samples: int) -> Iterator[list[_Item]]:
    """The items in groups: as much audio as fits, or so many recordings."""
    pool: list[_Item] = []
    num_samples, num_ended = 0, 0
    for item in items:
        size = len(item.piece.samples) if isinstance(item, _Work) else 0
        if num_samples and num_samples + size > pool_samples:
            yield pool
            pool, num_samples, num_ended = [], 0, 0
        pool.append(item)
        num_samples += size
        num_ended += isinstance(item, _Ended)
        if num_ended == POOL_SIZE:
            yield pool
            pool, num_samples, num_ended = [], 0, 0
    if pool:
        yield pool


def _recognized(
    pool: list[_Item], backend: Backend, batch_seconds: float, on_progress: Callable[[float], None]
) -> Iterator[Update]:
    works = [item for item in pool if isinstance(item, _Work) and item.recording.error is None]
    outcomes: dict[int, Hypothesis | TransduceError] = {}
    num_samples = 0
    for index, outcome in recognize_each(backend, [work.piece.samples for work in works], batch_seconds):
        outcomes[id(works[index])] = outcome
        on_progress(works[index].seconds)
        num_samples += len(works[index].piece.samples)
        if num_samples >= GIVE_BACK_SECONDS * backend.spec.features.sample_rate:
            give_back()
            num_samples = 0
    for item in pool:
        if isinstance(item, _Work):
            yield from _final(item.recording, item.piece, outcomes.get(id(item)))
        else:
            on_progress(item.seconds)
            yield from (_taken(recording, recording.stitcher.finish()) for recording in item.recordings)
            yield item.recordings


def _final(recording: Recording, piece: Piece, outcome: Hypothesis | TransduceError | None) -> Iterator[Part]:
    """The labels that a piece's result makes final; none if it has none, as after an error."""
    if isinstance(outcome, Hypothesis):
        yield _taken(recording, recording.stitcher.add(piece.span, outcome))
    elif outcome is not None and recording.error is None:
        recording.error = type(outcome)(f"{recording.name}: {outcome}")
        recording.error.__cause__ = outcome


def _taken(recording: Recording, labels: Hypothesis) -> Part:
    recording.parts.append(labels)
    return Part(recording, labels)
