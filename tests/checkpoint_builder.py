"""Checkpoints in upstream's layouts, built from sizes: key names, shapes, configs, containers.

In: the sizes of a model. Out: its keys and shapes as NeMo or GigaAM name them, its config, and files
with random weights. The key lists are compared with files that upstream itself wrote (`actual_shapes`),
so what is built at other sizes is what upstream would write. Nothing here uses the readers under test.
"""

import gzip
import io
import math
import random
import tarfile
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import sentencepiece
import torch
import yaml
from omegaconf import OmegaConf

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, npt.NDArray[Any]]

ALPHABET = list("abcdefghijklmnopqrstuvwxyz' ")
RUSSIAN = list(" абвгдежзийклмнопрстуфхцчшщъыьэюя")
"""GigaAM's 33 characters."""


# Keys and shapes


@dataclass(frozen=True)
class Conformer:
    """The encoder of either family."""

    num_layers: int = 2
    width: int = 16
    num_heads: int = 2
    num_mels: int = 80
    subsampling: Literal["dw_striding", "striding", "conv1d"] = "dw_striding"
    factor: int = 8
    channels: int = 8
    kernel: int = 3
    conv_kernel: int = 9
    conv_norm: Literal["batch_norm", "layer_norm"] = "batch_norm"
    attention: Literal["rel_pos", "rotary"] = "rel_pos"
    bias: bool = True

    def shapes(self) -> Shapes:
        shapes = self._subsampling()
        for index in range(self.num_layers):
            shapes |= {f"encoder.layers.{index}.{key}": shape for key, shape in self._layer().items()}
        return shapes

    def _subsampling(self) -> Shapes:
        """Convolutions between ReLUs, as an index in upstream's Sequential: 0, 2, 4 or 0, 2, 3, 5, 6."""
        channels, kernel = self.channels, self.kernel
        num_stages = round(math.log2(self.factor))
        if self.subsampling == "conv1d":
            convolutions = {
                2 * i: (channels, channels if i else self.num_mels, kernel) for i in range(num_stages)
            }
        elif self.subsampling == "striding":
            convolutions = {
                2 * i: (channels, channels if i else 1, kernel, kernel) for i in range(num_stages)
            }
        else:
            convolutions = {0: (channels, 1, kernel, kernel)}
            for stage in range(1, num_stages):
                convolutions[3 * stage - 1] = (channels, 1, kernel, kernel)
                convolutions[3 * stage] = (channels, channels, 1, 1)
        shapes: Shapes = {}
        for index, shape in convolutions.items():
            shapes |= with_bias(f"encoder.pre_encode.conv.{index}", shape)
        if self.subsampling != "conv1d":
            rest = math.ceil(self.num_mels / self.factor)
            shapes |= with_bias("encoder.pre_encode.out", (self.width, channels * rest))
        return shapes

    def _layer(self) -> Shapes:
        width, wide = self.width, 4 * self.width
        shapes: Shapes = {}
        for norm in ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"):
            shapes |= with_bias(norm, (width,))
        for number in (1, 2):
            shapes |= with_bias(f"feed_forward{number}.linear1", (wide, width), self.bias)
            shapes |= with_bias(f"feed_forward{number}.linear2", (width, wide), self.bias)
        for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
            shapes |= with_bias(f"self_attn.{name}", (width, width), self.bias)
        if self.attention == "rel_pos":
            shapes |= with_bias("self_attn.linear_pos", (width, width), bias=False)
            for name in ("pos_bias_u", "pos_bias_v"):
                shapes[f"self_attn.{name}"] = (self.num_heads, width // self.num_heads)
        shapes |= with_bias("conv.pointwise_conv1", (2 * width, width, 1), self.bias)
        shapes |= with_bias("conv.depthwise_conv", (width, 1, self.conv_kernel), self.bias)
        shapes |= with_bias("conv.pointwise_conv2", (width, width, 1), self.bias)
        shapes |= with_bias("conv.batch_norm", (width,))
        if self.conv_norm == "batch_norm":
            for name, shape in (
                ("running_mean", (width,)),
                ("running_var", (width,)),
                ("num_batches_tracked", ()),
            ):
                shapes[f"conv.batch_norm.{name}"] = shape
        return shapes


@dataclass(frozen=True)
class Transducer:
    """Prediction network and joint."""

    hidden: int = 12
    joint: int = 12
    num_layers: int = 1
    durations: tuple[int, ...] = ()
    joint_index: int = 2
    """Of the joint's last layer: 2 behind a dropout, else 1."""

    def shapes(self, num_classes: int, width: int, decoder: str, lstm: str, joint: str) -> Shapes:
        hidden = self.hidden
        shapes: Shapes = {f"{decoder}.embed.weight": (num_classes, hidden)}
        for layer in range(self.num_layers):
            for name in ("weight_ih", "weight_hh"):
                shapes[f"{decoder}.{lstm}.{name}_l{layer}"] = (4 * hidden, hidden)
            for name in ("bias_ih", "bias_hh"):
                shapes[f"{decoder}.{lstm}.{name}_l{layer}"] = (4 * hidden,)
        shapes |= with_bias(f"{joint}.enc", (self.joint, width))
        shapes |= with_bias(f"{joint}.pred", (self.joint, hidden))
        outputs = num_classes + len(self.durations)
        return shapes | with_bias(f"{joint}.joint_net.{self.joint_index}", (outputs, self.joint))


def with_bias(key: str, shape: tuple[int, ...], bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{key}.weight": shape}
    return shapes | {f"{key}.bias": shape[:1]} if bias else shapes


def num_parameters(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


# Models: shapes and configs


@dataclass(frozen=True)
class NemoModel:
    """A model as NeMo's `save_to` writes it."""

    encoder: Conformer = field(default_factory=Conformer)
    transducer: Transducer | None = field(default_factory=Transducer)
    ctc: bool = False
    num_labels: int = len(ALPHABET)
    """Without blank."""
    xscaling: bool = True

    def shapes(self) -> Shapes:
        shapes: Shapes = {
            "preprocessor.featurizer.window": (400,),
            "preprocessor.featurizer.fb": (1, self.encoder.num_mels, 257),
        }
        shapes |= self.encoder.shapes()
        width, num_classes = self.encoder.width, self.num_labels + 1
        if self.transducer:
            shapes |= self.transducer.shapes(
                num_classes, width, "decoder.prediction", "dec_rnn.lstm", "joint"
            )
        if self.ctc:
            prefix = "ctc_decoder" if self.transducer else "decoder"
            shapes |= with_bias(f"{prefix}.decoder_layers.0", (num_classes, width, 1))
        return shapes

    def config(self) -> dict[str, Any]:
        """What a released config says, but for `labels` or a tokenizer, which the caller adds."""
        config: dict[str, Any] = {
            "sample_rate": 16000,
            "model_defaults": {"enc_hidden": self.encoder.width, "pred_hidden": 640, "joint_hidden": 640},
            "preprocessor": {
                "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
                "sample_rate": 16000,
                "normalize": "per_feature",
                "window_size": 0.025,
                "window_stride": 0.01,
                "window": "hann",
                "features": self.encoder.num_mels,
                "n_fft": 512,
                "log": True,
                "frame_splicing": 1,
                "dither": 1e-05,
                "pad_to": 0,
                "pad_value": 0.0,
            },
            "spec_augment": {
                "_target_": "nemo.collections.asr.modules.SpectrogramAugmentation",
                "freq_masks": 2,
            },
            "encoder": self._encoder_config(),
            "target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel",
            "nemo_version": "2.3.0",
        }
        if self.transducer:
            config |= self._transducer_config(self.transducer)
            config["model_defaults"] |= config.pop("defaults")
        if self.ctc:
            head = {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "num_classes": self.num_labels}
            config |= {"aux_ctc": {"decoder": head}} if self.transducer else {"decoder": head}
        return config

    def _encoder_config(self) -> dict[str, Any]:
        encoder = self.encoder
        return {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder",
            "feat_in": encoder.num_mels,
            "feat_out": -1,
            "n_layers": encoder.num_layers,
            "d_model": encoder.width,
            "subsampling": encoder.subsampling,
            "subsampling_factor": encoder.factor,
            "subsampling_conv_channels": encoder.channels,
            "causal_downsampling": False,
            "reduction": None,
            "reduction_position": None,
            "reduction_factor": 1,
            "ff_expansion_factor": 4,
            "self_attention_model": "rel_pos",
            "n_heads": encoder.num_heads,
            "att_context_size": [-1, -1],
            "att_context_style": "regular",
            "xscaling": self.xscaling,
            "untie_biases": True,
            "pos_emb_max_len": 5000,
            "conv_kernel_size": encoder.conv_kernel,
            "conv_norm_type": encoder.conv_norm,
            "conv_context_size": None,
            "dropout": 0.1,
            "stochastic_depth_drop_prob": 0.0,
        }

    def _transducer_config(self, transducer: Transducer) -> dict[str, Any]:
        durations = list(transducer.durations)
        prednet = {"pred_hidden": transducer.hidden, "pred_rnn_layers": transducer.num_layers, "dropout": 0.2}
        jointnet = {"joint_hidden": transducer.joint, "activation": "relu", "dropout": 0.2}
        config: dict[str, Any] = {
            "decoder": {"prednet": prednet, "blank_as_pad": True, "vocab_size": self.num_labels},
            "joint": {"jointnet": jointnet, "num_classes": self.num_labels, "log_softmax": None},
            "decoding": {"strategy": "greedy_batch", "greedy": {"max_symbols": 10}},
            "loss": {"loss_name": "default"},
            "defaults": {},
        }
        if durations:
            config["decoding"] |= {"model_type": "tdt", "durations": durations}
            config["joint"]["num_extra_outputs"] = len(durations)
            config["loss"] = {"loss_name": "tdt", "tdt_kwargs": {"durations": durations, "sigma": 0.02}}
            config["defaults"] = {"tdt_durations": durations, "num_tdt_durations": len(durations)}
        return config


@dataclass(frozen=True)
class GigaamModel:
    """A model as GigaAM's checkpoints hold it."""

    encoder: Conformer
    transducer: Transducer | None
    num_labels: int = len(RUSSIAN)
    """Without blank."""
    window: int = 400
    name: str = "v2_rnnt"

    def shapes(self) -> Shapes:
        front = "preprocessor.featurizer.0"
        shapes: Shapes = {
            f"{front}.spectrogram.window": (self.window,),
            f"{front}.mel_scale.fb": (self.window // 2 + 1, self.encoder.num_mels),
        }
        shapes |= self.encoder.shapes()
        width, num_classes = self.encoder.width, self.num_labels + 1
        if self.transducer:
            return shapes | self.transducer.shapes(num_classes, width, "head.decoder", "lstm", "head.joint")
        return shapes | with_bias("head.decoder_layers.0", (num_classes, width, 1))

    def config(self, vocabulary: list[str] | None) -> dict[str, Any]:
        """`vocabulary`: the characters; None: a SentencePiece model beside the file."""
        kind = "rnnt" if self.transducer else "ctc"
        return {
            "model_class": kind,
            "sample_rate": 16000,
            "preprocessor": self._front_end_config(),
            "encoder": self._encoder_config(),
            "head": {"_target_": f"gigaam.decoder.{kind.upper()}Head", "num_classes": self.num_labels + 1},
            "decoding": {
                "_target_": f"gigaam.decoding.{kind.upper()}GreedyDecoding",
                "vocabulary": vocabulary,
                "model_path": None if vocabulary else f"{self.name}_tokenizer.model",
            },
            "model_name": self.name,
        }

    def _front_end_config(self) -> dict[str, Any]:
        """v1 and v2 leave out what is upstream's default."""
        config = {"_target_": "gigaam.preprocess.FeatureExtractor", "sample_rate": 16000}
        config |= {"features": self.encoder.num_mels}
        if self.window == 320:
            config |= {
                "hop_length": 160,
                "win_length": 320,
                "n_fft": 320,
                "mel_scale": "htk",
                "center": False,
            }
        return config

    def _encoder_config(self) -> dict[str, Any]:
        encoder = self.encoder
        return {
            "_target_": "gigaam.encoder.ConformerEncoder",
            "feat_in": encoder.num_mels,
            "n_layers": encoder.num_layers,
            "d_model": encoder.width,
            "subsampling": "conv1d" if encoder.subsampling == "conv1d" else "conv2d",
            "subs_kernel_size": encoder.kernel,
            "subsampling_factor": encoder.factor,
            "ff_expansion_factor": 4,
            "self_attention_model": encoder.attention,
            "pos_emb_max_len": 5000,
            "n_heads": encoder.num_heads,
            "conv_kernel_size": encoder.conv_kernel,
            "flash_attn": False,
            "conv_norm_type": encoder.conv_norm,
        }


# Numbers and files


def flat(shapes: Shapes) -> Arrays:
    """Arrays of those shapes that take no memory: one number, repeated by strides of 0."""
    return {key: np.broadcast_to(np.float32(1), shape) for key, shape in shapes.items()}


def random_arrays(shapes: Shapes, seed: int = 0) -> Arrays:
    """Weights of a size that keeps activations near 1; positive variances, windows and filterbanks."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for key, shape in shapes.items():
        if key.endswith("num_batches_tracked"):
            arrays[key] = np.array(1000, np.int64)
            continue
        array = rng.random(shape, np.float32)  # uniform: full sizes have 10^8 numbers
        array -= np.float32(0.5)
        array *= np.float32(math.sqrt(12 / math.prod(shape[1:])))
        is_positive = key.endswith("running_var") or key.startswith("preprocessor.")
        arrays[key] = np.abs(array) + np.float32(0.1) if is_positive else array
    return arrays


def tensors(
    arrays: Mapping[str, npt.NDArray[Any]], dtype: torch.dtype | None = None
) -> "OrderedDict[str, Any]":
    """A state dict; `dtype` is that of the floating-point tensors (None: their own)."""
    state = OrderedDict((key, torch.from_numpy(array)) for key, array in arrays.items())
    for key, tensor in state.items():
        state[key] = tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
    return state


def saved(content: object, name: str = "model_weights") -> bytes:
    """What torch.save writes to a file of that name (the folder inside it is called so too)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.ckpt"
        torch.save(content, path)
        return path.read_bytes()


def tar_of(members: Mapping[str, bytes], *, prefix: str = "./", compress: bool = False) -> bytes:
    """A tar as NeMo writes it: a folder first where there is a prefix, then files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        if prefix:
            folder = tarfile.TarInfo(prefix)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), 1) if compress else stream.getvalue()


def nemo_members(
    config: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], tokenizer: bytes | None = None
) -> dict[str, bytes]:
    """The files of an archive; a tokenizer is named in the config as NeMo names it."""
    members = {}
    config = dict(config)
    if tokenizer is not None:
        members["0123abcd_tokenizer.model"] = tokenizer
        config["tokenizer"] = {"dir": "t", "type": "bpe", "model_path": "nemo:0123abcd_tokenizer.model"}
    members["model_config.yaml"] = yaml.safe_dump(config, allow_unicode=True).encode()
    members["model_weights.ckpt"] = saved(tensors(arrays))
    return members


def tiny_nemo(path: Path, model: NemoModel | None = None, **changes: Any) -> Path:
    """A small character model; `changes` replace top-level parts of its config."""
    model = model or NemoModel()
    config = model.config() | {"labels": ALPHABET} | changes
    path.write_bytes(tar_of(nemo_members(config, random_arrays(model.shapes()))))
    return path


def gigaam_content(
    model: GigaamModel, vocabulary: list[str] | None, arrays: Arrays, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """`{cfg, state_dict}` as released."""
    return {"cfg": OmegaConf.create(model.config(vocabulary)), "state_dict": tensors(arrays, dtype)}


def lightning_content(model_name: str, state_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What Lightning's ModelCheckpoint writes around a model: the trainer's state, and keys of a loss."""
    state = OrderedDict((prefix + key, tensor) for key, tensor in state_dict.items())
    first = next(iter(state_dict.values()))
    return {
        "epoch": 3,
        "global_step": 1200,
        "pytorch-lightning_version": "2.5.1",
        "state_dict": OrderedDict([*state.items(), (f"{prefix}loss.weight", torch.ones(3))]),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val_wer'}": {"best_model_score": torch.tensor(0.07)}},
        "optimizer_states": [
            {
                "state": {0: {"step": torch.tensor(1200.0), "exp_avg": torch.zeros_like(first)}},
                "param_groups": [],
            }
        ],
        "lr_schedulers": [{"last_epoch": 1200, "_last_lr": [1e-5]}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"model_name": model_name, "lr": 1e-5, "betas": (0.9, 0.98)},
    }


def train_sentencepiece(num_pieces: int, seed: int = 0) -> bytes:
    """A BPE model as NeMo trains them (no BOS, no EOS, id 0 is <unk>), from made-up words."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(max(200, 3 * num_pieces))]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words[i : i + 8]) for i in range(0, len(words), 8)]),
        model_writer=model,
        model_type="bpe",
        vocab_size=num_pieces,
        character_coverage=1.0,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def actual_shapes(path: Path) -> Shapes:
    """Keys and shapes of a file that upstream wrote, read by torch alone."""
    if path.suffix == ".nemo":
        with tarfile.open(path) as tar:
            weights = tar.extractfile("./model_weights.ckpt")
            assert weights is not None
            state = torch.load(io.BytesIO(weights.read()), weights_only=True)
    else:
        state = torch.load(path, weights_only=False)["state_dict"]  # a file of this project
    return {key: tuple(tensor.shape) for key, tensor in state.items()}
