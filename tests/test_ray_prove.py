"""The full counts on a Ray cluster of two nodes: 300 recordings, 10 killed workers, a killed driver; speed.

`scripts/prove ray tests/test_ray_prove.py` keeps what they showed in docs/evidence.
"""

import json
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from fakes import write_wav
from ray_support import Nodes, cluster, corpus, expected, failed, kill_workers, lines, stamps, texts, wait_for
from support import read_wav, utterances

from transduce.types import FloatArray

pytestmark = [pytest.mark.ray, pytest.mark.linux, pytest.mark.alone, pytest.mark.prove]

NUM_FILES, NUM_BAD, NUM_KILLS = 300, 10, 10
LEAST_SPEEDUP = 1.6
NUM_TIMED, MOST_SAMPLES = 900, 30 * 16000
"""Recordings of up to 30 s, as many corpora are cut; one pass each."""
NUM_ROUNDS = 4

Record = Callable[[str, object], None]


def test_300_recordings_with_10_bad_ones(tmp_path: Path, record_property: Record) -> None:
    given = corpus(tmp_path, NUM_FILES, NUM_BAD)
    with cluster() as nodes:
        run = nodes.run(given.manifest, tmp_path / "out", "--actors", "2")
    assert run.returncode == 1, run.stderr
    results = texts(tmp_path / "out")
    assert (len(results), len(failed(tmp_path / "out"))) == (NUM_FILES - NUM_BAD, NUM_BAD)
    assert sorted(failed(tmp_path / "out")) == sorted(given.bad)
    assert results == expected(given, tmp_path / "local")
    (row,) = lines(tmp_path / "out" / "runs.jsonl")
    assert (row["finished"], row["failed"], row["machines"]) == (NUM_FILES - NUM_BAD, NUM_BAD, 2)
    record_property("outputs", len(results))
    record_property("failures listed", len(failed(tmp_path / "out")))
    record_property("machines", row["machines"])


@pytest.mark.parametrize("seed", range(3))
def test_10_killed_workers_and_a_killed_driver(seed: int, tmp_path: Path, record_property: Record) -> None:
    """Half of the workers are killed before the driver is, half in the run that goes on."""
    rng = random.Random(seed)
    given = corpus(tmp_path, NUM_FILES, NUM_BAD)
    out = tmp_path / "out"
    thresholds = sorted(rng.sample(range(5, len(given.good) - 60), NUM_KILLS))
    first, second = thresholds[: NUM_KILLS // 2], thresholds[NUM_KILLS // 2 :]
    with cluster(opening_seconds=0.05) as nodes:
        driver = nodes.start(given.manifest, out, "--actors", "2")
        num_killed = kill_workers(nodes, driver, first, out, rng)
        wait_for(out, first[-1] + 5, driver)
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        before = stamps(out)

        driver = nodes.start(given.manifest, out, "--actors", "2")
        num_killed += kill_workers(nodes, driver, [max(at, len(before)) for at in second], out, rng)
        _, message = driver.communicate()
    assert driver.returncode == 1, message
    assert num_killed == NUM_KILLS
    assert stamps(out).items() >= before.items(), "what was finished before is not written again"
    assert sorted(failed(out)) == sorted(given.bad)
    assert texts(out) == expected(given, tmp_path / "local")
    (row,) = lines(out / "runs.jsonl")
    assert row["finished_before"] == len(before)
    assert row["finished_before"] + row["finished"] == NUM_FILES - NUM_BAD
    for name in ("finished_before", "finished", "failed", "repeated_tasks", "workers"):
        record_property(name.replace("_", " "), row[name])
    record_property("workers killed", num_killed)


def test_two_actors_are_at_least_1_6_times_as_fast_as_one(tmp_path: Path, record_property: Record) -> None:
    """One thread each, on the machine's two cores; the median of rounds, each order of the two in turn."""
    manifest = timed_corpus(tmp_path)
    speedups = []
    with cluster() as nodes:
        for turn in range(NUM_ROUNDS):
            seconds = {}
            for num_actors in (1, 2) if turn % 2 == 0 else (2, 1):
                run = timed_run(nodes, manifest, tmp_path / f"out-{turn}-{num_actors}", num_actors)
                record_property(f"times real time, {num_actors} actors, round {turn + 1}, all", run.rtfx)
                seconds[num_actors] = run.steady_seconds
            speedups.append(seconds[1] / seconds[2])
            record_property(f"speedup, round {turn + 1}", round(speedups[-1], 2))
    record_property("speedup", round(median(speedups), 2))
    assert median(speedups) >= LEAST_SPEEDUP


def timed_corpus(folder: Path) -> Path:
    """A manifest that names 40 recordings again and again."""
    waveforms = [read_wav(entry["file"]) for entry in utterances()]
    for first in range(len(waveforms)):
        write_wav(folder / f"{first}.wav", as_many_as_fit(waveforms[first:] + waveforms[:first]))
    manifest = folder / "files.jsonl"
    rows = ({"path": f"{n % len(waveforms)}.wav", "name": f"{n:05}"} for n in range(NUM_TIMED))
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def as_many_as_fit(waveforms: Sequence[FloatArray]) -> FloatArray:
    """The first of them, up to a length that the model takes in one pass."""
    ends = np.cumsum([len(waveform) for waveform in waveforms])
    return np.concatenate(waveforms[: np.searchsorted(ends, MOST_SAMPLES, "right")])


@dataclass(frozen=True)
class Timed:
    """How fast a run was."""

    rtfx: float
    """Of all of it, the start of the actors included."""
    steady_seconds: float
    """From the first tenth of the results to the last, while all actors are at work."""


def timed_run(nodes: Nodes, manifest: Path, out: Path, num_actors: int) -> Timed:
    run = nodes.run(manifest, out, "--actors", str(num_actors), "-q")
    assert run.returncode == 0, run.stderr
    (row,) = lines(out / "runs.jsonl")
    assert (row["finished"], row["workers"]) == (NUM_TIMED, num_actors)
    written = sorted(written_ns for _, written_ns in stamps(out).values())
    steady_ns = written[-NUM_TIMED // 10] - written[NUM_TIMED // 10]
    return Timed(row["rtfx"], steady_ns / 1e9)
