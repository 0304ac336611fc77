"""One thread owns the backend; the spans of all requests that are under way share its batches.

In: for each request a `Job`, which takes spans (mono waveforms `[n]` at the model's rate) one by one.
Out: for each span a future of its Hypothesis. How spans are chosen is `schedule`'s; a batch that fails is
retried in smaller ones, so that a bad span costs only itself. Memory is bounded: `submit` waits while
enough audio waits already. Nothing here knows HTTP, files or text.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import numpy as np

from transduce import batching
from transduce.errors import TransduceError
from transduce.server.schedule import Entry, Schedule, ScheduleRules
from transduce.types import Backend, FloatArray, Hypothesis

__all__ = ["BatchReport", "Batcher", "CancelledJobError", "ClosedError", "Job", "Load"]

logger = logging.getLogger("transduce")

QUEUE_SECONDS = 4 * batching.BATCH_SECONDS

IDLE_SECONDS = 1.0
BUSY_SECONDS = 30.0
"""`on_rest` is called so long after the last batch or the end of the last request, and amid unbroken work."""

DEFAULT_RULES = ScheduleRules()


class ClosedError(RuntimeError):
    """The batcher is closing: it takes no new requests."""


class CancelledJobError(RuntimeError):
    """The job was cancelled: nobody waits for its result."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch was; for metrics."""

    num_spans: int
    num_jobs: int
    num_failed: int
    audio_seconds: float
    padded_seconds: float
    busy_seconds: float
    waited_seconds: tuple[float, ...]
    """How long each span had waited."""


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to do at this moment."""

    num_jobs: int
    num_waiting: int
    """Spans that wait; those of the batch that runs are not counted."""
    waiting_seconds: float
    """Their audio."""
    is_running: bool
    """Whether a batch runs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    waveform: FloatArray
    future: "Future[Hypothesis]"
    since: float
    """When it began to wait, in seconds of the monotonic clock."""


class Job:
    """The spans of one request: one thread submits, any thread may cancel.

    A context manager: leaving it drops whatever still waits, and frees the job's share of the queue.
    """

    def __init__(self, batcher: "Batcher") -> None:
        self._batcher = batcher
        self.is_cancelled = False

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def submit(self, waveform: FloatArray) -> "Future[Hypothesis]":
        """Queue a span `[n]`, waiting first while this job's share of the queue is full.

        The future gives the hypothesis or raises what the span met. Once the job is cancelled, this and the
        future of a span that runs raise CancelledJobError; those of spans that wait are cancelled.
        """
        return self._batcher._submit(self, waveform)

    def cancel(self) -> None:
        """Drop all that waits, and wait for nothing that runs: its batch goes on without a listener."""
        self._batcher._cancel(self)

    def check(self) -> None:
        """Raise CancelledJobError if the job was cancelled."""
        if self.is_cancelled:
            raise CancelledJobError


_Entry: TypeAlias = Entry[Job, _Span]
_Outcome: TypeAlias = Hypothesis | Exception


