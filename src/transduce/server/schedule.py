"""Which waiting spans make the next batch: fair between requests, of similar length, under a budget.

In: entries, each a span of one owner (a request) with its length. Out: batches of entries. The owner
that was served longest ago gives the first entry of a batch, so a short request waits for one turn of
the others and not for the end of a long file; then every owner in turn adds an entry of similar length
until the budget is full. Plain data on one thread: no locks, no audio, no backend.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from transduce.batching import BATCH_SECONDS, are_similar

__all__ = ["Entry", "Schedule", "ScheduleRules"]

Owner = TypeVar("Owner")
Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class ScheduleRules:
    """What a batch may hold."""

    batch_seconds: float = BATCH_SECONDS
    """Audio of one batch, padding counted; a span that is longer goes alone."""
    similarity: float = 1.5
    """The longest span of a batch is at most this many times the first one, and the first one at most
    this many times the shortest."""
    least_seconds: float = 2.0
    """Shorter spans count as this long when lengths are compared: padding them costs next to nothing."""
    lookahead: int = 16
    """How many of an owner's waiting spans are looked at for a similar one."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Generic[Owner, Content]):
    """A span that waits."""

    owner: Owner
    num_seconds: float
    content: Content


class Schedule(Generic[Owner, Content]):
    """The spans that wait, a line for each owner; the line served longest ago is the first."""

    def __init__(self, rules: ScheduleRules) -> None:
        self.rules = rules
        self._lines: dict[Owner, deque[Entry[Owner, Content]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Entry[Owner, Content]]:
        return (entry for line in self._lines.values() for entry in line)

    def add(self, entry: Entry[Owner, Content]) -> None:
        """Put an entry at the end of its owner's line; a new owner's line is the last."""
        self._lines.setdefault(entry.owner, deque()).append(entry)

    def remove(self, owner: Owner) -> list[Entry[Owner, Content]]:
        """Take away all that an owner has waiting, and give it back."""
        return list(self._lines.pop(owner, ()))

    def take(self) -> list[Entry[Owner, Content]]:
        """Take the next batch; empty where nothing waits."""
        if not self._lines:
            return []
        first, *others = self._lines
        batch = _Batch(self.rules, self._lines[first].popleft())
        turns = deque([*others, first])
        while turns:
            owner = turns.popleft()
            if self._take_similar(self._lines[owner], batch):
                turns.append(owner)
        self._move_back(batch.entries)
        return batch.entries

    def _take_similar(self, line: deque[Entry[Owner, Content]], batch: "_Batch[Owner, Content]") -> bool:
        """Move the first entry of a line that suits into the batch, if there is one near its front."""
        for index, entry in zip(range(self.rules.lookahead), line, strict=False):
            if batch.suits(entry):
                del line[index]
                batch.add(entry)
                return True
        return False

    def _move_back(self, entries: list[Entry[Owner, Content]]) -> None:
        """Lines that were served go to the back, in the order of their service; empty ones go away."""
        for owner in dict.fromkeys(entry.owner for entry in entries):
            line = self._lines.pop(owner)
            if line:
                self._lines[owner] = line


class _Batch(Generic[Owner, Content]):
    """A batch that grows from its first entry."""

    def __init__(self, rules: ScheduleRules, first: Entry[Owner, Content]) -> None:
        self.rules = rules
        self.entries = [first]
        self.longest_seconds = first.num_seconds

    def suits(self, entry: Entry[Owner, Content]) -> bool:
        """Whether there is room for an entry, and its length is near the first one's."""
        rules, first = self.rules, self.entries[0]
        longest = max(self.longest_seconds, entry.num_seconds)
        has_room = longest * (len(self.entries) + 1) <= rules.batch_seconds
        return has_room and are_similar(
            first.num_seconds, entry.num_seconds, rules.similarity, rules.least_seconds
        )

    def add(self, entry: Entry[Owner, Content]) -> None:
        self.entries.append(entry)
        self.longest_seconds = max(self.longest_seconds, entry.num_seconds)
