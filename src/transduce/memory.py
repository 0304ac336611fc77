"""What keeps a process at its size that recognises audio for hours.

In: nothing. Out: limits of the libraries beneath, and free memory back to the system. oneDNN, and torch's
bridge to it, keep what they compiled for a shape, 0.1 to 0.5 MB each, up to 1024 of them, and every batch
has new shapes. And the same batches leave holes in glibc's heap, which it neither fills nor returns.
"""

import ctypes
import os
import sys
from collections.abc import Callable

__all__ = ["give_back", "glibc", "limit_caches"]

CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables of oneDNN and of torch's bridge to it."""


def limit_caches(capacity: int = 64) -> None:
    """Set the limits that the user has not set; they hold if torch has computed nothing so far.

    A batch needs some dozen shapes.
    """
    for name in CACHES:
        os.environ.setdefault(name, str(capacity))


def give_back() -> None:
    """Return free memory, in some 10 to 40 ms; where the C library is not glibc, nothing."""
    trim = glibc("malloc_trim")
    if trim is not None:
        trim(0)


def glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc; None where that is not the C library."""
    found: Callable[..., int] | None = None
    if sys.platform == "linux":
        found = getattr(ctypes.CDLL(None), name, None)
    return found
