"""What a server counts, for Prometheus.

In: reports of batches and requests. Out: the text of `/metrics`. Every server has a registry of its own.
How fast the model runs is a quotient of two counters:
`rate(transduce_audio_seconds_total[5m]) / rate(transduce_busy_seconds_total[5m])`.
"""

import sys

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from transduce.server.batcher import Batcher, BatchReport

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = CONTENT_TYPE_LATEST

LATENCY_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SPAN_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
AUDIO_SECONDS = (1, 2, 5, 10, 20, 40, 80, 120, 160, 240, 320)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._init_recognition()
        self._init_http()

    def _init_recognition(self) -> None:
        into = self._registry
        self._audio = Counter("transduce_audio_seconds", "Audio recognised.", registry=into)
        self._busy = Counter("transduce_busy_seconds", "Time that the model ran.", registry=into)
        self._padded = Counter("transduce_padded_seconds", "Audio, padding counted.", registry=into)
        self._failed = Counter("transduce_failed_spans", "Spans that met an error.", registry=into)
        self._spans = Histogram(
            "transduce_batch_spans", "Spans of a batch.", buckets=SPAN_COUNTS, registry=into
        )
        self._requests = Histogram(
            "transduce_batch_requests", "Requests that share a batch.", buckets=SPAN_COUNTS, registry=into
        )
        self._batch_audio = Histogram(
            "transduce_batch_audio_seconds", "Audio of a batch.", buckets=AUDIO_SECONDS, registry=into
        )
        self._batch_time = Histogram(
            "transduce_batch_duration_seconds", "Time a batch ran.", buckets=LATENCY_SECONDS, registry=into
        )
        self._waited = Histogram(
            "transduce_queue_wait_seconds", "Time a span waited.", buckets=LATENCY_SECONDS, registry=into
        )

    def _init_http(self) -> None:
        into = self._registry
        self._answered = Histogram(
            "transduce_http_request_duration_seconds",
            "Time from a request to the end of its answer.",
            ("method", "route", "status"),
            buckets=LATENCY_SECONDS,
            registry=into,
        )
        self._refused = Counter(
            "transduce_refused_requests", "Requests refused because of overload.", registry=into
        )
        self._gone = Counter(
            "transduce_disconnected_requests", "Transcriptions whose client went away.", registry=into
        )
        blocks = Gauge(
            "transduce_python_allocated_blocks",
            "Blocks of memory that Python holds; a steady rise is a leak.",
            registry=into,
        )
        blocks.set_function(sys.getallocatedblocks)

    def watch(self, batcher: Batcher) -> None:
        """Show the work of a batcher at the moment of each reading."""
        gauges = {
            "transduce_requests": ("Transcriptions under way.", lambda: batcher.load().num_jobs),
            "transduce_queue_spans": ("Spans that wait.", lambda: batcher.load().num_waiting),
            "transduce_queue_audio_seconds": (
                "Audio that waits in memory.",
                lambda: batcher.load().waiting_seconds,
            ),
        }
        for name, (description, read) in gauges.items():
            Gauge(name, description, registry=self._registry).set_function(read)

    def batch(self, report: BatchReport) -> None:
        """Count a batch that was recognised."""
        self._audio.inc(report.audio_seconds)
        self._busy.inc(report.busy_seconds)
        self._padded.inc(report.padded_seconds)
        self._failed.inc(report.num_failed)
        self._spans.observe(report.num_spans)
        self._requests.observe(report.num_jobs)
        self._batch_audio.observe(report.audio_seconds)
        self._batch_time.observe(report.busy_seconds)
        for seconds in report.waited_seconds:
            self._waited.observe(seconds)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer; `route` is a path of the application, not of the client."""
        self._answered.labels(method, route, str(status)).observe(seconds)

    def refusal(self) -> None:
        """Count a request that was turned away."""
        self._refused.inc()

    def disconnection(self) -> None:
        """Count a client that did not wait."""
        self._gone.inc()

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)
