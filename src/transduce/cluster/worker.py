"""What runs on the machines of a cluster: one model an actor, tasks in, rendered transcripts out.

In: a `Job`, which says what to do with every recording, then tasks. Out: for each recording its results as
text, or its error. A worker writes no files: whoever started the job does. Messages are pickles, because
names of files need not be text and errors are objects.
"""

import logging
import os
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.choice import Choice
from transduce.cluster.plan import Item, Task
from transduce.errors import TransduceError, import_extra
from transduce.pipeline import Cut, Limits, claimed_seconds
from transduce.remote import close_source, open_source
from transduce.transcriber import Model, load_model
from transduce.transcript import Transcript

__all__ = [
    "MOST_ATTEMPTS",
    "Answer",
    "Attempts",
    "Job",
    "Outcome",
    "Rendered",
    "Worker",
    "examine",
    "lengths",
]

MOST_ATTEMPTS = 3
"""So many workers may end while they have a task; then it is given up."""

logger = logging.getLogger("transduce")

_Column = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with every recording."""

    model: str
    """A path that every machine has, or a name."""
    choice: Choice
    offline: bool
    cut: Cut
    limits: Limits
    formats: tuple[str, ...]
    tokens: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A transcript as the content of files (see `outputs.Result`)."""

    source: str | None
    channel: int | None
    duration: float
    warnings: tuple[str, ...]
    texts: Mapping[str, str]
    """The content by format."""

    def render(self, format: str, tokens: bool = False) -> str:  # noqa: A002, ARG002
        """The content of a file of one of the job's formats; whether it has tokens was the job's to say."""
        return self.texts[format]


Outcome = tuple[Rendered, ...] | TransduceError
"""The results of a recording (one, or one a channel), or why there is none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task; no outcomes where it was given up."""

    task: Task
    worker: tuple[str, int]
    """The machine (Ray's id) and the process."""
    outcomes: tuple[tuple[int, Outcome], ...]


class Attempts:
    """An actor that counts how often each task was begun: once, unless a worker ended meanwhile."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def begin(self, key: str) -> int:
        """How often the task was begun, this time included."""
        self._counts[key] += 1
        return self._counts[key]

    def num_repeated(self) -> int:
        """How often a task was begun again."""
        return self._counts.total() - len(self._counts)


class Worker:
    """The actor that holds a model; Ray calls it with one task at a time."""

    def __init__(self, job: Job, attempts: Any) -> None:
        """`attempts` is the handle of an `Attempts` actor. Raises what `load_model` raises."""
        self._ray = import_extra("ray", "ray")
        self._job = job
        self._attempts = attempts
        self._model = load_model(job.model, job.choice, offline=job.offline)

    def __call__(self, batch: Mapping[str, _Column]) -> dict[str, _Column]:
        """A column with one pickled `Task` to a column with one pickled `Answer`."""
        (content,) = batch["task"]
        answer = self._answer(pickle.loads(content))
        column = np.empty(1, object)
        column[0] = pickle.dumps(answer)
        return {"answer": column}

    def _answer(self, task: Task) -> Answer:
        context = self._ray.get_runtime_context()
        worker = (context.get_node_id(), os.getpid())
        if self._ray.get(self._attempts.begin.remote(task.key)) > MOST_ATTEMPTS:
            return Answer(task, worker, ())
        try:
            return Answer(task, worker, tuple(_transcribed(self._model, self._job, task.items)))
        except Exception:
            # None of ours, and a GPU that has failed once fails for good: a new process may do better.
            logger.exception("a worker ends because of an error")
            logging.shutdown()
            os._exit(1)


def _transcribed(model: Model, job: Job, items: Sequence[Item]) -> Iterator[tuple[int, Outcome]]:
    """The index of each recording and what became of it, in order."""
    sources = [open_source(item.location) for item in items]
    # Results go out a task at a time: none would come sooner from a first batch that is small.
    limits = replace(job.limits, first_batch_seconds=job.limits.batch_seconds)
    with closing(model.transcribe_each(sources, job.cut, limits)) as found:
        for item, source, outcome in zip(items, sources, found, strict=True):
            close_source(source)
            if isinstance(outcome, TransduceError):
                yield item.index, outcome
            else:
                yield item.index, tuple(_rendered(job, item, transcript) for transcript in outcome)


def _rendered(job: Job, item: Item, transcript: Transcript) -> Rendered:
    named = replace(transcript, source=item.name)
    texts = {name: named.render(name, tokens=job.tokens) for name in job.formats}
    return Rendered(item.name, named.channel, named.duration, named.warnings, texts)


def examine(job: Job) -> dict[str, str] | TransduceError | ValueError:
    """What would run the job on this machine, or why it cannot."""
    try:
        with load_model(job.model, job.choice, offline=job.offline) as model:
            model.check(job.limits)
            return dict(model.backend.describe())
    except (TransduceError, ValueError) as error:
        return error


def lengths(items: Sequence[Item], cut: Cut) -> list[float | None]:
    """The seconds that each recording claims to hold; None where it makes no claim or cannot be opened."""
    return [_length(item, cut) for item in items]


def _length(item: Item, cut: Cut) -> float | None:
    source = open_source(item.location)
    try:
        return claimed_seconds(source, cut)
    except TransduceError:  # it is reported when its turn comes
        return None
    finally:
        close_source(source)
