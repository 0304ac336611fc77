"""What became of each recording of a run, for whoever runs many: `failures.jsonl` and `runs.jsonl`.

In: what succeeded and what failed, as it happens. Out: in a folder, a line for each failure of the last run
(path, name, duration, code, message), written at once, and a line for each run (counts, hours, speed),
written at its end. The failures are a manifest, by which they can be tried again from any working directory;
those of the run before are kept beside them. Without a folder it only counts. It knows no model and no
engine.
"""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from transduce.errors import TransduceError
from transduce.sources import is_address

__all__ = ["FAILURES", "FAILURES_BEFORE", "RUNS", "Failure", "Ledger", "explained"]

FAILURES = "failures.jsonl"
FAILURES_BEFORE = "failures.before.jsonl"
"""The failures of the last run that had any, but for this one: a retry may be interrupted."""
RUNS = "runs.jsonl"

Failure: TypeAlias = TransduceError | OSError
"""Why one recording has no result; an OSError is that of its output file."""

logger = logging.getLogger("transduce")


def explained(failure: Failure) -> tuple[str, str]:
    """The code of an error, and what happened, with the name of what it happened to."""
    if isinstance(failure, TransduceError):
        return failure.code, str(failure)
    return "output", f"{failure.filename or 'standard output'}: {failure.strerror}"


class Ledger:
    """The record of one run; a context manager that is entered when the work begins."""

    def __init__(self, folder: Path | None, engine: str, num_files: int, num_finished_before: int) -> None:
        self.folder = folder
        self.engine = engine
        self.num_files = num_files
        self.num_finished_before = num_finished_before
        self.num_finished = 0
        self.audio_seconds = 0.0
        """Of the recordings that were finished."""
        self.codes: Counter[str] = Counter()
        """Failures by their code."""
        self.has_begun = False
        self.facts: dict[str, int] = {}
        """What the engine has to say about itself."""

    def __enter__(self) -> "Ledger":
        self.has_begun = True
        self._started = datetime.now(timezone.utc)
        self._start = time.monotonic()
        self._end: float | None = None
        if self.folder is not None:
            self._begin_failures(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end = time.monotonic()
        self._append(RUNS, self.summary())

    def __str__(self) -> str:
        run = self.summary()
        where = f", see {self.folder / FAILURES}" if self.folder and self.num_failed else ""
        return (
            f"finished {self.num_finished + self.num_finished_before} of {self.num_files}, failed "
            f"{self.num_failed}{where}; {run['audio_hours']:g} h of audio in {run['wall_seconds']:g} s, "
            f"{run['rtfx']:g} times real time"
        )

    @property
    def num_failed(self) -> int:
        return self.codes.total()

    def finished(self, seconds: float) -> None:
        """One more recording, of so many seconds, has its results."""
        self.num_finished += 1
        self.audio_seconds += seconds

    def failed(
        self, path: str, failure: Failure, *, name: str | None = None, seconds: float | None = None
    ) -> None:
        """One more recording has none; `name` and `seconds` are a manifest's, where they are known."""
        code, message = explained(failure)
        self.codes[code] += 1
        known = {key: value for key, value in (("name", name), ("duration", seconds)) if value is not None}
        self._append(FAILURES, {"path": _absolute(path), **known, "code": code, "message": message})

    @property
    def is_complete(self) -> bool:
        """Whether every recording has its results or its error."""
        return self.num_finished_before + self.num_finished + self.num_failed == self.num_files

    def summary(self) -> dict[str, Any]:
        """The run so far: the line of `runs.jsonl`."""
        wall_seconds = (self._end or time.monotonic()) - self._start
        return {
            "started": self._started.isoformat(timespec="seconds"),
            "engine": self.engine,
            "complete": self.is_complete,
            "files": self.num_files,
            "finished_before": self.num_finished_before,
            "finished": self.num_finished,
            "failed": self.num_failed,
            "failures": dict(sorted(self.codes.items())),
            "audio_hours": round(self.audio_seconds / 3600, 4),
            "wall_seconds": round(wall_seconds, 2),
            "rtfx": round(self.audio_seconds / max(wall_seconds, 1e-3), 1),
            **self.facts,
        }

    def _begin_failures(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            failures = folder / FAILURES
            if failures.is_file() and failures.stat().st_size:
                failures.replace(folder / FAILURES_BEFORE)
            failures.write_bytes(b"")
        except OSError as error:
            logger.warning("%s: cannot be written: %s", folder / FAILURES, error.strerror)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a line, whole; a disk that is full is no reason to stop the work."""
        if self.folder is None:
            return
        try:
            with open(self.folder / name, "ab") as file:
                file.write(json.dumps(row).encode("ascii") + b"\n")
        except OSError as error:
            logger.warning("%s: a line could not be written: %s", self.folder / name, error.strerror)


def _absolute(path: str) -> str:
    """A path that is the same from everywhere; standard input and addresses are as they are."""
    return path if path == "-" or is_address(path) else os.path.abspath(path)
