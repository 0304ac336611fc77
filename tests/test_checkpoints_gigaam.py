"""GigaAM's checkpoints: the released sizes of v1 to v3, fine-tuned ones, their tokenizers, what is refused.

Key lists and configs are those of `facts/formats.md`, held against the files that GigaAM's own classes
wrote; specs are written out here by hand. Transcripts come from the goldens.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_builder import (
    RUSSIAN,
    Conformer,
    GigaamModel,
    Transducer,
    actual_shapes,
    flat,
    gigaam_content,
    lightning_content,
    num_parameters,
    random_arrays,
    tensors,
    train_sentencepiece,
)
from omegaconf import OmegaConf
from support import data, golden, param, read_wav
from test_checkpoints_nemo import ShapesOnly, assert_one_line, placeholder

from transduce import checkpoints
from transduce.checkpoints import gigaam
from transduce.errors import CheckpointError, UnsupportedModelError
from transduce.features import hann_window, mel_filterbank
from transduce.nn.backend import TorchBackend
from transduce.nn.encoder import Encoder
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, Hypothesis

V2 = Conformer(
    16, 768, 16, 64, "striding", 4, channels=768, conv_kernel=31, conv_norm="batch_norm", attention="rotary"
)
V1 = replace(V2, attention="rel_pos")
V3 = replace(V2, subsampling="conv1d", kernel=5, conv_kernel=5, conv_norm="layer_norm")
RNNT = Transducer(320, 320, joint_index=1)

RELEASED = {
    "v1_ctc": GigaamModel(V1, None, 33),
    "v1_rnnt": GigaamModel(V1, RNNT, 512),
    "v2_ctc": GigaamModel(V2, None, 33),
    "v2_rnnt": GigaamModel(V2, RNNT, 33),
    "v3_ctc": GigaamModel(V3, None, 33, window=320),
    "v3_rnnt": GigaamModel(V3, RNNT, 33, window=320),
    "v3_e2e_ctc": GigaamModel(V3, None, 256, window=320),
    "v3_e2e_rnnt": GigaamModel(V3, RNNT, 1024, window=320),
}
RELEASED = {name: replace(model, name=name) for name, model in RELEASED.items()}

CENTRED = FeatureSpec(
    sample_rate=16000,
    num_mels=64,
    window_samples=400,
    hop_samples=160,
    fft_size=400,
    padding="reflect",
    num_frames_rule="floor_plus_one",
    preemphasis=0.0,
    log="clamp",
    normalize="none",
    mel_scale="htk",
    periodic_window=True,
)
NOT_CENTRED = replace(
    CENTRED, window_samples=320, fft_size=320, padding="none", num_frames_rule="whole_windows"
)
ROTARY_2D = EncoderSpec(
    num_layers=16,
    width=768,
    num_heads=16,
    feed_forward_width=3072,
    conv_kernel=31,
    conv_norm="batch_norm",
    subsampling="striding",
    subsampling_factor=4,
    subsampling_channels=768,
    subsampling_kernel=3,
    attention="rotary",
    rotary_base=5000.0,
    bias=True,
    xscaling=False,
)
RELATIVE_2D = replace(ROTARY_2D, attention="rel_pos")
ROTARY_1D = replace(
    ROTARY_2D, conv_kernel=5, conv_norm="layer_norm", subsampling="conv1d", subsampling_kernel=5
)
EXPECTED = {
    "v1_ctc": (CENTRED, RELATIVE_2D, HeadSpec("ctc", 34, 33)),
    "v1_rnnt": (CENTRED, RELATIVE_2D, HeadSpec("rnnt", 513, 512)),
    "v2_ctc": (CENTRED, ROTARY_2D, HeadSpec("ctc", 34, 33)),
    "v2_rnnt": (CENTRED, ROTARY_2D, HeadSpec("rnnt", 34, 33)),
    "v3_ctc": (NOT_CENTRED, ROTARY_1D, HeadSpec("ctc", 34, 33)),
    "v3_rnnt": (NOT_CENTRED, ROTARY_1D, HeadSpec("rnnt", 34, 33)),
    "v3_e2e_ctc": (NOT_CENTRED, ROTARY_1D, HeadSpec("ctc", 257, 256)),
    "v3_e2e_rnnt": (NOT_CENTRED, ROTARY_1D, HeadSpec("rnnt", 1025, 1024)),
}


def shrunk(model: GigaamModel, **changes: Any) -> GigaamModel:
    """The same layout in a size that tests are quick with."""
    return replace(model, encoder=replace(model.encoder, **changes))


def tiny(name: str) -> GigaamModel:
    model = shrunk(RELEASED[name], num_layers=2, width=16, num_heads=2, channels=16)
    return replace(model, transducer=replace(RNNT, hidden=12, joint=12) if model.transducer else None)


def write(path: Path, content: Mapping[str, Any]) -> Path:
    torch.save(dict(content), path)
    return path


def write_tiny(folder: Path, name: str = "v2_rnnt", **config: Any) -> Path:
    """A small character model; `config` replaces parts of its config."""
    model = tiny(name)
    content = gigaam_content(model, RUSSIAN, random_arrays(model.shapes()))
    content["cfg"] = OmegaConf.create(model.config(RUSSIAN) | config)
    return write(folder / f"{name}.ckpt", content)


def noise(seconds: float) -> Any:
    samples = np.random.default_rng(0).standard_normal(int(16000 * seconds), np.float32)
    return samples * np.float32(0.1)


# Key names and shapes


def like_upstreams(name: str) -> GigaamModel:
    """The sizes of the small files that GigaAM's classes wrote."""
    model = shrunk(RELEASED[name], num_layers=4, width=96, num_heads=4, channels=96)
    labels = 64 if "e2e" in name else 33
    return replace(
        model, num_labels=labels, transducer=replace(RNNT, hidden=96, joint=96) if model.transducer else None
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=param(f"models/gigaam/{name}.ckpt").marks)
        for name in ("v1_ctc", "v2_ctc", "v2_rnnt", "v3_e2e_ctc", "v3_e2e_rnnt")
    ],
)
def test_builder_names_keys_as_gigaam_does(name: str) -> None:
    assert like_upstreams(name).shapes() == actual_shapes(data(f"models/gigaam/{name}.ckpt"))


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_understood(name: str) -> None:
    model = RELEASED[name]
    shapes = model.shapes()
    vocabulary = RUSSIAN if model.num_labels == 33 else None
    state = ShapesOnly(flat(shapes), name)
    read = gigaam.understand(name, model.config(vocabulary), placeholder(model.num_labels), state)
    assert (read.spec.features, read.spec.encoder, read.spec.head) == EXPECTED[name]
    assert read.spec.heads == (read.spec.head,)
    assert read.spec.frame_samples == 640
    assert 215e6 < num_parameters(shapes) < 245e6
    with torch.device("meta"):
        encoder = Encoder(read.spec.encoder, 64)
    wanted = {f"encoder.{key}": tuple(value.shape) for key, value in encoder.state_dict().items()}
    assert {key: v.shape for key, v in read.weights.items() if key.startswith("encoder.")} == wanted


