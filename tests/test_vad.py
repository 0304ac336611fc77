"""The voice activity detector: its numbers are those of Silero's own model, however audio is handed in."""

import json
from typing import Any

import numpy as np
import pytest
from support import data, read_wav

from transduce.onnx.vad import WINDOW_SAMPLES, SpeechDetector
from transduce.types import FloatArray

UPSTREAM: dict[str, Any] = json.loads(data("golden/silero-vad.json").read_text(encoding="utf-8"))
FILES = [entry["file"] for entry in UPSTREAM["utterances"]]


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


def probabilities(detector: SpeechDetector, samples: FloatArray, block_samples: int) -> FloatArray:
    """Of a recording handed in in blocks of that size."""
    stream = detector.stream()
    starts = range(0, len(samples), block_samples)
    parts = [stream.feed(samples[start : start + block_samples]) for start in starts]
    return np.concatenate([*parts, stream.finish()])


@pytest.mark.parametrize("entry", UPSTREAM["utterances"], ids=FILES)
def test_probabilities_are_upstreams(detector: SpeechDetector, entry: dict[str, Any]) -> None:
    found = probabilities(detector, read_wav(entry["file"]), 1 << 16)
    assert np.abs(found - entry["probabilities"]).max() < 1e-3


@pytest.mark.parametrize("block_samples", [1, 511, 512, 513, 7000])
def test_blocks_of_any_size_give_the_same(detector: SpeechDetector, block_samples: int) -> None:
    samples = read_wav("u09.wav")[: 4000 if block_samples == 1 else None]
    whole = probabilities(detector, samples, len(samples))
    assert np.abs(probabilities(detector, samples, block_samples) - whole).max() < 1e-5


def test_streams_do_not_know_each_other(detector: SpeechDetector) -> None:
    """Two recordings taken in turns are what they are alone."""
    recordings = [read_wav(name)[: 32 * WINDOW_SAMPLES] for name in FILES[:2]]
    streams = [detector.stream() for _ in recordings]
    turns = [
        [
            stream.feed(samples[start : start + 4 * WINDOW_SAMPLES])
            for stream, samples in zip(streams, recordings, strict=True)
        ]
        for start in range(0, 32 * WINDOW_SAMPLES, 4 * WINDOW_SAMPLES)
    ]
    for samples, *parts in zip(recordings, *turns, strict=True):
        alone = probabilities(detector, samples, len(samples))
        assert np.abs(np.concatenate(parts) - alone).max() < 1e-5


@pytest.mark.parametrize(("num_samples", "num_windows"), [(0, 0), (1, 1), (511, 1), (512, 1), (513, 2)])
def test_a_part_of_a_window_at_the_end_is_one(
    detector: SpeechDetector, num_samples: int, num_windows: int
) -> None:
    assert len(probabilities(detector, np.zeros(num_samples, np.float32), 600)) == num_windows


def test_a_recording_longer_than_a_run(detector: SpeechDetector) -> None:
    """Half a minute in one block takes several runs, and is what blocks of a window give."""
    samples = np.tile(read_wav("u20.wav"), 5)[: 1000 * WINDOW_SAMPLES]
    by_windows = probabilities(detector, samples, WINDOW_SAMPLES)
    assert np.abs(probabilities(detector, samples, len(samples)) - by_windows).max() < 1e-5
