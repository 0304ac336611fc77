"""Exported folders: the same answers, every part checked, and neither torch nor onnx needed to run them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_cases import labels, small_spec, small_weights, speech
from support import DEMO, data

from transduce.checkpoints import onnx_layouts
from transduce.errors import (
    CheckpointError,
    DeviceError,
    ResourceError,
    TransduceError,
    UnsupportedModelError,
)
from transduce.onnx import layout
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.export import export
from transduce.tokenizer import Tokenizer
from transduce.transcriber import load_model

PIECES = Tokenizer.from_pieces(["<unk>", "▁a", "b", "▁", "c"], "pieces")
CLIPS = speech(0, 1.3, 0.4, 2.0)


def answers(backend: OnnxBackend) -> list[list[tuple[int, int, int]]]:
    return [labels(hypothesis) for hypothesis in backend.recognize(CLIPS)]


def exported(folder: Path, kind: str = "rnnt", **settings: Any) -> Path:
    spec = small_spec(kind)
    export(spec, small_weights(spec), PIECES, folder, **settings)
    return folder


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["rnnt", "tdt", "ctc"])
def test_the_same_answers_as_from_the_weights(tmp_path: Path, kind: str, precision: str) -> None:
    folder = exported(tmp_path, kind, precision=precision)
    spec = small_spec(kind)
    direct = OnnxBackend.of_weights(spec, small_weights(spec), precision=precision, threads=1)
    loaded, tokenizer = onnx_layouts.load(folder, threads=1)
    assert answers(loaded) == answers(direct)
    assert any(answers(direct))
    assert loaded.spec == spec
    assert tokenizer.pieces == PIECES.pieces
    assert loaded.describe()["precision"] == precision
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "spec.json"]
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)


def test_a_precision_that_the_files_do_not_have_is_an_error(tmp_path: Path) -> None:
    folder = exported(tmp_path, precision="fp16")
    for precision in ("auto", "fp32", "fp16"):
        assert onnx_layouts.load(folder, precision=precision)[0].describe()["precision"] == "fp16"
    with pytest.raises(DeviceError, match=r"'int8' was asked for.* is fp16"):
        onnx_layouts.load(folder, precision="int8")


def test_of_two_heads_the_export_has_one(tmp_path: Path) -> None:
    """Asking it for the other is an error, not an answer by the wrong head."""
    spec = small_spec("tdt")
    hybrid = replace(spec, heads=(spec.head, replace(spec.head, kind="ctc", durations=(0,))))
    export(hybrid, small_weights(spec), PIECES, tmp_path)
    assert onnx_layouts.load(tmp_path, threads=1)[0].spec.heads == (spec.head,)
    with pytest.raises(UnsupportedModelError, match=r"has no ctc head; it has: tdt;.*transduce\[torch\]"):
        load_model(tmp_path, head="ctc")


def test_an_export_that_lists_a_head_it_does_not_have(tmp_path: Path) -> None:
    """As the first version wrote them: it has the one that it was exported with."""
    path = exported(tmp_path, "ctc") / layout.SPEC
    content = json.loads(path.read_text(encoding="utf-8"))
    content["spec"]["heads"].insert(0, content["spec"]["head"] | {"kind": "tdt", "durations": [0, 1, 2]})
    path.write_text(json.dumps(content), encoding="utf-8")
    with load_model(tmp_path) as model:
        assert model.describe()["heads"] == "ctc"
    with pytest.raises(UnsupportedModelError, match="has no tdt head; it has: ctc"):
        load_model(tmp_path, head="tdt")


def test_auto_is_fp32(tmp_path: Path) -> None:
    assert layout.read(exported(tmp_path, precision="auto")).precision == "fp32"


def test_interface(tmp_path: Path) -> None:
    """What the docs promise to users of other languages."""
    graph = onnx.load(exported(tmp_path) / "model.onnx").graph
    assert [value.name for value in graph.input] == ["waveforms", "lengths"]
    assert [value.name for value in graph.output] == ["ids", "frames", "durations", "log_probs", "counts"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        PIECES,
        Tokenizer.from_characters([" ", "а", "ё", '"', "\n"], "characters"),
        Tokenizer.from_sentencepiece(data("models/gigaam/v3_e2e_rnnt_tokenizer.model").read_bytes(), "sp"),
    ],
    ids=["pieces", "characters", "sentencepiece"],
)
def test_tokenizers_come_back_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    spec = small_spec(num_pieces=tokenizer.size)
    export(spec, small_weights(spec), tokenizer, tmp_path)
    _, loaded = onnx_layouts.load(tmp_path, threads=1)
    assert loaded.pieces == tokenizer.pieces
    ids = [*range(tokenizer.size), *range(tokenizer.size)]
    assert loaded.decode(ids) == tokenizer.decode(ids)


# Weights in a file of their own


def with_data(folder: Path) -> Path:
    return exported(folder, largest_inline_bytes=0)


@pytest.mark.posix
def test_weights_beside_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field bug 85: a folder with spaces and Cyrillic, another working directory, a cache of links."""
    folder = with_data(tmp_path / "мои модели" / "м 1")
    assert (folder / "model.onnx.data").stat().st_size > 10 * (folder / "spec.json").stat().st_size
    direct = OnnxBackend.of_weights(small_spec(), small_weights(small_spec()), threads=1)
    monkeypatch.chdir(tmp_path)
    assert answers(onnx_layouts.load(folder, threads=1)[0]) == answers(direct)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        blob = path.rename(tmp_path / "blobs" / f"blob{number}")
        (tmp_path / "links" / path.name).symlink_to(os.path.relpath(blob, tmp_path / "links"))
    assert answers(onnx_layouts.load(tmp_path / "links", threads=1)[0]) == answers(direct)


