"""Segments that come while a recording is being decoded are those of the whole."""

import numpy as np
import pytest
from fakes import FRAME_SAMPLES, RATE, SPEC
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.tokenizer import Tokenizer
from transduce.types import Hypothesis, Segment
from transduce.words import Unfinished, assemble

PIECES = ["▁one", "▁two.", "▁e.g.", "▁(", "▁—", "teen", ".", "▁", "»", "▁B", "▁so far.", "<0xD0>", "<0xBF>"]
TOKENIZER = Tokenizer.from_pieces(PIECES, "marks")


def labels(ids: list[int], frames: list[int]) -> Hypothesis:
    count = len(ids)
    random = np.random.default_rng(count)
    return Hypothesis(
        np.array(ids, np.int64),
        np.array(frames, np.int64),
        random.integers(0, 5, count),
        -random.random(count, np.float32),
    )


def whole(said: Hypothesis, breaks_frames: list[int], duration_seconds: float) -> list[Segment]:
    return list(
        assemble(
            said,
            spec=SPEC,
            tokenizer=TOKENIZER,
            duration_seconds=duration_seconds,
            offset_seconds=1.5,
            breaks_frames=breaks_frames,
        ).segments
    )


@settings(max_examples=num_cases(300, 10000), deadline=None)
@given(
    said=st.lists(st.tuples(st.integers(0, len(PIECES) - 1), st.integers(0, 30)), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    has_break=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_parts_of_any_size_give_the_segments_of_the_whole(
    said: list[tuple[int, int]], cuts: list[int], has_break: list[bool]
) -> None:
    frames = np.cumsum([gap for _, gap in said], dtype=np.int64).tolist()
    complete = labels([piece for piece, _ in said], frames)
    unfinished = Unfinished(SPEC, TOKENIZER, 1.5)
    found: list[Segment] = []
    breaks_frames: list[int] = []
    borders = [*sorted(min(cut, len(said)) for cut in cuts), len(said)]
    first = 0
    for border, is_break in zip(borders, [*has_break, False], strict=False):
        found += unfinished.add(complete.part(first, border), breaks_frames)
        if is_break and border < len(said) and (border == 0 or frames[border] > frames[border - 1]):
            breaks_frames.append(frames[border])
        first = border
    duration_seconds = (frames[-1] if frames else 0) * FRAME_SAMPLES / RATE + 0.04
    found += unfinished.add(complete.part(first, len(said)), breaks_frames)
    found += unfinished.finish(breaks_frames, duration_seconds)
    assert found == whole(complete, breaks_frames, duration_seconds)


def test_a_segment_comes_as_soon_as_the_word_behind_it_is_whole() -> None:
    unfinished = Unfinished(SPEC, TOKENIZER)
    assert unfinished.add(labels([0, 1], [0, 5]), []) == []
    assert unfinished.add(labels([0], [9]), []) == []
    (segment,) = unfinished.add(labels([5, 0], [10, 14]), [])
    assert segment.text == "one two."
    (last,) = unfinished.finish([], 10.0)
    assert (last.id, last.text) == (1, "oneteen one")


@pytest.mark.parametrize("num_words", [0, 1])
def test_little_is_given_at_the_end(num_words: int) -> None:
    unfinished = Unfinished(SPEC, TOKENIZER)
    assert unfinished.add(labels([0] * num_words, [3] * num_words), []) == []
    assert len(unfinished.finish([], 10.0)) == num_words
