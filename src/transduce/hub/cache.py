"""The cache on the disk: one folder an artefact, and in it a list of what belongs there.

    ROOT/LABEL/NAME/...            the files of one artefact
    ROOT/LABEL/NAME/.files.json    their names, sizes and hashes: the artefact is whole when all are there
    ROOT/.locks/...                one file an artefact, held by the process that writes it

In: keys (LABEL/NAME) and lists. Out: paths, and what is whole. Looking needs no write permission and no
network, so a cache may be read-only and shared. It downloads nothing.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transduce.errors import DownloadError
from transduce.hub import disk
from transduce.hub.digests import Digest
from transduce.hub.paths import is_safe_path
from transduce.hub.transfer import hash_file

__all__ = ["Cache", "Cached", "FileList", "ListedFile"]

logger = logging.getLogger("transduce")

LIST_NAME, LIST_FORMAT = ".files.json", 1
MAX_LIST_BYTES = 4 << 20
LOCKS = ".locks"


class _Lock(Protocol):
    """What we use of filelock's locks."""

    def acquire(self, timeout: float) -> object: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that belongs to an artefact; size and hash are unknown until it has come."""

    path: str
    num_bytes: int | None
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class FileList:
    """What belongs into one folder, and where it is from."""

    name: str
    """The model's."""
    origin: str
    """Repository and commit, or the server."""
    licence: str
    files: tuple[ListedFile, ...]


@dataclass(frozen=True, slots=True)
class Cached:
    """One folder of the cache, as it is."""

    key: str
    folder: Path
    listed: FileList | None
    num_bytes: int
    """On the disk, half a file included."""
    missing: tuple[str, ...]
    """Files of the list that are not there whole."""

    @property
    def name(self) -> str:
        return self.listed.name if self.listed else self.key.rpartition("/")[2]

    @property
    def is_whole(self) -> bool:
        return self.listed is not None and not self.missing


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache by its root folder, which need not exist."""

    root: Path

    def folder(self, key: str) -> Path:
        """The folder of an artefact."""
        return self.root / key

    def look(self, key: str) -> Cached:
        """What there is of an artefact; costs a stat a file. DownloadError where it may not be looked at."""
        folder = self.folder(key)
        with disk.reading(folder):
            listed = _read_list(folder / LIST_NAME)
        files = listed.files if listed else ()
        missing = tuple(file.path for file in files if not _is_there(folder, file))
        return Cached(key, folder, listed, _num_bytes(folder), missing)

    def all(self) -> list[Cached]:
        """Every artefact of which anything is here, by key; DownloadError where one may not be looked at."""
        labels = _folders(self.root)
        keys = sorted(f"{label}/{name}" for label in labels for name in _folders(self.root / label))
        return [self.look(key) for key in keys if LIST_NAME in _names(self.folder(key))]

    def write_list(self, key: str, listed: FileList) -> None:
        """Note what belongs into an artefact's folder; the caller holds its lock."""
        folder = self.folder(key)
        temporary = folder / f"{LIST_NAME}.part"
        with disk.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(_to_json(listed), indent=1), encoding="utf-8")
            temporary.replace(folder / LIST_NAME)

    def damaged(self, cached: Cached) -> list[str]:
        """Files whose content does not have its hash any more; reads them all."""
        files = cached.listed.files if cached.listed else ()
        return [file.path for file in files if not _has_its_hash(cached.folder, file)]

    def tidy(self, key: str) -> None:
        """Remove what earlier tries left of other content; the caller holds the lock."""
        for part in self.folder(key).rglob("*.part"):
            part.unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Delete an artefact's folder; DownloadError where another process is writing it."""
        with self.lock(key, waits=False):
            folder = self.folder(key)
            with disk.writing(folder):
                shutil.rmtree(folder)
            with suppress(OSError):  # not empty
                folder.parent.rmdir()

    @contextmanager
    def lock(
        self, key: str, *, waits: bool = True, announce: Callable[[str], None] = logger.warning
    ) -> Iterator[None]:
        """Hold the artefact for this process; the system frees it when the process dies."""
        from filelock import FileLock

        path = self.root / LOCKS / f"{key.replace('/', '--')}.lock"
        with disk.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, mode=0o666)
        if not _acquire(lock, path, timeout_seconds=0):
            if not waits:
                raise DownloadError(f"{self.folder(key)}: another process is writing it; try again later")
            announce(f"waiting for another process that is downloading to {self.folder(key)}")
            _acquire(lock, path, timeout_seconds=-1)
        try:
            yield
        finally:
            lock.release()


def _acquire(lock: _Lock, path: Path, timeout_seconds: float) -> bool:
    """Take the lock; False where another process has it. Negative: wait as long as it takes."""
    from filelock import Timeout

    with disk.writing(path):
        try:
            lock.acquire(timeout=timeout_seconds)
        except Timeout:
            return False
        except NotImplementedError:
            logger.warning("%s: this file system cannot lock; download a model by one process only", path)
    return True


def _folders(place: Path) -> list[str]:
    """The names of the folders below a folder."""
    with disk.reading(place):
        return [name for name in _names(place) if (place / name).is_dir()]


def _names(folder: Path) -> list[str]:
    """What is in a folder; nothing where there is none."""
    with disk.reading(folder):
        try:
            return os.listdir(folder)
        except FileNotFoundError:
            return []


def _is_there(folder: Path, file: ListedFile) -> bool:
    try:
        return (folder / file.path).stat().st_size == file.num_bytes
    except OSError:
        return False


def _has_its_hash(folder: Path, file: ListedFile) -> bool:
    if file.digest is None or not _is_there(folder, file):
        return False
    hasher = file.digest.hasher(file.num_bytes)
    try:
        hash_file(folder / file.path, hasher)
    except OSError:
        return False
    return hasher.hexdigest() == file.digest.value


def _num_bytes(folder: Path) -> int:
    """What is there, while others may be adding and removing."""
    num_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            num_bytes += path.stat().st_size if path.is_file() else 0
    return num_bytes


def _to_json(listed: FileList) -> dict[str, Any]:
    return {
        "format": LIST_FORMAT,
        "name": listed.name,
        "origin": listed.origin,
        "licence": listed.licence,
        "files": [
            {"path": f.path, "bytes": f.num_bytes, "digest": str(f.digest) if f.digest else None}
            for f in listed.files
        ],
    }


def _read_list(path: Path) -> FileList | None:
    """The list, or None where there is none that makes sense: then the artefact is not here."""
    try:
        with path.open("rb") as stream:
            content = json.loads(stream.read(MAX_LIST_BYTES))
        if content["format"] != LIST_FORMAT:
            return None
        files = tuple(_listed_file(item) for item in content["files"])
        return FileList(str(content["name"]), str(content["origin"]), str(content["licence"]), files)
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _listed_file(item: Any) -> ListedFile:
    path, num_bytes, digest = item["path"], item["bytes"], item["digest"]
    if not isinstance(path, str) or not is_safe_path(path):
        raise ValueError(f"{path!r} is not a path below the folder")
    if num_bytes is not None and type(num_bytes) is not int:
        raise ValueError(f"{num_bytes!r} is not a size")
    return ListedFile(path, num_bytes, None if digest is None else Digest.parse(str(digest)))
