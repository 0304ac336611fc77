"""Audio of any kind to float32 mono at the model's rate.

In: a path, the bytes of a file, a binary file object or a numpy array. Out: an `AudioStream`, whose
blocks are finite and at the rate asked for, with what was repaired or left out as warnings; or all of it
as `Audio`. Everything runs over blocks of some seconds: read, cut, mix, change the rate. Files are
decoded in `media`; models and texts are unknown here.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError, MissingExtraError
from transduce.media import RATES, Track, array_track, library, open_track
from transduce.mixing import Mixer
from transduce.sources import AudioSource, describe_source, opened_source
from transduce.types import FloatArray

__all__ = ["Audio", "AudioStream", "codecs", "is_finite", "load", "load_channels", "open_stream"]

_Array: TypeAlias = npt.NDArray[Any]


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


@dataclass(frozen=True, slots=True, eq=False)
class AudioStream:
    """Audio that is ready for a model and comes in blocks, while its source is open."""

    name: str
    """What messages call the source."""
    rate: int
    channels: tuple[int | None, ...]
    """The channel of the source that each column is, from 0; None: all of them, mixed."""
    start_seconds: float
    """What a player shows at sample 0."""
    expected_seconds: float | None
    """The length that the source claims; None where it makes no claim."""
    blocks: Iterator[FloatArray]
    """Each `[n, columns]`, n > 0, at `rate`; at least one."""
    warnings: Callable[[], tuple[str, ...]]
    """What was damaged, missing or cancelled, a sentence each; complete after the last block."""


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
    with open_stream(
        source,
        rate=rate,
        sample_rate=sample_rate,
        channel=channel,
        track=track,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
    ) as stream:
        (audio,) = _collected(stream)
    return audio


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
    with open_stream(
        source,
        rate=rate,
        sample_rate=sample_rate,
        channel="each",
        track=track,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
    ) as stream:
        return _collected(stream)


@contextmanager
def open_stream(
    source: AudioSource,
    *,
    rate: int,
    sample_rate: int | None = None,
    channel: int | Literal["mix", "each"] = "mix",
    track: int | None = None,
    start_seconds: float = 0.0,
    end_seconds: float | None = None,
) -> Iterator[AudioStream]:
    """Read `source` block by block; arguments and errors as for `load`, errors while blocks are taken too.

    `channel="each"` gives every channel by itself.
    """
    name = describe_source(source)
    _check_rate("rate", rate)
    if sample_rate is not None:
        _check_rate("sample_rate", sample_rate)
        if sample_rate not in RATES:
            raise AudioError(f"sample_rate is from {RATES[0]} to {RATES[-1]} samples per second")
        if not isinstance(source, np.ndarray):
            raise AudioError(f"{name} carries its own sample rate: sample_rate= is for arrays")
    _check_span(start_seconds, end_seconds)
    with opened_source(source) as media, _track(media, name, int(sample_rate or rate), track) as opened:
        part = _Part.of(opened, start_seconds, end_seconds)
        yield _stream(name, opened, part, channel, int(rate))


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


def _check_rate(label: str, rate: int) -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or rate <= 0:
        raise AudioError(f"{label} is the number of samples per second, a whole number above 0, not {rate!r}")


_LATEST_SECONDS = 1e9
"""Thirty years; up to here every position is a number of samples."""


def is_finite(value: object) -> bool:
    """Whether a value that came from outside is a number, neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return bool(-math.inf < value < math.inf)


def _check_span(start_seconds: float, end_seconds: float | None) -> None:
    end = math.inf if end_seconds is None else end_seconds
    for value in (start_seconds, end):
        if not is_finite(value) and not isinstance(value, float):
            raise AudioError(f"start and end are numbers of seconds, not {value!r}")
    if start_seconds > _LATEST_SECONDS or _LATEST_SECONDS < end < math.inf:
        raise AudioError(f"start and end are seconds, at most {_LATEST_SECONDS:g}")
    if not 0 <= start_seconds < end:  # also where either is NaN
        raise AudioError(
            f"no audio lies between {start_seconds} s and {end_seconds} s: give 0 <= start < end"
        )


# From blocks of a track to blocks for a model


@contextmanager
def _track(media: BinaryIO | _Array, name: str, array_rate: int, track: int | None) -> Iterator[Track]:
    if isinstance(media, np.ndarray):
        yield array_track(media, array_rate, track)
    else:
        with open_track(media, name, track) as opened:
            yield opened


