"""Arguments from Python that make no sense: each ends in an error that names it, none in a transcript."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import click_model, clicks
from support import ROOT

import transduce
from transduce import Limits, Transcript, audio
from transduce.errors import AudioError

DIGITS = ROOT / "examples" / "digits.wav"
RATE = 16000


def test_a_masked_array_is_refused() -> None:
    """What the mask hides would be heard; filled, it is an array like any other."""
    samples = np.ma.masked_greater(np.linspace(-1, 1, RATE, dtype=np.float32), 0.5)
    with pytest.raises(AudioError, match="a masked array is not audio: fill its gaps"):
        audio.load(samples, rate=RATE)
    assert len(audio.load(samples.filled(0), rate=RATE).samples) == RATE


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "5", True, [1]])
@pytest.mark.parametrize(
    "name", ["max_segment_seconds", "batch_seconds", "first_batch_seconds", "pool_batches"]
)
def test_limits_that_are_no_numbers(name: str, value: Any) -> None:
    limits = Limits(**{name: value})
    model, samples = click_model(), clicks(1, {0.5: 1})
    for call in (
        lambda: model.transcribe(samples, limits=limits),
        lambda: model.transcribe_batch([samples], limits=limits),
        lambda: list(model.transcribe_many([samples], limits=limits)),
        lambda: list(model.stream(samples, limits=limits)),
        lambda: model.check(limits),
    ):
        with pytest.raises(ValueError, match=f"^{name} is"):
            call()


def test_a_first_batch_of_less_than_nothing_is_refused_where_it_is_not_used_too() -> None:
    with pytest.raises(ValueError, match="first_batch_seconds is more than 0"):
        click_model().transcribe(clicks(1, {0.5: 1}), limits=Limits(first_batch_seconds=-1))


def test_what_is_no_limits() -> None:
    with pytest.raises(TypeError, match=r"limits is a transduce\.Limits, not 3"):
        click_model().transcribe(clicks(1, {0.5: 1}), limits=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": "a"}, "start and end are numbers of seconds, not 'a'"),
        ({"end": "1"}, "start and end are numbers of seconds, not '1'"),
        ({"end": [1]}, "start and end are numbers of seconds"),
        ({"track": "x"}, "track is a number from 0, not 'x'"),
        ({"track": 0.5}, "track is a number from 0, not 0.5"),
        ({"track": True}, "track is a number from 0, not True"),
    ],
)
@pytest.mark.parametrize("source", [DIGITS, clicks(1, {0.5: 1})], ids=["file", "array"])
def test_parts_of_a_recording_that_are_none(source: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AudioError, match=message):
        click_model().transcribe(source, **arguments)


@pytest.mark.parametrize("content", [None, [], "text", 3])
def test_what_is_no_transcript(content: Any) -> None:
    with pytest.raises(ValueError, match=f"a {type(content).__name__} is not a transcript"):
        Transcript.from_dict(content)


def test_a_device_that_is_no_word(tmp_path: Path) -> None:
    with pytest.raises(transduce.errors.DeviceError, match="unknown device 0: use auto, cpu, cuda"):
        transduce.load_model("demo", device=0)  # type: ignore[arg-type]
