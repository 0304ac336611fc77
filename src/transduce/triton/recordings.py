"""Triton's input tensors to recordings.

In: the arrays of one request, each with a row for each recording, or None where an input was left out. Out:
recordings, with the true number of samples where the client padded them. What is inside a recording is
found out when it is read. Nothing here knows Triton's Python module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError
from transduce.types import FloatArray

__all__ = ["INPUTS", "Recording", "read_recordings"]

INPUTS = ("AUDIO", "SAMPLES", "SAMPLE_RATE", "NUM_SAMPLES")

_Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One recording, whose memory is its own: Triton's goes when the request has been taken."""

    source: bytes | FloatArray
    """The content of a file, or mono samples `[n]`."""
    sample_rate: int | None = None
    """Of samples; None: the model's."""


def read_recordings(
    audio: _Array | None, samples: _Array | None, sample_rate: _Array | None, num_samples: _Array | None
) -> list[Recording]:
    """The recordings of a request: `audio` `[rows, 1]` of bytes, or `samples` `[rows, n]`, float32.

    `sample_rate` and `num_samples` `[rows, 1]` belong to samples. Raises AudioError for inputs that do not
    go together, and for a number of samples that is not there.
    """
    if (audio is None) == (samples is None):
        raise AudioError("send AUDIO (the bytes of a file) or SAMPLES (float32, with SAMPLE_RATE), not both")
    if samples is None:
        assert audio is not None
        if sample_rate is not None or num_samples is not None:
            raise AudioError("SAMPLE_RATE and NUM_SAMPLES go with SAMPLES: a file in AUDIO carries its own")
        return [Recording(bytes(content)) for content in audio.reshape(-1)]
    rates = _column("SAMPLE_RATE", sample_rate, len(samples))
    lengths = _column("NUM_SAMPLES", num_samples, len(samples))
    return [
        Recording(_cut(row, length), rate) for row, rate, length in zip(samples, rates, lengths, strict=True)
    ]


def _column(name: str, values: _Array | None, num_rows: int) -> Sequence[int | None]:
    """A number for each row."""
    if values is None:
        return [None] * num_rows
    if values.shape != (num_rows, 1):
        raise AudioError(f"{name} has the shape {list(values.shape)} beside {num_rows} rows of SAMPLES")
    return [int(value) for value in values[:, 0]]


def _cut(row: _Array, num_samples: int | None) -> FloatArray:
    """The first `num_samples` of a row, as a copy."""
    length = row.shape[-1] if num_samples is None else num_samples
    if not 0 <= length <= row.shape[-1]:
        raise AudioError(f"NUM_SAMPLES is {length}, but SAMPLES holds {row.shape[-1]}")
    return np.array(row[:length], np.float32)