@dataclass(frozen=True, slots=True)
class _Part:
    """Which samples of a track are asked for."""

    first: int
    end: int
    """May lie far behind the track's own."""
    start_seconds: float
    """As asked for, for messages."""
    end_seconds: float | None

    @classmethod
    def of(cls, track: Track, start_seconds: float, end_seconds: float | None) -> "_Part":
        first = max(0, round((start_seconds - track.start_seconds) * track.rate))
        late_seconds = math.inf if end_seconds is None else end_seconds - track.start_seconds
        end = round(late_seconds * track.rate) if math.isfinite(late_seconds) else sys.maxsize
        return cls(first, end, start_seconds, end_seconds)

    def num_seconds(self, track: Track) -> float | None:
        """Its length, as far as the track declares its own."""
        declared_seconds = track.damage.declared_seconds
        if declared_seconds is None:
            return None
        return max(0.0, min(self.end / track.rate, declared_seconds) - self.first / track.rate)


def _stream(
    name: str, track: Track, part: _Part, channel: int | Literal["mix", "each"], rate: int
) -> AudioStream:
    mixer = Mixer(track.rate)
    level = _Level()
    blocks = _cut(name, track, part, level)
    channels: Sequence[int | None]
    if channel == "mix":
        blocks, channels = mixer.mixed(blocks) if track.num_channels > 1 else blocks, [None]
    elif channel == "each":
        channels = range(track.num_channels)
    else:
        channels = [_checked_channel(name, channel, track.num_channels)]
        blocks = _picked(blocks, int(channel))
    return AudioStream(
        name=name,
        rate=rate,
        channels=tuple(channels),
        start_seconds=track.start_seconds + part.first / track.rate,
        expected_seconds=part.num_seconds(track),
        blocks=_some(_resampled(blocks, track.rate, rate), name, track, part),
        warnings=lambda: track.damage.warnings() + level.warnings() + mixer.warnings(),
    )


def _checked_channel(name: str, channel: int, num_channels: int) -> int:
    if isinstance(channel, bool) or not isinstance(channel, (int, np.integer)):
        raise AudioError(f"channel is a number from 0 or 'mix', not {channel!r}")
    if not 0 <= channel < num_channels:
        raise AudioError(f"{name} has no channel {channel}: there are {num_channels}, from 0")
    return int(channel)


_LOUD = 8.0
"""Times full scale that no decoder of a sound recording comes to."""
_LOUDEST = 1e6
"""Times full scale that are still taken for sound; the power of far more does not fit into float32."""


class _Level:
    """Refuses what is not the samples of a sound, and remembers the largest one."""

    def __init__(self) -> None:
        self._peak = 0.0

    def check(self, name: str, samples: FloatArray) -> None:
        peak = float(max(samples.max(), -samples.min()))
        if not math.isfinite(peak):  # also where any is NaN
            raise AudioError(f"{name} contains samples that are NaN or infinite")
        if peak > _LOUDEST:
            raise AudioError(f"{name}: samples reach {peak:.3g}; full scale is 1")
        self._peak = max(self._peak, peak)

    def warnings(self) -> tuple[str, ...]:
        """A sentence if the samples have another full scale; complete after the last block."""
        if self._peak <= _LOUD:
            return ()
        scale = "integers have to be scaled by that of their type (16 bits: divided by 32768)"
        return (f"samples reach {self._peak:.0f} times full scale; {scale}",)


def _cut(name: str, track: Track, part: _Part, level: _Level) -> Iterator[FloatArray]:
    """The samples of the part, which must be numbers."""
    position = 0
    for block in track.blocks:
        kept = block[max(0, part.first - position) : max(0, part.end - position)]
        if len(kept):
            level.check(name, kept)
            yield kept
        position += len(block)
        if position >= part.end:
            return


def _picked(blocks: Iterator[FloatArray], channel: int) -> Iterator[FloatArray]:
    return (block[:, channel : channel + 1] for block in blocks)


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


def _some(blocks: Iterator[FloatArray], name: str, track: Track, part: _Part) -> Iterator[FloatArray]:
    """The blocks that hold anything; none at all is an error."""
    is_empty = True
    for block in blocks:
        if len(block):
            is_empty = False
            yield block
    if is_empty:
        raise AudioError(_no_samples(name, track, part))


def _no_samples(name: str, track: Track, part: _Part) -> str:
    if not track.damage.decoded_seconds:
        return f"{name} contains no audio samples"
    end = "its end" if part.end_seconds is None else f"{part.end_seconds} s"
    known = f"starts at {track.start_seconds:.2f} s"
    if track.damage.at_end:
        known += f" and ends at {track.start_seconds + track.damage.decoded_seconds:.2f} s"
    return f"{name} has no audio between {part.start_seconds} s and {end}: it {known}"


def _collected(stream: AudioStream) -> list[Audio]:
    """The whole of each column. The buffers grow in place, so nothing is ever held twice."""
    buffers = [bytearray() for _ in stream.channels]
    for block in stream.blocks:
        for buffer, column in zip(buffers, block.T, strict=True):
            buffer += column.tobytes()
    warnings = stream.warnings()
    return [
        Audio(np.frombuffer(buffer, np.float32), stream.rate, warnings, channel, stream.start_seconds)
        for buffer, channel in zip(buffers, stream.channels, strict=True)
    ]
