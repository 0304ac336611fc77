"""The command line where things are odd: closed streams, locked folders, names that command a terminal.

In-process runs go through `main()` with the recogniser of clicks (`fakes`); what depends on descriptors or on
the start of the process is a process of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import ClickBackend, click_model, clicks, write_wav
from support import ROOT
from typer.testing import CliRunner

from transduce import cli, doctor, errors, outputs
from transduce.errors import AudioError

DIGITS = ROOT / "examples" / "digits.wav"
DIGITS_TEXT = "three seven five three six six three one six\n"

Run = tuple[int, str, str]
"""Exit code, standard output, standard error."""


@pytest.fixture
def backend() -> ClickBackend:
    return ClickBackend()


@pytest.fixture
def run(
    backend: ClickBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """`transduce transcribe` in an empty folder, with the recogniser of clicks as its model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.logger, "handlers", [])
    monkeypatch.setattr(cli, "load_model", lambda *_, **__: click_model(backend))

    def call(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["transduce", "transcribe", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return int(exited.value.code or 0), *capsys.readouterr()

    return call


def shell(line: str) -> Run:
    """A line for the shell, in which `transduce` is this one."""
    script = f'transduce() {{ "{sys.executable}" -m transduce "$@"; }}\n{line}'
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=100)
    return found.returncode, found.stdout, found.stderr


def recording(path: Path, label: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_wav(path, clicks(1, {0.5: label}))


# Folders


def lock(monkeypatch: pytest.MonkeyPatch, locked: Path) -> None:
    """As if the folder may not be listed (root may list any)."""
    scandir = os.scandir

    def guarded(path: str) -> object:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)


@pytest.mark.posix
def test_what_a_folder_hides_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording(tmp_path / "a.wav")
    recording(tmp_path / "locked" / "b.wav")
    (tmp_path / "lost.wav").symlink_to(tmp_path / "nowhere.wav")
    lock(monkeypatch, tmp_path / "locked")
    found = {entry.relative.as_posix(): entry.error for entry in outputs.expand([str(tmp_path)])}
    assert list(found) == ["a.wav", "locked", "lost.wav"]
    assert found["a.wav"] is None
    assert isinstance(found["locked"], AudioError)
    assert str(found["locked"]) == f"{tmp_path / 'locked'} cannot be read: Permission denied"
    assert isinstance(found["lost.wav"], AudioError)
    assert "link to a file that is not there" in str(found["lost.wav"])


def test_a_locked_folder_is_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(monkeypatch, tmp_path)
    (found,) = outputs.expand([str(tmp_path)])
    assert str(found.error) == f"{tmp_path} cannot be read: Permission denied"


@pytest.mark.posix
def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    recording(tmp_path / "elsewhere" / "b.wav")
    folder = tmp_path / "in"
    recording(folder / "a.wav")
    (folder / "link.wav").symlink_to(tmp_path / "elsewhere" / "b.wav")
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    (folder / "round").symlink_to(folder)
    found = outputs.expand([str(folder)])
    assert [(entry.relative.as_posix(), entry.error) for entry in found] == [
        ("a.wav", None),
        ("link.wav", None),
    ]


def test_leftovers_of_macos_are_no_recordings(tmp_path: Path) -> None:
    recording(tmp_path / "x.wav")
    (tmp_path / "._x.wav").write_bytes(b"\0\5\x16\7")
    assert [entry.relative.name for entry in outputs.expand([str(tmp_path)])] == ["x.wav"]


# Doctor


def test_doctor_lists_the_server() -> None:
    assert re.search(r"fastapi \d.*uvicorn \d.*python-multipart \d", doctor.examine().facts["extra server"])


# Usage


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([""], "the name of a file is empty"),
        (["a.wav", ""], "the name of a file is empty"),
        (["a.wav", "-o", ""], "-o is empty"),
        (["a.wav", "--max-segment", "0"], "--max-segment"),
        (["a.wav", "--max-segment", "nan"], "--max-segment"),
        (["a.wav", "--batch-seconds", "0"], "--batch-seconds"),
        (["a.wav", "--batch-seconds", "nan"], "--batch-seconds"),
        (["a.wav", "--start", "nan"], "--start"),
        (["a.wav", "--end", "nan"], "--end"),
        (["a.wav", "--threads", "257"], "256"),
        (["a.wav", "--threads", "99999999999999999999"], "256"),
        (["a.wav", "--backend", "tf"], "unknown backend 'tf': use auto, onnx, openvino or torch"),
        (["a.wav", "--device", "abacus"], "unknown device 'abacus': use auto, cpu, cuda or cuda:N"),
        (["a.wav", "--precision", "fp64"], "unknown precision 'fp64': use auto, fp32, bf16, fp16 or int8"),
        (["a.wav", "--decoder", "blah"], "unknown decoder 'blah'"),
        (["a.wav", "--head", "aed"], "unknown head 'aed': use auto, rnnt, tdt or ctc"),
        (["a.wav", "--tokens"], "--tokens adds to JSON"),
        (["a.wav", "--tokens", "-o", "out", "-f", "txt,srt"], "--tokens adds to JSON"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_a_usage_error(
    run: Callable[..., Run], tmp_path: Path, arguments: list[str], reason: str
) -> None:
    recording(tmp_path / "a.wav")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert reason in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


@pytest.mark.parametrize(
    "command",
    [
        "info demo",
        "eval a.tsv",
        "bench demo",
        "serve",
        "triton demo out",
        "models",
        "download demo",
        "verify demo",
    ],
)
@pytest.mark.parametrize("option", ["--backend", "--precision"])
def test_a_word_that_is_none_is_a_usage_error_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("path\ttext\na.wav\tone\n", encoding="utf-8")
    found = CliRunner().invoke(cli.app, [*command.split(), option, "abacus"])
    assert found.exit_code == 2
    assert "abacus" in found.output.splitlines()[-1]


def test_the_precision_that_was_picked_is_said(run: Callable[..., Run], tmp_path: Path) -> None:
    recording(tmp_path / "a.wav")
    assert run("a.wav", "--precision", "auto") == (0, "one\n", "precision: fp32\n")
    assert run("a.wav", "--precision", "auto", "-q") == (0, "one\n", "")
    assert run("a.wav") == (0, "one\n", "")


# Names


def test_names_cannot_command_a_terminal(run: Callable[..., Run], tmp_path: Path) -> None:
    for name in ("a\x1b[31m.wav", "b\x9b2J.wav"):
        recording(tmp_path / name)
    code, out, err = run("a\x1b[31m.wav", "b\x9b2J.wav", "no\x1b]0;x\x07.wav", "-v")
    assert code == 1
    assert "== a\ufffd[31m.wav ==\none\n" in out
    assert "error: no\ufffd]0;x\ufffd.wav" in err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out + err)


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("https://example.com/a.wav", "download it first"),
        ("http://example.com/a.wav?part=[1]", "download it first"),
        ("s3://bucket/a.wav", "download it first"),
        ("file:///tmp/a.wav", "give its path"),
    ],
)
def test_an_address_is_not_taken_for_a_path(run: Callable[..., Run], address: str, advice: str) -> None:
    expected = f"error: {address} is an address, not a file: {advice} [audio]\n"
    assert run(address) == (1, "", expected)


