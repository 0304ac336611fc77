"""One transcription request from its body to its answer.

In: a request whose body was not read yet. Out: a response, plain or a stream of events. The upload lies in
a temporary file while a thread transcribes it; if the client goes away, what waits is dropped, and file,
thread and place are free at once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import BinaryIO

from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transduce.server import answers
from transduce.server.batcher import CancelledJobError, ClosedError, Job
from transduce.server.forms import Options, read_options
from transduce.server.problems import ApiError, of_error
from transduce.server.recognition import open_upload
from transduce.server.service import Service
from transduce.transcript import Transcript
from transduce.types import Segment
from transduce.writers import printable

__all__ = ["transcribe"]

KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = b": still working\n\n"
"""A comment that no client shows; proxies close connections on which nothing moves."""

MOST_FIELDS = 100

FORM = "multipart/form-data"


async def transcribe(request: Request, service: Service) -> Response:
    """Answer a request of `POST /v1/audio/transcriptions`. Raises ApiError and ClientDisconnect."""
    async with AsyncExitStack() as stack:
        stack.enter_context(service.admit())
        form = await stack.enter_async_context(request.form(max_files=1, max_fields=MOST_FIELDS))
        file = _file(form, request.headers.get("content-type", ""))
        texts = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        options = read_options(texts, service.served)
        job = stack.enter_context(service.batcher.open())
        gone = asyncio.create_task(_disconnected(request))
        stack.callback(gone.cancel)
        upload = open_upload(file.file, _shown_name(file.filename), job)
        work = _Work(service, upload, job, options, gone)
        stack.push_async_callback(work.settle)
        # An error that comes before anything else has a status of its own, in a stream too.
        piece = await work.next(KEEP_ALIVE_SECONDS if options.is_streamed else None)
        if options.is_streamed:
            return _EventStream(work, piece, stack.pop_all())
        assert piece is not None
        request.state.log_fields = piece.log_fields
        return _plain(piece, options)


def _file(form: FormData, content_type: str) -> UploadFile:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        kind = printable(content_type.partition(";")[0].strip())[:100]
        found = (
            "" if kind == FORM else f", and this body is {kind}" if kind else ", and this body has no type"
        )
        message = f"file is missing: send the recording as a file, in {FORM}{found}"
        raise ApiError(400, message, "missing_required_parameter", "file")
    return file


def _shown_name(name: str | None) -> str:
    """What messages call an upload: the last part of the client's name for it, if that can be shown."""
    last = PurePosixPath(PureWindowsPath(printable(name or "")).name).name
    shown = "".join(c for c in last if c.isprintable())[:100]
    return shown or "the upload"


async def _disconnected(request: Request) -> None:
    """Return once the client is gone; its body has been read, so nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an answer."""

    content: bytes
    is_last: bool = False
    warnings: tuple[str, ...] = ()
    log_fields: dict[str, float] | None = None


class _Work:
    """The thread that transcribes an upload, seen from the event loop: pieces of an answer, in order."""

    def __init__(
        self, service: Service, upload: BinaryIO, job: Job, options: Options, gone: "asyncio.Task[None]"
    ) -> None:
        self._service = service
        self._upload = upload
        self._job = job
        self._options = options
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[_Piece | Exception] = asyncio.Queue()
        self._thread = service.run(self._run)

    async def next(self, timeout_seconds: float | None = None) -> _Piece | None:
        """The next piece, or None after the timeout. Raises what went wrong, or ClientDisconnect."""
        waiting = asyncio.create_task(self._pieces.get())
        try:
            await asyncio.wait(
                {waiting, self._gone}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if self._gone.done():
            raise ClientDisconnect
        if not waiting.done():
            return None
        piece = waiting.result()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def settle(self) -> None:
        """Drop what the thread still has to do, and wait for its end."""
        self._job.cancel()
        await asyncio.wait({self._thread})

    # In the thread

    def _run(self) -> None:
        try:
            self._put(self._last())
        except CancelledJobError as error:
            # Nobody may take it from the queue, and its frames hold audio.
            self._put(error.with_traceback(None))
        except Exception as error:  # noqa: BLE001 - raised again by `next`
            self._put(error)

    def _last(self) -> _Piece:
        """Put the segments as they come, if they are asked for; the last piece."""
        options = self._options
        segments = self._service.recognizer.transcribe(self._upload, self._job)
        with closing(segments):
            transcript = self._drained(segments)
        if options.is_streamed:
            content = answers.event(answers.done_event(transcript, options))
        else:
            content = answers.body(transcript, options).encode()
        log_fields = {"audio_seconds": round(transcript.duration, 3)}
        return _Piece(content, is_last=True, warnings=transcript.warnings, log_fields=log_fields)

    def _drained(self, segments: Generator[Segment, None, Transcript]) -> Transcript:
        while True:
            try:
                segment = next(segments)
            except StopIteration as end:
                transcript: Transcript = end.value
                return transcript
            if self._options.is_streamed:
                self._put(_Piece(answers.event(answers.delta_event(segment, self._options))))

    def _put(self, piece: _Piece | Exception) -> None:
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


def _plain(piece: _Piece, options: Options) -> Response:
    response = Response(piece.content)
    response.headers["Content-Type"] = answers.MEDIA_TYPES[options.format]
    if piece.warnings:
        response.headers["X-Warnings"] = json.dumps(piece.warnings)
    return response


class _EventStream(Response):
    """Server-sent events; it holds what the request holds until the last one is sent."""

    media_type = "text/event-stream"

    def __init__(self, work: _Work, first: _Piece | None, stack: AsyncExitStack) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["Content-Length"]
        self._work = work
        self._first = first
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with self._stack:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            try:
                async for content in self._contents(scope):
                    await send({"type": "http.response.body", "body": content, "more_body": True})
            except asyncio.CancelledError:  # the time to drain is up
                last = _error_event(ClosedError())
                await send({"type": "http.response.body", "body": last, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _contents(self, scope: Scope) -> AsyncIterator[bytes]:
        piece = self._first
        try:
            while piece is None or not piece.is_last:
                yield KEEP_ALIVE if piece is None else piece.content
                piece = await self._work.next(KEEP_ALIVE_SECONDS)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the status is sent already
            yield _error_event(error)
        else:
            scope.setdefault("state", {})["log_fields"] = piece.log_fields
            yield piece.content


def _error_event(error: Exception) -> bytes:
    return answers.event(answers.error_event(of_error(error).to_dict()))
