"""Reading pickled torch files without running anything in them.

In: a binary file that `checkpoints.torch_file` has looked through. Out: what torch.save wrote, tensors
as numpy arrays in fp32 or their own integer type. `weights_only=True` always; a caller may allow named
container classes, and the allowance ends with the call.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import IO, Any

import torch
from torch import Tensor

from transduce.errors import CheckpointError

__all__ = ["load_pickled"]

MAX_SHARING = 4
"""How often the tensors of a file may use its bytes, all together; tied weights use some of them twice."""
MAX_DEPTH = 2
"""Tensors lie in a dict, or in a dict of that dict (a state dict beside other things)."""

_ALLOWING = Lock()
"""torch keeps what is allowed in one list for all threads: one load ending would end it for another."""


def load_pickled(file: IO[bytes], source: str, allowed: Sequence[Callable[..., Any]] = ()) -> Any:
    """The object in `file`, with arrays for tensors; classes but torch's own and `allowed` are refused."""
    file_bytes = file.seek(0, 2)
    file.seek(0)
    try:
        with _ALLOWING, torch.serialization.safe_globals(list(allowed)):
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        _check_sizes(list(_tensors(loaded, MAX_DEPTH)), file_bytes, source)
        return _to_numpy(loaded, MAX_DEPTH)
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"{source}: cannot be read as a torch checkpoint; it is damaged or cut short ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    """One line; torch's advice to read the file without its checks is left out."""
    if isinstance(error, pickle.UnpicklingError):
        return "torch's restricted reader refuses it"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict) and depth:
        for item in value.values():
            yield from _tensors(item, depth - 1)


def _check_sizes(tensors: Sequence[Tensor], file_bytes: int, source: str) -> None:
    """Tensors are backed by the file's bytes.

    One may repeat few bytes as an array of any size (strides of 0), and many may share one storage;
    as arrays in fp32 both would take memory without any relation to the file.
    """
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    is_repeated = any(
        size > tensor.untyped_storage().nbytes() for size, tensor in zip(sizes, tensors, strict=True)
    )
    if is_repeated or sum(sizes) > MAX_SHARING * file_bytes:
        raise CheckpointError(
            f"{source}: names {sum(sizes)} bytes of tensors in {file_bytes} bytes; it was not loaded"
        )


def _to_numpy(value: Any, depth: int) -> Any:
    if isinstance(value, Tensor):
        return (value.float() if value.is_floating_point() else value).detach().numpy()
    if isinstance(value, dict) and depth:
        return {key: _to_numpy(item, depth - 1) for key, item in value.items()}
    return value
