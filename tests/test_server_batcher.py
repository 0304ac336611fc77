"""The batcher over a recogniser of clicks: order, sharing, limits, cancelling, failures, the end."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from fakes import RATE, ClickBackend, FloatArray, clicks

from transduce.errors import AudioError, ResourceError
from transduce.server.batcher import Batcher, BatchReport, CancelledJobError, ClosedError, Job
from transduce.server.schedule import ScheduleRules
from transduce.types import Hypothesis

RULES = ScheduleRules(batch_seconds=60.0)
TIMEOUT = 10.0


@dataclass
class GatedBackend(ClickBackend):
    """Waits in each batch until it is let on, so that a test knows what is queued behind it."""

    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        self.began.release()
        assert self.gate.acquire(timeout=TIMEOUT)
        return super().recognize(waveforms)

    def wait(self) -> None:
        """Until a batch has begun."""
        assert self.began.acquire(timeout=TIMEOUT)

    def let(self, num_batches: int = 1000) -> None:
        self.gate.release(num_batches)


@contextmanager
def running(
    backend: ClickBackend,
    queue_seconds: float = 600.0,
    observe: Callable[[BatchReport], None] | None = None,
) -> Iterator[Batcher]:
    batcher = Batcher(backend, rules=RULES, queue_seconds=queue_seconds, observe=observe)
    try:
        yield batcher
    finally:
        if isinstance(backend, GatedBackend):
            backend.let()
        batcher.close()


def span(label: int, num_seconds: float = 1.0) -> FloatArray:
    return clicks(num_seconds, {0.5: label})


def labels(futures: Sequence["Future[Hypothesis]"]) -> list[list[int]]:
    return [future.result(TIMEOUT).ids.tolist() for future in futures]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Results


def test_each_future_has_its_own_result() -> None:
    with running(ClickBackend()) as batcher, batcher.open() as job:
        spans = [span(n % 8, 1.0 + n % 5) for n in range(50)]
        assert labels([job.submit(waveform) for waveform in spans]) == [[n % 8] for n in range(50)]


def test_many_threads_get_what_is_theirs() -> None:
    def work(number: int) -> list[list[int]]:
        with batcher.open() as job:
            return labels([job.submit(span((number + k) % 8, 0.6 + k % 3)) for k in range(20)])

    with running(ClickBackend()) as batcher, ThreadPoolExecutor(16) as threads:
        found = list(threads.map(work, range(64)))
    assert found == [[[(number + k) % 8] for k in range(20)] for number in range(64)]


def test_one_thread_touches_the_backend() -> None:
    names: set[str] = set()
    backend = ClickBackend(fault=lambda waveforms: names.add(threading.current_thread().name))
    with running(backend) as batcher, ThreadPoolExecutor(4) as threads:

        def work(number: int) -> None:
            with batcher.open() as job:
                labels([job.submit(span(number % 8))])

        list(threads.map(work, range(20)))
    assert names == {"transduce-batcher"}


# Sharing


def test_spans_of_all_requests_share_batches() -> None:
    backend = GatedBackend()
    with running(backend) as batcher, batcher.open() as a, batcher.open() as b, batcher.open() as c:
        first = a.submit(span(0))
        backend.wait()
        futures = [job.submit(span(n)) for n, job in enumerate((a, b, c))]
        backend.let()
        assert labels([first, *futures]) == [[0], [0], [1], [2]]
    assert list(map(len, backend.batches)) == [1, 3]


def test_a_short_request_overtakes_a_long_file() -> None:
    backend = GatedBackend()
    with running(backend, 2000.0) as batcher, batcher.open() as long, batcher.open() as short:
        later = [long.submit(span(0, 28.0)) for _ in range(20)]
        backend.wait()
        early = short.submit(span(3))
        backend.let(3)
        assert labels([early]) == [[3]]
        assert not later[-1].done()


# Limits


def test_the_queue_is_bounded_in_seconds_of_audio() -> None:
    backend = GatedBackend()
    loads = []
    with running(backend, queue_seconds=100.0) as batcher, ThreadPoolExecutor(8) as threads:

        def work(number: int) -> None:
            with batcher.open() as job:
                labels([job.submit(span(0, 20.0)) for _ in range(15)])

        futures = [threads.submit(work, number) for number in range(8)]
        while not all(future.done() for future in futures):
            loads.append(batcher.load().waiting_seconds)
            backend.let(1)
            time.sleep(0.002)
    assert max(loads) >= 100.0 - 20.0  # it was full
    assert max(loads) <= 100.0 + 8 * 20.0  # but for one span a request


def test_a_request_may_always_have_one_span_waiting() -> None:
    backend = GatedBackend()
    with running(backend, queue_seconds=50.0) as batcher, batcher.open() as greedy, batcher.open() as other:
        submitting = threading.Thread(target=lambda: [greedy.submit(span(0, 25.0)) for _ in range(6)])
        submitting.start()
        backend.wait()
        until(lambda: batcher.load().waiting_seconds >= 25.0)
        assert not other.submit(span(1, 25.0)).done()  # it was queued, without waiting for room
        backend.let()
        submitting.join(TIMEOUT)


def test_idle_means_nothing_is_held() -> None:
    """Waveforms are free once their batch is done, also while no other batch follows."""
    with running(ClickBackend()) as batcher, batcher.open() as job:
        waveform = span(1)
        reference = weakref.ref(waveform)
        future = job.submit(waveform)
        del waveform
        assert labels([future]) == [[1]]
        until(lambda: gc.collect() >= 0 and reference() is None)
        assert batcher.load().num_waiting == 0


# Cancelling


def test_a_cancelled_request_leaves_at_once() -> None:
    backend = GatedBackend()
    with running(backend) as batcher, batcher.open() as running_job:
        running_future = running_job.submit(span(5))
        backend.wait()
        job = batcher.open()
        futures = [job.submit(span(0, 20.0)) for _ in range(10)]
        job.cancel()
        assert batcher.load().waiting_seconds == 0.0
        assert all(future.cancelled() for future in futures)
        with pytest.raises(CancelledJobError):
            job.submit(span(0))
        backend.let()
        assert labels([running_future]) == [[5]]
    assert backend.batches == [[RATE]]  # none of the ten was recognised


def test_cancelling_wakes_a_thread_that_waits_for_room() -> None:
    backend = GatedBackend()
    outcomes = []

    def work(job: Job) -> None:
        try:
            for _ in range(10):
                job.submit(span(0, 20.0))
        except CancelledJobError:
            outcomes.append("woken")

    with running(backend, queue_seconds=40.0) as batcher:
        job = batcher.open()
        thread = threading.Thread(target=work, args=(job,))
        thread.start()
        until(lambda: batcher.load().waiting_seconds >= 40.0)
        job.cancel()
        thread.join(1.0)
        assert outcomes == ["woken"]


def test_a_cancelled_request_does_not_wait_for_the_batch_that_runs() -> None:
    backend = GatedBackend()
    with running(backend) as batcher:
        job = batcher.open()
        future = job.submit(span(1))
        backend.wait()
        job.cancel()
        job.cancel()
        with pytest.raises(CancelledJobError):
            future.result(0)
        backend.let()
        with batcher.open() as other:
            assert labels([other.submit(span(2))]) == [[2]]


def test_leaving_a_job_drops_what_waits() -> None:
    backend = GatedBackend()
    with running(backend) as batcher:
        with batcher.open() as job:
            job.submit(span(0))
            backend.wait()
            waiting = job.submit(span(1))
        with pytest.raises(CancelledError):
            waiting.result(TIMEOUT)
        assert batcher.load().num_jobs == 0


# Failures


def failing_on(label: int, error: Exception, min_items: int = 1) -> ClickBackend:
    """A backend that refuses each batch with this label in it (if it has so many items)."""
    level = np.float32((label + 1) / 10)

    def fault(waveforms: Sequence[FloatArray]) -> Exception | None:
        is_bad = any(level in waveform for waveform in waveforms)
        return error if is_bad and len(waveforms) >= min_items else None

    return ClickBackend(fault=fault)


@pytest.mark.parametrize("error", [AudioError("bad"), RuntimeError("a bug"), ResourceError("full")])
def test_a_bad_span_costs_only_itself(error: Exception) -> None:
    with running(failing_on(7, error)) as batcher, batcher.open() as good, batcher.open() as bad:
        futures = [good.submit(span(n)) for n in range(4)]
        wrong = bad.submit(span(7))
        assert labels(futures) == [[0], [1], [2], [3]]
        with pytest.raises(type(error)):
            wrong.result(TIMEOUT)
        assert not batcher.is_broken


def test_a_batch_too_large_for_memory_is_retried_in_parts() -> None:
    backend = GatedBackend(fault=failing_on(1, MemoryError(), min_items=2).fault)
    with running(backend) as batcher, batcher.open() as job:
        first = job.submit(span(0))
        backend.wait()
        futures = [job.submit(span(1)) for _ in range(4)]
        backend.let()
        assert labels([first, *futures]) == [[0], [1], [1], [1], [1]]


def test_a_backend_that_fails_on_noise_too_is_broken_until_it_works_again() -> None:
    failures = [RuntimeError("illegal memory access")] * 2
    backend = ClickBackend(fault=lambda waveforms: failures.pop() if failures else None)
    with running(backend) as batcher, batcher.open() as job:
        with pytest.raises(RuntimeError, match="illegal"):
            job.submit(span(0)).result(TIMEOUT)
        assert batcher.is_broken
        assert batcher.is_alive
        failures[:] = [RuntimeError("one more")]
        with pytest.raises(RuntimeError, match="one more"):
            job.submit(span(0)).result(TIMEOUT)
        assert not batcher.is_broken


# Reports


def test_reports_add_up() -> None:
    reports: list[BatchReport] = []
    backend = GatedBackend(fault=failing_on(7, AudioError("bad")).fault)
    with running(backend, observe=reports.append) as batcher, batcher.open() as a, batcher.open() as b:
        first = a.submit(span(0, 3.0))
        backend.wait()
        futures = [a.submit(span(1, 2.0)), b.submit(span(2, 1.5)), b.submit(span(7, 1.5))]
        time.sleep(0.05)
        backend.let()
        assert labels([first, *futures[:2]]) == [[0], [1], [2]]
        until(lambda: len(reports) == 2)
    report = reports[1]
    assert (report.num_spans, report.num_jobs, report.num_failed) == (3, 2, 1)
    assert (report.audio_seconds, report.padded_seconds) == (5.0, 6.0)
    assert all(0.05 <= seconds < TIMEOUT for seconds in report.waited_seconds)
    assert 0 < report.busy_seconds < TIMEOUT


def test_it_rests_after_work_and_amid_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.server.batcher.IDLE_SECONDS", 0.05)
    monkeypatch.setattr("transduce.server.batcher.BUSY_SECONDS", 0.3)
    rests: list[int] = []
    backend = GatedBackend()
    batcher = Batcher(backend, rules=RULES, on_rest=lambda: rests.append(len(backend.batches)))
    with batcher.open() as job:
        time.sleep(0.2)
        assert rests == []  # nothing was done
        futures = [job.submit(span(0, 50.0)) for _ in range(4)]
        for _ in futures:
            backend.let(1)
            time.sleep(0.2)
        assert labels(futures) == [[0]] * 4
        until(lambda: rests[-1:] == [4])
    backend.let()
    batcher.close()
    assert rests[0] < 4  # amid the work
    assert len(rests) <= 3  # and once behind it


# The end


def test_draining_finishes_what_is_under_way_and_takes_nothing_new() -> None:
    backend = GatedBackend()
    batcher = Batcher(backend, rules=RULES)
    results = []

    def work() -> None:
        with job:
            results.extend(labels([job.submit(span(n % 8, 20.0)) for n in range(6)]))

    job = batcher.open()
    threads = [threading.Thread(target=work), threading.Thread(target=batcher.close, args=(TIMEOUT,))]
    for thread in threads:
        thread.start()
    until(lambda: batcher.is_closing)
    with pytest.raises(ClosedError):
        batcher.open()
    backend.let()
    for thread in threads:
        thread.join(TIMEOUT)
    assert results == [[0], [1], [2], [3], [4], [5]]
    assert not batcher.is_alive


def test_what_is_not_done_when_the_time_is_up_is_cancelled() -> None:
    backend = GatedBackend()
    batcher = Batcher(backend, rules=RULES)
    job = batcher.open()
    job.submit(span(0))
    backend.wait()
    waiting = job.submit(span(1))
    closing = threading.Thread(target=batcher.close, args=(0.05,))
    closing.start()
    until(waiting.cancelled)
    backend.let()
    closing.join(TIMEOUT)
    assert not batcher.is_alive
    assert len(backend.batches) == 1


def test_closing_twice_does_nothing() -> None:
    batcher = Batcher(ClickBackend())
    batcher.close()
    batcher.close(1.0)
    assert not batcher.is_alive
