"""What keeps a process at its size that recognises audio for hours.

In: nothing. Out: limits of the libraries beneath, and free memory back to the system. oneDNN, and torch's
bridge to it, keep what they compiled for a shape, 0.1 to 0.5 MB each, up to 1024 of them, and every batch
has new shapes. And the same batches leave holes in glibc's heap, which it neither fills nor returns.
"""

import ctypes
import os
import sys

__all__ = ["give_back", "limit_caches"]

CACHE_LIMITS = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}
"""Environment variables of oneDNN and of torch's bridge to it; a batch needs some dozen shapes."""


def limit_caches() -> None:
    """Set the limits that the user has not set; they hold if torch has computed nothing so far."""
    for name, value in CACHE_LIMITS.items():
        os.environ.setdefault(name, value)


def give_back() -> None:
    """Return free memory, in some 10 to 40 ms; where the C library is not glibc, nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
