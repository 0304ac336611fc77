"""Log-mel features of a padded batch in torch: the fast twin of `transduce.features`.

In: waveforms `[B, N]` with each row's true length. Out: `[B, T, num_mels]` fp32, zero past each
row's own frames. What lies in the padding of the input never matters. Runs in fp32 on any device.
"""

import torch
from torch import Tensor, nn

from transduce.features import DEVIATION_OFFSET, LOG_OFFSET, LOG_RANGE
from transduce.types import FeatureSpec

__all__ = ["LogMel", "valid"]


def valid(lengths: Tensor, size: int) -> Tensor:
    """Mask `[B, size]`, true inside each row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


class LogMel(nn.Module):
    """The front end of a FeatureSpec; window `[W]` and filterbank `[F, M]` are its buffers."""

    window: Tensor
    filterbank: Tensor

    def __init__(self, spec: FeatureSpec) -> None:
        super().__init__()
        self.spec = spec
        num_bins = spec.fft_size // 2 + 1
        self.register_buffer("window", torch.empty(spec.window_samples))
        self.register_buffer("filterbank", torch.empty(num_bins, spec.num_mels))

    def forward(self, waveforms: Tensor, sample_lengths: Tensor, frame_lengths: Tensor) -> Tensor:
        """Features `[B, T, M]` of `[B, N]` fp32 samples, T = spec.num_frames(N)."""
        num_frames = self.spec.num_frames(waveforms.shape[1])
        mask = valid(frame_lengths, num_frames)[..., None]  # [B, T, 1]
        power = self.mel_power(waveforms, sample_lengths)
        if self.spec.log == "add":
            values = torch.log(power + LOG_OFFSET)
        else:
            values = torch.log(power.clamp(*LOG_RANGE))
        if self.spec.normalize == "per_feature":
            values = _normalize(values, mask, frame_lengths)
        return values.masked_fill(~mask, 0.0)

    def mel_power(self, waveforms: Tensor, sample_lengths: Tensor) -> Tensor:
        """Mel power `[B, T, M]`; frames past a row's own hold no meaning."""
        spec = self.spec
        inside = valid(sample_lengths, waveforms.shape[1])
        signal = waveforms.masked_fill(~inside, 0.0)
        if spec.preemphasis:
            emphasized = signal[:, 1:] - spec.preemphasis * signal[:, :-1]
            signal = torch.cat([signal[:, :1], emphasized], dim=1).masked_fill(~inside, 0.0)
        signal = self._extend(signal, sample_lengths)
        num_frames = spec.num_frames(waveforms.shape[1])
        if num_frames == 0:
            return signal.new_zeros(len(signal), 0, spec.num_mels)
        # The zeros around a centred window only shift the phase, which the power does not see.
        signal = signal[:, (spec.fft_size - spec.window_samples) // 2 :]
        frames = signal.unfold(1, spec.window_samples, spec.hop_samples)[:, :num_frames]
        spectrum = torch.fft.rfft(frames * self.window, n=spec.fft_size)
        power = spectrum.real.square() + spectrum.imag.square()
        mels: Tensor = power @ self.filterbank
        return mels

    def _extend(self, signal: Tensor, lengths: Tensor) -> Tensor:
        """Padding of fft_size // 2 at both ends; a reflection is at each row's own end."""
        half = self.spec.fft_size // 2
        if self.spec.padding == "none":
            return signal
        if self.spec.padding == "constant":
            return nn.functional.pad(signal, (half, half))
        index = torch.arange(-half, signal.shape[1] + half, device=signal.device)
        period = (2 * (lengths[:, None] - 1)).clamp(min=1)
        folded = index.abs() % period
        return signal.gather(1, torch.minimum(folded, period - folded).clamp(max=signal.shape[1] - 1))


def _normalize(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Zero mean and unit unbiased deviation over each row's valid frames."""
    count = lengths.clamp(min=1)[:, None, None]
    values = values.masked_fill(~mask, 0.0)
    centred = (values - values.sum(dim=1, keepdim=True) / count).masked_fill(~mask, 0.0)
    variance = centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + DEVIATION_OFFSET)
