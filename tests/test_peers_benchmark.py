"""`benchmarks/peers.py` gives everybody the same model: the files for its peers say what our weights say."""

import argparse
import importlib.util
import json
import sys
import wave
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from onnx_cases import labels
from support import BUNDLED, ROOT
from test_bench import shrunk

from transduce import bench, synthetic
from transduce.checkpoints import Checkpoint, gigaam, onnx_layouts
from transduce.checkpoints.state import StateDict
from transduce.synthetic import SIZES
from transduce.transcriber import Choice
from transduce.types import FloatArray

UTTERANCE = BUNDLED / "audio" / "u00.wav"


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
    asked = argparse.Namespace(layers=1, seconds=3.0, clips=3, models=None, ways=["transduce:onnx:int8:rnnt"])
    peers.prepare(tmp_path, asked)
    clips = list(np.load(tmp_path / "clips.npz").values())
    with (tmp_path / "checkpoint.pickle").open("rb") as file:
        made = peers.pickle.load(file)
    ours = bench.open_model(made, Choice("onnx", threads=1)).backend.recognize(clips)
    theirs, _ = onnx_layouts.load(tmp_path / "onnx-asr", threads=1)
    assert theirs.spec.head.max_symbols == 1
    assert [labels(found) for found in theirs.recognize(clips)] == [labels(found) for found in ours]
    assert all(len(found) for found in ours)
    assert_sherpas_say_the_same(tmp_path / "sherpa", made, clips)
    int8 = bench.open_model(str(tmp_path / "int8-rnnt"), Choice("onnx", threads=1))
    assert int8.backend.describe()["precision"] == "int8"


def test_upstreams_state_dict_reads_as_the_same_model() -> None:
    peers = benchmark("peers")
    made = synthetic.checkpoint(shrunk(SIZES["gigaam-v3-rnnt"]))
    state = StateDict(dict(peers.upstream_weights(made)), "upstream")
    read = gigaam.understand("v3_rnnt", peers.upstream_config(made), made.tokenizer, state)
    assert read.spec.encoder == made.spec.encoder
    parts = ("encoder.", "predictor.", "joint.")
    wanted = {name: array for name, array in made.weights.items() if name.startswith(parts)}
    assert {name for name in read.weights if name.startswith(parts)} == set(wanted)
    assert all(np.array_equal(read.weights[name], array) for name, array in wanted.items())


def assert_sherpas_say_the_same(folder: Path, made: Checkpoint, clips: list[FloatArray]) -> None:
    """Its layout tells no limit of labels a frame, so ours takes the usual one too."""
    head = replace(made.spec.head, max_symbols=onnx_layouts.DEFAULT_MAX_SYMBOLS)
    unlimited = replace(made, spec=replace(made.spec, head=head))
    ours = bench.open_model(unlimited, Choice("onnx", threads=1)).backend.recognize(clips)
    theirs, tokenizer = onnx_layouts.load(folder, threads=1)
    assert tokenizer.pieces[-1] == "<blk>"
    assert [labels(found) for found in theirs.recognize(clips)] == [labels(found) for found in ours]
    assert all(len(found) for found in ours)


def test_trained_models_are_told_apart_by_their_layout(tmp_path: Path) -> None:
    peers = benchmark("peers")
    sherpa, onnx_asr = tmp_path / "a", tmp_path / "b"
    sherpa.mkdir()
    (sherpa / "tokens.txt").touch()
    peers.prepare_trained(tmp_path, [tmp_path / "a.nemo", sherpa, onnx_asr], [str(UTTERANCE)])
    paths = json.loads((tmp_path / "models.json").read_text())
    assert {way: Path(path).name for way, path in paths.items()} == {
        "transduce": "a.nemo",
        "nemo": "a.nemo",
        "sherpa-onnx": "a",
        "onnx-asr": "b",
    }
    with wave.open(str(UTTERANCE)) as file:
        assert len(np.load(tmp_path / "clips.npz")["arr_0"]) == file.getnframes()


def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peers = benchmark("peers")
    missing = argparse.Namespace(peers=tmp_path, threads=1)
    assert peers.Worker.start("onnx-asr", tmp_path, missing) is None
    assert "not installed" in capsys.readouterr().err


def test_a_word_starts_mark_is_written_in_two_ways() -> None:
    assert benchmark("peers").plain(["▁a", "b"]) == [" a", "b"]
