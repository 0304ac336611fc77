"""Hypotheses become what a person reads: tokens, words and segments in seconds.

In: one hypothesis (ids, frames), the spec of its model, its tokenizer and the length of the audio.
Out: `Assembled`: the text, its tokens, words and segments. This is the only place where frames
become seconds, and the only one where a word, an end of a sentence or a pause is defined:

- Text is cut into words at whitespace. Marks that stand alone go with a word: opening ones with the
  next, others with the one before; so a word may hold a space ("«Привет», —"), and the words joined
  by single spaces are always the text.
- A word spans its tokens that are more than punctuation, cut to the next word's start.
- A segment ends after `.?!…`, before a pause, and before it grows too long (`SegmentRules`).

Audio, engines and output formats are not known here.
"""

import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from transduce.tokenizer import Tokenizer
from transduce.types import Hypothesis, ModelSpec, Segment, Token, Word

__all__ = ["Assembled", "SegmentRules", "Unfinished", "assemble"]


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """Where one segment ends and the next begins."""

    stops: str = ".?!…"
    """A word that ends with one of these, quotes and brackets after it allowed, ends a segment."""
    pause_seconds: float = 0.8
    """A longer silence between two words ends a segment."""
    max_seconds: float = 30.0
    """A segment grows no longer, unless one word is."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What one hypothesis says; the words of the segments are the words, in order."""

    text: str
    tokens: tuple[Token, ...]
    words: tuple[Word, ...]
    segments: tuple[Segment, ...]
    first_tokens: tuple[int, ...] = ()
    """For each segment the index of its first token."""


@dataclass(frozen=True, slots=True)
class _Fragment:
    """The part of one token that lies in one word."""

    token: int
    """Index into the tokens."""
    text: str
    is_spoken: bool
    """More than punctuation."""


_Chunk: TypeAlias = tuple[_Fragment, ...]
"""What stands between two spaces."""

_Group: TypeAlias = tuple[_Chunk, ...]
"""The chunks that make one word: one, and the marks that stood alone beside it."""

_DEFAULT_RULES = SegmentRules()


def assemble(
    hypothesis: Hypothesis,
    *,
    spec: ModelSpec,
    tokenizer: Tokenizer,
    duration_seconds: float,
    offset_seconds: float = 0.0,
    rules: SegmentRules = _DEFAULT_RULES,
    breaks_frames: Sequence[int] = (),
) -> Assembled:
    """Give a hypothesis its text and its times.

    The audio lasts `duration_seconds` and begins at `offset_seconds` of the clock that the caller
    shows; all times lie inside. `breaks_frames` (rising) are frames before which sound was left out
    or a span was decoded by itself: no word reaches over one. Nothing decoded gives text "" and
    empty tuples. Times are monotonic: start <= end <= next start, for words and for segments.
    """
    clock = _Clock(spec.frame_samples, spec.features.sample_rate, duration_seconds, offset_seconds)
    texts = _separated(tokenizer.texts(hypothesis.ids.tolist()), hypothesis.frames.tolist(), breaks_frames)
    tokens = tuple(_tokens(hypothesis, texts, clock))
    log_probs: list[float] = hypothesis.log_probs.tolist()
    groups = _grouped(list(_chunks(tokens, tokenizer)), rules)
    words = tuple(_words(groups, tokens, log_probs))
    segments = tuple(_segments(words, groups, log_probs, rules))
    first_tokens = tuple(groups[run.start][0][0].token for run in _runs(words, rules))
    return Assembled(" ".join(word.word for word in words), tokens, words, segments, first_tokens)


