"""Other tools' exports: upstream's answers from each layout, and files that differ from the examples."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases import labels
from onnxruntime.quantization import QuantType, quantize_dynamic
from support import data, golden, num_cases, param, read_wav, utterances

from transduce.checkpoints import onnx_files, onnx_layouts
from transduce.errors import CheckpointError, DeviceError, TransduceError, UnsupportedModelError
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.foreign import ForeignModel
from transduce.onnx.inline import Facts, Parts, facts, fit, head_of
from transduce.types import HeadSpec

LAYOUTS = {
    "gigaam-v2_rnnt": "gigaam-v2_rnnt",
    "gigaam-v3_e2e_rnnt": "gigaam-v3_e2e_rnnt",
    "gigaam-v3_e2e_ctc": "gigaam-v3_e2e_ctc",
    "nemo-hybrid-onnx-asr": "nemo-hybrid",
    "nemo-hybrid-sherpa-onnx": "nemo-hybrid",
    "nemo-rnnt-onnx-asr": "nemo-rnnt",
    "nemo-ctc-onnx-asr": "nemo-ctc",
}
"""Folders by the upstream exporters, and whose goldens they must reproduce."""

EVERY = [param(name, f"models/onnx/{name}", f"golden/{of}.json") for name, of in LAYOUTS.items()]
GIGAAM = "gigaam-v3_e2e_rnnt"


def folder_of(name: str) -> Path:
    return data(f"models/onnx/{name}")


def load(path: Path, **settings: Any) -> OnnxBackend:
    return onnx_layouts.load(path, device="cpu", threads=1, **settings)[0]


def differences(backend: OnnxBackend, of: str, size: int, count: int = 40) -> list[int]:
    """Utterances whose ids, frames or durations are not upstream's."""
    waveforms = [read_wav(utterance["file"]) for utterance in utterances()[:count]]
    batches = [waveforms[start : start + size] for start in range(0, count, size)]
    found = [hypothesis for batch in batches for hypothesis in backend.recognize(batch)]
    answers = golden(of)["utterances"][:count]
    return [i for i, (ours, theirs) in enumerate(zip(found, answers, strict=True)) if not equal(ours, theirs)]


def equal(ours: Any, theirs: dict[str, Any]) -> bool:
    durations = theirs.get("durations", ours.durations.tolist())
    return labels(ours) == list(zip(theirs["ids"], theirs["frames"], durations, strict=False))


# The layouts as upstream writes them


@pytest.mark.parametrize("window", [1, 4, 8])
@pytest.mark.parametrize("name", EVERY)
def test_ids_frames_and_durations_are_upstreams(name: str, window: int) -> None:
    backend = load(folder_of(name), window=window)
    assert [differences(backend, LAYOUTS[name], size) for size in (1, 8)] == [[], []]


@pytest.mark.parametrize("name", EVERY)
def test_text_is_upstreams(name: str) -> None:
    backend, tokenizer = onnx_layouts.load(folder_of(name), threads=1)
    found = backend.recognize([read_wav(utterance["file"]) for utterance in utterances()[:8]])
    texts = [answer["text"].strip() for answer in golden(LAYOUTS[name])["utterances"][:8]]
    assert [tokenizer.decode(hypothesis.ids) for hypothesis in found] == texts


@pytest.mark.parametrize("name", EVERY)
def test_what_the_files_tell(name: str) -> None:
    spec = load(folder_of(name)).spec
    assert spec.position_limit_frames == 5000
    assert spec.name.startswith(("v2_", "v3_", "nemo-"))
    assert spec.head.max_symbols == 10
    assert spec.head.kind == next(
        kind for kind in ("ctc", "tdt", "rnnt") if kind in name.replace("hybrid", "tdt")
    )
    assert spec.head.durations == ((0, 1, 2, 3, 4) if spec.head.kind == "tdt" else (0,))
    assert spec.frame_samples == (640 if name.startswith("gigaam") else 1280)


