"""A web server with faults, and a fake Hugging Face on it, both on 127.0.0.1.

In: files by path, and for each path the faults that its next requests meet, one a request. Out: addresses,
and the requests that came, with their headers. Nothing here uses the package under test.
"""

import hashlib
import json
import re
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

__all__ = ["FakeHub", "Fault", "HubServer", "Request", "no_proxies", "running"]


@dataclass(frozen=True)
class Fault:
    """What one request meets instead of the file. Without any field set, the file itself."""

    status: int = 200
    """A status with a short text, for anything but 200."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Added to the answer, or put in the place of its own."""
    cut_after: int | None = None
    """Bytes of the body after which the connection is closed."""
    body: bytes | None = None
    """Sent in the place of the file."""
    ignores_range: bool = False
    wrong_range: bool = False
    """Begins one byte later than asked for."""
    is_chunked: bool = False
    without_length: bool = False
    hangs_seconds: float = 0.0
    """How long the connection stays open and silent after the body."""
    piece_bytes: int | None = None
    pause_seconds: float = 0.0
    """Sends the body in pieces, with pauses after them."""
    drops: bool = False
    """Closes the connection without an answer."""


@dataclass(frozen=True)
class Request:
    """A request that came."""

    path: str
    headers: Mapping[str, str]


class HubServer(ThreadingHTTPServer):
    """Serves `files`, with `faults`, and remembers `requests`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.always: dict[str, Fault] = {}
        """Faults that every request of a path meets, after those in `faults`."""
        self.requests: list[Request] = []
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def put(self, path: str, content: bytes, *faults: Fault) -> str:
        """Serve content at a path (with its leading slash), after the faults; its address."""
        self.files[path] = content
        self.faults[path].extend(faults)
        return self.url + path

    def asked(self, path: str) -> list[Request]:
        """The requests for a path."""
        return [request for request in self.requests if request.path == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed or refuse to go on are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        path = re.sub(r"^http://[^/]+", "", path)  # as a proxy is asked
        self.server.requests.append(Request(path, dict(self.headers.items())))
        queue = self.server.faults[path]
        fault = queue.popleft() if queue else self.server.always.get(path, Fault())
        self.close_connection = True
        if fault.drops:
            return
        content = self.server.files.get(path) if fault.body is None else fault.body
        if fault.status != 200:
            self._send(fault.status, {}, fault.body or b"no", fault)
        elif content is None:
            self._send(404, {}, b"not found", fault)
        else:
            self._send_file(content, fault)

    def _send_file(self, content: bytes, fault: Fault) -> None:
        etag = f'"{hashlib.sha256(content).hexdigest()[:12]}"'
        headers = {"ETag": etag, "Content-Type": "application/octet-stream"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.headers.get("If-Range", etag) != etag or fault.ignores_range or fault.body is not None:
            asked = None
        if asked is None:
            self._send(200, headers, content, fault)
            return
        start = int(asked[1]) + fault.wrong_range
        stop = min(int(asked[2]) + 1 if asked[2] else len(content), len(content))
        if start >= len(content):
            self._send(416, {"Content-Range": f"bytes */{len(content)}"}, b"", fault)
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(206, headers, content[start:stop], fault)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, fault: Fault) -> None:
        self.send_response(status)
        length = {} if fault.is_chunked or fault.without_length else {"Content-Length": str(len(body))}
        if fault.is_chunked:
            length = {"Transfer-Encoding": "chunked"}
        for name, value in {**headers, **length, "Connection": "close", **fault.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        sent = body if fault.cut_after is None else body[: fault.cut_after]
        if fault.is_chunked:
            sent = b"%x\r\n%s\r\n" % (len(body), sent) + (
                b"" if fault.cut_after is not None else b"0\r\n\r\n"
            )
        size = fault.piece_bytes or max(1, len(sent))
        for start in range(0, len(sent), size):
            self.wfile.write(sent[start : start + size])
            self.server.stopped.wait(fault.pause_seconds)
        self.server.stopped.wait(fault.hangs_seconds)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this machine's proxies out of a test's environment."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def running(server: HubServer) -> Iterator[HubServer]:
    """Serve until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


class FakeHub:
    """Repositories as Hugging Face serves them: a list of files at the hub, the large ones elsewhere."""

    def __init__(self, hub: HubServer, storage: HubServer, lfs_from_bytes: int = 1000) -> None:
        """Files of at least `lfs_from_bytes` are redirected to `storage`, another server."""
        self.hub = hub
        self.storage = storage
        self.lfs_from_bytes = lfs_from_bytes

    def add(
        self, repo: str, files: Mapping[str, bytes], *, licence: str | None = "mit", revision: str = "main"
    ) -> str:
        """Publish a repository at a revision; the commit."""
        commit = hashlib.sha1(repr((repo, sorted(files.items()))).encode()).hexdigest()
        for path, content in files.items():
            self._publish(repo, commit, path, content)
        answer = {
            "id": repo,
            "sha": commit,
            "cardData": {"license": licence} if licence else None,
            "siblings": [self._sibling(path, content) for path, content in files.items()],
        }
        for name in (revision, commit):
            self.hub.put(self.api(repo, name), json.dumps(answer).encode())
        return commit

    def api(self, repo: str, revision: str = "main") -> str:
        """The path of a repository's list of files."""
        return f"/api/models/{repo}/revision/{revision}"

    def storage_path(self, content: bytes) -> str:
        """Where a large file lies at the storage server."""
        return f"/lfs/{hashlib.sha256(content).hexdigest()}"

    def _publish(self, repo: str, commit: str, path: str, content: bytes) -> None:
        resolve = f"/{repo}/resolve/{commit}/{path}"
        if len(content) < self.lfs_from_bytes:
            self.hub.put(resolve, content)
            return
        target = self.storage.put(self.storage_path(content), content)
        self.hub.always[resolve] = Fault(302, {"Location": f"{target}?signature=secret"})

    def _sibling(self, path: str, content: bytes) -> dict[str, Any]:
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        sibling: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git}
        if len(content) >= self.lfs_from_bytes:
            sibling["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        return sibling
