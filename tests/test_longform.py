"""Long recordings: what is cut out, what is left out, and that no time drifts through the file."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fakes import FRAME_SAMPLES, LOUD, RATE, SPEC, ClickBackend, click_model, clicks, decode_clicks, spec_at
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.longform import NO_SPEECH, TOO_QUIET, Cutter, Listener, Piece, Stitcher, grid_of
from transduce.segmentation import Grid, Span
from transduce.types import FloatArray, Hypothesis

FRAME_SECONDS = FRAME_SAMPLES / RATE
WINDOW = 512


def noise(num_seconds: float, level: float = 0.1, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(0, level, round(num_seconds * RATE)).astype(np.float32)


def silence(num_seconds: float) -> FloatArray:
    return np.zeros(round(num_seconds * RATE), np.float32)


class Ears:
    """A listener to whom what is louder than 0.05 is speech."""

    def __init__(self) -> None:
        self.rest = np.empty(0, np.float32)

    def feed(self, samples: FloatArray) -> FloatArray:
        self.rest = np.concatenate([self.rest, samples])
        whole, self.rest = np.split(self.rest, [len(self.rest) // WINDOW * WINDOW])
        return (np.abs(whole.reshape(-1, WINDOW)).max(axis=1) > 0.05).astype(np.float32)

    def finish(self) -> FloatArray:
        return self.feed(np.zeros(-len(self.rest) % WINDOW, np.float32))


def cut(
    samples: FloatArray,
    on: Grid | None = None,
    listen: Callable[[], Listener | None] = lambda: None,
    block_samples: int = 30000,
) -> list[Piece]:
    """The pieces of a recording that comes in blocks; each is its part of the samples."""
    cutter = Cutter(on or grid_of(SPEC), listen)
    pieces = [
        piece
        for start in range(0, len(samples), block_samples)
        for piece in cutter.feed(samples[start : start + block_samples])
    ]
    pieces += cutter.finish()
    assert cutter.num_samples == len(samples)
    for piece in pieces:
        np.testing.assert_array_equal(
            piece.samples, samples[piece.span.start_samples : piece.span.end_samples]
        )
    return pieces


def spans(pieces: list[Piece]) -> list[Span]:
    return [piece.span for piece in pieces]


# What is cut


def test_audio_up_to_the_limit_is_one_piece() -> None:
    assert spans(cut(noise(30.0))) == [Span(0, 30 * RATE)]
    assert len(cut(noise(30.001))) > 1


def test_a_listener_is_asked_for_only_when_it_is_needed() -> None:
    asked: list[int] = []

    def listen() -> Listener:
        asked.append(1)
        return Ears()

    cut(noise(30.0), listen=listen)
    assert asked == []
    cut(noise(31.0), listen=listen)
    assert asked == [1]
    Cutter(grid_of(SPEC), listen, one_pass=False)
    assert asked == [1, 1]


def test_a_listener_decides_what_is_speech() -> None:
    samples = np.concatenate([noise(20, level=0.01), noise(3), noise(20, level=0.01)])
    (span,) = spans(cut(samples, listen=Ears))
    assert 19.5 * RATE <= span.start_samples <= 20 * RATE
    assert 23 * RATE <= span.end_samples <= 23.5 * RATE


@settings(max_examples=num_cases(40, 500), deadline=None)
@given(
    num_samples=st.integers(2, 60 * RATE),
    limit_seconds=st.floats(0.7, 40),
    block_samples=st.integers(100, 100_000),
)
def test_pieces_cover_the_audio_on_the_frame_grid_under_the_limit(
    num_samples: int, limit_seconds: float, block_samples: int
) -> None:
    samples = noise(num_samples / RATE)
    found = spans(cut(samples, grid_of(SPEC, limit_seconds), block_samples=block_samples))
    assert found == spans(cut(samples, grid_of(SPEC, limit_seconds)))
    assert found[0].start_samples == 0
    assert len(samples) - found[-1].end_samples <= 1  # one sample has no power
    assert all(after.start_samples <= before.end_samples for before, after in pairwise(found))
    assert all(span.start_samples % FRAME_SAMPLES == 0 for span in found)
    assert max(span.end_samples - span.start_samples for span in found) <= limit_seconds * RATE


def test_a_positional_table_is_never_overrun() -> None:
    spec = replace(SPEC, position_limit_frames=64)
    for num_seconds in (63 * FRAME_SECONDS, 64 * FRAME_SECONDS, 30):
        found = spans(cut(noise(num_seconds), grid_of(spec)))
        assert len(found) >= num_seconds / (64 * FRAME_SECONDS)
        assert max(spec.num_frames(span.end_samples - span.start_samples) for span in found) <= 64
        if num_seconds <= 63 * FRAME_SECONDS:
            assert len(found) == 1


def test_a_limit_that_is_asked_for_does_not_lift_that_of_the_positions() -> None:
    spec = replace(SPEC, position_limit_frames=64)
    assert grid_of(spec, 100.0).limit_samples == 63 * FRAME_SAMPLES
    assert grid_of(spec, 2.0).limit_samples == 2 * RATE
    assert grid_of(SPEC, 100.0).limit_samples == 100 * RATE


def test_what_is_kept_does_not_grow() -> None:
    """Two minutes each of speech, of silence and of noise that is no speech."""
    cutter = Cutter(grid_of(SPEC), Ears)
    for samples in (noise(120), silence(120), noise(120, level=0.01)):
        for block in np.split(samples, 120):
            cutter.feed(block)
            assert len(cutter._kept) <= 31 * RATE


def test_pieces_come_while_audio_comes() -> None:
    """At the latest when the limit is full, or a second after speech has ended."""
    cutter = Cutter(grid_of(SPEC), Ears)
    assert [len(cutter.feed(block)) for block in np.split(noise(62), 62)].index(1) == 30
    for block in np.split(silence(2), 2):
        found = cutter.feed(block)
    assert len(found) == 1
    assert cutter.finish() == []


# What is silent


@pytest.mark.parametrize(
    "samples",
    [silence(0), silence(1 / RATE), silence(4), silence(70), np.full(4 * RATE, 0.4, np.float32)],
    ids=["nothing", "one zero", "zeros", "a minute of zeros", "constant offset"],
)
@pytest.mark.parametrize("listen", [Ears, lambda: None], ids=["ears", "loudness"])
def test_silence_has_no_pieces(samples: FloatArray, listen: Callable[[], Listener | None]) -> None:
    assert cut(samples, listen=listen) == []


def warnings(samples: FloatArray, listen: Callable[[], Listener | None] = Ears) -> tuple[str, ...]:
    cutter = Cutter(grid_of(SPEC), listen)
    cutter.feed(samples)
    cutter.finish()
    return cutter.warnings


def test_why_nothing_was_decoded() -> None:
    assert warnings(silence(70)) == warnings(noise(70)) == warnings(noise(1)) == ()
    assert warnings(noise(70, level=0.01)) == (NO_SPEECH,)
    assert warnings(noise(70, level=1e-4)) == warnings(noise(4, level=1e-4)) == (TOO_QUIET,)
    assert warnings(noise(70, level=0.01), lambda: None) == ()


@pytest.mark.parametrize(
    ("limit_seconds", "num_seconds", "is_warned"), [(4.99, 10, True), (5.0, 10, False), (0.64, 0.5, False)]
)
def test_cutting_below_five_seconds_is_warned_of(
    limit_seconds: float, num_seconds: float, is_warned: bool
) -> None:
    """On five minutes of digits with the demo, 0.64 s found 272 words, 2 s 320, 5 s and all above it 321."""
    cutter = Cutter(grid_of(SPEC, limit_seconds))
    cutter.feed(noise(num_seconds, level=0.1))
    cutter.finish()
    assert [warning.endswith("may lose words: allow 5 s") for warning in cutter.warnings] == [
        True
    ] * is_warned


@pytest.mark.parametrize(("decibels", "is_silent"), [(-59, True), (-57, False)])
@pytest.mark.parametrize("num_seconds", [1, 70])
def test_silence_is_power_below_the_threshold(decibels: int, num_seconds: int, is_silent: bool) -> None:
    amplitude = np.sqrt(2 * 10 ** (decibels / 10))  # a sine has half the power of its amplitude's square
    samples = amplitude * np.sin(np.arange(num_seconds * RATE) * (2 * np.pi * 100 / RATE))
    assert (cut(samples.astype(np.float32)) == []) == is_silent


def test_one_short_sound_makes_a_piece() -> None:
    samples = silence(4)
    samples[RATE : RATE + RATE // 10] = noise(0.1, level=0.02)
    assert spans(cut(samples)) == [Span(0, 4 * RATE)]


def test_a_silent_stretch_of_a_long_recording_is_left_out() -> None:
    samples = np.concatenate([noise(20), silence(80), noise(20)])
    pieces = cut(samples)
    assert (pieces[0].span.start_samples, pieces[-1].span.end_samples) == (0, len(samples))
    assert 40 * RATE <= sum(len(piece.samples) for piece in pieces) <= 42 * RATE


# How it is joined


def hypothesis_at(frames: list[int], first_id: int = 0) -> Hypothesis:
    count = len(frames)
    return Hypothesis(
        ids=np.arange(first_id, first_id + count),
        frames=np.array(frames, np.int64),
        durations=np.full(count, 3),
        log_probs=np.full(count, -0.5, np.float32),
    )


def stitch(made: list[Span], parts: list[Hypothesis]) -> tuple[Hypothesis, list[int]]:
    """The labels of a whole recording, and where no word reaches over."""
    stitcher = Stitcher(SPEC)
    found = [stitcher.add(span, part) for span, part in zip(made, parts, strict=True)]
    return Hypothesis.joined([*found, stitcher.finish()]), stitcher.breaks_frames


def frames_span(first: int, end: int, is_cut: bool = False) -> Span:
    return Span(first * FRAME_SAMPLES, end * FRAME_SAMPLES, is_cut)


def test_frames_are_counted_from_the_start_of_the_recording() -> None:
    made = [frames_span(0, 10), frames_span(10, 25), frames_span(40, 51)]
    whole, breaks_frames = stitch(
        made, [hypothesis_at([0, 4]), hypothesis_at([1], 2), hypothesis_at([0, 7], 3)]
    )
    assert whole.ids.tolist() == [0, 1, 2, 3, 4]
    assert whole.frames.tolist() == [0, 4, 11, 40, 47]
    assert whole.durations.tolist() == [3] * 5
    assert whole.log_probs.tolist() == [-0.5] * 5
    assert breaks_frames == [10, 40]


def test_a_label_behind_the_end_of_its_span_stays_in_it() -> None:
    # Ten frames of audio, and the encoder gives eleven: "floor_plus_one" feature frames, rounded up.
    assert SPEC.num_frames(10 * FRAME_SAMPLES) == 11
    whole, _ = stitch(
        [frames_span(0, 10), frames_span(10, 20)], [hypothesis_at([9, 10]), hypothesis_at([0, 10], 2)]
    )
    assert whole.frames.tolist() == [9, 9, 10, 20]


def test_nothing_is_joined_to_nothing() -> None:
    whole, breaks_frames = stitch([], [])
    assert (len(whole), breaks_frames) == (0, [])
    assert (whole.ids.dtype, whole.log_probs.dtype) == (np.int64, np.float32)


def test_labels_are_final_once_the_next_span_is_there() -> None:
    stitcher = Stitcher(SPEC)
    assert len(stitcher.add(frames_span(0, 10), hypothesis_at([1, 2]))) == 0
    assert stitcher.add(frames_span(20, 30), hypothesis_at([3], 2)).frames.tolist() == [1, 2]
    assert stitcher.finish().frames.tolist() == [23]
    assert len(stitcher.finish()) == 0


@settings(max_examples=num_cases(200, 5000), deadline=None)
@given(
    gaps=st.lists(st.integers(4, 9), min_size=1, max_size=30),
    jitter=st.lists(st.integers(-1, 1), min_size=60, max_size=60),
    middle=st.integers(20, 100),
    half=st.integers(5, 8),
)
def test_each_label_of_an_overlap_comes_once(
    gaps: list[int], jitter: list[int], middle: int, half: int
) -> None:
    """Both spans hear all that lies in them, a frame earlier or later than it is."""
    truth = np.cumsum(gaps)
    heard = [
        [(label, frame + jitter[2 * label + side]) for label, frame in enumerate(truth)] for side in (0, 1)
    ]
    first = [(label, frame) for label, frame in heard[0] if frame < middle + half]
    second = [(label, frame - middle + half) for label, frame in heard[1] if frame >= middle - half]
    parts = [
        replace(hypothesis_at([f for _, f in part]), ids=np.array([i for i, _ in part], np.int64))
        for part in (first, second)
    ]
    whole, _ = stitch([frames_span(0, middle + half, True), frames_span(middle - half, 400)], parts)
    assert whole.ids.tolist() == list(range(len(truth)))
    assert np.abs(whole.frames - truth).max() <= 1
    assert (np.diff(whole.frames) >= 0).all()


def test_an_overlap_without_agreement_is_parted_in_its_middle() -> None:
    made = [frames_span(0, 20, True), frames_span(10, 40)]
    whole, breaks_frames = stitch(made, [hypothesis_at([3, 12, 16]), hypothesis_at([1, 4, 6], 10)])
    assert whole.ids.tolist() == [0, 1, 12]
    assert whole.frames.tolist() == [3, 12, 16]
    assert breaks_frames == []  # the second span heard what came before its first label here


def test_a_word_goes_on_over_a_cut_amid_speech_and_not_over_one_in_a_pause() -> None:
    """Label 8 is "teen", which has no space of its own."""
    model = click_model()
    before = hypothesis_at([3, 12, 16], 3)
    after = replace(hypothesis_at([2, 6, 9]), ids=np.array([4, 5, 8]))
    whole, breaks_frames = stitch([frames_span(0, 20, True), frames_span(10, 40)], [before, after])
    assert model.tokenizer.decode(whole.ids.tolist()) == "four five sixteen"
    assert breaks_frames == []
    _, breaks_frames = stitch([frames_span(0, 20), frames_span(20, 40)], [before, after])
    assert breaks_frames == [20]


def test_times_do_not_drift_through_an_hour() -> None:
    spec = spec_at(1000)
    places = {7.3 * number: number % 8 for number in range(1, 493)}
    samples = clicks(3600, places, rate=1000)
    transcript = click_model(ClickBackend(spec)).transcribe(samples, limits=LOUD)
    assert len(transcript.words) == len(places)
    errors = [place - word.start for place, word in zip(places, transcript.words, strict=True)]
    assert min(errors) > -1e-9
    assert max(errors) < FRAME_SECONDS
    slope_seconds = np.polyfit(list(places), errors, 1)[0] * 60  # per minute
    assert abs(slope_seconds) < 1e-3


@pytest.mark.parametrize("limit_seconds", [0.7, 3, 7, 30])
def test_pieces_decoded_apart_give_what_the_whole_gives(limit_seconds: float) -> None:
    """Clicks over a hum that never pauses, so that every cut has an overlap."""
    samples = clicks(100, {0.5 + 1.7 * number: number % 9 for number in range(58)})
    hum = np.resize(np.float32([0.03, -0.03]), len(samples))
    pieces = cut(np.where(samples > 0, samples, hum), grid_of(SPEC, limit_seconds))
    assert len(pieces) > 100 / limit_seconds
    stitched, _ = stitch(spans(pieces), [decode_clicks(piece.samples) for piece in pieces])
    whole = decode_clicks(samples)
    assert stitched.ids.tolist() == whole.ids.tolist()
    assert stitched.frames.tolist() == whole.frames.tolist()
