"""Faults that users of other servers met, as tests with the numbers of `facts/field-bugs.md`, groups G and H.

Group F, memory, is in `test_server_memory`. The files are those of `field_inputs`; what they must say is
what the same model says without a server, which `test_field_bugs` compares with what was spoken.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import field_inputs
import pytest
from fakes import RATE, ClickBackend, FloatArray, clicks, write_wav
from http_support import CLICKS, TRANSCRIPTIONS, Site, events, serving, until
from support import ROOT, data, read_wav, utterances

from transduce.errors import TransduceError
from transduce.server.settings import Settings
from transduce.tokenizer import Tokenizer
from transduce.transcriber import Model, load_model
from transduce.transcript import Transcript
from transduce.types import Hypothesis

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    with load_model("demo") as model:
        yield model


@pytest.fixture(scope="module")
def site(demo: Model) -> Iterator[Site]:
    with serving(demo, Settings(drain_seconds=2.0)) as site:
        yield site


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("field")
    field_inputs.build(folder, read_wav("u35.wav"))
    return folder


@pytest.fixture(scope="module")
def ref(folder: Path) -> bytes:
    return (folder / "ref_s16.wav").read_bytes()


REF_TEXT = "three eight zero zero five three"


# A, over HTTP: every odd file


def test_every_odd_file_says_what_it_says_without_a_server(demo: Model, site: Site, folder: Path) -> None:
    paths = sorted(folder.iterdir())
    outcomes = demo.transcribe_batch(paths)
    texts = [outcome.text for outcome in outcomes if isinstance(outcome, Transcript)]
    assert texts.count(REF_TEXT) > 20
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda path: site.transcribe(path.read_bytes()), paths))
    for path, outcome, answer in zip(paths, outcomes, answers, strict=True):
        if isinstance(outcome, TransduceError):
            assert (path.name, answer.status, answer.error["code"]) == (path.name, 400, "audio")
        else:
            assert (path.name, answer.json["text"]) == (path.name, outcome.text)
            assert answer.json["usage"]["seconds"] == outcome.to_dict()["duration"]
            assert answer.json.get("warnings", []) == [
                text.replace(str(path), "audio.wav") for text in outcome.warnings
            ]


@pytest.mark.parametrize("response_format", ["text", "srt", "vtt"])
def test_6_warnings_come_with_answers_that_are_no_json(
    site: Site, folder: Path, response_format: str
) -> None:
    answer = site.transcribe((folder / "cut_60pct.wav").read_bytes(), response_format=response_format)
    assert answer.status == 200
    (warning,) = json.loads(answer.headers["x-warnings"])
    assert "audio.wav" in warning or "s" in warning


# G. Concurrency


def test_55_one_model_many_threads(site: Site) -> None:
    """8 threads with 20 calls each, every answer the one that the clip has alone."""
    clips = [data(f"audio/{utterance['file']}").read_bytes() for utterance in utterances()[:10]]
    alone = [site.transcribe(clip, response_format="verbose_json").json for clip in clips]

    def work(number: int) -> list[bool]:
        order = [(number + k) % len(clips) for k in range(20)]
        found = [site.transcribe(clips[i], response_format="verbose_json").json for i in order]
        return [alike(answer, alone[i]) for answer, i in zip(found, order, strict=True)]

    with ThreadPoolExecutor(8) as threads:
        assert all(all(row) for row in threads.map(work, range(8)))


def alike(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """The same but for confidences, which rounding may move."""

    def stripped(answer: dict[str, Any]) -> str:
        content = json.dumps(answer)
        return re.sub(r'"(avg_logprob|confidence)": [-0-9.e]+', "", content)

    return stripped(found) == stripped(expected)


class SlowBackend(ClickBackend):
    """Takes its time for each batch, without holding the interpreter."""

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        time.sleep(0.5)
        return super().recognize(waveforms)


@pytest.mark.alone
def test_57_the_server_is_not_deaf_while_it_transcribes(tmp_path: Path) -> None:
    """A ten-minute file; /health all the while, and a small file that does not wait for the large one."""
    long = write_wav(tmp_path / "long.wav", clicks(600, {n + 0.5: n % 8 for n in range(600)})).read_bytes()
    short = write_wav(tmp_path / "short.wav", clicks(1, {0.5: 2})).read_bytes()
    finished: dict[str, float] = {}

    def transcribe(name: str, content: bytes, num_words: int) -> None:
        answer = site.transcribe(content)
        assert len(answer.json["text"].split()) == num_words
        finished[name] = time.monotonic()

    with serving(Model(SlowBackend(), tokenizer()), CLICKS) as site, ThreadPoolExecutor(2) as threads:
        works = [threads.submit(transcribe, "long", long, 600)]
        until(lambda: site.service.batcher.load().is_running)
        works.append(threads.submit(transcribe, "short", short, 1))
        waits = []
        while not all(work.done() for work in works):
            waits.append(seconds_of_health(site))
            time.sleep(0.02)
        for work in works:
            work.result()
    assert finished["short"] < finished["long"]
    assert len(waits) > 20
    assert sorted(waits)[int(len(waits) * 0.99)] < 0.1


def seconds_of_health(site: Site) -> float:
    started = time.monotonic()
    assert site.get("/health").status == 200
    return time.monotonic() - started


@pytest.mark.alone
def test_57_health_answers_under_full_load(site: Site) -> None:
    """The real engine, eight clients with a minute of audio each, again and again."""
    minute = data("audio/u01.wav").read_bytes()
    body = minute[:44] + minute[44:] * 10
    stop = threading.Event()

    def load() -> int:
        num_done = 0
        while not stop.is_set():
            assert site.transcribe(body).status == 200
            num_done += 1
        return num_done

    with ThreadPoolExecutor(8) as threads:
        works = [threads.submit(load) for _ in range(8)]
        waits = []
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            waits.append(seconds_of_health(site))
            time.sleep(0.02)
        stop.set()
        assert sum(work.result() for work in works) >= 8
    assert sorted(waits)[int(len(waits) * 0.99)] < 0.1, sorted(waits)[-5:]


@pytest.mark.linux
def test_58_a_client_that_goes_away_frees_its_work(tmp_path: Path) -> None:
    """Ten spans, the client closes after the first; three more close while they are queued."""
    content = write_wav(tmp_path / "a.wav", clicks(300, {n + 0.5: 1 for n in range(300)})).read_bytes()
    backend = SlowBackend()
    settings = replace(CLICKS, max_requests=4, queue_seconds=60.0)
    with serving(Model(backend, tokenizer()), settings) as site:
        backend.batches.clear()
        before = open_temporary_files()
        clients = [site.begin(content) for _ in range(4)]
        until(lambda: site.service.batcher.load().num_jobs == 4)
        until(lambda: len(backend.batches) >= 1)
        assert len(open_temporary_files()) == len(before) + 4
        for client in clients:
            client.close()
        until(lambda: site.service.batcher.load().num_jobs == 0, seconds=1.0)
        until(lambda: open_temporary_files() == before, seconds=1.0)
        until(lambda: not site.service.batcher.load().is_running)
        num_batches = len(backend.batches)
        assert site.transcribe(content[: 44 + 2 * RATE]).status == 200  # there is a place again
        assert len(backend.batches) == num_batches + 1  # and nothing of the others was left
        until(lambda: site.metric("transduce_disconnected_requests_total") == 4)


def open_temporary_files() -> list[str]:
    """Deleted files that this process still has open: spooled uploads, and those of the test runner."""
    folder = Path("/proc/self/fd")
    links = [os.readlink(folder / name) for name in os.listdir(folder) if os.path.islink(folder / name)]
    return [link for link in links if link.endswith("(deleted)") and link.startswith("/tmp")]


def test_58_a_client_of_a_stream_that_goes_away_frees_its_work(tmp_path: Path) -> None:
    content = write_wav(tmp_path / "a.wav", clicks(300, {n + 0.5: 1 for n in range(300)})).read_bytes()
    with serving(Model(SlowBackend(), tokenizer()), CLICKS) as site:
        client = site.begin(content, ("stream", "true"))
        until(lambda: site.service.batcher.load().num_jobs == 1)
        client.close()
        until(lambda: site.service.batcher.load().num_jobs == 0, seconds=1.0)


def test_60_threads_of_a_server_that_may_use_one_core() -> None:
    """Pinned to one core, it starts no more workers than that, and says nothing of affinities."""
    program = (
        "import os, torch; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from transduce.transcriber import load_model; m = load_model('demo');"
        "import numpy; m.transcribe(numpy.zeros(16000, numpy.float32) + 0.01); print(torch.get_num_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = ["taskset", "-c", "0", sys.executable, "-c", program]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert run.stdout.strip() == "1"
    assert "affinity" not in run.stderr


# H. Server API


def tokenizer() -> Tokenizer:
    words = ("one", "two", "three", "four", "five", "six", "seven", "42")
    return Tokenizer.from_pieces([*(f"▁{word}" for word in words), "teen"], "clicks")


@pytest.fixture(scope="module")
def click_site() -> Iterator[Site]:
    with serving(Model(ClickBackend(), tokenizer()), CLICKS) as site:
        yield site


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What recordings of clicks say -> the recordings."""
    folder = tmp_path_factory.mktemp("clicks")
    places = {"42": {0.5: 7}, "one two": {0.5: 0, 1.0: 1}, "": {}}
    return {text: write_wav(folder / "a.wav", clicks(4, p)).read_bytes() for text, p in places.items()}


