"""The front ends: against a plain float64 recomputation, upstream's own values, and each other."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from models import GIGAAM, NEMO, checkpoint, expected, model_params
from support import read_wav

from transduce import features
from transduce.nn.features import LogMel
from transduce.types import FeatureSpec

CASES = model_params(*NEMO, *GIGAAM)
CLIPS = ("u03.wav", "u02.wav", "u20.wav")  # 1 to 7 seconds; u02 starts in the middle of sound
Float64Array = npt.NDArray[np.float64]

SPECS = {
    "centred": {"padding": "reflect", "num_frames_rule": "floor_plus_one", "log": "clamp"},
    "whole windows": {"padding": "none", "num_frames_rule": "whole_windows", "log": "clamp"},
    "nemo": {"padding": "constant", "num_frames_rule": "floor", "log": "add"},
}


def small_spec(kind: str) -> FeatureSpec:
    rest = {"preemphasis": 0.97 if kind == "nemo" else 0.0, "normalize": "none", "mel_scale": "slaney"}
    sizes = {"sample_rate": 16000, "num_mels": 16, "window_samples": 400, "hop_samples": 160, "fft_size": 512}
    sizes |= {} if kind == "nemo" else {"window_samples": 320, "fft_size": 320}
    return FeatureSpec(**sizes, **rest, **SPECS[kind], periodic_window=False)  # type: ignore[arg-type]


def recomputed(samples: npt.NDArray[np.float32], name: str) -> Float64Array:
    """Features by the definitions, one frame and one sum at a time, in float64."""
    spec, weights = checkpoint(name).spec.features, checkpoint(name).weights
    x = samples.astype(np.float64)
    x = np.array([x[0], *(x[i] - spec.preemphasis * x[i - 1] for i in range(1, len(x)))])
    half = spec.fft_size // 2
    window = np.zeros(spec.fft_size)
    left = (spec.fft_size - spec.window_samples) // 2
    window[left : left + spec.window_samples] = weights["features.window"]
    k, n = np.arange(half + 1)[:, None], np.arange(spec.fft_size)[None, :]
    transform = np.exp(-2j * np.pi * k * n / spec.fft_size)
    if spec.padding != "none":
        front, back = x[half:0:-1], x[-2 : -half - 2 : -1]  # mirrored without repeating the edge
        zeros = np.zeros(half)
        pad = (zeros, zeros) if spec.padding == "constant" else (front, back)
        x = np.concatenate([pad[0], x, pad[1]])
    rows = []
    for frame in range(spec.num_frames(len(samples))):
        piece = x[frame * spec.hop_samples : frame * spec.hop_samples + spec.fft_size] * window
        rows.append((np.abs(transform @ piece) ** 2) @ weights["features.filterbank"].astype(np.float64))
    power = np.array(rows)
    values = np.log(power + 2.0**-24) if spec.log == "add" else np.log(np.clip(power, 1e-9, 1e9))
    if spec.normalize == "per_feature":
        centred = values - values.sum(axis=0) / len(values)
        values = centred / (np.sqrt((centred**2).sum(axis=0) / (len(values) - 1)) + 1e-5)
    return values


def ours(samples: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    spec, weights = checkpoint(name).spec.features, checkpoint(name).weights
    return features.log_mel(samples, spec, weights["features.window"], weights["features.filterbank"])


def torch_front_end(name: str) -> LogMel:
    module = LogMel(checkpoint(name).spec.features)
    weights = checkpoint(name).weights
    module.load_state_dict(
        {key: torch.from_numpy(weights[f"features.{key}"]) for key in ("window", "filterbank")}
    )
    return module


@pytest.mark.parametrize("name", CASES)
def test_numpy_equals_the_definitions(name: str) -> None:
    for clip in CLIPS:
        samples = read_wav(clip)
        np.testing.assert_allclose(ours(samples, name), recomputed(samples, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_numpy_equals_upstreams_values(name: str) -> None:
    """Upstream notes (to five digits, in fp32) six values of frame 3, the mean and the frame count."""
    for answer in (a for a in expected(name) if a["file"] in CLIPS):
        found = ours(read_wav(answer["file"]), name)
        assert len(found) == answer["feature_frames"]
        assert found[3, :6].tolist() == pytest.approx(answer["feature_first"], abs=2e-4)
        assert float(found.mean()) == pytest.approx(answer["feature_mean"], abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_torch_equals_numpy(name: str) -> None:
    """Mel power within 1e-6 of the frame's peak, its logarithm within 1e-3 where power exceeds 1e-6."""
    spec, weights = checkpoint(name).spec.features, checkpoint(name).weights
    clips = [read_wav(clip) for clip in CLIPS]
    lengths = torch.tensor([len(clip) for clip in clips])
    padded = torch.full((len(clips), int(lengths.max())), 0.5)  # padding is not read
    for row, clip in zip(padded, clips, strict=True):
        row[: len(clip)] = torch.from_numpy(clip)
    powers = torch_front_end(name).mel_power(padded, lengths).numpy()
    for found, clip in zip(powers, clips, strict=True):
        exact = features.mel_power(clip, spec, weights["features.window"], weights["features.filterbank"])
        found = found[: len(exact)]
        assert np.all(np.abs(found - exact) <= 1e-6 * exact.max(axis=1, keepdims=True) + 1e-12)
        loud = exact > 1e-6
        np.testing.assert_allclose(np.log(found[loud]), np.log(exact[loud]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", SPECS)
def test_short_signals(kind: str) -> None:
    """Every length from one sample up: the frame count of the rule, finite, torch as numpy."""
    spec = small_spec(kind)
    window = features.hann_window(spec.window_samples, periodic=False)
    filterbank = features.mel_filterbank(spec)
    module = LogMel(spec)
    module.load_state_dict({"window": torch.from_numpy(window), "filterbank": torch.from_numpy(filterbank)})
    rng = np.random.default_rng(0)
    for size in (1, 2, 79, 159, 160, 161, 319, 320, 321, 399, 400, 401, 799, 1600):
        samples = rng.standard_normal(size).astype(np.float32)
        found = features.log_mel(samples, spec, window, filterbank)
        assert found.shape == (spec.num_frames(size), spec.num_mels)
        assert np.isfinite(found).all()
        frames = torch.tensor([len(found)])
        batched = module(torch.from_numpy(samples)[None], torch.tensor([size]), frames)[0]
        np.testing.assert_allclose(batched.numpy(), found, rtol=0, atol=1e-3)


def test_one_frame_normalises_to_zero() -> None:
    """The deviation of a single frame is 0, not NaN (NeMo on CUDA raises here)."""
    spec = checkpoint("nemo-hybrid").spec.features
    found = ours(np.random.default_rng(0).standard_normal(160).astype(np.float32), "nemo-hybrid")
    assert found.shape == (1, spec.num_mels)
    assert not found.any()


@pytest.mark.parametrize("name", CASES)
def test_computed_window_and_filterbank_are_the_checkpoints(name: str) -> None:
    """Where a checkpoint has no buffers they are computed; these have them, so both can be compared."""
    spec, weights = checkpoint(name).spec.features, checkpoint(name).weights
    window = features.hann_window(spec.window_samples, periodic=spec.periodic_window)
    np.testing.assert_allclose(window, weights["features.window"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        features.mel_filterbank(spec), weights["features.filterbank"], rtol=0, atol=1e-5
    )


def test_the_input_is_not_written_to() -> None:
    samples = read_wav("u03.wav")
    before = samples.copy()
    samples.flags.writeable = False
    ours(samples, "nemo-hybrid")
    np.testing.assert_array_equal(samples, before)