# Failing fast


def test_fail_fast_tries_nothing_behind_the_bad_file(
    run: Callable[..., Run], tmp_path: Path, backend: ClickBackend
) -> None:
    for name in ("a.wav", "c.wav", "d.wav"):
        recording(tmp_path / name)
    (tmp_path / "b.wav").write_text("not audio")
    code, out, err = run("a.wav", "b.wav", "c.wav", "d.wav", "--fail-fast")
    assert (code, out) == (1, "== a.wav ==\none\n\n")
    assert err.startswith("error: b.wav")
    assert len(backend.batches) == 1
    backend.batches.clear()
    assert run("b.wav", "c.wav", "d.wav", "--fail-fast")[:2] == (1, "")
    assert backend.batches == []


# Exports


def test_an_export_is_not_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(1_000_000))
    assert shell(f"cd {tmp_path} && transduce export demo .")[0] == 0
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    code, _, err = shell(f"cd {tmp_path} && transduce export demo .")
    assert (code, err.splitlines()[-1]) == (
        2,
        "Error: Invalid value: spec.json exists already; --overwrite replaces it",
    )
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    code, _, err = shell(f"cd {tmp_path} && transduce export demo . --overwrite")
    assert code == 0
    assert (tmp_path / "spec.json").stat().st_mtime_ns > before["spec.json"]
    num_bytes = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name != "notes.txt")
    assert f", {num_bytes / 1e6:.1f} MB in " in err


