"""Log-mel features of one waveform in numpy: the readable front end, float64 inside.

In: a mono waveform `[n]` at the spec's rate. Out: `[frames, num_mels]` float32. It knows no
batches and no files. `nn/features.py` and `onnx/` compute the same for padded batches; tests
hold them equal. The arithmetic follows NeMo's AudioToMelSpectrogramPreprocessor (dither off) and
GigaAM's FeatureExtractor; a FeatureSpec holds all that differs between them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.types import FeatureSpec, FloatArray

__all__ = ["centred", "extend", "hann_window", "log_mel", "mel_filterbank", "mel_power", "reflected_index"]

Float64Array = npt.NDArray[np.float64]

LOG_OFFSET = 2.0**-24
LOG_RANGE = (1e-9, 1e9)
DEVIATION_OFFSET = 1e-5


def log_mel(
    waveform: FloatArray, spec: FeatureSpec, window: FloatArray, filterbank: FloatArray
) -> FloatArray:
    """Features `[T, num_mels]` of a waveform `[n]`, T = spec.num_frames(n)."""
    power = mel_power(waveform, spec, window, filterbank)
    if spec.log == "add":
        values = np.log(power + LOG_OFFSET)
    else:
        values = np.log(np.clip(power, *LOG_RANGE))
    if spec.normalize == "per_feature":
        values = _normalize(values)
    return values.astype(np.float32)


def mel_power(
    waveform: FloatArray, spec: FeatureSpec, window: FloatArray, filterbank: FloatArray
) -> Float64Array:
    """Mel power `[T, num_mels]`: pre-emphasis, windowed power spectrum, filterbank."""
    signal = waveform.astype(np.float64)
    if spec.preemphasis:
        signal[1:] -= spec.preemphasis * waveform[:-1].astype(np.float64)
    signal = extend(signal, spec)
    num_frames = spec.num_frames(len(waveform))
    if num_frames == 0:
        return np.empty((0, spec.num_mels))
    frames = np.lib.stride_tricks.sliding_window_view(signal, spec.fft_size)
    frames = frames[:: spec.hop_samples][:num_frames]
    spectrum = np.fft.rfft(frames * centred(window, spec.fft_size), axis=1)
    power: Float64Array = (spectrum.real**2 + spectrum.imag**2) @ filterbank.astype(np.float64)
    return power


def extend(signal: Float64Array, spec: FeatureSpec) -> Float64Array:
    """The signal with fft_size // 2 samples of padding at both ends, or as it is."""
    if spec.padding == "none" or len(signal) == 0:
        return signal
    half = spec.fft_size // 2
    if spec.padding == "constant":
        return np.pad(signal, half)
    return signal[reflected_index(np.arange(-half, len(signal) + half), len(signal))]


def reflected_index(index: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Indices folded into [0, size) by reflection at both ends, as often as it takes."""
    if size == 1:
        return np.zeros_like(index)
    period = 2 * (size - 1)
    folded = np.abs(index) % period
    reflected: npt.NDArray[np.int64] = np.minimum(folded, period - folded)
    return reflected


def centred(window: FloatArray, fft_size: int) -> Float64Array:
    """The window in the middle of `fft_size` samples, zeros around it."""
    left = (fft_size - len(window)) // 2
    return np.pad(window.astype(np.float64), (left, fft_size - len(window) - left))


def _normalize(values: Float64Array) -> Float64Array:
    """Zero mean, unit unbiased deviation of every mel; one frame alone has deviation 0."""
    if len(values) == 0:
        return values
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
    normalized: Float64Array = (values - values.mean(axis=0)) / (deviation + DEVIATION_OFFSET)
    return normalized


def hann_window(size: int, *, periodic: bool) -> FloatArray:
    """Hann window `[size]`; the symmetric one ends in zeros at both sides."""
    phase = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
    window: FloatArray = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)
    return window


def mel_filterbank(spec: FeatureSpec) -> FloatArray:
    """Triangular filters `[fft_size // 2 + 1, num_mels]` from 0 Hz to half the sample rate.

    slaney: linear below 1 kHz, each filter of unit area (librosa's default, as in NeMo); htk:
    logarithmic throughout, unit peaks (torchaudio's default, as in GigaAM).
    """
    to_mel, to_hertz = _MEL_SCALES[spec.mel_scale]
    nyquist = spec.sample_rate / 2
    edges = to_hertz(np.linspace(to_mel(np.float64(0)), to_mel(np.float64(nyquist)), spec.num_mels + 2))
    bins = np.linspace(0, nyquist, spec.fft_size // 2 + 1)
    rising = (bins[:, None] - edges[None, :-2]) / np.diff(edges)[:-1]
    falling = (edges[None, 2:] - bins[:, None]) / np.diff(edges)[1:]
    filters = np.maximum(0, np.minimum(rising, falling))
    if spec.mel_scale == "slaney":
        filters *= 2 / (edges[2:] - edges[:-2])
    filterbank: FloatArray = filters.astype(np.float32)
    return filterbank


def _htk_mel(hertz: Any) -> Any:
    return 2595 * np.log10(1 + hertz / 700)


def _htk_hertz(mel: Any) -> Any:
    return 700 * (10 ** (mel / 2595) - 1)


# Slaney's scale: 3 mels a 200 Hz up to 1 kHz (15 mels), then 27 mels for each factor of 6.4.
def _slaney_mel(hertz: Any) -> Any:
    return np.where(
        hertz < 1000, hertz * 3 / 200, 15 + 27 * np.log(np.maximum(hertz, 1e-9) / 1000) / np.log(6.4)
    )


def _slaney_hertz(mel: Any) -> Any:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


_MEL_SCALES = {"htk": (_htk_mel, _htk_hertz), "slaney": (_slaney_mel, _slaney_hertz)}
