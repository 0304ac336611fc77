"""The prediction network and joint of RNN-T and TDT as torch tensors, ready for batched steps.

In: `TransducerWeights` and a `HeadSpec`. Out: `TransducerHead`, which projects encoder frames, scores
windows of them and moves the predictor by one label. It knows no lanes, no rule and no text.

Everything is computed in `dtype` (fp32; tests also use fp64), whatever the encoder's precision: logits
decide, and half precision makes them tie. The LSTM cell is written out, because cuDNN's cannot be
captured in a CUDA graph on every driver. Its first input product is a table, one row a label.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from transduce.nn.matrix import Matrix
from transduce.types import FloatArray, HeadSpec, TransducerWeights

__all__ = ["LstmCell", "State", "TransducerHead"]

State = tuple[Tensor, ...]
"""Predictor projection `[N, J]`, then h and c `[N, H]` of every LSTM layer."""


@dataclass(frozen=True, eq=False)
class LstmCell:
    """One LSTM layer for one step, gates in the order i, f, o, g (sigmoids side by side)."""

    hidden: Matrix  # [H, 4 * H]
    inputs: Matrix | None  # [D, 4 * H]; None: the input gates come from the table
    bias: Tensor  # [4 * H]

    def __call__(self, values: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """New h and c `[N, H]`; `values` are inputs `[N, D]`, or the input gates `[N, 4 * H]` themselves."""
        if self.inputs is not None:
            values = self.inputs.addmm(self.bias, values)
        gates = self.hidden.addmm(values, h)
        i, f, o, g = gates.chunk(4, dim=1)
        gates[:, : -h.shape[1]].sigmoid_()  # i, f and o in one go
        c = torch.addcmul(i * g.tanh_(), f, c)
        return o * c.tanh(), c


@dataclass(frozen=True, eq=False)
class TransducerHead:
    """A head whose methods take any number of rows and never look at the values."""

    spec: HeadSpec
    table: Tensor  # [num_classes, 4 * H], input gates of the first layer for every label
    cells: tuple[LstmCell, ...]
    enc: Matrix  # [D, J]
    enc_bias: Tensor  # [J]
    pred: Matrix  # [H, J]
    pred_bias: Tensor  # [J]
    out: Matrix  # [J, C], C = num_classes (+ num_durations)
    out_bias: Tensor  # [C]
    relu: bool

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

        def matrix(array: FloatArray) -> Matrix:
            return Matrix.of(tensor(array))

        first, *others = ((tensor(i), tensor(h), tensor(b)) for i, h, b in _layers(weights))
        return cls(
            spec=spec,
            table=torch.addmm(_reordered(first[2]), tensor(weights.embedding), _reordered(first[0]).t()),
            cells=(_cell(None, *first[1:]), *(_cell(*layer) for layer in others)),
            enc=matrix(weights.enc_weight),
            enc_bias=tensor(weights.enc_bias),
            pred=matrix(weights.pred_weight),
            pred_bias=tensor(weights.pred_bias),
            out=matrix(weights.out_weight),
            out_bias=tensor(weights.out_bias),
            relu=weights.activation == "relu",
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

    @cached_property
    def start(self) -> State:
        """The state before any label, one row. A zero embedding leaves the bias as input gates."""
        nothing = [self.table.new_zeros(1, cell.hidden.num_inputs) for cell in self.cells for _ in "hc"]
        return self._step(self.cells[0].bias.unsqueeze(0), (self.pred_bias, *nothing))

    def project(self, encoded: Tensor, out: Tensor) -> None:
        """Write the joint's share of encoder frames `[N, D]` of any float type to `out` `[N, J]`."""
        out.copy_(self.enc.addmm(self.enc_bias, encoded.to(self.dtype)))

    def joint(self, windows: Tensor, predicted: Tensor) -> Tensor:
        """Logits `[N * W, C]` of projected frames `[N, W, J]`, which are overwritten."""
        windows += predicted.unsqueeze(1)
        hidden = windows.relu_() if self.relu else windows.tanh_()
        return self.out.addmm(self.out_bias, hidden.view(-1, self.joint_size))

    def predict(self, labels: Tensor, state: State) -> State:
        """The state `[N, ...]` after one more label `[N]` each; `state` is left as it is."""
        return self._step(self.table.index_select(0, labels), state)

    def _step(self, values: Tensor, state: State) -> State:
        """One step of every layer on the first one's input gates `[N, 4 * H]`."""
        new: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            values, c = cell(values, state[2 * number + 1], state[2 * number + 2])
            new += [values, c]
        return (self.pred.addmm(self.pred_bias, values), *new)


def _layers(weights: TransducerWeights) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    return [(layer.weight_ih, layer.weight_hh, layer.bias) for layer in weights.lstm]


def _cell(weight_ih: Tensor | None, weight_hh: Tensor, bias: Tensor) -> LstmCell:
    """A cell from upstream's layout."""
    inputs = None if weight_ih is None else Matrix.of(_reordered(weight_ih))
    return LstmCell(hidden=Matrix.of(_reordered(weight_hh)), inputs=inputs, bias=_reordered(bias))


def _reordered(values: Tensor) -> Tensor:
    """Gates `[4 * H, ...]` in the order i, f, g, o to the order i, f, o, g."""
    i, f, g, o = values.chunk(4)
    return torch.cat((i, f, o, g))
