"""How far the work is, in audio time, on a terminal's standard error.

In: how many recordings there are and how long they are together, then what is done. Out: a bar with audio
done and to do, how many times faster than real time it goes, and the time that is left. For a log, the same
as a line each minute.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

__all__ = ["Bar", "Lines", "audio_bar"]

SECONDS_BETWEEN_LINES = 60.0


class Bar:
    """Shows nothing."""

    def advance(self, seconds: float) -> None:
        """So much more audio is done."""

    def pause(self) -> AbstractContextManager[None]:
        """One more recording is done: while its results and messages are written, the bar is not there."""
        return nullcontext()


class _Count:
    """What is done of what there is, since now."""

    def __init__(self, num_recordings: int, whole_seconds: float | None) -> None:
        self.num_recordings = num_recordings
        self.whole_seconds = whole_seconds
        self.num_done = 0
        self.done_seconds = 0.0
        self.start = time.monotonic()

    def __str__(self) -> str:
        whole = "" if self.whole_seconds is None else f"/{_clock(self.whole_seconds)}"
        speed = self.done_seconds / max(time.monotonic() - self.start, 1e-3)
        files = f"{self.num_done}/{self.num_recordings} files"
        return f"{files}  {_clock(self.done_seconds)}{whole}  {speed:.0f}x"


class _Shown(Bar):
    def __init__(self, progress: Any, count: _Count) -> None:
        self._progress = progress
        self._count = count
        self._task = progress.add_task("", total=count.whole_seconds, text="")
        self._show()

    def advance(self, seconds: float) -> None:
        self._count.done_seconds += seconds
        self._show()

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._progress.stop()
        yield
        self._count.num_done += 1
        self._show()
        self._progress.start()

    def _show(self) -> None:
        self._progress.update(self._task, completed=self._count.done_seconds, text=str(self._count))


class Lines(Bar):
    """A line now and then, for standard error that is no terminal."""

    def __init__(self, num_recordings: int, whole_seconds: float | None, say: Callable[[str], None]) -> None:
        self._count = _Count(num_recordings, whole_seconds)
        self._say = say
        self._last = self._count.start

    def advance(self, seconds: float) -> None:
        self._count.done_seconds += seconds
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._say(f"progress: {self._count}")

    @contextmanager
    def pause(self) -> Iterator[None]:
        yield
        self._count.num_done += 1


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
        yield _Shown(progress, _Count(num_recordings, whole_seconds))
