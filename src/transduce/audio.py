"""Audio of any kind to float32 mono at the model's rate.

In: a path, the bytes of a file, a binary file object or a numpy array. Out: `Audio`, whose samples are
`[n]`, finite, at the rate asked for, with what was repaired or left out as warnings. Everything runs
over blocks of some seconds: read, cut, mix, change the rate, collect; at most one mono copy of the
whole is kept. Files are decoded in `media`; models and texts are unknown here.
"""

import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError, MissingExtraError
from transduce.media import Track, array_track, library, open_track
from transduce.types import FloatArray

__all__ = ["Audio", "AudioSource", "codecs", "describe_source", "load", "load_channels"]

_Array: TypeAlias = npt.NDArray[Any]
_Float64: TypeAlias = npt.NDArray[np.float64]

AudioSource: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | _Array
"""A path; the content of a file; an open binary file, read from its start; or an array of samples."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono audio that is ready for a model."""

    samples: FloatArray  # [n], full scale is 1
    rate: int
    """Samples per second."""
    warnings: tuple[str, ...]
    """What was damaged, missing or cancelled, one sentence each."""
    channel: int | None = None
    """The channel of the source, from 0; None: all of them, mixed."""
    start_seconds: float = 0.0
    """What a player shows at sample 0: above 0 after a cut, or where the audio starts late."""

    @property
    def duration_seconds(self) -> float:
        """Length of the samples; `start_seconds` is not part of it."""
        return len(self.samples) / self.rate


def load(
    source: AudioSource,
    *,
    rate: int,
    sample_rate: int | None = None,
    channel: int | Literal["mix"] = "mix",
    track: int | None = None,
    start_seconds: float = 0.0,
    end_seconds: float | None = None,
) -> Audio:
    """Read `source` as mono at `rate`.

    `sample_rate` is that of an array (left out: `rate`); files carry theirs. An array is `(n,)`,
    `(n, channels)` or `(channels, n)`, integers (scaled by their type's full range) or floats; it is
    never written to. `channel` counts from 0; `mix` is the mean of the channels that carry sound, or
    the loudest alone, with a warning, where they cancel each other. `track` counts a container's audio
    tracks from 0 (left out: its default one). `start_seconds` and `end_seconds` are a player's times.

    Raises AudioError for what is not usable audio, MissingExtraError where a library has to be installed.
    """
    with _opened(source, rate, sample_rate, track, start_seconds, end_seconds) as reading:
        if channel != "mix":
            return _one_channel(reading, channel)
        balance = _Balance()
        (mix,) = _read(reading, balance.total)
        if balance.is_cancelled:
            return _loudest_channel(reading, balance)
        mix.samples[:] /= len(balance.active)
        return mix


def load_channels(
    source: AudioSource,
    *,
    rate: int,
    sample_rate: int | None = None,
    track: int | None = None,
    start_seconds: float = 0.0,
    end_seconds: float | None = None,
) -> list[Audio]:
    """Read every channel of `source` on its own, in order; arguments and errors as for `load`."""
    with _opened(source, rate, sample_rate, track, start_seconds, end_seconds) as reading:
        channels = _read(reading, lambda block: block)
    return [replace(audio, channel=index) for index, audio in enumerate(channels)]


def describe_source(source: AudioSource) -> str:
    """What messages call a source: its path, `<bytes>`, `<array>`, or the name of the stream."""
    if isinstance(source, (str, os.PathLike)):
        return os.fsencode(source).decode("utf-8", "replace")  # a path need not be valid text
    if isinstance(source, np.ndarray):
        return "<array>"
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "<bytes>"
    name = getattr(source, "name", None)  # an int where the file was opened from a descriptor
    return name if isinstance(name, str) and name else "<stream>"


def codecs() -> Mapping[str, str]:
    """The version of each audio library, or why it cannot be used."""
    return {name: _version(name) for name in _VERSION_BENEATH}


_VERSION_BENEATH = {
    "av": "ffmpeg_version_info",
    "soundfile": "__libsndfile_version__",
    "soxr": "__libsoxr_version__",
}
"""Library -> its attribute with the version of the C library beneath."""


def _version(name: str) -> str:
    try:
        module = library(name)
    except MissingExtraError as error:
        return str(error)
    return f"{module.__version__} ({getattr(module, _VERSION_BENEATH[name])})"


# Opening


@dataclass(frozen=True, slots=True)
class _Reading:
    """A source that can be read more than once, and what is asked of it."""

    media: BinaryIO | _Array
    name: str
    rate: int
    array_rate: int
    track: int | None
    start_seconds: float
    end_seconds: float | None


