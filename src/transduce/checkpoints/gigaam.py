"""GigaAM's torch checkpoints: v1, v2, v3, RNN-T and CTC, as released or fine-tuned with Lightning.

In: a path. Out: a Checkpoint. A released file holds `cfg` (omegaconf) and `state_dict`; a Lightning one
`hyper_parameters` and a `state_dict`, the trainer's state beside them. Only plain data is
unpickled: omegaconf's containers are the one addition to what torch allows by itself.
"""

import collections
import typing
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path, PurePath
from typing import Any, cast

import numpy as np

from transduce.checkpoints.bounds import MOST_POSITION_BASE, check_spec
from transduce.checkpoints.config import MAX_NODES, number, one_line, require, translated, whole
from transduce.checkpoints.state import (
    Checkpoint,
    StateDict,
    TransducerNames,
    character_tokenizer,
    check_vocabulary,
    ctc_weights,
    encoder_weights,
    front_end_size,
    hop_size,
    transducer_weights,
)
from transduce.checkpoints.torch_file import load_torch_file
from transduce.errors import CheckpointError, UnsupportedModelError, import_extra
from transduce.features import hann_window, mel_filterbank
from transduce.tokenizer import MAX_MODEL_BYTES, Tokenizer
from transduce.types import EncoderSpec, FeatureSpec, FloatArray, HeadSpec, ModelSpec

__all__ = ["load", "understand"]

MAX_SEGMENT_SECONDS = 25.0
MAX_SYMBOLS = 10
"""GigaAM's torch path; its own ONNX path stops at 3 and so writes other text."""
POSITION_BASE = 5000
RELEASED_WIDTH, RELEASED_HEADS = 768, 16
"""Of every released model of v1 to v3."""
FEATURIZER = "preprocessor.featurizer.0"
TRANSDUCER = TransducerNames("head.decoder.embed", "head.decoder.lstm", "head.joint")
ALPHABET = " абвгдежзийклмнопрстуфхцчшщъыьэюя"
"""The 33 characters of the released character models (no ё)."""

NO_CONFIG = (
    "a fine-tuned checkpoint without its config; put the checkpoint that it was trained from beside it, "
    "under its model name (v2_rnnt.ckpt, say)"
)

IGNORED = (
    r"encoder\.layers\.\d+\.conv\.batch_norm\.num_batches_tracked$",
    r"encoder\.pos_enc\.",
    r"preprocessor\.",
)
"""Counters, tables that follow from the config, and buffers of the front end that we do not use."""
CONFIGS = ("cfg", "hyper_parameters")
"""The parts of a checkpoint that say what it is."""
OURS = ("preprocessor.", "encoder.", "head.")
"""What a fine-tuned checkpoint's state dict is filtered to, as upstream does."""


def load(path: Path) -> Checkpoint:
    """Read a `.ckpt`; CheckpointError if it is damaged, UnsupportedModelError if not GigaAM's."""
    source = str(path)
    with translated(source):
        content = _read(path)
        state = StateDict(_arrays(content, source), source)
        config = _config(content, path)
        head = _head_spec(config, state)
        return understand(path.stem, config, _tokenizer(config, path, head), state)


def understand(name: str, config: Mapping[str, Any], tokenizer: Tokenizer, state: StateDict) -> Checkpoint:
    """The model that a checkpoint's parts make; every parameter must have its place in it."""
    features = _feature_spec(config, state)
    encoder = _encoder_spec(config.get("encoder") or {}, state)
    head = _head_spec(config, state)
    check_vocabulary(tokenizer, head, state.source)
    weights = encoder_weights(state, encoder, features.num_mels)
    if head.kind == "ctc":
        weights |= ctc_weights(state, head, encoder.width, "head.decoder_layers.0")
    else:
        weights |= transducer_weights(state, head, encoder.width, TRANSDUCER)
    weights |= _feature_weights(features, state)
    state.finish(IGNORED)
    spec = ModelSpec(
        name=name,
        family="gigaam",
        features=features,
        encoder=encoder,
        heads=(head,),
        head=head,
        max_segment_seconds=MAX_SEGMENT_SECONDS,
        language="ru" if "".join(tokenizer.pieces) == ALPHABET else None,
    )
    check_spec(spec, state.source)
    return Checkpoint(spec, tokenizer, weights)


