"""int8 for a checkpoint while it is loaded, by speech that ships with the package.

In: a model's weights. Out: the model in OpenVINO with an int8 encoder, and how far its frames are from
fp32's on speech that its ranges were not taken from. What a recording may be like is made of a little
clean speech: quiet, far too loud, in noise, and noise and silence alone. Ranges of clean speech alone left
errors of up to 0.16 on audio unlike it, these 0.03 on speech of any kind and 0.06 on tones. Wider ranges
than were seen gained nothing (docs/log.md).
"""

from dataclasses import dataclass
from importlib.resources import as_file, files

import numpy as np

from transduce import audio
from transduce.onnx import graph
from transduce.onnx.calibration import int8_by, relative_error, watched
from transduce.onnx.staged import StagedSession
from transduce.types import FloatArray, ModelSpec, Weights

__all__ = ["Speech", "encoded", "open_int8", "speech"]

FILE = "speech.flac"
"""36 s, made by `scripts/make_calibration_speech`."""

SHOWN_SECONDS = 27.5
"""What comes first in the file; the rest is held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """Clips `[n]`, the same in every call."""

    shown: list[FloatArray]
    """Ranges are taken from these."""
    held_out: list[FloatArray]
    """And these judge."""


def speech(sample_rate: int) -> Speech:
    """The bundled speech in all its kinds, at a rate."""
    with as_file(files("transduce") / "models" / "calibration" / FILE) as path:
        samples = audio.load(path, rate=sample_rate).samples

    def part(first: float, end: float) -> FloatArray:
        return samples[round(first * sample_rate) : round(end * sample_rate)]

    rng = np.random.default_rng(0)
    white, pink = _white(rng, 36 * sample_rate), _pink(rng, 36 * sample_rate)
    shown = [
        part(0, 8),
        _louder(part(8, 13), -30),
        np.clip(_louder(part(13, 18), 18), -1, 1),
        _noisy(part(18, 23), white, 10),
        _noisy(part(23, SHOWN_SECONDS), pink, 0),
        np.zeros(sample_rate, np.float32),
        _louder(white[-2 * sample_rate :], -10),
    ]
    held_out = [part(SHOWN_SECONDS, 32), _noisy(part(32, 36), pink[::-1], 5)]
    return Speech(shown, held_out)


def open_int8(
    spec: ModelSpec, weights: Weights, window: int, *, device: str, threads: int | None
) -> tuple[StagedSession, float]:
    """The model with its encoder in int8, and the relative error of its frames: of the worst clip held out.

    Raises what `StagedSession.of_graph` raises.
    """
    heard = speech(spec.features.sample_rate)
    *shown, first, second = watched(spec, weights, [*heard.shown, *heard.held_out], threads)
    built = graph.build(spec, weights, int8_by(shown), window)
    session = StagedSession.of_graph(
        built, spec.name, num_mels=spec.features.num_mels, precision="int8", device=device, threads=threads
    )
    judged = zip(heard.held_out, (first, second), strict=True)
    errors = [relative_error([encoded(session, clip)], [seen.frames]) for clip, seen in judged]
    return session, float(np.max(errors))  # NaN where one is


def encoded(session: StagedSession, clip: FloatArray) -> FloatArray:
    """A model's encoder frames `[T, D]` of one clip."""
    frames: FloatArray = session.encode(clip[None], np.array([len(clip)], np.int64))[0][0]
    return frames


# Kinds of audio


def _louder(samples: FloatArray, decibels: float) -> FloatArray:
    scaled: FloatArray = samples * np.float32(10 ** (decibels / 20))
    return scaled


def _noisy(samples: FloatArray, noise: FloatArray, snr_db: float) -> FloatArray:
    """Speech in noise of deviation 1, the speech `snr_db` above it."""
    return samples + _louder(noise[: len(samples)] * samples.std(), -snr_db)


def _white(rng: np.random.Generator, size: int) -> FloatArray:
    return rng.standard_normal(size, np.float32)


def _pink(rng: np.random.Generator, size: int) -> FloatArray:
    """Noise that is as strong in each octave, as rooms and streets have it."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1))
    noise = np.fft.irfft(spectrum, size)
    scaled: FloatArray = (noise / noise.std()).astype(np.float32)
    return scaled
