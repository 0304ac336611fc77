"""What the tests of the Ray engine share: a cluster of two nodes, manifests, and ways to end its processes.

Linux only: processes are found in /proc. Workers of the cluster and the drivers are other processes than the
test's. An audit hook, which each worker installs when it starts, stands for what happens in the field: a
recording named `*poison*` ends whoever opens it, and a model's worker may need some time to open each.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import ROOT, data, utterances

NUM_NODES = 2
MOST_SECONDS = 300.0

HOOK = """
import os, sys, time

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".wav"):
        if "poison" in arguments[0]:
            os._exit(1)
        with open("/proc/self/cmdline") as file:
            if "MapBatches(Worker)" in file.read():
                time.sleep(float(os.environ["OPENING_SECONDS"]))

if os.environ.get("RAY_RAYLET_PID"):
    sys.addaudithook(hook)
"""


@dataclass(frozen=True)
class Nodes:
    """A running cluster."""

    address: str
    process: subprocess.Popen[str]
    environment: dict[str, str]

    def workers(self) -> list[int]:
        """The processes that hold a model now."""
        parents = dict(_parents())
        ours = [pid for pid, parent in parents.items() if parents.get(parent) == self.process.pid]
        return [pid for pid in ours if "MapBatches(Worker)" in _command(pid)]

    def start(self, manifest: Path, output: Path, *options: str) -> subprocess.Popen[str]:
        """A driver that is left to run."""
        command = _command_line(manifest, output, "--address", self.address, *options)
        return subprocess.Popen(
            command, env=self.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, manifest: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """A driver that ends."""
        return drive(self.environment, manifest, output, "--address", self.address, *options)


def drive(
    environment: dict[str, str], manifest: Path, output: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """Transcribe a manifest with the demo on a cluster."""
    command = _command_line(manifest, output, *options)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)


def _command_line(manifest: Path, output: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "transduce", "transcribe", "--manifest", str(manifest), "-m", "demo"),
        *("-o", str(output), "--engine", "ray", *options),
    ]


@contextmanager
def cluster(num_nodes: int = NUM_NODES, opening_seconds: float = 0.0) -> Iterator[Nodes]:
    """Nodes of one CPU each in this machine."""
    folder = Path(
        tempfile.mkdtemp(prefix="ray-")
    )  # not tmp_path: names of sockets have 107 characters at most
    (folder / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "src"))),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",  # 15 otherwise: everything else on the machine would come first
        "OPENING_SECONDS": str(opening_seconds),
    }
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(ROOT / "tests" / "ray_cluster.py"), str(folder), str(num_nodes)]
    log = open(folder / "log", "w")  # noqa: SIM115 - closed below
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, f"the cluster did not start: {(folder / 'log').read_text()}"
        yield Nodes(address, process, environment)
    finally:
        process.communicate(timeout=60)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Corpus:
    """Recordings and their manifest."""

    manifest: Path
    good: tuple[str, ...]
    """Names of the recordings that can be read, without extension."""
    bad: tuple[str, ...]


def corpus(folder: Path, num_files: int, num_bad: int) -> Corpus:
    """The bundled utterances in turn, as files of a manifest; damaged ones are spread over it."""
    recordings = [entry["file"] for entry in utterances()]
    good, bad = [], []
    (folder / "in").mkdir(parents=True)
    for number in range(num_files):
        is_bad = number % (num_files // num_bad) == 1 and len(bad) < num_bad if num_bad else False
        path = folder / "in" / f"{number:04}.wav"
        if is_bad:
            path.write_bytes(b"no audio " * (number + 1))
        else:
            path.symlink_to(data(f"audio/{recordings[number % len(recordings)]}"))
        (bad if is_bad else good).append(path.stem)
    manifest = folder / "files.jsonl"
    rows = ({"path": f"in/{name}.wav"} for name in sorted(good + bad))
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Corpus(manifest, tuple(good), tuple(bad))


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def failed(folder: Path) -> dict[str, dict[str, Any]]:
    """The failures of the last run, by name; each name is there once."""
    found = lines(folder / "failures.jsonl")
    by_name = {Path(failure["path"]).stem: failure for failure in found}
    assert len(by_name) == len(found)
    return by_name


def texts(folder: Path) -> dict[str, str]:
    """The content of every result, by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each result is, and when it was written, by name."""
    found = {path.stem: path.stat() for path in folder.glob("*.txt")}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


def expected(corpus: Corpus, folder: Path) -> dict[str, str]:
    """What the local engine makes of a corpus, by name."""
    command = [sys.executable, "-m", "transduce", "transcribe", "--manifest", str(corpus.manifest)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "-m", "demo", "-o", str(folder), "-q"],
        env=environment,
        capture_output=True,
        timeout=MOST_SECONDS,
    )
    return texts(folder)


def wait_for(folder: Path, num_results: int, driver: subprocess.Popen[str]) -> None:
    """Return when so many results are there; the driver must still be at work."""
    end = time.monotonic() + MOST_SECONDS
    while len(list(folder.glob("*.txt"))) < num_results:
        assert driver.poll() is None, f"the driver ended: {driver.communicate()[1]}"
        assert time.monotonic() < end, f"{num_results} results did not come"
        time.sleep(0.02)


def kill_workers(
    nodes: Nodes, driver: subprocess.Popen[str], thresholds: Sequence[int], folder: Path, rng: random.Random
) -> int:
    """Kill a worker, chosen at random, each time that so many results are there; how many were killed."""
    num_killed = 0
    for threshold in thresholds:
        wait_for(folder, threshold, driver)
        while not (workers := nodes.workers()):
            assert driver.poll() is None, f"the driver ended: {driver.communicate()[1]}"
            time.sleep(0.02)
        os.kill(rng.choice(workers), signal.SIGKILL)
        num_killed += 1
    return num_killed


def _parents() -> Iterator[tuple[int, int]]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            yield int(status.parent.name), int(fields[1])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