def _read(path: Path) -> Mapping[str, Any]:
    """The pickled dict: config and hyper-parameters as plain dicts and lists, the rest as saved."""
    omegaconf = import_extra("omegaconf", "torch")
    with path.open("rb") as file:
        content = load_torch_file(file, str(path), _allowed(omegaconf))
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UnsupportedModelError(f"{path}: holds no state_dict; it is not a GigaAM checkpoint")
    plain = {key: _plain(content[key], omegaconf, count(1)) for key in CONFIGS if key in content}
    return {**content, **plain}


def _allowed(omegaconf: Any) -> list[Any]:
    """What GigaAM's configs are pickled as, and nothing else."""
    nodes = ("AnyNode", "StringNode", "IntegerNode", "FloatNode", "BooleanNode", "BytesNode", "PathNode")
    return [
        *(omegaconf.DictConfig, omegaconf.ListConfig),
        *(getattr(omegaconf.base, name) for name in ("ContainerMetadata", "Metadata")),
        *(getattr(omegaconf.nodes, name) for name in nodes),
        *(typing.Any, collections.defaultdict, dict, list, int, float, str, bool),
    ]


def _plain(value: Any, omegaconf: Any, seen: Iterator[int]) -> Any:
    """Containers as plain ones, without running omegaconf: interpolations stay as they are written.

    A pickle may hold one container in many places; `seen` counts how much it unfolds to.
    """
    if next(seen) > MAX_NODES:
        raise ValueError(f"the config unfolds to over {MAX_NODES} values")
    if isinstance(value, omegaconf.Container):
        value = vars(value)["_content"]
    elif isinstance(value, omegaconf.Node):
        value = vars(value)["_val"]
    if isinstance(value, dict):
        return {key: _plain(item, omegaconf, seen) for key, item in value.items()}
    return [_plain(item, omegaconf, seen) for item in value] if isinstance(value, list) else value