@pytest.mark.parametrize("name", [p for p in EVERY if "ctc" not in p.id])
def test_what_the_joint_does_to_frames_alone_is_taken_out_of_the_loop(name: str) -> None:
    opened = parts(folder_of(name))
    spec, _, _ = onnx_layouts.describe(onnx_files.find(folder_of(name)), facts(opened))
    scorer = head_of(spec, opened).scorer  # type: ignore[attr-defined]
    assert scorer.boundary is not None
    inside = {node.op_type: 0 for node in scorer.model.nodes}
    for node in scorer.model._behind(
        [scorer.logits], {scorer.boundary, *(p.name for p in scorer.model.inputs)}
    )[0]:
        inside[node.op_type] += 1
    assert inside["MatMul"] == 2  # of the predictor's output, and to the logits
    assert inside.get("LogSoftmax", 0) == 0


def parts(folder: Path) -> Parts:
    files = onnx_files.find(folder)
    return Parts.open(files.encoder, files.decoder, files.joint)


# Files that differ from the examples


@pytest.fixture
def gigaam(tmp_path: Path) -> Path:
    """A copy of GigaAM's export that a test may change."""
    folder = tmp_path / "copy"
    shutil.copytree(folder_of(GIGAAM), folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def changed(folder: Path, part: str, change: Callable[[Any], None]) -> None:
    path = folder / f"v3_e2e_rnnt_{part}.onnx"
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def rename(graph: Any, names: dict[str, str]) -> None:
    """Give values other names throughout."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)


def test_names_do_not_matter(gigaam: Path) -> None:
    """Exports of 2025 call the states h.1 and c.1; and names of the three files may clash with each other."""
    changed(
        gigaam, "decoder", lambda g: rename(g, {"hi": "h.1", "ci": "c.1", "ho": "h", "co": "c", "x": "enc"})
    )
    changed(gigaam, "joint", lambda g: rename(g, {"enc": "x", "dec": "h.1", "joint": "encoded"}))
    changed(gigaam, "encoder", lambda g: rename(g, {"audio_signal": "waveforms", "length": "ids"}))
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []


def labels_as_int32(graph: Any) -> None:
    """As sherpa-onnx exports GigaAM: int32 labels, a length beside them that nothing uses."""
    graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    graph.input.insert(1, helper.make_tensor_value_info("unused_x_len", TensorProto.INT32, ["batch"]))
    graph.node.insert(0, helper.make_node("Cast", ["x"], ["x64"], to=TensorProto.INT64))
    graph.node[1].input[1] = "x64"
    graph.output.insert(1, helper.make_tensor_value_info("len", TensorProto.INT32, ["batch"]))
    graph.node.append(helper.make_node("Identity", ["unused_x_len"], ["len"]))


def test_labels_may_be_int32(gigaam: Path) -> None:
    changed(gigaam, "decoder", labels_as_int32)
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []


def declare_one(graph: Any) -> None:
    """Declare every size that may vary as 1."""
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = 1


def test_declared_shapes_may_be_narrower_than_the_nodes(gigaam: Path) -> None:
    for part in ("decoder", "joint"):
        changed(gigaam, part, declare_one)
    backend = load(gigaam)
    assert backend._lanes is None
    assert "window of 8" in backend.describe()["decoder"]
    assert differences(backend, GIGAAM, 8, count=16) == []


def fix_shape(value: str, shape: list[int]) -> Callable[[Any], None]:
    """Put a Reshape to constant sizes behind a value, as a traced model has it."""

    def change(graph: Any) -> None:
        index = next(i for i, node in enumerate(graph.node) if value in node.output)
        for node in graph.node:
            node.input[:] = [f"{value}.fixed" if name == value else name for name in node.input]
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{value}.shape"))
        node = helper.make_node("Reshape", [value, f"{value}.shape"], [f"{value}.fixed"])
        graph.node.insert(index + 1, node)

    return change


def test_a_decoder_for_one_lane_gets_one_at_a_time(gigaam: Path) -> None:
    changed(gigaam, "decoder", fix_shape("/embed/Gather_output_0", [1, 1, 96]))
    backend = load(gigaam)
    assert backend._lanes == 1
    assert "window of 8" in backend.describe()["decoder"]
    assert differences(backend, GIGAAM, 8, count=16) == []


def test_an_encoder_for_one_row_gets_one_at_a_time(gigaam: Path) -> None:
    encoded = onnx.load(gigaam / "v3_e2e_rnnt_encoder.onnx").graph.output[0].name
    changed(gigaam, "encoder", fix_output(encoded, [1, 96, -1]))
    backend = load(gigaam)
    assert backend._lanes == 1
    assert differences(backend, GIGAAM, 8, count=16) == []


def fix_output(name: str, shape: list[int]) -> Callable[[Any], None]:
    """Put a Reshape to constant sizes before an output."""

    def change(graph: Any) -> None:
        for node in graph.node:
            node.output[:] = [f"{name}.free" if output == name else output for output in node.output]
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{name}.shape"))
        graph.node.append(helper.make_node("Reshape", [f"{name}.free", f"{name}.shape"], [name]))

    return change


def test_an_encoder_that_does_not_run(gigaam: Path) -> None:
    encoded = onnx.load(gigaam / "v3_e2e_rnnt_encoder.onnx").graph.output[0].name
    changed(gigaam, "encoder", fix_output(encoded, [7, 13, 17]))
    with pytest.raises(CheckpointError, match=r"v3_e2e_rnnt_encoder\.onnx: onnxruntime"):
        load(gigaam)


def test_a_joint_for_one_frame_gets_windows_of_one(gigaam: Path) -> None:
    changed(gigaam, "joint", fix_shape("/joint_net/joint_net.0/Relu_output_0", [-1, 1, 1, 96]))
    backend = load(gigaam)
    assert "window of 1" in backend.describe()["decoder"]
    assert differences(backend, GIGAAM, 8, count=16) == []


def test_files_that_cannot_decode_at_all(gigaam: Path) -> None:
    changed(gigaam, "joint", fix_shape("/joint_net/joint_net.0/Relu_output_0", [5, 7, 3, 2]))
    with pytest.raises(CheckpointError, match=r"v3_e2e_rnnt_decoder\.onnx.* onnxruntime"):
        load(gigaam)


def test_decoder_and_joint_of_another_opset(gigaam: Path) -> None:
    for part, opset in (("decoder", 18), ("joint", 14)):
        path = gigaam / f"v3_e2e_rnnt_{part}.onnx"
        onnx.save(onnx.version_converter.convert_version(onnx.load(path), opset), path)
        assert ForeignModel.open(path).opset == opset
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []


@pytest.mark.parametrize("opset", [14, 18, 20])
def test_an_encoder_of_another_opset(gigaam: Path, opset: int) -> None:
    """Without LayerNormalization, which opset 17 brought, the encoder has only what any opset has."""
    path = gigaam / "v3_e2e_rnnt_encoder.onnx"
    model = onnx.load(path)
    if opset < 17:
        decompose_layer_norms(model.graph)
    model.opset_import[0].version = 17
    onnx.save(
        onnx.version_converter.convert_version(model, opset) if opset > 17 else older(model, opset), path
    )
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []


def older(model: Any, opset: int) -> Any:
    model.opset_import[0].version = opset
    return model


def decompose_layer_norms(graph: Any) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, node by node."""
    nodes = []
    for node in graph.node:
        if node.op_type != "LayerNormalization":
            nodes.append(node)
            continue
        x, scale, bias = node.input
        out = node.output[0]
        nodes += [
            helper.make_node("ReduceMean", [x], [f"{out}.mean"], axes=[-1]),
            helper.make_node("Sub", [x, f"{out}.mean"], [f"{out}.centred"]),
            helper.make_node("Mul", [f"{out}.centred", f"{out}.centred"], [f"{out}.squares"]),
            helper.make_node("ReduceMean", [f"{out}.squares"], [f"{out}.variance"], axes=[-1]),
            helper.make_node("Add", [f"{out}.variance", "epsilon"], [f"{out}.padded"]),
            helper.make_node("Sqrt", [f"{out}.padded"], [f"{out}.deviation"]),
            helper.make_node("Div", [f"{out}.centred", f"{out}.deviation"], [f"{out}.normed"]),
            helper.make_node("Mul", [f"{out}.normed", scale], [f"{out}.scaled"]),
            helper.make_node("Add", [f"{out}.scaled", bias], [out]),
        ]
    graph.initializer.append(numpy_helper.from_array(np.array(1e-5, np.float32), "epsilon"))
    del graph.node[:]
    graph.node.extend(nodes)


def test_opsets_from_before_axes_were_inputs_are_refused(gigaam: Path) -> None:
    path = gigaam / "v3_e2e_rnnt_encoder.onnx"
    model = onnx.load(path)
    model.opset_import[0].version = 11
    onnx.save(model, path)
    with pytest.raises(UnsupportedModelError, match="opset 11"):
        load(gigaam)


def test_int8_twins_are_chosen_by_precision(gigaam: Path) -> None:
    """Quantized as onnx-asr's are; the LSTM becomes an operator of another domain."""
    for path in sorted(gigaam.glob("*.onnx")):
        kinds = ["MatMul", "LSTM"]
        quantize_dynamic(path, path.with_suffix(".int8.onnx"), kinds, weight_type=QuantType.QInt8)
    domains = ForeignModel.open(gigaam / "v3_e2e_rnnt_decoder.int8.onnx").domains
    assert "com.microsoft" in domains
    coarse = load(gigaam, precision="int8")
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []
    by_name = load(gigaam / "v3_e2e_rnnt_encoder.int8.onnx")
    clips = [read_wav(utterance["file"]) for utterance in utterances()[:16]]
    wrong = differences(coarse, GIGAAM, 16, count=16)
    assert 0 < len(wrong) < 12  # its scales are coarse, its words mostly right
    assert [labels(h) for h in by_name.recognize(clips)] == [labels(h) for h in coarse.recognize(clips)]


def test_int8_asked_for_and_not_there(gigaam: Path) -> None:
    with pytest.raises(DeviceError, match="'int8' was asked for"):
        load(gigaam, precision="int8")


def to_fp16(path: Path) -> None:
    """All weights and values in half precision, as GigaAM's own `dtype=float16`."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(model, path)


def test_decoder_and_joint_in_half_precision(gigaam: Path) -> None:
    """Their logits are made fp32; at most an odd near tie falls the other way."""
    for part in ("decoder", "joint"):
        to_fp16(gigaam / f"v3_e2e_rnnt_{part}.onnx")
    assert len(differences(load(gigaam), GIGAAM, 8)) <= 4


# Weights in files of their own


def with_data_files(folder: Path) -> None:
    for path in sorted(folder.glob("*.onnx")):
        model = onnx.load(path)
        path.unlink()
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)


@pytest.mark.posix
def test_weights_beside_the_graphs(gigaam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field bug 85: odd names, another working directory, a cache that is made of links."""
    with_data_files(gigaam)
    odd = gigaam.rename(tmp_path / "мои модели 1")
    monkeypatch.chdir("/")
    monkeypatch.setattr("transduce.onnx.session.LARGEST_INLINE_BYTES", 0)
    assert differences(load(odd), GIGAAM, 8, count=16) == []
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    for number, path in enumerate(sorted(odd.iterdir())):
        blob = path.rename(tmp_path / "blobs" / f"{number}")
        (tmp_path / "links" / path.name).symlink_to(os.path.relpath(blob, tmp_path / "links"))
    assert differences(load(tmp_path / "links"), GIGAAM, 8, count=16) == []


def test_missing_or_short_weights_are_named(gigaam: Path) -> None:
    with_data_files(gigaam)
    path = gigaam / "v3_e2e_rnnt_encoder.onnx.data"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"encoder\.onnx\.data: too short"):
        load(gigaam)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"encoder\.onnx\.data: the weights of .* missing"):
        load(gigaam)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", ""])