@pytest.mark.parametrize("text", ["42", "one two"])
def test_63_text_is_text(click_site: Site, said: dict[str, bytes], text: str) -> None:
    answer = click_site.transcribe(said[text], response_format="text")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == f"{text}\n"


def test_63_subtitles_are_subtitles(click_site: Site, said: dict[str, bytes]) -> None:
    srt = click_site.transcribe(said["42"], response_format="srt")
    assert srt.headers["content-type"] == "text/plain; charset=utf-8"
    assert srt.text == "1\n00:00:00,480 --> 00:00:01,480\n42\n"
    vtt = click_site.transcribe(said["42"], response_format="vtt")
    assert vtt.headers["content-type"] == "text/vtt; charset=utf-8"
    assert vtt.text == "WEBVTT\n\n00:00:00.480 --> 00:00:01.480\n42\n"


def test_63_an_unknown_format_is_400(click_site: Site, said: dict[str, bytes]) -> None:
    answer = click_site.transcribe(said["42"], response_format="yaml")
    assert (answer.status, answer.error["param"]) == (400, "response_format")


@pytest.mark.parametrize("text", ["one two", ""])
def test_64_types_of_verbose_json(click_site: Site, said: dict[str, bytes], text: str) -> None:
    answer = click_site.transcribe(
        said[text], ("timestamp_granularities[]", "word"), response_format="verbose_json"
    ).json
    assert answer["text"] == text
    assert type(answer["duration"]) is float
    assert isinstance(answer["language"], str)
    assert isinstance(answer["segments"], list)
    for segment in answer["segments"]:
        assert type(segment["id"]) is int
        assert type(segment["start"]) is float
        assert type(segment["end"]) is float
        assert isinstance(segment["text"], str)
    assert [word["word"] for word in answer["words"]] == text.split()


