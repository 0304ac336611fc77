"""Work that goes on while its results are used: generators in threads, with bounded queues.

In: generators, and how much of each may wait. Out: lines, which are iterators of the same items in the same
order, with the same exception at their end. What the items are is unknown here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from types import TracebackType
from typing import Any, Generic, TypeVar

__all__ = ["Background", "Line"]

T = TypeVar("T")


PATIENCE_SECONDS = 2.0
"""How long the end waits for threads. One that is stuck in a read ends by itself once that returns."""

INTERRUPT_SECONDS = 0.5
"""Windows does not deliver Ctrl-C to a thread that waits without an end."""


class Background:
    """Iterators that run in threads of their own, some way ahead of whoever takes their items.

    A context manager: when it is left, however that happens, the generators are closed and the threads
    have ended, but for one whose generator does not come back.
    """

    def __init__(self) -> None:
        self._lines: list[Line[Any]] = []
        self._threads: list[threading.Thread] = []

    def ahead(
        self, items: Generator[T, None, None], budget: float, weight: Callable[[T], float]
    ) -> "Line[T]":
        """Run `items` in a thread, which stops while items of a total `weight` of `budget` or more wait."""
        line = Line(budget, weight)
        # A daemon: where a read never returns, the interpreter can still end.
        thread = threading.Thread(target=_fill, args=(items, line), name="transduce-ahead", daemon=True)
        self._lines.append(line)
        self._threads.append(thread)
        thread.start()
        return line

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines:
            line.close()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _fill(items: Generator[T, None, None], line: "Line[T]") -> None:
    try:
        with closing(items):
            for item in items:
                if not line.put(item):
                    break
    except BaseException as error:  # noqa: BLE001 - raised again where the items are taken
        line.end(error)
    else:
        line.end(None)


class Line(Generic[T]):
    """What waits between two threads; an iterator for the one that takes."""

    def __init__(self, budget: float, weight: Callable[[T], float]) -> None:
        self._budget = budget
        self._weight = weight
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._load = 0.0
        self._is_closed = False
        self._is_ended = False
        self._error: BaseException | None = None

    def _may_take(self) -> bool:
        return bool(self._waiting) or self._is_ended or self._is_closed

    def put(self, item: T) -> bool:
        """Append an item once there is room; False if nobody takes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._load < self._budget)
            if self._is_closed:
                return False
            self._waiting.append(item)
            self._load += self._weight(item)
            self._changed.notify_all()
        return True

    def end(self, error: BaseException | None) -> None:
        """Say that nothing more comes, and why."""
        with self._changed:
            self._is_ended = True
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what waits, and take nothing more."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def comes_within(self, seconds: float) -> bool:
        """Whether the next item, or the end, is there before that time has passed."""
        with self._changed:
            return self._changed.wait_for(self._may_take, seconds)

    def __iter__(self) -> "Line[T]":
        return self

    def __next__(self) -> T:
        """The next item, once it is there; at the end the error of whoever put them, if any."""
        with self._changed:
            while not self._changed.wait_for(self._may_take, INTERRUPT_SECONDS):
                pass
            if self._waiting:
                item = self._waiting.popleft()
                self._load -= self._weight(item)
                self._changed.notify_all()
                return item
        if self._error is not None and not self._is_closed:
            raise self._error
        raise StopIteration
