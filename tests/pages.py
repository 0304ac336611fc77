"""The documentation as blocks of code: what runs, what cannot run in a test, and what is shown to come out.

In: the Markdown of README.md, CONTRIBUTING.md and docs/. Out: for each page its fenced blocks in order, and
for each block its commands or its snippet. What cannot run here carries a mark: at the end of its line
(`transduce download x   # needs-network`), in the first line of a Python snippet, or for a whole block in the
line before it (`<!-- needs-docker -->`). `summary` counts them. Nothing is run here.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

__all__ = ["MARKS", "PAGES", "Block", "Shown", "blocks", "summary"]

MARKS = ("needs-network", "needs-docker", "needs-gpu")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """What a page shows to come out of a block: the text or JSON behind it, with nothing between."""

    language: str
    text: str


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    place: str
    """Page and line."""
    language: str
    code: str
    mark: str | None
    """Of the block as a whole."""
    shown: Shown | None = None

    def commands(self) -> Iterator[tuple[str, str | None]]:
        """Each command of a `sh` block, and its mark; comments alone are none."""
        for line in self.code.replace("\\\n", " ").splitlines():
            command, _, comment = line.partition("  #")
            if command.strip() and not command.startswith("#"):
                yield command.strip(), self.mark or _mark(comment)


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order; a shown output is part of the block before it."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    while fences:
        fence = fences.pop(0)
        comment, language, code = fence.groups()
        shown = None
        if (
            language in ("sh", "python")
            and fences
            and _is_shown(text[fence.end() : fences[0].start()], fences[0][2])
        ):
            shown = Shown(*fences.pop(0).groups()[1:])
        if language == "python" and code.startswith("#"):
            comment = code.partition("\n")[0]
        line = text.count("\n", 0, fence.start(2)) + 1
        place = f"{page.relative_to(ROOT).as_posix()}:{line}"
        yield Block(place, language, code, _mark(comment or ""), shown)


def _is_shown(between: str, language: str) -> bool:
    return not between.strip() and language in ("", "json")


def _mark(comment: str) -> str | None:
    """The mark that a comment holds; one that is unknown is an error."""
    found = re.search(r"\bneeds-\w+", comment)
    if found is None:
        return None
    assert found[0] in MARKS, f"{found[0]} is none of {MARKS}"
    return found[0]


def summary() -> str:
    """How many commands and snippets run, and how many carry which mark."""
    counts: Counter[str] = Counter()
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "sh":
            counts.update(mark or "commands" for _, mark in block.commands())
        elif block.language == "python":
            counts[block.mark or "snippets"] += 1
    marked = ", ".join(f"{mark}: {counts[mark]}" for mark in MARKS)
    return (
        f"documentation: {counts['commands']} commands and {counts['snippets']} snippets run; marked {marked}"
    )