class Unfinished:
    """The segments of a recording that is still being decoded, each once nothing can change it.

    Together they are those that `assemble` makes of the whole.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, offset_seconds: float = 0.0) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._offset_seconds = offset_seconds
        self._pending = Hypothesis.joined([])
        """The labels of no segment that was given out."""
        self._num_segments = 0

    def add(self, labels: Hypothesis, breaks_frames: Sequence[int]) -> list[Segment]:
        """Take the next labels; `breaks_frames` are all that are known, as for `assemble`."""
        self._pending = Hypothesis.joined([self._pending, labels])
        assembled = self._assembled(breaks_frames, math.inf)
        segments = assembled.segments
        # Where one ends is certain once the word behind it is whole: another word follows that.
        num_certain = len(segments) - 1 - (len(segments[-1].words) == 1) if segments else 0
        # A token that holds the end of one word and the start of the next cannot be parted.
        while num_certain > 0 and " " in assembled.tokens[assembled.first_tokens[num_certain]].text.strip():
            num_certain -= 1
        if num_certain <= 0:
            return []
        self._pending = self._pending.part(assembled.first_tokens[num_certain], len(self._pending))
        return self._numbered(segments[:num_certain])

    def finish(self, breaks_frames: Sequence[int], duration_seconds: float) -> list[Segment]:
        """The last segments of a recording of that length."""
        return self._numbered(self._assembled(breaks_frames, duration_seconds).segments)

    def _assembled(self, breaks_frames: Sequence[int], duration_seconds: float) -> Assembled:
        return assemble(
            self._pending,
            spec=self._spec,
            tokenizer=self._tokenizer,
            duration_seconds=duration_seconds,
            offset_seconds=self._offset_seconds,
            breaks_frames=breaks_frames,
        )

    def _numbered(self, segments: Sequence[Segment]) -> list[Segment]:
        first = self._num_segments
        self._num_segments += len(segments)
        return [replace(segment, id=first + segment.id) for segment in segments]


# Tokens


@dataclass(frozen=True, slots=True)
class _Clock:
    """Frames to seconds, for audio that begins at `offset_seconds` and lasts `duration_seconds`."""

    frame_samples: int
    sample_rate: int
    duration_seconds: float
    offset_seconds: float

    def seconds(self, frame: int) -> float:
        # One division of integers: 36 frames are 2.88 s, not 2.8800000000000003.
        return self.offset_seconds + min(frame * self.frame_samples / self.sample_rate, self.duration_seconds)


def _tokens(hypothesis: Hypothesis, texts: Sequence[str], clock: _Clock) -> Iterator[Token]:
    arrays = (hypothesis.ids, hypothesis.frames, hypothesis.durations, hypothesis.log_probs)
    rows = zip(*(array.tolist() for array in arrays), texts, strict=True)
    for piece_id, frame, duration_frames, log_prob, text in rows:
        yield Token(
            id=piece_id,
            text=text,
            frame=frame,
            duration_frames=duration_frames,
            start=clock.seconds(frame),
            end=clock.seconds(frame + max(duration_frames, 1)),
            confidence=_probability([log_prob]),
        )


def _separated(texts: Sequence[str], frames: Sequence[int], breaks_frames: Sequence[int]) -> list[str]:
    """Put a space before the first text after each break, where there is none."""
    separated: list[str] = []
    before, span_before = " ", 0  # of the last text that was not empty
    for text, frame in zip(texts, frames, strict=True):
        span = bisect_right(breaks_frames, frame)
        is_glued = span > span_before and not (text[:1].isspace() or before[-1].isspace())
        separated.append(" " + text if text and is_glued else text)
        if text:
            before, span_before = text, span
    return separated


def _probability(log_probs: Sequence[float]) -> float:
    """exp of the mean log-probability; rounding may have lifted a log-probability over 0."""
    return min(1.0, math.exp(math.fsum(log_probs) / len(log_probs)))


# Words

_SPOKEN_MARKS = frozenset("%‰&@#§*/\\⁇")
"""What Unicode calls punctuation and people say aloud; "⁇" is a word the tokenizer does not know."""


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(c)[0] == "P" and c not in _SPOKEN_MARKS for c in text)


def _chunks(tokens: Sequence[Token], tokenizer: Tokenizer) -> Iterator[_Chunk]:
    """Cut the joined texts of the tokens at whitespace, which may also be inside a token."""
    space_opens_word = tokenizer.space_opens_word
    chunk: list[_Fragment] = []
    opening: list[int] = []  # a lone "▁" before the chunk that comes
    for index, token in enumerate(tokens):
        if tokenizer.adds_nothing(token.id):
            continue
        if chunk and not token.text:  # a later byte of a character
            chunk.append(_Fragment(index, "", chunk[-1].is_spoken))
            continue
        for number, part in enumerate(re.split(r"\s+", token.text)):
            if number and chunk:
                yield tuple(chunk)
                chunk = []
            if part:
                is_spoken = not _is_punctuation(part)
                chunk += [_Fragment(space, "", is_spoken) for space in opening]
                chunk.append(_Fragment(index, part, is_spoken))
                opening = []
        if space_opens_word and not token.text.strip():
            opening = [index]
    if chunk:
        yield tuple(chunk)


def _text(chunks: Sequence[_Chunk]) -> str:
    return " ".join("".join(fragment.text for fragment in chunk) for chunk in chunks)


def _grouped(chunks: Sequence[_Chunk], rules: SegmentRules) -> list[_Group]:
    """Join marks that stand alone to a word: each group is one word."""
    groups: list[_Group] = []
    opening: _Group = ()  # marks that wait for the next word
    for index, chunk in enumerate(chunks):
        if any(fragment.is_spoken for fragment in chunk):
            groups.append((*opening, chunk))
            opening = ()
        elif opening or not groups or _opens(chunk, groups[-1], chunks[index + 1 : index + 2], rules):
            opening = (*opening, chunk)
        else:
            groups[-1] = (*groups[-1], chunk)
    if opening:
        groups[-1:] = [tuple(chain(*groups[-1:], opening))]
    return groups


def _opens(chunk: _Chunk, before: _Group, after: Sequence[_Chunk], rules: SegmentRules) -> bool:
    """Whether a mark that stands alone goes with the next word: "(", "«", and a dialogue's dash."""
    mark = _text((chunk,))
    if all(unicodedata.category(c) == "Pd" for c in mark):
        return _ends_sentence(_text(before), _text(after), rules)
    return all(unicodedata.category(c) in ("Ps", "Pi") or c in "¡¿" for c in mark)