@contextmanager
def _opened(
    source: AudioSource,
    rate: int,
    sample_rate: int | None,
    track: int | None,
    start_seconds: float,
    end_seconds: float | None,
) -> Iterator[_Reading]:
    name = describe_source(source)
    _check_rate("rate", rate)
    if sample_rate is not None:
        _check_rate("sample_rate", sample_rate)
        if not isinstance(source, np.ndarray):
            raise AudioError(f"{name} carries its own sample rate: sample_rate= is for arrays")
    _check_span(start_seconds, end_seconds)
    with _media(source, name) as media:
        yield _Reading(media, name, int(rate), int(sample_rate or rate), track, start_seconds, end_seconds)


def _check_rate(label: str, rate: int) -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate <= 0:
        raise AudioError(f"{label} is the number of samples per second, a whole number above 0, not {rate!r}")


def _check_span(start_seconds: float, end_seconds: float | None) -> None:
    end = math.inf if end_seconds is None else end_seconds
    if not 0 <= start_seconds < end:  # also where either is NaN
        raise AudioError(
            f"no audio lies between {start_seconds} s and {end_seconds} s: give 0 <= start < end"
        )


@contextmanager
def _media(source: AudioSource, name: str) -> Iterator[BinaryIO | _Array]:
    """The source as an array or as a file that can be read again; OSErrors become AudioErrors."""
    try:
        if isinstance(source, np.ndarray):
            yield source
        elif isinstance(source, (bytes, bytearray, memoryview)):
            yield _seekable(io.BytesIO(source), name)
        elif isinstance(source, (str, os.PathLike)):
            with _open_path(source, name) as file:
                yield _seekable(file, name)
        elif hasattr(source, "read"):
            yield _seekable(source, name)
        else:
            raise AudioError(
                f"a {type(source).__name__} is not audio: give a path, bytes, a binary file or a numpy array"
            )
    except OSError as error:
        raise AudioError(f"{name} cannot be read: {error.strerror or error}") from error


def _open_path(path: str | os.PathLike[str], name: str) -> BinaryIO:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name):
        raise AudioError(f"{name} is an address, not a file: download it first")
    try:
        return open(path, "rb")
    except ValueError as error:  # a null character
        raise AudioError(f"{name!r} is not a path: {error}") from error


def _is_text(file: object) -> bool:
    return isinstance(file, io.TextIOBase)


def _seekable(file: BinaryIO, name: str) -> BinaryIO:
    """The file itself, or, where it cannot seek (a pipe), all that it gives in memory."""
    if _is_text(file):
        raise AudioError(f"{name} was opened as text: open it with mode 'rb'")
    try:
        file.seek(0, io.SEEK_END)
        num_bytes = file.tell()
    except (AttributeError, OSError):
        content = file.read()
        if not isinstance(content, bytes):
            raise AudioError(f"{name} gives {type(content).__name__}, not bytes") from None
        file, num_bytes = io.BytesIO(content), len(content)
    if num_bytes == 0:
        raise AudioError(f"{name} is empty (0 bytes)")
    return file


# From blocks to mono


def _read(reading: _Reading, select: Callable[[FloatArray], FloatArray]) -> list[Audio]:
    """One pass: each column of what `select` makes of the blocks `[n, channels]`, as one Audio."""
    with _track(reading) as track:
        first = max(0, round((reading.start_seconds - track.start_seconds) * track.rate))
        selected = map(select, _cut(reading, track, first))
        columns = _collected(_resampled(selected, track.rate, reading.rate))
    if not columns:
        raise AudioError(_no_samples(reading, track))
    start_seconds, warnings = track.start_seconds + first / track.rate, track.damage.warnings()
    return [Audio(samples, reading.rate, warnings, None, start_seconds) for samples in columns]


@contextmanager
def _track(reading: _Reading) -> Iterator[Track]:
    if isinstance(reading.media, np.ndarray):
        yield array_track(reading.media, reading.array_rate, reading.track)
    else:
        with open_track(reading.media, reading.name, reading.track) as track:
            yield track


def _cut(reading: _Reading, track: Track, first: int) -> Iterator[FloatArray]:
    """The samples from number `first` to the end that is asked for, which must be numbers."""
    end_seconds = math.inf if reading.end_seconds is None else reading.end_seconds - track.start_seconds
    end = round(end_seconds * track.rate) if math.isfinite(end_seconds) else sys.maxsize
    position = 0
    for block in track.blocks:
        part = block[max(0, first - position) : max(0, end - position)]
        if not np.isfinite(part).all():
            raise AudioError(f"{reading.name} contains samples that are NaN or infinite")
        if len(part):
            yield part
        position += len(block)
        if position >= end:
            return


