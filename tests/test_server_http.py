"""Limits, errors, ids, readiness and counters of the server, over a recogniser of clicks."""

import errno
import logging
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fakes import RATE, ClickBackend, FloatArray, click_model, clicks, write_wav
from http_support import CLICKS, TRANSCRIPTIONS, Site, events, multipart, serving, until

from transduce.errors import ResourceError
from transduce.server.app import create_app
from transduce.server.service import Service
from transduce.server.settings import Settings
from transduce.types import Hypothesis


@dataclass
class HeldBackend(ClickBackend):
    """Recognises nothing while `hold` is set."""

    hold: threading.Event = field(default_factory=threading.Event)

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        while self.hold.is_set():
            self.hold.wait(0.01)
            threading.Event().wait(0.005)
        return super().recognize(waveforms)


@contextmanager
def held(settings: Settings) -> Iterator[tuple[Site, HeldBackend]]:
    """A server whose engine stands still from the warm-up to the end of the block."""
    backend = HeldBackend()
    with serving(click_model(backend), settings) as site:
        backend.hold.set()
        try:
            yield site, backend
        finally:
            backend.hold.clear()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(
        click_model(), Settings(max_upload_bytes=2**20, max_audio_seconds=20, drain_seconds=2)
    ) as site:
        yield site


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_wav(tmp_path_factory.mktemp("clicks") / "a.wav", clicks(2, {0.5: 1, 1.5: 2})).read_bytes()


def exchange(site: Site, sent: bytes, seconds: float = 10.0) -> bytes:
    """All that comes back on a connection on which these bytes are sent."""
    with socket.create_connection(("127.0.0.1", site.port), seconds) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(2**16):
            received += part
        return received


# Uploads


def test_an_upload_that_says_it_is_too_large_is_413(site: Site) -> None:
    answer = site.transcribe(b"x" * (2**20 + 1))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (413, "request_too_large", "file")
    assert "1 MiB" in answer.error["message"]


def test_an_upload_that_does_not_say_so_is_413(site: Site) -> None:
    body, content_type = multipart([("model", "whisper-1")], b"x" * (3 * 2**20))
    chunks = (body[i : i + 2**16] for i in range(0, len(body), 2**16))
    answer = site.ask("POST", TRANSCRIPTIONS, chunks, {"Content-Type": content_type})
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_an_upload_that_fits_exactly_is_taken(site: Site) -> None:
    body, content_type = multipart([("model", "whisper-1")], b"")
    site_limit = 2**20
    body, content_type = multipart([("model", "whisper-1")], b"x" * (site_limit - len(body)))
    assert len(body) == site_limit
    answer = site.ask("POST", TRANSCRIPTIONS, body, {"Content-Type": content_type})
    assert (answer.status, answer.error["code"]) == (400, "audio")


def test_a_recording_that_is_too_long_is_400(site: Site, tmp_path: Any) -> None:
    content = write_wav(tmp_path / "long.wav", clicks(21, {0.5: 1})).read_bytes()
    answer = site.transcribe(content)
    assert (answer.status, answer.error["code"]) == (400, "audio")
    assert "longer than the 20 s" in answer.error["message"]


def test_an_upload_that_stops_arriving_is_408() -> None:
    with serving(click_model(), replace(CLICKS, upload_idle_seconds=0.2)) as site:
        head = (
            "Host: t\r\nContent-Length: 1000\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        received = exchange(site, f"POST {TRANSCRIPTIONS} HTTP/1.1\r\n{head}".encode())
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b'"timeout"' in received
        until(lambda: site.service.num_requests == 0)


def test_a_client_that_leaves_amid_its_upload_frees_its_place(site: Site, recording: bytes) -> None:
    head = "Host: t\r\nContent-Length: 1000\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    gone = site.metric("transduce_disconnected_requests_total")
    with socket.create_connection(("127.0.0.1", site.port)) as connection:
        connection.sendall(f"POST {TRANSCRIPTIONS} HTTP/1.1\r\n{head}".encode())
        until(lambda: site.service.num_requests == 1)
    until(lambda: site.service.num_requests == 0)
    until(lambda: site.metric("transduce_disconnected_requests_total") == gone + 1)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"--x\r\n"),
        ("multipart/form-data; boundary=x", b"garbage"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"\xff" * 1000),
        ("multipart/form-data; boundary=" + "x" * 5000, b"--x--"),
        ("application/json", b'{"model": "whisper-1"}'),
        ("application/x-www-form-urlencoded", b"model=whisper-1&file=abc"),
        ("text/plain", b""),
    ],
)
def test_what_is_no_form_is_400(site: Site, content_type: str, body: bytes) -> None:
    answer = site.ask("POST", TRANSCRIPTIONS, body, {"Content-Type": content_type})
    assert answer.status == 400
    assert answer.error["message"]


