"""What is deployed to Triton, without Triton: inputs, outputs, settings, the service, and the command.

The recogniser is one of clicks, so that every answer is known; `test_triton_server` has the real server.
"""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fakes import WORDS, ClickBackend, FloatArray, click_model, clicks, write_wav
from support import DEMO, data, golden
from typer.testing import CliRunner

from transduce.cli import app
from transduce.errors import AudioError, ResourceError, UnsupportedModelError
from transduce.server.batcher import CancelledJobError, ClosedError
from transduce.transcriber import Model
from transduce.transcript import Transcript
from transduce.triton import outputs
from transduce.triton.loading import load
from transduce.triton.recordings import Recording, read_recordings
from transduce.triton.repository import Deployment, configuration
from transduce.triton.service import Failure, Request, Service, failure_of
from transduce.triton.settings import Settings
from transduce.types import Segment

TIMEOUT_SECONDS = 20.0


# Inputs


def column(*values: int) -> FloatArray:
    return np.array(values, np.int32)[:, None]


def test_a_row_of_bytes_is_a_recording() -> None:
    audio = np.array([[b"one\0"], [b""]], np.object_)
    assert [r.source for r in read_recordings(audio, None, None, None)] == [b"one\0", b""]


def test_samples_are_cut_to_their_true_length_and_copied() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    first, second = read_recordings(None, rows, column(8000, 16000), column(3, 4))
    rows[:] = -1
    assert (first.sample_rate, second.sample_rate) == (8000, 16000)
    np.testing.assert_array_equal(first.source, [0, 1, 2])
    np.testing.assert_array_equal(second.source, [4, 5, 6, 7])


def test_rate_and_length_may_be_left_out() -> None:
    (recording,) = read_recordings(None, np.ones((1, 5), np.float32), None, None)
    assert recording.sample_rate is None
    assert len(recording.source) == 5


@pytest.mark.parametrize("length", [-1, 6, 2**31 - 1])
def test_a_length_that_is_not_there_is_refused(length: int) -> None:
    with pytest.raises(AudioError, match=f"NUM_SAMPLES is {length}, but SAMPLES holds 5"):
        read_recordings(None, np.ones((1, 5), np.float32), None, column(length))


def test_inputs_that_do_not_go_together_are_refused() -> None:
    audio, rows = np.array([[b"x"]], np.object_), np.ones((2, 5), np.float32)
    for given in ((None, None, None, None), (audio, rows, None, None), (audio, None, column(8000), None)):
        with pytest.raises(AudioError):
            read_recordings(*given)
    with pytest.raises(AudioError, match=r"SAMPLE_RATE has the shape \[3, 1\] beside 2 rows"):
        read_recordings(None, rows, column(1, 2, 3), None)


# Settings


def test_settings_come_back_from_the_parameters() -> None:
    settings = Settings("onnx", "onnx", "int8", "ctc", 3, 42.5, 600.0, 5)
    assert Settings.from_parameters(settings.to_parameters()) == settings


@pytest.mark.parametrize("text", ["", "many", "0", "-1", "nan", "inf"])
def test_a_number_that_makes_no_sense_names_its_parameter(text: str) -> None:
    parameters = Settings("model").to_parameters() | {"max_requests": text}
    with pytest.raises(UnsupportedModelError, match="max_requests"):
        Settings.from_parameters(parameters)


def test_a_parameter_that_is_missing_is_named() -> None:
    parameters = Settings("model").to_parameters()
    del parameters["head"]
    with pytest.raises(UnsupportedModelError, match="no parameter head"):
        Settings.from_parameters(parameters)


@pytest.mark.parametrize(
    ("deployment", "lines"),
    [
        (
            Deployment(),
            ['name: "transduce"', "instance_group { kind: KIND_CPU count: 1 }", "dynamic_batching {}"],
        ),
        (Deployment("a", device="cuda", num_instances=2), ["instance_group { kind: KIND_GPU count: 2 }"]),
        (Deployment(is_streamed=True), ["model_transaction_policy { decoupled: true }"]),
    ],
)
def test_configuration(deployment: Deployment, lines: Sequence[str]) -> None:
    text = configuration(deployment)
    assert set(lines) <= set(text.splitlines())
    assert ("decoupled" in text) == deployment.is_streamed
    for name in outputs.OUTPUTS:
        assert f'output {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] }}' in text


# The service


