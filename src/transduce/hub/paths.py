"""Which relative paths may be written below a folder, on every system.

In: a path from a server or a list. Out: whether it is safe.
"""

import re

__all__ = ["is_safe_path"]

FORBIDDEN = re.compile(r'[\\:*?"<>|]')
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices."""


def is_safe_path(path: str) -> bool:
    """Whether a relative path with forward slashes stays below its folder and can be a file's name."""
    return (
        path.isprintable()
        and not FORBIDDEN.search(path)
        and all(_is_safe_part(part) for part in path.split("/"))
    )


def _is_safe_part(part: str) -> bool:
    return part not in ("", ".", "..") and not part.endswith((".", " ")) and not RESERVED.fullmatch(part)