def test_too_many_fields_and_too_large_ones_are_400(site: Site, recording: bytes) -> None:
    assert site.transcribe(recording, *[("prompt", "x")] * 200).status == 400
    assert site.transcribe(recording, prompt="x" * (2**20)).status == 413
    assert site.transcribe(recording, ("prompt", "x" * 10_000)).status == 200


def test_a_full_disk_is_503(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    answer = site.transcribe(b"x" * 1000)
    assert (answer.status, answer.error["code"]) == (503, "resource")
    assert answer.headers["retry-after"]


# Overload


def test_more_requests_than_there_are_places_are_503(recording: bytes) -> None:
    settings = replace(CLICKS, max_requests=2)
    with held(settings) as (site, backend):
        clients = [site.begin(recording) for _ in range(2)]
        until(lambda: site.service.batcher.load().num_jobs == 2)
        refused = site.transcribe(recording)
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert site.get("/health").status == 200
        assert site.metric("transduce_refused_requests_total") == 1
        backend.hold.clear()
        for client in clients:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            client.close()
        assert site.transcribe(recording).status == 200


def test_overload_is_told_before_the_body_is_read(recording: bytes) -> None:
    with held(replace(CLICKS, max_requests=1)) as (site, _), site.begin(recording):
        until(lambda: site.service.batcher.load().num_jobs == 1)
        answer = site.ask(
            "POST", TRANSCRIPTIONS, b"", {"Content-Length": "1000000", "Expect": "100-continue"}
        )
        assert answer.status == 503


def test_files_wait_on_disk_while_the_queue_is_full(tmp_path: Any) -> None:
    """The queue holds a minute; eight files of two minutes each are all answered."""
    places = {n + 0.5: n % 8 for n in range(120)}
    content = write_wav(tmp_path / "a.wav", clicks(120, places)).read_bytes()
    with serving(click_model(), replace(CLICKS, queue_seconds=60)) as site:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: site.transcribe(content), range(8)))
        assert {len(answer.json["text"].split()) for answer in answers} == {120}


# Ids, errors


@pytest.mark.parametrize("given", ["abc-1.2_3", "x" * 128])
def test_a_clients_request_id_comes_back(site: Site, given: str) -> None:
    assert site.get("/health", {"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", 'a"b', "x" * 129, "ä"])
