"""What keeps a process that runs for weeks at its size, beyond what `transduce.memory` does for hours.

In: nothing. Out: smaller caches, one heap, and a collector that leaves alone what is there to stay. glibc
gives each thread a heap of its own, whose free end it never returns. `docs/server.md` has the figures.
"""

import gc
import os

from transduce import memory

__all__ = ["give_back", "prepare", "settle"]

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h

CACHE_CAPACITY = 32


def prepare() -> None:
    """Set the limits that the user has not set. It works until torch is first used, and before threads."""
    memory.limit_caches(CACHE_CAPACITY)
    set_option = memory.glibc("mallopt")
    if set_option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        set_option(_ARENA_MAX, 1)


def settle() -> None:
    """Tell the garbage collector that what is there now stays: it need not look at it again."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Collect garbage and return free memory to the system: some 30 ms."""
    gc.collect()
    memory.give_back()
