"""What keeps a process that runs for weeks at its size.

In: nothing. Out: limits of the libraries beneath, and memory given back to the system. Otherwise two things
would grow for days. oneDNN, and torch's bridge to it, keep what they compiled for a shape, 0.1 to 0.5 MB
each, up to 1024 of them, and every batch has new shapes. And glibc gives each thread a heap of its own,
whose free end it never returns. `docs/server.md` has the figures.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Callable

__all__ = ["CACHE_LIMITS", "give_back", "prepare", "settle"]

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h

CACHE_LIMITS = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    "LRU_CACHE_CAPACITY": "32",
}
"""Environment variables of oneDNN and of torch's bridge to it; a batch needs some dozen shapes."""


def prepare() -> None:
    """Set the limits that the user has not set. It works until torch is first used, and before threads."""
    for name, value in CACHE_LIMITS.items():
        os.environ.setdefault(name, value)
    set_option = _glibc("mallopt")
    if set_option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        set_option(_ARENA_MAX, 1)


def settle() -> None:
    """Tell the garbage collector that what is there now stays: it need not look at it again."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Collect garbage and, where the C library is glibc, return free memory to the system: some 30 ms."""
    gc.collect()
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc; None where that is not the C library."""
    found: Callable[..., int] | None = None
    if sys.platform == "linux":
        found = getattr(ctypes.CDLL(None), name, None)
    return found
