"""Long recordings: pieces for the model while audio comes in, and one hypothesis from theirs.

In: mono samples at the model's rate, block by block; then what each piece was decoded to. Out: pieces,
each as soon as it is certain; then labels with frames counted from the start of the recording. Pieces
start on the encoder's frame grid, so joining is integer arithmetic and times cannot drift. What is kept
does not grow with the recording. It knows no files, no text and no seconds of the transcript.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from transduce.segmentation import SILENCE_DB, Grid, Segmenter, Span, SpeechRules, loudness, powers
from transduce.types import FloatArray, Hypothesis, ModelSpec

__all__ = ["Cutter", "Listener", "Piece", "Stitcher", "grid_of"]

WINDOW_SECONDS = 0.032
"""Of one probability of speech; at 16 kHz these are the windows of `onnx.vad`."""

SOUND_RULES = SpeechRules(min_speech_seconds=0.0)
"""Where loudness stands for speech, nothing that can be heard is too short."""

NO_SPEECH = "no speech was found in it; --vad off decodes whatever can be heard"
TOO_QUIET = (
    f"nothing in it is louder than {SILENCE_DB} dB, so it was taken for silence: "
    "amplify it if it holds speech"
)

SENSIBLE_SECONDS = 5.0
"""Pieces of less hold so little around a cut that words get lost (docs/long-audio.md)."""


class Listener(Protocol):
    """Tells speech in one recording; `onnx.vad.SpeechStream` is one."""

    def feed(self, samples: FloatArray) -> FloatArray:
        """The probability of speech in each window that the samples `[n]` complete."""
        ...

    def finish(self) -> FloatArray:
        """That of the last window, which is not full; none if it is empty."""
        ...


def grid_of(spec: ModelSpec, max_segment_seconds: float | None = None) -> Grid:
    """The sizes of a model's spans; its own limit if none is given, never more than its positions cover."""
    rate = spec.features.sample_rate
    limit_seconds = spec.max_segment_seconds if max_segment_seconds is None else max_segment_seconds
    limit_samples = int(limit_seconds * rate)
    if spec.position_limit_frames is not None:
        # An encoder may give one frame more than its input is long.
        limit_samples = min(limit_samples, (spec.position_limit_frames - 1) * spec.frame_samples)
    return Grid(rate, round(WINDOW_SECONDS * rate), spec.frame_samples, limit_samples)


# Cutting


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A stretch of a recording to decode by itself."""

    span: Span
    samples: FloatArray


class Cutter:
    """Cuts one recording into pieces.

    With `one_pass`, a recording up to the limit is one piece, whatever it holds, unless it is silent.
    Others are cut by a listener, which is asked for when the first one is needed; where there is none,
    whatever can be heard counts as speech. Raises ValueError for a limit that is too short.
    """

    def __init__(
        self, grid: Grid, listen: Callable[[], Listener | None] = lambda: None, *, one_pass: bool = True
    ) -> None:
        self._grid = grid
        self._listen = listen
        self._listener: Listener | None = None
        self._segmenter = Segmenter(grid, SOUND_RULES)
        self._waits = one_pass
        """While the recording may still be one piece."""
        self._kept: FloatArray = np.empty(0, np.float32)
        """The samples that pieces may still need, from number `_first_kept` on."""
        self._first_kept = 0
        self._num_windows = 0
        self._is_cut = False
        """Whether there was any piece."""
        self._is_heard = False
        self._is_digital_silence = True
        self.num_samples = 0
        if not one_pass:
            self._begin()

    def feed(self, samples: FloatArray) -> list[Piece]:
        """Take the next samples `[n]`; the pieces that they complete."""
        self.num_samples += len(samples)
        self._is_digital_silence &= not samples.any()
        self._kept = np.concatenate([self._kept, samples])
        if self._waits and self.num_samples <= self._grid.limit_samples:
            return []
        if self._waits:
            self._begin()
            samples = self._kept
        return self._pieces(self._spans(samples))

    def finish(self) -> list[Piece]:
        """The last pieces."""
        if self._waits:
            power = self._power(self._first_kept, self.num_samples)
            self._is_heard = bool(loudness(power).any())
            return self._pieces([Span(0, self.num_samples)] if self._is_heard else [])
        rest = self._listener.finish() if self._listener else None
        power = self._power(self._num_windows * self._grid.window_samples, self.num_samples)
        spans = self._segmenter.feed(self._probabilities(rest, power), power)
        return self._pieces(spans + self._segmenter.finish(self.num_samples))

    @property
    def is_one_pass(self) -> bool:
        """Whether the recording is one piece, or nothing."""
        return self._waits

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why a recording that is not digital silence gave no pieces, or too short ones; after `finish`."""
        if self._is_cut:
            return self._shortness()
        if self._is_digital_silence:
            return ()
        return (NO_SPEECH if self._is_heard else TOO_QUIET,)

    def _shortness(self) -> tuple[str, ...]:
        seconds = self._grid.limit_samples / self._grid.sample_rate
        if seconds >= SENSIBLE_SECONDS or self.num_samples <= self._grid.limit_samples:
            return ()
        return (
            f"cut into pieces of at most {seconds:g} s, which may lose words: allow {SENSIBLE_SECONDS:g} s",
        )

    def _begin(self) -> None:
        """From now on, cut."""
        self._waits = False
        self._listener = self._listen()
        if self._listener is not None:
            self._segmenter = Segmenter(self._grid)

    def _spans(self, samples: FloatArray) -> list[Span]:
        window = self._grid.window_samples
        heard = self._listener.feed(samples) if self._listener else None
        first, end = self._num_windows * window, self.num_samples // window * window
        power = self._power(first, end)
        self._num_windows += len(power)
        return self._segmenter.feed(self._probabilities(heard, power), power)

    def _power(self, first: int, end: int) -> FloatArray:
        """Of each window of the samples from `first` to before `end`; the last may be a part of one."""
        samples = self._kept[first - self._first_kept : end - self._first_kept]
        whole = powers(samples, self._grid.window_samples)
        rest = samples[len(whole) * self._grid.window_samples :]
        return np.append(whole, powers(rest, len(rest))) if len(rest) else whole

    def _probabilities(self, heard: FloatArray | None, power: FloatArray) -> FloatArray:
        """What the listener says, or what can be heard."""
        loud = loudness(power)
        self._is_heard |= bool(loud.any())
        return loud if heard is None else heard

    def _pieces(self, spans: Sequence[Span]) -> list[Piece]:
        """The samples of spans; then those that no later span needs are dropped."""
        first = self._first_kept
        pieces = [
            Piece(span, self._kept[span.start_samples - first : span.end_samples - first].copy())
            for span in spans
        ]
        self._is_cut |= bool(pieces)
        if not self._waits:
            oldest = self._segmenter.oldest_samples
            self._kept = self._kept[oldest - first :].copy()
            self._first_kept = oldest
        return pieces


