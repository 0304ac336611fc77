"""Compressed audio and every container: PyAV, and soundfile in its stead.

In: a file at its start. Out: its `Track`. PyAV goes on behind a damaged packet, keeps to the clock of
the container (late starts, gaps) and opens nothing but the file it was given; soundfile stops at the
first fault, so it is the second choice. `UnreadableError` says that the next reader may try.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from transduce.errors import AudioError
from transduce.media.track import BLOCK_SAMPLES, Damage, Track, check_form, check_track, library, to_float
from transduce.types import FloatArray

__all__ = ["UnreadableError", "av_track", "soundfile_track"]

_COUNTED_CLOCK = 0x100  # AVFMT_GENERIC_INDEX: the file (mp3, flac, adts) has no clock, libav counts packets
_FREE_CLOCK = 0x200  # AVFMT_TS_DISCONT: the clock (mpegts, ogg) starts anywhere

_TOLERANCE_SECONDS = 0.1
"""A codec's padding may count as length or not."""
_MOVIE_TOLERANCE_SECONDS = 0.5
"""A container with a clock may declare the length of its longest track."""
_JITTER_SECONDS = 0.1
"""A timestamp may be late by this much without a gap in the sound."""
_ROUNDING_SECONDS = 0.002
"""The same where a packet was just lost, so that a gap is likely."""
_LONGEST_GAP_SECONDS = 3600.0
_LONGEST_STEP_BACK_SECONDS = 1.0
"""A jump beyond these two is a clock that was set anew, and nothing is missing."""


class UnreadableError(Exception):
    """This reader cannot make sense of the file; another one may."""


# PyAV


def av_track(file: BinaryIO, name: str, track: int | None, stack: ExitStack) -> Track:
    """The track as FFmpeg decodes it; MissingExtraError where PyAV cannot be imported."""
    av = library("av")
    # Playlists and concat scripts name other files and addresses: no protocol may be opened for them.
    options = {"protocol_whitelist": "none"}
    try:
        container = stack.enter_context(av.open(file, "r", metadata_errors="ignore", options=options))
    except av.FFmpegError as error:
        raise UnreadableError(error.strerror) from error
    stream = _stream(av, container, name, track)
    damage = Damage()
    frames = _frames(av, container, stream, damage)
    first = next(frames, None)
    if first is None:
        raise AudioError(f"{name} contains no audio samples that can be decoded")
    check_form(name, first.sample_rate, first.layout.nb_channels)
    clock = _Clock(container, first)
    damage.declared_seconds = _declared_seconds(container, stream, clock)
    damage.tolerance_seconds = _MOVIE_TOLERANCE_SECONDS if clock.is_stored else _TOLERANCE_SECONDS
    blocks = _batched(_blocks(av, chain([first], frames), _Converter(av, first), clock, damage))
    return Track(first.sample_rate, first.layout.nb_channels, blocks, clock.start_seconds, damage)


def _stream(av: ModuleType, container: Any, name: str, track: int | None) -> Any:
    """The audio stream asked for; pictures beside it are never decoded, so they may be broken."""
    streams = container.streams.audio
    if not streams:
        raise AudioError(f"{name} holds no audio track")
    check_track(name, track, len(streams))
    is_default = av.stream.Disposition.default
    default = next((stream for stream in streams if stream.disposition & is_default), streams[0])
    chosen = default if track is None else streams[track]
    if chosen.codec_context is None:
        raise UnreadableError("its codec is not known")
    return chosen


def _frames(av: ModuleType, container: Any, stream: Any, damage: Damage) -> Iterator[Any]:
    """Decoded frames, without the packets that cannot be decoded or what lies behind a broken index."""
    try:
        for packet in container.demux(stream):
            try:
                yield from packet.decode()
            except av.FFmpegError:
                damage.num_lost_packets += 1
    except IndexError:  # PyAV at the end of a file in which tracks appeared on the way
        return
    except av.FFmpegError:
        damage.num_lost_packets += 1


class _Converter:
    """Turns frames into samples, with the rate and channels of the first one for all of them.

    Broadcasts and joined files change both on the way; so do damaged packets.
    """

    def __init__(self, av: ModuleType, first: Any) -> None:
        self._av = av
        self._format, self._layout, self._rate = (
            first.format.packed.name,
            first.layout.name,
            first.sample_rate,
        )
        self._resamplers: dict[tuple[str, str, int], Any] = {}

    def samples(self, frame: Any) -> FloatArray:
        """A frame as `[n, channels]`; n may differ from the frame's own where the rate does."""
        is_alike = (frame.layout.name, frame.sample_rate) == (self._layout, self._rate)
        # PyAV reads behind the end of its list of planes, and crashes, where all eight are in use.
        is_safe = not frame.format.is_planar or frame.layout.nb_channels < 8
        if is_alike and is_safe:
            return _array(frame)
        form = (frame.format.name, frame.layout.name, frame.sample_rate)
        if form not in self._resamplers:
            self._resamplers[form] = self._av.AudioResampler(self._format, self._layout, self._rate)
        frames = self._resamplers[form].resample(frame)
        empty = np.zeros((0, self._av.AudioLayout(self._layout).nb_channels), np.float32)
        return np.concatenate([empty, *map(_array, frames)])