def test_weights_outside_the_folder_are_refused(gigaam: Path, location: str) -> None:
    with_data_files(gigaam)

    def change(graph: Any) -> None:
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                entry.value = location if entry.key == "location" else entry.value

    path = gigaam / "v3_e2e_rnnt_joint.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match="outside its own folder"):
        load(gigaam)


# Which files


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("names", "path", "precision", "expected"),
    [
        (["encoder.int8.onnx", "decoder.int8.onnx", "joiner.int8.onnx"], "", "fp32", "encoder.int8.onnx"),
        (["model.onnx", "model.int8.onnx"], "", "fp32", "model.onnx"),
        (["model.onnx", "model.int8.onnx"], "", "int8", "model.int8.onnx"),
        (["model.onnx", "model.int8.onnx"], "model.int8.onnx", "fp32", "model.int8.onnx"),
        (["encoder-model.onnx", "decoder_joint-model.onnx"], "", "fp32", "encoder-model.onnx"),
        (["model.onnx", "silero_vad.onnx", "nemo80.onnx"], "", "fp32", "model.onnx"),
        (["parakeet-ctc-0.6b.int8.onnx", "v2.5.onnx"], "v2.5.onnx", "fp32", "v2.5.onnx"),
        (["parakeet-ctc-0.6b.int8.onnx", "v2.5.onnx"], "", "fp32", "parakeet-ctc-0.6b.int8.onnx"),
        (
            ["v3_ctc.onnx", "v3_rnnt_encoder.onnx", "v3_rnnt_decoder.onnx", "v3_rnnt_joint.onnx"],
            "v3_ctc.onnx",
            "fp32",
            "v3_ctc.onnx",
        ),
        (
            ["v3_ctc.onnx", "v3_rnnt_encoder.onnx", "v3_rnnt_decoder.onnx", "v3_rnnt_joint.onnx"],
            "v3_rnnt_joint.onnx",
            "fp32",
            "v3_rnnt_encoder.onnx",
        ),
    ],
)
def test_which_files(tmp_path: Path, names: list[str], path: str, precision: str, expected: str) -> None:
    touch(tmp_path, *names)
    assert onnx_files.find(tmp_path / path, precision).encoder.name == expected


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["v2_ctc.onnx", "v3_ctc.onnx"], UnsupportedModelError, "several models.*v2_ctc.onnx, v3_ctc.onnx"),
        (["encoder.onnx", "decoder.onnx"], CheckpointError, "encoder.onnx: its decoder or joint is missing"),
        (["readme.txt"], UnsupportedModelError, "docs/onnx.md"),
        (["silero_vad.onnx"], UnsupportedModelError, "docs/onnx.md"),
    ],
)
def test_which_files_not(tmp_path: Path, names: list[str], error: type[TransduceError], message: str) -> None:
    with pytest.raises(error, match=message):
        onnx_files.find(touch(tmp_path, *names))


