"""The command line where things are odd: closed streams, locked folders, names that command a terminal.

In-process runs go through `main()` with the recogniser of clicks (`fakes`); what depends on descriptors or on
the start of the process is a process of its own.
"""

import os
import re
from pathlib import Path

import pytest
from fakes import clicks, write_wav

from transduce import doctor, outputs
from transduce.errors import AudioError


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
