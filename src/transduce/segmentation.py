"""Where to cut a long recording: probabilities of speech and loudness become spans.

In: for each window of a recording, in order and in blocks of any size, how likely it holds speech and
how much power it has. Out: spans in samples, each as soon as it is certain. A span starts on the
encoder's frame grid and is never longer than the limit. This is the only place that says what a pause
is. It knows no audio, no model and no text.

- Speech begins and ends by two thresholds; what lies around it is padding; long pauses are left out.
- Speech longer than the limit is cut at its deepest pause.
- Where it has none, it is cut at its quietest place, and both spans hold an overlap around the cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transduce.types import FloatArray

__all__ = ["SILENCE_DB", "Grid", "Segmenter", "Span", "SpeechRules", "loudness", "powers"]

SILENCE_DB = -58
"""A window with less power than this is silent; full scale is 0 dB. In 16 bits that is an amplitude of
41. Models that normalise the level make words of such noise."""


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """What speech and pauses are."""

    onset: float = 0.5
    """Speech begins with a window at least this probable ..."""
    offset: float = 0.35
    """... and ends before the first one that is less."""
    min_speech_seconds: float = 0.06
    """A span with less speech is a click, and is left out."""
    min_pause_seconds: float = 0.1
    """The shortest silence at which speech may be cut."""
    long_pause_seconds: float = 1.0
    """A silence this long always ends a span."""
    padding_seconds: float = 0.3
    """Sound kept before and after speech, as far as the pause goes; at most an eighth of the limit."""
    overlap_seconds: float = 1.0
    """What two spans share where unbroken speech is cut; at most a quarter of the limit."""
    quiet_seconds: float = 0.2
    """Unbroken speech is cut in the middle of the quietest stretch of this length."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes that spans have to fit, in samples."""

    sample_rate: int
    window_samples: int
    """Of one probability."""
    frame_samples: int
    """Of one encoder frame: spans start at multiples of it."""
    limit_samples: int
    """A span is no longer."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the recording to decode, in samples; `start` is a multiple of the frame."""

    start_samples: int
    end_samples: int
    is_cut: bool = False
    """Whether it ends amid speech: then the next span starts before this one's end, and the cut is in
    the middle of what they share."""