def test_a_folder_of_unknown_origin(gigaam: Path) -> None:
    (gigaam / "v3_e2e_rnnt.yaml").unlink()
    for path in list(gigaam.glob("*")):
        path.rename(gigaam / path.name.replace("v3_e2e_rnnt", "other"))
    with pytest.raises(UnsupportedModelError, match="NeMo or a GigaAM"):
        load(gigaam)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.mark.parametrize(
    ("text", "message"),
    [(BOMB, "unfolds to over"), ("a: [", "not valid YAML"), ("a: !!python/name:os.system", "not valid YAML")],
    ids=["aliases of aliases", "cut short", "python objects"],
)
def test_a_yaml_that_is_no_settings(gigaam: Path, text: str, message: str) -> None:
    (gigaam / "v3_e2e_rnnt.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=rf"v3_e2e_rnnt\.yaml: .*{message}") as caught:
        load(gigaam)
    assert len(str(caught.value).splitlines()) == 1


def test_gigaam_without_its_yaml_is_known_by_its_name(gigaam: Path) -> None:
    """As onnx-asr's repositories have it."""
    (gigaam / "v3_e2e_rnnt.yaml").unlink()
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []


def test_vocabularies(gigaam: Path) -> None:
    model = gigaam / "v3_e2e_rnnt_tokenizer.model"
    pieces = onnx_layouts.load(gigaam, threads=1)[1].pieces
    model.unlink()
    with pytest.raises(CheckpointError, match="vocabulary is missing"):
        load(gigaam)
    lines = [f"{piece} {number}" for number, piece in enumerate((*pieces, "<blk>"))]
    (gigaam / "v3_e2e_rnnt_vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    assert differences(load(gigaam), GIGAAM, 8, count=16) == []
    (gigaam / "v3_e2e_rnnt_vocab.txt").write_text("\n".join(lines[:9]), encoding="utf-8")
    (gigaam / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="65 outputs a frame and its vocabulary 10"):
        load(gigaam)


def test_a_limit_in_config_json_is_kept(tmp_path: Path) -> None:
    files = onnx_files.OnnxFiles(
        "x", tmp_path / "v2_rnnt_encoder.onnx", tmp_path, None, {"max_tokens_per_step": 3}
    )
    (tmp_path / "vocab.txt").write_text("a 0\n<blk> 1\n", encoding="utf-8")
    settings = {**files.settings, "model_type": "nemo-conformer-tdt"}
    known = Facts(80, 112, 7, 5000)
    spec, _, weights = onnx_layouts.describe(
        onnx_files.OnnxFiles("x", files.encoder, files.decoder, None, settings), known
    )
    assert spec.head == HeadSpec("tdt", 2, 1, (0, 1, 2, 3, 4), max_symbols=3)
    assert weights["features.filterbank"].shape == (257, 80)


@pytest.mark.parametrize("factor", [-4, 3, 10**12, "four", [4]])
def test_a_factor_that_cannot_be(gigaam: Path, factor: object) -> None:
    (gigaam / "v3_e2e_rnnt.yaml").unlink()
    (gigaam / "config.json").write_text(json.dumps({"subsampling_factor": factor}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="v3_e2e_rnnt_encoder"):
        load(gigaam)


# Damage


@pytest.mark.parametrize("part", ["joint", "decoder"])
def test_damaged_graphs_end_in_our_own_errors(gigaam: Path, part: str) -> None:
    """Bits flipped and tails cut, mostly in the structure: loads and runs, or one clear line."""
    path = gigaam / f"v3_e2e_rnnt_{part}.onnx"
    model = onnx.load(path)
    for tensor in model.graph.initializer:  # little but structure to hit
        if len(tensor.raw_data) > 4096:
            tensor.raw_data = bytes(len(tensor.raw_data))
    content = model.SerializeToString()
    structure = np.array([i for i in range(len(content)) if content[i]])
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(num_cases(60, 1000)):
        damaged = bytearray(content)
        for index in rng.choice(structure, rng.integers(1, 4)):
            damaged[index] = rng.integers(256)
        path.write_bytes(damaged if rng.integers(4) else damaged[: rng.integers(len(damaged))])
        try:
            files = onnx_files.find(gigaam)
            opened = Parts.open(files.encoder, files.decoder, files.joint)
            spec, _, _ = onnx_layouts.describe(files, facts(opened))
            fit(spec, opened, 8)
        except TransduceError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert [error for error in errors if "v3_e2e_rnnt" not in error or "\n" in error] == []
