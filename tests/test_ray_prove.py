"""The full counts on a Ray cluster of two nodes: 300 recordings, 10 killed workers, a killed driver; speed.

`scripts/prove ray tests/test_ray_prove.py` keeps what they showed in docs/evidence.
"""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import write_wav
from ray_support import Nodes, cluster, corpus, expected, failed, kill_workers, lines, stamps, texts, wait_for
from support import read_wav, utterances

pytestmark = [pytest.mark.ray, pytest.mark.linux, pytest.mark.alone, pytest.mark.prove]

NUM_FILES, NUM_BAD, NUM_KILLS = 300, 10, 10
LEAST_SPEEDUP = 1.6
NUM_TIMED, UTTERANCES_EACH = 1500, 8
"""Recordings of about 28 s, as many corpora are cut; one pass each."""
NUM_ROUNDS = 2

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
    """One thread each, on the machine's two cores; best of alternating rounds, from actor start to end."""
    manifest = timed_corpus(tmp_path)
    speeds: dict[int, float] = {}
    with cluster() as nodes:
        for turn in range(NUM_ROUNDS):
            for num_actors in (1, 2):
                speed = rtfx(nodes, manifest, tmp_path / f"out-{turn}-{num_actors}", num_actors)
                record_property(f"times real time, {num_actors} actors, round {turn + 1}", speed)
                speeds[num_actors] = max(speed, speeds.get(num_actors, 0.0))
    speedup = speeds[2] / speeds[1]
    record_property("speedup", round(speedup, 2))
    assert speedup >= LEAST_SPEEDUP


def timed_corpus(folder: Path) -> Path:
    """A manifest that names 40 recordings again and again."""
    waveforms = [read_wav(entry["file"]) for entry in utterances()]
    for first in range(len(waveforms)):
        turned = waveforms[first:] + waveforms[:first]
        write_wav(folder / f"{first}.wav", np.concatenate(turned[:UTTERANCES_EACH]))
    manifest = folder / "files.jsonl"
    rows = ({"path": f"{n % len(waveforms)}.wav", "name": f"{n:05}"} for n in range(NUM_TIMED))
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def rtfx(nodes: Nodes, manifest: Path, out: Path, num_actors: int) -> float:
    run = nodes.run(manifest, out, "--actors", str(num_actors), "-q")
    assert run.returncode == 0, run.stderr
    (row,) = lines(out / "runs.jsonl")
    assert (row["finished"], row["workers"]) == (NUM_TIMED, num_actors)
    return float(row["rtfx"])
