"""How far the work is, in audio time, on a terminal's standard error.

In: how many recordings there are and how long they are together, then what is done. Out: a bar with audio
done and to do, how many times faster than real time it goes, and the time that is left.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

__all__ = ["Bar", "audio_bar"]


class Bar:
    """Shows nothing."""

    def advance(self, seconds: float) -> None:
        """So much more audio is done."""

    def pause(self) -> AbstractContextManager[None]:
        """One more recording is done: while its results and messages are written, the bar is not there."""
        return nullcontext()


class _Shown(Bar):
    def __init__(self, progress: Any, num_recordings: int, whole_seconds: float | None) -> None:
        self._progress = progress
        self._num_recordings = num_recordings
        self._num_done = 0
        self._whole_seconds = whole_seconds
        self._done_seconds = 0.0
        self._start = time.monotonic()
        self._task = progress.add_task("", total=whole_seconds, text="")
        self._show()

    def advance(self, seconds: float) -> None:
        self._done_seconds += seconds
        self._show()

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._progress.stop()
        yield
        self._num_done += 1
        self._show()
        self._progress.start()

    def _show(self) -> None:
        whole = "" if self._whole_seconds is None else f"/{_clock(self._whole_seconds)}"
        speed = self._done_seconds / max(time.monotonic() - self._start, 1e-3)
        files = f"{self._num_done}/{self._num_recordings} files"
        text = f"{files}  {_clock(self._done_seconds)}{whole}  {speed:.0f}x"
        self._progress.update(self._task, completed=self._done_seconds, text=text)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@contextmanager
def audio_bar(num_recordings: int, whole_seconds: float | None) -> Iterator[Bar]:
    """A bar for so many recordings; `whole_seconds` of audio in all, if that is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("transcribing"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        yield _Shown(progress, num_recordings, whole_seconds)
