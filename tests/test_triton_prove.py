"""The load that was reported, on a real Triton: recordings of minutes, four at a time, and flat memory.

"Right" means the words and times that the same model gives for the same file without Triton. Requests go by
HTTP and by gRPC in turn. CI runs shorter ones (`PLAN`); `scripts/prove triton tests/test_triton_prove.py` the
full counts, of `long_5min.flac` repeated to 10 to 20 minutes.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from support import PROVE, data, param, read_wav, utterances
from triton_support import Answer, Client, Server, files, triton, write_repository

from transduce import Transcript
from transduce.transcriber import load_model

pytestmark = [pytest.mark.triton, pytest.mark.linux, pytest.mark.alone]

Record = Callable[[str, object], None]

RATE = 16000
MEGABYTE = 2**20
REST_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """How much the load does."""

    num_requests: int
    num_clients: int
    minutes: tuple[float, ...]
    """Lengths of the recordings, taken in turn."""
    num_warm: int
    """Requests after which memory is measured for the first time."""
    growth_bytes: float
    """Allowed from there to the end, if 1 % a hundred requests is more."""

    def minutes_of(self, number: int) -> float:
        """Of a request. The first are the longest, all clients' at once: Triton's shared memory, a part of
        the stub's, grows to what waits together, and stays.
        """
        if number < 2 * self.num_clients:
            return max(self.minutes)
        return self.minutes[number % len(self.minutes)]


PLAN = (
    Plan(133, 4, (10.4, 20.0, 12.5, 17.5, 15.0, 11.0), 30, 8 * MEGABYTE * 103 / 100)
    if PROVE
    else Plan(500, 4, (1.0, 2.0, 1.5), 400, 8 * MEGABYTE)  # short ones reach their full size later
)


def speech() -> npt.NDArray[np.float32]:
    """What is repeated: the five minutes, or the bundled utterances one after the other."""
    if not PROVE:
        return np.concatenate([read_wav(utterance["file"]) for utterance in utterances()])
    samples, rate = soundfile.read(data("audio/long_5min.flac"), dtype="float32")
    assert rate == RATE
    return samples  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """A flac file of each length."""
    folder, spoken = tmp_path_factory.mktemp("recordings"), speech()
    paths = {minutes: folder / f"{minutes:g}.flac" for minutes in PLAN.minutes}
    for minutes, path in paths.items():
        soundfile.write(path, np.resize(spoken, int(minutes * 60 * RATE)), RATE)
    return paths


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("load") / "repository")


@pytest.fixture(scope="module")
def expected(repository: Path, recordings: dict[float, Path]) -> dict[float, Transcript]:
    """Without Triton."""
    with load_model(repository / "transduce" / "1" / "model") as model:
        return {minutes: model.transcribe(path) for minutes, path in recordings.items()}


def words(segments: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(w["word"], w["start"], w["end"]) for segment in segments for w in segment["words"]]


def is_right(answer: Answer, wanted: Transcript) -> bool:
    """The same words at the same times."""
    return answer.status is None and words(answer.json("SEGMENTS")) == words(wanted.to_dict()["segments"])


@dataclass
class Load:
    """The clients, and what went wrong."""

    server: Server
    client: Client
    recordings: dict[float, Path]
    expected: dict[float, Transcript]

    def run(self, numbers: range) -> list[str]:
        """Send requests, so many at a time; those that were not right."""
        with ThreadPoolExecutor(PLAN.num_clients) as threads:
            errors = [error for error in threads.map(self._request, numbers) if error]
        time.sleep(REST_SECONDS)
        return errors

    def _request(self, number: int) -> str | None:
        minutes = PLAN.minutes_of(number)
        protocol = ("http", "grpc")[number // len(PLAN.minutes) % 2]
        answer = self.client.send(files(self.recordings[minutes]), protocol).result(3600.0)
        if is_right(answer, self.expected[minutes]):
            return None
        return f"request {number}: {answer.status} {answer.message} {str(answer.outputs)[:200]}"


def described(server: Server, pid: int) -> str:
    """A process's memory, and of what kinds it is."""
    names = ("VmRSS", "RssAnon", "RssShmem", "VmHWM")
    return ", ".join(f"{name} {server.memory_bytes(pid, name) / MEGABYTE:.1f}" for name in names) + " MiB"


@pytest.mark.parametrize("source", [param("audio/long_5min.flac") if PROVE else "the bundled utterances"])
def test_the_stub_process_stays_at_its_size(
    repository: Path,
    recordings: dict[float, Path],
    expected: dict[float, Transcript],
    record_property: Record,
    source: str,
) -> None:
    with triton(repository) as server, Client(server) as client:
        (pid,) = server.stubs()
        load = Load(server, client, recordings, expected)
        record_property("memory when loaded", described(server, pid))
        started = time.monotonic()
        errors = load.run(range(PLAN.num_warm))
        before, server_before = server.memory_bytes(pid), server.memory_bytes()
        record_property(f"after {PLAN.num_warm} requests", described(server, pid))
        errors += load.run(range(PLAN.num_warm, PLAN.num_requests))
        seconds = time.monotonic() - started
        after, server_after = server.memory_bytes(pid), server.memory_bytes()
        record_property(f"after {PLAN.num_requests} requests", described(server, pid))
        record_property(
            "tritonserver itself", f"{server_before / MEGABYTE:.1f} -> {server_after / MEGABYTE:.1f} MiB"
        )
        hours = sum(map(PLAN.minutes_of, range(PLAN.num_requests))) / 60
        speed = hours * 3600 / seconds
        record_property("audio", f"{hours:.1f} h in {seconds:.0f} s, {speed:.0f} times real time")
        record_property("right answers", f"{PLAN.num_requests - len(errors)} of {PLAN.num_requests}")
        record_property("growth", f"{(after - before) / MEGABYTE:.2f} MiB")
        assert errors == []
        assert list(server.stubs()) == [pid]
        share = (PLAN.num_requests - PLAN.num_warm) / 100
        assert after - before <= max(0.01 * before * share, PLAN.growth_bytes)
