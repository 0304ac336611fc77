"""A weight that is multiplied with a few rows at a time: as it is on a GPU, packed on a CPU.

In: rows `[M, K]` and what to add. Out: `base + rows @ weight`. MKL packs a weight anew in every product,
which costs more than the product for the handful of rows that a decoder has; oneDNN takes it packed
(docs/performance.md has the figures). One row alone is a matrix-vector product and needs no packing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Matrix", "padded_rows"]

PACKED_PRODUCTS = 500_000
"""Multiplications from which a packed weight wins in spite of its fixed cost of some 10 us."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A weight `[K, N]`; made by `of`."""

    weight: Tensor
    packed: Tensor | None  # the same in oneDNN's layout

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        """From a weight `[N, K]`, as upstream stores them, on any device and of any float type."""
        return cls(weight.t().contiguous(), _packed(weight))

    @property
    def num_inputs(self) -> int:
        return self.weight.shape[0]

    def addmm(self, base: Tensor, rows: Tensor) -> Tensor:
        """`base` `[N]` or `[M, N]` plus `rows` `[M, K]` times the weight: a new tensor `[M, N]`."""
        num_rows = rows.shape[0]
        if self.packed is None or num_rows == 1 or num_rows * self.weight.numel() < PACKED_PRODUCTS:
            return torch.addmm(base, rows, self.weight)
        bias = base if base.dim() == 1 else None
        padding = padded_rows(num_rows) - num_rows
        rows = torch.nn.functional.pad(rows, (0, 0, 0, padding)) if padding else rows
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, bias, "none", [], "")
        product = product[:num_rows]
        return product if base.dim() == 1 else product.add_(base)


def padded_rows(num_rows: int) -> int:
    """The next larger of a few sizes, eight an octave.

    oneDNN compiles a product for every number of rows, and keeps it: batches of ever new lengths would
    fill its caches.
    """
    step = 1 << max(0, (num_rows - 1).bit_length() - 4)
    return -(-num_rows // step) * step


def _packed(weight: Tensor) -> Tensor | None:
    """None on a GPU, for types that oneDNN does not take, and in builds of torch without it."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    return None if pack is None else pack(weight.contiguous())