class Ends:
    """The end of each request, as the service tells it."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Sequence[Transcript] | Failure] = {}
        self.segments: dict[int, list[Segment]] = {}
        self._changed = threading.Condition()

    def request(
        self, number: int, *recordings: Recording, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Request:
        segments = self.segments.setdefault(number, [])
        return Request(
            recordings,
            lambda transcripts: self._put(number, transcripts),
            lambda failure: self._put(number, failure),
            segments.append,
            is_cancelled,
        )

    def _put(self, number: int, outcome: Sequence[Transcript] | Failure) -> None:
        with self._changed:
            assert number not in self.outcomes
            self.outcomes[number] = outcome
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) == count, TIMEOUT_SECONDS)

    def texts(self, number: int) -> list[str]:
        outcome = self.outcomes[number]
        assert not isinstance(outcome, Failure), outcome
        return [transcript.text for transcript in outcome]

    def failure(self, number: int) -> Failure:
        outcome = self.outcomes[number]
        assert isinstance(outcome, Failure)
        return outcome


@contextmanager
def service(backend: ClickBackend, **settings: float) -> Iterator[Service]:
    running = Service(click_model(backend), Settings("", **settings))  # type: ignore[arg-type]
    try:
        yield running
    finally:
        running.close()


def click(label: int, num_seconds: float = 2.0) -> Recording:
    return Recording(clicks(num_seconds, {1.0: label}))


def test_requests_share_batches_and_get_their_own_answers() -> None:
    ends, gate = Ends(), threading.Event()
    backend = ClickBackend()
    with service(backend) as running:
        backend.batches.clear()
        backend.fault = lambda waveforms: None if gate.wait(TIMEOUT_SECONDS) else RuntimeError()
        for number in range(8):
            running.start(ends.request(number, click(number)))
        time.sleep(0.3)
        gate.set()
        ends.wait(8)
    assert [ends.texts(number) for number in range(8)] == [[word] for word in WORDS]
    assert len(backend.batches) < 8
    assert backend.num_closed == 1


def test_a_file_is_a_recording_too(tmp_path: Path) -> None:
    ends = Ends()
    content = write_wav(tmp_path / "a.wav", clicks(2.0, {0.5: 2, 1.5: 0})).read_bytes()
    with service(ClickBackend()) as running:
        running.start(ends.request(0, Recording(content)))
        ends.wait(1)
    assert ends.texts(0) == ["three one"]


def test_rows_are_answered_together_and_in_order() -> None:
    ends = Ends()
    with service(ClickBackend()) as running:
        running.start(ends.request(0, click(3, 9.0), click(1, 1.5), click(2, 4.0)))
        ends.wait(1)
    assert ends.texts(0) == ["four", "two", "three"]


def test_a_bad_row_fails_its_request_and_no_other() -> None:
    ends = Ends()
    with service(ClickBackend()) as running:
        running.start(ends.request(0, click(0), Recording(b"text"), click(1)))
        running.start(ends.request(1, click(2)))
        ends.wait(2)
    assert ends.texts(1) == ["three"]
    assert ends.failure(0).status == "INVALID_ARG"
    assert ends.failure(0).message.startswith("row 1: AUDIO")
    assert ends.failure(0).message.endswith("[audio]")


def test_what_the_engine_fails_on_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends()
    backend = ClickBackend(
        fault=lambda waveforms: RuntimeError("secret") if any(w.max() > 0.75 for w in waveforms) else None
    )
    with service(backend) as running:
        for number in range(4):
            running.start(ends.request(number, click(7 if number == 1 else number)))
        ends.wait(4)
    assert [ends.texts(number) for number in (0, 2, 3)] == [["one"], ["three"], ["four"]]
    assert ends.failure(1) == Failure(
        "INTERNAL", "the model failed; the log of the server says more [internal]"
    )
    assert "secret" in caplog.text


def test_segments_come_before_the_end_and_are_its_own() -> None:
    ends = Ends()
    recording = Recording(clicks(12.0, {1.0: 0, 5.0: 1, 9.0: 2}))
    with service(ClickBackend()) as running:
        running.start(ends.request(0, recording))
        ends.wait(1)
    (transcript,) = ends.outcomes[0]  # type: ignore[misc]
    assert [segment.text for segment in ends.segments[0]] == ["one", "two", "three"]
    assert tuple(ends.segments[0]) == transcript.segments
    texts = [outputs.of_segment(segment) for segment in ends.segments[0]] + [outputs.of_end(transcript)]
    assert "".join(text["TEXT"] for text in texts) == transcript.text == "one two three"
    assert [json.loads(text["WORDS"])[0]["word"] for text in texts[:-1]] == ["one", "two", "three"]
    assert [bool(text["TRANSCRIPT"]) for text in texts] == [False, False, False, True]


def test_a_cancelled_request_ends_and_the_next_has_the_model() -> None:
    ends, started, gate = Ends(), threading.Event(), threading.Event()

    def fault(waveforms: Sequence[FloatArray]) -> None:
        started.set()
        assert gate.wait(TIMEOUT_SECONDS)

    backend = ClickBackend()
    with service(backend) as running:
        backend.fault = fault
        running.start(ends.request(0, click(0), is_cancelled=started.is_set))
        ends.wait(1)
        assert ends.failure(0).status == "CANCELLED"
        gate.set()
        running.start(ends.request(1, click(1)))
        ends.wait(2)
    assert ends.texts(1) == ["two"]


def test_only_so_many_recordings_are_under_way() -> None:
    ends, gate = Ends(), threading.Event()
    backend = ClickBackend()
    with service(backend, max_requests=2) as running:
        backend.fault = lambda waveforms: None if gate.wait(TIMEOUT_SECONDS) else RuntimeError()

        def start() -> None:
            for number in range(3):
                running.start(ends.request(number, click(number)))

        starting = threading.Thread(target=start)
        starting.start()
        starting.join(0.5)
        assert starting.is_alive()
        gate.set()
        starting.join(TIMEOUT_SECONDS)
        ends.wait(3)


def test_audio_beyond_the_limit_is_refused() -> None:
    ends = Ends()
    with service(ClickBackend(), max_audio_seconds=3.0) as running:
        running.start(ends.request(0, click(0, 2.9)))
        running.start(ends.request(1, click(0, 4.5)))
        ends.wait(2)
    assert ends.texts(0) == ["one"]
    assert "is longer than the 3 s that this server takes [audio]" in ends.failure(1).message


def test_closing_answers_what_is_under_way_and_ends_all_threads() -> None:
    before = set(threading.enumerate())
    ends = Ends()
    with service(ClickBackend()) as running:
        for number in range(5):
            running.start(ends.request(number, click(number)))
    assert [ends.texts(number) for number in range(5)] == [["one"], ["two"], ["three"], ["four"], ["five"]]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (AudioError("a"), "INVALID_ARG", "audio"),
        (ResourceError("a"), "UNAVAILABLE", "resource"),
        (MemoryError(), "UNAVAILABLE", "resource"),
        (ClosedError(), "UNAVAILABLE", "shutting_down"),
        (CancelledJobError(), "CANCELLED", "cancelled"),
        (UnsupportedModelError("a"), "INTERNAL", "unsupported_model"),
        (KeyError("a"), "INTERNAL", "internal"),
    ],
)
def test_errors_have_codes(error: Exception, status: str, code: str) -> None:
    failure = failure_of(error)
    assert failure.status == status
    assert failure.message.endswith(f"[{code}]")


# The command

DEMO_ONNX = DEMO.parent / "onnx"


def plain(output: str) -> str:
    """A message without the box that it is drawn in."""
    return " ".join(output.replace("│", " ").split())


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["triton", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_command_writes_a_model_that_needs_nothing_else(tmp_path: Path) -> None:
    code, output = run(DEMO, tmp_path / "r", "--precision", "int8", "--head", "ctc", "--instances", 3)
    assert (code, output) == (0, f"{tmp_path / 'r' / 'transduce'}: hybrid, ctc, 3 x cpu\n")
    model = tmp_path / "r" / "transduce"
    assert {p.relative_to(model).as_posix() for p in model.rglob("*") if p.is_file()} == {
        "config.pbtxt",
        "1/model.py",
        "1/model/model.onnx",
        "1/model/spec.json",
        "1/model/tokenizer.model",
    }
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["transduce"]


def deployed(model: Path) -> Model:
    """A deployed model as its instance loads it."""
    text = (model / "config.pbtxt").read_text(encoding="utf-8")
    parameters = dict(re.findall(r'key: "(\w+)" value \{ string_value: "(.*)" \}', text))
    return load(model / "1", Settings.from_parameters(parameters), "cpu", 1)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("models/gigaam/v3_e2e_rnnt.ckpt", ("--backend", "torch")),
        ("models/gigaam/v3_e2e_rnnt.ckpt", ()),
        pytest.param("models/onnx/gigaam-v3_e2e_rnnt", (), marks=pytest.mark.shared),
        pytest.param("models/onnx/gigaam-v3_e2e_rnnt/v3_e2e_rnnt_encoder.onnx", (), marks=pytest.mark.shared),
    ],
)
def test_what_was_written_says_what_the_model_says(
    tmp_path: Path, path: str, options: tuple[str, ...]
) -> None:
    """In both engines, from a folder, a file in it, or a checkpoint with its tokenizer beside it."""
    code, output = run(data(path), tmp_path, *options)
    assert code == 0, output
    answers = golden("gigaam-v3_e2e_rnnt")["utterances"][:3]
    with deployed(tmp_path / "transduce") as model:
        assert model.spec.name == "v3_e2e_rnnt"
        assert model.describe()["engine"].startswith("torch" if options else "onnxruntime")
        for answer in answers:
            assert model.transcribe(data(f"audio/{answer['file']}")).text == answer["text"]


def test_a_model_that_is_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    assert run("demo", tmp_path, "--backend", "onnx")[0] == 0
    config = tmp_path / "transduce" / "config.pbtxt"
    before = config.read_text(encoding="utf-8")
    code, output = run("demo", tmp_path, "--instances", 2)
    assert code == 2
    assert "--overwrite" in output
    assert config.read_text(encoding="utf-8") == before
    assert run("demo", tmp_path, "--instances", 2, "--overwrite")[0] == 0
    assert "count: 2" in config.read_text(encoding="utf-8")
    assert run("demo", tmp_path, "--stream")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transduce", "transduce_stream"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("missing.nemo",), 3, "missing.nemo"),
        (("demo", "--name", "../up"), 2, "--name"),
        (("demo", "--backend", "tensorrt"), 2, "tensorrt"),
        (("demo", "--device", "tpu"), 2, "--device"),
        (("demo", "--instances", "0"), 2, "--instances"),
        (("demo", "--instances", "100000"), 2, "--instances"),
        (("demo", "--max-batch-audio-seconds", "1e300"), 2, "--max-batch-audio-seconds"),
        (("demo", "--name", "x" * 300), 2, "--name"),
        (("demo", "--head", "rnnt"), 3, "no rnnt head"),
    ],
)
def test_what_cannot_be_written_is_said(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    model, *options = arguments
    found, output = run(model, tmp_path / "r", *options)
    assert found == code
    assert message in output
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("kind", ["notes", "link", "file"])
def test_only_models_are_replaced(tmp_path: Path, kind: str) -> None:
    """Not a folder of something else, a link to one, or a file, though --overwrite is given."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("years of work")
    target = tmp_path / "r" / "transduce"
    target.parent.mkdir()
    if kind == "notes":
        other.rename(target)
    elif kind == "link":
        target.symlink_to(other)
    else:
        target.write_text("years of work")
    code, output = run("demo", tmp_path / "r", "--overwrite")
    assert code == 2
    assert "no model of Triton" in plain(output)
    assert (target if kind == "file" else target / "notes.txt").read_text() == "years of work"


def test_a_file_is_no_model_repository(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("")
    code, output = run("demo", tmp_path / "r")
    assert code == 2
    assert "is no folder" in plain(output)


def test_a_model_in_a_folder_called_as_the_deployed_file(tmp_path: Path) -> None:
    shutil.copytree(DEMO_ONNX, tmp_path / "model.py")
    assert run(tmp_path / "model.py", tmp_path / "r", "--backend", "onnx")[0] == 0
    model = tmp_path / "r" / "transduce" / "1"
    assert sorted(path.name for path in model.iterdir()) == ["model", "model.py"]


def test_a_precision_that_an_export_cannot_have_names_the_export(tmp_path: Path) -> None:
    code, output = run(DEMO_ONNX, tmp_path / "r", "--backend", "onnx", "--precision", "int8")
    assert code == 3
    assert str(DEMO_ONNX) in output
    assert ".transduce-" not in output
    assert not (tmp_path / "r").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = run("demo", tmp_path / "file" / "r")
    assert code == 3
    assert "[resource]" in output
