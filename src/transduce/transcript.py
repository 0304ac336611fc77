"""The result of a transcription, and its one JSON form.

In: text, segments, words and tokens in seconds, and what is known of the audio and the model. Out:
`Transcript`, which turns into JSON and back and into every format of `writers`. The JSON made here
is the JSON of files, HTTP and Triton alike. Audio, models and decoding are not known here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, TypeVar

from transduce.types import Segment, Token, Word
from transduce.writers import FORMATS, encode_json, milliseconds, write_atomic

__all__ = ["SCHEMA", "Transcript"]

SCHEMA = 1
"""Version of the JSON form; it rises when a reader of the old form would go wrong."""

_Row = TypeVar("_Row", Word, Token)


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said in one recording (or in one channel of it); times in seconds."""

    text: str
    """The words joined by single spaces; "" for silence."""
    segments: tuple[Segment, ...]
    words: tuple[Word, ...]
    """The words of all segments in order."""
    tokens: tuple[Token, ...]
    duration: float
    """Length of the audio."""
    source: str | None = None
    """The path or the name that the audio came by; None for samples."""
    model: str | None = None
    head: str | None = None
    """The head that decoded: rnnt, tdt or ctc."""
    language: str | None = None
    """Where the model says it."""
    channel: int | None = None
    """Which channel, from 0, where channels were transcribed apart."""
    warnings: tuple[str, ...] = ()
    """What was repaired or left out, a sentence each."""

    def to_dict(self, tokens: bool = False) -> dict[str, Any]:
        """The JSON form: times and confidences with three decimals, tokens if asked for."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "source": self.source,
            "model": self.model,
            "head": self.head,
            "language": self.language,
            "duration": _time(self.duration),
            "text": self.text,
            "segments": [_segment_to_dict(segment) for segment in self.segments],
            "warnings": list(self.warnings),
        }
        if self.channel is not None:
            content["channel"] = self.channel
        if tokens:
            content["tokens"] = [_token_to_dict(token) for token in self.tokens]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Transcript":
        """Read the JSON form back; keys that are not known are passed over.

        Raises ValueError for another schema and for what is no transcript.
        """
        if not isinstance(content, Mapping):
            raise ValueError(f"a {type(content).__name__} is not a transcript: give what json.load gives")
        schema = content.get("schema")
        if schema != SCHEMA:
            raise ValueError(
                f"this is not a transcript of schema {SCHEMA} but of schema {schema!r}: "
                "read it with the version of transduce that wrote it"
            )
        try:
            return cls._from_valid(content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a whole transcript: {error!r}") from error

    @classmethod
    def _from_valid(cls, content: Mapping[str, Any]) -> "Transcript":
        segments = tuple(_segment_from_dict(segment) for segment in content["segments"])
        return cls(
            text=content["text"],
            segments=segments,
            words=tuple(word for segment in segments for word in segment.words),
            tokens=tuple(_read(Token, token) for token in content.get("tokens", ())),
            duration=content["duration"],
            source=content["source"],
            model=content["model"],
            head=content["head"],
            language=content["language"],
            channel=content.get("channel"),
            warnings=tuple(content["warnings"]),
        )

    def render(self, format: str, tokens: bool = False) -> str:  # noqa: A002
        """The content of a file of one of `writers.FORMATS`; only JSON can hold tokens.

        Raises ValueError for a format that is not there.
        """
        if format not in FORMATS:
            raise ValueError(f"there is no format {format!r}: choose one of {', '.join(FORMATS)}")
        if format == "json" and tokens:
            return encode_json(self.to_dict(tokens=True)) + "\n"
        return FORMATS[format](self)

    def save(self, path: str | os.PathLike[str], tokens: bool = False) -> None:
        """Write a file, whole or not at all, in the format that its extension names.

        Raises ValueError for another extension, and what `writers.write_atomic` raises.
        """
        extension = PurePath(path).suffix.lower().removeprefix(".")
        if extension not in FORMATS:
            endings = ", ".join(f".{name}" for name in FORMATS)
            raise ValueError(f"{path}: the extension names no format: use one of {endings}")
        write_atomic(path, self.render(extension, tokens))


def _time(seconds: float) -> float:
    return milliseconds(seconds) / 1000


def _word_to_dict(word: Word) -> dict[str, Any]:
    return {
        "word": word.word,
        "start": _time(word.start),
        "end": _time(word.end),
        "confidence": round(word.confidence, 3),
    }


def _segment_to_dict(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.id,
        "start": _time(segment.start),
        "end": _time(segment.end),
        "text": segment.text,
        "confidence": round(segment.confidence, 3),
        "words": [_word_to_dict(word) for word in segment.words],
    }


def _token_to_dict(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "text": token.text,
        "frame": token.frame,
        "duration_frames": token.duration_frames,
        "start": _time(token.start),
        "end": _time(token.end),
        "confidence": round(token.confidence, 3),
    }


def _read(kind: type[_Row], content: Mapping[str, Any]) -> _Row:
    return kind(**{field.name: content[field.name] for field in fields(kind)})


def _segment_from_dict(content: Mapping[str, Any]) -> Segment:
    return Segment(
        id=content["id"],
        start=content["start"],
        end=content["end"],
        text=content["text"],
        confidence=content["confidence"],
        words=tuple(_read(Word, word) for word in content["words"]),
    )
