"""A hook of mkdocs: the records of docs/evidence/ go into the navigation by themselves.

In: mkdocs' configuration. Out: the same, with a page for each record that `scripts/prove` wrote.
"""

from pathlib import Path
from typing import Any

__all__ = ["on_config"]


def on_config(config: Any) -> Any:
    """Add the records to the navigation's last section."""
    docs = Path(config["docs_dir"])
    records = sorted(path.relative_to(docs).as_posix() for path in docs.glob("evidence/*.md"))
    (section,) = (entry["Evidence"] for entry in config["nav"] if "Evidence" in entry)
    section += [{Path(record).stem.replace("-", " ").capitalize(): record} for record in records]
    return config
