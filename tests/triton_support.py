"""A real Triton for tests: the server of `scripts/make_triton_env`, and a client in a process of its own.

`triton` runs a server over a model repository; `Client` sends it requests and hides nothing: the texts of
outputs, or the status and message of an error. The server's processes can be measured.
"""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from support import ROOT, TRITON_ENV, TRITON_NUMPY2_ENV

__all__ = ["OUTPUTS", "Answer", "Client", "Server", "files", "samples", "triton", "write_repository"]

OUTPUTS = ("TEXT", "WORDS", "SEGMENTS", "TRANSCRIPT")
START_SECONDS = 90.0
TIMEOUT_SECONDS = 300.0

Protocol = Literal["http", "grpc", "stream"]
Inputs = Mapping[str, Mapping[str, Any]]


# Inputs


def files(*contents: bytes | Path) -> Inputs:
    """AUDIO with a row for each file, given by its content or (all of them) by path."""
    shape = [len(contents), 1]
    if all(isinstance(content, Path) for content in contents):
        return {"AUDIO": {"dtype": "BYTES", "shape": shape, "paths": [str(path) for path in contents]}}
    data = [base64.b64encode(content).decode() for content in contents if isinstance(content, bytes)]
    return {"AUDIO": {"dtype": "BYTES", "shape": shape, "data": data}}


def samples(
    waveforms: npt.ArrayLike, rate: int | None = None, num_samples: Sequence[int] | None = None
) -> Inputs:
    """SAMPLES `[rows, n]`, and what goes with them."""
    rows = np.atleast_2d(np.asarray(waveforms, np.float32))
    inputs = {"SAMPLES": _tensor("FP32", rows)}
    if rate is not None:
        inputs["SAMPLE_RATE"] = _tensor("INT32", np.full((len(rows), 1), rate, np.int32))
    if num_samples is not None:
        inputs["NUM_SAMPLES"] = _tensor("INT32", np.array(num_samples, np.int32)[:, None])
    return inputs


def _tensor(dtype: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": dtype, "shape": list(array.shape), "data": data}


# The server


def write_repository(folder: Path, *options: str, model: str = "demo") -> Path:
    """Run `transduce triton` as a user does."""
    command = [sys.executable, "-m", "transduce", "triton", model, str(folder), *options]
    run = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return folder


def _prefix(port: int) -> str:
    """What the names of a server's shared memory begin with."""
    return f"triton-test-{port}-"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class Server:
    """A tritonserver that runs."""

    process: "subprocess.Popen[bytes]"
    http_port: int
    grpc_port: int
    log: Path

    def url(self, protocol: Protocol) -> str:
        return f"127.0.0.1:{self.http_port if protocol == 'http' else self.grpc_port}"

    def post(self, path: str) -> str:
        """What a request without inputs is answered; HTTPError for an error."""
        request = urllib.request.Request(f"http://{self.url('http')}/{path}", b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return str(answer.read(), "utf-8")

    def index(self) -> dict[str, Any]:
        """Each model's entry in the repository index: its "state" and, if it failed, the "reason"."""
        return {model["name"]: model for model in json.loads(self.post("v2/repository/index"))}

    def load(self, model: str = "transduce") -> None:
        self.post(f"v2/repository/models/{model}/load")

    def unload(self, model: str = "transduce") -> None:
        self.post(f"v2/repository/models/{model}/unload")

    def stubs(self) -> dict[int, str]:
        """The processes of the Python backend: process id -> model."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().split(b"\0")
                parent = re.search(r"^PPid:\s+(\d+)", (path / "status").read_text(), re.MULTILINE)
            except OSError:
                continue  # it has ended
            if (
                command[0].endswith(b"triton_python_backend_stub")
                and parent
                and int(parent[1]) == self.process.pid
            ):
                found[int(path.name)] = Path(command[1].decode()).parents[1].name
        return found

    def memory_bytes(self, pid: int | None = None, name: str = "VmRSS") -> int:
        """A line of a process's status; the server's own if none is given."""
        status = Path(f"/proc/{pid or self.process.pid}/status").read_text(encoding="ascii")
        (kilobytes,) = re.findall(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(kilobytes) * 1024

    def shared_memory(self) -> list[str]:
        """The regions in /dev/shm of the server's Python backend."""
        return [path.name for path in Path("/dev/shm").glob(f"{_prefix(self.http_port)}*")]

    def num_threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def num_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def _environment(folder: Path) -> dict[str, str]:
    query = (
        "import sysconfig; print(sysconfig.get_config_var('LIBDIR')); print(sysconfig.get_path('purelib'))"
    )
    python = TRITON_ENV / "bin" / "python"
    run = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True)
    libraries, packages = run.stdout.split()
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "OMP_NUM_THREADS") if name in os.environ}
    return kept | {
        "LD_LIBRARY_PATH": f"{libraries}:{packages}/nvidia_pytriton.libs",
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "TRITONSERVER": f"{packages}/pytriton/tritonserver/bin/tritonserver",
    }


