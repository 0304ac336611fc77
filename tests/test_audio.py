"""Audio in: what comes out of every odd file, array and stream, sample by sample.

Numbers in the names of tests are those of `facts/field-bugs.md`. The files are built by `field_inputs`;
the reference is what the standard library's `wave` reads from `ref_s16.wav`. Lossy codecs are compared
by correlation, since they may delay and colour the sound, never by what the package once answered.
"""

import contextlib
import io
import math
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import wave
from pathlib import Path
from typing import Any

import field_inputs
import numpy as np
import numpy.typing as npt
import pytest
from field_inputs import LATE_SECONDS, encode, fmt, pcm, riff
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases, read_wav

from transduce import audio, sources
from transduce.audio import Audio, load, load_channels
from transduce.errors import AudioError, MissingExtraError

RATE = 16000

Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the odd files."""
    folder = tmp_path_factory.mktemp("field")
    field_inputs.build(folder, read_wav("u08.wav"))
    return folder


@pytest.fixture(scope="session")
def ref(field: Path) -> Floats:
    """The samples `[n]` that most of the files hold in one form or another."""
    return read_wav(field / "ref_s16.wav")


def samples(source: sources.AudioSource) -> Floats:
    return load(source, rate=RATE).samples


def likeness(heard: Floats, expected: Floats) -> float:
    """The largest normalised cross-correlation over all delays: 1 for the same sound."""
    size = len(heard) + len(expected)
    spectrum = np.fft.rfft(heard, size) * np.conj(np.fft.rfft(expected, size))
    norm = np.linalg.norm(heard.astype(float)) * np.linalg.norm(expected.astype(float))
    return float(np.fft.irfft(spectrum, size).max() / norm)


def warning(result: Audio) -> str:
    (text,) = result.warnings
    return text


# 1, 2: WAV in all its forms


WAV_FORMS = [
    ("ref_s16.wav", 0.0),
    ("list_chunk_first.wav", 0.0),
    ("запись №1 – тест.wav", 0.0),
    ("pcm8.wav", 2.0**-7),
    ("pcm24.wav", 2.0**-15),
    ("pcm32.wav", 2.0**-15),
    ("f32.wav", 2.0**-15),
    ("f64.wav", 2.0**-15),
    ("ext_pcm24_stereo.wav", 2.0**-15),
    ("ext_f32.wav", 2.0**-15),
    ("six_ch.wav", 0.0),
]


@pytest.mark.parametrize(("name", "tolerance"), WAV_FORMS)
def test_1_2_wav_forms(field: Path, ref: Floats, name: str, tolerance: float) -> None:
    for source in (field / name, (field / name).read_bytes()):
        result = load(source, rate=RATE)
        assert result.warnings == ()
        assert result.samples.dtype == np.float32
        assert result.samples.shape == ref.shape
        assert np.abs(result.samples - ref).max() <= tolerance


def test_2_eight_bit_silence_is_exactly_zero() -> None:
    silence = samples(riff(fmt(1, 1, RATE, 8), b"\x80" * 1000))
    assert len(silence) == 1000
    assert not silence.any()


def test_rf64_takes_its_size_from_its_own_chunk(ref: Floats) -> None:
    data = pcm(ref, 16)
    ds64 = b"ds64" + struct.pack("<IQQQI", 28, 0, len(data), 0, 0)
    plain = riff(fmt(1, 1, RATE, 16), data + b"LIST\x04\0\0\0junk", ds64, 0xFFFFFFFF, 0xFFFFFFFF)
    np.testing.assert_array_equal(samples(b"RF64" + plain[4:]), ref)


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW", "IMA_ADPCM"])
def test_wav_of_other_codecs(ref: Floats, subtype: str) -> None:
    import soundfile

    target = io.BytesIO()
    soundfile.write(target, ref, RATE, format="WAV", subtype=subtype)
    assert likeness(samples(target), ref) > 0.99


# 3, 4: channels


def test_3_antiphase_is_the_loudest_channel_with_a_warning(field: Path, ref: Floats) -> None:
    result = load(field / "antiphase.wav", rate=RATE)
    np.testing.assert_array_equal(result.samples, ref)
    assert warning(result) == "channels 0, 1 cancel each other in a mix: only channel 0 was used"
    assert result.channel is None


def test_3_antiphase_array(ref: Floats) -> None:
    stereo = np.stack([-0.9 * ref, ref], axis=1)
    result = load(stereo, rate=RATE)
    np.testing.assert_array_equal(result.samples, ref)
    assert "only channel 1 was used" in warning(result)


@pytest.mark.parametrize("constant", [0.0, 0.4])
def test_3_a_constant_does_not_hide_antiphase(ref: Floats, constant: float) -> None:
    left = ref * 0.5 + np.float32(constant)
    result = load(np.stack([left, constant - ref * 0.5], axis=1), rate=RATE)
    np.testing.assert_array_equal(result.samples, left)


@pytest.mark.parametrize("shared", [0.2, -0.8])
def test_3_channels_that_only_differ_are_averaged(shared: float) -> None:
    """Unit-power noises with correlation `shared` keep (1 + shared) of the power of unrelated ones."""
    left, other = np.random.default_rng(1).standard_normal((2, 50000)).astype(np.float32) * 0.1
    right = (shared * left + math.sqrt(1 - shared**2) * other).astype(np.float32)
    result = load(np.stack([left, right], axis=1), rate=RATE)
    assert result.warnings == ()
    np.testing.assert_allclose(result.samples, (left + right) / 2, atol=1e-7)


def test_3_silent_channels_do_not_make_the_mix_faint(field: Path, ref: Floats) -> None:
    np.testing.assert_array_equal(samples(field / "left_only.wav"), ref)


def test_3_one_cancelling_pair_beside_the_speaker_does_no_harm(ref: Floats) -> None:
    hum = np.sin(np.arange(len(ref)) * 0.1).astype(np.float32) * 0.05
    surround = np.stack([hum, -hum, ref, 0 * ref, 0 * ref, 0 * ref], axis=1)
    result = load(surround, rate=RATE)
    assert result.warnings == ()
    assert likeness(result.samples, ref) > 0.999


def test_silence_in_every_channel_is_silence() -> None:
    for constant in np.float32([0.0, 0.25, 0.1, -0.7]):
        result = load(np.full((5000, 2), constant), rate=RATE)
        assert result.warnings == ()
        assert (result.samples == constant).all()


@pytest.mark.parametrize("kind", ["n", "n1", "1n", "n2", "2n"])
def test_4_array_layouts(ref: Floats, kind: str) -> None:
    layouts = {
        "n": ref,
        "n1": ref[:, None],
        "1n": ref[None],
        "n2": np.stack([ref, ref], axis=1),
        "2n": np.stack([ref, ref]),
    }
    np.testing.assert_array_equal(samples(layouts[kind]), ref)


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 2, 2), (1, 1, 100), (16, 16000), ()])
def test_4_unclear_layouts_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(n,\), \(n, channels\) or \(channels, n\)"):
        load(np.zeros(shape), rate=RATE)


def test_one_channel_or_each(field: Path, ref: Floats) -> None:
    center = load(field / "six_ch.wav", rate=RATE, channel=2)
    assert center.channel == 2
    np.testing.assert_array_equal(center.samples, ref)
    assert not load(field / "six_ch.wav", rate=RATE, channel=0).samples.any()
    each = load_channels(field / "six_ch.wav", rate=RATE)
    assert [one.channel for one in each] == [0, 1, 2, 3, 4, 5]
    for index, one in enumerate(each):
        np.testing.assert_array_equal(one.samples, ref if index == 2 else 0 * ref)


@pytest.mark.parametrize("channel", [-1, 6, True, "left"])
def test_channels_that_are_not_there(field: Path, channel: Any) -> None:
    with pytest.raises(AudioError, match=r"there are 6, from 0|a number from 0 or 'mix'"):
        load(field / "six_ch.wav", rate=RATE, channel=channel)


# 5, 6: damaged files


def test_5_broken_cover_picture(field: Path, ref: Floats) -> None:
    result = load(field / "bad_cover.mp3", rate=RATE)
    assert result.duration_seconds == pytest.approx(len(ref) / RATE, abs=0.1)
    assert likeness(result.samples, ref) > 0.99
    assert result.warnings == ()


CUT = [
    ("cut_60pct.wav", 0.6),
    ("cut_60pct.mp3", 0.6),
    ("frag_cut.mp4", 0.6),
    ("cut_60pct.flac", 0.5),  # the bit rate varies
]


@pytest.mark.parametrize(("name", "share"), CUT)
def test_6_the_readable_part_is_read(field: Path, ref: Floats, name: str, share: float) -> None:
    result = load(field / name, rate=RATE)
    assert result.duration_seconds == pytest.approx(share * len(ref) / RATE, abs=0.3)
    assert likeness(result.samples, ref[: len(result.samples)]) > 0.98
    assert warning(result).startswith("incomplete audio (")
    assert warning(result).endswith(f"decoded {result.duration_seconds:.2f} s")


def test_6_lossless_files_are_exact_up_to_the_cut(field: Path, ref: Floats) -> None:
    for name in ("cut_60pct.wav", "cut_60pct.flac"):
        heard = samples(field / name)
        np.testing.assert_array_equal(heard, ref[: len(heard)])


def test_6_garbage_between_packets(field: Path, ref: Floats) -> None:
    result = load(field / "mid_garbage.mp3", rate=RATE)
    assert result.duration_seconds == pytest.approx(len(ref) / RATE, abs=0.1)
    for part in (slice(0, RATE), slice(-2 * RATE, None)):
        assert likeness(result.samples[part], ref[part]) > 0.98
    assert "damaged packets left out: 1" in warning(result)


@pytest.mark.parametrize(
    ("container", "codec"),
    [("matroska", "flac"), ("mp4", "aac"), ("mpegts", "mp2"), ("ogg", "libopus"), ("flac", "flac")],
)
def test_6_garbage_in_place_of_packets(ref: Floats, container: str, codec: str) -> None:
    """The sound behind it is heard; at its time, if the container has a clock."""
    whole = (
        field_inputs.movie(container, codec, [ref]) if container in MOVIES else encode(container, codec, ref)
    )
    middle = len(whole) // 3
    garbage = np.random.default_rng(0).bytes(3000)
    result = load(whole[:middle] + garbage + whole[middle + 3000 :], rate=RATE)
    assert len(result.warnings) == 1
    has_clock = container != "flac"
    assert result.duration_seconds == pytest.approx(len(ref) / RATE, abs=0.3 if has_clock else 0.8)
    tail = result.samples[-2 * RATE :]
    assert likeness(tail, ref[-2 * RATE :]) > 0.98


MOVIES = ("matroska", "mp4", "mpegts")


@pytest.mark.parametrize("name", ["moov_lost.m4a", "text_as.wav", "picture_only.mp4"])
def test_6_what_holds_no_audio_is_one_clear_line(field: Path, name: str) -> None:
    with pytest.raises(AudioError) as caught:
        load(field / name, rate=RATE)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_length_guessed_from_the_bit_rate_is_no_promise() -> None:
    """43 s of AAC without a container, whose quiet start makes FFmpeg expect four times as much."""
    noise = np.random.default_rng(0).standard_normal(3 * RATE).astype(np.float32) * 0.3
    quiet_first = np.concatenate([np.zeros(40 * RATE, np.float32), noise])
    result = load(encode("adts", "aac", quiet_first), rate=RATE)
    assert result.duration_seconds == pytest.approx(43.0, abs=0.2)
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("adts", "aac"),
        ("mp3", "libmp3lame"),
        ("matroska", "libopus"),
        ("ipod", "aac"),
        ("flac", "flac"),
        ("mpegts", "mp2"),
    ],
)
def test_6_random_damage_is_read_or_refused(ref: Floats, container: str, codec: str) -> None:
    """Never another exception, and never the crash that PyAV alone has with damaged AAC."""
    whole = np.frombuffer(encode(container, codec, ref), np.uint8)
    rng = np.random.default_rng(0)
    num_read = 0
    for _ in range(num_cases(20, 500)):
        damaged = whole.copy()
        places = rng.integers(600, len(damaged), rng.integers(1, 100))
        damaged[places] = rng.integers(0, 256, len(places))
        with contextlib.suppress(AudioError):
            num_read += load(damaged.tobytes(), rate=RATE).duration_seconds > 0
    assert num_read > 0


def test_tags_that_are_no_text_do_no_harm(ref: Floats) -> None:
    title = b"TIT2\0\0\0\x05\0\0\x03\xff\xfe\xfd\xfc"  # says that it is UTF-8
    tag = b"ID3\x03\0\0\0\0\0" + bytes([len(title)]) + title
    no_tags = {"write_xing": "0", "id3v2_version": "0"}
    assert likeness(samples(tag + encode("mp3", "libmp3lame", ref, RATE, no_tags)), ref) > 0.98


def test_nothing_is_printed(field: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in field.iterdir():
        try:
            load(path, rate=RATE)
        except AudioError:
            continue
    assert capfd.readouterr() == ("", "")


# 8: lengths that lie


@pytest.mark.parametrize("name", ["size_ffffffff.wav", "size_7fffffff.wav", "size_zero.wav"])
def test_8_sizes_that_were_never_filled_in(field: Path, ref: Floats, name: str) -> None:
    tracemalloc.start()
    result = load(field / name, rate=RATE)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(result.samples, ref)
    assert result.warnings == ()
    assert peak_bytes < 10e6


def test_8_header_of_a_recorder_that_crashed(ref: Floats) -> None:
    """Both sizes are those of an empty file."""
    crashed = riff(fmt(1, 1, RATE, 16), pcm(ref, 16), data_size=0, riff_size=36)
    np.testing.assert_array_equal(samples(crashed), ref)


def test_8_header_that_declares_too_little(ref: Floats) -> None:
    early = riff(fmt(1, 1, RATE, 16), pcm(ref, 16), data_size=2 * RATE)
    result = load(early, rate=RATE)
    np.testing.assert_array_equal(result.samples, ref)
    expected = f"incomplete audio (the header declares 1.00 s): decoded {len(ref) / RATE:.2f} s"
    assert warning(result) == expected


def test_8_header_that_is_right_about_nothing() -> None:
    empty = riff(fmt(1, 1, RATE, 16), b"LIST\x04\0\0\0INFO", data_size=0)
    with pytest.raises(AudioError, match="contains no audio samples"):
        load(empty, rate=RATE)


def test_8_chunks_behind_the_samples_are_no_samples(ref: Floats) -> None:
    tagged = riff(fmt(1, 1, RATE, 16), pcm(ref, 16) + b"LIST\x04\0\0\0INFO", data_size=2 * len(ref))
    np.testing.assert_array_equal(samples(tagged), ref)


def test_8_13_no_samples(field: Path) -> None:
    with pytest.raises(AudioError, match=r"header_only\.wav contains no audio samples"):
        load(field / "header_only.wav", rate=RATE)
    with pytest.raises(AudioError, match=r"zero_bytes\.wav is empty"):
        load(field / "zero_bytes.wav", rate=RATE)
    for empty in (np.zeros(0), np.zeros((0, 2)), np.zeros((2, 0))):
        with pytest.raises(AudioError, match="contains no audio samples"):
            load(empty, rate=RATE)
    with pytest.raises(AudioError, match="<bytes> is empty"):
        load(b"", rate=RATE)


# 10: streams


class Pipe(io.RawIOBase):
    """A stream that cannot seek and gives a few bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._content.read(min(len(buffer), 1000))
        buffer[: len(piece)] = piece
        return len(piece)


