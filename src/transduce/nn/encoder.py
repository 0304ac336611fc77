"""The Conformer / FastConformer encoder of an EncoderSpec, in torch.

In: features `[B, T, M]` with each row's length. Out: fp32 frames `[B, T', width]` and lengths,
zero past each row's end. A row never depends on its neighbours: padding is zeroed before every
convolution over time and masked in attention, and rows that are all padding stay finite. The
module names are the checkpoints' own, so a weight's name says where it is used. Batch norms are
folded into the depthwise convolutions by the checkpoint readers.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.nn.features import valid
from transduce.types import EncoderSpec

__all__ = [
    "Attention",
    "Convolution",
    "Encoder",
    "FeedForward",
    "Layer",
    "RelativeAttention",
    "RotaryAttention",
    "Subsampling",
    "relative_positions",
    "rotary_angles",
    "rotate",
    "shift",
]

MASKED = -10000.0
"""Added to the scores of padding: exp() of it is 0 in any precision, and it is finite in fp16."""


class Encoder(nn.Module):
    """Subsampling, then `num_layers` Conformer layers."""

    def __init__(self, spec: EncoderSpec, num_mels: int) -> None:
        super().__init__()
        self.spec = spec
        self.pre_encode = Subsampling(spec, num_mels)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        dtype = next(self.parameters()).dtype
        x, lengths = self.pre_encode(features.to(dtype), lengths)  # [B, T', D]
        if self.spec.xscaling:
            x = x * math.sqrt(self.spec.width)
        inside = valid(lengths, x.shape[1])  # [B, T']
        scores_mask = torch.where(inside, 0.0, MASKED).to(dtype)[:, None, None, :]  # [B, 1, 1, T']
        positions = self._positions(x)
        for layer in self.layers:
            x = layer(x, inside[..., None], scores_mask, positions)
        return x.float().masked_fill(~inside[..., None], 0.0), lengths

    def _positions(self, x: Tensor) -> Tensor:
        if self.spec.attention == "rel_pos":
            return relative_positions(x.shape[1], self.spec.width, x.device).to(x.dtype)
        head_width = self.spec.width // self.spec.num_heads
        return rotary_angles(x.shape[1], head_width, self.spec.rotary_base, x.device)


class Subsampling(nn.Module):
    """Stride-2 stages that shorten time by `subsampling_factor`; padding is zeroed before each."""

    def __init__(self, spec: EncoderSpec, num_mels: int) -> None:
        super().__init__()
        self.is_1d = spec.subsampling == "conv1d"
        num_stages = spec.subsampling_factor.bit_length() - 1
        channels, kernel = spec.subsampling_channels, spec.subsampling_kernel
        padding = (kernel - 1) // 2
        stages: list[nn.Module] = []
        for stage in range(num_stages):
            if self.is_1d:
                stages += [nn.Conv1d(channels if stage else num_mels, channels, kernel, 2, padding)]
            elif stage and spec.subsampling == "dw_striding":
                stages += [nn.Conv2d(channels, channels, kernel, 2, padding, groups=channels)]
                stages += [nn.Conv2d(channels, channels, 1)]
            else:
                stages += [nn.Conv2d(channels if stage else 1, channels, kernel, 2, padding)]
            stages += [nn.ReLU()]
        self.conv = nn.Sequential(*stages)
        for _ in range(num_stages):
            num_mels = (num_mels + 1) // 2
        self.out = nn.Identity() if self.is_1d else nn.Linear(channels * num_mels, spec.width)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, T, M]` to `[B, T', D]`."""
        x = features.transpose(1, 2) if self.is_1d else features[:, None]  # [B, M, T] or [B, 1, T, M]
        for stage in self.conv:
            if getattr(stage, "stride", (1,))[0] == 2:
                x = x * self._inside(x, lengths)
                lengths = (lengths + 1) // 2
            x = stage(x)
        x = x.transpose(1, 2)  # [B, T', D], or [B, T', C, M'] for the 2-d ones
        return self.out(x.flatten(2)), lengths

    def _inside(self, x: Tensor, lengths: Tensor) -> Tensor:
        inside = valid(lengths, x.shape[2]).to(x.dtype)[:, None]
        return inside if self.is_1d else inside[..., None]