class Batcher:
    """Owns a backend in one thread.

    That thread also calls `observe` after each batch, and `on_rest` now and then after work.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        rules: ScheduleRules = DEFAULT_RULES,
        queue_seconds: float = QUEUE_SECONDS,
        observe: Callable[[BatchReport], None] | None = None,
        on_rest: Callable[[], None] | None = None,
    ) -> None:
        """`queue_seconds` of audio wait in memory, shared by the jobs; each may have one span beyond it."""
        self.is_broken = False
        """Whether the backend fails on a span that cannot be at fault: only a new process helps then."""
        self._backend = backend
        self.rules = rules
        self._rate = backend.spec.features.sample_rate
        self._queue_samples = int(queue_seconds * self._rate)
        self._observe = observe
        self._on_rest = on_rest
        self._changed = threading.Condition()
        self._schedule: Schedule[Job, _Span] = Schedule(rules)
        self._waiting_samples: dict[Job, int] = {}
        """The jobs under way, each with the audio that it has waiting."""
        self._running: list[_Entry] = []
        """The batch that runs."""
        self._rest_due: float | None = None
        """When to rest, in seconds of the monotonic clock; None: nothing has happened since the last time."""
        self._is_closing = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="transduce-batcher", daemon=True)
        self._thread.start()

    def open(self) -> Job:
        """A new request. Raises ClosedError once the batcher is closing."""
        with self._changed:
            if self._is_closing:
                raise ClosedError("the server is shutting down: send the request to another one")
            job = Job(self)
            self._waiting_samples[job] = 0
            return job

    def load(self) -> Load:
        """What there is to do."""
        with self._changed:
            num_samples = sum(self._waiting_samples.values())
            return Load(
                num_jobs=len(self._waiting_samples),
                num_waiting=len(self._schedule),
                waiting_seconds=num_samples / self._rate,
                is_running=bool(self._running),
            )

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, drain_seconds: float = 0.0) -> None:
        """Take no new requests, give those under way some time, cancel the rest, end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.wait_for(lambda: not self._waiting_samples, drain_seconds)
            self._is_stopped = True
            for job in list(self._waiting_samples):
                self._cancel(job)
            self._changed.notify_all()
        self._thread.join()

    # Called by jobs

    def _submit(self, job: Job, waveform: FloatArray) -> "Future[Hypothesis]":
        span = _Span(waveform, Future(), time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: job.is_cancelled or self._has_room(job))
            job.check()
            self._schedule.add(Entry(job, len(waveform) / self._rate, span))
            self._waiting_samples[job] += len(waveform)
            self._changed.notify_all()
        return span.future

    def _has_room(self, job: Job) -> bool:
        """Each job has an equal share of the queue, and always room for one span."""
        waiting = self._waiting_samples[job]
        share = self._queue_samples / len(self._waiting_samples)
        is_full = waiting >= share or sum(self._waiting_samples.values()) >= self._queue_samples
        return waiting == 0 or not is_full

    def _cancel(self, job: Job) -> None:
        with self._changed:
            job.is_cancelled = True
            self._waiting_samples.pop(job, None)
            for entry in self._schedule.remove(job):
                entry.content.future.cancel()
            for entry in self._running:
                if entry.owner is job:
                    _resolve(entry.content.future, CancelledJobError())
            self._rest_due = time.monotonic() + IDLE_SECONDS
            self._changed.notify_all()

    # In the thread

    def _run(self) -> None:
        rested = time.monotonic()
        while (batch := self._next()) is not None:
            self._recognize(batch)
            is_idle, is_late = not batch, time.monotonic() - rested > BUSY_SECONDS
            del batch  # no audio is held while the next one is awaited
            if is_idle or is_late:
                rested = time.monotonic()
                if self._on_rest is not None:
                    self._on_rest()

    def _next(self) -> list[_Entry] | None:
        """Wait for the next batch, whose futures then run; empty: it is time to rest; None: the end."""
        with self._changed:
            while not self._is_stopped and not len(self._schedule):
                seconds = None if self._rest_due is None else self._rest_due - time.monotonic()
                if seconds is not None and seconds <= 0:
                    self._rest_due = None
                    return []
                self._changed.wait(seconds)
            if self._is_stopped:
                return None
            self._running = self._schedule.take()
            for entry in self._running:
                self._waiting_samples[entry.owner] -= len(entry.content.waveform)
                entry.content.future.set_running_or_notify_cancel()
            self._changed.notify_all()
            return self._running

    def _recognize(self, batch: list[_Entry]) -> None:
        if not batch:
            return
        started = time.monotonic()
        outcomes = self._outcomes([entry.content.waveform for entry in batch])
        busy_seconds = time.monotonic() - started
        with self._changed:
            self._running = []
            self._rest_due = time.monotonic() + IDLE_SECONDS
            for entry, outcome in zip(batch, outcomes, strict=True):
                _resolve(entry.content.future, outcome)
        if self._observe is not None:
            self._observe(_report(batch, outcomes, started, busy_seconds))

    def _outcomes(self, waveforms: Sequence[FloatArray]) -> Sequence[_Outcome]:
        """The hypothesis of each waveform, or its error; this thread outlives every error."""
        try:
            return batching.recognize(self._backend, waveforms, self.rules.batch_seconds)
        except Exception as error:
            if len(waveforms) > 1:
                return [outcome for waveform in waveforms for outcome in self._outcomes([waveform])]
            seconds = len(waveforms[0]) / self._rate
            logger.error("the engine failed on %.2f s of audio", seconds, exc_info=error)
            self._probe()
            return [error]

    def _probe(self) -> None:
        """See whether the backend still works, on a second of faint noise."""
        noise = np.random.default_rng(0).normal(scale=1e-3, size=self._rate).astype(np.float32)
        try:
            self._backend.recognize([noise])
            self.is_broken = False
        except TransduceError:
            self.is_broken = False
        except Exception:
            logger.exception("the engine fails on noise too: this process has to be restarted")
            self.is_broken = True


def _resolve(future: "Future[Hypothesis]", outcome: _Outcome) -> None:
    """Give a future its outcome, unless its job was cancelled while it ran."""
    if future.done():
        return
    if isinstance(outcome, Hypothesis):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _report(
    batch: Sequence[_Entry], outcomes: Sequence[_Outcome], started: float, busy_seconds: float
) -> BatchReport:
    lengths = [entry.num_seconds for entry in batch]
    return BatchReport(
        num_spans=len(batch),
        num_jobs=len({entry.owner for entry in batch}),
        num_failed=sum(isinstance(outcome, Exception) for outcome in outcomes),
        audio_seconds=sum(lengths),
        padded_seconds=max(lengths) * len(batch),
        busy_seconds=busy_seconds,
        waited_seconds=tuple(started - entry.content.since for entry in batch),
    )
