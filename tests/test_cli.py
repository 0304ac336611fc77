"""The command line as a user meets it: exit codes, what goes to which stream, which files appear.

`main()` runs inside the test. Where speech does not matter the model is `clicks`, a recogniser of clicks
(`fakes`), so a recording says what the test wrote into it. What needs a terminal, a signal or another locale
is in `test_terminal`.
"""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from fakes import RATE, ClickBackend, click_model, clicks, write_wav
from support import DEMO, ROOT

import transduce
from transduce import cli
from transduce.choice import Choice
from transduce.doctor import Findings
from transduce.onnx.vad import shared_detector
from transduce.pipeline import Limits
from transduce.transcriber import Model, load_model
from transduce.types import FloatArray
from transduce.writers import FORMATS

DIGITS = ROOT / "examples" / "digits.wav"
DIGITS_TEXT = "three seven five three six six three one six"
BOX_DRAWING = re.compile("[\u2500-\u257f]")


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


Runner = Callable[..., Run]


class Pipe(io.BytesIO):
    """Standard input that comes from another command."""

    name = "<stdin>"

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError(29, "Illegal seek")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ClickBackend:
    """What is behind `-m clicks`; any other model is loaded as ever."""
    backend = ClickBackend()

    def load(name: str, choice: Choice, **options: Any) -> Model:
        return click_model(backend) if name == "clicks" else load_model(name, choice, **options)

    monkeypatch.setattr(cli, "load_model", load)
    return backend


@pytest.fixture
def run(backend: ClickBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs `transduce` with arguments; no run may end in a traceback."""
    monkeypatch.setattr(cli.logger, "handlers", [])

    def call(*arguments: object, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "argv", ["transduce", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Pipe(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Run(int(exited.value.code or 0), out, err)

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recording(path: Path, *labels: int) -> Path:
    """A recording of one second and a channel for each label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_wav(path, *(clicks(1, {0.5: label}) for label in labels))


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# Standard output


def test_a_recording_becomes_text_on_standard_output(run: Runner) -> None:
    assert run("transcribe", DIGITS, "-m", "demo") == Run(0, f"{DIGITS_TEXT}\n", "")


def test_json_is_one_object(run: Runner) -> None:
    found = run("transcribe", DIGITS, "-m", "demo", "-f", "json", "--head", "ctc")
    content = json.loads(found.out)
    assert (content["schema"], content["model"], content["head"]) == (1, "demo", "ctc")
    assert content["text"] == " ".join(segment["text"] for segment in content["segments"])
    assert content["source"] == str(DIGITS)
    assert "tokens" not in content


def test_tokens_are_added_when_asked_for(run: Runner, here: Path) -> None:
    content = json.loads(
        run("transcribe", recording(here / "a.wav", 3), "-m", "clicks", "-f", "json", "--tokens").out
    )
    assert [(token["id"], token["frame"]) for token in content["tokens"]] == [(3, 6)]


def test_several_recordings_have_headings(run: Runner, here: Path) -> None:
    for number, name in enumerate(("a.wav", "b.wav")):
        recording(here / name, number)
    assert (
        run("transcribe", "a.wav", "b.wav", "-m", "clicks").out == "== a.wav ==\none\n\n== b.wav ==\ntwo\n\n"
    )
    lines = run("transcribe", "a.wav", "b.wav", "-m", "clicks", "-f", "json").out.splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["a.wav", "b.wav"]


def test_a_pipe_is_read_and_written(run: Runner, here: Path) -> None:
    content = recording(here / "a.wav", 6).read_bytes()
    assert run("transcribe", "-", "-m", "clicks", stdin=content) == Run(0, "seven\n", "")
    assert run("transcribe", "-", "-m", "clicks", "-o", "-", stdin=content).out == "seven\n"
    assert run("transcribe", "-", "-m", "clicks", "-o", "out", stdin=content) == Run(0, "", "")
    assert (here / "out" / "stdin.txt").read_text(encoding="utf-8") == "seven\n"


def test_a_pipe_can_be_read_once(run: Runner, here: Path) -> None:
    content = recording(here / "a.wav", 6).read_bytes()
    found = run("transcribe", "-", "-", "-m", "clicks", stdin=content)
    assert found.code == 1
    assert "seven" in found.out
    assert "is empty" in found.err


def test_silence_is_a_result(run: Runner, here: Path) -> None:
    write_wav(here / "silence.wav", np.zeros(RATE, np.float32))
    assert run("transcribe", "silence.wav", "-m", "clicks") == Run(0, "", "")
    content = json.loads(run("transcribe", "silence.wav", "-m", "clicks", "-f", "json").out)
    assert (content["text"], content["segments"], content["duration"]) == ("", [], 1.0)


def test_a_full_standard_output_is_an_error(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    recording(here / "a.wav", 0)
    monkeypatch.setattr(sys, "stdout", Full())
    found = run("transcribe", "a.wav", "-m", "clicks")
    assert (found.code, found.err) == (1, "error: standard output: No space left on device [output]\n")


# Formats and files


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["a.txt"]),
        (["-f", "srt"], ["a.srt"]),
        (["-f", "json,srt"], ["a.json", "a.srt"]),
        (["-f", "json", "-f", "vtt"], ["a.json", "a.vtt"]),
        (["-f", "TSV, ctm", "--format", "tsv"], ["a.ctm", "a.tsv"]),
        (["-f", "all"], sorted(f"a.{name}" for name in FORMATS)),
    ],
    ids=str,
)
def test_formats_repeat_and_take_commas(
    run: Runner, here: Path, options: list[str], expected: list[str]
) -> None:
    recording(here / "a.wav", 0)
    assert run("transcribe", "a.wav", "-m", "clicks", "-o", "out", *options) == Run(0, "", "")
    assert files(here / "out") == expected


