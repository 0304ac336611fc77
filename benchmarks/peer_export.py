"""GigaAM v3's RNN-T model in ONNX, by upstream's exporter; `peers.py` runs this in gigaam's environment.

    python -I peer_export.py CONFIG WEIGHTS FOLDER BATCH

CONFIG is JSON: upstream's `cfg`, whose encoder also has `subs_kernel_size`. WEIGHTS is an npz with the names
of upstream's state dict. FOLDER gets `v3_rnnt_encoder.onnx`, `_decoder` and `_joint`. BATCH is how many
utterances are traced: today upstream traces 8, which puts masks into attention; when v3 came out, 1, without.

gigaam 0.1.0, the newest in PyPI, has all of v3 but two modules: subsampling by convolutions over time, and a
layer norm for the batch norm. They are here; attention, feed-forward, head and exporter are its own.
It uses nothing of this project.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gigaam.model import GigaAMASR
from omegaconf import OmegaConf
from torch import Tensor, nn


class Subsampling(nn.Module):
    """Two convolutions over time `[B, T, M] -> [B, ceil(T / 4), D]`; what is padding is 0 before each."""

    def __init__(self, num_mels: int, width: int, kernel: int) -> None:
        super().__init__()
        sizes = {"kernel_size": kernel, "stride": 2, "padding": kernel // 2}
        first, second = nn.Conv1d(num_mels, width, **sizes), nn.Conv1d(width, width, **sizes)
        self.conv = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = without_padding(x.transpose(1, 2), lengths)
        for layer in self.conv:
            x = layer(x)
            if isinstance(layer, nn.Conv1d):
                lengths = torch.floor((lengths.float() - 1) / 2 + 1).int()
                x = without_padding(x, lengths)
        return x.transpose(1, 2), lengths


def without_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """`[B, C, T]` with zeros from each row's length on."""
    is_padding = torch.arange(x.size(2)) >= lengths.unsqueeze(1)
    return x.masked_fill(is_padding.unsqueeze(1), 0.0)


class ChannelNorm(nn.LayerNorm):
    """A layer norm of `[B, C, T]`, where upstream's v2 has its batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def build(config: dict[str, Any], weights: dict[str, Tensor]) -> Any:
    kernel = config["encoder"].pop("subs_kernel_size")
    model = GigaAMASR(OmegaConf.create(config)).eval()
    sizes = config["encoder"]
    model.encoder.pre_encode = Subsampling(sizes["feat_in"], sizes["d_model"], kernel)
    for layer in model.encoder.layers:
        layer.conv.batch_norm = ChannelNorm(sizes["d_model"])
    for name in ("encoder", "head"):
        own = {k.removeprefix(f"{name}."): v for k, v in weights.items() if k.startswith(f"{name}.")}
        getattr(model, name).load_state_dict(own)
    return model


def main() -> None:
    config, weights, folder = map(Path, sys.argv[1:4])
    arrays = {name: torch.from_numpy(array) for name, array in np.load(weights).items()}
    model = build(json.loads(config.read_text()), arrays)
    model.encoder.input_example = partial(model.encoder.input_example, batch_size=int(sys.argv[4]))
    with torch.inference_mode():
        model.to_onnx(str(folder))


if __name__ == "__main__":
    main()
