"""Which recordings a worker is given together."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import num_cases

from transduce.cluster.plan import (
    MOST_FILES,
    MOST_TASKS,
    TASK_SECONDS,
    TASKS_AN_ACTOR,
    UNKNOWN_SECONDS,
    Item,
    Task,
    alone,
    chunks,
    grouped,
)


def items(*seconds: float | None) -> list[Item]:
    return [Item(index, f"/{index}.wav", f"{index}.wav", length) for index, length in enumerate(seconds)]


def taken(tasks: list[Task]) -> list[int]:
    return [item.index for task in tasks for item in task.items]


LENGTHS = st.lists(st.none() | st.floats(0, 20_000), max_size=200)


@given(LENGTHS, st.integers(1, 64))
def test_every_recording_is_in_one_task(lengths: list[float | None], num_actors: int) -> None:
    tasks = grouped(items(*lengths), num_actors)
    assert sorted(taken(tasks)) == list(range(len(lengths)))
    assert len({task.key for task in tasks}) == len(tasks)
    assert all(task.items for task in tasks)


@given(LENGTHS, st.integers(1, 64))
def test_the_longest_come_first_and_similar_ones_together(
    lengths: list[float | None], num_actors: int
) -> None:
    tasks = grouped(items(*lengths), num_actors)
    order = [UNKNOWN_SECONDS if lengths[i] is None else lengths[i] for i in taken(tasks)]
    assert order == sorted(order, reverse=True)


@given(LENGTHS, st.integers(1, 64))
def test_no_task_is_longer_than_its_share_but_for_one_recording(
    lengths: list[float | None], num_actors: int
) -> None:
    given_items = items(*lengths)
    whole = math.fsum(UNKNOWN_SECONDS if length is None else length for length in lengths)
    share = min(TASK_SECONDS, whole / (TASKS_AN_ACTOR * num_actors))
    for task in grouped(given_items, num_actors):
        assert len(task.items) == 1 or task.seconds <= share * (1 + 1e-9)
        assert len(task.items) <= MOST_FILES


def test_a_large_corpus_has_larger_tasks_not_more() -> None:
    """100,000 hours in recordings of 2 to 6 hours: Ray keeps a record of each task."""
    rng = random.Random(1)
    corpus = items(*(rng.uniform(7200, 21600) for _ in range(25_000)))
    tasks = grouped(corpus, 100)
    assert MOST_TASKS / 2 <= len(tasks) <= 1.5 * MOST_TASKS
    assert sorted(taken(tasks)) == list(range(25_000))


def test_alone_is_each_by_itself() -> None:
    tasks = alone(items(1.0, None))
    assert [task.items for task in tasks] == [(item,) for item in items(1.0, None)]


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (250, [100, 100, 50])])
def test_chunks(count: int, sizes: list[int]) -> None:
    assert [len(chunk) for chunk in chunks(items(*[1.0] * count))] == sizes


def test_chunks_of_very_many_grow() -> None:
    count = num_cases(300_000, 3_000_000) * 10
    found = list(chunks(range(count)))  # type: ignore[arg-type]  # numbers stand for items
    assert len(found) <= MOST_TASKS
    assert sum(map(len, found)) == count
