"""Reading pickled torch files without running anything in them.

In: a binary file. Out: what torch.save wrote, tensors as numpy arrays in fp32 or their own
integer type. `weights_only=True` always; a caller may allow named container classes, and the
allowance ends with the call.
"""

import pickle
import zipfile
from collections.abc import Callable, Sequence
from typing import IO, Any

import torch

from transduce.errors import CheckpointError

__all__ = ["load_pickled"]


def load_pickled(file: IO[bytes], source: str, allowed: Sequence[type | Callable[..., Any]] = ()) -> Any:
    """The object in `file`; classes other than torch's own and `allowed` are refused."""
    try:
        with torch.serialization.safe_globals(list(allowed)):
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{source}: {_reason(error)}") from error
    except (
        RuntimeError,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        OSError,
        zipfile.BadZipFile,
    ) as error:
        raise CheckpointError(
            f"{source}: cannot be read as a torch checkpoint; it is damaged or cut short "
            f"({_first_line(error)})"
        ) from error
    return _to_numpy(loaded)


def _reason(error: Exception) -> str:
    text = str(error)
    if "Unsupported global" in text or "GLOBAL" in text or "Unsupported class" in text:
        name = text.partition("GLOBAL ")[2].split(" ")[0] or "an unknown class"
        return (
            f"holds a pickled object ({name}) that is not plain data and could run code; it was not loaded. "
            "Ask for the file in its released form, or save its tensors anew"
        )
    return f"cannot be read as a torch checkpoint; it is damaged or cut short ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        floating = value.dtype.is_floating_point
        return (value.float() if floating else value).detach().numpy()
    if isinstance(value, dict):
        return {key: _to_numpy(item) for key, item in value.items()}
    return value