def _no_samples(reading: _Reading, track: Track) -> str:
    if not track.damage.decoded_seconds:
        return f"{reading.name} contains no audio samples"
    end = "its end" if reading.end_seconds is None else f"{reading.end_seconds} s"
    known = f"starts at {track.start_seconds:.2f} s"
    if track.damage.at_end:
        known += f" and ends at {track.start_seconds + track.damage.decoded_seconds:.2f} s"
    return f"{reading.name} has no audio between {reading.start_seconds} s and {end}: it {known}"


def _resampled(blocks: Iterator[FloatArray], rate: int, new_rate: int) -> Iterator[FloatArray]:
    """The same sound at another rate; blocks of any size give the same samples."""
    if rate == new_rate:
        yield from blocks
        return
    first = next(blocks, None)
    if first is None:
        return
    stream = _resampler(rate, new_rate, first.shape[1])
    for block in chain([first], blocks):
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(first[:0], last=True)


def _resampler(rate: int, new_rate: int, num_channels: int) -> Any:
    soxr = library("soxr")
    try:
        return soxr.ResampleStream(rate, new_rate, num_channels, dtype="float32", quality="HQ")
    except (RuntimeError, ValueError) as error:
        raise AudioError(f"a sample rate of {rate} cannot be changed to {new_rate}: {error}") from error


def _collected(blocks: Iterator[FloatArray]) -> list[FloatArray]:
    """Each column of all blocks. The buffers grow in place, so nothing is ever held twice."""
    buffers: list[bytearray] = []
    for block in blocks:
        buffers = buffers or [bytearray() for _ in range(block.shape[1])]
        for buffer, column in zip(buffers, block.T, strict=True):
            buffer += column.tobytes()
    return [np.frombuffer(buffer, np.float32) for buffer in buffers if buffer]


def _one_channel(reading: _Reading, channel: int) -> Audio:
    if isinstance(channel, bool) or not isinstance(channel, (int, np.integer)):
        raise AudioError(f"channel is a number from 0 or 'mix', not {channel!r}")

    def pick(block: FloatArray) -> FloatArray:
        num_channels = block.shape[1]
        if not 0 <= channel < num_channels:
            raise AudioError(f"{reading.name} has no channel {channel}: there are {num_channels}, from 0")
        return block[:, channel : channel + 1]

    (audio,) = _read(reading, pick)
    return replace(audio, channel=int(channel))


# Channels that do not add up

_LEAST_SUM = 0.1
"""Less of the power than this left in the sum is cancellation. Unrelated channels leave all of it; two
of equal power fall below at a correlation of -0.9."""
_LEAST_ACTIVE = 1e-6
"""A channel with less than this part of the loudest one's power (-60 dB) carries no sound."""


class _Balance:
    """Adds up the channels of blocks, and learns over all of them how they go together."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._sums: _Float64 = np.zeros(1)  # [C]
        self._products: _Float64 = np.zeros((1, 1))  # [C, C]

    def total(self, block: FloatArray) -> FloatArray:
        """The sum of the channels, `[n, 1]`."""
        wide = block.astype(np.float64)
        self._num_samples += len(block)
        self._sums = self._sums + wide.sum(axis=0)
        self._products = self._products + wide.T @ wide
        total: FloatArray = block.sum(axis=1, keepdims=True)
        return total

    @property
    def _covariance(self) -> _Float64:
        """Power of the sound `[C, C]`, without constant offsets and what rounding leaves of them."""
        means, powers = self._sums / self._num_samples, self._products / self._num_samples
        covariance: _Float64 = powers - np.outer(means, means)
        return np.where(np.abs(covariance) > 1e-9 * powers.trace(), covariance, 0.0)

    @property
    def is_cancelled(self) -> bool:
        """Whether the sum has lost the sound of the channels."""
        return bool(self._covariance.sum() < _LEAST_SUM * self._covariance.trace())

    @property
    def active(self) -> list[int]:
        """The channels that carry sound; all of them where none does."""
        powers = self._covariance.diagonal()
        return [int(index) for index in np.flatnonzero(powers >= _LEAST_ACTIVE * powers.max())]

    @property
    def loudest(self) -> int:
        """The channel with the most power."""
        return int(self._covariance.diagonal().argmax())


def _loudest_channel(reading: _Reading, balance: _Balance) -> Audio:
    audio = _one_channel(reading, balance.loudest)
    warning = (
        f"channels {', '.join(map(str, balance.active))} cancel each other in a mix: "
        f"only channel {balance.loudest} was used"
    )
    return replace(audio, channel=None, warnings=(*audio.warnings, warning))
