"""NeMo's `.nemo` archives: the released sizes, the forms that configs take, and what is refused.

Key lists and configs are those of `facts/formats.md`, held against the files that NeMo wrote itself;
specs are written out here by hand. The released checkpoints were not at hand: full sizes are checked
on arrays that take no memory, and one of them is run with random weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_builder import (
    ALPHABET,
    Conformer,
    NemoModel,
    Transducer,
    actual_shapes,
    flat,
    nemo_members,
    num_parameters,
    random_arrays,
    tar_of,
    tiny_nemo,
    train_sentencepiece,
)
from support import data, param

from transduce import checkpoints
from transduce.checkpoints import nemo
from transduce.checkpoints.state import StateDict
from transduce.errors import CheckpointError, TransduceError, UnsupportedModelError
from transduce.features import hann_window, mel_filterbank
from transduce.nn.backend import TorchBackend
from transduce.nn.encoder import Encoder
from transduce.tokenizer import Tokenizer
from transduce.types import EncoderSpec, FeatureSpec, FloatArray, HeadSpec

TDT = (0, 1, 2, 3, 4)
FAST = Conformer(width=1024, num_heads=8, channels=256)
"""What the 0.6B and 1.1B models share: FastConformer, eight times subsampled, kernel 9."""

RELEASED = {
    "parakeet-tdt-0.6b-v2": NemoModel(
        encoder=replace(FAST, num_layers=24, num_mels=128, bias=False),
        transducer=Transducer(640, 640, num_layers=2, durations=TDT),
        num_labels=1024,
        xscaling=False,
    ),
    "parakeet-tdt-0.6b-v3": NemoModel(
        encoder=replace(FAST, num_layers=24, num_mels=128, bias=False),
        transducer=Transducer(640, 640, num_layers=2, durations=TDT),
        num_labels=8192,
        xscaling=False,
    ),
    "parakeet-rnnt-1.1b": NemoModel(
        encoder=replace(FAST, num_layers=42),
        transducer=Transducer(640, 640, num_layers=2),
        num_labels=1024,
    ),
    "parakeet-tdt_ctc-110m": NemoModel(
        encoder=replace(FAST, num_layers=17, width=512),
        transducer=Transducer(640, 640, num_layers=1, durations=TDT),
        ctc=True,
        num_labels=1024,
        xscaling=False,
    ),
}

FEATURES = FeatureSpec(
    sample_rate=16000,
    num_mels=80,
    window_samples=400,
    hop_samples=160,
    fft_size=512,
    padding="constant",
    num_frames_rule="floor",
    preemphasis=0.97,
    log="add",
    normalize="per_feature",
    mel_scale="slaney",
    periodic_window=False,
)
ENCODER = EncoderSpec(
    num_layers=24,
    width=1024,
    num_heads=8,
    feed_forward_width=4096,
    conv_kernel=9,
    conv_norm="batch_norm",
    subsampling="dw_striding",
    subsampling_factor=8,
    subsampling_channels=256,
    subsampling_kernel=3,
    attention="rel_pos",
    rotary_base=0.0,
    bias=False,
    xscaling=False,
)


@dataclass(frozen=True)
class Expected:
    """What a released model is, and how many parameters its name and file size speak of."""

    num_mels: int
    encoder: EncoderSpec
    heads: tuple[HeadSpec, ...]
    num_parameters: tuple[float, float]


EXPECTED = {
    "parakeet-tdt-0.6b-v2": Expected(
        128, ENCODER, (HeadSpec("tdt", 1025, 1024, TDT),), num_parameters=(0.60e9, 0.63e9)
    ),
    "parakeet-tdt-0.6b-v3": Expected(
        128, ENCODER, (HeadSpec("tdt", 8193, 8192, TDT),), num_parameters=(0.60e9, 0.63e9)
    ),
    "parakeet-rnnt-1.1b": Expected(
        80,
        replace(ENCODER, num_layers=42, bias=True, xscaling=True),
        (HeadSpec("rnnt", 1025, 1024),),
        num_parameters=(1.05e9, 1.1e9),
    ),
    "parakeet-tdt_ctc-110m": Expected(
        80,
        replace(ENCODER, num_layers=17, width=512, feed_forward_width=2048, bias=True),
        (HeadSpec("tdt", 1025, 1024, TDT), HeadSpec("ctc", 1025, 1024)),
        num_parameters=(0.11e9, 0.12e9),
    ),
}


class ShapesOnly(StateDict):
    """A state dict that never copies its arrays, so that they may be of any size."""

    def take(self, key: str, *shape: int) -> FloatArray:
        assert self.shape(key) == shape, key
        self.taken.add(key)
        return self.arrays[key]  # type: ignore[return-value]


def placeholder(size: int) -> Tokenizer:
    return Tokenizer.from_characters([chr(0x4E00 + i) for i in range(size)], "placeholder")


# Key names and shapes


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(name, model, marks=param(f"models/nemo/{name}.nemo").marks, id=name)
        for name, model in {
            "hybrid": NemoModel(
                Conformer(4, 112, 4, channels=64), Transducer(128, 128, 2, TDT), ctc=True, num_labels=36
            ),
            "tdt": NemoModel(
                Conformer(4, 112, 4, channels=64, bias=False), Transducer(128, 128, 2, TDT), num_labels=36
            ),
            "rnnt": NemoModel(Conformer(4, 112, 4, channels=64), Transducer(128, 128), num_labels=36),
            "ctc": NemoModel(Conformer(4, 112, 4, channels=64), None, ctc=True, num_labels=36),
            "rnnt_char": NemoModel(
                Conformer(2, 64, 4, subsampling="striding", factor=4, channels=64, conv_kernel=31),
                Transducer(64, 64, joint_index=1),
                num_labels=28,
            ),
        }.items()
    ],
)
def test_builder_names_keys_as_nemo_does(name: str, model: NemoModel) -> None:
    assert model.shapes() == actual_shapes(data(f"models/nemo/{name}.nemo"))


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_understood(name: str) -> None:
    model, expected = RELEASED[name], EXPECTED[name]
    shapes = model.shapes()
    state = ShapesOnly(flat(shapes), name)
    read = nemo.understand(name, model.config(), placeholder(model.num_labels), state)
    assert read.spec.features == replace(FEATURES, num_mels=expected.num_mels)
    assert read.spec.encoder == expected.encoder
    assert read.spec.heads == expected.heads
    assert read.spec.head == expected.heads[0]
    assert read.spec.frame_samples == 1280
    low, high = expected.num_parameters
    assert low < num_parameters(shapes) < high


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_fill_the_encoder(name: str) -> None:
    model = RELEASED[name]
    state = ShapesOnly(flat(model.shapes()), name)
    read = nemo.understand(name, model.config(), placeholder(model.num_labels), state)
    with torch.device("meta"):
        encoder = Encoder(read.spec.encoder, read.spec.features.num_mels)
    wanted = {f"encoder.{key}": tuple(value.shape) for key, value in encoder.state_dict().items()}
    given = {key: value.shape for key, value in read.weights.items() if key.startswith("encoder.")}
    assert given == wanted


def test_a_full_size_model_runs(tmp_path: Path) -> None:
    """parakeet-tdt_ctc-110m with random weights, from a file."""
    model = RELEASED["parakeet-tdt_ctc-110m"]
    members = nemo_members(model.config(), random_arrays(model.shapes()), train_sentencepiece(1024))
    path = tmp_path / "parakeet-tdt_ctc-110m.nemo"
    path.write_bytes(tar_of(members))
    del members
    read = checkpoints.load(path)
    assert read.spec.name == "parakeet-tdt_ctc-110m"
    assert read.tokenizer.size == 1024
    waveform = np.random.default_rng(1).standard_normal(16000, np.float32) * np.float32(0.1)
    for head in read.spec.heads:
        backend = TorchBackend(replace(read.spec, head=head), read.weights, device="cpu")
        [hypothesis] = backend.recognize([waveform])
        assert len(hypothesis) > 0
        assert np.isfinite(hypothesis.log_probs).all()
        assert hypothesis.frames.max() < 13  # 1 s at 80 ms
        assert hypothesis.ids.max() < 1024
        assert len(read.tokenizer.texts(hypothesis.ids)) == len(hypothesis)


# What configs say, and leave out


def edited(edit: Callable[[dict[str, Any]], object], model: NemoModel) -> dict[str, Any]:
    config = model.config() | {"labels": ALPHABET}
    edit(config)
    return config


def written(path: Path, config: dict[str, Any], model: NemoModel) -> Path:
    path.write_bytes(tar_of(nemo_members(config, random_arrays(model.shapes()))))
    return path


TINY_TDT = NemoModel(transducer=Transducer(num_layers=2, durations=(0, 1, 2, 4)))
TINY_NO_BIAS = NemoModel(encoder=Conformer(bias=False))
TINY_HYBRID = NemoModel(transducer=Transducer(durations=TDT), ctc=True)
TINY_CTC = NemoModel(transducer=None, ctc=True)


def only_place_of_durations(place: str) -> Callable[[dict[str, Any]], None]:
    def edit(config: dict[str, Any]) -> None:
        if place != "decoding":
            del config["decoding"]["durations"]
        if place != "model_defaults":
            del config["model_defaults"]["tdt_durations"]
        if place != "loss":
            config["loss"] = {"loss_name": "default"}

    return edit


@pytest.mark.parametrize("place", ["decoding", "model_defaults", "loss"])
def test_durations_are_found_where_configs_keep_them(place: str, tmp_path: Path) -> None:
    config = edited(only_place_of_durations(place), TINY_TDT)
    read = checkpoints.load(written(tmp_path / "m.nemo", config, TINY_TDT))
    assert read.spec.head == HeadSpec("tdt", 29, 28, (0, 1, 2, 4))


@pytest.mark.parametrize(
    ("model", "edit"),
    [
        pytest.param(NemoModel(), lambda config: None, id="as written"),
        pytest.param(
            TINY_NO_BIAS, lambda config: config["encoder"].update(use_bias=False), id="use_bias false"
        ),
        pytest.param(TINY_NO_BIAS, lambda config: None, id="use_bias absent where there is none"),
        pytest.param(NemoModel(), lambda config: config["encoder"].update(use_bias=True), id="use_bias true"),
        pytest.param(NemoModel(), lambda config: config["decoder"].update(prednet={}), id="empty prednet"),
        pytest.param(NemoModel(), lambda config: config["decoder"].update(prednet=None), id="no prednet"),
        pytest.param(NemoModel(), lambda config: config["joint"].update(jointnet={}), id="empty jointnet"),
        pytest.param(NemoModel(), lambda config: config["joint"].update(jointnet=None), id="no jointnet"),
        pytest.param(
            NemoModel(),
            lambda config: config["encoder"].update(att_context_size=[[-1, -1]]),
            id="context list",
        ),
        pytest.param(
            NemoModel(),
            lambda config: config["encoder"].update(att_context_size=[[70, 13], [-1, -1]]),
            id="whole context among others",
        ),
        pytest.param(
            NemoModel(), lambda config: config["encoder"].update(att_context_size=None), id="no context"
        ),
        pytest.param(
            NemoModel(), lambda config: config.update(aux_ctc={"decoder": {"num_classes": -1}}), id="CTC stub"
        ),
        pytest.param(
            NemoModel(transducer=Transducer(joint_index=1)),
            lambda config: config["joint"]["jointnet"].update(dropout=0.0),
            id="joint without dropout",
        ),
        pytest.param(NemoModel(), lambda config: config["decoding"].pop("greedy"), id="no greedy section"),
        pytest.param(NemoModel(), lambda config: config.pop("decoding"), id="no decoding section"),
        pytest.param(
            NemoModel(),
            lambda config: config["preprocessor"].update(n_window_size=400, n_window_stride=160),
            id="window in samples",
        ),
        pytest.param(NemoModel(), lambda config: config["preprocessor"].pop("n_fft"), id="no n_fft"),
        pytest.param(NemoModel(), lambda config: config["preprocessor"].update(pad_to=16), id="pad_to 16"),
    ],
)
def test_forms_of_a_config_mean_the_same(
    model: NemoModel, edit: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    read = checkpoints.load(written(tmp_path / "m.nemo", edited(edit, model), model))
    assert read.spec.features == FEATURES
    assert read.spec.encoder == EncoderSpec(
        num_layers=2,
        width=16,
        num_heads=2,
        feed_forward_width=64,
        conv_kernel=9,
        conv_norm="batch_norm",
        subsampling="dw_striding",
        subsampling_factor=8,
        subsampling_channels=8,
        subsampling_kernel=3,
        attention="rel_pos",
        rotary_base=0.0,
        bias=model.encoder.bias,
        xscaling=True,
    )
    assert read.spec.heads == (HeadSpec("rnnt", 29, 28, max_symbols=10),)
    assert "".join(read.tokenizer.pieces) == "".join(ALPHABET)


@pytest.mark.parametrize(
    ("edit", "field", "value"),
    [
        (lambda config: config["encoder"].update(xscaling=False), "encoder.xscaling", False),
        (lambda config: config["encoder"].pop("xscaling"), "encoder.xscaling", True),
        (lambda config: config["decoding"]["greedy"].update(max_symbols=3), "head.max_symbols", 3),
        (lambda config: config["decoding"]["greedy"].update(max_symbols=None), "head.max_symbols", 10),
        (
            lambda config: config["decoding"].update(greedy={"max_symbols_per_step": 7}),
            "head.max_symbols",
            7,
        ),
        (lambda config: config["joint"]["jointnet"].update(activation="tanh"), "head.activation", "tanh"),
        (lambda config: config["preprocessor"].update(normalize="NA"), "features.normalize", "none"),
        (lambda config: config["preprocessor"].update(normalize=None), "features.normalize", "none"),
        (lambda config: config["preprocessor"].update(preemph=None), "features.preemphasis", 0.0),
        (lambda config: config["preprocessor"].update(n_fft=1024), "features.fft_size", 1024),
    ],
)
def test_settings_reach_the_spec(
    edit: Callable[[dict[str, Any]], object], field: str, value: object, tmp_path: Path
) -> None:
    model = NemoModel()
    arrays = random_arrays(model.shapes())
    if field == "features.fft_size":
        arrays["preprocessor.featurizer.fb"] = np.ones((1, 80, 513), np.float32)
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(nemo_members(edited(edit, model), arrays)))
    spec = checkpoints.load(path).spec
    part, name = field.split(".")
    assert getattr(getattr(spec, part), name) == value


@pytest.mark.parametrize("model", [TINY_CTC, TINY_HYBRID], ids=["ctc", "hybrid"])
def test_heads_are_those_that_have_weights(model: NemoModel, tmp_path: Path) -> None:
    spec = checkpoints.load(tiny_nemo(tmp_path / "m.nemo", model)).spec
    kinds = ["tdt", "ctc"] if model.transducer else ["ctc"]
    assert [head.kind for head in spec.heads] == kinds
    assert spec.head == spec.heads[0]


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("compress", [False, True])
def test_containers_hold_the_same_model(prefix: str, compress: bool, tmp_path: Path) -> None:
    model = NemoModel()
    arrays = random_arrays(model.shapes())
    members = nemo_members(model.config() | {"labels": ALPHABET}, arrays)
    path = tmp_path / "a model.nemo"
    path.write_bytes(tar_of(members, prefix=prefix, compress=compress))
    read = checkpoints.load(path)
    np.testing.assert_array_equal(read.weights["joint.out.weight"], arrays["joint.joint_net.2.weight"])
    bias = (
        arrays["decoder.prediction.dec_rnn.lstm.bias_ih_l0"]
        + arrays["decoder.prediction.dec_rnn.lstm.bias_hh_l0"]
    )
    np.testing.assert_array_equal(read.weights["predictor.lstm.bias_l0"], bias)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a model.nemo"]


def test_vocabulary_is_the_archives_tokenizer(tmp_path: Path) -> None:
    model = NemoModel(num_labels=60)
    tokenizer = train_sentencepiece(60)
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(nemo_members(model.config(), random_arrays(model.shapes()), tokenizer)))
    assert checkpoints.load(path).tokenizer.model_bytes == tokenizer


def test_labels_are_taken_from_the_decoder_of_a_ctc_model(tmp_path: Path) -> None:
    config = TINY_CTC.config()
    config["decoder"]["vocabulary"] = ALPHABET
    read = checkpoints.load(written(tmp_path / "m.nemo", config, TINY_CTC))
    assert list(read.tokenizer.pieces) == ALPHABET


def test_front_end_is_computed_where_the_checkpoint_has_none() -> None:
    """Against the buffers that NeMo wrote."""
    read = checkpoints.load(data("models/nemo/hybrid.nemo"))
    np.testing.assert_allclose(
        hann_window(400, periodic=False), read.weights["features.window"], rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(
        mel_filterbank(read.spec.features), read.weights["features.filterbank"], rtol=0, atol=1e-6
    )


def test_a_checkpoint_without_buffers_gets_them(tmp_path: Path) -> None:
    model = NemoModel()
    arrays = {k: v for k, v in random_arrays(model.shapes()).items() if not k.startswith("preprocessor.")}
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(nemo_members(model.config() | {"labels": ALPHABET}, arrays)))
    read = checkpoints.load(path)
    np.testing.assert_array_equal(read.weights["features.window"], hann_window(400, periodic=False))
    assert read.weights["features.filterbank"].shape == (257, 80)


# What is refused


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda config: config["encoder"].update(causal_downsampling=True), "causal_downsampling"),
        (lambda config: config["encoder"].update(conv_context_size="causal"), "conv_context_size"),
        (lambda config: config["encoder"].update(att_context_size=[[56, 3], [56, 0]]), "attention context"),
        (lambda config: config["encoder"].update(att_context_size=[128, 128]), "attention context"),
        (
            lambda config: config["encoder"].update(self_attention_model="rel_pos_local_attn"),
            "self_attention_model",
        ),
        (lambda config: config["encoder"].update(subsampling="stacking"), "subsampling"),
        (lambda config: config["encoder"].update(subsampling_factor=3), "subsampling_factor"),
        (lambda config: config["encoder"].update(reduction="pooling"), "reduction"),
        (lambda config: config["encoder"].update(untie_biases=False), "untie_biases"),
        (lambda config: config["encoder"].update(conv_norm_type="group_norm8"), "conv_norm_type"),
        (
            lambda config: config["encoder"].update(
                _target_="nemo.collections.asr.modules.SqueezeformerEncoder"
            ),
            "SqueezeformerEncoder",
        ),
        (lambda config: config["preprocessor"].update(normalize="all_features"), "normalize"),
        (lambda config: config["preprocessor"].update(window="blackman"), "window"),
        (lambda config: config["preprocessor"].update(highfreq=4000), "highfreq"),
        (lambda config: config["joint"]["jointnet"].update(activation="sigmoid"), "sigmoid"),
        (lambda config: config.update(tokenizer={"type": "agg", "langs": {}}), "agg"),
        (lambda config: config.update(tokenizer={"type": "wpe", "dir": "x"}), "wpe"),
        (lambda config: config.update(labels=None), "no tokenizer and no list of labels"),
    ],
)
def test_options_without_arithmetic_here_are_named(
    edit: Callable[[dict[str, Any]], object], named: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "m.nemo", edited(edit, NemoModel()), NemoModel())
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def test_a_model_without_a_head_is_not_one_of_ours(tmp_path: Path) -> None:
    model = NemoModel(transducer=None)
    config = model.config() | {"labels": ALPHABET, "target": "x.EncDecSpeakerLabelModel"}
    path = written(tmp_path / "m.nemo", config, model)
    with pytest.raises(UnsupportedModelError, match="EncDecSpeakerLabelModel") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def damaged(change: Callable[[dict[str, Any]], object], tmp_path: Path, model: NemoModel) -> CheckpointError:
    """The error that a change of the state dict leads to."""
    arrays = random_arrays(model.shapes())
    change(arrays)
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(nemo_members(model.config() | {"labels": ALPHABET}, arrays)))
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        "encoder.pre_encode.conv.3.weight",
        "encoder.layers.1.self_attn.linear_pos.weight",
        "encoder.layers.0.conv.batch_norm.running_var",
        "decoder.prediction.dec_rnn.lstm.bias_hh_l0",
        "joint.pred.bias",
        "joint.joint_net.2.bias",
    ],
)
def test_a_missing_or_misshapen_parameter_is_named(key: str, tmp_path: Path) -> None:
    assert key in str(damaged(lambda arrays: arrays.pop(key), tmp_path, NemoModel()))
    assert key in str(damaged(lambda arrays: arrays.update({key: arrays[key][:-1]}), tmp_path, NemoModel()))
    assert key in str(
        damaged(lambda arrays: arrays.update({key: arrays[key].astype(np.int32)}), tmp_path, NemoModel())
    )


@pytest.mark.parametrize(
    "key", ["encoder.layers.0.adapter.weight", "prompt_kernel.0.weight", "encoder.global_tokens"]
)
def test_a_parameter_without_a_place_is_named(key: str, tmp_path: Path) -> None:
    change = {key: np.zeros(3, np.float32)}
    assert key in str(damaged(lambda arrays: arrays.update(change), tmp_path, NemoModel()))


def test_parts_of_the_training_are_passed_over(tmp_path: Path) -> None:
    model = NemoModel()
    extra = ("loss._loss.weight", "joint._loss.x", "joint._wer.scores", "wer.words", "spec_augmentation.mask")
    arrays = random_arrays(model.shapes()) | {key: np.zeros(3, np.float32) for key in extra}
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(nemo_members(model.config() | {"labels": ALPHABET}, arrays)))
    read = checkpoints.load(path)
    assert not set(extra) & set(read.weights)


@pytest.mark.parametrize(
    ("model", "labels"),
    [(NemoModel(), ALPHABET[:-1]), (NemoModel(), [*ALPHABET, "!"]), (TINY_CTC, ALPHABET[:-1])],
)
def test_labels_must_fit_the_head(model: NemoModel, labels: list[str], tmp_path: Path) -> None:
    path = tiny_nemo(tmp_path / "m.nemo", model, labels=labels)
    with pytest.raises(CheckpointError, match=rf"{len(labels)} pieces, the head 28 labels") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def test_every_head_of_a_hybrid_must_fit_its_labels(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["ctc_decoder.decoder_layers.0.weight"] = np.zeros((31, 16, 1), np.float32)
        arrays["ctc_decoder.decoder_layers.0.bias"] = np.zeros(31, np.float32)

    assert "28 pieces, the head 30 labels" in str(damaged(change, tmp_path, TINY_HYBRID))


def test_predictor_and_joint_must_fit(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["joint.pred.weight"] = np.zeros((12, 13), np.float32)

    assert "joint.pred.weight has shape [12, 13]" in str(damaged(change, tmp_path, NemoModel()))


def test_durations_must_fit_the_joint(tmp_path: Path) -> None:
    config = edited(only_place_of_durations("decoding"), TINY_TDT)
    config["decoding"]["durations"] = [0, 1, 2]
    path = written(tmp_path / "m.nemo", config, TINY_TDT)
    with pytest.raises(CheckpointError, match=r"4 duration outputs, the config lists \[0, 1, 2\]"):
        checkpoints.load(path)


@pytest.mark.parametrize("missing", ["model_config.yaml", "model_weights.ckpt", "0123abcd_tokenizer.model"])
def test_a_missing_member_is_named(missing: str, tmp_path: Path) -> None:
    model = NemoModel(num_labels=60)
    members = nemo_members(model.config(), random_arrays(model.shapes()), train_sentencepiece(60))
    del members[missing]
    path = tmp_path / "m.nemo"
    path.write_bytes(tar_of(members))
    with pytest.raises(CheckpointError, match=f"holds no {missing}") as caught:
        checkpoints.load(path)
    assert_one_line(caught.value, path)


def assert_one_line(error: TransduceError, path: Path) -> None:
    """The message is one line and begins with the file that it is about."""
    assert str(error).startswith(str(path))
    assert "\n" not in str(error)
