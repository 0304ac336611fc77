"""The fields of a transcription request, as OpenAI's clients send them, become `Options`.

In: the pairs of a form. Out: what was asked for, or an ApiError that names the field. Every documented
field acts, is documented as without effect, or is refused; fields that nobody knows are passed over.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from transduce.server.problems import ApiError

__all__ = ["FORM_SCHEMA", "Options", "Served", "read_options"]

Format: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
FORMATS: tuple[str, ...] = get_args(Format)
GRANULARITIES = ("segment", "word")
DOCUMENTS = ("txt", "srt", "vtt")
INCLUDES = ("logprobs", *DOCUMENTS)

REFUSED = {
    "keywords": "words cannot be boosted: these models decode greedily",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
}
"""Fields of OpenAI's that cannot be honoured here, and why."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model that answers, as far as a request can be about it."""

    name: str
    aliases: tuple[str, ...]
    language: str | None

    def check(self, name: str) -> None:
        """Raise ApiError if no model is served under a name."""
        names = (self.name, *self.aliases)
        if name not in names:
            message = f"there is no model {_shown(name)} here: use {' or '.join(map(repr, names))}"
            raise ApiError(404, message, "model_not_found", "model")


@dataclass(frozen=True, slots=True)
class Options:
    """How a client wants its answer."""

    format: Format = "json"
    has_words: bool = False
    """Whether verbose_json lists the words."""
    has_logprobs: bool = False
    documents: tuple[str, ...] = ()
    """Subtitle and text files that JSON carries along."""
    is_streamed: bool = False


def read_options(fields: Iterable[tuple[str, str]], served: Served) -> Options:
    """Raises ApiError: 404 for a model that is not served, 400 for anything else that is wrong."""
    form = _Form(fields)
    _check_model(form.one("model"), served)
    for name in ("language", "languages"):
        _check_languages(form.many(name), served, name)
    for name, reason in REFUSED.items():
        if form.many(name):
            raise ApiError(400, f"{name} is not supported: {reason}", "unsupported_parameter", name)
    _check_temperature(form.one("temperature"))
    options = Options(
        format=_format(form.one("response_format") or "json"),
        has_words="word" in form.choices("timestamp_granularities", GRANULARITIES),
        has_logprobs="logprobs" in form.choices("include", INCLUDES),
        documents=tuple(name for name in form.choices("include", INCLUDES) if name in DOCUMENTS),
        is_streamed=_flag(form.one("stream") or "false", "stream"),
    )
    if options.is_streamed and options.format not in ("json", "verbose_json"):
        message = f"stream=true gives events of JSON: use json or verbose_json, not {options.format}"
        raise ApiError(400, message, "unsupported_parameter", "response_format")
    return options


class _Form:
    """Fields by name; lists may come as `name`, `name[]` or `name[0]`, repeated or with commas."""

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for key, value in fields:
            name = re.sub(r"\[\d*\]$", "", key)
            self._values.setdefault(name, []).append(value)

    def one(self, name: str) -> str:
        """The value of a field that may be given once; "" where it is missing."""
        values = self._values.get(name, [])
        if len(values) > 1:
            raise ApiError(400, f"{name} is given {len(values)} times", "invalid_value", name)
        return values[0].strip() if values else ""

    def many(self, name: str) -> list[str]:
        """The values of a list, also where it was written as one: `word,segment`, `["word"]`."""
        parts = (part for value in self._values.get(name, []) for part in value.strip("[] \t").split(","))
        return [part for part in (part.strip("\"' \t\r\n") for part in parts) if part]

    def choices(self, name: str, known: Sequence[str]) -> list[str]:
        """The values of a list, each of which must be known."""
        values = self.many(name)
        for value in values:
            _check_choice(name, value, known)
        return list(dict.fromkeys(values))


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        message = f"{name} cannot be {_shown(value)}: use {' or '.join(known)}"
        raise ApiError(400, message, "invalid_value", name)


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:60] + "…")


def _check_model(name: str, served: Served) -> None:
    if not name:
        raise ApiError(400, f"model is missing: give {served.name!r}", "missing_required_parameter", "model")
    served.check(name)


def _check_languages(values: Sequence[str], served: Served, name: str) -> None:
    """A hint is right if the model's language is among it; where that is not known, any code is."""
    codes = [value.lower().replace("_", "-").partition("-")[0] for value in values]
    for value, code in zip(values, codes, strict=True):
        if not re.fullmatch(r"[a-z]{2,3}", code):
            message = f"{name} {_shown(value)} is not an ISO 639 code such as en"
            raise ApiError(400, message, "invalid_value", name)
    if codes and served.language is not None and served.language not in codes:
        message = f"{name} {_shown(', '.join(values))} is not supported: the model knows {served.language!r}"
        raise ApiError(400, message, "unsupported_language", name)


def _check_temperature(value: str) -> None:
    try:
        is_valid = not value or 0 <= float(value) <= 1
    except ValueError:
        is_valid = False
    if not is_valid:
        message = f"temperature is a number from 0 to 1, not {_shown(value)}"
        raise ApiError(400, message, "invalid_value", "temperature")


def _format(name: str) -> Format:
    _check_choice("response_format", name, FORMATS)
    return name  # type: ignore[return-value]


def _flag(value: str, name: str) -> bool:
    _check_choice(name, value.lower(), ("true", "false", "1", "0"))
    return value.lower() in ("true", "1")


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description} | more


def _list(description: str, known: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "string", "enum": list(known)},
        "description": description,
    }


FORM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": _text(
            "The recording, in any container and codec that FFmpeg reads. Its name and type are not trusted.",
            format="binary",
        ),
        "model": _text("The model's name (see /v1/models) or `whisper-1`."),
        "language": _text("ISO 639 code; 400 if the model does not know the language. No other effect."),
        "prompt": _text("Accepted without effect: these models take no prompt."),
        "response_format": _text("The form of the answer.", enum=list(FORMATS), default="json"),
        "temperature": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "Accepted without effect: decoding is greedy.",
        },
        "timestamp_granularities[]": _list(
            "For verbose_json: `word` adds the words; segments are always there.", GRANULARITIES
        ),
        "stream": {
            "type": "boolean",
            "default": False,
            "description": "Server-sent events: a `transcript.text.delta` for each segment as it becomes "
            "final, then `transcript.text.done`. With json or verbose_json.",
        },
        "include[]": _list(
            "`logprobs`: those of the tokens. `txt`, `srt`, `vtt`: such a file, in the JSON's `documents`.",
            INCLUDES,
        ),
        "chunking_strategy": _text("Accepted without effect: long audio is always cut at pauses."),
    },
}
"""The request body in the OpenAPI document."""
