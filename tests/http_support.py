"""A real server on 127.0.0.1 for tests, and a client that hides nothing.

`serving` runs an application with uvicorn in a thread; `Site` speaks plain HTTP to it, by the standard
library, so that a test sees the bytes and headers that are sent.
"""

import http.client
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from openai import OpenAI

from transduce.pipeline import Limits
from transduce.server.app import create_app
from transduce.server.service import Service
from transduce.server.serving import bind, server_of
from transduce.server.settings import Settings
from transduce.transcriber import Model

__all__ = ["CLICKS", "TRANSCRIPTIONS", "Answer", "Site", "events", "multipart", "serving", "until"]

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TIMEOUT_SECONDS = 30.0

CLICKS = Settings(drain_seconds=2.0, limits=Limits(vad="off"))
"""For servers of a recogniser of clicks, which are no speech."""

Fields = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, which must be whole."""
        (name,) = self.json
        assert name == "error"
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"] == ("invalid_request_error" if self.status < 500 else "server_error")
        return error


def multipart(
    fields: Fields, content: bytes | None, filename: str | None = "audio.wav", media_type: str | None = None
) -> tuple[bytes, str]:
    """A form with an optional file: its body and content type."""
    boundary = secrets.token_hex(16)
    parts = [_part(boundary, f'name="{name}"', value.encode("utf-8")) for name, value in fields]
    if content is not None:
        name = 'name="file"' if filename is None else f'name="file"; filename="{filename}"'
        parts.append(_part(boundary, name, content, media_type))
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _part(boundary: str, disposition: str, content: bytes, media_type: str | None = None) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n"
    head += f"Content-Type: {media_type}\r\n" if media_type else ""
    return head.encode("utf-8") + b"\r\n" + content + b"\r\n"


def events(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@dataclass(frozen=True)
class Site:
    """A server that runs."""

    port: int
    app: FastAPI | None = None
    """Where it runs in this process."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def service(self) -> Service:
        assert self.app is not None
        service: Service = self.app.state.service
        return service

    def openai(self, api_key: str = "any") -> OpenAI:
        """OpenAI's own client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=TIMEOUT_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", path, headers=headers)

    def transcribe(
        self,
        content: bytes | None,
        *more: tuple[str, str],
        filename: str | None = "audio.wav",
        media_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        **fields: str,
    ) -> Answer:
        """Post a recording; `model` is set unless given, `more` fields may repeat."""
        named = {"model": "whisper-1"} | fields
        pairs = [*((name, value) for name, value in named.items() if value), *more]
        body, content_type = multipart(pairs, content, filename, media_type)
        sent = {"Content-Type": content_type} | dict(headers or {})
        return self.ask("POST", TRANSCRIPTIONS, body, sent, timeout)

    def begin(
        self, content: bytes, *more: tuple[str, str], timeout: float = TIMEOUT_SECONDS
    ) -> socket.socket:
        """Send a whole request and leave its answer unread."""
        body, content_type = multipart([("model", "whisper-1"), *more], content)
        head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: test\r\nContent-Type: {content_type}\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port), timeout)
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def metric(self, name: str, headers: Mapping[str, str] | None = None) -> float:
        """The value of a metric without labels."""
        lines = self.get("/metrics", headers).text.splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@contextmanager
def serving(model: Model, settings: Settings) -> Iterator[Site]:
    """Run a server until the block ends; it is warm when the block begins."""
    app = create_app(model, settings)
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    server = server_of(app, 2.0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="test-server")
    thread.start()
    try:
        until(lambda: server.started)
        site = Site(port, app)
        until(lambda: site.service.obstacle is None)
        yield site
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)
