"""A hook of mkdocs: every page of docs/ is in the navigation, also one that `mkdocs.yml` does not place.

In: mkdocs' configuration. Out: the same; the records that `scripts/prove` wrote to docs/evidence/ are added
to the section Evidence, other pages that have no place to Guides.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["on_config"]


def on_config(config: Any) -> Any:
    """Add what is missing to the navigation."""
    docs = Path(config["docs_dir"])
    placed = set(_paths(config["nav"]))
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    for page in (page for page in pages if page not in placed):
        is_record = page.startswith("evidence/")
        section = next(entry for entry in config["nav"] if ("Evidence" if is_record else "Guides") in entry)
        (entries,) = section.values()
        entries.append({Path(page).stem.replace("-", " ").capitalize(): page} if is_record else page)
    return config


def _paths(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from _paths(value)
            else:
                yield value
