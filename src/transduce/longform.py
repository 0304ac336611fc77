"""Long recordings: where to cut them for the model, and how to join what was decoded.

In: mono samples at the model's rate, or the hypotheses of spans. Out: spans in samples, or one
hypothesis with frames counted from the start of the recording. Spans start on the encoder's
frame grid, so joining is integer arithmetic and times cannot drift. It knows no text and no seconds
of the transcript.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transduce.types import FloatArray, Hypothesis, ModelSpec

__all__ = ["SILENCE_DB", "Span", "plan", "start_frames", "stitch"]

SEARCH_SECONDS = 5.0
"""A span is cut somewhere in its last seconds ..."""
QUIET_SECONDS = 0.2
"""... in the middle of the quietest stretch of this length."""

SILENCE_DB = -58
"""A span is silent if its loudest stretch of `LOUD_SECONDS` has less power; full scale is 0 dB. In 16 bits
that is an amplitude of 41. Models that normalise the level make words of such noise."""
LOUD_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the recording, in samples; `start` is a multiple of the frame."""

    start_samples: int
    end_samples: int

    def of(self, samples: FloatArray) -> FloatArray:
        """Its part of the recording's samples, as a view."""
        return samples[self.start_samples : self.end_samples]


def plan(samples: FloatArray, spec: ModelSpec, max_segment_seconds: float | None = None) -> list[Span]:
    """Spans of the samples `[n]`, in order, none longer than the limit (left out: the model's).

    Together they are the whole recording, without gaps; but those that are silent are left out.
    """
    limit = _limit_samples(spec, max_segment_seconds or spec.max_segment_seconds)
    spans = []
    start = 0
    while len(samples) - start > limit:
        end = start + _cut(samples[start : start + limit], spec)
        spans.append(Span(start, end))
        start = end
    spans.append(Span(start, len(samples)))
    return [span for span in spans if not _is_silent(span.of(samples), spec.features.sample_rate)]


def _limit_samples(spec: ModelSpec, max_segment_seconds: float) -> int:
    """At least a frame, and no more than a positional table covers."""
    limit = max(int(max_segment_seconds * spec.features.sample_rate), spec.frame_samples)
    if spec.position_limit_frames is None:
        return limit
    # An encoder may give one frame more than its input is long.
    return min(limit, (spec.position_limit_frames - 1) * spec.frame_samples)


def _cut(samples: FloatArray, spec: ModelSpec) -> int:
    """Where to end a span that fills `samples`: a multiple of the frame, at the quietest place."""
    rate = spec.features.sample_rate
    search = min(int(SEARCH_SECONDS * rate), len(samples) // 2)
    tail = samples[-search:].astype(np.float64)
    width = min(int(QUIET_SECONDS * rate), search)
    energy = np.cumsum(np.concatenate([[0.0], tail**2]))
    quietest = int(np.argmin(energy[width:] - energy[:-width]))
    position = len(samples) - search + quietest + width // 2
    return max(position // spec.frame_samples, 1) * spec.frame_samples


def _is_silent(samples: FloatArray, rate: int) -> bool:
    """Whether no stretch of the samples has power; a constant offset is none."""
    step = int(LOUD_SECONDS * rate)
    stretches = (samples[start : start + step] for start in range(0, len(samples), step))
    return all(stretch.var(dtype=np.float64) < 10 ** (SILENCE_DB / 10) for stretch in stretches)


def start_frames(spans: Sequence[Span], spec: ModelSpec) -> list[int]:
    """The encoder frame at which each span starts."""
    return [span.start_samples // spec.frame_samples for span in spans]


def stitch(spans: Sequence[Span], hypotheses: Sequence[Hypothesis], spec: ModelSpec) -> Hypothesis:
    """One hypothesis of the whole recording from those of its spans, in order.

    An encoder may give one frame more than a span is long. A label on it is put one frame earlier where
    another span follows, so that every label lies in its own span.
    """
    starts = start_frames(spans, spec)
    ends = [*starts, sys.maxsize][1:]
    rows = zip(hypotheses, starts, ends, strict=True)
    frames = [np.minimum(hypothesis.frames + start, end - 1) for hypothesis, start, end in rows]
    return Hypothesis(
        ids=np.concatenate([_NO_INTEGERS, *(h.ids for h in hypotheses)]),
        frames=np.concatenate([_NO_INTEGERS, *frames]),
        durations=np.concatenate([_NO_INTEGERS, *(h.durations for h in hypotheses)]),
        log_probs=np.concatenate([_NO_FLOATS, *(h.log_probs for h in hypotheses)]),
    )


_NO_INTEGERS, _NO_FLOATS = np.empty(0, np.int64), np.empty(0, np.float32)
