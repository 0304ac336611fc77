"""Packed weights: the same numbers as a plain product, in few shapes."""

from typing import Any

import pytest
import torch

from transduce.nn.matrix import PACKED_PRODUCTS, Matrix, padded_rows

WEIGHT = torch.randn(96, 160, generator=torch.Generator().manual_seed(0))


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, 160, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 100, 257, 1000])
def test_products_are_torchs_own(count: int) -> None:
    matrix, rows = Matrix.of(WEIGHT), rows_of(count)
    for base in (torch.randn(96), torch.randn(count, 96)):
        before = base.clone()
        torch.testing.assert_close(matrix.addmm(base, rows), base + rows @ WEIGHT.T, atol=1e-4, rtol=1e-4)
        assert torch.equal(base, before)


def test_padding_is_at_most_an_eighth_and_sizes_are_few() -> None:
    sizes = [padded_rows(count) for count in range(1, 10_000)]
    assert all(count <= size <= count * 1.125 for count, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 16 + 8 * 10  # 16 small ones, then eight in each of ten octaves
    assert all(padded_rows(size) == size for size in sizes)


def test_few_shapes_reach_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand numbers of rows, as batches of all lengths have them."""
    shapes = set()

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def _linear_pointwise(self, rows: torch.Tensor, *rest: Any) -> torch.Tensor:
            shapes.add(rows.shape[0])
            return rows.new_zeros(rows.shape[0], 96)

    matrix, real = Matrix.of(WEIGHT), torch.ops.mkldnn
    assert matrix.packed is not None
    monkeypatch.setattr(torch.ops, "mkldnn", Recording())
    counts = range(1 + PACKED_PRODUCTS // WEIGHT.numel(), 2000)
    for count in counts:
        assert matrix.addmm(torch.zeros(96), rows_of(count)).shape == (count, 96)
    assert 20 < len(shapes) < 60
