"""`transduce serve` as a process: its start, its log, its end, and what keeps it from starting."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import typer
from fakes import clicks, write_wav
from http_support import TIMEOUT_SECONDS, Answer, events, multipart, until
from starlette.types import Receive, Scope, Send
from support import ROOT, data
from typer.testing import CliRunner

from transduce import cli_serve
from transduce.errors import MissingExtraError
from transduce.server import serving

REF = data("audio/u03.wav").read_bytes()


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRANSDUCE_")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | more


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "transduce", "serve", *arguments]


@dataclass
class Process:
    """A server process; `lines` are those of its log so far."""

    process: "subprocess.Popen[str]"
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def messages(self) -> list[str]:
        return [record["message"] for record in self.records]

    def collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)

    def begin(self, content: bytes, *fields: tuple[str, str], headers: str = "") -> socket.socket:
        body, content_type = multipart([("model", "demo"), *fields], content)
        head = (
            f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nContent-Type: {content_type}\r\n{headers}"
        )
        connection = self.connect()
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def transcribe(self, content: bytes, *fields: tuple[str, str], headers: str = "") -> Answer:
        with self.begin(content, *fields, headers=headers) as connection:
            return answer_of(connection)

    def metrics(self) -> bytes:
        with self.connect() as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
            return answer_of(connection).body

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait; gives the exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)


def answer_of(connection: socket.socket) -> Answer:
    response = HTTPResponse(connection)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[Process]:
    """A server on a free port, with a JSON log, that is ready."""
    full = command("-m", "demo", "--port", "0", "--log-format", "json", *arguments)
    with subprocess.Popen(full, stderr=subprocess.PIPE, text=True, env=environment(**variables)) as popen:
        started = Process(popen)
        thread = threading.Thread(target=started.collect)
        thread.start()
        try:
            until(lambda: popen.poll() is not None or "ready" in started.messages(), TIMEOUT_SECONDS)
            (line,) = [message for message in started.messages() if message.startswith("listening on")]
            started.port = int(line.rpartition(":")[2])
            yield started
        finally:
            popen.kill()
            thread.join(TIMEOUT_SECONDS)


def test_who_reads_where_it_listens_may_connect() -> None:
    full = command("-m", "demo", "--port", "0")
    with subprocess.Popen(full, stderr=subprocess.PIPE, text=True, env=environment()) as popen:
        assert popen.stderr is not None
        try:
            line = next(line for line in popen.stderr if "listening on" in line)
            with Process(popen, int(line.rpartition(":")[2])).connect() as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
                assert answer_of(connection).status == 200
        finally:
            popen.kill()


@pytest.mark.posix
def test_its_log_is_json_and_holds_no_secrets_texts_or_names(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("sk-from-file-1\n\nsk-from-file-2\n", encoding="utf-8")
    with process("--api-key-file", str(keys), TRANSDUCE_API_KEY="sk-from-env sk-second") as server:
        for key in ("sk-from-file-2", "sk-from-env", "sk-second"):
            header = f"Authorization: Bearer {key}\r\nX-Request-Id: {key[3:]}.id\r\n"
            assert server.transcribe(REF, headers=header).json["text"] == "one"
        wrong = server.transcribe(REF, headers='Authorization: Bearer sk-wrong\r\nX-Request-Id: a b"\r\n')
        assert wrong.status == 401
        assert server.end(signal.SIGTERM) == 0
        log = "".join(server.lines)
        answered = [record for record in server.records if record["message"] == "answered"]
    assert not [
        secret for secret in ("sk-", "one", "audio.wav") if f'"{secret}' in log or f" {secret}" in log
    ]
    assert [record["status"] for record in answered] == [200, 200, 200, 401]
    assert answered[0]["request_id"] == "from-file-2.id"
    assert answered[0]["audio_seconds"] == 1.132
    assert answered[3]["request_id"] == wrong.headers["x-request-id"]
    assert {"time", "level", "logger", "method", "path", "seconds"} <= set(answered[0])


@pytest.mark.posix
def test_sigterm_drains(tmp_path: Path) -> None:
    """Requests under way are answered, new ones are not taken, and the process ends without an error."""
    long = write_wav(tmp_path / "long.wav", clicks(400, {n + 0.5: 1 for n in range(400)})).read_bytes()
    with process() as server:
        plain = server.begin(long)
        stream = server.begin(long, ("stream", "true"))
        with plain, stream:
            until(lambda: b"transduce_requests 2.0" in server.metrics())
            server.process.send_signal(signal.SIGTERM)
            until(lambda: "Shutting down" in server.messages())
            until(lambda: is_refused(server))
            assert answer_of(plain).status == 200
            *_, done = events(answer_of(stream))
            assert done["type"] == "transcript.text.done"
        assert server.process.wait(TIMEOUT_SECONDS) == 0


def is_refused(server: Process) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.linux
def test_what_is_not_done_when_the_time_to_drain_is_up_is_told_so() -> None:
    """A client that goes on sending for ever cannot hold the process."""
    with process("--drain-seconds", "1") as server, server.connect() as slow:
        slow.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        until(lambda: server_of_requests(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        answer = answer_of(slow)
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert server.process.wait(TIMEOUT_SECONDS) == 0
        assert [record["exception"] for record in server.records if "exception" in record] == []


def server_of_requests(server: Process) -> int:
    """Requests whose answer has not begun; the uploads among them are not known to the batcher yet."""
    return (
        sum(os.readlink(f"/proc/{server.process.pid}/fd/{fd}").startswith("socket:") for fd in fds(server))
        - 3
    )


def fds(server: Process) -> list[str]:
    return os.listdir(f"/proc/{server.process.pid}/fd")


@pytest.mark.posix
def test_ctrl_c_is_130() -> None:
    with process() as server:
        assert server.end(signal.SIGINT) == 130


@pytest.mark.posix
def test_a_second_ctrl_c_ends_at_once_and_is_no_error(tmp_path: Path) -> None:
    with process() as server, server.connect() as slow:
        slow.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        time.sleep(0.5)
        server.process.send_signal(signal.SIGINT)
        until(lambda: any("Waiting for connections" in message for message in server.messages()))
        assert server.end(signal.SIGINT) == 130
    assert [record["message"] for record in server.records if record["level"] == "error"] == []


def test_threads_that_compute_give_way_sooner_while_it_runs() -> None:
    intervals: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (scope["type"], (await receive())["type"]) == ("lifespan", "lifespan.startup")
        intervals.append(sys.getswitchinterval())
        await send({"type": "lifespan.startup.failed", "message": "seen"})

    before = sys.getswitchinterval()
    with serving.bind("127.0.0.1", 0) as bound, pytest.raises(SystemExit):
        serving.serve(app, bound, 1.0)
    assert intervals == [pytest.approx(serving.SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before > serving.SWITCH_SECONDS


def test_text_log() -> None:
    full = command("-m", "demo", "--port", "0", "--host", "0.0.0.0")
    with subprocess.Popen(full, stderr=subprocess.PIPE, text=True, env=environment()) as popen:
        assert popen.stderr is not None
        lines = []
        for line in popen.stderr:
            lines.append(line)
            if " ready " in line:
                break
        popen.terminate()
        popen.communicate(timeout=TIMEOUT_SECONDS)
        assert popen.returncode == 0
    assert " WARNING whoever reaches 0.0.0.0 can use this server" in lines[0]
    assert [line for line in lines if " INFO listening on http://0.0.0.0:" in line]
    assert " warm_up_seconds=" in lines[-1]


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(**variables), timeout=60
    )


def test_an_address_in_use_is_3() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("-m", "demo", "--port", str(port))
    assert ended.returncode == 3
    assert f"127.0.0.1:{port} cannot be listened on" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_model_that_is_not_there_is_3() -> None:
    ended = run("-m", "no-such-model", "--port", "0")
    assert ended.returncode == 3
    assert "no-such-model" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [["--api-key-file", "/no/such/file"], ["--max-segment", "0.01"], ["--port", "99999"]]
)
def test_usage_is_2(arguments: list[str]) -> None:
    ended = run("-m", "demo", *arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_a_key_file_without_keys_would_open_the_server(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n \n", encoding="utf-8")
    ended = run("-m", "demo", "--api-key-file", str(empty))
    assert ended.returncode == 2
    assert "holds no key" in " ".join(ended.stderr.replace("│", " ").split())


def keys_error(*arguments: str, **variables: str) -> str:
    """The words of what refuses keys; nothing is loaded before."""
    ended = run("-m", "demo", *arguments, **variables)
    assert ended.returncode == 2
    return " ".join(ended.stderr.replace("│", " ").split())


def test_an_empty_key_would_open_the_server() -> None:
    assert "--api-key holds no key" in keys_error("--api-key", "")


def test_an_empty_variable_of_keys_would_open_the_server() -> None:
    assert "TRANSDUCE_API_KEY holds no key" in keys_error(TRANSDUCE_API_KEY="")


def test_a_key_that_no_header_can_carry_is_refused() -> None:
    assert "ASCII" in keys_error("--api-key", "ключ")


def test_a_missing_extra_is_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(module: str, extra: str) -> None:
        raise MissingExtraError(f'{module} is needed: pip install "transduce[{extra}]"')

    monkeypatch.setattr(cli_serve, "import_extra", missing)
    monkeypatch.setattr(cli_serve.logs, "set_up", lambda *arguments: None)  # these two are for a process
    monkeypatch.setattr(cli_serve.memory, "prepare", lambda: None)
    app = typer.Typer()
    app.callback()(lambda: None)
    cli_serve.register(app)
    ended = CliRunner().invoke(app, ["serve", "-m", "demo"])
    assert ended.exit_code == 3
    assert 'pip install "transduce[server]"' in ended.output
