"""One file from a server to its place: resumed, hashed while it streams, and there only when it is right.

In: a RemoteFile, a folder, a Client. Out: the file under its name, and a StoredFile. Until size and hash
agree it is `NAME.HASH.part`, which a later run continues. Written by hand because pooch 1.9 neither
resumes nor locks, and huggingface_hub 2.4 checks only sizes and brings ten packages, one of them compiled.
It knows no models and takes no lock: the caller holds the folder's.
"""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from transduce.errors import DownloadError
from transduce.hub import disk
from transduce.hub.digests import Digest, Hasher
from transduce.hub.http import Client, Patience, RangeRefusedError, Response, TransientError, display

__all__ = ["RemoteFile", "StoredFile", "fetch", "hash_file", "part_path"]

PIECE_BYTES = 1 << 16
WORTHWHILE_BYTES = 1 << 20
"""A connection that brought this much was a success, whatever ended it."""
MAX_BYTES = 1 << 37
"""More than any model has: the bound of an answer that does not say its length."""
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on a server."""

    path: str
    """Where it goes below its folder, with forward slashes."""
    url: str
    num_bytes: int | None = None
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the cache."""

    path: str
    num_bytes: int
    digest: Digest
    """The one it had to have, or the sha256 of what came where none was given."""


def fetch(file: RemoteFile, folder: Path, client: Client, show: Callable[[int], None]) -> StoredFile:
    """Download a file; `show` is told how many of its bytes are there.

    Raises DownloadError, or ResourceError without room on the disk. What has arrived is kept for the
    next try, unless its hash is wrong.
    """
    with _Part(file, folder) as part:
        part.resume()
        show(part.num_bytes)
        _complete(part, client, show)
        return part.finish()


def part_path(file: RemoteFile, folder: Path) -> Path:
    """Where a file is while it arrives; content with another hash goes elsewhere."""
    name = file.digest.value[:16] if file.digest else "new"
    target = folder / file.path
    return target.with_name(f"{target.name}.{name}.part")


def hash_file(path: Path, hasher: Hasher) -> None:
    """Feed a file to a hasher; OSError as it comes."""
    with path.open("rb") as stream:
        while piece := stream.read(16 * PIECE_BYTES):
            hasher.update(piece)


