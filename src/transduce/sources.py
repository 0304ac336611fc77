"""What can be given as a recording, and how it is opened.

In: a path, the content of a file, an open binary file or an array. Out: an array, or a file that can be
read more than once and from any place. The content of a pipe waits in a temporary file, so its length
does not matter to memory. What is inside is unknown here.
"""

import errno
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from transduce.errors import AudioError, ResourceError, TransduceError

__all__ = [
    "AudioSource",
    "describe_source",
    "error_of_address",
    "error_of_pipe",
    "is_address",
    "is_path",
    "opened_source",
]

T = TypeVar("T")

_Array: TypeAlias = npt.NDArray[Any]

AudioSource: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | _Array
"""A path; the content of a file; an open binary file, read from its start; or an array of samples."""


def describe_source(source: AudioSource) -> str:
    """What messages call a source: its path, `<bytes>`, `<array>`, or the name of the stream."""
    if isinstance(source, (str, os.PathLike)):
        # A path need not be text: surrogates U+DC80 to U+DCFF stand for its undecodable bytes.
        path = re.sub(r"[\ud800-\udc7f\udd00-\udfff]", "\ufffd", os.fsdecode(source))
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(source, np.ndarray):
        return "<array>"
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "<bytes>"
    name = getattr(source, "name", None)  # an int where the file was opened from a descriptor
    return name if isinstance(name, str) and name else "<stream>"


def is_address(name: str) -> bool:
    """Whether a name is that of something on a network (`https://...`, `s3://...`), and no path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name) is not None


def is_path(name: str) -> bool:
    """Whether a file may be called so: something, without a null character, in the system's encoding."""
    try:
        return bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can write it
        return False


def error_of_address(name: str) -> AudioError:
    """What is said of an address where a file is wanted."""
    advice = "give its path" if name.lower().startswith("file:") else "download it first"
    return AudioError(f"{name} is an address, not a file: {advice}")


def error_of_pipe(path: str | os.PathLike[str]) -> AudioError | None:
    """What is said of a pipe, a socket or a device in a list of files; None for all else.

    Nobody need write into it, and opening it would wait for that.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # it is reported when its turn comes
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return AudioError(f"{describe_source(path)} is a pipe or a device, and a list is one of files")


@contextmanager
def opened_source(source: AudioSource) -> Iterator[BinaryIO | _Array]:
    """The source as an array or as a seekable file; what was opened here is closed.

    Raises AudioError for what cannot be read, also for an OSError while it is being read or whatever a
    given file object raises, and ResourceError where a pipe fills the disk.
    """
    name = describe_source(source)
    try:
        with ExitStack() as stack:
            yield _opened(source, name, stack)
    except OSError as error:
        raise AudioError(f"{name} cannot be read: {error.strerror or error}") from error


def _opened(source: AudioSource, name: str, stack: ExitStack) -> BinaryIO | _Array:
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _seekable(io.BytesIO(source), name, stack)
    if isinstance(source, (str, os.PathLike)):
        return _seekable(stack.enter_context(_open_path(source, name)), name, stack)
    if hasattr(source, "read"):
        if _is_text(source):
            raise AudioError(f"{name} was opened as text: open it with mode 'rb'")
        return _seekable(cast(BinaryIO, _Given(source, name)), name, stack)
    raise AudioError(
        f"a {type(source).__name__} is not audio: give a path, bytes, a binary file or a numpy array"
    )


def _open_path(path: str | os.PathLike[str], name: str) -> BinaryIO:
    if is_address(name):
        raise error_of_address(name)
    try:
        return open(path, "rb")
    except ValueError as error:  # a null character
        raise AudioError(f"{name!r} is not a path: {error}") from error


def _seekable(file: BinaryIO, name: str, stack: ExitStack) -> BinaryIO:
    """The file itself, or, where it cannot seek, a temporary one with all that it gives."""
    try:
        file.seek(0, io.SEEK_END)
        num_bytes = file.tell()
    except (AttributeError, OSError):
        file = _copied(file, name, stack)
        num_bytes = file.tell()
    if num_bytes == 0:
        file.seek(0)
        is_endless = bool(file.read(1))
        raise AudioError(
            f"{name} is a device, not a recording" if is_endless else f"{name} is empty (0 bytes)"
        )
    return file


class _Given:
    """A file object that came from outside. What its methods raise is an AudioError.

    An OSError is left to `opened_source`: one from `seek` only says that the file is a pipe.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._answer(self._file.seek, offset, whence)

    def tell(self) -> int:
        return self._answer(self._file.tell)

    def read(self, size: int = -1) -> bytes:
        content = self._answer(self._file.read, size)
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise AudioError(f"{self._name} does not give bytes")
        return content

    def _answer(self, method: Callable[..., T], *arguments: int) -> T:
        try:
            return method(*arguments)
        except (TransduceError, OSError, MemoryError):
            raise
        except Exception as error:
            raise AudioError(f"{self._name} cannot be read: {error or type(error).__name__}") from error


def _is_text(file: object) -> bool:
    return isinstance(file, io.TextIOBase)


def _copied(file: BinaryIO, name: str, stack: ExitStack) -> BinaryIO:
    copy = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115 - the stack closes it
    try:
        shutil.copyfileobj(file, copy)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        folder = tempfile.gettempdir()
        raise ResourceError(f"{name} does not fit on the disk of {folder}, where it was to wait") from error
    return copy
