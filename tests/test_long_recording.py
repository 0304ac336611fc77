"""Five minutes of speech with known words and times, by every checkpoint that learned to read them.

What counts is what the same checkpoint makes of the recording's 60 strings one by one, cut out at the times
of the reference. The v3_e2e checkpoints learned short strings only, so their words are not counted.
"""

import json
import re
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from models import backend, checkpoint
from support import data
from wer import equal_words, word_errors

from transduce import Model, Transcript, audio
from transduce.longform import Cutter, grid_of
from transduce.onnx.vad import SpeechDetector
from transduce.types import FloatArray

pytestmark = pytest.mark.shared

RATE = 16000
RECORDING = "audio/long_5min.flac"
NEAR_SECONDS = 0.45
"""A model hears a word about 0.1 s early, or late where it is sure only in its middle."""

POINTS = {"nemo-hybrid": 1, "nemo-tdt": 1, "gigaam-v1_ctc": 2, "gigaam-v2_ctc": 2, "gigaam-v2_rnnt": 2}
"""How much higher than string by string the word error rate may be, in percent."""
every_model = pytest.mark.parametrize("name", POINTS)


@cache
def truth(name: str = "nemo-hybrid") -> list[dict[str, Any]]:
    """Each word with its start and end, in the language of the model."""
    words = json.loads(data("audio/long_5min.json").read_text(encoding="utf-8"))
    key = "word" if name.startswith("nemo") else "word_ru"
    return [{"word": word[key], "start": word["start"], "end": word["end"]} for word in words]


@cache
def samples() -> FloatArray:
    return audio.load(data(RECORDING), rate=RATE).samples


def model_of(name: str) -> Model:
    return Model(backend(name), checkpoint(name).tokenizer)


@cache
def transcript_of(name: str) -> Transcript:
    return model_of(name).transcribe(data(RECORDING))


def bare(text: str) -> list[str]:
    return re.sub(r"[^\w ]", "", text.lower()).split()


def error_points(name: str, text: str) -> float:
    """The word error rate in percent."""
    words = [word["word"] for word in truth(name)]
    return 100 * word_errors(" ".join(words), " ".join(bare(text))) / len(words)


def strings() -> list[tuple[float, float]]:
    """Where each of the 60 strings starts and ends: pauses of over half a second part them."""
    words = truth()
    borders = [i for i, (a, b) in enumerate(pairwise(words), start=1) if b["start"] - a["end"] > 0.5]
    ranges = pairwise([0, *borders, len(words)])
    return [(words[first]["start"], words[end - 1]["end"]) for first, end in ranges]


@cache
def points_of_strings(name: str) -> float:
    parts = [samples()[int(start * RATE) : int(end * RATE)] for start, end in strings()]
    return error_points(name, " ".join(t.text for t in model_of(name).transcribe_batch(parts)))


def start_errors(name: str, transcript: Transcript) -> np.ndarray[Any, Any]:
    """Of each right word: its place, and how much later it starts than in the reference `[n, 2]`."""
    words = truth(name)
    starts = [word["start"] for word in words], [word.start for word in transcript.words]
    pairs = equal_words([word["word"] for word in words], [bare(w.word)[0] for w in transcript.words], starts)
    return np.array([(words[i]["start"], transcript.words[j].start - words[i]["start"]) for i, j in pairs])


def longest_run(name: str, transcript: Transcript) -> int:
    """The most words in a row that were lost, or that were added."""
    num_truth, num_found = len(truth(name)), len(transcript.words)
    pairs = equal_words([word["word"] for word in truth(name)], [bare(w.word)[0] for w in transcript.words])
    steps = pairwise([(-1, -1), *pairs, (num_truth, num_found)])
    return max(abs((after[0] - before[0]) - (after[1] - before[1])) for before, after in steps)


def behind(silence_seconds: float) -> FloatArray:
    return np.concatenate([np.zeros(round(silence_seconds * RATE), np.float32), samples()])


def test_there_are_60_strings() -> None:
    assert len(strings()) == 60


@every_model
def test_words_are_those_of_the_strings_one_by_one(name: str, record_property: Any) -> None:
    points = error_points(name, transcript_of(name).text)
    record_property("word error rate", f"{points:.1f} % ({points_of_strings(name):.1f} % string by string)")
    assert points <= points_of_strings(name) + POINTS[name]
    assert longest_run(name, transcript_of(name)) <= 3


@pytest.mark.parametrize("name", ["nemo-hybrid", "nemo-tdt"])
def test_words_start_where_they_are_said_to_the_end(name: str, record_property: Any) -> None:
    errors = start_errors(name, transcript_of(name))
    is_near = np.abs(errors[:, 1]) <= NEAR_SECONDS
    record_property("words within 0.45 s", f"{100 * is_near.mean():.1f} %")
    assert is_near.mean() >= 0.95
    place, error = errors.T
    last_seconds = len(samples()) / RATE - 60
    drift_seconds = error[place >= last_seconds].mean() - error[place < 60].mean()
    record_property("drift", f"{drift_seconds:+.3f} s")
    assert abs(drift_seconds) < 0.08


@every_model
@pytest.mark.parametrize("silence_seconds", [0.7, 3.3])
def test_silence_in_front_costs_no_words(name: str, silence_seconds: float) -> None:
    transcript = model_of(name).transcribe(behind(silence_seconds))
    assert error_points(name, transcript.text) <= points_of_strings(name) + POINTS[name]
    assert abs(error_points(name, transcript.text) - error_points(name, transcript_of(name).text)) <= 1
    assert longest_run(name, transcript) <= 3


@every_model
def test_silence_of_whole_frames_and_windows_changes_nothing(name: str) -> None:
    """2560 samples are whole windows of 512 and whole frames of 640 and 1280."""
    num_samples = 2560 * 21
    moved = model_of(name).transcribe(behind(num_samples / RATE))
    assert moved.text == transcript_of(name).text
    starts = [[word.start for word in t.words] for t in (moved, transcript_of(name))]
    np.testing.assert_allclose(starts[0], np.array(starts[1]) + num_samples / RATE, atol=1e-6)


@pytest.mark.parametrize("name", ["gigaam-v3_e2e_rnnt", "gigaam-v3_e2e_ctc"])
def test_times_of_any_model_are_monotonic_and_inside_their_spans(name: str) -> None:
    transcript = transcript_of(name)
    spec = backend(name).spec
    cutter = Cutter(grid_of(spec), SpeechDetector().stream)
    pieces = cutter.feed(samples()) + cutter.finish()
    spans = [(piece.span.start_samples / RATE, piece.span.end_samples / RATE) for piece in pieces]
    assert len(transcript.words) > 200
    assert all(before.end <= after.start for before, after in pairwise(transcript.words))
    for word in transcript.words:
        assert word.start <= word.end
        assert sum(start <= word.start and word.end <= end + 1e-6 for start, end in spans) == 1