class Unbuffered(io.BytesIO):
    """A file that gives less than it was asked for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 777) if size != -1 else -1)


@pytest.mark.parametrize("name", ["pipe.webm", "a.opus", "a.m4a", "a.flac", "ref_s16.wav"])
def test_10_every_way_to_hand_over_a_file(field: Path, ref: Floats, name: str) -> None:
    path = field / name
    expected = load(path, rate=RATE)
    assert expected.duration_seconds == pytest.approx(len(ref) / RATE, abs=0.06)
    assert likeness(expected.samples, ref) > 0.99
    content = path.read_bytes()
    at_end = io.BytesIO(content)
    at_end.seek(0, io.SEEK_END)
    spooled = tempfile.SpooledTemporaryFile()  # noqa: SIM115 (closed below)
    spooled.write(content)
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, spooled:
        streams = [str(path), content, bytearray(content), io.BytesIO(content), at_end, file, raw, spooled]
        for source in [*streams, Pipe(content), Unbuffered(content)]:
            np.testing.assert_array_equal(samples(source), expected.samples)
        assert not file.closed


def test_10_only_a_file_opened_for_reading_is_read(field: Path, tmp_path: Path) -> None:
    """A file object that could also be written is left as it is."""
    copy = tmp_path / "copy.m4a"
    copy.write_bytes((field / "a.m4a").read_bytes())
    with copy.open("r+b") as file:
        assert len(samples(file)) > RATE
    assert copy.read_bytes() == (field / "a.m4a").read_bytes()


def test_text_and_other_things_are_refused(field: Path) -> None:
    with (
        (field / "text_as.wav").open(encoding="utf-8") as text,
        pytest.raises(AudioError, match="opened as text"),
    ):
        load(text, rate=RATE)  # type: ignore[arg-type]
    for source in ([0.0, 0.1], None, 3):
        with pytest.raises(AudioError, match="give a path, bytes, a binary file or a numpy array"):
            load(source, rate=RATE)  # type: ignore[arg-type]


# 13: very short


@pytest.mark.parametrize("size", [1, 79, 159, 160, 161, 320, 399, 400, 401, 799, 1600])
def test_13_short_files_keep_their_length(field: Path, size: int) -> None:
    result = load(field / f"n{size:04d}.wav", rate=RATE)
    assert len(result.samples) == size
    assert result.duration_seconds == size / RATE


# 14: types of samples


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", ">i2", "<u2"]
)
def test_14_integers_are_scaled_by_their_full_range(dtype: str) -> None:
    kind = np.dtype(dtype)
    half = 2 ** (8 * kind.itemsize - 1)
    zero = half if kind.kind == "u" else 0
    array = np.array([zero - half, zero - half // 2, zero, zero + half // 2], object).astype(kind)
    np.testing.assert_array_equal(samples(array), [-1.0, -0.5, 0.0, 0.5])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", ">f4"])
def test_14_floats_are_kept(dtype: str) -> None:
    np.testing.assert_array_equal(samples(np.array([-2.0, 0.25, 0.5], dtype)), [-2.0, 0.25, 0.5])


def test_14_integer_and_float_arrays_and_files_agree(field: Path, ref: Floats) -> None:
    whole = (ref * 32768).astype(np.int16)
    for source in (whole, ref, ref.astype(np.float64), field / "ref_s16.wav"):
        np.testing.assert_array_equal(samples(source), ref)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "object", "U1"])
def test_14_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="is not audio: give integers or floats"):
        load(np.zeros(100, dtype), rate=RATE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_samples_that_are_no_numbers_are_refused(ref: Floats, bad: float) -> None:
    array = ref.astype(np.float64)
    array[1234] = bad
    with pytest.raises(AudioError, match="<array> contains samples that are NaN or infinite"):
        load(array, rate=RATE)


def test_31_file_with_nan_is_refused(field: Path) -> None:
    with pytest.raises(AudioError, match=r"one_nan_f32\.wav contains samples that are NaN"):
        load(field / "one_nan_f32.wav", rate=RATE)


def test_arrays_are_left_alone(ref: Floats) -> None:
    for array in (ref.copy(), np.stack([ref, -ref], axis=1), (ref * 32768).astype(np.int16)):
        before = array.copy()
        array.flags.writeable = False
        result = load(array, rate=RATE)
        load(array, rate=8000)
        np.testing.assert_array_equal(array, before)
        assert not np.shares_memory(result.samples, array)


# 15: sample rates


@pytest.mark.parametrize(
    "name", ["rate22050.wav", "rate44100.wav", "rate48000.wav", "rate96000.wav", "cd_stereo.wav"]
)
def test_15_rates_of_files(field: Path, ref: Floats, name: str) -> None:
    heard = samples(field / name)
    assert len(heard) == len(ref)
    assert np.abs(heard - ref).max() < 1e-3


def test_15_eight_kilohertz_is_the_lower_half_of_the_spectrum(field: Path, ref: Floats) -> None:
    heard = samples(field / "rate8000.wav")
    assert len(heard) == len(ref)
    spectra = np.fft.rfft(ref), np.fft.rfft(heard)
    band = slice(0, len(spectra[0]) * 9 // 20)  # to 3.6 kHz: what is above is the resampler's slope
    assert np.linalg.norm(spectra[1][band] - spectra[0][band]) < 1e-2 * np.linalg.norm(spectra[0])
    assert np.linalg.norm(spectra[1][len(spectra[1]) * 11 // 20 :]) < 1e-2 * np.linalg.norm(spectra[0])


def test_15_rate_of_an_array(ref: Floats) -> None:
    assert load(ref, rate=RATE).duration_seconds == len(ref) / RATE
    assert load(ref, rate=RATE, sample_rate=48000).duration_seconds == pytest.approx(
        len(ref) / 48000, abs=1e-4
    )
    assert load(ref, rate=8000).rate == 8000


@pytest.mark.parametrize("bad", [0, -1, 16000.5, 16000.0, True, "16000"])
def test_15_bad_rates(ref: Floats, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^sample_rate is the number of samples per second"):
        load(ref, rate=RATE, sample_rate=bad)
    with pytest.raises(ValueError, match=r"^rate is the number of samples per second"):
        load(ref, rate=bad)


def test_15_files_carry_their_own_rate(field: Path) -> None:
    with pytest.raises(AudioError, match="carries its own sample rate"):
        load(field / "ref_s16.wav", rate=RATE, sample_rate=8000)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 96000, 16001])
@pytest.mark.parametrize("tone", [50.0, 1000.0, 3300.0])
def test_resampling_of_a_sine_is_that_sine(rate: int, tone: float) -> None:
    """Same frequency, phase and amplitude at the new times; 0.1 s at the ends belong to the filter."""
    old_times, new_times = np.arange(rate) / rate, np.arange(RATE) / RATE
    heard = load(0.5 * np.sin(2 * np.pi * tone * old_times + 0.3), rate=RATE, sample_rate=rate).samples
    expected = 0.5 * np.sin(2 * np.pi * tone * new_times + 0.3)
    assert len(heard) == RATE
    assert np.abs(heard - expected)[1600:-1600].max() < 2e-5


def test_resampling_takes_away_what_would_fold_back() -> None:
    tone = np.sin(2 * np.pi * 10000 * np.arange(48000) / 48000)
    heard = load(tone, rate=RATE, sample_rate=48000).samples
    assert np.abs(heard[1600:-1600]).max() < 1e-4


@settings(max_examples=40, deadline=None)
@given(rate=st.sampled_from([8000, 11025, 22050, 44100, 48000]), size=st.integers(100, 20000))
def test_resampled_length(rate: int, size: int) -> None:
    heard = load(np.zeros(size, np.float32), rate=RATE, sample_rate=rate).samples
    assert abs(len(heard) - size * RATE / rate) <= 0.5


@pytest.mark.parametrize(
    "name", ["cd_stereo.wav", "antiphase.wav", "rate48000.wav", "a.m4a", "gap.mkv", "array"]
)
def test_blocks_of_any_size_give_the_same_samples(
    field: Path, ref: Floats, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = np.stack([ref, 0.5 * ref]) if name == "array" else field / name
    expected = load(source, rate=11025)
    for size in (1000, 777, 1 << 20):
        for reader in ("arrays", "wav", "containers"):
            monkeypatch.setattr(f"transduce.media.{reader}.BLOCK_SAMPLES", size)
        result = load(source, rate=11025)
        np.testing.assert_array_equal(result.samples, expected.samples)
        assert result.warnings == expected.warnings


# 18: silence, offset, clipping, loudness


def test_18_silence_is_exact(field: Path) -> None:
    silence = load(field / "silence_4s.wav", rate=RATE)
    assert silence.duration_seconds == 4.0
    assert not silence.samples.any()
    assert load(field / "noise_-60dB_4s.wav", rate=RATE).duration_seconds == 4.0


def test_18_offset_clipping_and_loudness_are_passed_on(field: Path, ref: Floats) -> None:
    np.testing.assert_allclose(samples(field / "dc.wav"), ref * 0.5 + 0.4, atol=2.0**-15)
    np.testing.assert_allclose(samples(field / "clipped.wav"), np.clip(ref * 12, -1, 1), atol=12 * 2.0**-15)
    np.testing.assert_allclose(samples(field / "loud_f32.wav"), ref * 1000, atol=1000 * 2.0**-15)


# Containers: channels, tracks, late starts, gaps, joined files


@pytest.mark.parametrize(
    ("codec", "layout", "num_channels"),
    [
        ("pcm_s16le", "5.1", 6),
        ("flac", "7.1", 8),
        ("libopus", "7.1", 8),
        ("aac", "7.1", 8),
        ("pcm_f32le", "hexadecagonal", 16),
    ],
)
def test_surround(codec: str, layout: str, num_channels: int) -> None:
    """A tone a channel: 40 Hz, 60 Hz, ... PyAV alone crashes where eight planes are in use."""
    tones = 40 + 20 * np.arange(num_channels)  # low ones, since codecs cut the channel of the subwoofer
    sound = 0.3 * np.sin(2 * np.pi * tones * np.arange(48000)[:, None] / 48000).astype(np.float32)
    each = load_channels(encode("matroska", codec, sound, 48000, layout=layout), rate=48000)
    spectra = [np.abs(np.fft.rfft(one.samples[:48000], 48000)) for one in each]
    assert [int(spectrum.argmax()) for spectrum in spectra] == tones.tolist()


@pytest.mark.parametrize("name", ["late.mkv", "late.mp4", "late.ts"])
def test_late_audio_keeps_its_place(field: Path, ref: Floats, name: str) -> None:
    """Codecs put up to 0.07 s of their own before the sound; its start plus their delay is the truth."""
    result = load(field / name, rate=RATE)
    size = len(result.samples) + len(ref)
    product = np.fft.rfft(result.samples, size) * np.conj(np.fft.rfft(ref, size))
    delay_seconds = int(np.fft.irfft(product, size).argmax()) / RATE
    assert delay_seconds < 0.1
    assert result.start_seconds + delay_seconds == pytest.approx(LATE_SECONDS, abs=0.005)
    assert result.warnings == ()


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.opus", "pipe.webm", "ref_s16.wav"])
def test_audio_that_is_not_late_starts_at_0(field: Path, name: str) -> None:
    assert load(field / name, rate=RATE).start_seconds == 0.0


@pytest.mark.parametrize("offset", [10, 7200])
def test_clock_of_a_broadcast_starts_anywhere(ref: Floats, offset: int) -> None:
    stream = encode("mpegts", "mp2", ref, options={"output_ts_offset": str(offset)})
    assert load(stream, rate=RATE).start_seconds == pytest.approx(0.0, abs=0.001)


@pytest.mark.parametrize(("first_offset", "second_offset"), [(0, 0), (7200, 0), (0, 7200)])
def test_clock_that_is_set_anew(ref: Floats, first_offset: int, second_offset: int) -> None:
    """Two recordings of a broadcast put together: no silence between them, and a later gap is found."""
    begin, resume = ({"output_ts_offset": str(offset)} for offset in (first_offset, second_offset))
    first = field_inputs.movie("mpegts", "mp2", [ref], options=begin)
    second = field_inputs.movie("mpegts", "mp2", [ref], silent=(1.0, 2.0), options=resume)
    result = load(first + second, rate=RATE)
    assert len(result.samples) == pytest.approx(2 * len(ref), abs=0.2 * RATE)
    assert "gaps filled with silence: 1 (1." in warning(result)
    assert "declares" not in warning(result)  # what libav measures between such clocks is no length


def test_gap_is_kept_as_silence(field: Path, ref: Floats) -> None:
    """The packets that start within 1 to 2 s were never written."""
    result = load(field / "gap.mkv", rate=RATE)
    assert len(result.samples) == pytest.approx(len(ref), abs=16)  # the container counts milliseconds
    assert not result.samples[int(1.1 * RATE) : int(1.9 * RATE)].any()
    np.testing.assert_array_equal(result.samples[:RATE], ref[:RATE])
    tail = result.samples[int(2.2 * RATE) :]
    assert likeness(tail, ref[int(2.2 * RATE) :]) > 0.999
    assert "gaps filled with silence: 1" in warning(result)


def test_tracks(field: Path, ref: Floats) -> None:
    first, second = (load(field / "two_tracks.mkv", rate=RATE, track=track).samples for track in (0, 1))
    assert not first.any()
    np.testing.assert_array_equal(second, ref)
    assert not samples(field / "two_tracks.mkv").any()
    np.testing.assert_array_equal(samples(field / "second_default.mkv"), ref)


@pytest.mark.parametrize(("name", "num_tracks"), [("two_tracks.mkv", 2), ("ref_s16.wav", 1), ("a.mp3", 1)])
def test_tracks_that_are_not_there(field: Path, name: str, num_tracks: int) -> None:
    for track in (-1, num_tracks):
        with pytest.raises(AudioError, match=f"no audio track {track}: there are {num_tracks}, from 0"):
            load(field / name, rate=RATE, track=track)


def test_joined_files_of_different_rates(ref: Floats) -> None:
    """A recording of a station may be two files put together: the rate of the first holds."""
    no_tags = {"write_xing": "0", "id3v2_version": "0"}
    double = load(ref, rate=32000, sample_rate=RATE).samples
    joined = encode("mp3", "libmp3lame", ref, RATE, no_tags) + encode(
        "mp3", "libmp3lame", double, 32000, no_tags
    )
    heard = samples(joined)
    assert len(heard) == pytest.approx(2 * len(ref), abs=0.3 * RATE)
    for half in (heard[: len(heard) // 2], heard[len(heard) // 2 :]):
        assert likeness(half, ref) > 0.98


def test_frames_that_cannot_be_converted_are_left_out(ref: Floats, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a damaged packet claims 19 channels."""

    def refuse(*args: object) -> None:
        raise ValueError("19 channels")

    monkeypatch.setattr("av.AudioResampler", refuse)
    stereo = np.stack([ref, ref], axis=1)
    result = load(encode("adts", "aac", ref) + encode("adts", "aac", stereo, layout="stereo"), rate=RATE)
    assert result.duration_seconds == pytest.approx(len(ref) / RATE, abs=0.3)
    assert "damaged packets left out: " in warning(result)


