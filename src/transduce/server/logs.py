"""The server's log on standard error, for people or as JSON lines.

In: records of the loggers `transduce` and `uvicorn`; a record may carry `fields`, a mapping. Out: lines
with the time in UTC and, where a request is being answered, its id. No audio, text, file name or key is
ever logged.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal

__all__ = ["LOG_FORMATS", "JsonFormatter", "TextFormatter", "request_id", "set_up"]

LOG_FORMATS = ("text", "json")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that the code running now belongs to; "" outside of any."""


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, request_id, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            content["request_id"] = request_id.get()
        content |= _fields(record)
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """`time LEVEL message key=value ... [request id]`."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname, record.getMessage()]
        parts += [f"{key}={value}" for key, value in _fields(record).items()]
        parts += [f"[{request_id.get()}]"] if request_id.get() else []
        line = " ".join(" ".join(parts).splitlines())
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up(log_format: Literal["text", "json"], level: int = logging.INFO) -> None:
    """Send the logs of this package and of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name in ("transduce", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level)
