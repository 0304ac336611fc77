"""Faults that users of other recognisers met with long audio, by their numbers in `facts/field-bugs.md`.

Speech is that of the bundled utterances, joined, or with its pauses cut out; it is read by the demo model.
Made-up lists of probabilities are in `test_segmentation`, made-up labels in `test_longform`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import field_inputs
import numpy as np
import pytest
from fakes import FRAME_SAMPLES, LOUD, RATE, SPEC, ClickBackend, click_model, clicks, write_wav
from support import data, read_wav, utterances
from wer import word_errors

import transduce
from transduce import AudioError, Model, Transcript
from transduce.longform import Cutter, Piece, grid_of
from transduce.onnx.vad import WINDOW_SAMPLES, SpeechDetector
from transduce.pipeline import Limits, Vad
from transduce.segmentation import powers
from transduce.types import FloatArray

REF_FILE = "u35.wav"
REF = "three eight zero zero five three"
PAUSE = np.zeros(RATE // 2, np.float32)


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    with transduce.load_model("demo") as model:
        yield model


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


def silence(num_seconds: float) -> FloatArray:
    return np.zeros(round(num_seconds * RATE), np.float32)


def said(count: int) -> tuple[FloatArray, str]:
    """Some utterances with pauses of half a second, and their text."""
    chosen = utterances()[:count]
    parts = [part for u in chosen for part in (read_wav(u["file"]), PAUSE)]
    return np.concatenate(parts), " ".join(u["text_en"] for u in chosen)


def unbroken(num_seconds: float) -> FloatArray:
    """Speech whose pauses are cut out."""
    samples = np.concatenate([read_wav(u["file"]) for u in utterances()])
    windows = samples[: len(samples) // WINDOW_SAMPLES * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES)
    loud = windows[powers(samples, WINDOW_SAMPLES) > 1e-4].reshape(-1)
    return np.resize(loud, round(num_seconds * RATE))


def cut(detector: SpeechDetector, samples: FloatArray, limit_seconds: float = 30.0) -> list[Piece]:
    """The pieces of a recording, whatever its length."""
    cutter = Cutter(grid_of(SPEC, limit_seconds), detector.stream, one_pass=False)
    blocks = (samples[start : start + 20000] for start in range(0, len(samples), 20000))
    return [piece for block in blocks for piece in cutter.feed(block)] + cutter.finish()


def assert_sound(transcript: Transcript) -> None:
    words = transcript.words
    assert all(0 <= word.start <= word.end <= transcript.duration for word in words)
    assert all(before.end <= after.start for before, after in pairwise(words))


# A. Audio input, on the way of long recordings


@pytest.fixture(scope="module")
def long_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The odd files of `field_inputs`, over 30 s of speech in each."""
    folder = tmp_path_factory.mktemp("long")
    field_inputs.build(folder, said(11)[0])
    return folder


def near(transcript: Transcript, text: str) -> bool:
    return word_errors(text, transcript.text) <= 0.04 * len(text.split())


@pytest.mark.parametrize(
    "name",
    ["ref_s16.wav", "size_ffffffff.wav", "size_zero.wav", "antiphase.wav", "a.mp3", "pipe.webm", "frag.mp4"],
)
def test_3_8_10_long_files_of_every_kind(demo: Model, long_files: Path, name: str) -> None:
    samples, text = said(11)
    transcript = demo.transcribe(long_files / name)
    assert near(transcript, text)
    assert_sound(transcript)
    assert transcript.duration == pytest.approx(len(samples) / RATE, abs=0.15)
    cancelled = [warning for warning in transcript.warnings if "cancel each other" in warning]
    assert len(cancelled) == len(transcript.warnings) == (name == "antiphase.wav")


@pytest.mark.parametrize(
    ("name", "part"), [("cut_60pct.wav", 0.6), ("cut_60pct.mp3", 0.6), ("mid_garbage.mp3", 1.0)]
)
def test_6_the_readable_part_of_a_long_file_is_transcribed(
    demo: Model, long_files: Path, name: str, part: float
) -> None:
    samples, text = said(11)
    transcript = demo.transcribe(long_files / name)
    (warning,) = transcript.warnings
    assert f"decoded {transcript.duration:.2f} s" in warning
    assert transcript.duration == pytest.approx(part * len(samples) / RATE, rel=0.03)
    assert transcript.text.startswith("five seven zero ")
    assert abs(len(transcript.words) - part * len(text.split())) <= 0.1 * len(text.split())