class _Part:
    """The file on its way: bytes that grow on the disk, and their hash."""

    def __init__(self, file: RemoteFile, folder: Path) -> None:
        self.file = file
        self.path = part_path(file, folder)
        self.num_bytes = 0
        self.validator: str | None = None
        """What the server calls this content (ETag), to continue it where there is no hash."""
        self._target = folder / file.path
        self._is_one_piece = True
        self._num_rejected = 0
        self._hasher = self._new_hasher()
        with disk.writing(self._target.parent):
            self._target.parent.mkdir(parents=True, exist_ok=True)
        with disk.writing(self.path):
            self._stream: IO[bytes] = self.path.open("a+b")

    def __enter__(self) -> "_Part":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        if self.num_bytes == 0 or self.file.digest is None:
            self.path.unlink(missing_ok=True)

    def resume(self) -> None:
        """Take up what an earlier run left; without a hash nobody knows whether it still belongs."""
        with disk.writing(self.path):
            size = self._stream.seek(0, os.SEEK_END)
            if self.file.digest is None or size > (self.file.num_bytes or size):
                return self.clear()
            hash_file(self.path, self._hasher)
        self.num_bytes = size
        self._is_one_piece = size == 0
        return None

    def headers(self) -> dict[str, str]:
        """The request's headers: for the rest of the file, if some is here and can be continued."""
        if self.num_bytes and self.file.digest is None and self.validator is None:
            self.clear()
        if not self.num_bytes:
            return {}
        last = "" if self.file.num_bytes is None else self.file.num_bytes - 1
        # A hash proves the content by itself, and mirrors of one server disagree about their ETags.
        condition = {"If-Range": self.validator} if self.validator and self.file.digest is None else {}
        return {"Range": f"bytes={self.num_bytes}-{last}", **condition}

    def append(self, piece: bytes) -> None:
        with disk.writing(self.path):
            self._stream.write(piece)
        self._hasher.update(piece)
        self.num_bytes += len(piece)

    def continue_here(self) -> None:
        """Note that what follows comes from another connection than what is here."""
        self._is_one_piece = False

    def clear(self) -> None:
        """Start over."""
        with disk.writing(self.path):
            self._stream.truncate(0)
        self._hasher = self._new_hasher()
        self.num_bytes = 0
        self.validator = None
        self._is_one_piece = True

    def is_proven(self) -> bool:
        """Whether the hash says that this is the file, all of it."""
        digest = self.file.digest
        return digest is not None and self._hasher.hexdigest() == digest.value

    def reject(self) -> None:
        """Drop content with a wrong hash. One that came in pieces may try once more, in one."""
        found = self._hasher.hexdigest()
        self._num_rejected += 1
        is_final = self._is_one_piece or self._num_rejected > 1
        self.clear()
        if is_final:
            assert self.file.digest is not None, "only a hash can be wrong"
            raise DownloadError(
                f"{display(self.file.url)}: what came has {self.file.digest.kind} {found} where "
                f"{self.file.digest.value} belongs; nothing of it was kept. Try again; if this repeats, a "
                "proxy changes the file, or it was replaced at its source: then look for a newer transduce"
            )

    def finish(self) -> StoredFile:
        """Put the file in its place, safe against a power cut."""
        with disk.writing(self.path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self.path.replace(self._target)
        digest = self.file.digest or Digest("sha256", self._hasher.hexdigest())
        return StoredFile(self.file.path, self.num_bytes, digest)

    def _new_hasher(self) -> Hasher:
        digest = self.file.digest
        return digest.hasher(self.file.num_bytes) if digest else hashlib.sha256()


def _complete(part: _Part, client: Client, show: Callable[[int], None]) -> None:
    """Receive until the content is right: proven by its hash, or whole where there is none."""
    patience = Patience(client.policy)
    is_whole = part.num_bytes == part.file.num_bytes
    while not part.is_proven():
        if is_whole and part.file.digest is None:
            return
        if is_whole:
            part.reject()
        before = part.num_bytes
        try:
            _receive(part, client, show)
            is_whole = True
        except TransientError as error:
            is_whole = False
            if isinstance(error, RangeRefusedError):
                part.clear()
            if part.num_bytes - before >= WORTHWHILE_BYTES:
                patience.reset()
            patience.wait(error)


def _receive(part: _Part, client: Client, show: Callable[[int], None]) -> None:
    """Take what one connection gives; TransientError where it ends before the file does."""
    url = part.file.url
    with client.open(url, part.headers()) as response:
        expected = _prepare(part, response)
        if expected is not None:
            disk.require_space(part.path.parent, expected - part.num_bytes)
        while piece := response.read(PIECE_BYTES):
            part.append(piece)
            show(part.num_bytes)
            if part.num_bytes > (MAX_BYTES if expected is None else expected):
                part.clear()
                raise DownloadError(f"{display(url)}: more bytes came than the file has; nothing was kept")
    if expected is not None and part.num_bytes < expected:
        raise TransientError(
            f"{display(url)}: the connection ended at {part.num_bytes:,} of {expected:,} bytes"
        )


def _prepare(part: _Part, response: Response) -> int | None:
    """Make the part ready for the body of this answer; the file's size, as far as it is known."""
    _refuse_page(part.file, response)
    if response.status == 206:
        size = _continue(part, response)
    elif response.status == 200:
        if part.num_bytes:
            part.clear()
        part.validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
        size = _content_length(response)
    else:
        raise DownloadError(f"{display(part.file.url)}: unexpected status {response.status}")
    known = part.file.num_bytes
    if known is not None and size is not None and known != size:
        raise DownloadError(
            f"{display(part.file.url)}: the server has {size:,} bytes where {known:,} belong; the file was "
            "replaced at its source, or a proxy is in the way"
        )
    if known is None and size is None and part.file.digest is None and not _is_chunked(response):
        raise DownloadError(
            f"{display(part.file.url)}: the server does not say how long the file is, so half of it would "
            "look like all of it; add #sha256=... to the address"
        )
    return known if known is not None else size


def _continue(part: _Part, response: Response) -> int | None:
    """Check that a partial answer begins where the part ends; the whole file's size, if it says."""
    match = CONTENT_RANGE.fullmatch(str(response.headers.get("Content-Range", "")))
    if match is None or int(match[1]) != part.num_bytes:
        part.clear()
        raise TransientError(f"{display(part.file.url)}: the server sent another part than the one asked for")
    part.continue_here()
    return None if match[2] == "*" else int(match[2])


def _refuse_page(file: RemoteFile, response: Response) -> None:
    """A web page or compressed content is not the file, whatever the status says."""
    kind = str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()
    if kind == "text/html" and not file.path.endswith((".html", ".htm")):
        raise DownloadError(
            f"{display(file.url)}: the server sent a web page instead of the file; nothing of it was kept. A "
            "login page, a captive portal or a filter may be in the way: open the address in a browser"
        )
    encoding = str(response.headers.get("Content-Encoding", "identity")).strip().lower()
    if encoding not in ("", "identity"):
        raise DownloadError(f"{display(file.url)}: the server sent {encoding}, which was not asked for")


def _content_length(response: Response) -> int | None:
    text = str(response.headers.get("Content-Length", "")).strip()
    return int(text) if text.isdecimal() and not _is_chunked(response) else None


def _is_chunked(response: Response) -> bool:
    return "chunked" in str(response.headers.get("Transfer-Encoding", "")).lower()
