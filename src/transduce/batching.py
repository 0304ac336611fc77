"""Batches of similar length under a budget, recognised so that one bad item costs only itself.

In: waveforms at the model's rate, or their lengths. Out: for each, in order, a Hypothesis or the error that
it met; or which of them make a batch. It knows no files, no spans and no text.
"""

from collections.abc import Iterator, Sequence

from transduce.errors import ResourceError, TransduceError
from transduce.types import Backend, FloatArray, Hypothesis

__all__ = ["BATCH_SECONDS", "are_similar", "batch_with_first", "batches", "recognize"]

BATCH_SECONDS = 160.0
"""Audio that one batch may hold, padding counted."""
SIMILARITY = 2.0
"""How much longer than the first of a batch the longest may be, and than the shortest the first."""
LEAST_PART = 64
"""This part of a batch's budget is so short that padding up to it costs next to nothing."""


def recognize(
    backend: Backend, waveforms: Sequence[FloatArray], batch_seconds: float = BATCH_SECONDS
) -> list[Hypothesis | TransduceError]:
    """Recognise any number of waveforms `[n]`; the order of the results is that of the input."""
    results: dict[int, Hypothesis | TransduceError] = {}
    budget = int(batch_seconds * backend.spec.features.sample_rate)
    for batch in batches([len(waveform) for waveform in waveforms], budget):
        found = _recognize_batch(backend, [waveforms[index] for index in batch])
        results.update(zip(batch, found, strict=True))
    return [results[index] for index in range(len(waveforms))]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in groups of similar length whose padded size stays under `budget`, longest first."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def batch_with_first(lengths: Sequence[int], budget: int) -> list[int]:
    """The first index and those nearest to it in length, as many as stay under `budget` with padding."""
    nearest = sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - lengths[0]))
    longest = 0
    for size, index in enumerate(nearest):
        longest = max(longest, lengths[index])
        is_similar = are_similar(lengths[0], lengths[index], SIMILARITY, budget / LEAST_PART)
        if size and not (is_similar and longest * (size + 1) <= budget):
            return nearest[:size]
    return nearest


def are_similar(first: float, other: float, similarity: float, least: float) -> bool:
    """Whether two lengths differ by no more than a factor; shorter ones than `least` count as that long."""
    shorter, longer = sorted((max(first, least), max(other, least)))
    return longer <= shorter * similarity


def _recognize_batch(backend: Backend, waveforms: list[FloatArray]) -> list[Hypothesis | TransduceError]:
    """One batch; if it fails (out of memory, say) its halves, down to the single items."""
    try:
        return list(backend.recognize(waveforms))
    except (TransduceError, MemoryError) as error:
        if len(waveforms) == 1:
            return [_own(error, len(waveforms[0]) / backend.spec.features.sample_rate)]
    half = len(waveforms) // 2
    return _recognize_batch(backend, waveforms[:half]) + _recognize_batch(backend, waveforms[half:])


def _own(error: TransduceError | MemoryError, seconds: float) -> TransduceError:
    """The error itself; memory that ran out where nobody put it in words is a ResourceError."""
    if isinstance(error, TransduceError):
        return error
    return ResourceError(f"memory ran out on {seconds:.1f} s of audio; free some, or use shorter segments")