def powers(samples: FloatArray, window_samples: int) -> FloatArray:
    """The power of each whole window of the samples `[n]`; a constant offset has none."""
    windows = samples[: len(samples) // window_samples * window_samples].reshape(-1, window_samples)
    power: FloatArray = windows.var(axis=1, dtype=np.float64).astype(np.float32)
    return power


def loudness(power: FloatArray) -> FloatArray:
    """Probabilities of speech where nothing better is known: 1 for what can be heard, 0 for silence."""
    return (power >= 10 ** (SILENCE_DB / 10)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Pause:
    """Windows without speech, from number `first` to before `end`."""

    first: int
    end: int

    @property
    def num_windows(self) -> int:
        return self.end - self.first

    @property
    def middle(self) -> float:
        return (self.first + self.end) / 2


@dataclass(frozen=True, slots=True)
class _Open:
    """The span that is being collected. Windows are numbered from the start of the recording."""

    start_samples: int
    first: int
    """The first window that was kept; speech begins with it, unless it follows a cut amid speech."""
    speech: list[bool]
    power: list[float]

    @property
    def end(self) -> int:
        """The window after the last one."""
        return self.first + len(self.speech)

    def pauses(self, least_windows: int) -> list[_Pause]:
        """The runs of at least so many windows without speech, the last of which may go on."""
        edges = np.flatnonzero(np.diff([True, *self.speech, True])) + self.first
        runs = [_Pause(int(first), int(end)) for first, end in edges.reshape(-1, 2)]
        return [run for run in runs if run.num_windows >= least_windows]

    def rest(self, first: int, start_samples: int) -> "_Open":
        """What comes from window `first` on, as a span of its own."""
        skipped = first - self.first
        return _Open(start_samples, first, self.speech[skipped:], self.power[skipped:])


_DEFAULT_RULES = SpeechRules()

_LEAST_LIMIT_WINDOWS = 8
"""A limit must leave room for a cut, and for an overlap on both sides of it."""


class Segmenter:
    """Turns the windows of one recording into spans, in order."""

    def __init__(self, grid: Grid, rules: SpeechRules = _DEFAULT_RULES) -> None:
        """Raises ValueError for a limit of fewer than 8 windows or frames."""
        least = _LEAST_LIMIT_WINDOWS * max(grid.window_samples, grid.frame_samples)
        if grid.limit_samples < least:
            raise ValueError(
                f"segments of {grid.limit_samples / grid.sample_rate:.2f} s are too short for this model: "
                f"allow at least {least / grid.sample_rate:.2f} s"
            )
        self._grid = grid
        self._rules = rules
        self._padding_samples = min(int(rules.padding_seconds * grid.sample_rate), grid.limit_samples // 8)
        self._long_pause = self._windows(rules.long_pause_seconds)
        self._num_windows = 0
        self._num_silent = 0
        """Windows since the last one with speech."""
        self._open: _Open | None = None
        self._free_samples = 0
        """The next span may not start before this."""

    @property
    def oldest_samples(self) -> int:
        """No span that is still to come starts before this sample."""
        return self._open.start_samples if self._open else self._padded_start(self._num_windows)

    def feed(self, probabilities: FloatArray, power: FloatArray) -> list[Span]:
        """Take the next windows, `[k]` of both; the spans that they complete."""
        windows = zip(probabilities.tolist(), power.tolist(), strict=True)
        return [span for window in windows for span in self._take(*window)]

    def finish(self, num_samples: int) -> list[Span]:
        """The last span of a recording of so many samples, which may end amid the last window."""
        last, self._open = self._open, None
        if last is None:
            return []
        speech_end = self._num_windows - self._num_silent
        padded_samples = speech_end * self._grid.window_samples + self._padding_samples
        return self._spoken(last, speech_end, Span(last.start_samples, min(padded_samples, num_samples)))

    def _take(self, probability: float, power: float) -> list[Span]:
        was_speech = self._open is not None and self._num_silent == 0
        is_speech = probability >= (self._rules.offset if was_speech else self._rules.onset)
        if is_speech and self._open is None:
            self._open = _Open(self._padded_start(self._num_windows), self._num_windows, [], [])
        self._num_windows += 1
        self._num_silent = 0 if is_speech else self._num_silent + 1
        if self._open is None:
            return []
        self._open.speech.append(is_speech)
        self._open.power.append(power)
        return self._completed(self._open)

    def _completed(self, span: _Open) -> list[Span]:
        """The open span, if a long pause ended it or another window would not fit."""
        grid, rules = self._grid, self._rules
        if self._num_silent >= self._long_pause:
            return self._cut_in(_Pause(span.end - self._num_silent, span.end), span)
        if (span.end + 1) * grid.window_samples - span.start_samples <= grid.limit_samples:
            return []
        # A pause this long holds a frame's start on either side of its middle.
        frame_windows = -(-grid.frame_samples // grid.window_samples)
        pauses = span.pauses(max(self._windows(rules.min_pause_seconds), frame_windows))
        return self._cut_in(self._deepest(pauses, span), span) if pauses else self._cut_amid_speech(span)

    def _deepest(self, pauses: Sequence[_Pause], span: _Open) -> _Pause:
        """The longest pause, if possible one that leaves no small piece before it; the last of equals."""
        half_way = (span.start_samples + self._grid.limit_samples / 2) / self._grid.window_samples
        late = [pause for pause in pauses if pause.middle >= half_way]
        return max(late or pauses, key=lambda pause: (pause.num_windows, pause.first))

    def _cut_in(self, pause: _Pause, span: _Open) -> list[Span]:
        """End the span in a pause, and go on with what lies behind it."""
        grid = self._grid
        padded_samples = pause.first * grid.window_samples + self._padding_samples
        middle_frame = round(pause.middle * grid.window_samples / grid.frame_samples)
        end_frame = min(-(-padded_samples // grid.frame_samples), middle_frame)
        self._free_samples = end_frame * grid.frame_samples
        has_more = pause.end < span.end
        self._open = span.rest(pause.end, self._padded_start(pause.end)) if has_more else None
        return self._spoken(span, pause.first, Span(span.start_samples, self._free_samples))

    def _cut_amid_speech(self, span: _Open) -> list[Span]:
        """End the span behind its quietest place, and go on before that place."""
        grid, rules = self._grid, self._rules
        overlap_samples = min(rules.overlap_seconds * grid.sample_rate, grid.limit_samples / 4)
        half_frames = int(overlap_samples / 2) // grid.frame_samples
        earliest = span.start_samples + grid.limit_samples // 2
        latest = span.end * grid.window_samples - half_frames * grid.frame_samples - grid.frame_samples // 2
        cut_frame = round(self._quietest(span, earliest, latest) / grid.frame_samples)
        start_samples = (cut_frame - half_frames) * grid.frame_samples
        end_samples = (cut_frame + half_frames) * grid.frame_samples
        self._open = span.rest(start_samples // grid.window_samples, start_samples)
        return [Span(span.start_samples, end_samples, is_cut=True)]

    def _quietest(self, span: _Open, earliest_samples: int, latest_samples: int) -> int:
        """The sample between the two around which the power is least."""
        width = max(1, self._windows(self._rules.quiet_seconds))
        mean_power = np.convolve(span.power, np.ones(width), "valid")
        middles = (span.first + np.arange(len(mean_power)) + width / 2) * self._grid.window_samples
        mean_power[(middles < earliest_samples) | (middles > latest_samples)] = np.inf
        return int(middles[np.argmin(mean_power)])

    def _spoken(self, span: _Open, speech_end: int, made: Span) -> list[Span]:
        """The span that was made, unless it holds too little speech."""
        num_speech = sum(span.speech[: speech_end - span.first])
        return [made] if num_speech >= self._windows(self._rules.min_speech_seconds) else []

    def _padded_start(self, first: int) -> int:
        """Where a span starts whose speech begins with window `first`."""
        grid = self._grid
        padded_samples = first * grid.window_samples - self._padding_samples
        return max(self._free_samples, padded_samples // grid.frame_samples * grid.frame_samples)

    def _windows(self, seconds: float) -> int:
        """A time in windows, rounded up."""
        return math.ceil(seconds * self._grid.sample_rate / self._grid.window_samples)
