"""The answers in the OpenAPI document: what clients may rely on.

Data only; the answers themselves are made in `answers`, and the fields of the form are in `forms`.
"""

from typing import Any, TypeAlias

from pydantic import BaseModel, Field

from transduce.server.forms import FORM_SCHEMA

__all__ = [
    "TRANSCRIPTION",
    "UNAVAILABLE",
    "ErrorBody",
    "ErrorDetail",
    "LogProb",
    "ModelCard",
    "ModelList",
    "Responses",
    "Segment",
    "Status",
    "StreamEvent",
    "Transcription",
    "Usage",
    "Word",
    "errors",
]


class Status(BaseModel):
    """How a server is."""

    status: str


class ModelCard(BaseModel):
    """A model that can be asked for."""

    id: str
    object: str = "model"
    created: int = Field(description="Unix time at which this server loaded it.")
    owned_by: str = "transduce"


class ModelList(BaseModel):
    """The models that this server has: one."""

    object: str = "list"
    data: list[ModelCard]


class ErrorDetail(BaseModel):
    """What went wrong, and what to do."""

    message: str
    type: str = Field(description="`invalid_request_error` or `server_error`.")
    param: str | None = Field(description="The field at fault.")
    code: str = Field(description="Stable; for programs.")


class ErrorBody(BaseModel):
    """Every error has this body."""

    error: ErrorDetail


class Usage(BaseModel):
    """How much audio was transcribed."""

    type: str = "duration"
    seconds: float


class Word(BaseModel):
    """A word; times in seconds."""

    word: str
    start: float
    end: float
    confidence: float


class Segment(BaseModel):
    """A sentence, or a stretch between pauses; times in seconds."""

    id: int
    seek: int = Field(description="Its start in hundredths of a second.")
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float = Field(description="Always 0.")
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float = Field(description="Always 0: these models have no such number.")
    confidence: float


class LogProb(BaseModel):
    """One token; for `include[]=logprobs`."""

    token: str
    logprob: float
    bytes: list[int]


class Transcription(BaseModel):
    """`response_format=json`; with `verbose_json`, the fields from `task` on are there too."""

    text: str
    usage: Usage
    logprobs: list[LogProb] | None = None
    documents: dict[str, str] | None = Field(None, description="The files that `include[]` asks for.")
    warnings: list[str] | None = Field(None, description="What was damaged or left out of the recording.")
    task: str | None = None
    language: str | None = Field(None, description="The model's language, or `unknown`.")
    duration: float | None = None
    segments: list[Segment] | None = None
    words: list[Word] | None = Field(None, description="With `timestamp_granularities[]=word`.")


class StreamEvent(BaseModel):
    """An event of `stream=true`."""

    type: str = Field(description="`transcript.text.delta`, `transcript.text.done` or `error`.")
    delta: str | None = None
    text: str | None = None


Responses: TypeAlias = dict[int | str, dict[str, Any]]

_ERRORS = {
    400: "A field is wrong, or the file is no audio.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The upload stopped arriving.",
    413: "The upload is too large.",
    503: "Too many requests are under way, or the server shuts down; `Retry-After` says when to try again.",
}


def errors(*statuses: int) -> Responses:
    """The errors that a route may answer with."""
    return {status: {"description": _ERRORS[status], "model": ErrorBody} for status in statuses}


UNAVAILABLE: Responses = {503: {"description": "Not at the moment.", "model": Status}}

_TEXT = {"schema": {"type": "string"}}
_EVENT = {
    "schema": {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": StreamEvent.model_json_schema(),
            }
        },
    }
}
"""One server-sent event, as OpenAPI describes them."""
_TRANSCRIPTION: Responses = {
    200: {
        "description": "In the form that `response_format` asks for.",
        "content": {
            "text/plain": _TEXT,
            "text/vtt": _TEXT,
            "text/event-stream": _EVENT,
        },
    }
}

TRANSCRIPTION: dict[str, Any] = {
    "response_model": Transcription,
    "responses": _TRANSCRIPTION | errors(*_ERRORS),
    "openapi_extra": {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}
    },
}
"""What the OpenAPI document says of the transcription route."""
