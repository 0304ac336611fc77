"""Results to the texts of Triton's output tensors.

In: a transcript, or a segment of a stream. Out: output name -> text. The JSON is that of files and of HTTP
(`transcript`). Nothing here knows Triton's Python module.
"""

from collections.abc import Collection

from transduce.transcript import Transcript
from transduce.types import Segment
from transduce.writers import encode_json

__all__ = ["OUTPUTS", "of_end", "of_segment", "of_transcript"]

OUTPUTS = ("TEXT", "WORDS", "SEGMENTS", "TRANSCRIPT")
"""The text; the words, the segments and the whole result as JSON."""


def of_transcript(transcript: Transcript, wanted: Collection[str] = OUTPUTS) -> dict[str, str]:
    """A whole result; what is not wanted is not made."""
    content = transcript.to_dict()
    words = [word for segment in content["segments"] for word in segment["words"]]
    parts = {"WORDS": words, "SEGMENTS": content["segments"], "TRANSCRIPT": content}
    texts = {"TEXT": transcript.text} if "TEXT" in wanted else {}
    return texts | {name: encode_json(part) for name, part in parts.items() if name in wanted}


def of_segment(segment: Segment, wanted: Collection[str] = OUTPUTS) -> dict[str, str]:
    """A segment of a stream. The texts of a stream, joined, are its text; TRANSCRIPT comes at the end."""
    alone = Transcript(segment.text, (segment,), segment.words, (), segment.end)
    texts = of_transcript(alone, [name for name in wanted if name != "TRANSCRIPT"])
    if segment.id and "TEXT" in texts:
        texts["TEXT"] = f" {segment.text}"
    return texts | ({"TRANSCRIPT": ""} if "TRANSCRIPT" in wanted else {})


def of_end(transcript: Transcript, wanted: Collection[str] = OUTPUTS) -> dict[str, str]:
    """The last response of a stream: the whole result, and no text, word or segment once more."""
    nothing = {"TEXT": "", "WORDS": "[]", "SEGMENTS": "[]"}
    return {name: text for name, text in nothing.items() if name in wanted} | of_transcript(
        transcript, [name for name in wanted if name == "TRANSCRIPT"]
    )