def test_a_second_export_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    with_data(tmp_path)
    exported(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "spec.json"]


# What can be wrong


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edited(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def break_spec(path: Path, name: str, value: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["spec"]["head"][name] = value
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda f: (f / "model.onnx.data").unlink(),
            CheckpointError,
            "model.onnx.data: this part .* missing",
        ),
        (lambda f: (f / "model.onnx").unlink(), CheckpointError, "model.onnx: this part .* missing"),
        (lambda f: cut(f / "model.onnx"), CheckpointError, "model.onnx: .* cut short"),
        (lambda f: cut(f / "model.onnx.data"), CheckpointError, "model.onnx.data: .* cut short"),
        (lambda f: cut(f / "spec.json"), CheckpointError, "spec.json"),
        (lambda f: (f / "spec.json").write_text("[1]"), CheckpointError, "no JSON object"),
        (lambda f: edited(f / "spec.json", version=2), UnsupportedModelError, "another version"),
        (lambda f: edited(f / "spec.json", format="x"), UnsupportedModelError, "not a spec"),
        (lambda f: edited(f / "spec.json", files={"../x": 1}), CheckpointError, "missing"),
        (lambda f: edited(f / "spec.json", window="8"), CheckpointError, "window"),
        (lambda f: edited(f / "spec.json", tokenizer=None), CheckpointError, "tokenizer"),
        (
            lambda f: edited(f / "spec.json", tokenizer={"kind": "sentencepiece"}),
            CheckpointError,
            "tokenizer",
        ),
        (lambda f: break_spec(f / "spec.json", "kind", "aed"), CheckpointError, "spec.head.kind"),
        (lambda f: break_spec(f / "spec.json", "blank", 1.5), CheckpointError, "spec.head.blank"),
        (lambda f: break_spec(f / "spec.json", "more", 1), CheckpointError, "spec.head"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Any, error: type[TransduceError], message: str) -> None:
    damage(with_data(tmp_path))
    with pytest.raises(error, match=message) as caught:
        onnx_layouts.load(tmp_path, threads=1)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("features.hop_samples", 0, "from 1 to 400000"),
        ("features.hop_samples", -1, "from 1 to 400000"),
        ("features.hop_samples", 31, "from 32 to 400000"),  # 2 ms
        ("features.hop_samples", 10**12, "from 1 to 400000"),
        ("features.sample_rate", 0, "from 1000 to 400000"),
        ("features.sample_rate", -1, "from 1000 to 400000"),
        ("features.sample_rate", 10**12, "from 1000 to 400000"),
        ("features.fft_size", 319, "from 320 to 400000"),
        ("features.preemphasis", float("nan"), "from 0 to 1"),
        ("encoder.subsampling_factor", 0, "from 1 to 64"),
        ("encoder.subsampling_factor", -1, "from 1 to 64"),
        ("encoder.subsampling_factor", 10**12, "from 1 to 64"),
        ("encoder.subsampling_factor", 6, "no power of 2"),
        ("head.num_classes", 1, "from 2 to 1000000"),
        ("head.blank", 6, "from 0 to 5"),
        ("head.max_symbols", 0, "from 1 to 1000"),
        ("head.durations", [], "from 1 to 1000"),
        ("head.durations", [0, -1], "from 0 to 1000"),
        ("max_segment_seconds", 0, "allow at least 0.32 s"),
        ("max_segment_seconds", -1, "from 0 to 86400"),
        ("max_segment_seconds", float("inf"), "from 0 to 86400"),
        ("position_limit_frames", 5, "allow at least 0.32 s"),
    ],
)
def test_a_number_out_of_range_is_named(tmp_path: Path, place: str, value: Any, message: str) -> None:
    path = exported(tmp_path) / layout.SPEC
    content = json.loads(path.read_text(encoding="utf-8"))
    *parts, name = place.split(".")
    part = content["spec"]
    for key in parts:
        part = part[key]
    part[name] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        onnx_layouts.load(tmp_path, threads=1)
    assert str(caught.value).startswith(f"{path}: ")
    assert name in str(caught.value)
    assert message in str(caught.value)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    """36 labels, 64 pieces: every text would be of other letters."""
    shutil.copytree(DEMO.parent / "onnx", tmp_path / "demo")
    other = data("models/gigaam/v3_e2e_rnnt_tokenizer.model").read_bytes()
    (tmp_path / "demo" / "tokenizer.model").write_bytes(other)
    with pytest.raises(CheckpointError, match=r"demo: the tokenizer has 64 pieces, the head 36 labels"):
        load_model(tmp_path / "demo", backend="onnx")


