"""`benchmarks/peers.py` gives everybody the same model: its files for onnx-asr say what our weights say."""

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from onnx_cases import labels
from support import ROOT
from test_bench import shrunk

from transduce import bench
from transduce.checkpoints import onnx_layouts
from transduce.synthetic import SIZES
from transduce.transcriber import Choice


def benchmark(name: str) -> ModuleType:
    path = ROOT / "benchmarks" / f"{name}.py"
    found = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclasses look for it
    found.loader.exec_module(module)
    return module


def test_the_files_for_peers_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = benchmark("peers")
    monkeypatch.setitem(SIZES, "gigaam-v3-rnnt", shrunk(SIZES["gigaam-v3-rnnt"]))
    peers.prepare(tmp_path, argparse.Namespace(layers=1, seconds=3.0, clips=3))
    clips = list(np.load(tmp_path / "clips.npy"))
    with (tmp_path / "checkpoint.pickle").open("rb") as file:
        made = peers.pickle.load(file)
    ours = bench.open_model(made, Choice("onnx", threads=1)).backend.recognize(clips)
    theirs, _ = onnx_layouts.load(tmp_path / "upstream", threads=1)
    assert theirs.spec.head.max_symbols == 1
    assert [labels(found) for found in theirs.recognize(clips)] == [labels(found) for found in ours]
    assert all(len(found) for found in ours)
    int8 = bench.open_model(str(tmp_path / "int8-rnnt"), Choice("onnx", threads=1))
    assert int8.backend.describe()["precision"] == "int8"


def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = benchmark("peers")
    missing = argparse.Namespace(peers=tmp_path, threads=1)
    assert peers.Worker.start("onnx-asr", tmp_path, missing) is None
    assert "not installed" in capsys.readouterr().err


def test_a_word_starts_mark_is_written_in_two_ways() -> None:
    assert benchmark("peers").plain(["▁a", "b"]) == [" a", "b"]
