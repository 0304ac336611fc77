"""What `transduce transcribe` does once its options are read: recordings through a model into a sink.

In: a model, what is asked of it, inputs and a sink. Out: how many recordings failed; results in the sink,
and on standard error a line for each warning and error and, on a terminal, a bar in audio time.
"""

import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from typing import IO, TypeAlias

import typer

from transduce import audio, outputs, writers
from transduce.cli_progress import Bar, audio_bar
from transduce.errors import TransduceError
from transduce.pipeline import Cut, Limits
from transduce.sources import AudioSource
from transduce.transcriber import Model
from transduce.transcript import Transcript
from transduce.types import Segment

__all__ = ["Failure", "Work", "complain", "complain_of", "transcribe_all"]

MOST_PROBED = 1000
"""Of more recordings, lengths are not asked for before the work, and the bar does not know the whole."""

logger = logging.getLogger("transduce")

Failure: TypeAlias = TransduceError | OSError
"""Why one recording has no result; an OSError is that of its output file."""


@dataclass(frozen=True)
class Work:
    """One model and what it is asked to do with every recording."""

    model: Model
    cut: Cut
    limits: Limits
    is_quiet: bool


def transcribe_all(
    work: Work, entries: Sequence[outputs.Input], sink: outputs.Sink, *, fail_fast: bool
) -> int:
    """Run everything, put what succeeds, report what does not; the number of failed recordings.

    The text of one recording goes to a stream while it is being recognised.
    """
    if isinstance(sink, outputs.StreamSink) and sink.takes_segments and work.cut.channel != "each":
        return _transcribe_live(work, entries[0], sink.stream)
    num_done = sum(entry.is_done for entry in entries)
    if num_done and not work.is_quiet:
        complain(f"finished before, left as they are: {num_done} of {len(entries)}")
    num_failed = 0
    outcomes_of = _outcomes_singly if fail_fast else _outcomes
    with _bar(work, entries) as bar, closing(outcomes_of(work, entries, bar)) as outcomes:
        for index, outcome in outcomes:
            with bar.pause():
                failure = outcome if isinstance(outcome, Exception) else _put(sink, index, outcome, work)
                if failure is not None:
                    num_failed += 1
                    complain_of(failure)
            if failure is not None and fail_fast:
                break
    return num_failed


def _outcomes(
    work: Work, entries: Sequence[outputs.Input], bar: Bar
) -> Generator[tuple[int, Sequence[Transcript] | Failure], None, None]:
    """The index of each entry that is to be done and its transcripts (one, or one a channel), or its error.

    Lazily, in order.
    """
    sources = (_source(entry) for entry in entries if entry.is_open)
    with closing(work.model.transcribe_each(sources, work.cut, work.limits, bar.advance)) as found:
        for index, entry in enumerate(entries):
            if entry.error is not None:
                yield index, entry.error
            elif entry.is_open:
                yield index, next(found)


def _outcomes_singly(
    work: Work, entries: Sequence[outputs.Input], bar: Bar
) -> Generator[tuple[int, Sequence[Transcript] | Failure], None, None]:
    """The same, each recording by itself: slower, but nothing behind a bad one is touched."""
    for index, entry in enumerate(entries):
        for _, outcome in _outcomes(work, [entry], bar):
            yield index, outcome


def _source(entry: outputs.Input) -> AudioSource:
    return sys.stdin.buffer if entry.path == outputs.STDIN else entry.path


def _put(sink: outputs.Sink, index: int, transcripts: Sequence[Transcript], work: Work) -> Failure | None:
    """Write the results and say their warnings; an error of the disk is the recording's error."""
    for transcript in transcripts:
        _report(transcript, work)
    try:
        sink.put(index, transcripts)
    except BrokenPipeError:  # whoever read standard output has had enough
        raise
    except (OSError, TransduceError) as error:
        return error
    return None


def _report(transcript: Transcript, work: Work) -> None:
    name = writers.shown(str(transcript.source))
    logger.info("%s: %.2f s, %d words", name, transcript.duration, len(transcript.words))
    for warning in () if work.is_quiet else transcript.warnings:
        complain(f"warning: {transcript.source}: {warning}")


# One recording, as it is recognised


def _transcribe_live(work: Work, entry: outputs.Input, stream: IO[str]) -> int:
    """Write the text of each segment once it is final; the number of failures."""
    try:
        if entry.error is not None:
            raise entry.error
        with _bar(work, [] if stream.isatty() else [entry]) as bar:
            segments = work.model.stream(_source(entry), work.cut, work.limits, bar.advance)
            transcript = _written(segments, stream)
    except BrokenPipeError:  # whoever read standard output has had enough
        raise
    except (OSError, TransduceError) as error:
        complain_of(error)
        return 1
    _report(transcript, work)
    return 0


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
    rate = 16000  # any; nothing is read
    try:
        with audio.open_stream(
            entry.path,
            rate=rate,
            track=cut.track,
            start_seconds=cut.start_seconds,
            end_seconds=cut.end_seconds,
        ) as stream:
            return stream.expected_seconds
    except TransduceError:  # reported when its turn comes
        return 0.0


def complain_of(failure: Failure) -> None:
    """One line with the name, the reason and the code of an error."""
    if isinstance(failure, TransduceError):
        complain(f"error: {failure} [{failure.code}]")
    else:
        complain(f"error: {failure.filename or 'standard output'}: {failure.strerror} [output]")


def complain(message: str) -> None:
    """One line on standard error, whatever characters a file's name has."""
    with suppress(OSError):  # where standard error is broken there is nobody to tell
        typer.echo(writers.shown(" ".join(message.splitlines())), err=True)
