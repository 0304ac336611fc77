"""Threads that run ahead: order, bounds, errors, and that none is left behind."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from transduce.background import Background


@contextmanager
def no_thread_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within some seconds."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@contextmanager
def ahead(
    items: Generator[int, None, None], budget: float, weight: Callable[[int], float]
) -> Iterator[Iterator[int]]:
    with Background() as background:
        yield background.ahead(items, budget, weight)


class Source:
    """Counts what was taken, and knows whether it was closed and in which thread."""

    def __init__(self, count: int = 1 << 60, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.taken = 0
        self.closed_in: list[str] = []

    def items(self) -> Generator[int, None, None]:
        try:
            while self.taken < self.count:
                self.taken += 1
                yield self.taken
            if self.error:
                raise self.error
        finally:
            self.closed_in.append(threading.current_thread().name)


def one(item: int) -> float:
    return 1.0


@pytest.mark.parametrize("budget", [0.5, 1, 7, 1000])
def test_items_come_in_order(budget: float) -> None:
    with no_thread_left(), ahead(Source(500).items(), budget, one) as items:
        assert list(items) == list(range(1, 501))


def test_it_runs_ahead_as_far_as_the_budget_and_no_further() -> None:
    source = Source()
    with no_thread_left(), ahead(source.items(), 10, lambda item: 2.5) as items:
        assert eventually(lambda: source.taken == 5)  # four wait, and one finds no room
        time.sleep(0.05)
        assert source.taken == 5
        next(items)
        assert eventually(lambda: source.taken == 6)


def test_whether_an_item_comes_soon() -> None:
    go_on = threading.Event()

    def items() -> Generator[int, None, None]:
        yield 1
        go_on.wait()
        yield 2

    with no_thread_left(), Background() as background:
        line = background.ahead(items(), 10, one)
        assert line.comes_within(10)
        assert next(line) == 1
        assert not line.comes_within(0.01)
        go_on.set()
        assert line.comes_within(10)
        assert list(line) == [2]
        assert line.comes_within(0)  # the end


def test_an_item_larger_than_the_budget_passes() -> None:
    with ahead(Source(3).items(), 1, lambda item: 100.0) as items:
        assert list(items) == [1, 2, 3]


def test_an_error_comes_behind_the_items_before_it() -> None:
    found = []

    def take_all(items: Iterator[int]) -> None:
        for item in items:
            found.append(item)

    source = Source(5, ZeroDivisionError())
    with no_thread_left(), ahead(source.items(), 100, one) as items, pytest.raises(ZeroDivisionError):
        take_all(items)
    assert found == [1, 2, 3, 4, 5]


def test_leaving_early_ends_the_thread_and_closes_the_generator_in_it() -> None:
    source = Source()

    def interrupted() -> None:
        with ahead(source.items(), 3, one) as items:
            next(items)
            raise KeyboardInterrupt

    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert source.closed_in == ["transduce-ahead"]


def test_two_in_a_row_end_together() -> None:
    source = Source()

    def doubled(items: Iterator[int]) -> Generator[int, None, None]:
        for item in items:
            yield 2 * item

    with no_thread_left(), Background() as background:
        first = background.ahead(source.items(), 3, one)
        second = background.ahead(doubled(first), 3, one)
        assert [next(second) for _ in range(3)] == [2, 4, 6]
    assert source.closed_in == ["transduce-ahead"]


@pytest.mark.alone
def test_a_thread_that_waits_for_another_ends_with_it() -> None:
    """The first reads what never comes; the second waits for the first."""
    release = threading.Event()

    def stuck() -> Generator[int, None, None]:
        release.wait()
        yield 1

    start = time.monotonic()
    with no_thread_left():
        with Background() as background:
            first = background.ahead(stuck(), 3, one)
            background.ahead((item for item in first), 3, one)
            before = threading.active_count()
        assert threading.active_count() == before - 1
        assert time.monotonic() - start < 10
        release.set()
        assert eventually(lambda: threading.active_count() == before - 2)