class Layer(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward, norm."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(spec.width)
        self.feed_forward1 = FeedForward(spec)
        self.norm_self_att = nn.LayerNorm(spec.width)
        self.self_attn = RelativeAttention(spec) if spec.attention == "rel_pos" else RotaryAttention(spec)
        self.norm_conv = nn.LayerNorm(spec.width)
        self.conv = Convolution(spec)
        self.norm_feed_forward2 = nn.LayerNorm(spec.width)
        self.feed_forward2 = FeedForward(spec)
        self.norm_out = nn.LayerNorm(spec.width)

    def forward(self, x: Tensor, inside: Tensor, scores_mask: Tensor, positions: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward1(self.norm_feed_forward1(x))
        x = x + self.self_attn(self.norm_self_att(x), scores_mask, positions)
        x = x + self.conv(self.norm_conv(x), inside)
        x = x + 0.5 * self.feed_forward2(self.norm_feed_forward2(x))
        return self.norm_out(x)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Widen, SiLU, narrow."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.linear1 = nn.Linear(spec.width, spec.feed_forward_width, bias=spec.bias)
        self.linear2 = nn.Linear(spec.feed_forward_width, spec.width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.silu(self.linear1(x)))  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """Gated pointwise, depthwise over time, norm, SiLU, pointwise."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        width, kernel = spec.width, spec.conv_kernel
        self.pointwise_conv1 = nn.Linear(width, 2 * width, bias=spec.bias)
        # The folded batch norm leaves a bias here also where the checkpoint has none.
        bias = spec.bias or spec.conv_norm == "batch_norm"
        self.depthwise_conv = nn.Conv1d(
            width, width, kernel, padding=(kernel - 1) // 2, groups=width, bias=bias
        )
        self.layer_norm = nn.LayerNorm(width) if spec.conv_norm == "layer_norm" else nn.Identity()
        self.pointwise_conv2 = nn.Linear(width, width, bias=spec.bias)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        x = F.glu(self.pointwise_conv1(x), dim=-1).masked_fill(~inside, 0.0)
        x = self.depthwise_conv(x.transpose(1, 2)).transpose(1, 2)
        return self.pointwise_conv2(F.silu(self.layer_norm(x)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head projections; what is done with positions is the subclasses' affair."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.linear_q = nn.Linear(spec.width, spec.width, bias=spec.bias)
        self.linear_k = nn.Linear(spec.width, spec.width, bias=spec.bias)
        self.linear_v = nn.Linear(spec.width, spec.width, bias=spec.bias)
        self.linear_out = nn.Linear(spec.width, spec.width, bias=spec.bias)

    def split(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, H, T, D / H]`."""
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """The inverse of `split`, through the output projection."""
        return self.linear_out(x.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class RelativeAttention(Attention):
    """Transformer-XL attention with a pair of position biases for every layer."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec)
        self.linear_pos = nn.Linear(spec.width, spec.width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(spec.num_heads, spec.width // spec.num_heads))
        self.pos_bias_v = nn.Parameter(torch.empty(spec.num_heads, spec.width // spec.num_heads))

    def forward(self, x: Tensor, scores_mask: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.linear_q, self.linear_k, self.linear_v))
        p = self.split(self.linear_pos(positions)[None])  # [1, H, 2T - 1, D / H]
        by_distance = (q + self.pos_bias_v[:, None]) @ p.transpose(-2, -1)
        bias = shift(by_distance) / math.sqrt(q.shape[-1]) + scores_mask
        return self.merge(F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, bias))


class RotaryAttention(Attention):
    """GigaAM's: queries and keys are rotated before their projections, values are not."""

    def forward(self, x: Tensor, scores_mask: Tensor, positions: Tensor) -> Tensor:
        heads = x.reshape(*x.shape[:-1], self.num_heads, -1)
        rotated = rotate(heads, positions).flatten(2)
        q, k, v = self.linear_q(rotated), self.linear_k(rotated), self.linear_v(x)
        return self.merge(
            F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v), scores_mask)
        )


def relative_positions(num_frames: int, width: int, device: torch.device) -> Tensor:
    """Sinusoids `[2T - 1, D]` for distances T - 1 down to -(T - 1); sine at even indices."""
    distance = torch.arange(num_frames - 1, -num_frames, -1, dtype=torch.float32, device=device)
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10000.0) / width))
    angles = distance[:, None] * rate
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def shift(by_distance: Tensor) -> Tensor:
    """`[B, H, T, 2T - 1]` scores by distance to `[B, H, T, T]` scores by key."""
    batch, heads, num_frames, num_distances = by_distance.shape
    padded = F.pad(by_distance, (1, 0)).view(batch, heads, num_distances + 1, num_frames)
    return padded[:, :, 1:].view(batch, heads, num_frames, num_distances)[..., :num_frames]


def rotary_angles(num_frames: int, head_width: int, base: float, device: torch.device) -> Tensor:
    """Angles `[T, D / H]`, the same for both halves."""
    rate = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width)
    angles = torch.arange(num_frames, dtype=torch.float32, device=device)[:, None] * rate
    return torch.cat([angles, angles], dim=-1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the halves of `[B, T, H, D / H]` against each other, in fp32."""
    angles = angles[:, None]  # [T, 1, D / H]
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * angles.cos() + turned * angles.sin()).to(x.dtype)