def _array(frame: Any) -> FloatArray:
    raw = frame.to_ndarray()  # [channels, n], or [1, n * channels] where the channels are interleaved
    return to_float(raw.T if frame.format.is_planar else raw.reshape(-1, frame.layout.nb_channels))


class _Clock:
    """Compares the timestamps of frames with the samples decoded so far, to find what is missing."""

    def __init__(self, container: Any, first: Any) -> None:
        self.is_free = bool(int(container.format.flags) & _FREE_CLOCK)
        self.is_stored = self.is_free or not int(container.format.flags) & _COUNTED_CLOCK
        self._expected_seconds = first.time or 0.0
        self._num_lost_packets = 0
        zero_seconds = (container.start_time or 0) / 1e6 if self.is_free else 0.0
        self.start_seconds = max(0.0, self._expected_seconds - zero_seconds) if self.is_stored else 0.0

    def gap_seconds(self, frame: Any, num_lost_packets: int) -> float:
        """How much is missing just before `frame`; `num_lost_packets`: all that are lost by now."""
        tolerance = _JITTER_SECONDS if num_lost_packets == self._num_lost_packets else _ROUNDING_SECONDS
        self._num_lost_packets = num_lost_packets
        has_time = self.is_stored and frame.time is not None
        late = frame.time - self._expected_seconds if has_time else 0.0
        is_gap = tolerance < late <= _LONGEST_GAP_SECONDS
        is_new_clock = not -_LONGEST_STEP_BACK_SECONDS <= late <= _LONGEST_GAP_SECONDS
        self._expected_seconds += late if is_gap or is_new_clock else 0.0
        self._expected_seconds += frame.samples / frame.sample_rate
        return late if is_gap else 0.0


def _declared_seconds(container: Any, stream: Any, clock: _Clock) -> float | None:
    """The length that the file promises; None where libav has only measured or guessed it."""
    if clock.is_free:  # measured from the last timestamp
        return None
    if stream.duration is not None:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration is not None:
        seconds = container.duration / 1e6 - clock.start_seconds
    else:
        return None
    # Without a clock, libav may have guessed from the bit rate. A promise is what such a guess cannot
    # be: more audio than the bytes that are there can hold.
    guess_bytes = seconds * (stream.codec_context.bit_rate or 0) / 8
    is_guess = not clock.is_stored and 0 < guess_bytes < 1.05 * container.size
    return None if is_guess else seconds


def _blocks(
    av: ModuleType, frames: Iterator[Any], converter: _Converter, clock: _Clock, damage: Damage
) -> Iterator[FloatArray]:
    for frame in frames:
        try:
            samples = converter.samples(frame)
        except (av.FFmpegError, ValueError):  # channels that no decoder should have come up with
            damage.num_lost_packets += 1
            continue
        gap_seconds = clock.gap_seconds(frame, damage.num_lost_packets)
        if gap_seconds:
            damage.num_gaps += 1
            damage.gap_seconds += gap_seconds
            yield from _silence(round(gap_seconds * frame.sample_rate), samples.shape[1])
        yield samples


def _silence(num_samples: int, num_channels: int) -> Iterator[FloatArray]:
    for first in range(0, num_samples, BLOCK_SAMPLES):
        yield np.zeros((min(BLOCK_SAMPLES, num_samples - first), num_channels), np.float32)


def _batched(blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
    """Join blocks until they are long enough to be worth the work on them."""
    waiting: list[FloatArray] = []
    num_samples = 0
    for block in blocks:
        waiting.append(block)
        num_samples += len(block)
        if num_samples >= BLOCK_SAMPLES:
            yield np.concatenate(waiting)
            waiting, num_samples = [], 0
    if num_samples:
        yield np.concatenate(waiting)


# soundfile


def soundfile_track(file: BinaryIO, name: str, track: int | None, stack: ExitStack) -> Track:
    """The track as libsndfile decodes it; MissingExtraError where soundfile cannot be imported."""
    soundfile = library("soundfile")
    try:
        sound = stack.enter_context(soundfile.SoundFile(file, "r"))
    except soundfile.LibsndfileError as error:
        raise UnreadableError(error.error_string) from error
    check_track(name, track, 1)
    check_form(name, sound.samplerate, sound.channels)
    is_known = sound.frames < 1 << 62  # libsndfile gives the largest number where the header has none
    declared_seconds = sound.frames / sound.samplerate if is_known else None
    damage = Damage(declared_seconds, 2 * _TOLERANCE_SECONDS)  # of an mp3 it may declare a guess
    blocks = _batched(_soundfile_blocks(soundfile, sound, damage))
    return Track(sound.samplerate, sound.channels, blocks, damage=damage)


def _soundfile_blocks(soundfile: ModuleType, sound: Any, damage: Damage) -> Iterator[FloatArray]:
    """Small blocks, because the one with the fault is lost whole."""
    try:
        while len(block := sound.read(1024, dtype="float32", always_2d=True)):
            yield block
    except soundfile.LibsndfileError:
        damage.num_lost_packets += 1
