"""Model files of every family we read, by what they contain.

In: a path. Out: a Checkpoint (ModelSpec, Tokenizer, weights). The kind is found from content, never
from the name.
"""

from pathlib import Path

from transduce.checkpoints import torch_file
from transduce.checkpoints.state import Checkpoint
from transduce.errors import CheckpointError, UnsupportedModelError, import_extra

__all__ = ["Checkpoint", "load"]

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
TAR_MAGIC, TAR_MAGIC_OFFSET = b"ustar", 257

NOT_FETCHED = (
    (b"\0" * 16, "the file begins with zeros: it was not fetched whole"),
    (b"<", "the file is a web page: something else was fetched"),
    (b"version https://git-lfs", "the file is a Git LFS pointer, not the model: run git lfs pull"),
)
"""How files begin that are no model because their download failed."""


def load(path: Path) -> Checkpoint:
    """Read a model file; CheckpointError if it is damaged, UnsupportedModelError if not ours.

    What is a model's needs torch, else MissingExtraError; what is none is said without it.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise CheckpointError(f"{path}: is not a file; give the path of a .nemo or .ckpt file")
        with path.open("rb") as file:
            head = file.read(TAR_MAGIC_OFFSET + len(TAR_MAGIC))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened ({error.strerror or error})") from error
    if head.startswith(GZIP_MAGIC) or head[TAR_MAGIC_OFFSET:] == TAR_MAGIC:
        import_extra("torch", "torch")
        from transduce.checkpoints import nemo

        return nemo.load(path)
    if head.startswith((ZIP_MAGIC, torch_file.LEGACY_MAGIC)):
        import_extra("torch", "torch")
        from transduce.checkpoints import gigaam

        return gigaam.load(path)
    if not head:
        raise CheckpointError(f"{path}: the file is empty; fetch it again")
    for start, meaning in NOT_FETCHED:
        if head.startswith(start):
            raise CheckpointError(f"{path}: {meaning}. Fetch it again")
    raise UnsupportedModelError(
        f"{path}: neither a NeMo archive (.nemo) nor a torch checkpoint (.ckpt); "
        "docs/models.md lists what is read"
    )
