"""A model repository on a real tritonserver: goldens by http and grpc, alone and together, and bad input.

What an answer must be is the golden of the upstream package, or what the same model says without Triton.
Faults that users of Triton met are those of `facts/field-bugs.md`, group L, and number 58.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import field_inputs
import numpy as np
import pytest
from support import ROOT, TRITON_ENV, data, golden, num_cases, read_wav, utterances
from triton_support import (
    Answer,
    Client,
    Protocol,
    Server,
    files,
    samples,
    triton,
    write_repository,
)

from transduce import Transcript
from transduce.errors import TransduceError
from transduce.transcriber import Model, load_model

pytestmark = [pytest.mark.triton, pytest.mark.linux]

RATE = 16000
TIMEOUT_SECONDS = 120.0
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
INVALID = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT", "stream": "StatusCode.INVALID_ARGUMENT"}

both_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_repository(tmp_path_factory.mktemp("triton") / "repository")
    return write_repository(folder, "--stream")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with triton(repository) as server:
        assert {name: entry["state"] for name, entry in server.index().items()} == {
            "transduce": "READY",
            "transduce_stream": "READY",
        }
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.fixture(scope="module")
def direct(repository: Path) -> Iterator[Model]:
    """The deployed files without Triton."""
    with load_model(repository / "transduce" / "1" / "model") as model:
        yield model


def one_model(repository: Path, folder: Path) -> Path:
    """A repository with a copy of the model that does not stream."""
    shutil.copytree(repository / "transduce", folder / "transduce")
    return folder


def wav(name: str) -> Path:
    return ROOT / "tests" / "data" / "audio" / name


def results(pending: Sequence["Future[Answer]"]) -> list[Answer]:
    return [answer.result(TIMEOUT_SECONDS) for answer in pending]


# Goldens


@both_protocols
def test_an_utterance_alone_says_what_upstream_says(client: Client, protocol: Protocol) -> None:
    entries = golden("nemo-hybrid")["utterances"]
    assert len(entries) == 40
    for entry in entries:
        assert client.ask(files(wav(entry["file"])), protocol).text == entry["text"]


@both_protocols
def test_eight_at_once_get_each_its_own_answer(client: Client, direct: Model, protocol: Protocol) -> None:
    """Files and samples of 1 to 20 seconds, in ever new company; words and times are the direct ones."""
    waveforms = [read_wav(utterance["file"]) for utterance in utterances()]
    lengths = (1, 1, 4, 2, 6, 1, 3, 5)  # utterances in one recording
    rng = np.random.default_rng(5)
    for _ in range(num_cases(4, 40)):
        given = [np.concatenate([waveforms[i] for i in rng.integers(0, 40, length)]) for length in lengths]
        wanted = [direct.transcribe(waveform) for waveform in given]
        assert max(transcript.duration for transcript in wanted) > 15
        inputs = [
            samples(waveform, RATE) if row % 2 else files(as_wav(waveform))
            for row, waveform in enumerate(given)
        ]
        answers = results([client.send(each, protocol) for each in inputs])
        for answer, transcript in zip(answers, wanted, strict=True):
            assert_equal(answer.json("TRANSCRIPT"), transcript)


def as_wav(waveform: Any) -> bytes:
    return field_inputs.riff(field_inputs.fmt(field_inputs.FLOAT_TAG, 1, RATE, 32), waveform.tobytes())


def assert_equal(content: dict[str, Any], transcript: Transcript) -> None:
    """Everything but the source's name; confidences to a rounding of the third decimal."""
    wanted = transcript.to_dict()
    assert spoken(content) == spoken(wanted)
    assert (content["text"], content["duration"]) == (wanted["text"], wanted["duration"])
    assert (content["model"], content["head"]) == ("demo", "tdt")
    assert content["schema"] == wanted["schema"]
    assert confidences(content) == pytest.approx(confidences(wanted), abs=0.002)


