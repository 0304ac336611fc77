"""The torch backend on a CPU: a batch is encoded in slices, which nobody can tell from outside."""

import numpy as np
import pytest
import torch
from models import backend
from support import read_wav, utterances

from transduce.nn import backend as engine
from transduce.types import Hypothesis


def shapes_of_slices(most_seconds: float) -> tuple[list[tuple[int, int]], list[Hypothesis]]:
    """Rows and samples of each slice of a batch of 12 utterances, and what was decoded."""
    model = backend("nemo-hybrid")
    shapes = []
    features = model.features.forward

    def remember(waveforms: torch.Tensor, *lengths: torch.Tensor) -> torch.Tensor:
        shapes.append((waveforms.shape[0], waveforms.shape[1]))
        return features(waveforms, *lengths)

    waveforms = [read_wav(utterance["file"]) for utterance in utterances()[:12]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CPU_THREAD_SECONDS", most_seconds / torch.get_num_threads())
        patch.setattr(model.features, "forward", remember)
        found = model.recognize(waveforms)
    return shapes, found


def test_slices_change_nothing() -> None:
    whole, expected = shapes_of_slices(1000.0)
    slices, found = shapes_of_slices(10.0)
    assert len(whole) == 1
    assert len(slices) > 3
    assert sum(rows for rows, _ in slices) == 12
    assert all(rows == 1 or rows * size <= 10 * 16000 for rows, size in slices)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.frames, other.frames)
        np.testing.assert_array_equal(one.durations, other.durations)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_row_longer_than_a_slice_is_one() -> None:
    slices, _ = shapes_of_slices(0.5)
    assert [rows for rows, _ in slices] == [1] * 12


def test_an_empty_batch_is_empty() -> None:
    assert backend("nemo-hybrid").recognize([]) == []