# Joining

_MATCH_SECONDS = 0.2
"""Two spans may place the same label in their overlap by so much apart."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A span's labels, with frames of the recording."""

    span: Span
    labels: Hypothesis


class Stitcher:
    """Joins what the spans of one recording were decoded to, in order, as they come."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._held: _Decoded | None = None
        self.breaks_frames: list[int] = []
        """Frames before which another span was decoded by itself: no word reaches over one."""

    def add(self, span: Span, hypothesis: Hypothesis) -> Hypothesis:
        """Take the next span; gives the labels that it makes final, those of the span before."""
        start = span.start_samples // self._spec.frame_samples
        following = _Decoded(span, hypothesis.at(hypothesis.frames + start))
        before, self._held = self._held, following
        if before is None:
            return _NOTHING
        if before.span.is_cut and span.start_samples < before.span.end_samples:
            return self._joined_in_overlap(before, following)
        # An encoder may give one frame more than a span is long: its label stays in its own span.
        self.breaks_frames.append(start)
        return before.labels.at(np.minimum(before.labels.frames, start - 1))

    def finish(self) -> Hypothesis:
        """The labels of the last span."""
        last, self._held = self._held, None
        return last.labels if last else _NOTHING

    def _joined_in_overlap(self, before: _Decoded, following: _Decoded) -> Hypothesis:
        """Each label of the overlap once, at a joint that both spans agree on, or in its middle."""
        first = following.span.start_samples // self._spec.frame_samples
        end = before.span.end_samples // self._spec.frame_samples
        theirs, ours = before.labels, following.labels
        tolerance = int(_MATCH_SECONDS * self._spec.features.sample_rate / self._spec.frame_samples)
        match = _match(theirs, ours, first, end, tolerance)
        num_theirs, num_dropped = match or (
            int(np.searchsorted(theirs.frames, (first + end) // 2)),
            int(np.searchsorted(ours.frames, (first + end) // 2)),
        )
        final, ours = theirs.part(0, num_theirs), ours.part(num_dropped, len(ours))
        last_frame = int(final.frames[-1]) if len(final) else 0
        self._held = _Decoded(following.span, ours.at(np.maximum(ours.frames, last_frame)))
        if (
            not num_dropped
        ):  # nothing was heard before the joint, so its first label does not go on with a word
            self.breaks_frames.append((first + end) // 2)
        return final


def _match(
    theirs: Hypothesis, ours: Hypothesis, first: int, end: int, tolerance: int
) -> tuple[int, int] | None:
    """The joint behind a label that both have at about the same frame, the nearest to the middle.

    As the number of labels to keep of the span before and to drop of the one after.
    """
    candidates = [
        (abs(int(theirs.frames[i] + ours.frames[j]) - first - end), i + 1, j + 1)
        for i in range(int(np.searchsorted(theirs.frames, first)), len(theirs))
        for j in range(int(np.searchsorted(ours.frames, end)))
        if theirs.ids[i] == ours.ids[j] and abs(int(theirs.frames[i] - ours.frames[j])) <= tolerance
    ]
    return min(candidates)[1:] if candidates else None


_NOTHING = Hypothesis.joined([])
