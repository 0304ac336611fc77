"""The running model behind Triton's requests: one batcher, a thread for each recording under way.

In: requests, each with its recordings, and functions to call. Out: those calls, from other threads, one end
for each request. The flow is the HTTP server's (`server.recognition`); Triton's tensors are unknown here.
"""

import io
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from transduce.errors import ResourceError, TransduceError
from transduce.pipeline import Limits
from transduce.server import memory
from transduce.server.batcher import Batcher, CancelledJobError, ClosedError, Job
from transduce.server.recognition import Recognizer, open_upload
from transduce.server.schedule import ScheduleRules
from transduce.transcriber import Model
from transduce.transcript import Transcript
from transduce.triton.recordings import Recording
from transduce.triton.settings import Settings
from transduce.types import Segment

__all__ = ["Failure", "Request", "Service", "failure_of"]

logger = logging.getLogger("transduce")

POLL_SECONDS = 0.2
"""Between two looks at whether a client has cancelled."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no result."""

    status: Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
    """The name of Triton's code."""
    message: str
    """What is wrong and what to do; our own stable code stands at its end, in brackets."""


_Outcome: TypeAlias = Transcript | Failure


def _ignore(segment: Segment) -> None:
    """Nobody wants segments by themselves."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What came in, and whom to tell; one of `on_done` and `on_failure` is called, once, at the end."""

    recordings: Sequence[Recording]
    on_done: Callable[[Sequence[Transcript]], None]
    on_failure: Callable[[Failure], None]
    on_segment: Callable[[Segment], None] = _ignore
    """Told of each segment that is final, in order; for requests of one recording."""
    is_cancelled: Callable[[], bool] = _never
    """Asked now and then."""


@dataclass(slots=True, eq=False)
class _Progress:
    """The outcomes of a request's recordings as they come."""

    request: Request
    outcomes: dict[int, _Outcome] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, row: int, outcome: _Outcome) -> None:
        """Keep the outcome of a recording; the last one ends the request."""
        with self.lock:
            self.outcomes[row] = outcome
            is_last = len(self.outcomes) == len(self.request.recordings)
        if is_last:
            self._end([self.outcomes[row] for row in range(len(self.outcomes))])

    def _end(self, outcomes: Sequence[_Outcome]) -> None:
        transcripts = [outcome for outcome in outcomes if isinstance(outcome, Transcript)]
        if len(transcripts) == len(outcomes):
            self.request.on_done(transcripts)
            return
        row, failure = next((row, o) for row, o in enumerate(outcomes) if isinstance(o, Failure))
        place = f"row {row}: " if len(outcomes) > 1 else ""
        self.request.on_failure(Failure(failure.status, place + failure.message))


class Service:
    """Runs from its making, which warms the model up, to `close`."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model = model
        self._batcher = Batcher(
            model.backend,
            rules=ScheduleRules(batch_seconds=settings.batch_seconds),
            queue_seconds=4 * settings.batch_seconds,
            on_rest=memory.give_back,
        )
        limits = Limits(batch_seconds=settings.batch_seconds)
        self._recognizer = Recognizer(model, self._batcher, limits, settings.max_audio_seconds)
        self._places = threading.Semaphore(settings.max_requests)
        self._threads = ThreadPoolExecutor(settings.max_requests, "transduce-request")
        self._watched: dict[Job, Request] = {}
        self._watching = threading.Lock()
        self._is_closed = threading.Event()
        self._watch_thread = threading.Thread(target=self._watch, name="transduce-watch", daemon=True)
        self._watch_thread.start()
        self._recognizer.warm_up()

    def start(self, request: Request) -> None:
        """Begin a request, waiting first while too many recordings are under way."""
        progress = _Progress(request)
        for row, recording in enumerate(request.recordings):
            self._places.acquire()
            self._threads.submit(self._run, progress, row, recording)

    def close(self) -> None:
        """Finish what is under way, end all threads and free the model."""
        self._threads.shutdown()
        self._is_closed.set()
        self._watch_thread.join()
        self._batcher.close()
        self._model.close()

    # In the threads of the recordings

    def _run(self, progress: _Progress, row: int, recording: Recording) -> None:
        try:
            outcome = self._outcome(progress.request, recording)
        finally:
            self._places.release()
        try:
            progress.put(row, outcome)
        except Exception:
            logger.exception("a result could not be handed to Triton")

    def _outcome(self, request: Request, recording: Recording) -> _Outcome:
        try:
            with self._batcher.open() as job, self._watch_over(job, request):
                segments = self._segments(recording, job)
                with closing(segments):
                    return _drained(segments, request.on_segment)
        except Exception as error:  # noqa: BLE001 - every error is the request's own
            return failure_of(error)

    def _segments(self, recording: Recording, job: Job) -> Generator[Segment, None, Transcript]:
        if isinstance(recording.source, bytes):
            return self._recognizer.transcribe(open_upload(io.BytesIO(recording.source), "AUDIO", job), job)
        return self._recognizer.transcribe(recording.source, job, recording.sample_rate)

    # Cancellation

    @contextmanager
    def _watch_over(self, job: Job, request: Request) -> Iterator[None]:
        """Cancel the job when the client has cancelled the request."""
        with self._watching:
            self._watched[job] = request
        try:
            yield
        finally:
            with self._watching:
                del self._watched[job]

    def _watch(self) -> None:
        while not self._is_closed.wait(POLL_SECONDS):
            with self._watching:
                for job, request in self._watched.items():
                    self._cancel_if_asked(job, request)

    def _cancel_if_asked(self, job: Job, request: Request) -> None:
        try:
            if request.is_cancelled():
                job.cancel()
        except Exception:
            logger.exception("Triton does not say whether a request was cancelled: it goes on")


def _drained(
    segments: Generator[Segment, None, Transcript], on_segment: Callable[[Segment], None]
) -> Transcript:
    """Give each segment away; the transcript at the end."""
    while True:
        try:
            on_segment(next(segments))
        except StopIteration as end:
            transcript: Transcript = end.value
            return transcript


def failure_of(error: Exception) -> Failure:
    """What a client is told of an error; the unexpected keeps its details for the log."""
    if isinstance(error, CancelledJobError):
        return Failure("CANCELLED", "the request was cancelled [cancelled]")
    if isinstance(error, ClosedError):
        return Failure("UNAVAILABLE", "this model is being unloaded: send the request again [shutting_down]")
    if isinstance(error, ResourceError):
        return Failure("UNAVAILABLE", f"{error} [{error.code}]")
    if isinstance(error, MemoryError):
        return Failure(
            "UNAVAILABLE", f"the server is short of memory: send less, or later [{ResourceError.code}]"
        )
    if isinstance(error, TransduceError):
        status: Literal["INVALID_ARG", "INTERNAL"] = "INVALID_ARG" if error.code == "audio" else "INTERNAL"
        return Failure(status, f"{error} [{error.code}]")
    logger.error("a request failed", exc_info=error)
    return Failure("INTERNAL", "the model failed; the log of the server says more [internal]")
