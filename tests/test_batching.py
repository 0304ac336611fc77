"""Batches: every waveform gets its own answer, in its own place, whatever fails beside it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from fakes import RATE, ClickBackend, clicks
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.batching import BATCH_SECONDS, batch_with_first, batches, recognize
from transduce.errors import ResourceError, TransduceError, UnsupportedModelError
from transduce.types import Hypothesis

Waveforms = Sequence[npt.NDArray[np.float32]]

SECONDS = (5, 1, 3, 3, 8, 0.5, 2)
"""Clip i holds the label i."""


def clips() -> list[npt.NDArray[np.float32]]:
    return [clicks(seconds, {0.1: label}) for label, seconds in enumerate(SECONDS)]


def labels(results: Sequence[Hypothesis | TransduceError]) -> list[int | str]:
    """The label that each clip holds, or the code of its error."""
    return [r.code if isinstance(r, TransduceError) else int(r.ids[0]) for r in results]


@pytest.mark.parametrize("batch_seconds", [0.1, 1, 3, 6, 9, 16, 1000])
def test_results_are_in_the_order_of_the_input(batch_seconds: float) -> None:
    assert labels(recognize(ClickBackend(), clips(), batch_seconds)) == list(range(len(SECONDS)))


@settings(max_examples=num_cases(100, 2000), deadline=None)
@given(lengths=st.lists(st.integers(0, 50), max_size=30), budget=st.integers(1, 200))
def test_batches_hold_every_index_once_under_the_budget(lengths: list[int], budget: int) -> None:
    found = list(batches(lengths, budget))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget
    flat = [lengths[index] for batch in found for index in batch]
    assert flat == sorted(lengths, reverse=True)


@settings(max_examples=num_cases(100, 2000), deadline=None)
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), budget=st.integers(1, 500))
def test_a_batch_with_the_first_holds_the_nearest_under_the_budget(lengths: list[int], budget: int) -> None:
    chosen = batch_with_first(lengths, budget)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen)
    found = [lengths[index] for index in chosen]
    assert len(found) == 1 or len(found) * max(found) <= budget
    farthest = max(abs(length - lengths[0]) for length in found)
    assert all(abs(lengths[i] - lengths[0]) >= farthest for i in range(len(lengths)) if i not in chosen)
    least = budget / 64
    assert all(
        max(a, least) <= 2 * max(b, least) for a, b in ((max(found), found[0]), (found[0], min(found)))
    )


@pytest.mark.parametrize(
    ("lengths", "budget", "chosen"),
    [
        ([10, 30, 10, 10], 200, [0, 2, 3]),
        ([10, 20, 10, 5], 1000, [0, 2, 3, 1]),
        ([10, 21, 10, 4], 200, [0, 2]),
        ([10, 10, 10, 10], 30, [0, 1, 2]),
        ([10, 12, 9, 11], 36, [0, 2, 3]),
        ([100, 1], 10, [0]),
        ([1, 15, 16], 1024, [0, 1, 2]),
        ([], 10, []),
    ],
)
def test_which_lengths_make_a_batch(lengths: list[int], budget: int, chosen: list[int]) -> None:
    assert batch_with_first(lengths, budget) == chosen


def test_nothing_gives_nothing() -> None:
    backend = ClickBackend()
    assert recognize(backend, []) == []
    assert backend.batches == []


def test_a_batch_is_filled_up_to_its_budget() -> None:
    backend = ClickBackend()
    recognize(backend, [clicks(10, {0.1: 0})] * 20)
    assert max(map(sum, backend.batches)) == BATCH_SECONDS * RATE


def test_a_bad_item_is_its_own_error_and_the_others_are_recognised() -> None:
    bad = UnsupportedModelError("cannot take this one")
    backend = ClickBackend(
        fault=lambda batch: bad if any(w.max() == np.float32(0.4) for w in batch) else None
    )
    results = recognize(backend, clips())
    assert labels(results) == [0, 1, 2, "unsupported_model", 4, 5, 6]
    assert results[3] is bad


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    def fault(batch: Waveforms) -> Exception | None:
        return ResourceError("no room") if len(batch) > 2 else None

    backend = ClickBackend(fault=fault)
    assert labels(recognize(backend, clips())) == list(range(len(SECONDS)))
    assert [len(lengths) for lengths in backend.batches] == [7, 3, 1, 2, 4, 2, 2]


def test_an_item_too_large_by_itself_is_the_only_error() -> None:
    def fault(batch: Waveforms) -> Exception | None:
        return ResourceError("no room") if max(map(len, batch)) > 4 * RATE else None

    assert labels(recognize(ClickBackend(fault=fault), clips())) == ["resource", 1, 2, 3, "resource", 5, 6]


def test_memory_that_runs_out_below_the_backend_is_a_resource_error() -> None:
    def fault(batch: Waveforms) -> Exception | None:
        return MemoryError() if max(map(len, batch)) > 7 * RATE else None

    results = recognize(ClickBackend(fault=fault), clips())
    assert labels(results) == [0, 1, 2, 3, "resource", 5, 6]
    assert "8.0 s" in str(results[4])


def test_a_fault_of_the_program_is_not_taken_for_a_bad_item() -> None:
    with pytest.raises(ZeroDivisionError):
        recognize(ClickBackend(fault=lambda batch: ZeroDivisionError()), clips())