def test_64_confidence_without_bounds_is_still_json(said: dict[str, bytes]) -> None:
    """A model may be infinitely unsure: JSON has no word for that."""

    class Unsure(ClickBackend):
        def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
            found = super().recognize(waveforms)
            for hypothesis in found:
                hypothesis.log_probs[:] = -1000.0
            return found

    with serving(Model(Unsure(), tokenizer()), CLICKS) as site:
        answer = site.transcribe(said["one two"], ("include[]", "logprobs"), response_format="verbose_json")
    content = json.loads(answer.text, parse_constant=pytest.fail)
    assert content["segments"][0]["avg_logprob"] < -700


def test_66_verbose_json_by_itself_has_segments(click_site: Site, said: dict[str, bytes]) -> None:
    answer = click_site.transcribe(said["one two"], response_format="verbose_json").json
    assert [segment["text"] for segment in answer["segments"]] == ["one two"]
    assert "words" not in answer


@pytest.mark.parametrize(
    "name", ["timestamp_granularities[]", "timestamp_granularities", "timestamp_granularities[0]"]
)
def test_66_words_alone(click_site: Site, said: dict[str, bytes], name: str) -> None:
    answer = click_site.transcribe(said["one two"], (name, "word"), response_format="verbose_json").json
    assert [(w["word"], w["start"], w["end"]) for w in answer["words"]] == [
        ("one", 0.48, 0.56),
        ("two", 0.96, 1.04),
    ]
    assert answer["segments"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-5"}, 404, "model"),
        ({"model": ""}, 400, "model"),
        ({"language": "english"}, 400, "language"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"stream": "perhaps"}, 400, "stream"),
        ({"keywords[]": "word"}, 400, "keywords"),
    ],
)
def test_66_each_field_acts_or_is_refused(
    click_site: Site, said: dict[str, bytes], fields: dict[str, str], status: int, param: str
) -> None:
    answer = click_site.transcribe(said["42"], **fields)
    assert (answer.status, answer.error["param"]) == (status, param)


def test_66_a_missing_file_is_400(click_site: Site) -> None:
    answer = click_site.transcribe(None)
    assert (answer.status, answer.error["param"]) == (400, "file")


def test_66_a_file_that_is_a_text_field_is_400(click_site: Site, said: dict[str, bytes]) -> None:
    answer = click_site.transcribe(said["42"], filename=None)
    assert (answer.status, answer.error["param"]) == (400, "file")


