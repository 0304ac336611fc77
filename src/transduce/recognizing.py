"""Pieces of recordings on their way through a backend: recognised in batches, given out in order.

In: the pieces of many recordings, in order, each source's followed by its end. Out, in the same order: each
stretch of labels that is final, and the recordings of a source once they are complete, as soon as everything
before them is. A batch always holds the oldest piece that waits, and of a bounded number behind it those of
similar length: so nothing waits for long, and little is padded. Files, cutting, text and seconds of the
transcript are not known here.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from transduce import batching
from transduce.background import Line
from transduce.errors import TransduceError
from transduce.longform import Stitcher
from transduce.memory import give_back
from transduce.segmentation import Span
from transduce.types import Backend, FloatArray, Hypothesis

__all__ = ["MOST_ENDED", "Budget", "Ended", "Item", "Part", "Recording", "Update", "Work", "recognized"]

GIVE_BACK_SECONDS = 100
"""After so much audio free memory goes back to the system ..."""
REST_SECONDS = 1.0
"""... but not sooner than that after the last time: a small model would spend a tenth of its time on it."""
MOST_ENDED = 64
"""Ends of recordings that are looked at together, and as many that may wait to be."""
PATIENCE_SECONDS = 0.2
"""Where the next piece takes longer than this to come, what is there is recognised without it."""

_NO_SAMPLES = np.empty(0, np.float32)


# What comes in


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


@dataclass(eq=False, slots=True)
class Work:
    """A piece to recognise."""

    recording: Recording
    span: Span
    samples: FloatArray
    """`[n]`; dropped once there is an outcome."""
    seconds: float
    """Of audio that are done with it: its own, and what was left out before it."""
    outcome: Hypothesis | TransduceError | None = None

    @property
    def waits(self) -> bool:
        """Whether it is still to be recognised; a recording that has failed costs nothing more."""
        return self.outcome is None and self.recording.error is None


@dataclass(frozen=True, slots=True)
class Ended:
    """All pieces of a source's recordings are out."""

    recordings: list[Recording]
    seconds: float
    """Of audio behind the last piece."""


Item: TypeAlias = Work | Ended


# What comes out


@dataclass(frozen=True, slots=True)
class Part:
    """Labels of a recording that are final."""

    recording: Recording
    labels: Hypothesis


Update: TypeAlias = Part | list[Recording]
"""Labels as they come; and the recordings of one source, at its end."""

Progress: TypeAlias = Callable[[float], None]
"""Is told how many seconds of audio were done since it was last called."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is recognised at once, in samples with padding."""

    first_samples: int
    """Of the first batch; each later one may hold twice as much as the last ..."""
    batch_samples: int
    """... up to this."""
    num_looked_at: int
    """So many batches' worth of pieces waits, to find those of similar length."""

    def sizes(self) -> Iterator[int]:
        """Of each batch in turn."""
        size = min(self.first_samples, self.batch_samples)
        while True:
            yield size
            size = min(2 * size, self.batch_samples)


def recognized(
    items: Line[Item], backend: Backend, budget: Budget, on_progress: Progress
) -> Iterator[Update]:
    """Recognise all items; what the backend cannot do is the error of the recording that it met."""
    window = _Window(on_progress)
    num_samples, given_back = 0, time.monotonic()
    for size in budget.sizes():
        goes_on = yield from _filled(window, items, size * budget.num_looked_at)
        batch = window.batch(size)
        if not batch and not goes_on:
            return
        num_samples += sum(len(work.samples) for work in batch)
        _recognize(batch, backend, size, on_progress)
        is_much = num_samples >= GIVE_BACK_SECONDS * backend.spec.features.sample_rate
        if is_much and time.monotonic() >= given_back + REST_SECONDS:
            give_back()
            num_samples, given_back = 0, time.monotonic()


def _filled(window: "_Window", items: Line[Item], num_samples: int) -> Generator[Update, None, bool]:
    """Take items until there is enough for now, and give out what is ready; False at their end."""
    yield from window.ready()
    while window.has_room(num_samples) and (window.is_empty or items.comes_within(PATIENCE_SECONDS)):
        item = next(items, None)
        if item is None:
            return False
        window.add(item)
        yield from window.ready()
    return True


def _recognize(batch: list[Work], backend: Backend, num_samples: int, on_progress: Progress) -> None:
    waveforms = [work.samples for work in batch]
    outcomes = batching.recognize(backend, waveforms, num_samples / backend.spec.features.sample_rate)
    for work, outcome in zip(batch, outcomes, strict=True):
        work.outcome, work.samples = outcome, _NO_SAMPLES
        on_progress(work.seconds)


class _Window:
    """The items that are looked at: what waits to be recognised, and what is ready but not yet due."""

    def __init__(self, on_progress: Progress) -> None:
        self._on_progress = on_progress
        self._items: deque[Item] = deque()
        self._num_ended = 0
        self._num_samples = 0
        """That wait to be recognised."""

    @property
    def is_empty(self) -> bool:
        return not self._items

    def has_room(self, num_samples: int) -> bool:
        return self._num_samples < num_samples and self._num_ended < MOST_ENDED

    def add(self, item: Item) -> None:
        self._items.append(item)
        if isinstance(item, Work):
            self._num_samples += len(item.samples)
        else:
            self._num_ended += 1

    def batch(self, num_samples: int) -> list[Work]:
        """The pieces to recognise next, which count as done from here on; none if nothing waits."""
        works = [item for item in self._items if isinstance(item, Work) and item.waits]
        lengths = [len(work.samples) for work in works]
        chosen = batching.batch_with_first(lengths, num_samples)
        self._num_samples = sum(lengths) - sum(lengths[index] for index in chosen)
        return [works[index] for index in chosen]

    def ready(self) -> Iterator[Update]:
        """What is due, in order: all before the oldest piece that waits."""
        while self._items and not (isinstance(self._items[0], Work) and self._items[0].waits):
            item = self._items.popleft()
            if isinstance(item, Work):
                yield from self._final(item)
            else:
                self._num_ended -= 1
                self._on_progress(item.seconds)
                yield from (_taken(recording, recording.stitcher.finish()) for recording in item.recordings)
                yield item.recordings

    def _final(self, work: Work) -> Iterator[Part]:
        """The labels that a piece's outcome makes final; none if it has none, as after an error."""
        recording, outcome = work.recording, work.outcome
        if outcome is None:
            self._on_progress(work.seconds)
        elif isinstance(outcome, Hypothesis):
            yield _taken(recording, recording.stitcher.add(work.span, outcome))
        elif recording.error is None:
            recording.error = type(outcome)(f"{recording.name}: {outcome}")
            recording.error.__cause__ = outcome


def _taken(recording: Recording, labels: Hypothesis) -> Part:
    recording.parts.append(labels)
    return Part(recording, labels)
