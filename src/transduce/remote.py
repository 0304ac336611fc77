"""Recordings in object stores, by their addresses: `s3://`, `gs://`, whatever fsspec has a driver for.

In: a path or an address. Out: what `audio` can read: the path itself, or a file that is opened when it is
first read, so that an object that is not there is an error of its recording. Web addresses are not fetched.
What is inside a file is unknown here.
"""

import io
from typing import Any, BinaryIO, cast

from transduce.errors import AudioError, MissingExtraError, import_extra
from transduce.sources import AudioSource, is_address

__all__ = ["close_source", "open_source", "read_text"]

REFUSED = ("http", "https")
"""What is on the web may be anything, and anywhere: whoever wants it downloads it."""


def open_source(name: str) -> AudioSource:
    """A path as it is; an address as a file to read. `close_source` ends it. Raises nothing."""
    return cast(BinaryIO, _RemoteFile(name)) if is_address(name) else name


def close_source(source: AudioSource) -> None:
    """Close what `open_source` opened."""
    if isinstance(source, _RemoteFile):
        source.close()


def read_text(name: str) -> str:
    """The content of a text file (UTF-8, with or without a mark), of a path or an address.

    Raises AudioError and MissingExtraError for addresses, OSError, and UnicodeDecodeError.
    """
    if not is_address(name):
        with open(name, encoding="utf-8-sig") as file:
            return file.read()
    source = _RemoteFile(name)
    try:
        return source.read().decode("utf-8-sig")
    finally:
        source.close()


class _RemoteFile:
    """A file at an address, opened by the first method that is called."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file: Any = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position: int = self._opened().seek(offset, whence)
        return position

    def tell(self) -> int:
        position: int = self._opened().tell()
        return position

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._opened().read(size)
        return content

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> Any:
        if self._file is None:
            self._file = _open(self.name)
        return self._file


def _open(name: str) -> Any:
    """The fsspec file at an address, to be read from its start."""
    protocol, _, rest = name.partition("://")
    if (
        protocol.lower() in REFUSED or "::" in name
    ):  # "::" leads from one address to another, which may be on the web
        raise AudioError(f"{name} is a web address, not an object in a store: download it first")
    fsspec = import_extra("fsspec", "ray")
    try:
        filesystem, path = fsspec.core.url_to_fs(f"{protocol.lower()}://{rest}")
        return filesystem.open(path, "rb")
    except ImportError as error:
        raise MissingExtraError(f"{name} cannot be read: {error}") from error
    except FileNotFoundError as error:
        raise AudioError(f"{name} cannot be read: there is nothing at this address") from error
    except Exception as error:  # each store raises its own: no credentials, no such bucket, no such protocol
        raise AudioError(f"{name} cannot be read: {error or type(error).__name__}") from error
