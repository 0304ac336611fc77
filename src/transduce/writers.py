"""Transcripts as text: txt, json, srt, vtt, tsv, ctm.

In: a `Document`, which is what a transcript shows of itself. Out: the content of a file, as a string
with "\\n" line ends; `write_atomic` puts one on disk. Every writer is a pure function, and every one
has a valid answer to silence. Times are written in whole milliseconds by one rounding rule.
How a transcript is made, and what its JSON holds, is not known here.
"""

import errno
import html
import json
import math
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path, PurePath
from typing import Protocol, TypeAlias

from transduce.errors import ResourceError
from transduce.types import Segment, Word

__all__ = [
    "FORMATS",
    "Document",
    "SubtitleRules",
    "Writer",
    "encode_json",
    "milliseconds",
    "printable",
    "shown",
    "write_atomic",
]


class Document(Protocol):
    """What the writers read of a transcript; times in seconds."""

    @property
    def text(self) -> str: ...

    @property
    def segments(self) -> tuple[Segment, ...]: ...

    @property
    def duration(self) -> float: ...

    @property
    def source(self) -> str | None: ...

    @property
    def channel(self) -> int | None: ...

    def to_dict(self) -> Mapping[str, object]:
        """The content of its JSON."""
        ...


Writer: TypeAlias = Callable[[Document], str]
"""One format: what its file holds."""


@dataclass(frozen=True, slots=True)
class SubtitleRules:
    """The shape of a cue. The least time gives way where the next cue, or the end, leaves no room."""

    max_line_characters: int = 42
    max_lines: int = 2
    min_ms: int = 1000
    max_ms: int = 7000


# Times and characters


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, halves rounded up; what lies before 0 is 0."""
    return max(0, math.floor(seconds * 1000 + 0.5))


def printable(text: str) -> str:
    """`text` as UTF-8 can hold it: file names may carry bytes that are no text, shown as U+FFFD."""
    # Python marks undecodable bytes of names by surrogates U+DC80 to U+DCFF; any other is an accident.
    marked = re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", text)
    return marked.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown(text: str) -> str:
    """`text` for a terminal's line: control characters, which could command it, become U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in printable(text))


def _one_line(text: str) -> str:
    """Single spaces for any run of whitespace and control characters."""
    spaced = (" " if unicodedata.category(c) == "Cc" else c for c in printable(text))
    return " ".join("".join(spaced).split())


def _clock(ms: int, point: str) -> str:
    """00:00:00,000; hours may take more digits."""
    seconds, thousandths = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{thousandths:03}"


def _spread(parts: Sequence[str], word: Word) -> Iterator[Word]:
    """Parts of a word (or of a text), which share its time by their lengths."""
    num_characters = sum(map(len, parts))
    seconds = (word.end - word.start) / num_characters if parts else 0.0
    position = 0
    for part in parts:
        start, position = position, position + len(part)
        yield Word(part, word.start + start * seconds, word.start + position * seconds, word.confidence)


def _words(segment: Segment) -> Iterable[Word]:
    """The words of a segment; where it has only a text, they share its time."""
    whole = Word(segment.text, segment.start, segment.end, segment.confidence)
    return segment.words or _spread(segment.text.split(), whole)


# Subtitles

_SUBTITLES = SubtitleRules()

_Cue: TypeAlias = tuple[Word, ...]
"""The words that are shown together; none is longer than a line."""


def _fitting(words: Iterable[Word], rules: SubtitleRules) -> Iterator[Word]:
    """The words, those longer than a line (also scripts without spaces) cut to its length."""
    width = rules.max_line_characters
    for word in words:
        text = _one_line(word.word)
        if len(text) <= width:
            yield from [replace(word, word=text)] if text else []
        else:
            cuts = (piece[i : i + width] for piece in text.split() for i in range(0, len(piece), width))
            yield from _spread(list(cuts), word)


def _even_cuts(words: Sequence[Word], ends: Callable[[int], Iterable[int]]) -> list[slice]:
    """Cut a row of words into the fewest groups, and of these cuts choose the most even one.

    `ends(start)` gives the places where a group that begins at `start` may end, `start + 1` first.
    """
    lengths = [0, *accumulate(len(word.word) + 1 for word in words)]
    # For each place: how many groups lead there, the sum of their squared lengths, the last one's start.
    best = [(0, 0, 0)] + [(len(words) + 1, 0, 0)] * len(words)
    for start in range(len(words)):
        num_groups, squares, _ = best[start]
        for end in ends(start):
            length = lengths[end] - lengths[start]
            best[end] = min(best[end], (num_groups + 1, squares + length * length, start))
    cuts = [len(words)]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][2])
    return [slice(start, end) for end, start in pairwise(cuts)][::-1]


def _line_ends(words: Sequence[Word], start: int, rules: SubtitleRules) -> Iterator[int]:
    """Where a line that begins with a word may end."""
    length = -1
    for end in range(start, len(words)):
        length += 1 + len(words[end].word)
        if end > start and length > rules.max_line_characters:
            return
        yield end + 1


def _cue_ends(words: Sequence[Word], start: int, rules: SubtitleRules) -> Iterator[int]:
    """Where a cue that begins with a word may end: its lines and its time are limited."""
    latest = milliseconds(words[start].start) + rules.max_ms
    num_lines, length = 1, -1
    for end in range(start, len(words)):
        length += 1 + len(words[end].word)
        if length > rules.max_line_characters:
            num_lines, length = num_lines + 1, len(words[end].word)
        is_over = num_lines > rules.max_lines or milliseconds(words[end].end) > latest
        if end > start and is_over:
            return
        yield end + 1


