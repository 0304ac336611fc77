"""What `transduce transcribe` does once its options are read: recordings through a model into a sink.

In: a model, what is asked of it, inputs, a sink and a ledger. Out: results in the sink, counts and failures
in the ledger, and on standard error a line for each warning and error, and on a terminal a bar in audio time.
"""

import logging
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, BinaryIO, Protocol, cast

import typer

from transduce import outputs, writers
from transduce.cli_progress import Bar, audio_bar
from transduce.errors import TransduceError
from transduce.ledger import Failure, Ledger, explained
from transduce.pipeline import Cut, Limits, claimed_seconds
from transduce.remote import close_source, open_source
from transduce.sources import AudioSource
from transduce.transcriber import Model
from transduce.transcript import Transcript
from transduce.types import Segment

__all__ = ["Putting", "Reported", "Work", "complain", "complain_of", "say_finished", "transcribe_all"]

MOST_PROBED = 1000
"""Of more recordings, lengths are not asked for before the work, and the bar does not know the whole."""

logger = logging.getLogger("transduce")


class Reported(outputs.Result, Protocol):
    """A result, and what is said of it."""

    @property
    def duration(self) -> float: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Work:
    """One model and what it is asked to do with every recording."""

    model: Model
    cut: Cut
    limits: Limits
    is_quiet: bool


def transcribe_all(
    work: Work, entries: Sequence[outputs.Input], sink: outputs.Sink, ledger: Ledger, *, fail_fast: bool
) -> None:
    """Run everything, put what succeeds, report what does not.

    The text of one recording goes to a stream while it is being recognised.
    """
    if isinstance(sink, outputs.StreamSink) and sink.takes_segments and work.cut.channel != "each":
        _transcribe_live(work, entries[0], sink.stream, ledger)
        return
    if not work.is_quiet:
        say_finished(entries)
    outcomes_of = _outcomes_singly if fail_fast else _outcomes
    with _bar(work, entries) as bar, closing(outcomes_of(work, entries, bar)) as outcomes:
        putting = Putting(entries, sink, ledger, bar, is_quiet=work.is_quiet)
        putting.put_all(outcomes, fail_fast=fail_fast)


@dataclass(frozen=True)
class Putting:
    """Where what became of recordings goes: results to a sink, errors to standard error, all to a ledger."""

    entries: Sequence[outputs.Input]
    sink: outputs.Sink
    ledger: Ledger
    bar: Bar
    is_quiet: bool

    def put_all(
        self, outcomes: Iterable[tuple[int, Sequence[Reported] | Failure]], *, fail_fast: bool
    ) -> None:
        """Take the index of each entry and its results or its error; end at the first error if asked to."""
        for index, outcome in outcomes:
            with self.bar.pause():
                failure = outcome if isinstance(outcome, Exception) else self._put(index, outcome)
                if failure is not None:
                    entry, name = self.entries[index], self.sink.name_of(index)
                    self.ledger.failed(entry.path, failure, name=name, seconds=entry.claimed_seconds)
                    complain_of(failure)
            if failure is not None and fail_fast:
                break

    def _put(self, index: int, results: Sequence[Reported]) -> Failure | None:
        """Write the results and say their warnings; an error of the disk is the recording's error."""
        for result in results:
            _report(result, is_quiet=self.is_quiet)
        try:
            self.sink.put(index, results)
        except BrokenPipeError:  # whoever read standard output has had enough
            raise
        except (OSError, TransduceError) as error:
            return error
        self.ledger.finished(max((result.duration for result in results), default=0.0))
        return None


def say_finished(entries: Sequence[outputs.Input]) -> None:
    """How many entries have their results from before, if any."""
    num_finished = sum(entry.is_done for entry in entries)
    if num_finished:
        complain(f"finished before, left as they are: {num_finished} of {len(entries)}")


def _outcomes(
    work: Work, entries: Sequence[outputs.Input], bar: Bar
) -> Generator[tuple[int, Sequence[Transcript] | Failure], None, None]:
    """The index of each entry that is to be done and its transcripts (one, or one a channel), or its error.

    Lazily, in order.
    """
    sources = [_source(entry) for entry in entries if entry.is_open]
    opened = iter(sources)
    with closing(work.model.transcribe_each(sources, work.cut, work.limits, bar.advance)) as found:
        for index, entry in enumerate(entries):
            if entry.error is not None:
                yield index, entry.error
            elif entry.is_open:
                yield index, next(found)
                close_source(next(opened))


