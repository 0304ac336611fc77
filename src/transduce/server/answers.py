"""A transcript as OpenAI's API shows it: bodies of every response format, and the events of a stream.

In: a transcript and the options of its request. Out: JSON contents, text bodies, events. Times, texts and
confidences are those of `Transcript.to_dict`, so HTTP and files agree.
"""

import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from transduce.server.forms import Options
from transduce.transcript import Transcript
from transduce.types import Segment, Token
from transduce.writers import encode_json

__all__ = ["MEDIA_TYPES", "body", "delta_event", "done_event", "error_event", "event"]

MEDIA_TYPES = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
WRITERS = {"text": "txt", "srt": "srt", "vtt": "vtt"}
"""Response formats that are files -> the writer of each."""


def body(transcript: Transcript, options: Options) -> str:
    """The body of a response that is not streamed; its type is in `MEDIA_TYPES`."""
    if options.format in WRITERS:
        return transcript.render(WRITERS[options.format])
    return encode_json(_content(transcript, options))


def _content(transcript: Transcript, options: Options) -> dict[str, Any]:
    shown = transcript.to_dict()
    usage = {"type": "duration", "seconds": shown["duration"]}
    content: dict[str, Any] = {"text": transcript.text, "usage": usage}
    if options.format == "verbose_json":
        content |= _verbose(transcript, shown, options)
    elif transcript.warnings:
        content["warnings"] = list(transcript.warnings)
    return content | _included(transcript, options)


def _verbose(transcript: Transcript, shown: dict[str, Any], options: Options) -> dict[str, Any]:
    content: dict[str, Any] = {
        "task": "transcribe",
        "language": transcript.language or "unknown",
        "duration": shown["duration"],
        "segments": list(map(_segment, transcript.segments, shown["segments"], _segment_tokens(transcript))),
        "warnings": shown["warnings"],
    }
    if options.has_words:
        content["words"] = [word for entry in shown["segments"] for word in entry["words"]]
    return content


def _segment(segment: Segment, shown: dict[str, Any], tokens: Sequence[Token]) -> dict[str, Any]:
    """OpenAI's fields of a segment. What greedy decoding has no number for has its neutral value."""
    return {
        "id": shown["id"],
        "seek": round(shown["start"] * 100),
        "start": shown["start"],
        "end": shown["end"],
        "text": shown["text"],
        "tokens": [token.id for token in tokens],
        "temperature": 0.0,
        "avg_logprob": _log(segment.confidence),
        "compression_ratio": _compression_ratio(segment.text),
        "no_speech_prob": 0.0,
        "confidence": shown["confidence"],
    }


def _segment_tokens(transcript: Transcript) -> Iterator[list[Token]]:
    """The tokens of each segment in turn.

    A segment takes tokens until their characters are those of its text, whitespace left out; tokens
    that add none go with what came before.
    """
    tokens = iter(transcript.tokens)
    token = next(tokens, None)
    for number, segment in enumerate(transcript.segments, start=1):
        is_last = number == len(transcript.segments)
        missing = _num_visible(segment.text)
        own: list[Token] = []
        while token is not None and (missing > 0 or is_last or not _num_visible(token.text)):
            own.append(token)
            missing -= _num_visible(token.text)
            token = next(tokens, None)
        yield own


def _num_visible(text: str) -> int:
    return sum(not character.isspace() for character in text)


def _log(probability: float) -> float:
    return round(math.log(max(probability, sys.float_info.min)), 6)


def _compression_ratio(text: str) -> float:
    """As Whisper's: how much zlib gains on the text; repeated words give a high one."""
    content = text.encode("utf-8", "replace")
    return round(len(content) / len(zlib.compress(content)), 6)


def _included(transcript: Transcript, options: Options) -> dict[str, Any]:
    included: dict[str, Any] = {}
    if options.has_logprobs:
        included["logprobs"] = [_logprob(token) for token in transcript.tokens]
    if options.documents:
        included["documents"] = {name: transcript.render(name) for name in options.documents}
    return included


def _logprob(token: Token) -> dict[str, Any]:
    content = token.text.encode("utf-8", "replace")
    return {"token": token.text, "logprob": _log(token.confidence), "bytes": list(content)}


# Events


def delta_event(segment: Segment, options: Options) -> dict[str, Any]:
    """A segment that is final. The deltas of a stream, joined, are its text."""
    content: dict[str, Any] = {
        "type": "transcript.text.delta",
        "delta": f" {segment.text}" if segment.id else segment.text,
    }
    if options.format == "verbose_json":
        alone = Transcript(segment.text, (segment,), segment.words, (), segment.end)
        content["segment"] = alone.to_dict()["segments"][0]
    return content


def done_event(transcript: Transcript, options: Options) -> dict[str, Any]:
    """The last event of a stream: the whole answer."""
    return {"type": "transcript.text.done"} | _content(transcript, options)


def error_event(content: dict[str, Any]) -> dict[str, Any]:
    """An error that came up after the stream had begun."""
    return {"type": "error"} | content


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return f"data: {encode_json(content)}\n\n".encode()
