"""The running server behind its routes: the batcher, the threads of the requests, admission, readiness.

In: a loaded model and settings. Out: admission of requests, and their work run in a thread each. It knows no
routes.
"""

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from transduce.server import memory
from transduce.server.batcher import Batcher
from transduce.server.forms import Served
from transduce.server.metrics import Metrics
from transduce.server.problems import ApiError
from transduce.server.recognition import Recognizer
from transduce.server.schedule import ScheduleRules
from transduce.server.settings import Settings
from transduce.transcriber import Model

__all__ = ["Service"]

logger = logging.getLogger("transduce")

MOST_RETRY_SECONDS = 60

Result = TypeVar("Result")


class Service:
    """Runs from its making to `close`, which drains it."""

    def __init__(self, model: Model, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.served = Served(model.spec.name, settings.aliases, model.spec.language)
        self.batcher = Batcher(
            model.backend,
            rules=ScheduleRules(batch_seconds=settings.limits.batch_seconds),
            queue_seconds=settings.queue_seconds,
            observe=metrics.batch,
            on_rest=memory.give_back,
        )
        metrics.watch(self.batcher)
        self.recognizer = Recognizer(model, self.batcher, settings.limits, settings.max_audio_seconds)
        self._threads = ThreadPoolExecutor(settings.max_requests + 1, "transduce-request")
        self.num_requests = 0
        self._mean_seconds = 1.0
        self._is_warm = False

    def start(self) -> None:
        """Begin the warm-up; requests may come at once."""
        self._threads.submit(self._warm_up)

    def close(self) -> None:
        """Give the requests under way their time, and end; it may take long, so not in the event loop."""
        self.batcher.close(self.settings.drain_seconds)
        self._threads.shutdown()

    def _warm_up(self) -> None:
        started = time.monotonic()
        try:
            self.recognizer.warm_up()
        except Exception:
            logger.exception("the warm-up failed: this server will not be ready")
            return
        self._is_warm = True
        logger.info("ready", extra={"fields": {"warm_up_seconds": round(time.monotonic() - started, 3)}})

    @property
    def is_healthy(self) -> bool:
        """Whether this process can go on working."""
        return self.batcher.is_alive and not self.batcher.is_broken

    @property
    def obstacle(self) -> str | None:
        """Why no requests should be sent here at the moment; None: they should."""
        if not self.is_healthy:
            return "broken"
        if self.batcher.is_closing:
            return "shutting down"
        return None if self._is_warm else "warming up"

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Take in one request, from before its body is read until it is answered; ApiError if full."""
        if self.num_requests >= self.settings.max_requests:
            self.metrics.refusal()
            message = f"{self.num_requests} requests are under way, as many as this server takes: try later"
            raise ApiError(503, message, "overloaded", headers={"Retry-After": str(self._retry_seconds())})
        started = time.monotonic()
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1
            self._mean_seconds += 0.2 * (time.monotonic() - started - self._mean_seconds)

    def _retry_seconds(self) -> int:
        """When a place is likely to be free: one leaves every (mean time / places) seconds."""
        return min(MOST_RETRY_SECONDS, math.ceil(self._mean_seconds / self.settings.max_requests))

    def run(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Run the work of an admitted request in a thread, in this task's context."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