def _span(group: _Group, tokens: Sequence[Token]) -> tuple[float, float]:
    """First and last second of a word; only a word that is all punctuation is measured by it."""
    fragments = [fragment for chunk in group for fragment in chunk]
    measured = [fragment for fragment in fragments if fragment.is_spoken] or fragments
    return tokens[measured[0].token].start, tokens[measured[-1].token].end


def _words(groups: Sequence[_Group], tokens: Sequence[Token], log_probs: Sequence[float]) -> Iterator[Word]:
    spans = [_span(group, tokens) for group in groups]
    next_starts = [*(start for start, _ in spans), math.inf][1:]
    for group, (start, end), next_start in zip(groups, spans, next_starts, strict=True):
        yield Word(_text(group), start, min(end, next_start), _confidence([group], log_probs))


def _confidence(groups: Iterable[_Group], log_probs: Sequence[float]) -> float:
    """Of all tokens of the words, each counted once."""
    members = {fragment.token for group in groups for chunk in group for fragment in chunk}
    return _probability([log_probs[index] for index in sorted(members)])


# Segments

_ABBREVIATION = re.compile(r"\W*(?:[^\W\d_]\.)+")  # "e.g.", "(т.", "a.m."


def _ends_sentence(word: str, following: str, rules: SegmentRules) -> bool:
    """Whether a sentence ends between two words of the text."""
    bare = word
    while bare and _closes(bare[-1]):
        bare = bare[:-1]
    if not bare.endswith(tuple(rules.stops)):
        return False
    first_letter = next((c for c in following if c.isalpha()), "")
    return not (_ABBREVIATION.fullmatch(bare) and first_letter.islower())


def _closes(character: str) -> bool:
    """Quotes and brackets that may follow a full stop; some languages close with “."""
    return character in "\"'" or unicodedata.category(character) in ("Pe", "Pf", "Pi")


def _is_border(first: Word, before: Word, after: Word, rules: SegmentRules) -> bool:
    """Whether the segment that began with `first` ends between two of its words."""
    # Milliseconds are compared, so that a gap of exactly ten frames is not 0.8000000000000003 s.
    pause, length = round(after.start - before.end, 3), round(after.end - first.start, 3)
    is_cut = pause > rules.pause_seconds or length > rules.max_seconds
    return is_cut or _ends_sentence(before.word, after.word, rules)


def _runs(words: Sequence[Word], rules: SegmentRules) -> Iterator[slice]:
    """The words of each segment."""
    first = 0
    for index in range(1, len(words)):
        if _is_border(words[first], words[index - 1], words[index], rules):
            yield slice(first, index)
            first = index
    if words:
        yield slice(first, len(words))


def _segments(
    words: Sequence[Word], groups: Sequence[_Group], log_probs: Sequence[float], rules: SegmentRules
) -> Iterator[Segment]:
    for number, run in enumerate(_runs(words, rules)):
        members = tuple(words[run])
        yield Segment(
            id=number,
            start=members[0].start,
            end=members[-1].end,
            text=" ".join(word.word for word in members),
            confidence=_confidence(groups[run], log_probs),
            words=members,
        )
