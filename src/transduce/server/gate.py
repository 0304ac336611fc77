"""What holds for every request, before its body is read and after its answer: an ASGI middleware.

In: a request. Out: the application's answer, with `X-Request-Id`, counted and logged; or, before the body
is read, 401 without a right key and 413 for a body that says it is too large. A body that is too large
without saying so, or that stops arriving, is an ApiError of whoever reads it. What nobody handled becomes
a 500 that shows no details, and a log line that does.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Collection
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.server.batcher import ClosedError
from transduce.server.logs import request_id
from transduce.server.metrics import Metrics
from transduce.server.problems import ApiError, answer, of_error
from transduce.server.settings import Settings

__all__ = ["Gate"]

logger = logging.getLogger("transduce")

LINGER_SECONDS = 2.0
"""How long a body is still read, and thrown away, behind an answer that did not wait for it. A client
that is still sending would otherwise meet a closed connection and never see the answer."""

QUIET_PATHS = ("/health", "/ready", "/metrics")
"""Asked every few seconds; their log lines have the level DEBUG."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CLIENT_GONE = 499
"""nginx's status for a client that closed the connection; nobody is sent it."""


class Gate:
    """Wraps an application; `open_paths` need no key."""

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: Metrics, open_paths: Collection[str]
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._open_paths = open_paths
        self._keys = [_digest(key) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        exchange = _Exchange(scope, receive, send, self._settings)
        token = request_id.set(exchange.request_id)
        try:
            await self._answer(exchange, scope)
        finally:
            self._record(exchange, scope, time.monotonic() - started)
            request_id.reset(token)

    async def _answer(self, exchange: "_Exchange", scope: Scope) -> None:
        try:
            self._check_key(exchange.headers, scope["path"])
            exchange.check_declared_length()
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except asyncio.CancelledError:  # the time to drain is up
            exchange.lingers = False
            await exchange.refuse(of_error(ClosedError()), scope)
        except Exception as error:
            problem = of_error(error)
            if problem.status == 500:
                logger.error("a request failed", exc_info=error)
            await exchange.refuse(problem, scope)

    def _check_key(self, headers: Headers, path: str) -> None:
        if not self._keys or path in self._open_paths:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # Every key is compared, and digests in constant time: an answer's time tells nothing.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "a valid API key is needed, as the header `Authorization: Bearer KEY`"
            raise ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _record(self, exchange: "_Exchange", scope: Scope, seconds: float) -> None:
        status = exchange.status or CLIENT_GONE
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.request(method, route, status, seconds)
        if status == CLIENT_GONE:
            self._metrics.disconnection()
        fields = {
            "method": method,
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 3),
            "received_bytes": exchange.num_bytes,
            **scope.get("state", {}).get("log_fields", {}),
        }
        level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
        logger.log(level, "answered", extra={"fields": fields})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _request_id(headers: Headers) -> str:
    """The client's own id where it is harmless in logs, else a new one."""
    given = headers.get("x-request-id", "")
    return given if re.fullmatch(r"[A-Za-z0-9._-]{1,128}", given) else f"req_{secrets.token_hex(12)}"


class _Exchange:
    """One request and its answer, watched on the way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.headers = Headers(scope=scope)
        self.request_id = _request_id(self.headers)
        self.status: int | None = None
        """Of the answer, once it has begun."""
        self.num_bytes = 0
        """Of the body, as far as it was read."""
        self.lingers = "expect" not in self.headers
        """Whether a body is read on behind an early answer; who waits for `100 Continue` sends none."""
        self._receive = receive
        self._send = send
        self._settings = settings
        length = self.headers.get("content-length", "")
        self._declared_bytes = int(length) if length.isdecimal() else 0
        self._has_more = self._declared_bytes > 0 or "transfer-encoding" in self.headers

    def check_declared_length(self) -> None:
        """Raise ApiError for a body that says it is too large."""
        if self._declared_bytes > self._settings.max_upload_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        megabytes = self._settings.max_upload_bytes / 2**20
        message = f"the request is larger than the {megabytes:g} MiB that this server takes"
        return ApiError(413, message, "request_too_large", "file")

    async def refuse(self, error: ApiError, scope: Scope) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status is None:
            await answer(error)(scope, self.receive, self.send)

    async def receive(self) -> Message:
        """The application's side of the request; the body is counted and must keep arriving."""
        timeout = self._settings.upload_idle_seconds if self._has_more else None
        try:
            message = await asyncio.wait_for(self._receive(), timeout)
        except asyncio.TimeoutError:
            raise ApiError(408, "the rest of the request did not come", "timeout", "file") from None
        self._has_more = message["type"] == "http.request" and message.get("more_body", False)
        self.num_bytes += len(message.get("body", b""))
        if self.num_bytes > self._settings.max_upload_bytes:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """The application's side of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self.request_id
            if self._has_more:
                headers["Connection"] = "close"
        elif not message.get("more_body", False) and self._has_more and self.lingers:
            await self._send({**message, "more_body": True})
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._discard(), LINGER_SECONDS)
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _discard(self) -> None:
        while self._has_more:
            message = await self._receive()
            self._has_more = message["type"] == "http.request" and message.get("more_body", False)