def test_a_layer_of_v3_has_34_tensors() -> None:
    assert sum(key.startswith("encoder.layers.7.") for key in RELEASED["v3_e2e_rnnt"].shapes()) == 34


def run_once(path: Path, num_labels: int) -> None:
    read = checkpoints.load(path)
    backend = TorchBackend(read.spec, read.weights, device="cpu")
    [hypothesis] = backend.recognize([noise(1.0)])
    assert len(hypothesis) > 0
    assert np.isfinite(hypothesis.log_probs).all()
    assert hypothesis.frames.max() < 25  # 1 s at 40 ms
    assert hypothesis.ids.max() < num_labels
    assert len(read.tokenizer.texts(hypothesis.ids)) == len(hypothesis)


def write_in_half(folder: Path, model: GigaamModel) -> Path:
    """As released: half precision, SentencePiece beside the file."""
    content = gigaam_content(model, None, random_arrays(model.shapes()), torch.float16)
    (folder / f"{model.name}_tokenizer.model").write_bytes(train_sentencepiece(model.num_labels))
    return write(folder / f"{model.name}.ckpt", content)


def test_a_full_size_model_runs(tmp_path: Path) -> None:
    """v3_e2e_rnnt with random weights, from a file: 16 layers, 768 wide, 1025 classes."""
    path = write_in_half(tmp_path, RELEASED["v3_e2e_rnnt"])
    assert 430e6 < path.stat().st_size < 450e6  # as the released file's
    run_once(path, 1024)