def test_6_a_container_without_its_index_is_an_error(demo: Model, long_files: Path) -> None:
    with pytest.raises(AudioError, match=r"moov_lost\.m4a"):
        demo.transcribe(long_files / "moov_lost.m4a")


def test_18_silence_and_faint_noise_say_nothing_also_by_voice_activity(demo: Model) -> None:
    hiss = np.random.default_rng(0).normal(0, 1e-3, 70 * RATE).astype(np.float32)
    for samples in (silence(4), silence(70), hiss[: 4 * RATE], hiss):
        for limits in (Limits(), Limits("on"), Limits("off")):
            transcript = demo.transcribe(samples, limits=limits)
            assert (transcript.text, transcript.duration) == ("", len(samples) / RATE)


def test_18_offset_and_clipping_move_no_border(detector: SpeechDetector) -> None:
    """REF at half of full scale between silences, with an offset of 0.4, and clipped by 22 dB."""
    ref = read_wav(REF_FILE)
    ref = np.concatenate([silence(1), 0.5 * ref / np.abs(ref).max(), silence(1)])
    borders = [
        [(piece.span.start_samples / RATE, piece.span.end_samples / RATE) for piece in cut(detector, samples)]
        for samples in (
            ref,
            ref * np.float32(0.5) + np.float32(0.4),
            np.clip(ref * 12, -1, 1).astype(np.float32),
        )
    ]
    for other in borders[1:]:
        np.testing.assert_allclose(other, borders[0], atol=0.1)


# B. Long audio


@pytest.mark.parametrize("kind", ["from sample 0", "behind a second of silence", "behind an unbroken run"])
def test_19_no_first_segment_is_empty(demo: Model, detector: SpeechDetector, kind: str) -> None:
    ref = np.tile(np.concatenate([read_wav(REF_FILE), PAUSE]), 11)
    before = {"from sample 0": silence(0), "behind a second of silence": silence(1)}.get(kind, unbroken(40))
    samples = np.concatenate([before, ref])
    pieces = cut(detector, samples)
    first_speech = 0 if kind != "behind a second of silence" else RATE
    assert abs(pieces[0].span.start_samples - first_speech) <= 0.4 * RATE
    assert all(len(piece.samples) > 0.2 * RATE for piece in pieces)
    assert all(a.span.start_samples < b.span.start_samples for a, b in pairwise(pieces))
    transcript = demo.transcribe(samples)
    assert_sound(transcript)
    heard = " ".join(word.word for word in transcript.words if word.start >= len(before) / RATE - 0.3)
    assert word_errors(" ".join([REF] * 11), heard) <= 3


class Table(ClickBackend):
    """An encoder with a table of 64 positions."""

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[transduce.Hypothesis]:
        longest = max(map(len, waveforms))
        if self.spec.num_frames(longest) > 64:
            raise AudioError(f"Attempting to broadcast an axis by 64 by {self.spec.num_frames(longest)}")
        return super().recognize(waveforms)


@pytest.mark.parametrize("limits", [LOUD, replace(LOUD, max_segment_seconds=400.0)])
def test_20_a_table_of_positions_is_not_overrun(limits: Limits) -> None:
    model = click_model(Table(replace(SPEC, position_limit_frames=64)))
    hum = np.resize(np.float32([0.03, -0.03]), 70 * RATE)
    long = np.where(
        (spoken := clicks(70, {number + 0.5: number % 8 for number in range(70)})) > 0, spoken, hum
    )
    outcomes = model.transcribe_batch([long, clicks(1, {0.5: 3}), long[: 5 * RATE]], limits=limits)
    assert [len(outcome.words) for outcome in outcomes] == [70, 1, 5]
    assert all(isinstance(outcome, Transcript) for outcome in outcomes)


def test_20_an_export_with_5000_positions_reads_201_seconds() -> None:
    folder = data("models/onnx/gigaam-v3_e2e_rnnt")
    with transduce.load_model(folder) as model:
        limit = model.spec.position_limit_frames
        assert limit == 5000
        long = np.resize(read_wav(REF_FILE), 201 * RATE)
        limits = Limits("off", max_segment_seconds=1000.0)
        found = model.transcribe_batch([long, read_wav(REF_FILE)], limits=limits)
        alone = model.transcribe(read_wav(REF_FILE))
    assert all(isinstance(outcome, Transcript) for outcome in found), found
    assert found[0].duration == 201
    assert found[1].text == alone.text == "Три, восемь, ноль, ноль, пять, три."