def test_folders_are_mirrored(run: Runner, here: Path) -> None:
    for number, name in enumerate(("talks/a.wav", "talks/day 2/b.wav", "talks/day 2/c.wav")):
        recording(here / name, number)
    (here / "talks" / "notes.txt").write_text("x")
    assert run("transcribe", "talks", "-m", "clicks", "-o", "out") == Run(0, "", "")
    assert files(here / "out") == ["a.txt", "day 2/b.txt", "day 2/c.txt"]
    assert (here / "out" / "day 2" / "c.txt").read_text(encoding="utf-8") == "three\n"


def test_names_that_would_collide_keep_their_extension(run: Runner, here: Path) -> None:
    recording(here / "a.wav", 0)
    shutil.copy(recording(here / "b.wav", 1), here / "a.wave")
    assert run("transcribe", "a.wav", "a.wave", "b.wav", "-m", "clicks", "-o", ".").code == 0
    assert files(here) == ["a.wav", "a.wav.txt", "a.wave", "a.wave.txt", "b.txt", "b.wav"]
    assert (here / "a.wave.txt").read_text(encoding="utf-8") == "two\n"


def test_what_exists_is_kept_unless_it_may_be_replaced(
    run: Runner, here: Path, backend: ClickBackend
) -> None:
    recording(here / "a.wav", 0)
    recording(here / "b.wav", 1)
    (here / "a.txt").write_text("mine")
    found = run("transcribe", "a.wav", "b.wav", "-m", "clicks", "-o", ".")
    assert (found.code, found.err) == (1, "error: a.txt: exists already; --overwrite replaces it [output]\n")
    assert (here / "a.txt").read_text() == "mine"
    assert (here / "b.txt").read_text() == "two\n"
    assert backend.batches == [[RATE]]  # nothing was spent on the first
    assert run("transcribe", "a.wav", "-m", "clicks", "-o", ".", "--overwrite").code == 0
    assert (here / "a.txt").read_text() == "one\n"