def test_a_graph_that_lies(tmp_path: Path) -> None:
    """The right size, but not a graph."""
    folder = exported(tmp_path)
    size = (folder / "model.onnx").stat().st_size
    (folder / "model.onnx").write_bytes(b"\x08" * size)
    with pytest.raises(CheckpointError, match=r"model\.onnx"):
        onnx_layouts.load(folder, threads=1)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"file.*\(.+\); choose another folder"):
        exported(tmp_path / "file" / "folder")


def test_a_full_disk_leaves_the_old_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in exported(tmp_path).iterdir()}

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ResourceError, match="No space left"):
        exported(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_unknown_precision_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="int4"):
        exported(tmp_path / "folder", precision="int4")
    assert not (tmp_path / "folder").exists()


# Without the libraries that built it

ALONE = """
import sys
for name in ("torch", "onnx"):
    sys.modules[name] = None
import json, pathlib
import numpy as np
from transduce.checkpoints import onnx_layouts
backend, tokenizer = onnx_layouts.load(pathlib.Path(sys.argv[1]), threads=1)
clips = [clip for clip in np.load(sys.argv[2]).values()]
print(json.dumps([h.ids.tolist() for h in backend.recognize(clips)]))
"""


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_onnxruntime_alone_runs_it(tmp_path: Path, precision: str) -> None:
    folder = exported(tmp_path / "model", "tdt", precision=precision)
    np.savez(tmp_path / "clips.npz", *CLIPS)
    command = [sys.executable, "-c", ALONE, str(folder), str(tmp_path / "clips.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spec = small_spec("tdt")
    direct = OnnxBackend.of_weights(spec, small_weights(spec), precision=precision, threads=1)
    assert json.loads(done.stdout) == [h.ids.tolist() for h in direct.recognize(CLIPS)]


def test_spec_files_are_for_people_too(tmp_path: Path) -> None:
    content = json.loads((exported(tmp_path, "tdt") / layout.SPEC).read_text(encoding="utf-8"))
    assert content["spec"]["head"]["durations"] == [0, 1, 2]
    assert content["tokenizer"]["pieces"][1] == "▁a"
