"""The prediction network and joint of RNN-T and TDT as torch tensors, ready for batched steps.

In: `TransducerWeights` and a `HeadSpec`. Out: `TransducerHead`, which projects encoder frames, scores
windows of them and moves the predictor by one label. It knows no lanes, no rule and no text.

Everything is computed in `dtype` (fp32; tests also use fp64), whatever the encoder's precision: logits
decide, and half precision makes them tie. The LSTM cell is written out, because cuDNN's cannot be
captured in a CUDA graph on every driver. Its first input product is a table, one row a label.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from transduce.types import FloatArray, HeadSpec, TransducerWeights

__all__ = ["LstmCell", "State", "TransducerHead"]

State = tuple[Tensor, ...]
"""Predictor projection `[N, J]`, then h and c `[N, H]` of every LSTM layer."""


@dataclass(frozen=True, eq=False)
class LstmCell:
    """One LSTM layer for one step, gates in the order i, f, o, g (sigmoids side by side)."""

    weight_hh: Tensor  # [H, 4 * H]
    weight_ih: Tensor | None  # [D, 4 * H]; None: the input gates come from the table
    bias: Tensor  # [4 * H]

    def __call__(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """New h and c `[N, H]`; `inputs` are input gates `[N, 4 * H]` or values `[N, D]`."""
        if self.weight_ih is not None:
            inputs = torch.addmm(self.bias, inputs, self.weight_ih)
        gates = torch.addmm(inputs, h, self.weight_hh)
        size = h.shape[1]
        i, f, o = gates[:, : 3 * size].sigmoid_().chunk(3, dim=1)
        c = torch.addcmul(i * gates[:, 3 * size :].tanh_(), f, c)
        return o * c.tanh(), c


@dataclass(frozen=True, eq=False)
class TransducerHead:
    """A head whose methods take any number of rows and never look at the values."""

    spec: HeadSpec
    table: Tensor  # [num_classes, 4 * H], input gates of the first layer for every label
    cells: tuple[LstmCell, ...]
    enc_weight: Tensor  # [D, J]
    enc_bias: Tensor  # [J]
    pred_weight: Tensor  # [H, J]
    pred_bias: Tensor  # [J]
    out_weight: Tensor  # [J, C], C = num_classes (+ num_durations)
    out_bias: Tensor  # [C]
    relu: bool
    start: State
    """The state before any label, one row: the predictor run on a zero embedding and zero state."""

    @classmethod
    def from_weights(
        cls,
        weights: TransducerWeights,
        spec: HeadSpec,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "TransducerHead":
        """Copy the weights to `device` in the layout that the steps read."""

        def tensor(array: FloatArray) -> Tensor:
            return torch.tensor(array, device=device, dtype=dtype)

        def transposed(array: FloatArray) -> Tensor:
            return tensor(array).t().contiguous()

        first, *others = (_cell(tensor(i), tensor(h), tensor(b)) for i, h, b in _layers(weights))
        assert first.weight_ih is not None
        table = torch.addmm(first.bias, tensor(weights.embedding), first.weight_ih)
        cells = (LstmCell(first.weight_hh, None, first.bias), *others)
        pred_weight, pred_bias = transposed(weights.pred_weight), tensor(weights.pred_bias)
        return cls(
            spec=spec,
            table=table,
            cells=cells,
            enc_weight=transposed(weights.enc_weight),
            enc_bias=tensor(weights.enc_bias),
            pred_weight=pred_weight,
            pred_bias=pred_bias,
            out_weight=transposed(weights.out_weight),
            out_bias=tensor(weights.out_bias),
            relu=weights.activation == "relu",
            start=_start(cells, pred_weight, pred_bias),
        )

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    @property
    def joint_size(self) -> int:
        return self.enc_bias.shape[0]

    def project(self, encoded: Tensor, out: Tensor) -> None:
        """Write the joint's share of encoder frames `[N, D]` of any float type to `out` `[N, J]`."""
        torch.addmm(self.enc_bias, encoded.to(self.dtype), self.enc_weight, out=out)

    def joint(self, windows: Tensor, predicted: Tensor) -> Tensor:
        """Logits `[N * W, C]` of projected frames `[N, W, J]`, which are overwritten."""
        windows += predicted.unsqueeze(1)
        hidden = windows.relu_() if self.relu else windows.tanh_()
        return torch.addmm(self.out_bias, hidden.view(-1, self.joint_size), self.out_weight)

    def predict(self, labels: Tensor, state: State) -> State:
        """The state `[N, ...]` after one more label `[N]` each; `state` is left as it is."""
        return _step(self.cells, self.table.index_select(0, labels), state, self.pred_weight, self.pred_bias)


def _layers(weights: TransducerWeights) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    return [(layer.weight_ih, layer.weight_hh, layer.bias) for layer in weights.lstm]


def _cell(weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> LstmCell:
    """A cell from upstream's layout: gates reordered from i, f, g, o, matrices transposed."""

    def reordered(values: Tensor) -> Tensor:
        i, f, g, o = values.chunk(4)
        return torch.cat((i, f, o, g))

    return LstmCell(
        weight_hh=reordered(weight_hh).t().contiguous(),
        weight_ih=reordered(weight_ih).t().contiguous(),
        bias=reordered(bias),
    )


def _start(cells: tuple[LstmCell, ...], pred_weight: Tensor, pred_bias: Tensor) -> State:
    """The state of one row before any label. A zero embedding leaves the bias as input gates."""
    nothing = [pred_bias.new_zeros(1, cell.weight_hh.shape[0]) for cell in cells for _ in "hc"]
    return _step(cells, cells[0].bias.unsqueeze(0), (pred_bias, *nothing), pred_weight, pred_bias)


def _step(
    cells: tuple[LstmCell, ...], inputs: Tensor, state: State, pred_weight: Tensor, pred_bias: Tensor
) -> State:
    """One step of every layer on the first one's input gates `[N, 4 * H]`."""
    new: list[Tensor] = []
    for cell, (h, c) in zip(cells, list(pairwise(state[1:]))[::2], strict=True):
        inputs, c = cell(inputs, h, c)
        new += [inputs, c]
    return (torch.addmm(pred_bias, inputs, pred_weight), *new)