def test_a_full_disk_costs_one_file_and_is_named(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def write_unless_third(path: Path, content: bytes) -> int:
        if content == b"three\n":
            raise OSError(28, "No space left on device")
        return write(path, content)

    for number in range(4):
        recording(here / f"{number}.wav", number)
    monkeypatch.setattr(Path, "write_bytes", write_unless_third)
    found = run("transcribe", "?.wav", "-m", "clicks", "-o", "out")
    assert found.code == 1
    assert re.fullmatch(r"error: out.2\.txt: the disk is full\. .+ \[resource\]\n", found.err)
    assert files(here / "out") == ["0.txt", "1.txt", "3.txt"]


def test_a_folder_that_stops_being_writable_is_an_error(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    recording(here / "a.wav", 0)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    found = run("transcribe", "a.wav", "-m", "clicks", "-o", "out")
    assert found.code == 1
    assert re.fullmatch(r"error: out.a\.txt: Permission denied \[output\]\n", found.err)


# Parts of recordings


def test_a_channel_can_be_chosen_or_all_split(run: Runner, here: Path) -> None:
    recording(here / "call.wav", 0, 4)
    assert run("transcribe", "call.wav", "-m", "clicks", "--channel", "1").out == "five\n"
    split = run("transcribe", "call.wav", "-m", "clicks", "--channel", "split")
    assert split.out == "== call.wav channel 0 ==\none\n\n== call.wav channel 1 ==\nfive\n\n"
    lines = run("transcribe", "call.wav", "-m", "clicks", "--channel", "split", "-f", "json").out.splitlines()
    assert [(json.loads(line)["channel"], json.loads(line)["text"]) for line in lines] == [
        (0, "one"),
        (1, "five"),
    ]
    assert run("transcribe", "call.wav", "-m", "clicks", "--channel", "split", "-o", "out").code == 0
    assert files(here / "out") == ["call.channel0.txt", "call.channel1.txt"]


def test_split_channels_are_not_replaced_either(run: Runner, here: Path) -> None:
    recording(here / "call.wav", 0, 4)
    arguments = ("transcribe", "call.wav", "-m", "clicks", "--channel", "split", "-o", "out")
    assert [run(*arguments).code, run(*arguments).code, run(*arguments, "--overwrite").code] == [0, 1, 0]


def test_one_bad_recording_does_not_stop_a_split(run: Runner, here: Path) -> None:
    recording(here / "b.wav", 0, 4)
    found = run("transcribe", "missing.wav", "b.wav", "-m", "clicks", "--channel", "split")
    assert found.code == 1
    assert "missing.wav" in found.err
    assert "five" in found.out


def test_start_and_end_keep_the_recordings_clock(run: Runner, here: Path) -> None:
    write_wav(here / "a.wav", clicks(6, {1.0: 0, 3.0: 1, 5.0: 2}))
    found = run("transcribe", "a.wav", "-m", "clicks", "--start", "2", "--end", "4", "-f", "json")
    (segment,) = json.loads(found.out)["segments"]
    assert segment["text"] == "two"
    assert segment["start"] == pytest.approx(3, abs=0.08)


@pytest.mark.parametrize(("option", "value"), [("--channel", "2"), ("--track", "1"), ("--start", "9")])
def test_a_part_that_is_not_there_is_an_error_of_the_file(
    run: Runner, here: Path, option: str, value: str
) -> None:
    recording(here / "a.wav", 0)
    found = run("transcribe", "a.wav", "-m", "clicks", option, value)
    assert (found.code, found.out) == (1, "")
    assert re.fullmatch(r"error: a\.wav .+ \[audio\]\n", found.err)


# What fails


def test_one_bad_file_does_not_stop_the_rest(run: Runner, here: Path) -> None:
    recording(here / "a.wav", 0)
    recording(here / "z.wav", 1)
    (here / "text.wav").write_text("not audio")
    found = run("transcribe", "a.wav", "text.wav", "missing.wav", "z.wav", "-m", "clicks", "-o", "out")
    assert (found.code, found.out) == (1, "")
    first, second = found.err.splitlines()
    assert re.fullmatch(r"error: text\.wav .+ \[audio\]", first)
    assert re.fullmatch(r"error: missing\.wav .+ \[audio\]", second)
    assert files(here / "out") == ["a.txt", "z.txt"]


def test_fail_fast_stops_at_the_first_bad_file(run: Runner, here: Path) -> None:
    recording(here / "a.wav", 0)
    recording(here / "z.wav", 1)
    found = run("transcribe", "a.wav", "missing.wav", "z.wav", "-m", "clicks", "-o", "out", "--fail-fast")
    assert (found.code, len(found.err.splitlines())) == (1, 1)
    assert files(here / "out") == ["a.txt"]


@pytest.mark.parametrize("argument", ["missing.wav", "*.wav", "empty", "x" * 300, "take [1].wav"])
def test_what_names_nothing_is_an_error(run: Runner, here: Path, argument: str) -> None:
    (here / "empty").mkdir()
    found = run("transcribe", argument, "-m", "clicks")
    assert (found.code, found.out) == (1, "")
    assert re.fullmatch(rf"error: {re.escape(argument)}.+ \[audio\]\n", found.err)


def test_a_file_that_may_not_be_read_is_an_error(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    recording(here / "a.wav", 0)
    monkeypatch.setattr("transduce.sources.open", refuse, raising=False)
    found = run("transcribe", "a.wav", "-m", "clicks")
    assert (found.code, found.err) == (1, "error: a.wav cannot be read: Permission denied [audio]\n")


def test_a_name_that_begins_with_a_dash_goes_behind_two(run: Runner, here: Path) -> None:
    recording(here / "-a.wav", 2)
    assert run("transcribe", "-m", "clicks", "--", "-a.wav").out == "three\n"


def test_an_interrupt_keeps_what_is_finished(run: Runner, here: Path, backend: ClickBackend) -> None:
    def interrupt(batch: object) -> None:
        if len(backend.batches) > 1:
            raise KeyboardInterrupt

    backend.fault = interrupt
    for number in range(30):  # those of the first batch are recognised
        recording(here / "in" / f"{number:02}.wav", 1)
    found = run("transcribe", "in", "-m", "clicks", "-o", "out")
    assert (found.code, found.out) == (130, "")
    num_finished = int(Limits().first_batch_seconds)
    assert files(here / "out") == [f"{number:02}.txt" for number in range(num_finished)]


# Long recordings


def hum(num_seconds: float) -> FloatArray:
    """A sound without a pause, with a click in each second."""
    quiet = np.resize(np.float32([0.03, -0.03]), round(num_seconds * RATE))
    loud = clicks(num_seconds, {number + 0.5: number % 8 for number in range(int(num_seconds))})
    return np.where(loud > 0, loud, quiet)


def test_limits_of_segments_and_batches(run: Runner, here: Path, backend: ClickBackend) -> None:
    write_wav(here / "a.wav", hum(60))
    limits = ("--vad", "off", "--max-segment", 5, "--batch-seconds", 12)
    found = run("transcribe", "a.wav", "-m", "clicks", *limits)
    assert len(found.out.split()) == 60
    assert max(max(batch) for batch in backend.batches) <= 5 * RATE
    assert max(sum(batch) for batch in backend.batches) <= 12 * RATE


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--vad", "maybe"], "'maybe' is not one of 'auto', 'on', 'off'"),
        (["--max-segment", "0.1"], "segments of 0.10 s are too short for this model: allow at least 0.64 s"),
        (["--batch-seconds", "0"], "Invalid value for '--batch-seconds'"),
        (["--resume"], "--resume goes with -o DIR"),
        (["--resume", "--overwrite", "-o", "out"], "--resume goes with -o DIR, and not with --overwrite"),
    ],
)
def test_limits_that_make_no_sense(run: Runner, here: Path, arguments: list[str], reason: str) -> None:
    recording(here / "a.wav", 0)
    assert reason in usage_error(run("transcribe", "a.wav", "-m", "clicks", *arguments))


def test_voice_activity_needs_onnxruntime(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]
    shared_detector.cache_clear()
    write_wav(here / "a.wav", hum(60))
    found = run("transcribe", "a.wav", "-m", "clicks", "--vad", "on")
    assert (found.code, found.out) == (3, "")
    assert re.fullmatch(r'error: onnxruntime is needed .+"transduce\[cpu\]" \[missing_extra\]\n', found.err)
    found = run("transcribe", "a.wav", "-m", "clicks")
    assert (found.code, len(found.out.split())) == (0, 60)
    assert found.err.startswith("warning: a.wav: long audio was cut at quiet places: onnxruntime is needed")


def test_text_comes_while_the_recording_is_recognised(
    run: Runner, here: Path, backend: ClickBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def look(batch: object) -> None:
        seen.append(capsys.readouterr().out)

    backend.fault = look
    write_wav(here / "a.wav", hum(300))
    found = run("transcribe", "a.wav", "-m", "clicks", "--vad", "off", "--batch-seconds", 30)
    assert len(seen) > 5
    assert len([text for text in seen if text]) > len(seen) / 2
    backend.fault = lambda batch: None
    whole = run("transcribe", "a.wav", "-m", "clicks", "--vad", "off", "-f", "json")
    assert "".join(seen) + found.out == json.loads(whole.out)["text"] + "\n"


def test_an_error_behind_some_text_is_on_its_own_line(run: Runner, here: Path, backend: ClickBackend) -> None:
    backend.fault = lambda batch: MemoryError() if len(backend.batches) > 3 else None
    write_wav(here / "a.wav", hum(300))
    found = run("transcribe", "a.wav", "-m", "clicks", "--vad", "off", "--batch-seconds", 30)
    assert found.code == 1
    assert re.fullmatch(r"one two three .+\n", found.out)
    assert re.fullmatch(r"error: a\.wav: memory ran out on .+ \[resource\]\n", found.err)


# A run that goes on where another one ended


def resume(run: Runner, *arguments: object) -> Run:
    return run("transcribe", "in", "-m", "clicks", "-o", "out", "--resume", *arguments)


def test_a_run_is_resumed(run: Runner, here: Path, backend: ClickBackend) -> None:
    for number in range(3):
        recording(here / "in" / f"{number}.wav", number)
    assert resume(run).err == ""
    (here / "out" / "1.txt").unlink()
    (here / "out" / "2.txt").write_text("mine", encoding="utf-8")
    backend.batches.clear()
    assert resume(run) == Run(0, "", "finished before, left as they are: 2 of 3\n")
    assert backend.batches == [[RATE]]
    texts = [(here / "out" / f"{number}.txt").read_text(encoding="utf-8") for number in range(3)]
    assert texts == ["one\n", "two\n", "mine"]
    assert resume(run, "-q") == Run(0, "", "")


def test_a_format_that_is_missing_is_added(run: Runner, here: Path) -> None:
    recording(here / "in" / "a.wav", 4)
    resume(run)
    (here / "out" / "a.txt").write_text("mine", encoding="utf-8")
    assert resume(run, "-f", "txt,srt").err == ""
    assert files(here / "out") == ["a.srt", "a.txt"]
    assert (here / "out" / "a.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(("channel", "names"), [("split", ["0", "1"]), ("1", ["1"])])
def test_channels_are_resumed(
    run: Runner, here: Path, backend: ClickBackend, channel: str, names: list[str]
) -> None:
    recording(here / "in" / "a.wav", 0, 5)
    for expected in ("", "finished before, left as they are: 1 of 1\n"):
        assert resume(run, "--channel", channel).err == expected
        assert files(here / "out") == [f"a.channel{name}.txt" for name in names]
    assert len(backend.batches) == 1


def test_a_split_that_was_interrupted_is_done_again(run: Runner, here: Path) -> None:
    """The first channel is written last, so without it the others are not all there."""
    recording(here / "in" / "a.wav", 0, 5, 6)
    resume(run, "--channel", "split")
    for channel in (0, 2):
        (here / "out" / f"a.channel{channel}.txt").unlink()
    assert resume(run, "--channel", "split").err == ""
    assert len(files(here / "out")) == 3


# Usage


def usage_error(found: Run) -> str:
    """The one line that says what is wrong."""
    assert (found.code, found.out) == (2, "")
    assert not BOX_DRAWING.search(found.err)
    *about, line = found.err.splitlines()
    assert about[0].startswith("Usage: transduce")
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing argument 'FILE'"),
        (["a.wav", "-f", "docx"], "unknown format docx; known are txt, json, srt, vtt, tsv, ctm and all"),
        (["a.wav", "-f", ","], "unknown format (none)"),
        (["a.wav", "-f", "srt,txt"], "several formats need a folder for their files: add -o DIR"),
        (["a.wav", "-f", "all"], "several formats need a folder"),
        (["a.wav", "--channel", "left"], "--channel 'left' is neither mix, split nor a number from 0"),
        (["a.wav", "--start", "-1"], "'--start'"),
        (["a.wav", "--start", "5", "--end", "5"], "--end 5 is not after --start 5"),
        (["a.wav", "--track", "x"], "'--track'"),
        (["a.wav", "-o", "file"], "file is not a folder"),
        (["a.wav", "-o", "file/deep"], "file is not a folder"),
        (["a.wav", "--wrong"], "No such option"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_plain_line(run: Runner, here: Path, arguments: list[str], reason: str) -> None:
    (here / "file").write_text("x")
    assert reason in usage_error(run("transcribe", "-m", "clicks", *arguments))
    assert files(here) == ["file"]


def test_without_a_model_the_default_is_said(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the catalogue's; offline the one line says what is missing and how to have it."""
    monkeypatch.setenv("TRANSDUCE_CACHE", str(here / "cache"))
    outcome = run("transcribe", recording(here / "a.wav", 0), "--offline")
    assert (outcome.code, outcome.out) == (3, "")
    assert "transduce download parakeet-tdt-0.6b-v3" in outcome.err


def test_an_unknown_command_is_a_usage_error(run: Runner) -> None:
    assert "transkribe" in usage_error(run("transkribe", "a.wav"))


def test_nothing_at_all_shows_the_help(run: Runner) -> None:
    found = run()
    assert found.code == 2
    assert "transcribe" in found.out + found.err


# What makes it all impossible


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (["-m", "missing.nemo"], "missing.nemo: no such file", "checkpoint"),
        (["-m", "."], "no ONNX model", "unsupported_model"),
        (["-m", str(DIGITS)], "neither a NeMo archive", "unsupported_model"),
        (["-m", "demo", "--head", "rnnt"], "has no rnnt head", "unsupported_model"),
        (["-m", "demo", "--device", "cuda:99"], "cuda:99", "device"),
    ],
    ids=str,
)
def test_an_unusable_model_ends_it_before_anything_is_tried(
    run: Runner, here: Path, arguments: list[str], reason: str, code: str
) -> None:
    found = run("transcribe", DIGITS, "-o", "out", *arguments)
    assert (found.code, found.out) == (3, "")
    assert reason in found.err
    assert re.fullmatch(rf"error: .+ \[{code}\]\n", found.err)
    assert files(here) == []


def test_a_missing_extra_is_named_with_its_pip_line(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint needs torch; the demo by its name would run by its graph."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for command in (["transcribe", DIGITS, "-m", str(DEMO)], ["info", str(DEMO)]):
        found = run(*command)
        assert (found.code, found.out) == (3, "")
        assert re.fullmatch(
            r'error: torch .+ pip install "transduce\[torch\]" \[missing_extra\]\n', found.err
        )


# Options everywhere


def options_of(command: str) -> dict[str, Any]:
    parameters = typer.main.get_command(cli.app).commands[command].params  # type: ignore[attr-defined]
    return {p.opts[0].removeprefix("--"): p for p in parameters if p.opts[0].startswith("--")}


@pytest.mark.parametrize("command", ["transcribe", "info", "doctor"])
def test_every_option_also_reads_its_variable(command: str) -> None:
    for name, parameter in options_of(command).items():
        assert parameter.envvar == f"TRANSDUCE_{name.upper().replace('-', '_')}"
        assert parameter.help


def test_variables_stand_for_options(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording(here / "a.wav", 0)
    variables = {"MODEL": "clicks", "FORMAT": "srt,json", "OUTPUT": "out", "TOKENS": "1", "START": "0.4"}
    for name, value in variables.items():
        monkeypatch.setenv(f"TRANSDUCE_{name}", value)
    assert run("transcribe", "a.wav") == Run(0, "", "")
    assert files(here / "out") == ["a.json", "a.srt"]
    assert json.loads((here / "out" / "a.json").read_text())["tokens"] != []
    assert run("transcribe", "a.wav", "-o", "-", "-f", "txt").out == "one\n"  # an option is stronger
    monkeypatch.setenv("TRANSDUCE_FORMAT", "docx")
    assert "unknown format docx" in usage_error(run("transcribe", "a.wav"))


def test_warnings_name_the_file_and_quiet_silences_them(run: Runner, here: Path) -> None:
    antiphase = clicks(1, {0.5: 0})
    write_wav(here / "a.wav", antiphase, -antiphase)
    found = run("transcribe", "a.wav", "-m", "clicks")
    assert (found.code, found.out) == (0, "one\n")
    assert re.fullmatch(r"warning: a\.wav: channels 0, 1 cancel .+\n", found.err)
    assert run("transcribe", "a.wav", "-m", "clicks", "-q") == Run(0, "one\n", "")
    quiet = run("transcribe", "missing.wav", "-m", "clicks", "--quiet")
    assert (quiet.code, quiet.err.count("error: missing.wav")) == (1, 1)


def test_verbose_says_what_runs_and_nothing_that_was_said(run: Runner, here: Path) -> None:
    recording(here / "a.wav", 0)
    found = run("transcribe", "a.wav", "-m", "clicks", "-v", "-o", "out")
    assert found.code == 0
    assert "engine: clicks 1.0, device: cpu, precision: fp32" in found.err
    assert "a.wav" in found.err
    assert "one" not in found.err
    assert run("transcribe", "a.wav", "-m", "clicks").err == ""


# The other commands


def test_help_teaches(run: Runner) -> None:
    root = run("--help").out
    assert "Try it: transduce transcribe examples/digits.wav -m demo" in root
    assert all(command in root for command in ("transcribe", "info", "doctor"))
    for command in ("transcribe", "info", "doctor"):
        found = run(command, "--help")
        assert found.code == 0
        assert not BOX_DRAWING.search(found.out)
        assert re.search(rf"^  transduce {command}", found.out, re.MULTILINE)
        assert all(f"--{name}" in found.out for name in options_of(command))


def test_version(run: Runner) -> None:
    assert run("--version") == Run(0, f"transduce {transduce.__version__}\n", "")


def test_info_shows_what_a_model_is(run: Runner) -> None:
    content = json.loads(run("info", "demo", "--json").out)
    expected = {
        "name": "demo",
        "family": "nemo",
        "heads": "tdt, ctc",
        "head": "tdt",
        "durations": [0, 1, 2, 3, 4],
        "sample_rate": 16000,
        "frame_seconds": 0.08,
        "device": "cpu",
        "precision": "fp32",
    }
    assert {key: content[key] for key in expected} == expected
    lines = dict(line.split(maxsplit=1) for line in run("info", "demo", "--head", "ctc").out.splitlines())
    assert (lines["head"], lines["heads"]) == ("ctc", "tdt, ctc")
    assert "durations" not in lines


def test_info_of_a_model_that_is_not_there(run: Runner) -> None:
    found = run("info", "missing.ckpt")
    assert (found.code, found.out) == (3, "")
    assert "missing.ckpt" in found.err


def test_doctor_says_that_all_is_well(run: Runner) -> None:
    found = run("doctor")
    assert (found.code, found.err) == (0, "")
    assert re.search(r"^demo +right: 'two five'", found.out, re.MULTILINE)
    content = json.loads(run("doctor", "--json").out)
    assert content["healthy"] is True


def test_doctor_fails_where_the_demo_does(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.checks, "examine", lambda: Findings({"numpy": "1"}, "failed: no engine", False))
    found = run("doctor", "--json")
    assert found.code == 3
    assert json.loads(found.out) == {"numpy": "1", "demo": "failed: no engine", "healthy": False}


def test_completion_is_offered(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRANSDUCE_COMPLETE", "source_bash")
    found = run()
    assert found.code == 0
    assert "complete -o" in found.out


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "transduce", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("transduce ")