@contextmanager
def triton(repository: Path, *options: str, numpy2: bool = False) -> Iterator[Server]:
    """A server over a repository, all of whose models it tries to load; ended with SIGTERM."""
    environment = _environment(TRITON_NUMPY2_ENV if numpy2 else TRITON_ENV)
    http_port, grpc_port = _free_ports(2)
    command = [
        environment["TRITONSERVER"],
        f"--model-repository={repository}",
        f"--backend-directory={TRITON_ENV / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={http_port}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc_port}",
        f"--backend-config=python,shm-region-prefix-name={_prefix(http_port)}",
        "--allow-metrics=false",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--exit-on-error=false",
        *options,
    ]
    log = repository.parent / f"triton-{http_port}.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        server = Server(process, http_port, grpc_port, log)
        try:
            _await_start(server)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def _await_start(server: Server) -> None:
    """Until it listens, which it does when each model has been loaded or has failed."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            server.index()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(server.log.read_text(encoding="utf-8", errors="replace"))


# The client


@dataclass(frozen=True)
class Answer:
    """What came back."""

    outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    responses: Sequence[Mapping[str, Any]] = ()
    """Those of a stream, outputs with their "seconds"."""
    status: str | None = None
    """Of an error: HTTP's number, or gRPC's name."""
    message: str = ""
    wall_seconds: float = 0.0

    @property
    def text(self) -> str:
        (text,) = self.outputs["TEXT"]
        return text

    def json(self, name: str) -> Any:
        (text,) = self.outputs[name]
        return json.loads(text)


class Client:
    """Sends requests through one worker process; any number may be under way."""

    def __init__(self, server: Server) -> None:
        self._server = server
        command = [TRITON_ENV / "bin" / "python", ROOT / "tests" / "triton_worker.py"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pending: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._num_sent = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._reader.join()
        self._process.wait(60)
        self._process.stdout.close()

    def send(
        self,
        inputs: Inputs,
        protocol: Protocol = "http",
        *,
        model: str = "transduce",
        outputs: Sequence[str] = OUTPUTS,
        cancel_seconds: float | None = None,
    ) -> "Future[Answer]":
        """Send a request and do not wait."""
        answer: Future[Answer] = Future()
        job = {"protocol": protocol, "url": self._server.url(protocol), "model": model, "inputs": inputs}
        job |= {"outputs": list(outputs)}
        if cancel_seconds is not None:
            job["cancel_seconds"] = cancel_seconds
        assert self._process.stdin is not None
        with self._lock:
            job["id"] = self._num_sent
            self._pending[self._num_sent] = answer
            self._num_sent += 1
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        return answer

    def ask(self, inputs: Inputs, protocol: Protocol = "http", *, model: str = "transduce") -> Answer:
        """Send a request and wait for its answer."""
        return self.send(inputs, protocol, model=model).result(TIMEOUT_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            error = reply.get("error", {"status": None, "message": ""})
            self._pending.pop(reply["id"]).set_result(
                Answer(
                    reply.get("outputs", {}),
                    reply.get("responses", ()),
                    error["status"],
                    error["message"],
                    reply["wall_seconds"],
                )
            )