def spoken(content: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [(w["word"], w["start"], w["end"]) for s in content["segments"] for w in s["words"]]


def confidences(content: dict[str, Any]) -> list[float]:
    return [w["confidence"] for s in content["segments"] for w in s["words"]]


@pytest.mark.parametrize(
    ("path", "head", "name"),
    [
        pytest.param("models/gigaam/v3_e2e_rnnt.ckpt", "rnnt", "gigaam-v3_e2e_rnnt", id="gigaam"),
        pytest.param("models/nemo/hybrid.nemo", "ctc", "nemo-hybrid", id="the demo's other head"),
        pytest.param(
            "models/onnx/nemo-rnnt-onnx-asr", "auto", "nemo-rnnt", id="onnx-asr", marks=pytest.mark.shared
        ),
    ],
)
def test_other_models_say_what_upstream_says(tmp_path: Path, path: str, head: str, name: str) -> None:
    folder = write_repository(tmp_path / "r", "--head", head, model=str(data(path)))
    entries = golden(name)["utterances"][:12]
    wanted = [entry["ctc"]["text"] if head == "ctc" else entry["text"] for entry in entries]
    with triton(folder) as server, Client(server) as client:
        pending = [client.send(files(wav(e["file"])), PROTOCOLS[n % 2]) for n, e in enumerate(entries)]
        assert [answer.text for answer in results(pending)] == wanted


def test_the_outputs_tell_the_same(client: Client) -> None:
    answer = client.ask(files(wav("u01.wav")))
    content = answer.json("TRANSCRIPT")
    assert answer.text == content["text"]
    assert answer.json("SEGMENTS") == content["segments"]
    assert answer.json("WORDS") == [word for segment in content["segments"] for word in segment["words"]]
    assert set(content["segments"][0]) == {"id", "start", "end", "text", "confidence", "words"}
    assert set(answer.json("WORDS")[0]) == {"word", "start", "end", "confidence"}


def test_a_client_gets_the_outputs_that_it_asks_for(client: Client) -> None:
    answer = client.send(files(wav("u01.wav")), outputs=["WORDS"]).result(TIMEOUT_SECONDS)
    assert list(answer.outputs) == ["WORDS"]


@both_protocols
def test_samples_have_a_rate(client: Client, direct: Model, protocol: Protocol) -> None:
    waveform = read_wav("u35.wav")
    half = waveform[: len(waveform) // 2 * 2].reshape(-1, 2).mean(axis=1)
    assert_equal(
        client.ask(samples(half, 8000), protocol).json("TRANSCRIPT"),
        direct.transcribe(half, sample_rate=8000),
    )
    assert_equal(client.ask(samples(waveform), protocol).json("TRANSCRIPT"), direct.transcribe(waveform))


@both_protocols
def test_silence_is_a_result(client: Client, direct: Model, protocol: Protocol) -> None:
    noise = np.random.default_rng(1).normal(scale=1e-5, size=4 * RATE).astype(np.float32)
    for waveform in (np.zeros_like(noise), noise):
        answer = client.ask(samples(waveform, RATE), protocol)
        assert (answer.text, answer.json("WORDS"), answer.json("SEGMENTS")) == ("", [], [])
        content = answer.json("TRANSCRIPT")
        assert content["duration"] == 4.0
        assert tuple(content["warnings"]) == direct.transcribe(waveform).warnings


@both_protocols
def test_a_long_recording_is_cut_at_pauses(client: Client, direct: Model, protocol: Protocol) -> None:
    waveforms = [read_wav(utterance["file"]) for utterance in utterances()]
    waveform = np.concatenate(waveforms)
    assert len(waveform) / RATE > 100 > 3 * direct.spec.max_segment_seconds
    answer = client.ask(samples(waveform, RATE), protocol)
    assert_equal(answer.json("TRANSCRIPT"), direct.transcribe(waveform))
    assert len(answer.json("SEGMENTS")) > 3


# Several recordings in one request


@both_protocols
def test_padding_with_true_lengths_changes_nothing(client: Client, direct: Model, protocol: Protocol) -> None:
    """Group L: a client that batches by itself pads with zeros and sends the true lengths."""
    waveforms = [read_wav(f"u0{number}.wav") for number in range(8)]
    longest = max(map(len, waveforms))
    rows = np.stack([np.pad(waveform, (0, longest - len(waveform))) for waveform in waveforms])
    answer = client.ask(samples(rows, RATE, list(map(len, waveforms))), protocol)
    contents = [json.loads(text) for text in answer.outputs["TRANSCRIPT"]]
    for content, waveform in zip(contents, waveforms, strict=True):
        assert_equal(content, direct.transcribe(waveform))


@both_protocols
def test_several_files_are_rows_of_a_request(client: Client, protocol: Protocol) -> None:
    entries = golden("nemo-hybrid")["utterances"][:5]
    answer = client.ask(files(*(wav(entry["file"]) for entry in entries)), protocol)
    assert answer.outputs["TEXT"] == [entry["text"] for entry in entries]


@both_protocols
def test_a_bad_row_is_named(client: Client, protocol: Protocol) -> None:
    good = wav("u01.wav").read_bytes()
    answer = client.ask(files(good, b"no audio", good), protocol)
    assert answer.status == INVALID[protocol]
    assert "row 1: AUDIO" in answer.message
    assert answer.message.endswith("[audio]")


@both_protocols
def test_more_requests_than_are_under_way_wait_for_their_turn(client: Client, protocol: Protocol) -> None:
    entries = golden("nemo-hybrid")["utterances"] * 2
    answers = results([client.send(files(wav(entry["file"])), protocol) for entry in entries])
    assert [answer.text for answer in answers] == [entry["text"] for entry in entries]


# Bad input


NUMBERS = {"dtype": "INT32", "shape": [1, 1], "data": "gD4AAA=="}  # 16000
BAD: dict[str, tuple[Any, str]] = {
    "no audio": (files(b"this is text, not audio" * 100), "AUDIO"),
    "a head without a body": (files(b"RIFF\xff\xff\xff\xffWAVEfmt "), "AUDIO"),
    "empty file": (files(b""), "AUDIO is empty (0 bytes)"),
    "empty samples": (samples(np.empty((1, 0)), RATE), "contains no audio samples"),
    "length 0": (samples(np.ones((1, RATE)), RATE, [0]), "contains no audio samples"),
    "length beyond the data": (samples(np.ones((1, RATE)), RATE, [RATE + 1]), "NUM_SAMPLES is 16001"),
    "negative length": (samples(np.ones((1, RATE)), RATE, [-1]), "NUM_SAMPLES is -1"),
    "rate 0": (samples(np.ones((1, RATE)), 0), "sample_rate"),
    "negative rate": (samples(np.ones((1, RATE)), -8000), "sample_rate"),
    "not a number": (samples(np.full((1, RATE), np.nan), RATE), "NaN"),
    "integers as floats": (samples(np.full((1, RATE), 3e7), RATE), "full scale"),
    "both kinds": (files(b"x") | samples(np.ones((1, RATE)), RATE), "send AUDIO"),
    "a rate alone": ({"SAMPLE_RATE": NUMBERS}, "send AUDIO"),
    "a rate for a file": (files(b"x") | {"SAMPLE_RATE": NUMBERS}, "SAMPLE_RATE and NUM_SAMPLES go with"),
}


@both_protocols
@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_its_own_error(client: Client, protocol: Protocol, name: str) -> None:
    inputs, message = BAD[name]
    answer = client.ask(inputs, protocol)
    assert answer.status == INVALID[protocol]
    assert message in answer.message
    assert answer.message.endswith("[audio]")
    assert not answer.outputs


@both_protocols
def test_bad_requests_fail_alone(client: Client, protocol: Protocol) -> None:
    """Group L: each good request among bad ones, sent at once, has its own right answer."""
    entries = golden("nemo-hybrid")["utterances"]
    good = [client.send(files(wav(entry["file"])), protocol) for entry in entries[:4]]
    bad = [client.send(inputs, protocol) for inputs, _ in BAD.values()]
    good += [client.send(files(wav(entry["file"])), protocol) for entry in entries[4:8]]
    assert [answer.text for answer in results(good)] == [entry["text"] for entry in entries[:8]]
    for answer, (_, message) in zip(results(bad), BAD.values(), strict=True):
        assert answer.status == INVALID[protocol]
        assert message in answer.message


def test_every_odd_file_says_what_it_says_without_triton(
    client: Client, direct: Model, tmp_path: Path
) -> None:
    field_inputs.build(tmp_path, read_wav("u35.wav"))
    paths = sorted(tmp_path.iterdir())
    outcomes = direct.transcribe_batch(paths)
    answers = results([client.send(files(path), PROTOCOLS[n % 2]) for n, path in enumerate(paths)])
    assert sum(isinstance(outcome, Transcript) for outcome in outcomes) > 40
    for path, outcome, answer in zip(paths, outcomes, answers, strict=True):
        if isinstance(outcome, TransduceError):
            assert (path.name, answer.status) in {(path.name, INVALID[name]) for name in PROTOCOLS}
            assert answer.message.endswith(f"[{outcome.code}]")
        else:
            assert (path.name, answer.text) == (path.name, outcome.text)
            assert len(answer.json("TRANSCRIPT")["warnings"]) == len(outcome.warnings)


# Streams


def test_a_stream_gives_segments_as_they_become_final(client: Client, direct: Model) -> None:
    waveform = np.tile(np.concatenate([read_wav(utterance["file"]) for utterance in utterances()]), 4)
    answer = client.ask(samples(waveform, RATE), "stream", model="transduce_stream")
    *parts, last = answer.responses
    content = json.loads(last["TRANSCRIPT"][0])
    assert_equal(content, direct.transcribe(waveform))
    assert [json.loads(part["SEGMENTS"][0]) for part in parts] == [
        [segment] for segment in content["segments"]
    ]
    assert "".join(part["TEXT"][0] for part in parts) == content["text"]
    assert [part["TRANSCRIPT"] for part in parts] == [[""]] * len(parts)
    assert (last["TEXT"], last["WORDS"], last["SEGMENTS"]) == ([""], ["[]"], ["[]"])
    assert parts[0]["seconds"] < last["seconds"] / 2


def test_streams_at_once(client: Client) -> None:
    entries = golden("nemo-hybrid")["utterances"][:8]
    pending = [
        client.send(files(wav(entry["file"])), "stream", model="transduce_stream") for entry in entries
    ]
    for answer, entry in zip(results(pending), entries, strict=True):
        assert "".join(part["TEXT"][0] for part in answer.responses) == entry["text"]


@pytest.mark.parametrize("name", BAD)
def test_a_stream_that_fails_ends_with_its_error(client: Client, name: str) -> None:
    inputs, message = BAD[name]
    answer = client.ask(inputs, "stream", model="transduce_stream")
    assert message in answer.message
    assert answer.responses == []


def test_a_stream_is_of_one_recording(client: Client) -> None:
    answer = client.ask(samples(np.ones((2, RATE)), RATE), "stream", model="transduce_stream")
    assert "a stream is of one recording; the request has 2 [audio]" in answer.message


# Cancellation


def an_hour(tmp_path: Path) -> Path:
    waveform = np.concatenate([read_wav(utterance["file"]) for utterance in utterances()])
    path = tmp_path / "hour.wav"
    path.write_bytes(as_wav(np.resize(waveform, 3600 * RATE)))
    return path


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def until_idle(pid: int) -> None:
    """Until a process has used next to no processor time for two seconds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        used = cpu_seconds(pid)
        time.sleep(2.0)
        if cpu_seconds(pid) - used < 0.2:
            return
    raise AssertionError("it goes on working")


@pytest.fixture(scope="module")
def hour(server: Server, client: Client, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An hour of speech, and the processor time that it costs where nobody cancels."""
    path = an_hour(tmp_path_factory.mktemp("hour"))
    (pid,) = [pid for pid, name in server.stubs().items() if name == "transduce"]
    used = cpu_seconds(pid)
    assert client.ask(files(path), "grpc").status is None
    return path, cpu_seconds(pid) - used


@pytest.mark.parametrize(("protocol", "model"), [("grpc", "transduce"), ("stream", "transduce_stream")])
def test_a_cancelled_request_costs_no_more(
    server: Server, client: Client, protocol: Protocol, model: str, hour: tuple[Path, float]
) -> None:
    """Number 58: the work ends soon after the client has gone, and the next request has the model."""
    (pid,) = [pid for pid, name in server.stubs().items() if name == model]
    path, whole_seconds = hour
    answer = client.send(files(path), protocol, model=model, cancel_seconds=1.5).result(TIMEOUT_SECONDS)
    assert answer.status == "StatusCode.CANCELLED" or protocol == "stream"
    used = cpu_seconds(pid)
    until_idle(pid)
    assert cpu_seconds(pid) - used < whole_seconds / 4
    follower = client.ask(files(wav("u01.wav")), protocol, model=model)
    assert follower.status is None


# Life and death


def test_unloading_and_loading_leaves_nothing_behind(server: Server, client: Client) -> None:
    """Processes, threads, files and shared memory are those of before; memory stays."""

    def state() -> tuple[list[str], int, int, int]:
        text = golden("nemo-hybrid")["utterances"][1]["text"]
        assert client.ask(files(wav("u01.wav"))).text == text
        time.sleep(1.0)
        return (
            sorted(server.stubs().values()),
            server.num_threads(),
            server.num_files(),
            len(server.shared_memory()),
        )

    def cycle() -> None:
        server.unload()
        deadline = time.monotonic() + 20
        while "transduce" in server.stubs().values() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(server.stubs().values()) == ["transduce_stream"]
        server.load()

    cycle()
    before, memory_before = state(), server.memory_bytes()
    for _ in range(num_cases(3, 20)):
        cycle()
    assert state() == before
    assert server.memory_bytes() - memory_before < 8 * 2**20


def test_requests_under_way_are_answered_when_the_model_is_unloaded(server: Server, client: Client) -> None:
    entries = golden("nemo-hybrid")["utterances"][:8]
    pending = [client.send(files(wav(entry["file"]))) for entry in entries]
    time.sleep(0.5)
    server.unload()
    texts = [answer.text for answer in results(pending)]
    assert texts == [entry["text"] for entry in entries]
    assert client.ask(files(wav("u01.wav"))).status is not None
    server.load()
    assert client.ask(files(wav("u01.wav"))).status is None


def test_a_server_ends_at_sigterm_and_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    folder = one_model(repository, tmp_path / "one")
    for _ in range(2):
        with triton(folder) as server, Client(server) as client:
            assert client.ask(files(wav("u01.wav"))).status is None
            stubs = list(server.stubs())
            assert server.shared_memory()
        assert server.process.returncode == 0
        assert not [pid for pid in stubs if Path(f"/proc/{pid}").exists()]
        assert not server.shared_memory()


def test_numpy_2_is_refused_where_the_stub_cannot_read_it(repository: Path, tmp_path: Path) -> None:
    """Server issue 8019: every output would be empty, and only clients would notice."""
    with triton(one_model(repository, tmp_path / "one"), numpy2=True) as server:
        entry = server.index()["transduce"]
        assert entry["state"] == "UNAVAILABLE"
        assert "cannot read the arrays of numpy 2" in entry["reason"]
        assert 'pip install "numpy<2"' in entry["reason"]


def test_two_instances_share_the_work(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "two", "--instances", "2", "--max-batch-audio-seconds", "20")
    with triton(folder) as server, Client(server) as client:
        assert len(server.stubs()) == 2
        entries = golden("nemo-hybrid")["utterances"]
        pending = [
            client.send(files(wav(entry["file"])), PROTOCOLS[n % 2]) for n, entry in enumerate(entries)
        ]
        assert [answer.text for answer in results(pending)] == [entry["text"] for entry in entries]


def test_a_parameter_that_is_wrong_is_the_models_status(repository: Path, tmp_path: Path) -> None:
    folder = one_model(repository, tmp_path / "wrong")
    config = folder / "transduce" / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    config.write_text(re.sub(r'"160"', '"much"', text), encoding="utf-8")
    with triton(folder) as server:
        assert (
            "max_batch_audio_seconds is a number from 1 to 86400, not 'much'"
            in server.index()["transduce"]["reason"]
        )


# The example


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
def test_the_example_client(server: Server, protocol: Protocol, tmp_path: Path) -> None:
    bad = tmp_path / "text.wav"
    bad.write_text("no audio")
    script, digits = ROOT / "examples" / "triton_client.py", ROOT / "examples" / "digits.wav"
    command = [TRITON_ENV / "bin" / "python", script, "--protocol", protocol, "--url", server.url(protocol)]
    run = subprocess.run([*command, digits, bad], capture_output=True, text=True)
    assert run.stdout.strip() == "three seven five three six six three one six"
    assert re.search(r"text\.wav: AUDIO.*\[audio\] \(", run.stderr)
    assert run.returncode == 1
