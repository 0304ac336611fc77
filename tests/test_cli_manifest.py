"""`transduce transcribe --manifest`, and what `--engine ray` refuses before there is any cluster.

`main()` runs inside the test; the model is `clicks` (see `fakes`).
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import ClickBackend, click_model, clicks, write_wav

from transduce import cli
from transduce.transcriber import Model


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


Runner = Callable[..., Run]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs `transduce transcribe -m clicks` with arguments; no run may end in a traceback."""

    def load(*arguments: object, **options: Any) -> Model:
        return click_model(ClickBackend())

    monkeypatch.setattr(cli, "load_model", load)
    monkeypatch.setattr(cli.logger, "handlers", [])

    def call(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["transduce", "transcribe", "-m", "clicks", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Run(int(exited.value.code or 0), out, err)

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a manifest of two good recordings and one that is damaged."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name, label in (("a", 0), ("c", 2)):
        write_wav(tmp_path / "in" / f"{name}.wav", clicks(1, {0.5: label}))
    (tmp_path / "in" / "b.wav").write_bytes(b"no audio")
    rows = ({"path": f"in/{name}.wav"} for name in "abc")
    (tmp_path / "files.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


# In this process


def test_a_manifest_becomes_files_failures_and_a_line_about_the_run(run: Runner, here: Path) -> None:
    found = run("--manifest", "files.jsonl", "-o", "out")
    assert (found.code, found.out) == (1, "")
    assert (here / "out" / "a.txt").read_text() == "one\n"
    assert (here / "out" / "c.txt").read_text() == "three\n"
    (failure,) = lines(here / "out" / "failures.jsonl")
    assert (failure["path"], failure["name"], failure["code"]) == (str(here / "in" / "b.wav"), "b", "audio")
    assert found.err.splitlines()[0] == f"error: {failure['message']} [audio]"
    assert found.err.splitlines()[1].startswith("finished 2 of 3, failed 1, see out/failures.jsonl; ")
    (record,) = lines(here / "out" / "runs.jsonl")
    assert {
        "engine": "local",
        "files": 3,
        "finished": 2,
        "failed": 1,
        "complete": True,
    }.items() <= record.items()
    assert record["audio_hours"] == round(2 / 3600, 4)


def test_a_run_resumes(run: Runner, here: Path) -> None:
    run("--manifest", "files.jsonl", "-o", "out")
    write_wav(here / "in" / "b.wav", clicks(1, {0.5: 1}))
    found = run("--manifest", "files.jsonl", "-o", "out", "--resume")
    assert found.code == 0
    assert found.err.splitlines()[0] == "finished before, left as they are: 2 of 3"
    assert (here / "out" / "b.txt").read_text() == "two\n"
    assert lines(here / "out" / "failures.jsonl") == []
    assert [record["finished"] for record in lines(here / "out" / "runs.jsonl")] == [2, 1]


def test_failures_are_a_manifest_of_those_to_try_again(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results come where they would have been, in a run from elsewhere too; an interrupt loses no line."""
    (here / "sub").mkdir()
    (here / "in" / "b.mp3").write_bytes(b"no audio")
    rows = [{"path": f"in/{name}"} for name in ("a.wav", "b.wav", "b.mp3")]
    rows += [{"path": "in/lost.wav", "name": "calls/v1.2", "duration": 1.0}]
    (here / "files.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run("--manifest", "files.jsonl", "-o", "out")
    first = lines(here / "out" / "failures.jsonl")
    names = [(row["name"], row.get("duration")) for row in first]
    assert names == [("b.wav", None), ("b.mp3", None), ("calls/v1.2", 1.0)]

    monkeypatch.chdir(here / "sub")
    run("--manifest", "../out/failures.jsonl", "-o", "../out")
    assert [row["path"] for row in lines(here / "out" / "failures.jsonl")] == [row["path"] for row in first]
    assert lines(here / "out" / "failures.before.jsonl") == first
    for name, label in (("b.wav", 1), ("b.mp3", 2), ("lost.wav", 3)):
        write_wav(here / "in" / name, clicks(1, {0.5: label}))
    assert run("--manifest", "../out/failures.jsonl", "-o", "../out").code == 0
    texts = {path.relative_to(here / "out").as_posix(): path.read_text() for path in here.rglob("*.txt")}
    expected = {"b.wav": "two", "b.mp3": "three", "calls/v1.2": "four"}
    assert texts == {"a.txt": "one\n"} | {f"{name}.txt": f"{text}\n" for name, text in expected.items()}


def test_a_pipe_that_nobody_writes_into_is_not_waited_for(run: Runner, here: Path) -> None:
    os.mkfifo(here / "in" / "pipe.wav")
    with (here / "files.jsonl").open("a") as file:
        file.write('{"path": "in/pipe.wav"}\n')
    assert "error: in/pipe.wav is a pipe" in run("--manifest", "files.jsonl", "-o", "out").err
    assert (here / "out" / "c.txt").read_text() == "three\n"
    failures = lines(here / "out" / "failures.jsonl")
    assert [(Path(row["path"]).name, row["code"]) for row in failures] == [
        ("b.wav", "audio"),
        ("pipe.wav", "audio"),
    ]


def test_a_manifest_on_standard_output_leaves_no_files(run: Runner, here: Path) -> None:
    before = sorted(here.rglob("*"))
    found = run("--manifest", "files.jsonl")
    assert (found.code, found.out) == (1, "== in/a.wav ==\none\n\n== in/c.wav ==\nthree\n\n")
    assert sorted(here.rglob("*")) == before


def test_files_and_a_manifest_go_together(run: Runner, here: Path) -> None:
    write_wav(here / "d.wav", clicks(1, {0.5: 3}))
    found = run("d.wav", "--manifest", "files.jsonl", "-o", "out", "-q")
    assert found.code == 1
    assert (here / "out" / "d.txt").read_text() == "four\n"
    assert (here / "out" / "a.txt").read_text() == "one\n"
    assert len(found.err.splitlines()) == 1  # the error, and no summary


def test_files_by_themselves_leave_nothing_beside_their_results(run: Runner, here: Path) -> None:
    run("in/a.wav", "-o", "out")
    assert [path.name for path in (here / "out").iterdir()] == ["a.txt"]


def test_recordings_at_addresses(run: Runner, here: Path) -> None:
    rows = [{"path": f"file://{here}/in/a.wav"}, {"path": "https://example.org/x.wav"}]
    (here / "far.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = run("--manifest", "far.jsonl", "-o", "out", "-f", "json")
    assert found.code == 1
    assert "error: https://example.org/x.wav is a web address" in found.err
    (path,) = (here / "out").rglob("a.json")
    content = json.loads(path.read_text())
    assert (content["text"], content["source"]) == ("one", f"file://{here}/in/a.wav")


def test_the_variable_names_a_manifest(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_MANIFEST", "files.jsonl")
    assert run().out.startswith("== in/a.wav ==\none\n")


# Usage


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--manifest", ""], "the name of a file is empty"),
        (["--manifest", "missing.jsonl"], "--manifest missing.jsonl cannot be read: No such file"),
        (["--manifest", "in/b.wav"], "--manifest: in/b.wav, line 1: is not JSON"),
        (["--manifest", "nowhere://a.jsonl"], "--manifest: nowhere://a.jsonl cannot be read"),
        (["in/a.wav", "--engine", "ray"], "--engine ray needs a folder for the results: add -o DIR"),
        (["in/a.wav", "--engine", "spark"], "'--engine'"),
        (["in/a.wav", "--address", "auto"], "--address goes with --engine ray"),
        (["in/a.wav", "--actors", "2"], "--actors goes with --engine ray"),
        (["in/a.wav", "--cpus-per-actor", "2"], "--cpus-per-actor goes with --engine ray"),
        (["in/a.wav", "--gpus-per-actor", "1"], "--gpus-per-actor goes with --engine ray"),
        *(
            (["in/a.wav", "--engine", "ray", "-o", "out", *options], reason)
            for options, reason in [
                (["--actors", "0"], "--actors 0: say N, MIN:MAX or MIN:"),
                (["--actors", "3:2"], "--actors 3:2: say N"),
                (["--actors", ":2"], "--actors :2: say N"),
                (["--actors", "many"], "--actors many: say N"),
                (["--cpus-per-actor", "0"], "an actor needs something to run on"),
                (["--cpus-per-actor", "-1"], "'--cpus-per-actor'"),
                (["--gpus-per-actor", "1.5"], "whole ones only"),
                (["--device", "cuda"], "--device cuda on a cluster needs --gpus-per-actor 1"),
                (["--resume", "--overwrite"], "--resume goes with -o DIR, and not with --overwrite"),
            ]
        ),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line_and_nothing_is_tried(
    run: Runner, here: Path, arguments: list[str], reason: str
) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (2, "")
    assert reason in found.err.splitlines()[-1]
    assert not (here / "out").exists()


# Before there is a cluster


def test_without_ray_the_pip_line_is_given_and_nothing_is_tried(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch)
    found = run("--manifest", "files.jsonl", "--engine", "ray", "-o", "out")
    assert found.code == 3
    assert 'pip install "transduce[ray]"' in found.err
    assert "[missing_extra]" in found.err
    assert not (here / "out").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1", "here:99999", "here:x"])
def test_a_cluster_that_does_not_answer_is_no_long_wait(run: Runner, here: Path, address: str) -> None:
    found = run("--manifest", "files.jsonl", "--engine", "ray", "-o", "out", "--address", address)
    assert found.code == 3
    assert f"error: no Ray cluster answers at '{address}'" in found.err
    assert "[device]" in found.err
    assert not (here / "out").exists()


def test_where_everything_is_finished_no_cluster_is_needed(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch)
    run("in/a.wav", "in/c.wav", "-o", "out")
    found = run("in/a.wav", "in/c.wav", "-o", "out", "--engine", "ray")
    assert found.code == 0
    assert found.err.startswith("finished before, left as they are: 2 of 2\nfinished 2 of 2, failed 0; ")


def test_standard_input_and_what_is_missing_fail_without_a_cluster(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ray(monkeypatch)
    found = run("-", "in/*.mp3", "-o", "out", "--engine", "ray")
    assert found.code == 1
    failures = {failure["path"]: failure["message"] for failure in lines(here / "out" / "failures.jsonl")}
    assert failures == {
        "-": "standard input cannot be read by a cluster: give it a file",
        str(here / "in/*.mp3"): "in/*.mp3: no file matches this pattern",
    }
