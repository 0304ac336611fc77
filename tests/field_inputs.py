"""Builds the odd audio files of `facts/field-bugs.md`, each the same utterance told another way.

In: an empty folder and mono speech `[n]` at 16 kHz. Out: about sixty files under the names that the
facts use. WAV bytes are put together here by hand, so that every header is what its name says;
containers are written by PyAV. Resampling is exact band-limited interpolation by Fourier transform:
nothing of the package under test takes part.
"""

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio import AudioStream
from av.container import OutputContainer
from av.packet import Packet
from av.video import VideoStream

__all__ = [
    "LATE_SECONDS",
    "SAMPLE_RATE",
    "build",
    "cover",
    "encode",
    "fmt",
    "id3_cover",
    "movie",
    "pcm",
    "riff",
]

SAMPLE_RATE = 16000
LATE_SECONDS = 1.5
"""When the audio of `late.mkv` and `late.mp4` starts; their pictures start at 0."""

FloatArray = npt.NDArray[np.float32]

PCM_TAG, FLOAT_TAG, EXTENSIBLE_TAG = 1, 3, 0xFFFE
SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")


# WAV, byte by byte


def riff(
    fmt_chunk: bytes,
    data: bytes,
    between: bytes = b"",
    data_size: int | None = None,
    riff_size: int | None = None,
) -> bytes:
    """A WAV file; `between` goes before the data chunk; the sizes are the true ones unless given."""
    body = b"WAVE" + _chunk(b"fmt ", fmt_chunk) + between
    true_size = len(body) + 8 + len(data)
    head = b"RIFF" + struct.pack("<I", true_size if riff_size is None else riff_size) + body
    return head + b"data" + struct.pack("<I", len(data) if data_size is None else data_size) + data


def _chunk(name: bytes, payload: bytes) -> bytes:
    return name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)


def fmt(tag: int, channels: int, rate: int, bits: int) -> bytes:
    """The 16 bytes of a plain `fmt ` chunk."""
    frame_bytes = channels * bits // 8
    return struct.pack("<HHIIHH", tag, channels, rate, rate * frame_bytes, frame_bytes, bits)


def _extensible(subformat: int, channels: int, rate: int, bits: int, speakers: int) -> bytes:
    tail = struct.pack("<HHIH", 22, bits, speakers, subformat) + SUBFORMAT_TAIL
    return fmt(EXTENSIBLE_TAG, channels, rate, bits) + tail