def _lines(cue: _Cue, rules: SubtitleRules) -> list[str]:
    runs = _even_cuts(cue, lambda start: _line_ends(cue, start, rules))
    return [" ".join(word.word for word in cue[run]) for run in runs]


def _segment_cues(segment: Segment, rules: SubtitleRules) -> Iterator[_Cue]:
    words = tuple(_fitting(_words(segment), rules))
    for run in _even_cuts(words, lambda start: _cue_ends(words, start, rules)):
        yield words[run]


def _joined(cues: Iterable[_Cue], rules: SubtitleRules) -> list[_Cue]:
    """Join a cue that the next one would push off too soon with it, where one cue can hold both."""
    joined: list[_Cue] = []
    for cue in cues:
        both = (joined[-1] if joined else ()) + cue
        is_hurried = milliseconds(cue[0].start) - milliseconds(both[0].start) < rules.min_ms
        if joined and is_hurried and len(both) in _cue_ends(both, 0, rules):
            joined[-1] = both
        else:
            joined.append(cue)
    return joined


def _times(cues: Sequence[_Cue], duration_ms: int, rules: SubtitleRules) -> Iterator[tuple[int, int]]:
    """Start and end of each cue: end > start, no overlap, inside the duration.

    Words of one frame begin together; cues of such words move apart by a millisecond.
    """
    limit = max([duration_ms, len(cues), *(milliseconds(cue[-1].end) for cue in cues[-1:])])
    rising = accumulate((milliseconds(cue[0].start) for cue in cues), lambda before, ms: max(before + 1, ms))
    starts = [min(ms, limit - len(cues) + index) for index, ms in enumerate(rising)]
    for cue, start, room in zip(cues, starts, [*starts, limit][1:], strict=True):
        end = max(milliseconds(cue[-1].end), start + rules.min_ms)
        yield start, min(end, start + rules.max_ms, room)


def _subtitles(document: Document, rules: SubtitleRules) -> Iterator[tuple[int, int, list[str]]]:
    """Start and end in milliseconds and the lines of each cue."""
    cues = _joined(chain.from_iterable(_segment_cues(s, rules) for s in document.segments), rules)
    times = _times(cues, milliseconds(document.duration), rules)
    for cue, (start, end) in zip(cues, times, strict=True):
        yield start, end, _lines(cue, rules)


def _srt_line(line: str) -> str:
    """SubRip has no escapes: what players would take for a time line or a tag is written otherwise."""
    return re.sub(r"<(?=[/a-zA-Z])", "‹", line.replace("-->", "→"))


def _srt(document: Document) -> str:
    return "\n".join(
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n"
        + "".join(f"{_srt_line(x)}\n" for x in lines)
        for number, (start, end, lines) in enumerate(_subtitles(document, _SUBTITLES), start=1)
    )


def _vtt(document: Document) -> str:
    cues = (
        f"\n{_clock(start, '.')} --> {_clock(end, '.')}\n"
        + "".join(f"{html.escape(line, quote=False)}\n" for line in lines)
        for start, end, lines in _subtitles(document, _SUBTITLES)
    )
    return "WEBVTT\n" + "".join(cues)


# Plain and tabular formats


def encode_json(content: object) -> str:
    """One line of JSON, the same for files, HTTP and Triton; NaN and infinities are a ValueError."""
    return printable(json.dumps(content, ensure_ascii=False, allow_nan=False))


def _json(document: Document) -> str:
    return encode_json(document.to_dict()) + "\n"


def _txt(document: Document) -> str:
    return f"{document.text}\n" if document.text else ""


def _tsv(document: Document) -> str:
    rows = (
        f"{milliseconds(segment.start)}\t{milliseconds(segment.end)}\t{_one_line(segment.text)}\n"
        for segment in document.segments
    )
    return "start\tend\ttext\n" + "".join(rows)


def _ctm(document: Document) -> str:
    """Columns are parted by spaces, so names get "_" for theirs and words lose theirs."""
    name = "_".join(_one_line(PurePath(document.source or "").stem).split()) or "audio"
    channel = (document.channel or 0) + 1
    words = chain.from_iterable(map(_words, document.segments))
    return "".join(f"{name} {channel} {_ctm_columns(word)}\n" for word in words if _one_line(word.word))


def _ctm_columns(word: Word) -> str:
    start, end = milliseconds(word.start), milliseconds(word.end)
    text = _one_line(word.word).replace(" ", "")
    return f"{start / 1000:.3f} {(end - start) / 1000:.3f} {text} {word.confidence:.3f}"


FORMATS: Mapping[str, Writer] = {
    "txt": _txt,
    "json": _json,
    "srt": _srt,
    "vtt": _vtt,
    "tsv": _tsv,
    "ctm": _ctm,
}
"""Every format by its name, which is also its file extension."""


# Files


def write_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file (UTF-8 without a mark, "\\n" line ends) whole or not at all.

    Raises ResourceError where the disk is full, and OSError (PermissionError, FileNotFoundError, ...)
    with the name of the file where it cannot be written; what stood there before stays then.
    """
    target = Path(path)
    content = printable(text).encode("utf-8")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)  # a device or a pipe, which must not be replaced
        else:
            _replace(target, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"{target}: the disk is full. Free some space and run again") from error
        raise OSError(error.errno, error.strerror, str(target)) from error


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".transduce-{secrets.token_hex(8)}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
