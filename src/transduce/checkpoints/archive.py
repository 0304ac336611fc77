"""The `.nemo` container: a tar, plain or gzip, read in place.

In: a path. Out: its config, its state dict (numpy) and the bytes of small members. Nothing is
ever unpacked to disk, and a member that points out of the archive refuses the whole file.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from transduce.errors import CheckpointError

__all__ = ["NemoArchive"]

MAX_CONFIG_BYTES = 16 << 20
MAX_WEIGHTS_BYTES = 64 << 30
MAX_COMPRESSION = 20
"""Most that a gzip archive may unpack to, in its own sizes: weights hardly compress at all."""

READ_ERRORS = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error)


@dataclass
class NemoArchive:
    """The members of a `.nemo` tar by file name, read in place."""

    source: str
    tar: tarfile.TarFile
    members: Mapping[str, tarfile.TarInfo]

    @classmethod
    def open(cls, path: Path) -> "NemoArchive":
        try:
            tar = tarfile.open(fileobj=_uncompressed(path), mode="r:")  # noqa: SIM115 - closed by __exit__
            members = tar.getmembers()
        except CheckpointError:
            raise
        except READ_ERRORS as error:
            raise CheckpointError(f"{path}: not a readable .nemo archive ({error})") from error
        return cls(str(path), tar, {_safe_name(member, str(path)): member for member in members})

    def __enter__(self) -> "NemoArchive":
        return self

    def __exit__(self, *_: object) -> None:
        self.tar.close()
        if self.tar.fileobj:
            self.tar.fileobj.close()

    def config(self) -> Mapping[str, Any]:
        try:
            config = yaml.safe_load(self.read("model_config.yaml", MAX_CONFIG_BYTES))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self.source}: model_config.yaml is not valid YAML ({error})") from error
        if not isinstance(config, dict):
            raise CheckpointError(f"{self.source}: model_config.yaml holds no settings")
        return config

    def weights(self) -> Mapping[str, Any]:
        from transduce.nn.loading import load_pickled

        with self._file("model_weights.ckpt", MAX_WEIGHTS_BYTES) as file:
            state = load_pickled(file, self.source)
        if not isinstance(state, dict) or not all(hasattr(array, "shape") for array in state.values()):
            raise CheckpointError(f"{self.source}: model_weights.ckpt is not a flat state dict")
        return state

    def read(self, name: str, max_bytes: int) -> bytes:
        """The bytes of a small member."""
        with self._file(name, max_bytes) as file:
            content = file.read()
        if len(content) != self.members[name].size:
            raise CheckpointError(f"{self.source}: {name} is cut short; fetch the file again")
        return content

    def _file(self, name: str, max_bytes: int) -> IO[bytes]:
        member = self.members.get(name)
        file = self.tar.extractfile(member) if member else None
        if member is None or file is None:
            raise CheckpointError(f"{self.source}: the archive holds no {name}; it is not a whole NeMo model")
        if member.size > max_bytes:
            raise CheckpointError(f"{self.source}: {name} has an absurd size of {member.size} bytes")
        return file


def _safe_name(member: tarfile.TarInfo, source: str) -> str:
    """The member's path inside the archive; anything that points out of it is refused."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise CheckpointError(
            f"{source}: the member {member.name!r} is a link, a device or outside the archive's folder; "
            "the file was not loaded"
        )
    return str(path)


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
