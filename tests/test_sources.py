"""Opening: what cannot seek waits in a temporary file, which may fill the disk."""

import errno
import io
import tempfile
from typing import Any

import numpy as np
import pytest

from transduce.errors import AudioError, ResourceError
from transduce.sources import opened_source


class Pipe(io.BytesIO):
    name = "<pipe>"

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError(errno.ESPIPE, "Illegal seek")


class BrokenDisk(io.BytesIO):
    number = errno.ENOSPC

    def write(self, content: object) -> int:
        raise OSError(self.number, "no")


def test_a_pipe_can_be_read_from_any_place_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    create = tempfile.TemporaryFile

    def remember(*args: Any, **options: Any) -> Any:
        made.append(create(*args, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", remember)
    content = bytes(range(256)) * 10000
    with opened_source(Pipe(content)) as opened:
        assert not isinstance(opened, np.ndarray)
        for _ in range(2):
            opened.seek(1000)
            assert opened.read() == content[1000:]
    assert [file.closed for file in made] == [True]


@pytest.mark.posix
@pytest.mark.parametrize(
    ("path", "reason"),
    [("/dev/zero", "is a device"), ("/dev/urandom", "is a device"), ("/dev/null", "is empty")],
)
def test_a_device_without_an_end_is_not_called_empty(path: str, reason: str) -> None:
    with pytest.raises(AudioError, match=f"{path} {reason}"), opened_source(path):
        pass


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, ResourceError), (errno.EIO, AudioError)])
def test_a_disk_that_a_pipe_fills_is_named(
    number: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", BrokenDisk)
    monkeypatch.setattr(BrokenDisk, "number", number)
    with pytest.raises(error, match="<pipe>"), opened_source(Pipe(b"abc")):
        pass
