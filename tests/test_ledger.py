"""The record of a run: counts, failures at once, a line at the end."""

import json
import logging
from pathlib import Path

import pytest

from transduce.errors import AudioError, ResourceError
from transduce.ledger import FAILURES, FAILURES_BEFORE, RUNS, Ledger, explained


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_failures_are_written_at_once_and_the_run_at_its_end(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with Ledger(out, "ray", num_files=5, num_finished_before=1) as ledger:
        ledger.finished(1800.0)
        ledger.failed("/in/b\udcff.wav", AudioError("b.wav cannot be read"))
        denied = PermissionError(13, "Permission denied", "out/c.txt")
        ledger.failed("/in/c.wav", denied, name="x/c", seconds=0.0)
        assert rows(out / FAILURES) == [
            {"path": "/in/b\udcff.wav", "code": "audio", "message": "b.wav cannot be read"},
            {"path": "/in/c.wav", "name": "x/c", "duration": 0.0}
            | {"code": "output", "message": "out/c.txt: Permission denied"},
        ]
        assert not (out / RUNS).exists()
        ledger.finished(1800.0)
        ledger.facts = {"workers": 3}
    (run,) = rows(out / RUNS)
    expected = {
        "engine": "ray",
        "complete": True,
        "files": 5,
        "finished_before": 1,
        "finished": 2,
        "failed": 2,
    }
    assert (
        expected | {"failures": {"audio": 1, "output": 1}, "audio_hours": 1.0, "workers": 3}
    ).items() <= run.items()
    assert str(ledger).startswith(f"finished 3 of 5, failed 2, see {out / FAILURES}; 1 h of audio in ")


def test_each_run_begins_its_failures_anew_and_adds_a_line(tmp_path: Path) -> None:
    for number in range(2):
        with Ledger(tmp_path, "local", 1, 0) as ledger:
            ledger.failed(f"/{number}.wav", ResourceError("full"))
    assert [row["path"] for row in rows(tmp_path / FAILURES)] == ["/1.wav"]
    assert [row["path"] for row in rows(tmp_path / FAILURES_BEFORE)] == ["/0.wav"]
    assert len(rows(tmp_path / RUNS)) == 2
    for _ in range(2):
        with Ledger(tmp_path, "local", 0, 0):
            pass
    assert rows(tmp_path / FAILURES) == []
    assert [row["path"] for row in rows(tmp_path / FAILURES_BEFORE)] == ["/1.wav"]


def test_paths_are_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Ledger(tmp_path, "local", 4, 0) as ledger:
        for path in ("in/a.wav", "../b.wav", "s3://store/c.wav", "-"):
            ledger.failed(path, AudioError("a"))
    expected = [str(tmp_path / "here/in/a.wav"), str(tmp_path / "b.wav"), "s3://store/c.wav", "-"]
    assert [row["path"] for row in rows(tmp_path / FAILURES)] == expected


def test_a_run_that_is_interrupted_is_not_complete(tmp_path: Path) -> None:
    def interrupted() -> None:
        with Ledger(tmp_path, "local", 2, 0) as ledger:
            ledger.finished(1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (run,) = rows(tmp_path / RUNS)
    assert (run["complete"], run["finished"]) == (False, 1)


def test_without_a_folder_it_counts() -> None:
    with Ledger(None, "local", 2, 0) as ledger:
        ledger.failed("a.wav", AudioError("a"))
    assert ledger.num_failed == 1
    assert "see" not in str(ledger)


def test_a_folder_that_takes_no_lines_does_not_stop_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FAILURES).mkdir()
    with caplog.at_level(logging.WARNING, "transduce"), Ledger(tmp_path, "local", 1, 0) as ledger:
        ledger.failed("a.wav", AudioError("a"))
    assert ledger.num_failed == 1
    assert [FAILURES in record.message for record in caplog.records] == [True, True]


def test_errors_explain_themselves() -> None:
    assert explained(ResourceError("the disk is full")) == ("resource", "the disk is full")
    assert explained(BrokenPipeError(32, "Broken pipe")) == ("output", "standard output: Broken pipe")