def test_an_id_that_would_harm_logs_is_replaced(site: Site, given: str) -> None:
    found = site.get("/health", {"X-Request-Id": given}).headers["x-request-id"]
    assert found.startswith("req_")
    assert found != site.get("/health").headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", TRANSCRIPTIONS, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/gpt-5", 404, "model_not_found"),
        ("POST", "/v1/audio/translations", 404, "not_found"),
    ],
)
def test_all_errors_have_openais_form(site: Site, method: str, path: str, status: int, code: str) -> None:
    answer = site.ask(method, path)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_monitors_may_ask_for_the_head_alone(site: Site, path: str) -> None:
    answer = site.ask("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("kind", ["application/json", "audio/wav"])
def test_a_body_that_is_no_form_is_told_its_type(site: Site, recording: bytes, kind: str) -> None:
    answer = site.ask("POST", TRANSCRIPTIONS, recording, {"Content-Type": kind})
    assert (answer.status, answer.error["param"]) == (400, "file")
    assert answer.error["message"].endswith(f"in multipart/form-data, and this body is {kind}")


def failing(error: Exception) -> ClickBackend:
    """Works at the warm-up and on faint noise, and fails on clicks."""
    return ClickBackend(fault=lambda waveforms: error if max(w.max() for w in waveforms) > 0.05 else None)


def test_a_bug_is_500_and_tells_only_the_log(recording: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with serving(click_model(failing(KeyError("secret detail"))), CLICKS) as site:
        answer = site.transcribe(recording, headers={"X-Request-Id": "id-of-the-bug"})
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert site.get("/health").status == 200
    assert "secret detail" in caplog.text


def test_memory_that_ran_out_is_503(recording: bytes) -> None:
    with serving(click_model(failing(ResourceError("the GPU ran out of memory"))), CLICKS) as site:
        answer = site.transcribe(recording)
    assert (answer.status, answer.error["code"]) == (503, "resource")
    assert "GPU" in answer.error["message"]


def test_an_error_before_a_stream_begins_is_an_error(site: Site) -> None:
    answer = site.transcribe(b"not audio", stream="true")
    assert (answer.status, answer.error["code"]) == (400, "audio")


def test_a_stream_that_takes_long_is_kept_alive(recording: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.server.transcription.KEEP_ALIVE_SECONDS", 0.1)
    with held(CLICKS) as (site, backend):
        timer = threading.Timer(0.6, backend.hold.clear)
        timer.start()
        answer = site.transcribe(recording, stream="true")
        timer.join()
    assert answer.text.count(": still working\n\n") >= 2
    assert [event["type"].rpartition(".")[2] for event in events(answer)] == ["delta", "delta", "done"]


# Readiness


def test_ready_means_warm() -> None:
    backend = HeldBackend()
    backend.hold.set()
    app = create_app(click_model(backend), CLICKS)
    service = Service(click_model(backend), CLICKS, app.state.metrics)
    service.start()
    assert service.obstacle == "warming up"
    backend.hold.clear()
    until(lambda: service.obstacle is None)
    longest = [max(batch) / RATE for batch in backend.batches]
    assert max(longest) == 30.0
    assert sum(backend.batches[-1]) / RATE >= 120  # a full batch
    service.close()
    assert service.obstacle in ("shutting down", "broken")


def test_a_warm_up_that_fails_is_never_ready(caplog: pytest.LogCaptureFixture) -> None:
    backend = ClickBackend(fault=lambda waveforms: ResourceError("no room"))
    service = Service(click_model(backend), CLICKS, create_app(click_model(), CLICKS).state.metrics)
    service.start()
    until(lambda: "the warm-up failed" in caplog.text)
    assert service.obstacle == "warming up"
    service.close()


def test_a_broken_engine_is_unhealthy(recording: bytes) -> None:
    broken = threading.Event()
    backend = ClickBackend(fault=lambda waveforms: RuntimeError("CUDA error") if broken.is_set() else None)
    with serving(click_model(backend), CLICKS) as site:
        broken.set()
        assert site.transcribe(recording).status == 500
        assert (site.get("/health").status, site.get("/health").json) == (503, {"status": "broken"})
        assert site.get("/ready").status == 503
        broken.clear()  # so that the next request works and the server is well again
        assert site.transcribe(recording).status == 200


# Counters


def test_metrics(recording: bytes) -> None:
    with serving(click_model(), CLICKS) as site:
        before = site.metric("transduce_audio_seconds_total")
        for _ in range(3):
            assert site.transcribe(recording).status == 200
        site.get("/no/such/path/42")
        answer = site.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert site.metric("transduce_audio_seconds_total") == pytest.approx(before + 6.0)
        for name in ("requests", "queue_spans", "queue_audio_seconds"):
            assert site.metric(f"transduce_{name}") == 0
        assert site.metric("process_resident_memory_bytes") > 1e6
        assert site.metric("transduce_python_allocated_blocks") > 1e4
        counted = 'transduce_http_request_duration_seconds_count{method="POST",route="%s",status="200"} 3.0'
        assert counted % TRANSCRIPTIONS in answer.text
        assert "/no/such" not in answer.text


def test_requests_are_logged(site: Site, recording: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "transduce"):
        site.transcribe(recording, headers={"X-Request-Id": "the-id"})
        site.get("/health")
        until(lambda: "answered" in caplog.text)
    (record,) = [record for record in caplog.records if record.message == "answered"]
    fields = record.fields  # type: ignore[attr-defined]
    assert fields["status"] == 200
    assert fields["audio_seconds"] == 2.0
    assert fields["path"] == TRANSCRIPTIONS


# Documents


def test_json_may_carry_files(site: Site, recording: bytes) -> None:
    answer = site.transcribe(recording, ("include[]", "srt"), ("include[]", "vtt"), ("include[]", "txt"))
    documents = answer.json["documents"]
    assert documents["txt"] == "two three\n"
    assert documents["srt"] == site.transcribe(recording, response_format="srt").text
    assert documents["vtt"] == site.transcribe(recording, response_format="vtt").text


def test_a_stream_of_verbose_json_has_segments_and_words(site: Site, recording: bytes) -> None:
    *deltas, done = events(site.transcribe(recording, stream="true", response_format="verbose_json"))
    words = [word["word"] for delta in deltas for word in delta["segment"]["words"]]
    assert words == ["two", "three"]
    assert [segment["text"] for segment in done["segments"]] == [d["segment"]["text"] for d in deltas]
    assert done["duration"] == 2.0
