"""The `.nemo` container: a tar, plain or gzip, read in place.

In: a path. Out: its config, its state dict (numpy) and the bytes of small members. Nothing is
ever unpacked to disk, and a member that points out of the archive refuses the whole file.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from transduce.checkpoints.config import one_line, parse_yaml
from transduce.checkpoints.torch_file import load_torch_file
from transduce.errors import CheckpointError

__all__ = ["NemoArchive"]

MAX_MEMBERS = 1000
MAX_CONFIG_BYTES = 16 << 20
MAX_WEIGHTS_BYTES = 64 << 30
MAX_COMPRESSION = 20
"""Most that a gzip archive may unpack to, in its own sizes: weights hardly compress at all."""


@dataclass(frozen=True)
class NemoArchive:
    """The members of a `.nemo` tar by file name, read in place."""

    source: str
    tar: tarfile.TarFile
    members: Mapping[str, tarfile.TarInfo]

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["NemoArchive"]:
        """The archive, until the end of a `with` block."""
        try:
            with _uncompressed(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                yield cls(str(path), tar, _members(tar, str(path)))
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise CheckpointError(
                f"{path}: not a whole .nemo archive ({one_line(error)}); fetch the file again"
            ) from error

    def config(self) -> Mapping[str, Any]:
        name = "model_config.yaml"
        return parse_yaml(self.read(name, MAX_CONFIG_BYTES), f"{self.source}: {name}")

    def weights(self) -> Mapping[str, Any]:
        with self._file("model_weights.ckpt", MAX_WEIGHTS_BYTES) as file:
            state = load_torch_file(file, self.source)
        if not isinstance(state, dict) or not all(isinstance(array, np.ndarray) for array in state.values()):
            raise CheckpointError(f"{self.source}: model_weights.ckpt is not a flat state dict")
        return state

    def read(self, name: str, max_bytes: int) -> bytes:
        """The bytes of a small member."""
        with self._file(name, max_bytes) as file:
            return file.read()

    def _file(self, name: str, max_bytes: int) -> IO[bytes]:
        member = self.members.get(name)
        file = self.tar.extractfile(member) if member else None
        if member is None or file is None:
            raise CheckpointError(
                f"{self.source}: the archive holds no {one_line(name)}; it is not a whole NeMo model"
            )
        if member.size > max_bytes:
            raise CheckpointError(
                f"{self.source}: {one_line(name)} has an absurd size of {member.size} bytes; not loaded"
            )
        return file


def _members(tar: tarfile.TarFile, source: str) -> dict[str, tarfile.TarInfo]:
    """The members by their path inside the archive; one that is not a plain file of it refuses all."""
    members: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        path = PurePosixPath(member.name)
        is_plain = (member.isreg() and not member.issparse()) or member.isdir()
        # A negative size, where tarfile does not refuse it itself, would have it read in a circle.
        if not is_plain or member.size < 0 or path.is_absolute() or ".." in path.parts:
            raise CheckpointError(
                f"{source}: the member {one_line(member.name)!r} is a link, a device or outside the "
                "archive's folder; the file was not loaded"
            )
        members[str(path)] = member
        if len(members) > MAX_MEMBERS:
            raise CheckpointError(f"{source}: has over {MAX_MEMBERS} members; it is not a NeMo model")
    return members


def _uncompressed(path: Path) -> IO[bytes]:
    """The tar itself; a gzip one is unpacked into memory, since the weights need random access."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if not is_gzip:
        return path.open("rb")
    limit = MAX_COMPRESSION * path.stat().st_size + MAX_CONFIG_BYTES
    with gzip.open(path) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise CheckpointError(f"{path}: unpacks to an absurd size (over {limit} bytes); it was not loaded")
    return io.BytesIO(content)
