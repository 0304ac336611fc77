"""Small questions that readers ask of an upstream config (a tree of plain dicts and lists)."""

from collections.abc import Mapping
from typing import Any

from transduce.errors import CheckpointError, UnsupportedModelError

__all__ = ["require", "section"]


def section(config: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """A part of the config that must be there and hold settings."""
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{source}: the config has no section {name!r}")
    return part


def require(known: bool, source: str, what: str) -> None:
    """Raise UnsupportedModelError unless the option is one whose arithmetic we have."""
    if not known:
        raise UnsupportedModelError(f"{source}: {what} is not supported; docs/models.md lists what is")