def _arrays(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The model's part of the state dict, without the prefix that a trainer's wrapper adds."""
    state_dict = content["state_dict"]
    arrays = {key: array for key, array in state_dict.items() if isinstance(array, np.ndarray)}
    marker = "encoder.layers.0.norm_out.weight"
    prefix = next((key.removesuffix(marker) for key in arrays if key.endswith(marker)), None)
    if prefix is None:
        raise UnsupportedModelError(f"{source}: has no Conformer encoder; it is not a GigaAM checkpoint")
    own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    return {key: array for key, array in own.items() if key.startswith(OURS)}


def _config(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The config: in the file, in its hyper-parameters, or in the base checkpoint beside it."""
    if isinstance(content.get("cfg"), Mapping):
        return cast(Mapping[str, Any], content["cfg"])
    settings = content.get("hyper_parameters")
    if not isinstance(settings, Mapping):
        raise UnsupportedModelError(f"{path}: has neither cfg nor hyper_parameters; not a GigaAM checkpoint")
    if isinstance(settings.get("cfg"), Mapping):
        return cast(Mapping[str, Any], settings["cfg"])
    name = str(settings.get("model_name", ""))
    base = path.parent / f"{PurePath(name).name}.ckpt"
    if name and base.is_file() and base.resolve() != path.resolve():
        cfg = _read(base).get("cfg")
        if isinstance(cfg, Mapping):
            return {**cfg, "model_name": name}
    return {"model_name": name}


def _feature_spec(config: Mapping[str, Any], state: StateDict) -> FeatureSpec:
    """v1 and v2: windows of 25 ms, centred; v3: 20 ms, not centred. Sizes are the buffers' where given."""
    front, source = config.get("preprocessor") or {}, state.source
    rate = front_end_size(front.get("sample_rate", 16000), "sample_rate", source)
    buffer = f"{FEATURIZER}.spectrogram.window"
    stored = state.shape(buffer)[0] if buffer in state else rate // 40
    if not front and buffer not in state:
        raise CheckpointError(f"{source}: {NO_CONFIG}")
    window_samples = front_end_size(front.get("win_length") or stored, "win_length", source)
    fft_size = front.get("n_fft") or window_samples
    is_centred = bool(front.get("center", window_samples != rate // 50))
    return FeatureSpec(
        sample_rate=rate,
        num_mels=front_end_size(front.get("features", 64), "features", source),
        window_samples=window_samples,
        hop_samples=hop_size(front.get("hop_length") or rate // 100, "hop_length", source, rate),
        fft_size=front_end_size(fft_size, "n_fft", source, least=window_samples),
        padding="reflect" if is_centred else "none",
        num_frames_rule="floor_plus_one" if is_centred else "whole_windows",
        preemphasis=0.0,
        log="clamp",
        normalize="none",
        mel_scale="htk",
        periodic_window=True,
    )


def _feature_weights(spec: FeatureSpec, state: StateDict) -> dict[str, FloatArray]:
    """The checkpoint's buffers (v3's are rounded to bf16), computed where it has none."""
    window, filterbank = f"{FEATURIZER}.spectrogram.window", f"{FEATURIZER}.mel_scale.fb"
    return {
        "features.window": state.take(window, spec.window_samples)
        if window in state
        else hann_window(spec.window_samples, periodic=True),
        "features.filterbank": state.take(filterbank, spec.fft_size // 2 + 1, spec.num_mels)
        if filterbank in state
        else mel_filterbank(spec),
    }


def _encoder_spec(encoder: Mapping[str, Any], state: StateDict) -> EncoderSpec:
    first = "encoder.layers.0"
    width = state.shape(f"{first}.norm_out.weight")[0]
    channels, *_, kernel = state.shape("encoder.pre_encode.conv.0.weight")
    is_1d = len(state.shape("encoder.pre_encode.conv.0.weight")) == 3
    is_relative = f"{first}.self_attn.pos_bias_u" in state
    attention = encoder.get("self_attention_model", "rel_pos" if is_relative else "rotary")
    factor = encoder.get("subsampling_factor", 4)
    base = encoder.get("pos_emb_max_len", POSITION_BASE)
    require(attention in ("rel_pos", "rotary"), state.source, f"encoder.self_attention_model = {attention!r}")
    require(factor in (2, 4, 8), state.source, f"encoder.subsampling_factor = {factor!r}")
    return EncoderSpec(
        num_layers=state.count(r"encoder\.layers\.(\d+)\."),
        width=width,
        num_heads=_num_heads(encoder, width, state.source),
        feed_forward_width=state.shape(f"{first}.feed_forward1.linear1.weight")[0],
        conv_kernel=state.shape(f"{first}.conv.depthwise_conv.weight")[-1],
        conv_norm="batch_norm" if f"{first}.conv.batch_norm.running_mean" in state else "layer_norm",
        subsampling="conv1d" if is_1d else "striding",
        subsampling_factor=factor,
        subsampling_channels=channels,
        subsampling_kernel=kernel,
        attention=attention,
        rotary_base=number(base, "pos_emb_max_len", state.source, least=1, most=MOST_POSITION_BASE),
        bias=True,
        xscaling=False,
    )


def _num_heads(encoder: Mapping[str, Any], width: int, source: str) -> int:
    """The one size that no shape tells; a fine-tuned file without its config has a released width."""
    heads = encoder.get("n_heads")
    if heads is None and width != RELEASED_WIDTH:
        raise CheckpointError(f"{source}: {NO_CONFIG}")
    return whole(RELEASED_HEADS if heads is None else heads, "encoder.n_heads", source, most=width)


def _head_spec(config: Mapping[str, Any], state: StateDict) -> HeadSpec:
    if "head.decoder_layers.0.weight" in state:
        num_classes = state.shape("head.decoder_layers.0.weight")[0]
        return HeadSpec("ctc", num_classes, blank=num_classes - 1)
    if f"{TRANSDUCER.embed}.weight" in state:
        num_classes = state.shape(f"{TRANSDUCER.embed}.weight")[0]
        return HeadSpec("rnnt", num_classes, blank=num_classes - 1, max_symbols=MAX_SYMBOLS)
    kind = one_line(config.get("model_class") or config.get("model_name") or "encoder alone")
    raise UnsupportedModelError(
        f"{state.source}: a GigaAM model of the kind {kind!r}; without an RNN-T or CTC head it writes no text"
    )


def _tokenizer(config: Mapping[str, Any], path: Path, head: HeadSpec) -> Tokenizer:
    """The config's characters, or the SentencePiece file that lies beside the checkpoint."""
    decoding = config.get("decoding") or {}
    characters = decoding.get("vocabulary")
    if characters:
        return character_tokenizer(characters, str(path))
    names = [f"{path.stem}_tokenizer.model"]
    names += (
        [f"{PurePath(str(config['model_name'])).name}_tokenizer.model"] if config.get("model_name") else []
    )
    names += [PurePath(str(decoding["model_path"])).name] if decoding.get("model_path") else []
    found = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if found is not None:
        with found.open("rb") as file:
            return Tokenizer.from_sentencepiece(file.read(MAX_MODEL_BYTES + 1), str(found))
    if head.num_classes == len(ALPHABET) + 1:
        return Tokenizer.from_characters(list(ALPHABET), str(path))
    raise CheckpointError(f"{path}: its tokenizer is missing; put {names[-1]} beside it")
