"""The disk under the cache: is there room, may we read and write, and what to say where not.

In: paths and byte counts. Out: nothing, or ResourceError (no room) and DownloadError (not readable or not
writable), each with what to do. It knows no models.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.errors import DownloadError, ResourceError

__all__ = ["display_size", "reading", "require_space", "writing"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESERVE_BYTES = 64 << 20
"""Room that is left to others."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says about writing at `path` into our errors."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            raise ResourceError(
                f"{path}: no room on the disk ({reason}); free some, or set TRANSDUCE_CACHE to a folder on "
                "another one"
            ) from error
        raise DownloadError(
            f"{path}: cannot be written ({reason}); set TRANSDUCE_CACHE to a folder that can"
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system says about looking at `path` into our error."""
    try:
        yield
    except OSError as error:
        raise DownloadError(
            f"{path}: cannot be read ({error.strerror or error}); change its permissions, or set "
            "TRANSDUCE_CACHE to another folder"
        ) from error


def require_space(folder: Path, num_bytes: int) -> None:
    """Hold that `num_bytes` more fit on the disk of `folder`, which need not exist yet."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    if there is None:  # a drive that is not there: writing says so
        return
    free = shutil.disk_usage(there).free
    if num_bytes + RESERVE_BYTES > free:
        raise ResourceError(
            f"{folder}: {display_size(num_bytes)} are to come and {display_size(free)} are free; make room "
            "(`transduce cache show` lists what is here), or set TRANSDUCE_CACHE to a folder on another disk"
        )


def display_size(num_bytes: int) -> str:
    """Decimal units as disks and hubs use them: 2.4 GB, 670 MB, 12 kB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            number = num_bytes / size
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{num_bytes} bytes"
