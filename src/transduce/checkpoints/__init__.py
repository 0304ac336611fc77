"""Model files of every family we read, by what they contain.

In: a path. Out: a Checkpoint (ModelSpec, Tokenizer, weights). The kind is found from content, never
from the name.
"""

from pathlib import Path

from transduce.checkpoints.state import Checkpoint
from transduce.errors import CheckpointError, UnsupportedModelError

__all__ = ["Checkpoint", "load"]

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
TAR_MAGIC, TAR_MAGIC_OFFSET = b"ustar", 257


def load(path: Path) -> Checkpoint:
    """Read a model file; CheckpointError if it is damaged, UnsupportedModelError if not ours."""
    try:
        with path.open("rb") as file:
            head = file.read(TAR_MAGIC_OFFSET + len(TAR_MAGIC))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened ({error.strerror or error})") from error
    if head.startswith(GZIP_MAGIC) or head[TAR_MAGIC_OFFSET:] == TAR_MAGIC:
        from transduce.checkpoints import nemo

        return nemo.load(path)
    if head.startswith(ZIP_MAGIC):
        from transduce.checkpoints import gigaam

        return gigaam.load(path)
    if not head:
        raise CheckpointError(f"{path}: the file is empty; fetch it again")
    raise UnsupportedModelError(
        f"{path}: neither a NeMo archive (.nemo) nor a torch checkpoint (.ckpt); "
        "docs/models.md lists what is read"
    )