@pytest.mark.parametrize("limit_seconds", [0.7, 5.0, 22.0, 30.0])
def test_24_unbroken_speech_keeps_the_limit(detector: SpeechDetector, limit_seconds: float) -> None:
    samples = unbroken(120)
    pieces = cut(detector, samples, limit_seconds)
    assert max(len(piece.samples) for piece in pieces) <= limit_seconds * RATE
    assert min(len(piece.samples) for piece in pieces) >= 0.1 * RATE
    spans = [piece.span for piece in pieces]
    assert all(
        a.start_samples < b.start_samples and a.end_samples < b.end_samples for a, b in pairwise(spans)
    )
    covered = np.zeros(len(samples), bool)
    for span in spans:
        covered[span.start_samples : span.end_samples] = True
    stream = detector.stream()
    speech = np.concatenate([stream.feed(samples), stream.finish()]) >= 0.5
    assert not (np.repeat(speech, WINDOW_SAMPLES)[: len(samples)] & ~covered).any()


@pytest.mark.parametrize("limit_seconds", [5.0, 22.0, 30.0])
def test_24_cuts_are_at_places_that_are_quiet_for_their_neighbourhood(limit_seconds: float) -> None:
    """Speech whose pauses are cut out, where all that can be heard counts as speech."""
    samples = unbroken(240)
    cutter = Cutter(grid_of(SPEC, limit_seconds))
    spans = [piece.span for piece in cutter.feed(samples) + cutter.finish()]
    assert all(span.is_cut for span in spans[:-1])
    assert len(spans) >= 240 / limit_seconds
    power = np.convolve(samples.astype(np.float64) ** 2, np.ones(3200), "same")  # of 0.2 s
    reach = int(limit_seconds * RATE / 10)
    places = [(a.end_samples + b.start_samples) // 2 for a, b in pairwise(spans)]
    quieter = [(power[place - reach : place + reach] < power[place]).mean() for place in places]
    assert np.mean(quieter) < 0.1


@pytest.mark.parametrize("vad", ["auto", "off"])
def test_24_every_word_is_heard_once_wherever_the_cuts_are(demo: Model, vad: Vad) -> None:
    """All utterances without a pause between them."""
    samples = np.concatenate([read_wav(u["file"]) for u in utterances()])
    text = " ".join(u["text_en"] for u in utterances())
    for limit_seconds in (3.0, 10.0, 30.0):
        transcript = demo.transcribe(samples, limits=Limits(vad, limit_seconds))
        assert_sound(transcript)
        assert word_errors(text, transcript.text) <= 0.05 * len(text.split())
        assert abs(len(transcript.words) - len(text.split())) <= 2


@pytest.mark.parametrize("vad", ["auto", "off"])
def test_26_no_word_reaches_over_a_silence_that_was_left_out(demo: Model, vad: Vad) -> None:
    chosen = [u["file"] for u in utterances()[:8]]
    parts = [part for name in chosen for part in (silence(4.3), read_wav(name))]
    transcript = demo.transcribe(np.concatenate(parts), limits=Limits(vad))
    assert_sound(transcript)
    borders = np.cumsum([len(part) for part in parts]) / RATE
    places = list(zip(borders[::2], borders[1::2], strict=True))
    for word in transcript.words:
        inside = [start - 0.4 <= word.start and word.end <= end + 0.4 for start, end in places]
        assert sum(inside) == 1, word
    assert all(word.end - word.start < 1.5 for word in transcript.words)


def test_21_times_are_right_to_the_end_of_a_long_recording() -> None:
    """An hour of clicks at places that are no whole frames, cut where they may be."""
    places = {3.5 + 7.3 * number: number % 8 for number in range(490)}
    transcript = click_model().transcribe(clicks(3600, places), limits=LOUD)
    errors = np.array([p - w.start for p, w in zip(places, transcript.words, strict=True)])
    assert (errors > -1e-9).all()
    assert (errors < FRAME_SAMPLES / RATE).all()


def test_31_a_file_of_one_block_beside_long_ones(tmp_path: Path) -> None:
    """Order is kept where short recordings end while a long one is still being cut."""
    long = write_wav(tmp_path / "long.wav", clicks(200, {number + 0.5: 2 for number in range(200)}))
    short = [write_wav(tmp_path / f"{number}.wav", clicks(0.5, {0.2: number})) for number in range(6)]
    sources = [short[0], long, short[1], short[2], long, *short[3:]]
    found = click_model().transcribe_batch(sources, limits=replace(LOUD, batch_seconds=10))
    assert [outcome.source for outcome in found] == [str(source) for source in sources]
    assert [len(outcome.words) for outcome in found] == [1, 200, 1, 1, 200, 1, 1, 1]
