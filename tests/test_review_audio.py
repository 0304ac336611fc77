"""What a hostile reviewer gave as audio: absurd levels, headers, positions, files, and memory that runs out.

A recogniser of clicks (`fakes`) stands for the engine.
"""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import LOUD, RATE, click_model, clicks, write_wav
from field_inputs import fmt, pcm, riff

from transduce import longform, pipeline
from transduce.audio import load, load_channels
from transduce.errors import AudioError, ResourceError, TransduceError
from transduce.transcript import Transcript
from transduce.types import FloatArray

GOOD = clicks(1.0, {0.5: 0})
"""Says "one"."""


def wav_of(samples: FloatArray, rate: int, num_channels: int = 1) -> bytes:
    """A WAV file of 32-bit floats, whatever its header then says; after the RIFF specification."""
    content = samples.astype("<f4").tobytes()
    frame_bytes = 4 * num_channels
    fields = (3, num_channels, rate, min(rate * frame_bytes, 0xFFFFFFFF), frame_bytes & 0xFFFF, 32)
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + len(content), b"WAVE", b"fmt ", 16, *fields)
    return head + struct.pack("<4sI", b"data", len(content)) + content


def texts(results: list[Transcript | TransduceError]) -> list[str]:
    """The texts of a batch, with the class in the place of an error."""
    return [type(found).__name__ if isinstance(found, TransduceError) else found.text for found in results]


# Levels


@pytest.mark.parametrize("peak", [2e6, 1e20, -1e20])
def test_samples_far_outside_full_scale_are_refused(peak: float) -> None:
    samples = np.append(np.zeros(RATE, np.float32), np.float32(peak))
    for source in (samples, wav_of(samples, RATE)):
        with pytest.raises(AudioError, match=r"samples reach (2e\+06|1e\+20); full scale is 1"):
            load(source, rate=RATE)


@pytest.mark.parametrize(("peak", "is_warned"), [(1.0, False), (7.9, False), (8.1, True), (32768.0, True)])
def test_floats_with_the_scale_of_integers_are_warned_of(peak: float, is_warned: bool) -> None:
    samples = np.full(RATE, peak, np.float32)
    for source in (samples, wav_of(samples, RATE)):
        warnings = load(source, rate=RATE).warnings
        assert any(f"{peak:.0f} times full scale" in warning for warning in warnings) == is_warned
    (result,) = click_model().transcribe_batch([samples])
    assert isinstance(result, Transcript)
    assert any("divided by 32768" in warning for warning in result.warnings) == is_warned


def test_the_largest_integers_are_full_scale() -> None:
    assert load(np.full(RATE, -32768, np.int16), rate=RATE).warnings == ()


# Headers


@pytest.mark.parametrize("rate", [1, 999, 1_000_001, 0xFFFFFFFF])
def test_a_rate_that_no_sound_has_is_refused(rate: int) -> None:
    with pytest.raises(AudioError, match=f"{rate} samples a second"):
        load(wav_of(np.zeros(100_000, np.float32), rate), rate=RATE)


@pytest.mark.parametrize("rate", [4000, 384_000])
def test_rates_at_both_ends_of_what_is_recorded_are_read(rate: int) -> None:
    audio = load(wav_of(np.zeros(rate, np.float32), rate), rate=RATE)
    assert audio.duration_seconds == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("num_channels", [65, 16383])
def test_more_channels_than_anyone_records_are_refused(num_channels: int) -> None:
    content = wav_of(np.zeros(num_channels * 2, np.float32), RATE, num_channels)
    with pytest.raises(AudioError, match=f"{num_channels} channels"):
        load(content, rate=RATE)


def test_64_channels_are_read() -> None:
    content = wav_of(np.zeros(64 * 100, np.float32), RATE, 64)
    assert len(load_channels(content, rate=RATE)) == 64


# Positions and rates as arguments


@pytest.mark.parametrize("value", [1e308, 10**400, float("nan"), -1.0, -(10**400)])
@pytest.mark.parametrize("name", ["start", "end", "sample_rate"])
def test_a_number_that_is_no_position_or_rate_is_refused(name: str, value: Any) -> None:
    with pytest.raises(AudioError):
        click_model().transcribe(GOOD, **{name: value})


def test_an_end_that_never_comes_is_the_end_of_the_recording() -> None:
    assert click_model().transcribe(GOOD, end=float("inf")).text == "one"


# Files and paths in a batch


