"""Cutting long recordings: what must hold for every list of probabilities, and where cuts go."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.segmentation import SILENCE_DB, Grid, Segmenter, Span, SpeechRules, loudness, powers
from transduce.types import FloatArray

RATE, WINDOW = 16000, 512
EVERYTHING = SpeechRules(min_speech_seconds=0.0)
"""Rules that leave out no speech, however little."""

cases = settings(max_examples=num_cases(100, 3000), deadline=None)


def grid(limit_seconds: float = 30.0, frame_samples: int = 1280) -> Grid:
    return Grid(RATE, WINDOW, frame_samples, int(limit_seconds * RATE))


def plan(
    probabilities: FloatArray,
    power: FloatArray | None = None,
    *,
    on: Grid | None = None,
    rules: SpeechRules = EVERYTHING,
    num_samples: int | None = None,
) -> list[Span]:
    """The spans of a whole recording; its power is the same everywhere if none is given."""
    segmenter = Segmenter(on or grid(), rules)
    loud = np.ones(len(probabilities), np.float32) if power is None else power
    end = len(probabilities) * WINDOW if num_samples is None else num_samples
    return [*segmenter.feed(probabilities, loud), *segmenter.finish(end)]


def runs(*lengths: int) -> FloatArray:
    """Probabilities of silence, speech, silence, ... for so many windows each."""
    values = [np.full(length, index % 2, np.float32) for index, length in enumerate(lengths)]
    return np.concatenate(values) if values else np.empty(0, np.float32)


grids = st.builds(grid, st.sampled_from([0.7, 1.0, 5.0, 22.0, 25.0, 30.0]), st.sampled_from([320, 640, 1280]))
tracks = st.one_of(
    st.lists(st.integers(0, 60), max_size=40).map(lambda lengths: runs(*lengths)),
    st.lists(st.sampled_from([0.1, 0.4, 0.9]), max_size=400).map(lambda values: np.array(values, np.float32)),
    st.integers(0, 3000).map(lambda length: np.ones(length, np.float32)),
)
seeds = st.integers(0, 2**32 - 1)


def random_power(seed: int, length: int) -> FloatArray:
    return np.random.default_rng(seed).random(length, np.float32)


def speech_windows(probabilities: FloatArray) -> list[bool]:
    """The rule of two thresholds, written for a whole list: the last clear value before decides."""
    found, is_speech = [], False
    for probability in probabilities:
        is_speech = probability >= (0.35 if is_speech else 0.5)
        found.append(is_speech)
    return found


@cases
@given(tracks, grids, seeds, st.integers(0, WINDOW - 1))
def test_spans_are_sorted_on_the_grid_inside_the_recording_and_keep_the_limit(
    probabilities: FloatArray, on: Grid, seed: int, missing: int
) -> None:
    num_samples = max(0, len(probabilities) * WINDOW - missing)
    power = random_power(seed, len(probabilities))
    spans = plan(probabilities, power, on=on, num_samples=num_samples)
    for span in spans:
        assert 0 <= span.start_samples < span.end_samples <= num_samples
        assert span.end_samples - span.start_samples <= on.limit_samples
        assert span.start_samples % on.frame_samples == 0
    for span, following in pairwise(spans):
        assert span.start_samples < following.start_samples
        if span.is_cut:
            assert following.start_samples <= span.end_samples < following.end_samples
        else:
            assert span.end_samples <= following.start_samples


@cases
@given(tracks, grids, seeds)
def test_all_speech_is_covered(probabilities: FloatArray, on: Grid, seed: int) -> None:
    covered = np.zeros(len(probabilities) * WINDOW, bool)
    for span in plan(probabilities, random_power(seed, len(probabilities)), on=on):
        covered[span.start_samples : span.end_samples] = True
    speech = np.repeat(speech_windows(probabilities), WINDOW)
    assert not (speech.astype(bool) & ~covered).any()


@cases
@given(tracks, grids)
def test_long_pauses_are_left_out(probabilities: FloatArray, on: Grid) -> None:
    """Of a pause of over a second, nothing but the padding and the rounding to frames is decoded."""
    speech = np.flatnonzero(speech_windows(probabilities))
    margin = int(EVERYTHING.padding_seconds * RATE) + on.frame_samples
    spans = plan(probabilities, on=on)
    for before, after in pairwise(speech):
        first, end = (before + 1) * WINDOW + margin, after * WINDOW - margin
        if after - before - 1 >= EVERYTHING.long_pause_seconds * RATE / WINDOW:
            assert not [span for span in spans if span.start_samples < end and span.end_samples > first]


@cases
@given(tracks, grids, seeds, st.lists(st.integers(1, 50), min_size=1, max_size=10))
def test_blocks_of_any_size_give_the_same_spans_and_early(
    probabilities: FloatArray, on: Grid, seed: int, sizes: list[int]
) -> None:
    power = random_power(seed, len(probabilities))
    segmenter = Segmenter(on, EVERYTHING)
    spans: list[Span] = []
    position = 0
    while position < len(probabilities):
        size = sizes[position % len(sizes)]
        oldest = segmenter.oldest_samples
        found = segmenter.feed(probabilities[position : position + size], power[position : position + size])
        position = min(position + size, len(probabilities))
        spans += found
        assert all(span.start_samples >= oldest for span in found)
        # What a caller has to keep is the open span, or what may become the padding of the next one.
        assert 0 <= position * WINDOW - segmenter.oldest_samples <= on.limit_samples
    assert spans + segmenter.finish(position * WINDOW) == plan(probabilities, power, on=on)


def test_nothing_is_said() -> None:
    assert plan(runs()) == plan(runs(100)) == []


def test_a_click_is_no_speech() -> None:
    probabilities = runs(10, 1, 50)
    assert plan(probabilities, rules=SpeechRules()) == []
    assert len(plan(probabilities)) == 1


def test_the_last_span_ends_where_the_file_ends() -> None:
    for missing in (0, 1, 511):
        (span,) = plan(runs(0, 40), num_samples=40 * WINDOW - missing)
        assert span == Span(0, 40 * WINDOW - missing)


def test_speech_has_padding() -> None:
    (span,) = plan(runs(100, 40, 100))
    assert 100 * WINDOW - 4800 - 1280 < span.start_samples <= 100 * WINDOW - 4800
    assert 140 * WINDOW + 4800 <= span.end_samples < 140 * WINDOW + 4800 + 1280


def test_a_span_ends_at_a_pause_of_a_second_and_is_given_out_at_once() -> None:
    segmenter = Segmenter(grid())
    ones = np.ones(32, np.float32)
    assert segmenter.feed(runs(0, 40, 31), np.ones(71, np.float32)) == []
    assert len(segmenter.feed(0 * ones[:1], ones[:1])) == 1


@pytest.mark.parametrize("limit_seconds", [5, 22, 30])
def test_speech_that_is_too_long_is_cut_in_the_middle_of_its_longest_pause(limit_seconds: int) -> None:
    """Pauses of 4 and 8 windows; the longer one, in the second half of what fits, is the cut."""
    limit_windows = limit_seconds * RATE // WINDOW
    before, between = limit_windows * 5 // 8, limit_windows // 8
    first, second = plan(runs(0, before, 8, between, 4, limit_windows), on=grid(limit_seconds))[:2]
    assert not first.is_cut
    assert first.end_samples == second.start_samples
    assert abs(first.end_samples - (before + 4) * WINDOW) <= 640


def test_a_pause_near_the_start_serves_where_no_other_is() -> None:
    first, second = plan(runs(0, 10, 5, 925, 40))
    assert abs(first.end_samples - 12.5 * WINDOW) <= 640
    assert second.start_samples == first.end_samples
    assert not first.is_cut


@pytest.mark.parametrize("limit_seconds", [5, 22, 30])
def test_unbroken_speech_is_cut_at_its_quietest_place_with_an_overlap(limit_seconds: int) -> None:
    windows = 120 * RATE // WINDOW
    power = np.full(windows, 1.0, np.float32)
    dip = int(limit_seconds * 0.7 * RATE / WINDOW)
    power[dip - 4 : dip + 4] = 0.01
    first, second, *_ = plan(runs(0, windows), power, on=grid(limit_seconds))
    assert first.is_cut
    assert abs((first.end_samples + second.start_samples) / 2 - dip * WINDOW) <= WINDOW + 640
    assert 0.8 * RATE <= first.end_samples - second.start_samples <= RATE


@pytest.mark.parametrize("limit_seconds", [0.0, 0.1, 0.63])
def test_a_limit_that_leaves_no_room_is_refused(limit_seconds: float) -> None:
    with pytest.raises(ValueError, match=r"allow at least 0\.64 s"):
        Segmenter(grid(limit_seconds))


@pytest.mark.parametrize("shift_windows", [5, 35, 500])
@pytest.mark.parametrize("frame_samples", [640, 1280])
def test_silence_in_front_that_is_whole_frames_and_windows_moves_the_spans(
    shift_windows: int, frame_samples: int
) -> None:
    lengths = np.random.default_rng(7).integers(1, 60, 200).tolist()
    shift = shift_windows * WINDOW
    on = grid(frame_samples=frame_samples)
    plain, moved = plan(runs(50, 20, *lengths), on=on), plan(runs(50 + shift_windows, 20, *lengths), on=on)
    assert moved == [
        replace(s, start_samples=s.start_samples + shift, end_samples=s.end_samples + shift) for s in plain
    ]


# Loudness


def test_power_is_that_of_whole_windows_without_a_constant_offset() -> None:
    time = np.arange(3 * WINDOW + 100)
    tone = (0.5 * np.sin(2 * np.pi * time / 64)).astype(np.float32)
    np.testing.assert_allclose(powers(tone + np.float32(0.3), WINDOW), [0.125] * 3, rtol=1e-5)


def test_what_can_be_heard_counts_as_speech_where_nothing_better_is_known() -> None:
    threshold = 10 ** (SILENCE_DB / 10)
    power = np.array([0.0, 0.99 * threshold, 1.01 * threshold, 0.1], np.float32)
    assert loudness(power).tolist() == [0, 0, 1, 1]
