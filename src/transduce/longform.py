"""Long recordings: where to cut them for the model, and how to join what was decoded.

In: mono samples at the model's rate, or the hypotheses of spans. Out: spans in samples, or one
hypothesis with frames counted from the start of the recording. Spans start on the encoder's
frame grid, so joining is integer arithmetic and times cannot drift. It knows no text and no seconds
of the transcript.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transduce.types import FloatArray, Hypothesis, ModelSpec

__all__ = ["Span", "plan", "stitch"]

SEARCH_SECONDS = 5.0
"""A span is cut somewhere in its last seconds ..."""
QUIET_SECONDS = 0.2
"""... in the middle of the quietest stretch of this length."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the recording, in samples; `start` is a multiple of the frame."""

    start_samples: int
    end_samples: int

    @property
    def num_samples(self) -> int:
        return self.end_samples - self.start_samples


def plan(samples: FloatArray, spec: ModelSpec, max_segment_seconds: float | None = None) -> list[Span]:
    """Spans that cover the samples `[n]` without gaps, none longer than the limit."""
    rate = spec.features.sample_rate
    limit = int((max_segment_seconds or spec.max_segment_seconds) * rate)
    spans = []
    start = 0
    while len(samples) - start > limit:
        end = start + _cut(samples[start : start + limit], rate, spec.frame_samples)
        spans.append(Span(start, end))
        start = end
    return [*spans, Span(start, len(samples))]


def _cut(samples: FloatArray, rate: int, frame_samples: int) -> int:
    """Where to end a span that fills `samples`: a multiple of the frame, at the quietest place."""
    search = min(int(SEARCH_SECONDS * rate), len(samples) // 2)
    tail = samples[-search:].astype(np.float64)
    width = min(int(QUIET_SECONDS * rate), search)
    energy = np.cumsum(np.concatenate([[0.0], tail**2]))
    quietest = int(np.argmin(energy[width:] - energy[:-width]))
    position = len(samples) - search + quietest + width // 2
    return max(position // frame_samples, 1) * frame_samples


def stitch(spans: Sequence[Span], hypotheses: Sequence[Hypothesis], spec: ModelSpec) -> Hypothesis:
    """One hypothesis of the whole recording from those of its spans, in order."""
    offsets = [span.start_samples // spec.frame_samples for span in spans]
    shifted = [h.frames + offset for h, offset in zip(hypotheses, offsets, strict=True)]
    return Hypothesis(
        ids=np.concatenate([h.ids for h in hypotheses]),
        frames=np.concatenate(shifted),
        durations=np.concatenate([h.durations for h in hypotheses]),
        log_probs=np.concatenate([h.log_probs for h in hypotheses]),
    )