class Broken(io.BytesIO):
    """A file whose `read` raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(wav_of(GOOD, RATE))
        self.error = error

    def read(self, size: int | None = -1, /) -> bytes:
        raise self.error


def closed() -> io.BytesIO:
    file = io.BytesIO(wav_of(GOOD, RATE))
    file.close()
    return file


@pytest.mark.parametrize(
    "bad",
    [
        closed(),
        *map(Broken, [ValueError("no"), RuntimeError("no"), EOFError(), OSError("no"), KeyError("no")]),
        "a\0b.wav",
        "a\ud800b.wav",
        Path("a\ud800b.wav"),
    ],
    ids=["closed", "value", "runtime", "eof", "os", "key", "null", "surrogate", "surrogate path"],
)
def test_whatever_a_source_raises_is_its_own_error(bad: Any) -> None:
    assert texts(click_model().transcribe_batch([GOOD, bad, GOOD])) == ["one", "AudioError", "one"]


def test_a_file_that_breaks_while_it_is_decoded_is_its_own_error() -> None:
    class Later(Broken):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 40:
                raise self.error
            return io.BytesIO.read(self, size)

    found = click_model().transcribe_batch([Later(RuntimeError("gone")), GOOD])
    assert texts(found) == ["AudioError", "one"]
    assert "gone" in str(found[0])


@pytest.mark.parametrize("one", ["a.wav", b"RIFF", Path("a.wav"), io.BytesIO(b"RIFF")])
def test_one_source_in_place_of_a_list_is_refused(one: Any) -> None:
    with pytest.raises(TypeError, match="give a list"):
        click_model().transcribe_batch(one)


# Memory


@pytest.mark.parametrize("method", ["feed", "finish"])
def test_memory_that_runs_out_while_cutting_costs_one_recording(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = getattr(longform.Cutter, method)

    def fails(cutter: longform.Cutter, *arguments: Any) -> Any:
        if 3 * RATE in (cutter.num_samples, *map(len, arguments)):
            raise MemoryError
        return sound(cutter, *arguments)

    monkeypatch.setattr(longform.Cutter, method, fails)
    found = click_model().transcribe_batch([GOOD, clicks(3.0, {1.0: 1}), GOOD], limits=LOUD)
    assert texts(found) == ["one", "ResourceError", "one"]


def test_memory_that_runs_out_for_a_listener_costs_one_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = pipeline.shared_detector()
    streams = iter([True, False, True])

    class Detector:
        def stream(self) -> Any:
            if next(streams):
                return detector.stream()
            raise MemoryError

    monkeypatch.setattr(pipeline, "shared_detector", Detector)
    found = click_model().transcribe_batch([GOOD, GOOD, GOOD], limits=pipeline.Limits(vad="on"))
    assert texts(found) == ["", "ResourceError", ""]  # clicks are no speech


def test_memory_that_runs_out_while_reading_costs_one_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sound = pipeline.open_stream

    def fails(source: Any, **options: Any) -> Any:
        if isinstance(source, Path):
            # What numpy raises: its own class, a MemoryError.
            np.empty(1 << 60, np.uint8)
        return sound(source, **options)

    monkeypatch.setattr(pipeline, "open_stream", fails)
    path = write_wav(tmp_path / "a.wav", GOOD)
    found = click_model().transcribe_batch([GOOD, path, GOOD])
    assert texts(found) == ["one", "ResourceError", "one"]
    assert isinstance(found[1], ResourceError)
    assert "a.wav" in str(found[1])


# Two files in one


TAGS = b"LIST\x04\0\0\0INFO" + b"id3 \x03\0\0\0abc\0"
"""Two chunks as they may come behind the samples, the second one padded."""


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize("num_samples", [RATE, RATE + 1])
@pytest.mark.parametrize("between", [b"", TAGS], ids=["at once", "after tags"])
def test_of_two_files_in_one_the_first_is_read_and_the_second_is_mentioned(
    bits: int, num_samples: int, between: bytes
) -> None:
    """As `cat one.wav two.wav` makes it, the first one's padding left out or not."""
    data = pcm(np.sin(np.arange(num_samples, dtype=np.float32) / 9), bits)
    padding = b"\0" * (len(data) % 2)
    whole = riff(fmt(1, 1, RATE, bits), data)
    expected = load(whole, rate=RATE)
    for joined in {
        whole + padding + between + whole,
        whole + (padding if between else b"") + between + whole,
    }:
        found = load(joined, rate=RATE)
        assert np.array_equal(found.samples, expected.samples)
        what = "another WAV file follows behind its end and was not read"
        length = f"{num_samples / RATE:.2f} s"
        assert found.warnings == (f"incomplete audio ({what}): decoded {length}",)
    assert load(whole + padding + TAGS, rate=RATE).warnings == ()
