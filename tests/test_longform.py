"""Long recordings: where they are cut, what is left out, and that no time drifts through the file."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from fakes import FRAME_SAMPLES, RATE, SPEC, ClickBackend, click_model, clicks, decode_clicks, spec_at
from hypothesis import given, settings
from hypothesis import strategies as st
from support import data, num_cases, read_wav, utterances
from wer import word_errors

import transduce
from transduce import longform
from transduce.longform import Span
from transduce.types import Hypothesis

FRAME_SECONDS = FRAME_SAMPLES / RATE


def noise(num_seconds: float, level: float = 0.1, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, level, round(num_seconds * RATE)).astype(np.float32)


def hypothesis_at(frames: list[int], first_id: int = 0) -> Hypothesis:
    count = len(frames)
    return Hypothesis(
        ids=np.arange(first_id, first_id + count),
        frames=np.array(frames, np.int64),
        durations=np.full(count, 3),
        log_probs=np.full(count, -0.5, np.float32),
    )


# Where it is cut


def test_audio_under_the_limit_is_one_span() -> None:
    assert longform.plan(noise(30.0), SPEC) == [Span(0, 30 * RATE)]


@settings(max_examples=num_cases(40, 500), deadline=None)
@given(
    num_samples=st.integers(2, 60 * RATE),
    limit_seconds=st.floats(0.01, 40),
    seed=st.integers(0, 3),
)
def test_spans_cover_the_audio_on_the_frame_grid_under_the_limit(
    num_samples: int, limit_seconds: float, seed: int
) -> None:
    samples = noise(num_samples / RATE, seed=seed)
    spans = longform.plan(samples, SPEC, limit_seconds)
    assert spans[0].start_samples == 0
    assert len(samples) - spans[-1].end_samples <= 1  # one sample has no power
    assert all(before.end_samples == after.start_samples for before, after in pairwise(spans))
    assert all(span.start_samples % FRAME_SAMPLES == 0 for span in spans)
    longest = max(span.end_samples - span.start_samples for span in spans)
    assert longest <= max(limit_seconds * RATE, FRAME_SAMPLES)
    assert min(span.end_samples - span.start_samples for span in spans) > 0


@pytest.mark.parametrize("gap_seconds", [25.1, 26.0, 28.44, 29.7])
def test_a_cut_lies_in_the_quietest_place_of_the_last_five_seconds(gap_seconds: float) -> None:
    samples = noise(40)
    samples[round(gap_seconds * RATE) :][: RATE // 4] *= 0.5
    samples[23 * RATE : 24 * RATE] = 0  # quieter, but too early
    first, second = longform.plan(samples, SPEC)
    cut_seconds = first.end_samples / RATE
    assert gap_seconds <= cut_seconds <= gap_seconds + 0.25
    assert second == Span(first.end_samples, len(samples))


@pytest.mark.parametrize("limit_seconds", [5, 22, 30])
def test_speech_without_a_pause_keeps_the_limit(limit_seconds: float) -> None:
    spans = longform.plan(noise(120), SPEC, limit_seconds)
    assert all(span.end_samples - span.start_samples <= limit_seconds * RATE for span in spans)
    assert len(spans) <= 120 / (limit_seconds - min(longform.SEARCH_SECONDS, limit_seconds / 2)) + 1


def test_a_positional_table_is_never_overrun() -> None:
    spec = replace(SPEC, position_limit_frames=64)
    for num_seconds in (30, 64 * FRAME_SECONDS, 63 * FRAME_SECONDS):
        spans = longform.plan(noise(num_seconds), spec)
        assert len(spans) >= num_seconds / (64 * FRAME_SECONDS)
        assert max(spec.num_frames(span.end_samples - span.start_samples) for span in spans) <= 64
    assert len(spans) == 1


# What is silent


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(0, np.float32),
        np.zeros(1, np.float32),
        np.zeros(4 * RATE, np.float32),
        np.full(4 * RATE, 0.4, np.float32),
        noise(4, level=1e-3),
    ],
    ids=["nothing", "one zero", "zeros", "constant offset", "noise of -60 dB"],
)
def test_silence_has_no_spans(samples: npt.NDArray[np.float32]) -> None:
    assert longform.plan(samples, SPEC) == []


@pytest.mark.parametrize(("decibels", "is_silent"), [(-59, True), (-57, False)])
def test_silence_is_power_below_the_threshold(decibels: int, is_silent: bool) -> None:
    amplitude = np.sqrt(2 * 10 ** (decibels / 10))  # a sine has half the power of its amplitude's square
    samples = (amplitude * np.sin(np.arange(RATE) * (2 * np.pi * 100 / RATE))).astype(np.float32)
    assert (longform.plan(samples, SPEC) == []) == is_silent


def test_one_short_sound_makes_a_span() -> None:
    samples = np.zeros(4 * RATE, np.float32)
    samples[RATE : RATE + RATE // 10] = noise(0.1, level=0.02)
    assert longform.plan(samples, SPEC) == [Span(0, 4 * RATE)]


def test_a_silent_stretch_of_a_long_recording_is_left_out() -> None:
    samples = np.concatenate([noise(20), np.zeros(80 * RATE, np.float32), noise(20)])
    spans = longform.plan(samples, SPEC)
    assert spans[0].start_samples == 0
    assert spans[-1].end_samples == len(samples)
    covered = sum(span.end_samples - span.start_samples for span in spans)
    assert 40 * RATE <= covered <= 90 * RATE
    sound = np.concatenate([span.of(samples) for span in spans])
    assert np.count_nonzero(sound) == np.count_nonzero(samples)


# How it is joined


def test_frames_are_counted_from_the_start_of_the_recording() -> None:
    spans = [
        Span(0, 10 * FRAME_SAMPLES),
        Span(10 * FRAME_SAMPLES, 25 * FRAME_SAMPLES),
        Span(40 * FRAME_SAMPLES, 51),
    ]
    parts = [hypothesis_at([0, 4]), hypothesis_at([1], 2), hypothesis_at([0, 7], 3)]
    whole = longform.stitch(spans, parts, SPEC)
    assert whole.ids.tolist() == [0, 1, 2, 3, 4]
    assert whole.frames.tolist() == [0, 4, 11, 40, 47]
    assert whole.durations.tolist() == [3] * 5
    assert whole.log_probs.tolist() == [-0.5] * 5
    assert longform.start_frames(spans, SPEC) == [0, 10, 40]


def test_a_label_behind_the_end_of_its_span_stays_in_it() -> None:
    # Ten frames of audio, and the encoder gives eleven: "floor_plus_one" feature frames, rounded up.
    assert SPEC.num_frames(10 * FRAME_SAMPLES) == 11
    spans = [Span(0, 10 * FRAME_SAMPLES), Span(10 * FRAME_SAMPLES, 20 * FRAME_SAMPLES)]
    whole = longform.stitch(spans, [hypothesis_at([9, 10]), hypothesis_at([0, 10], 2)], SPEC)
    assert whole.frames.tolist() == [9, 9, 10, 20]


def test_nothing_is_joined_to_nothing() -> None:
    whole = longform.stitch([], [], SPEC)
    assert len(whole) == 0
    assert (whole.ids.dtype, whole.log_probs.dtype) == (np.int64, np.float32)


def test_times_do_not_drift_through_an_hour() -> None:
    spec = spec_at(1000)
    places = {7.3 * number: number % 8 for number in range(1, 493)}
    samples = clicks(3600, places, rate=1000)
    transcript = click_model(ClickBackend(spec)).transcribe(samples)
    assert len(transcript.words) == len(places)
    errors = [place - word.start for place, word in zip(places, transcript.words, strict=True)]
    assert min(errors) > -1e-9
    assert max(errors) < FRAME_SECONDS
    slope_seconds = np.polyfit(list(places), errors, 1)[0] * 60  # per minute
    assert abs(slope_seconds) < 1e-3


def test_spans_decoded_apart_give_what_the_whole_gives() -> None:
    samples = clicks(100, {0.5 + 1.7 * number: number % 9 for number in range(58)})
    spans = longform.plan(samples, SPEC, 7)
    assert len(spans) > 14
    stitched = longform.stitch(spans, [decode_clicks(span.of(samples)) for span in spans], SPEC)
    whole = decode_clicks(samples)
    assert stitched.ids.tolist() == whole.ids.tolist()
    assert stitched.frames.tolist() == whole.frames.tolist()


# With a model


def assert_monotonic(transcript: transduce.Transcript) -> None:
    words = transcript.words
    assert all(0 <= word.start <= word.end <= transcript.duration for word in words)
    assert all(before.end <= after.start for before, after in pairwise(words))


def test_utterances_in_a_row_are_read_through_every_joint() -> None:
    chosen = utterances()[:20]
    pause = np.zeros(RATE // 2, np.float32)
    samples = np.concatenate([part for u in chosen for part in (read_wav(u["file"]), pause)])
    text = " ".join(u["text_en"] for u in chosen)
    with transduce.load_model("demo") as model:
        spans = longform.plan(samples, model.spec)
        transcript = model.transcribe(samples)
        apart = " ".join(model.transcribe(read_wav(u["file"])).text for u in chosen)
    assert len(spans) >= 3
    assert_monotonic(transcript)
    assert word_errors(text, transcript.text) <= word_errors(text, apart) + len(spans)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "key", "error_rate"),
    [("models/nemo/hybrid.nemo", "word", 0.02), ("models/gigaam/v2_rnnt.ckpt", "word_ru", 0.08)],
)
def test_a_recording_of_five_minutes(name: str, key: str, error_rate: float) -> None:
    truth = json.loads(data("audio/long_5min.json").read_text(encoding="utf-8"))
    with transduce.load_model(data(name)) as model:
        transcript = model.transcribe(data("audio/long_5min.flac"))
    text = " ".join(word[key] for word in truth)
    assert_monotonic(transcript)
    assert word_errors(text, transcript.text) <= error_rate * len(truth)
    starts = np.array([word.start for word in transcript.words])
    distances = [np.abs(starts - word["start"]).min() for word in truth]
    first_minute, last_minute = np.median(distances[:60]), np.median(distances[-60:])
    assert abs(last_minute - first_minute) < 2 * FRAME_SECONDS
