"""Batches of similar length under a budget, recognised so that one bad item costs only itself.

In: waveforms at the model's rate. Out: for each, in order, a Hypothesis or the error that it met.
It knows no files, no spans and no text.
"""

from collections.abc import Iterator, Sequence

from transduce.errors import ResourceError, TransduceError
from transduce.types import Backend, FloatArray, Hypothesis

__all__ = ["BATCH_SECONDS", "batches", "recognize", "recognize_each"]

BATCH_SECONDS = 160.0
"""Audio that one batch may hold, padding counted."""


def recognize(
    backend: Backend, waveforms: Sequence[FloatArray], batch_seconds: float = BATCH_SECONDS
) -> list[Hypothesis | TransduceError]:
    """Recognise any number of waveforms `[n]`; the order of the results is that of the input."""
    results = dict(recognize_each(backend, waveforms, batch_seconds))
    return [results[index] for index in range(len(waveforms))]


def recognize_each(
    backend: Backend, waveforms: Sequence[FloatArray], batch_seconds: float = BATCH_SECONDS
) -> Iterator[tuple[int, Hypothesis | TransduceError]]:
    """The same as the batches are done: the index of a waveform, and its result."""
    budget = int(batch_seconds * backend.spec.features.sample_rate)
    for batch in batches([len(waveform) for waveform in waveforms], budget):
        yield from zip(batch, _recognize_batch(backend, [waveforms[index] for index in batch]), strict=True)


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