@pytest.mark.parametrize("name", ["a.m4a", "a.opus", "pipe.webm", "a.flac"])
@pytest.mark.parametrize("filename", ["blob", "x.wav", "recording", "../../etc/passwd", "a\\b:c.exe"])
@pytest.mark.parametrize("media_type", ["application/octet-stream", "audio/mpeg", None])
def test_68_neither_name_nor_type_is_trusted(
    site: Site, folder: Path, name: str, filename: str, media_type: str | None
) -> None:
    answer = site.transcribe((folder / name).read_bytes(), filename=filename, media_type=media_type)
    assert answer.json["text"] == REF_TEXT


@pytest.mark.parametrize("filename", ["talk.wav", "запись №1.wav", "C:\\tmp\\talk.wav", "/etc/talk.wav", ""])
def test_68_text_is_400_whatever_it_is_called(site: Site, filename: str) -> None:
    answer = site.transcribe(b"this is not audio\n" * 50, filename=filename, media_type="audio/wav")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "audio", "file")
    shown = filename.replace("\\", "/").rpartition("/")[2]
    assert answer.error["message"].startswith(shown or "the upload")


KEY = "sk-right-0123456789"


@pytest.fixture(scope="module")
def locked_site() -> Iterator[Site]:
    with serving(Model(ClickBackend(), tokenizer()), replace(CLICKS, api_keys=(KEY,))) as site:
        yield site


def bearer(key: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {key}"}


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/", "/page.css", "/page.js", "/docs", "/openapi.json"]
)
def test_70_health_and_the_page_need_no_key_and_tell_nothing(locked_site: Site, path: str) -> None:
    answer = locked_site.get(path)
    assert answer.status == 200
    assert KEY not in answer.text


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), bearer(""), bearer(KEY + "x"), bearer(KEY[:-1]), bearer(KEY, "Basic")]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nothing", "/health/", "//health"])
def test_70_everything_else_needs_the_key(locked_site: Site, path: str, headers: dict[str, str]) -> None:
    answer = locked_site.get(path, headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.error["code"] == "invalid_api_key"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_70_the_right_key_in_any_case_of_its_scheme(
    locked_site: Site, said: dict[str, bytes], scheme: str
) -> None:
    assert locked_site.get("/v1/models", bearer(KEY, scheme)).status == 200
    answer = locked_site.transcribe(said["42"], headers=bearer(KEY, scheme))
    assert answer.json["text"] == "42"


def test_70_a_wrong_key_is_told_before_the_body_is_read(locked_site: Site) -> None:
    """100 MB are announced; the answer is there before they are, and one who sends them sees it too."""
    sent = []

    def body() -> Iterator[bytes]:
        for _ in range(100):
            sent.append(1)
            yield b"x" * 2**20

    headers = {"Content-Type": "multipart/form-data; boundary=x"} | bearer("wrong")
    announced = headers | {"Content-Length": str(100 * 2**20), "Expect": "100-continue"}
    early = locked_site.ask("POST", TRANSCRIPTIONS, b"", announced)
    assert (early.status, early.error["code"]) == (401, "invalid_api_key")
    late = locked_site.ask("POST", TRANSCRIPTIONS, body(), headers | {"Content-Length": str(100 * 2**20)})
    assert (late.status, late.error["code"]) == (401, "invalid_api_key")
    assert len(sent) == 100
    assert locked_site.metric("transduce_requests", bearer(KEY)) == 0


def test_70_the_key_is_in_no_description_of_the_server(locked_site: Site) -> None:
    assert KEY not in repr(locked_site.service.settings)


@pytest.mark.parametrize(("name", "seconds"), [("silence_4s.wav", 4.0), ("n0160.wav", 0.01)])
@pytest.mark.parametrize("response_format", FORMATS)
def test_71_silence_is_an_answer(
    site: Site, folder: Path, name: str, seconds: float, response_format: str
) -> None:
    answer = site.transcribe((folder / name).read_bytes(), response_format=response_format)
    assert answer.status == 200
    if response_format.endswith("json"):
        assert answer.json["text"] == ""
        assert answer.json["usage"]["seconds"] == seconds
        assert answer.json.get("segments", []) == []
    else:
        assert answer.text == {"text": "", "srt": "", "vtt": "WEBVTT\n"}[response_format]


def test_71_silence_in_a_stream(site: Site, folder: Path) -> None:
    answer = site.transcribe((folder / "silence_4s.wav").read_bytes(), stream="true")
    (done,) = events(answer)
    assert (done["type"], done["text"]) == ("transcript.text.done", "")
