"""Which recordings a worker is given together.

In: recordings with their lengths, and how many workers there may be. Out: tasks: recordings of similar
length, the longest first, so that what is left for the end is short. Ray is unknown here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["GPU_TASK_SECONDS", "TASK_SECONDS", "Item", "Task", "alone", "chunks", "grouped"]

TASK_SECONDS = 600.0
"""Audio of a task: what is done again when a worker dies, and what others wait for at the end."""
GPU_TASK_SECONDS = 6000.0
"""The same for a GPU, which would wait for the first batch of each task as long as it needs for 600 s."""
TASKS_AN_ACTOR = 16
"""So many tasks each at least, so that all end at about the same time."""
MOST_TASKS = 20_000
"""Ray keeps a record of some kilobytes for each; beyond this tasks grow instead."""
MOST_FILES = 1000
"""Recordings in a task, however short they are."""
UNKNOWN_SECONDS = 60.0
"""What a recording counts for whose length is not known."""


@dataclass(frozen=True, slots=True)
class Item:
    """One recording to transcribe."""

    index: int
    """Its number among the inputs."""
    location: str
    """A path or an address that is the same on every machine."""
    name: str
    """What its results call it."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does in one go."""

    key: str
    """Its name; no two tasks of a run have the same."""
    items: tuple[Item, ...]

    @property
    def seconds(self) -> float:
        """About how much audio it is."""
        return sum(map(_seconds, self.items))


def grouped(items: Sequence[Item], num_actors: int, task_seconds: float = TASK_SECONDS) -> list[Task]:
    """Recordings of similar length together, the longest first."""
    whole_seconds = sum(map(_seconds, items))
    num_tasks = min(max(whole_seconds / task_seconds, TASKS_AN_ACTOR * num_actors), MOST_TASKS)
    groups = _groups(sorted(items, key=_seconds, reverse=True), whole_seconds / num_tasks)
    return [Task(f"group {number}", tuple(group)) for number, group in enumerate(groups)]


def alone(items: Sequence[Item]) -> list[Task]:
    """Each recording by itself, so that one that ends its worker harms no other."""
    return [Task(f"recording {item.index}", (item,)) for item in items]


def chunks(items: Sequence[Item], least: int = 100) -> Iterator[Sequence[Item]]:
    """The items in at most `MOST_TASKS` pieces of at least so many, the last one apart."""
    size = max(least, -(-len(items) // MOST_TASKS))
    return (items[first : first + size] for first in range(0, len(items), size))


def _groups(items: Sequence[Item], most_seconds: float) -> Iterator[list[Item]]:
    group: list[Item] = []
    num_seconds = 0.0
    for item in items:
        if group and (num_seconds + _seconds(item) > most_seconds or len(group) == MOST_FILES):
            yield group
            group, num_seconds = [], 0.0
        group.append(item)
        num_seconds += _seconds(item)
    if group:
        yield group


def _seconds(item: Item) -> float:
    return UNKNOWN_SECONDS if item.seconds is None else item.seconds