@pytest.mark.parametrize(("target", "reason"), [("", "DIR is empty"), ("file", "file is not a folder")])
def test_an_export_needs_a_folder(tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, err = shell(f"cd {tmp_path} && transduce export demo '{target}'")
    assert code == 2
    assert reason in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_help_of_export_shows_its_example() -> None:
    _, out, _ = shell("transduce export --help")
    assert "\n  transduce export model.nemo exported && transduce transcribe talk.mp4 -m exported\n" in out
    assert "\\b" not in out


# Closed and full streams


def test_without_standard_error_the_text_still_comes() -> None:
    assert shell(f"transduce transcribe {DIGITS} -m demo 2>&-") == (0, DIGITS_TEXT, "")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"transduce transcribe {DIGITS} -m demo >&-", "standard output: Bad file descriptor [output]"),
        ("transduce transcribe - -m demo <&-", "standard input cannot be read: it is closed [audio]"),
        ("transduce info demo >&-", "standard output: Bad file descriptor [output]"),
    ],
)
def test_a_closed_stream_is_one_line(line: str, reason: str) -> None:
    assert shell(line) == (1, "", f"error: {reason}\n")


@pytest.mark.posix
@pytest.mark.parametrize("command", ["info demo", "doctor", "--version", f"transcribe {DIGITS} -m demo"])
def test_a_full_standard_output_is_one_line(command: str) -> None:
    expected = (1, "", "error: standard output: No space left on device [output]\n")
    assert shell(f"transduce {command} >/dev/full") == expected


def test_no_streams_at_all_are_survived(tmp_path: Path) -> None:
    assert shell(f"transduce transcribe {DIGITS} -m demo -o {tmp_path} <&- >&- 2>&-") == (0, "", "")
    assert (tmp_path / "digits.txt").read_text(encoding="utf-8") == DIGITS_TEXT


@pytest.mark.posix
def test_a_folder_that_is_gone_is_not_taken_for_standard_output(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = f"cd {tmp_path}/gone && rmdir ../gone && transduce transcribe {DIGITS} -m demo -o out"
    code, out, err = shell(line)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("-o out: the current folder is not there any more")


def test_only_errors_of_standard_output_are_called_so(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    recording(tmp_path / "a.wav")
    monkeypatch.setattr(cli, "load_model", lost)
    with pytest.raises(FileNotFoundError):
        run("a.wav")


# Interrupts


@pytest.mark.posix
@pytest.mark.parametrize("delay_seconds", [0.1, 0.3])
def test_an_interrupt_while_it_loads_is_quiet(delay_seconds: float) -> None:
    """From the moment on that the entry point runs, which says so here by a line."""
    program = (
        "import sys; from transduce.__main__ import main; print(flush=True); "
        f"sys.argv = ['transduce', 'transcribe', '{DIGITS}', '-m', 'demo']; main()"
    )
    command: list[Any] = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_an_interrupt_while_a_library_loads_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pybind11 raises ImportError from what ended the initialisation of its module."""

    def interrupted(_: str) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(errors, "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        errors.import_extra("onnxruntime", "cpu")


@pytest.mark.posix
def test_an_interrupt_at_a_question_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "onnx" / "model"
    folder.mkdir(parents=True)
    empty = {"format": 1, "name": "model", "origin": "", "licence": "", "files": []}
    (folder / ".files.json").write_text(json.dumps(empty), encoding="utf-8")
    command = [sys.executable, "-m", "transduce", "cache", "prune", "--all"]
    environment = {**os.environ, "TRANSDUCE_CACHE": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            asked += process.stderr.read(1)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert folder.exists()


@pytest.mark.posix
def test_an_interrupt_while_it_reads_standard_input_is_quiet() -> None:
    """The thread that reads still waits when the interpreter ends."""
    command = [sys.executable, "-m", "transduce", "transcribe", "-", "-m", "demo", "-v"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert "engine" in process.stderr.readline()  # the model is loaded
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130  # before standard input ends
        assert process.communicate() == ("", "")