def _outcomes_singly(
    work: Work, entries: Sequence[outputs.Input], bar: Bar
) -> Generator[tuple[int, Sequence[Transcript] | Failure], None, None]:
    """The same, each recording by itself: slower, but nothing behind a bad one is touched."""
    for index, entry in enumerate(entries):
        for _, outcome in _outcomes(work, [entry], bar):
            yield index, outcome


def _source(entry: outputs.Input) -> AudioSource:
    return _stdin() if entry.path == outputs.STDIN else open_source(entry.path)


def _stdin() -> BinaryIO:
    """Standard input without its buffer.

    An interrupt leaves a thread waiting in a read of it, and the interpreter cannot end while one holds the
    buffer's lock.
    """
    buffer = sys.stdin.buffer
    return cast(BinaryIO, getattr(buffer, "raw", buffer))


def _report(result: Reported, *, is_quiet: bool) -> None:
    name = writers.shown(str(result.source))
    logger.info("%s: %.2f s", name, result.duration)
    for warning in () if is_quiet else result.warnings:
        complain(f"warning: {result.source}: {warning}")


# One recording, as it is recognised


def _transcribe_live(work: Work, entry: outputs.Input, stream: IO[str], ledger: Ledger) -> None:
    """Write the text of each segment once it is final."""
    try:
        if entry.error is not None:
            raise entry.error
        with _bar(work, [] if stream.isatty() else [entry]) as bar:
            segments = work.model.stream(_source(entry), work.cut, work.limits, bar.advance)
            transcript = _written(segments, stream)
    except BrokenPipeError:  # whoever read standard output has had enough
        raise
    except (OSError, TransduceError) as error:
        ledger.failed(entry.path, error)
        complain_of(error)
    else:
        ledger.finished(transcript.duration)
        _report(transcript, is_quiet=work.is_quiet)


def _written(segments: Generator[Segment, None, Transcript], stream: IO[str]) -> Transcript:
    """Put the segments on one line; its transcript."""
    separator = ""
    try:
        with closing(segments):
            while True:
                stream.write(separator + next(segments).text)
                stream.flush()
                separator = " "
    except StopIteration as end:
        transcript: Transcript = end.value
        return transcript
    finally:
        stream.write("\n" if separator else "")
        stream.flush()


# Messages


def _bar(work: Work, entries: Sequence[outputs.Input]) -> AbstractContextManager[Bar]:
    """A bar for those of the entries that are to be done."""
    is_shown = not work.is_quiet and sys.stderr.isatty()
    entries = [entry for entry in entries if entry.is_open or entry.error is not None]
    if not (is_shown and entries):
        return nullcontext(Bar())
    return audio_bar(len(entries), _whole_seconds(work, entries))


def _whole_seconds(work: Work, entries: Sequence[outputs.Input]) -> float | None:
    """The audio that the entries claim to hold; None where one makes no claim, or there are too many."""
    if len(entries) > MOST_PROBED or any(entry.path == outputs.STDIN for entry in entries):
        return None
    whole_seconds = 0.0
    for entry in entries:
        seconds = _seconds(work.cut, entry)
        if seconds is None:
            return None
        whole_seconds += seconds
    return whole_seconds


def _seconds(cut: Cut, entry: outputs.Input) -> float | None:
    if entry.claimed_seconds is not None:
        return entry.claimed_seconds
    source = _source(entry)
    try:
        return claimed_seconds(source, cut)
    except TransduceError:  # reported when its turn comes
        return 0.0
    finally:
        close_source(source)


def complain_of(failure: Failure) -> None:
    """One line with the name, the reason and the code of an error."""
    code, message = explained(failure)
    complain(f"error: {message} [{code}]")


def complain(message: str) -> None:
    """One line on standard error, whatever characters a file's name has."""
    with suppress(OSError):  # where standard error is broken there is nobody to tell
        typer.echo(writers.shown(" ".join(message.splitlines())), err=True)