# Released files


@pytest.mark.parametrize("name", RELEASED)
def test_every_layout_is_read_from_a_file(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    vocabulary = RUSSIAN if model.num_labels == 33 else None
    if vocabulary is None:
        (tmp_path / f"{name}_tokenizer.model").write_bytes(train_sentencepiece(model.num_labels))
    arrays = random_arrays(model.shapes())
    read = checkpoints.load(write(tmp_path / f"{name}.ckpt", gigaam_content(model, vocabulary, arrays)))
    features, encoder, head = EXPECTED[name]
    assert read.spec.features == features
    small = replace(
        encoder, num_layers=2, width=16, num_heads=2, feed_forward_width=64, subsampling_channels=16
    )
    assert read.spec.encoder == small
    assert read.spec.head == head
    assert read.spec.language == ("ru" if vocabulary else None)
    assert read.spec.name == name
    window = arrays["preprocessor.featurizer.0.spectrogram.window"]
    np.testing.assert_array_equal(read.weights["features.window"], window)


def test_half_precision_is_widened_exactly(tmp_path: Path) -> None:
    model = tiny("v2_rnnt")
    arrays = random_arrays(model.shapes())
    path = write(tmp_path / "v2_rnnt.ckpt", gigaam_content(model, RUSSIAN, arrays, torch.float16))
    weights = checkpoints.load(path).weights
    wanted = arrays["head.joint.enc.weight"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(weights["joint.enc.weight"], wanted)
    assert all(array.dtype == np.float32 for array in weights.values())


def test_a_config_may_be_a_plain_dict(tmp_path: Path) -> None:
    model = tiny("v2_rnnt")
    content = gigaam_content(model, RUSSIAN, random_arrays(model.shapes()))
    path = write(tmp_path / "v2_rnnt.ckpt", content | {"cfg": model.config(RUSSIAN)})
    assert checkpoints.load(path).tokenizer.pieces == tuple(RUSSIAN)


def test_interpolations_are_left_alone(tmp_path: Path) -> None:
    encoder = tiny("v2_rnnt").config(RUSSIAN)["encoder"]
    path = write_tiny(tmp_path, encoder=encoder | {"device": "${oc.env:HOME}", "other": "???", "none": None})
    assert checkpoints.load(path).spec.encoder.width == 16


def test_front_end_is_computed_where_the_checkpoint_has_none() -> None:
    """Against the buffers that torchaudio computed for GigaAM's v3 (rounded to bf16 there)."""
    read = checkpoints.load(data("models/gigaam/v3_e2e_rnnt.ckpt"))
    for computed, stored in (
        (hann_window(320, periodic=True), read.weights["features.window"]),
        (mel_filterbank(read.spec.features), read.weights["features.filterbank"]),
    ):
        np.testing.assert_allclose(computed, stored, rtol=2**-8, atol=1e-5)


def test_the_gap_of_v2s_own_defaults_is_filled(tmp_path: Path) -> None:
    """A v2 file without buffers: 400 samples, as upstream's defaults say."""
    model = tiny("v2_rnnt")
    arrays = {k: v for k, v in random_arrays(model.shapes()).items() if not k.startswith("preprocessor.")}
    read = checkpoints.load(write(tmp_path / "v2_rnnt.ckpt", gigaam_content(model, RUSSIAN, arrays)))
    assert read.spec.features == CENTRED
    np.testing.assert_array_equal(read.weights["features.window"], hann_window(400, periodic=True))


def test_nothing_that_goes_in_is_written_to(tmp_path: Path) -> None:
    read = checkpoints.load(data("models/gigaam/v3_e2e_rnnt.ckpt"))
    before = {key: array.copy() for key, array in read.weights.items()}
    waveforms = [noise(0.7), noise(0.3)]
    copies = [waveform.copy() for waveform in waveforms]
    for waveform in waveforms:
        waveform.flags.writeable = False
    TorchBackend(read.spec, read.weights, device="cpu").recognize(waveforms)
    for waveform, copy in zip(waveforms, copies, strict=True):
        np.testing.assert_array_equal(waveform, copy)
    for key, array in read.weights.items():
        np.testing.assert_array_equal(array, before[key], err_msg=key)


# Fine-tuned with Lightning


def first_utterances(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = golden(f"gigaam-{name}")["utterances"]
    return entries[:4]


def recognized(path: Path, name: str) -> list[Hypothesis]:
    """The first utterances, by a checkpoint."""
    read = checkpoints.load(path)
    backend = TorchBackend(read.spec, read.weights, device="cpu")
    return backend.recognize([read_wav(entry["file"]) for entry in first_utterances(name)])


def base_beside(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Copy a released checkpoint and its tokenizer to a folder; its state dict."""
    copyfile(data(f"models/gigaam/{name}.ckpt"), folder / f"{name}.ckpt")
    if "e2e" in name:
        copyfile(data(f"models/gigaam/{name}_tokenizer.model"), folder / f"{name}_tokenizer.model")
    state: dict[str, torch.Tensor] = torch.load(folder / f"{name}.ckpt", weights_only=False)["state_dict"]
    return state


def with_labels_swapped(
    state: Mapping[str, torch.Tensor], first: int, second: int
) -> dict[str, torch.Tensor]:
    """The model that writes one label wherever it wrote the other, and is else the same."""
    changed = dict(state)
    for key in ("head.decoder.embed.weight", "head.joint.joint_net.1.weight", "head.joint.joint_net.1.bias"):
        changed[key] = state[key].clone()
        changed[key][[first, second]] = state[key][[second, first]]
    return changed


fine_tuned = pytest.mark.parametrize(
    "name",
    [
        pytest.param("v3_e2e_rnnt"),
        pytest.param("v2_rnnt", marks=param("models/gigaam/v2_rnnt.ckpt").marks),
    ],
)


@fine_tuned
@pytest.mark.parametrize("prefix", ["", "model."])
def test_fine_tuned_with_unchanged_weights(name: str, prefix: str, tmp_path: Path) -> None:
    state = base_beside(tmp_path, name)
    path = write(tmp_path / "epoch=3-step=1200.ckpt", lightning_content(name, state, prefix))
    for hypothesis, entry in zip(
        recognized(path, name), golden(f"gigaam-{name}")["utterances"], strict=False
    ):
        assert hypothesis.ids.tolist() == entry["ids"]
        assert hypothesis.frames.tolist() == entry["frames"]


@fine_tuned
def test_fine_tuned_with_changed_weights(name: str, tmp_path: Path) -> None:
    entries = first_utterances(name)
    first, second = entries[0]["ids"][0], entries[0]["ids"][1]
    state = with_labels_swapped(base_beside(tmp_path, name), first, second)
    path = write(tmp_path / "epoch=3-step=1200.ckpt", lightning_content(name, state))
    swap = {first: second, second: first}
    for hypothesis, entry in zip(recognized(path, name), entries, strict=True):
        assert hypothesis.ids.tolist() == [swap.get(label, label) for label in entry["ids"]]
        assert hypothesis.frames.tolist() == entry["frames"]


@fine_tuned
def test_fine_tuned_is_all_that_the_base_is(name: str, tmp_path: Path) -> None:
    state = base_beside(tmp_path, name)
    path = write(tmp_path / "mine.ckpt", lightning_content(name, state))
    base, read = checkpoints.load(tmp_path / f"{name}.ckpt"), checkpoints.load(path)
    assert replace(read.spec, name=name) == base.spec
    assert read.spec.name == "mine"
    assert read.tokenizer.pieces == base.tokenizer.pieces


def test_fine_tuned_with_its_config_inside(tmp_path: Path) -> None:
    model = tiny("v2_rnnt")
    content = lightning_content("v2_rnnt", tensors(random_arrays(model.shapes())))
    content["hyper_parameters"]["cfg"] = OmegaConf.create(model.config(RUSSIAN))
    assert checkpoints.load(write(tmp_path / "mine.ckpt", content)).spec.encoder.num_heads == 2


def test_hyper_parameters_may_be_omegaconfs(tmp_path: Path) -> None:
    path = write_tiny(tmp_path)
    state = torch.load(path, weights_only=False)["state_dict"]
    content = lightning_content("v2_rnnt", state)
    content["hyper_parameters"] = OmegaConf.create({"model_name": "v2_rnnt", "lr": 1e-5})
    assert checkpoints.load(write(tmp_path / "mine.ckpt", content)).spec.encoder.num_heads == 2


def test_fine_tuned_without_base_and_config_is_refused_where_a_size_is_unknown(tmp_path: Path) -> None:
    content = lightning_content("v2_rnnt", tensors(random_arrays(tiny("v2_rnnt").shapes())))
    path = write(tmp_path / "mine.ckpt", content)
    with pytest.raises(
        CheckpointError, match="put the checkpoint that it was trained from beside it"
    ) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def test_a_base_cannot_be_the_file_itself(tmp_path: Path) -> None:
    content = lightning_content("v2_rnnt", tensors(random_arrays(tiny("v2_rnnt").shapes())))
    path = write(tmp_path / "v2_rnnt.ckpt", content)
    with pytest.raises(CheckpointError, match="put the checkpoint that it was trained from beside it"):
        checkpoints.load(path)


def test_the_base_is_looked_for_beside_the_file_only(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    folder = tmp_path / "runs"
    folder.mkdir()
    content = lightning_content("../v2_rnnt", tensors(random_arrays(tiny("v2_rnnt").shapes())))
    with pytest.raises(CheckpointError, match="put the checkpoint that it was trained from beside it"):
        checkpoints.load(write(folder / "mine.ckpt", content))


@pytest.mark.parametrize("name", RELEASED)
def test_fine_tuned_in_full_width_needs_no_base(name: str, tmp_path: Path) -> None:
    """Two layers of the released width: what no shape tells is what was released."""
    model = shrunk(RELEASED[name], num_layers=1)
    content = lightning_content(name, tensors(flat_but_writable(model)))
    if model.num_labels != 33:
        (tmp_path / f"{name}_tokenizer.model").write_bytes(train_sentencepiece(model.num_labels))
    spec = checkpoints.load(write(tmp_path / "mine.ckpt", content)).spec
    features, encoder, head = EXPECTED[name]
    assert (spec.features, spec.encoder, spec.head) == (features, replace(encoder, num_layers=1), head)


def flat_but_writable(model: GigaamModel) -> dict[str, Any]:
    return {key: np.ones(shape, np.float32) for key, shape in model.shapes().items()}


# Tokenizers


def e2e(folder: Path) -> Path:
    """A small SentencePiece model without its tokenizer."""
    model = replace(tiny("v3_e2e_rnnt"), num_labels=60)
    return write(folder / "v3_e2e_rnnt.ckpt", gigaam_content(model, None, random_arrays(model.shapes())))


@pytest.mark.parametrize("name", ["v3_e2e_rnnt_tokenizer.model", "renamed_tokenizer.model"])
def test_the_tokenizer_lies_beside_the_file_under_either_name(name: str, tmp_path: Path) -> None:
    path = e2e(tmp_path).rename(tmp_path / "renamed.ckpt")
    (tmp_path / name).write_bytes(train_sentencepiece(60))
    assert checkpoints.load(path).tokenizer.size == 60


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = e2e(tmp_path)
    with pytest.raises(CheckpointError, match=r"put v3_e2e_rnnt_tokenizer\.model beside it") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    path = e2e(tmp_path)
    (tmp_path / "v3_e2e_rnnt_tokenizer.model").write_bytes(train_sentencepiece(61))
    with pytest.raises(CheckpointError, match="61 pieces, the head 60 labels") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    path = e2e(tmp_path)
    tokenizer = tmp_path / "v3_e2e_rnnt_tokenizer.model"
    tokenizer.write_bytes(b"<!DOCTYPE html><html><body>404</body></html>")
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, tokenizer)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [(RUSSIAN[:-1], "32 pieces, the head 33 labels"), ([*RUSSIAN[:-1], 7], "not a list of characters")],
)
def test_a_wrong_vocabulary_is_refused(vocabulary: list[Any], message: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path, decoding={"vocabulary": vocabulary})
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


# What is refused


@pytest.mark.parametrize("kind", ["ssl", "emo"])
def test_models_that_write_no_text_are_named(kind: str, tmp_path: Path) -> None:
    model = tiny("v2_rnnt")
    arrays = {k: v for k, v in random_arrays(model.shapes()).items() if not k.startswith("head.")}
    if kind == "emo":
        arrays["head.weight"] = np.zeros((4, 16), np.float32)
    config = model.config(None) | {"model_class": kind, "model_name": f"v2_{kind}", "id2name": {0: "angry"}}
    content = {"cfg": OmegaConf.create(config), "state_dict": tensors(arrays)}
    path = write(tmp_path / f"{kind}.ckpt", content)
    with pytest.raises(UnsupportedModelError, match=f"'{kind}'") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weights": {}}, "holds no state_dict"),
        ({"state_dict": {}}, "no Conformer encoder"),
        ({"state_dict": {"model.decoder.weight": torch.ones(2)}}, "no Conformer encoder"),
        (
            {"state_dict": {"encoder.layers.0.norm_out.weight": torch.ones(2)}},
            "neither cfg nor hyper_parameters",
        ),
    ],
)
def test_other_torch_files_are_not_ours(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "other.ckpt", content)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_heads": 3}, "3 heads"),
        ({"n_heads": 0}, r"n_heads = 0"),
        ({"n_heads": 16}, "16 heads"),
        ({"subsampling_factor": 3}, "subsampling_factor"),
        ({"self_attention_model": "abs_pos"}, "self_attention_model"),
        ({"pos_emb_max_len": -1}, "pos_emb_max_len"),
    ],
)
def test_an_impossible_encoder_is_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = write_tiny(tmp_path, encoder=tiny("v2_rnnt").config(RUSSIAN)["encoder"] | change)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=named) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("encoder.layers.1.conv.batch_norm.running_mean"),
        lambda arrays: arrays.pop("head.decoder.lstm.weight_hh_l0"),
        lambda arrays: arrays.update({"head.joint.enc.bias": np.zeros(5, np.float32)}),
        lambda arrays: arrays.update({"encoder.layers.1.adapter.weight": np.zeros(5, np.float32)}),
    ],
)
def test_a_state_dict_is_read_strictly(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    model = tiny("v2_rnnt")
    arrays = random_arrays(model.shapes())
    before = set(arrays)
    change(arrays)
    [named] = before ^ set(arrays) or {"head.joint.enc.bias"}
    path = write(tmp_path / "v2_rnnt.ckpt", gigaam_content(model, RUSSIAN, arrays))
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path)
    assert named in str(caught.value)
    assert_one_line(caught.value, path)
