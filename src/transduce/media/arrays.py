"""Arrays of samples as a track: which dimension holds the channels, and what full scale is."""

from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError
from transduce.media.track import BLOCK_SAMPLES, Damage, Track, check_track, to_float

__all__ = ["array_track"]

_MOST_ARRAY_CHANNELS = 8
"""A wider array is taken for a batch of waveforms, which must not be averaged."""


def array_track(array: npt.NDArray[Any], rate: int, track: int | None) -> Track:
    """Integers or floats `[n]`, `[n, channels]` or `[channels, n]`, untouched; AudioError for others."""
    check_track("<array>", track, 1)
    if isinstance(array, np.ma.MaskedArray):
        raise AudioError("a masked array is not audio: fill its gaps, with array.filled(0) say")
    if array.dtype.kind not in "iuf":
        raise AudioError(f"an array of {array.dtype} is not audio: give integers or floats")
    columns = _columns(array)
    starts = range(0, len(columns), BLOCK_SAMPLES)
    blocks = (to_float(columns[start : start + BLOCK_SAMPLES]) for start in starts)
    return Track(rate, columns.shape[1], blocks, damage=Damage(len(columns) / rate))


def _columns(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view `[n, channels]`: the smaller dimension is that of the channels."""
    if array.ndim == 1 or array.size == 0:
        return array.reshape(-1, 1)
    if array.ndim == 2 and min(array.shape) <= _MOST_ARRAY_CHANNELS:
        if array.shape[0] > array.shape[1] or array.shape == (1, 1):
            return array
        if array.shape[0] < array.shape[1]:
            return np.transpose(array)
    raise AudioError(
        f"the layout of an array of shape {array.shape} is not clear: give (n,), (n, channels) or "
        f"(channels, n) with at most {_MOST_ARRAY_CHANNELS} channels and more samples than channels"
    )
