"""How far a download is, on a terminal.

In: a title and the size. Out: a function that is told the bytes so far. Where standard error is no
terminal it shows nothing.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

__all__ = ["Progress", "Show", "bar", "silent"]

Show: TypeAlias = Callable[[int], None]
"""Is told how many bytes are there by now; less than before after a start from zero."""

Progress: TypeAlias = Callable[[str, int | None], AbstractContextManager[Show]]
"""Opens a display for a title and the bytes to come, if known."""


@contextmanager
def silent(title: str, num_bytes: int | None) -> Iterator[Show]:  # noqa: ARG001 - one of the kind Progress
    """Show nothing."""
    yield lambda _: None


@contextmanager
def bar(title: str, num_bytes: int | None) -> Iterator[Show]:
    """A bar with size, speed and time left on a terminal's standard error, which it leaves clean."""
    if not sys.stderr.isatty():
        with silent(title, num_bytes) as show:
            yield show
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        task = shown.add_task(title, total=num_bytes)
        yield lambda num_done: shown.update(task, completed=num_done)
