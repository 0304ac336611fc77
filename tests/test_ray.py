"""The pipeline on a Ray cluster of two nodes in this machine: nothing is lost, nothing is doubled.

The full counts are in test_ray_prove.py.
"""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_support import (
    Nodes,
    cluster,
    corpus,
    drive,
    expected,
    failed,
    kill_workers,
    lines,
    stamps,
    texts,
    wait_for,
)

from transduce.cluster.worker import MOST_ATTEMPTS

pytestmark = [pytest.mark.ray, pytest.mark.linux, pytest.mark.alone]  # one cluster, one test at a time on it


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster(opening_seconds=0.1) as started:
        yield started


def test_a_manifest_on_two_nodes(nodes: Nodes, tmp_path: Path) -> None:
    given = corpus(tmp_path, 60, 4)
    unusable = nodes.run(given.manifest, tmp_path / "out", "-m", "missing.nemo")
    assert unusable.returncode == 3
    assert "error: missing.nemo" in unusable.stderr
    assert not (tmp_path / "out").exists(), "nothing is tried with a model that no machine can load"

    run = nodes.run(given.manifest, tmp_path / "out", "--actors", "2", "-f", "txt,json")
    assert run.returncode == 1, run.stderr
    results = texts(tmp_path / "out")
    assert sorted(results) == sorted(given.good)
    assert results == expected(given, tmp_path / "local")
    for name in given.good:
        content = json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))
        assert (content["text"], content["source"]) == (
            results[name].strip(),
            str(tmp_path / "in" / f"{name}.wav"),
        )

    failures = failed(tmp_path / "out")
    assert sorted(failures) == sorted(given.bad)
    assert {failure["code"] for failure in failures.values()} == {"audio"}
    assert all(failure["path"] in failure["message"] for failure in failures.values())
    (record,) = lines(tmp_path / "out" / "runs.jsonl")
    counts = {"files": 60, "finished": 56, "failed": 4, "finished_before": 0, "complete": True}
    assert counts.items() <= record.items()
    assert (record["machines"], record["workers"], record["repeated_tasks"]) == (2, 2, 0)
    assert record["rtfx"] == pytest.approx(record["audio_hours"] * 3600 / record["wall_seconds"], rel=0.01)
    *errors, last = run.stderr.splitlines()
    assert sorted(errors) == sorted(f"error: {failure['message']} [audio]" for failure in failures.values())
    assert last.startswith("finished 56 of 60, failed 4, see ")

    before = stamps(tmp_path / "out")
    again = nodes.run(given.manifest, tmp_path / "out", "-f", "txt,json")
    assert again.returncode == 1
    assert stamps(tmp_path / "out") == before, "a run after it leaves what is finished as it is"
    assert "finished before, left as they are: 56 of 60" in again.stderr
    assert failed(tmp_path / "out") == failures
    assert [entry["finished"] for entry in lines(tmp_path / "out" / "runs.jsonl")] == [56, 0]


def test_what_is_killed_or_interrupted_loses_and_doubles_nothing(nodes: Nodes, tmp_path: Path) -> None:
    """Three workers and a driver are killed; the driver of the next run is interrupted; the third ends."""
    rng = random.Random(12)
    given = corpus(tmp_path, 80, 3)
    out = tmp_path / "out"
    driver = nodes.start(given.manifest, out, "--actors", "2")
    assert kill_workers(nodes, driver, [5, 15, 25], out, rng) == 3
    wait_for(out, 35, driver)
    driver.kill()
    driver.communicate()
    before = stamps(out)

    driver = nodes.start(given.manifest, out, "--actors", "2")
    wait_for(out, len(before) + 10, driver)
    driver.send_signal(signal.SIGINT)
    driver.communicate()
    assert driver.returncode == 130
    between = stamps(out)
    assert between.items() >= before.items(), "what was finished is not written again"

    run = nodes.run(given.manifest, out)
    assert run.returncode == 1, run.stderr
    assert stamps(out).items() >= between.items()
    assert sorted(texts(out)) == sorted(given.good)
    assert texts(out) == expected(given, tmp_path / "local")
    assert sorted(failed(out)) == sorted(given.bad)
    interrupted, last = lines(out / "runs.jsonl")
    assert (interrupted["complete"], last["complete"]) == (False, True)
    assert [interrupted["finished_before"], last["finished_before"]] == [len(before), len(between)]
    assert last["finished"] == len(given.good) - len(between)


def test_a_recording_that_ends_its_workers_fails_alone(nodes: Nodes, tmp_path: Path) -> None:
    given = corpus(tmp_path, 12, 0)
    poison = given.manifest.parent / "in" / "poison.wav"
    poison.symlink_to(given.manifest.parent / "in" / "0000.wav")
    with given.manifest.open("a") as file:
        file.write('{"path": "in/poison.wav"}\n')
    run = nodes.run(given.manifest, tmp_path / "out")
    assert run.returncode == 1, run.stderr
    assert sorted(texts(tmp_path / "out")) == sorted(given.good)
    (failure,) = lines(tmp_path / "out" / "failures.jsonl")
    assert (failure["path"], failure["code"]) == (str(poison), "resource")
    assert f"ended {MOST_ATTEMPTS} workers" in failure["message"]


def test_a_cluster_of_this_machine_and_recordings_at_addresses(nodes: Nodes, tmp_path: Path) -> None:
    """Without an address Ray is started here, and ends with the run."""
    given = corpus(tmp_path, 3, 0)
    rows = ({"path": f"file://{given.manifest.parent}/in/{name}.wav"} for name in given.good)
    given.manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = drive(nodes.environment, given.manifest, tmp_path / "out", "--actors", "1:1")
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    assert texts(tmp_path / "out") == expected(given, tmp_path / "local")
    asking = drive(nodes.environment, given.manifest, tmp_path / "no", "--gpus-per-actor", "64")
    assert asking.returncode == 3
    assert "an actor needs 1 CPU and 64 GPU, which this machine does not have" in asking.stderr
    assert not (tmp_path / "no").exists()
