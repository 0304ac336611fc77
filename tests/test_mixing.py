"""Channels to one, stretch by stretch: what cancels in one part of a recording is heard, as is the rest."""

from collections.abc import Iterator

import numpy as np
import pytest

from transduce.mixing import STRETCH_SECONDS, Mixer
from transduce.types import FloatArray

RATE = 1000


def sound(num_seconds: float, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 0.1, round(num_seconds * RATE)).astype(np.float32)


def blocks_of(samples: FloatArray, size: int) -> Iterator[FloatArray]:
    return (samples[start : start + size] for start in range(0, len(samples), size))


def mix(samples: FloatArray, size: int = 777) -> tuple[FloatArray, tuple[str, ...]]:
    mixer = Mixer(RATE)
    blocks = list(mixer.mixed(blocks_of(samples, size)))
    return np.concatenate([np.empty((0, 1), np.float32), *blocks])[:, 0], mixer.warnings()


def test_channels_that_cancel_in_the_middle_are_heard_there() -> None:
    voice = sound(60)
    other = voice.copy()
    other[20 * RATE : 40 * RATE] *= -1
    mixed, warnings = mix(np.stack([voice, other], axis=1))
    np.testing.assert_allclose(mixed, voice, atol=1e-7)
    assert warnings == (
        "channels 0, 1 cancel each other in a mix: for 20 s of 60 s only the loudest channel was used",
    )


def test_a_channel_that_joins_later_is_averaged_from_there_on() -> None:
    first, second = sound(40), sound(40, seed=1)
    second[: 20 * RATE] = 0
    mixed, warnings = mix(np.stack([first, second], axis=1))
    np.testing.assert_allclose(mixed[: 20 * RATE], first[: 20 * RATE], atol=1e-7)
    np.testing.assert_allclose(mixed[20 * RATE :], ((first + second) / 2)[20 * RATE :], atol=1e-7)
    assert warnings == ()


@pytest.mark.parametrize("size", [1, 333, STRETCH_SECONDS * RATE, 1 << 20])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    voice = sound(3 * STRETCH_SECONDS + 1)
    samples = np.stack([voice, np.where(np.arange(len(voice)) < 6000, -voice, voice)], axis=1)
    np.testing.assert_array_equal(mix(samples, size)[0], mix(samples)[0])
    assert mix(samples, size)[1] == mix(samples)[1]


def test_a_recording_up_to_twice_a_stretch_is_decided_as_a_whole() -> None:
    voice = sound(2 * STRETCH_SECONDS - 0.001)
    other = voice.copy()
    other[:100] *= -1
    mixed, warnings = mix(np.stack([voice, other], axis=1))
    np.testing.assert_allclose(mixed, (voice + other) / 2, atol=1e-7)
    assert warnings == ()


def test_what_waits_is_at_most_two_stretches() -> None:
    taken = 0

    def counted() -> Iterator[FloatArray]:
        nonlocal taken
        for block in blocks_of(np.stack([sound(100)] * 2, axis=1), 500):
            taken += len(block)
            yield block

    given = 0
    for block in Mixer(RATE).mixed(counted()):
        assert taken - given <= 2 * STRETCH_SECONDS * RATE
        given += len(block)
    assert given == taken


def test_nothing_gives_nothing() -> None:
    assert mix(np.empty((0, 2), np.float32))[1] == ()
