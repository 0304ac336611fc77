"""The errors a user can meet, one small tree.

    TransduceError
    ├── AudioError             (ValueError)    a file, stream or array that is not usable audio
    ├── CheckpointError        (ValueError)    a model file that is damaged, incomplete or unsafe
    ├── UnsupportedModelError  (ValueError)    a sound model file of a kind we do not run
    ├── DownloadError          (OSError)       a model that could not be fetched whole
    ├── MissingExtraError      (ImportError)   an optional dependency that is not installed
    ├── DeviceError            (RuntimeError)  a device, precision or driver that is not there
    └── ResourceError          (MemoryError)   memory or disk that ran out

Every leaf is also the builtin its meaning suggests, so callers may catch either. The message
names the thing and says what to do; `code` is stable and shown by CLI, HTTP and Triton alike.
"""

from importlib import import_module
from types import ModuleType
from typing import ClassVar

__all__ = [
    "AudioError",
    "CheckpointError",
    "DeviceError",
    "DownloadError",
    "MissingExtraError",
    "ResourceError",
    "TransduceError",
    "UnsupportedModelError",
    "import_extra",
]


class TransduceError(Exception):
    """The root: `except TransduceError` catches everything this package raises on purpose."""

    code: ClassVar[str] = "error"


class AudioError(TransduceError, ValueError):
    """The audio cannot be read, or the array is not audio (shape, type, rate, NaN)."""

    code = "audio"


class CheckpointError(TransduceError, ValueError):
    """The model file is damaged, incomplete, inconsistent or tries something unsafe."""

    code = "checkpoint"


class UnsupportedModelError(TransduceError, ValueError):
    """The model file is sound, but of a family or with an option that we do not run."""

    code = "unsupported_model"


class DownloadError(TransduceError, OSError):
    """A model could not be fetched whole, or is not in the cache while offline."""

    code = "download"


class MissingExtraError(TransduceError, ImportError):
    """An optional dependency is needed; the message holds the pip line that adds it."""

    code = "missing_extra"


class DeviceError(TransduceError, RuntimeError):
    """The device, precision or driver asked for is not available here, or the model was closed."""

    code = "device"


class ResourceError(TransduceError, MemoryError):
    """Memory or disk space ran out, also for the smallest piece of the work."""

    code = "resource"


def import_extra(module: str, extra: str) -> ModuleType:
    """Import `module`, or raise MissingExtraError with the pip line for `extra`."""
    try:
        return import_module(module)
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # pybind11 gives it the name of a failure
            raise error.__cause__ from None
        raise MissingExtraError(
            f"{module.partition('.')[0]} is needed for this and could not be imported ({error}). "
            f'Install it with: pip install "transduce[{extra}]"'
        ) from error
