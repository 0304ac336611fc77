"""WAV files of integers or floats, read with numpy alone, whatever their header says about lengths.

In: a seekable file. Out: its `Track`, or None for every other kind of file. RIFF and RF64, plain and
extensible formats, 8 to 32 bits and both floats. A length that the writer never filled in (0, or the
largest number) is no length; one that ends before the file does is corrected with a note. Of several files
in one, as `cat` makes them, the first is read, with a note too.
"""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from transduce.media.track import BLOCK_SAMPLES, Damage, Track, check_form, check_track, to_float
from transduce.types import FloatArray

__all__ = ["wav_track"]

_EXTENSIBLE = 0xFFFE
_TYPES = {(1, 1): "u1", (1, 2): "<i2", (1, 3): "<i4", (1, 4): "<i4", (3, 4): "<f4", (3, 8): "<f8"}
"""(format tag, bytes of a sample) -> numpy type; tag 1 is integers (3 bytes are widened), 3 is floats."""


_MOST_CHUNKS_BEHIND = 100
"""Chunks behind the samples that are looked past for another file."""


@dataclass(frozen=True, slots=True)
class _Format:
    tag: int
    num_channels: int
    rate: int
    sample_bytes: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.sample_bytes * self.num_channels

    def samples(self, raw: bytes) -> FloatArray:
        """Whole frames of bytes as `[n, channels]`."""
        if self.sample_bytes == 3:
            wide = np.zeros((len(raw) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
            raw = wide.tobytes()
        typed = np.frombuffer(raw, _TYPES[self.tag, self.sample_bytes])
        return to_float(typed).reshape(-1, self.num_channels)


@dataclass(frozen=True, slots=True)
class _Data:
    """Where the samples lie."""

    start: int
    declared_bytes: int
    file_bytes: int

    @property
    def end(self) -> int:
        """The position behind the last sample, if the header is right."""
        return self.start + self.declared_bytes


def wav_track(file: BinaryIO, name: str, track: int | None) -> Track | None:
    """The track of a WAV file; None for codecs other than integers and floats, and for other files."""
    file.seek(0, io.SEEK_END)
    file_bytes = file.tell()
    chunks = {key: (start, size) for key, start, size in _chunks(file, file_bytes)}
    form = _format(_bytes_at(file, chunks[b"fmt "][0], 40)) if b"fmt " in chunks else None
    if form is None or b"data" not in chunks:
        return None
    check_track(name, track, 1)
    check_form(name, form.rate, form.num_channels)
    start, declared_bytes = chunks[b"data"]
    if declared_bytes == 0xFFFFFFFF and b"ds64" in chunks:
        # RF64 keeps the size of the samples in 64 bits, behind that of the file.
        declared_bytes = int.from_bytes(_bytes_at(file, chunks[b"ds64"][0] + 8, 8), "little")
    end, damage = _extent(file, form, _Data(start, declared_bytes, file_bytes))
    num_frames = (end - start) // form.frame_bytes
    return Track(form.rate, form.num_channels, _blocks(file, form, start, num_frames), damage=damage)


def _chunks(file: BinaryIO, file_bytes: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, position of the content, declared size) of each chunk up to the samples."""
    head = _bytes_at(file, 0, 12)
    position = 12 if _opens_wav(head) else file_bytes
    while position + 8 <= file_bytes:
        key, size = struct.unpack("<4sI", _bytes_at(file, position, 8))
        yield key, position + 8, size
        position = file_bytes if key == b"data" else position + 8 + size + size % 2


def _opens_wav(head: bytes) -> bool:
    return head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE"


def _bytes_at(file: BinaryIO, position: int, size: int) -> bytes:
    """Bytes from `position`, fewer than `size` only at the end of the file."""
    file.seek(position)
    content = file.read(size)
    while len(content) < size and (more := file.read(size - len(content))):
        content += more  # an unbuffered file may give less than it was asked for
    return content


def _format(content: bytes) -> _Format | None:
    if len(content) < 16:
        return None
    tag, num_channels, rate, _, frame_bytes, _ = struct.unpack_from("<HHIIHH", content)
    if tag == _EXTENSIBLE and len(content) >= 26:
        (tag,) = struct.unpack_from("<H", content, 24)  # the first two bytes of the sub-format
    sample_bytes = frame_bytes // num_channels if num_channels else 0
    is_known = (tag, sample_bytes) in _TYPES and rate > 0
    return _Format(tag, num_channels, rate, sample_bytes) if is_known else None


def _extent(file: BinaryIO, form: _Format, data: _Data) -> tuple[int, Damage]:
    """Where the samples really end, and what the header says wrong."""
    declared_seconds = data.declared_bytes // form.frame_bytes / form.rate
    if _is_placeholder(file, data):
        return data.file_bytes, Damage()
    if _another_follows(file, data.end):
        return data.end, Damage(notes=["another WAV file follows behind its end and was not read"])
    if _goes_on(file, data.end):
        return data.file_bytes, Damage(notes=[f"the header declares {declared_seconds:.2f} s"])
    return min(data.end, data.file_bytes), Damage(declared_seconds)


def _is_placeholder(file: BinaryIO, data: _Data) -> bool:
    """Whether a size is what recorders and pipes write that do not know it: 0, or the largest one."""
    if data.declared_bytes == 0:
        riff_bytes = int.from_bytes(_bytes_at(file, 4, 4), "little")
        return riff_bytes + 8 != data.file_bytes  # else the header is right and the file is empty
    is_largest = any(0 <= largest - data.declared_bytes <= 4096 for largest in (1 << 31, 1 << 32))
    return is_largest and data.end > data.file_bytes


def _another_follows(file: BinaryIO, end: int) -> bool:
    """Whether the file holds a second one behind the first one's samples and what chunks come after them."""
    position = end
    for _ in range(_MOST_CHUNKS_BEHIND):
        for start in {position, position + position % 2}:  # some writers leave out the padding
            if _opens_wav(_bytes_at(file, start, 12)):
                return True
        position += position % 2
        head = _bytes_at(file, position, 8)
        if len(head) < 8:
            return False
        position += 8 + int.from_bytes(head[4:], "little")
    return False


def _goes_on(file: BinaryIO, end: int) -> bool:
    """Whether samples go on behind their declared end, instead of another chunk or nothing."""
    head = _bytes_at(file, end + end % 2, 8)
    return len(head) == 8 and not (head[:4].isascii() and head[:4].decode("ascii").isprintable())


def _blocks(file: BinaryIO, form: _Format, start: int, num_frames: int) -> Iterator[FloatArray]:
    for first in range(0, num_frames, BLOCK_SAMPLES):
        size = min(BLOCK_SAMPLES, num_frames - first) * form.frame_bytes
        yield form.samples(_bytes_at(file, start + first * form.frame_bytes, size))