# Cuts


@pytest.mark.parametrize("rate", [16000, 44100])
def test_cut(ref: Floats, rate: int) -> None:
    start, end = 0.25, 1.5
    result = load(ref, rate=rate, sample_rate=rate, start_seconds=start, end_seconds=end)
    np.testing.assert_array_equal(result.samples, ref[round(start * rate) : round(end * rate)])
    assert result.start_seconds == start
    assert result.duration_seconds == end - start


def test_cuts_of_late_audio_are_in_the_time_of_the_player(field: Path, ref: Floats) -> None:
    path = field / "late.mkv"
    assert load(path, rate=RATE, start_seconds=1.0).start_seconds == LATE_SECONDS
    later = load(path, rate=RATE, start_seconds=2.0, end_seconds=3.0)
    assert later.start_seconds == 2.0
    np.testing.assert_array_equal(later.samples, ref[RATE // 2 : RATE // 2 + RATE])


def test_cuts_decide_on_what_they_keep(ref: Floats) -> None:
    """Channels that cancel only outside the part that is read are averaged."""
    ref = ref[: 2 * RATE]
    stereo = np.concatenate([np.stack([ref, -ref], 1), np.stack([ref, ref], 1)])
    result = load(stereo, rate=RATE, start_seconds=2.0)
    np.testing.assert_array_equal(result.samples, ref)
    assert result.warnings == ()


def test_cut_tells_of_damage_before_its_end(field: Path) -> None:
    assert "damaged packets left out: 1" in warning(
        load(field / "mid_garbage.mp3", rate=RATE, end_seconds=4.5)
    )
    assert load(field / "cut_60pct.wav", rate=RATE, end_seconds=2.0).warnings == ()


@pytest.mark.parametrize(
    ("start", "end"), [(-1.0, None), (2.0, 2.0), (3.0, 1.0), (math.nan, None), (0.0, math.nan)]
)
def test_spans_that_make_no_sense(ref: Floats, start: float, end: float | None) -> None:
    with pytest.raises(AudioError, match="give 0 <= start < end"):
        load(ref, rate=RATE, start_seconds=start, end_seconds=end)


def test_cut_behind_the_end(field: Path) -> None:
    with pytest.raises(
        AudioError, match=r"between 20\.0 s and its end: it starts at 1\.50 s and ends at 6\.44 s"
    ):
        load(field / "late.mkv", rate=RATE, start_seconds=20.0)
    with pytest.raises(AudioError, match=r"between 0\.0 s and 1\.0 s: it starts at 1\.50 s"):
        load(field / "late.mkv", rate=RATE, end_seconds=1.0)


# Paths and addresses


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"missing\.wav cannot be read: No such file"):
        load(tmp_path / "missing.wav", rate=RATE)
    with pytest.raises(AudioError, match=f"{tmp_path.name} cannot be read"):
        load(tmp_path, rate=RATE)
    with pytest.raises(AudioError, match="is not a path"):
        load("a\0b.wav", rate=RATE)


def test_path_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the system's refusal is played."""

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(AudioError, match=r"secret\.wav cannot be read: Permission denied"):
        load(tmp_path / "secret.wav", rate=RATE)


@pytest.mark.parametrize("address", ["http://a.b/c.wav", "https://a.b/c.mp3", "s3://bucket/key", "FTP://a/b"])
def test_addresses_are_refused(address: str) -> None:
    with pytest.raises(AudioError, match="download it first"):
        load(address, rate=RATE)


def test_a_playlist_opens_no_other_file(field: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg's concat scripts name files beside them; an upload must not reach into the server."""
    monkeypatch.chdir(field)
    script = b"ffconcat version 1.0\nfile a.flac\n"
    with pytest.raises(AudioError, match="<bytes> cannot be read"):
        load(script, rate=RATE)


def test_names_of_sources(field: Path, ref: Floats) -> None:
    assert sources.describe_source("a/b.wav") == "a/b.wav"
    assert sources.describe_source(Path("a.wav")) == "a.wav"
    assert sources.describe_source(b"RIFF") == "<bytes>"
    assert sources.describe_source(ref) == "<array>"
    assert sources.describe_source(io.BytesIO()) == "<stream>"
    with (field / "a.mp3").open("rb") as file:
        assert sources.describe_source(file) == str(field / "a.mp3")


def test_75_name_that_is_no_text_can_be_printed() -> None:
    path = "a\udcff.wav"  # what Python makes of the bytes a, FF, .wav
    assert sources.describe_source(path).encode("utf-8").startswith(b"a")
    with pytest.raises(AudioError) as caught:
        load(path, rate=RATE)
    assert b".wav cannot be read" in str(caught.value).encode("utf-8")


# 88: libraries that are not there


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes the import of libraries fail, as if they were not installed."""

    def remove(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]

    return remove


def test_88_wav_needs_no_library(field: Path, ref: Floats, without: Any) -> None:
    without("av", "soundfile", "soxr")
    for name, tolerance in WAV_FORMS:
        assert np.abs(samples(field / name) - ref).max() <= tolerance
    with pytest.raises(MissingExtraError, match=r"soxr could not be imported .*pip install soxr"):
        load(field / "rate48000.wav", rate=RATE)
    with pytest.raises(
        MissingExtraError, match=r"a\.m4a cannot be read: .*pip install av; .*pip install soundfile"
    ):
        load(field / "a.m4a", rate=RATE)


@pytest.mark.parametrize(
    "name", ["a.flac", "a.mp3", "a.opus", "bad_cover.mp3", "cut_60pct.mp3", "cut_60pct.flac"]
)
def test_88_soundfile_stands_in_for_pyav(field: Path, ref: Floats, without: Any, name: str) -> None:
    with_av = load(field / name, rate=RATE)
    without("av")
    result = load(field / name, rate=RATE)
    assert result.duration_seconds == pytest.approx(with_av.duration_seconds, abs=0.15)
    assert likeness(result.samples, ref[: len(result.samples)]) > 0.98
    assert len(result.warnings) == len(with_av.warnings)


def test_88_what_only_pyav_reads_says_so(field: Path, without: Any) -> None:
    without("av")
    with pytest.raises(AudioError, match=r"a\.m4a cannot be read: .*pip install av"):
        load(field / "a.m4a", rate=RATE)


def test_88_pyav_does_without_soundfile(field: Path, ref: Floats, without: Any) -> None:
    without("soundfile")
    np.testing.assert_array_equal(samples(field / "a.flac"), ref)


@pytest.mark.parametrize("fault", ["RuntimeError('no FFmpeg')", "OSError('libsndfile not found')"])
def test_88_broken_library_is_left_out(
    field: Path, ref: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "av.py").write_text(f"raise {fault}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "av"]:
        monkeypatch.delitem(sys.modules, name)
    np.testing.assert_array_equal(samples(field / "a.flac"), ref)
    assert "av could not be imported" in audio.codecs()["av"]


def test_codecs_name_versions_or_reasons(without: Any) -> None:
    found = audio.codecs()
    assert set(found) == {"av", "soundfile", "soxr"}
    assert all(text[0].isdigit() and "(" in text for text in found.values())
    without("soxr")
    assert "pip install soxr" in audio.codecs()["soxr"]


# Memory


def test_memory_is_one_mono_copy(tmp_path: Path) -> None:
    """Five minutes of stereo at 48 kHz: 115 MB as floats, 19.2 MB as mono at the model's rate."""
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(48000)
        file.writeframes(bytes(300 * 48000 * 4))
    tracemalloc.start()
    result = load(path, rate=RATE)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.samples.nbytes == 300 * RATE * 4
    assert peak_bytes < 1.125 * result.samples.nbytes + 8e6


def test_import_loads_no_codec() -> None:
    program = "import sys, transduce.audio; print(*{'av', 'soundfile', 'soxr'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