def pcm(samples: npt.NDArray[np.floating], bits: int) -> bytes:
    """Samples `[n]` or `[n, channels]` in -1..1 as little-endian integers of 8, 16, 24 or 32 bits."""
    scale = 2.0 ** (bits - 1)
    whole = np.clip(np.round(samples.astype(np.float64) * scale), -scale, scale - 1).astype("<i4")
    if bits == 8:
        return (whole + 128).astype(np.uint8).tobytes()
    if bits == 24:
        return np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{bits // 8}").tobytes()


def _mono16(samples: npt.NDArray[np.floating], rate: int = SAMPLE_RATE) -> bytes:
    return riff(fmt(PCM_TAG, 1, rate, 16), pcm(samples, 16))


# Signals


def _at_rate(samples: FloatArray, rate: int) -> FloatArray:
    """The same sound at another rate, by cutting or padding its spectrum."""
    num_samples = len(samples) * rate // SAMPLE_RATE
    spectrum = np.fft.rfft(samples.astype(np.float64))
    resized = np.zeros(num_samples // 2 + 1, complex)
    kept = min(len(spectrum), len(resized))
    resized[:kept] = spectrum[:kept]
    return (np.fft.irfft(resized, num_samples) * (num_samples / len(samples))).astype(np.float32)


def _channels(*columns: FloatArray) -> FloatArray:
    return np.stack(columns, axis=1)


# Containers, by PyAV


class _Pipe(BytesIO):
    """A target that cannot seek: a muxer can never go back and fill in a duration."""

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError("a pipe cannot seek")


def encode(
    container_format: str,
    codec: str,
    samples: FloatArray,
    rate: int = SAMPLE_RATE,
    options: Mapping[str, str] | None = None,
    target: BytesIO | None = None,
    layout: str = "mono",
) -> bytes:
    """Samples `[n]`, or `[n, channels]` of a `layout`, as the one stream of a container."""
    target = BytesIO() if target is None else target
    with av.open(target, "w", format=container_format, options=dict(options or {})) as container:
        _write_audio(container, _add_audio(container, codec, rate, layout), samples, 0.0)
    return target.getvalue()


def movie(
    container_format: str,
    codec: str,
    tracks: Sequence[FloatArray],
    start_seconds: float = 0.0,
    silent: tuple[float, float] | None = None,
    default: int | None = None,
    options: Mapping[str, str] | None = None,
) -> bytes:
    """Black pictures from 0 s beside audio tracks that start at `start_seconds`.

    `silent = (from, to)`: seconds of audio time for which no packets are written at all.
    `default`: the track that is marked as the one to play.
    """
    target = BytesIO()
    with av.open(target, "w", format=container_format, options=dict(options or {})) as container:
        pictures = container.add_stream("mpeg4", rate=25, width=32, height=32, pix_fmt="yuv420p")
        streams = [_add_audio(container, codec, SAMPLE_RATE, "mono") for _ in tracks]
        if default is not None:
            # PyAV 14 takes nothing but integers here.
            streams[default].disposition = av.stream.Disposition.default.value  # type: ignore[assignment]
        _write_pictures(container, pictures, start_seconds + max(map(len, tracks), default=0) / SAMPLE_RATE)
        for stream, samples in zip(streams, tracks, strict=True):
            _write_audio(container, stream, samples, start_seconds, silent)
    return target.getvalue()


def _add_audio(container: OutputContainer, codec: str, rate: int, layout: str) -> AudioStream:
    stream = container.add_stream(codec, rate=rate, layout=layout)
    assert isinstance(stream, AudioStream)
    return stream


def _write_audio(
    container: OutputContainer,
    stream: AudioStream,
    samples: FloatArray,
    start_seconds: float,
    silent: tuple[float, float] | None = None,
) -> None:
    rate = stream.rate
    for at in range(0, len(samples), 1024):
        interleaved = np.ascontiguousarray(samples[at : at + 1024]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=stream.layout.name)
        frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
        frame.pts = round(start_seconds * rate) + at
        _mux(container, stream.encode(frame), silent)
    _mux(container, stream.encode(None), silent)


def _mux(
    container: OutputContainer, packets: "Sequence[Packet[AudioStream]]", silent: tuple[float, float] | None
) -> None:
    for packet in packets:
        assert packet.pts is not None
        if silent is None or not silent[0] <= float(packet.pts * packet.time_base) < silent[1]:
            container.mux(packet)


def _write_pictures(container: OutputContainer, stream: VideoStream, seconds: float) -> None:
    black = np.zeros((32, 32, 3), np.uint8)
    for index in range(round(seconds * 25)):
        frame = av.VideoFrame.from_ndarray(black, format="rgb24")
        frame.pts = index
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def cover() -> bytes:
    """A 64 x 64 JPEG picture cut in half."""
    context = av.CodecContext.create("mjpeg", "w")
    assert isinstance(context, av.VideoCodecContext)
    context.width = context.height = 64
    context.pix_fmt, context.time_base = "yuvj420p", Fraction(1, 25)
    frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), (255, 0, 0), np.uint8), format="rgb24")
    picture = b"".join(bytes(packet) for packet in context.encode(frame.reformat(format="yuvj420p")))
    return picture[: len(picture) // 2]


def id3_cover(picture: bytes) -> bytes:
    """An ID3 tag that carries `picture` and calls it a PNG."""
    apic = b"\0image/png\0\x03\0" + picture
    frame = b"APIC" + struct.pack(">I", len(apic)) + b"\0\0" + apic
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + size + frame


# The files, group by group


def build(folder: Path, speech: FloatArray) -> None:
    """Write every file into `folder`; `speech [n]` is mono at 16 kHz, best 3 to 10 s long.

    It is cut to whole 20 ms, a whole number of samples at every rate.
    """
    whole = speech[: len(speech) // 320 * 320]
    loud = (whole / np.abs(whole).max() * 0.5).astype(np.float32)
    for group in (_formats, _channel_layouts, _sizes, _signals, _lengths, _rates, _containers, _damaged):
        for name, content in group(loud).items():
            (folder / name).write_bytes(content)


def _formats(x: FloatArray) -> dict[str, bytes]:
    def floats(bits: int) -> bytes:
        fact = _chunk(b"fact", struct.pack("<I", len(x)))
        head = fmt(FLOAT_TAG, 1, SAMPLE_RATE, bits) + b"\0\0"
        return riff(head, x.astype(f"<f{bits // 8}").tobytes(), fact)

    return {
        "ref_s16.wav": _mono16(x),
        "запись №1 – тест.wav": _mono16(x),
        **{f"pcm{bits}.wav": riff(fmt(PCM_TAG, 1, SAMPLE_RATE, bits), pcm(x, bits)) for bits in (8, 24, 32)},
        "f32.wav": floats(32),
        "f64.wav": floats(64),
        "ext_pcm24_stereo.wav": riff(_extensible(PCM_TAG, 2, SAMPLE_RATE, 24, 3), pcm(_channels(x, x), 24)),
        "ext_f32.wav": riff(_extensible(FLOAT_TAG, 1, SAMPLE_RATE, 32, 4), x.astype("<f4").tobytes()),
        "list_chunk_first.wav": riff(
            fmt(PCM_TAG, 1, SAMPLE_RATE, 16), pcm(x, 16), _chunk(b"LIST", b"INFOabc")
        ),
    }


def _channel_layouts(x: FloatArray) -> dict[str, bytes]:
    def stereo(left: FloatArray, right: FloatArray) -> bytes:
        return riff(fmt(PCM_TAG, 2, SAMPLE_RATE, 16), pcm(_channels(left, right), 16))

    no, centre = np.zeros_like(x), _extensible(PCM_TAG, 6, SAMPLE_RATE, 16, 0x3F)
    return {
        "antiphase.wav": stereo(x, -x),
        "left_only.wav": stereo(x, no),
        "six_ch.wav": riff(centre, pcm(_channels(no, no, x, no, no, no), 16)),
    }


def _sizes(x: FloatArray) -> dict[str, bytes]:
    head, data = fmt(PCM_TAG, 1, SAMPLE_RATE, 16), pcm(x, 16)
    return {
        "size_ffffffff.wav": riff(head, data, data_size=0xFFFFFFFF, riff_size=0xFFFFFFFF),
        "size_7fffffff.wav": riff(head, data, data_size=0x7FFFFFFF - 36, riff_size=0x7FFFFFFF),
        "size_zero.wav": riff(head, data, data_size=0, riff_size=0),
        "cut_60pct.wav": riff(head, data)[: 44 + len(data) * 6 // 20 * 2],
        "header_only.wav": riff(head, b""),
        "zero_bytes.wav": b"",
        "text_as.wav": b"this is not audio\n" * 50,
    }


def _signals(x: FloatArray) -> dict[str, bytes]:
    noise = np.random.default_rng(0).standard_normal(4 * SAMPLE_RATE) * 1e-3
    broken = x.copy()
    broken[len(x) // 2] = np.nan
    floats = fmt(FLOAT_TAG, 1, SAMPLE_RATE, 32)
    return {
        "dc.wav": _mono16(x * 0.5 + 0.4),
        "clipped.wav": _mono16(x * 12),
        "silence_4s.wav": _mono16(np.zeros(4 * SAMPLE_RATE)),
        "noise_-60dB_4s.wav": _mono16(noise),
        "loud_f32.wav": riff(floats, (x * 1000).astype("<f4").tobytes()),
        "one_nan_f32.wav": riff(floats, broken.astype("<f4").tobytes()),
    }


def _lengths(x: FloatArray) -> dict[str, bytes]:
    sizes = (1, 79, 159, 160, 161, 320, 399, 400, 401, 799, 1600)
    start = min(8000, len(x) // 4)
    return {f"n{size:04d}.wav": _mono16(x[start : start + size]) for size in sizes}


def _rates(x: FloatArray) -> dict[str, bytes]:
    cd = _at_rate(x, 44100)
    return {
        **{f"rate{r}.wav": _mono16(_at_rate(x, r), r) for r in (8000, 22050, 44100, 48000, 96000)},
        "cd_stereo.wav": riff(fmt(PCM_TAG, 2, 44100, 16), pcm(_channels(cd, cd), 16)),
    }


FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "500000"}


def _containers(x: FloatArray) -> dict[str, bytes]:
    no_tags = {"write_xing": "0", "id3v2_version": "0"}
    plain_mp3 = encode("mp3", "libmp3lame", _at_rate(x, 22050), 22050, no_tags)
    return {
        "a.mp3": encode("mp3", "libmp3lame", x),
        "a.m4a": encode("ipod", "aac", x),
        "a.opus": encode("ogg", "libopus", x),
        "a.flac": encode("flac", "flac", x),
        "pipe.webm": encode("webm", "libopus", x, target=_Pipe()),
        "frag.mp4": encode("mp4", "aac", x, options=FRAGMENTED),
        "bad_cover.mp3": id3_cover(cover()) + plain_mp3,
        "late.mkv": movie("matroska", "flac", [x], LATE_SECONDS),
        "late.mp4": movie("mp4", "aac", [x], LATE_SECONDS),
        "late.ts": movie("mpegts", "mp2", [x], LATE_SECONDS),
        "gap.mkv": movie("matroska", "flac", [x], silent=(1.0, 2.0)),
        "two_tracks.mkv": movie("matroska", "flac", [np.zeros_like(x), x]),
        "second_default.mkv": movie("matroska", "flac", [np.zeros_like(x), x], default=1),
        "picture_only.mp4": movie("mp4", "aac", [], 1.0),
    }


def _damaged(x: FloatArray) -> dict[str, bytes]:
    mp3, m4a, flac = encode("mp3", "libmp3lame", x), encode("ipod", "aac", x), encode("flac", "flac", x)
    fragments = encode("mp4", "aac", x, options=FRAGMENTED)
    third = len(mp3) // 3
    return {
        "cut_60pct.mp3": mp3[: len(mp3) * 6 // 10],
        "mid_garbage.mp3": mp3[:third] + bytes(3000) + mp3[third:],
        "cut_60pct.flac": flac[: len(flac) * 6 // 10],
        "frag_cut.mp4": fragments[: len(fragments) * 6 // 10],
        "moov_lost.m4a": m4a[: len(m4a) * 6 // 10],
    }
