"""The decode benchmarks run, and what they compare with decodes rightly.

Expected labels of the baselines come from upstream's vectors; times are not judged here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from heads import vectors
from support import ROOT

BENCHMARKS = ROOT / "benchmarks"


def run(code: str) -> str:
    """Python with `benchmarks` and the package on its path: their module names are tests' names too."""
    paths = os.pathsep.join((str(BENCHMARKS), str(ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *code.split()], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_decode_checks_and_measures() -> None:
    options = "--heads gigaam-34 --batches 2 --frames 60 --windows 1 8 --rounds 1"
    output = run(f"{BENCHMARKS / 'decode.py'} {options}")
    (result,) = json.loads(output.splitlines()[-1])["results"]
    assert 0.2 < result["labels_per_frame"] < 0.5
    assert set(result["lanes"]) == {"1", "8"}
    assert all(value > 0 for value in (*result["lanes"].values(), result["loop"], result["floor"]))


def test_gpu_runs_dry_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    run(f"{BENCHMARKS / 'gpu.py'} --dry --out {out}")
    results = json.loads(out.read_text(encoding="utf-8"))
    assert set(results) == {"machine", "choice", "equality", "nodes", "decode (ms)", "end to end (ms)"}
    assert not [row for rows in results.values() for row in rows if "failed" in row]
    assert {row["equal"] for row in results["equality"]} == {True}
    assert all(row["rnnt"] > 0 < row["ctc"] for row in results["end to end (ms)"])


@pytest.mark.parametrize("name", ["PlainLoop", "LabelLooping"])
def test_baselines_decode_upstream_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import baselines

    for vector in vectors()[::2]:
        decode = getattr(baselines, name)(vector.weights, vector.spec, torch.device("cpu"))
        got = decode(torch.from_numpy(vector.encoded), torch.from_numpy(vector.lengths))
        assert got == [answer["ids"] for answer in vector.answers]
