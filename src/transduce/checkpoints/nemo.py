"""NVIDIA NeMo's `.nemo` archives: RNN-T, TDT, CTC and hybrid FastConformer / Conformer models.

In: a path. Out: a Checkpoint. An archive is a tar (plain or gzip) of `model_config.yaml`,
`model_weights.ckpt` and tokenizer files; it is read in place, nothing is unpacked to disk. Sizes
come from the shapes of the weights, everything else from the config; docs/models.md lists what
is understood.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from transduce.checkpoints.archive import NemoArchive
from transduce.checkpoints.bounds import MOST_DURATION, MOST_SYMBOLS, check_spec
from transduce.checkpoints.config import number, require, section, translated, whole
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
    joint_output,
    transducer_weights,
)
from transduce.errors import CheckpointError, UnsupportedModelError
from transduce.features import hann_window, mel_filterbank
from transduce.tokenizer import Tokenizer
from transduce.types import EncoderSpec, FeatureSpec, FloatArray, HeadSpec, ModelSpec

__all__ = ["load", "understand"]

MAX_SEGMENT_SECONDS = 30.0
MAX_TOKENIZER_BYTES = 64 << 20
DEFAULT_MAX_SYMBOLS = 10
CTC_PREFIXES = ("decoder.decoder_layers.0", "ctc_decoder.decoder_layers.0")
"""Where a CTC model and a hybrid one keep their CTC layer."""

IGNORED = (
    r"encoder\.layers\.\d+\.conv\.batch_norm\.num_batches_tracked$",
    r"loss\.",
    r"joint\._(loss|wer)\.",
    r"(ctc_)?wer\.",
    r"spec_augmentation\.",
    r"preprocessor\.",
)
"""Keys of training-only modules; of the preprocessor only window and filterbank are used."""


def load(path: Path) -> Checkpoint:
    """Read a `.nemo` file; CheckpointError if it is damaged, UnsupportedModelError if not ours."""
    source = str(path)
    with translated(source):
        with NemoArchive.open(path) as archive:
            config = archive.config()
            tokenizer = _tokenizer(config, archive)
            state = StateDict(archive.weights(), source)
        return understand(path.stem, config, tokenizer, state)


def understand(name: str, config: Mapping[str, Any], tokenizer: Tokenizer, state: StateDict) -> Checkpoint:
    """The model that an archive's parts make; every parameter must have its place in it."""
    features = _feature_spec(config, state.source)
    encoder = _encoder_spec(config, state)
    heads = _head_specs(config, state)
    for head in heads:
        check_vocabulary(tokenizer, head, state.source)
    weights = encoder_weights(state, encoder, features.num_mels)
    weights |= _head_weights(heads, state, encoder.width)
    weights |= _feature_weights(features, state)
    state.finish(IGNORED)
    spec = ModelSpec(
        name=name,
        family="nemo",
        features=features,
        encoder=encoder,
        heads=heads,
        head=heads[0],
        max_segment_seconds=MAX_SEGMENT_SECONDS,
    )
    check_spec(spec, state.source)
    return Checkpoint(spec, tokenizer, weights)


def _feature_spec(config: Mapping[str, Any], source: str) -> FeatureSpec:
    """The front end; where NeMo's versions differ, the rule is that of NeMo 2.4 and later."""
    front = section(config, "preprocessor", source)
    rate = front_end_size(front.get("sample_rate", config.get("sample_rate", 16000)), "sample_rate", source)
    window = front.get("n_window_size") or round(front.get("window_size", 0.02) * rate)
    hop = front.get("n_window_stride") or round(front.get("window_stride", 0.01) * rate)
    window_samples = front_end_size(window, "window_size", source)
    fft_size = front.get("n_fft") or 2 ** math.ceil(math.log2(window_samples))
    normalize = front.get("normalize") or "NA"
    for name, value, known in (
        ("normalize", normalize, ("per_feature", "NA")),
        ("window", front.get("window", "hann"), ("hann",)),
        ("frame_splicing", front.get("frame_splicing", 1), (1,)),
        ("log", front.get("log", True), (True,)),
        ("mag_power", front.get("mag_power", 2.0), (2.0,)),
        ("exact_pad", front.get("exact_pad", False), (False,)),
        ("highfreq", front.get("highfreq"), (None, rate / 2)),
        ("lowfreq", front.get("lowfreq", 0), (0,)),
    ):
        require(value in known, source, f"preprocessor.{name} = {value!r}")
    return FeatureSpec(
        sample_rate=rate,
        num_mels=front_end_size(front.get("features", 64), "features", source),
        window_samples=window_samples,
        hop_samples=hop_size(hop, "window_stride", source, rate),
        fft_size=front_end_size(fft_size, "n_fft", source, least=window_samples),
        padding="constant",
        num_frames_rule="floor",
        preemphasis=number(front.get("preemph", 0.97) or 0.0, "preemph", source, least=0, most=1),
        log="add",
        normalize="per_feature" if normalize == "per_feature" else "none",
        mel_scale="slaney",
        periodic_window=False,
    )


def _feature_weights(spec: FeatureSpec, state: StateDict) -> dict[str, FloatArray]:
    """Window and filterbank from the checkpoint's buffers, computed where it has none."""
    window, filterbank = "preprocessor.featurizer.window", "preprocessor.featurizer.fb"
    num_bins = spec.fft_size // 2 + 1
    return {
        "features.window": state.take(window, spec.window_samples)
        if window in state
        else hann_window(spec.window_samples, periodic=False),
        "features.filterbank": np.ascontiguousarray(state.take(filterbank, 1, spec.num_mels, num_bins)[0].T)
        if filterbank in state
        else mel_filterbank(spec),
    }


def _encoder_spec(config: Mapping[str, Any], state: StateDict) -> EncoderSpec:
    source = state.source
    encoder = section(config, "encoder", source)
    _refuse_unknown(encoder, source)
    first = "encoder.layers.0"
    width = state.shape(f"{first}.norm_out.weight")[0]
    channels, *_, kernel = state.shape("encoder.pre_encode.conv.0.weight")
    return EncoderSpec(
        num_layers=state.count(r"encoder\.layers\.(\d+)\."),
        width=width,
        num_heads=state.shape(f"{first}.self_attn.pos_bias_u")[0],
        feed_forward_width=state.shape(f"{first}.feed_forward1.linear1.weight")[0],
        conv_kernel=state.shape(f"{first}.conv.depthwise_conv.weight")[-1],
        conv_norm=encoder.get("conv_norm_type", "batch_norm"),
        subsampling=encoder.get("subsampling", "striding"),
        subsampling_factor=encoder.get("subsampling_factor", 4),
        subsampling_channels=channels,
        subsampling_kernel=kernel,
        attention="rel_pos",
        rotary_base=0.0,
        bias=f"{first}.feed_forward1.linear1.bias" in state,  # often left out of the config
        xscaling=bool(encoder.get("xscaling", True)),
    )


def _refuse_unknown(encoder: Mapping[str, Any], source: str) -> None:
    """Options that change the arithmetic in ways we do not have."""
    context = encoder.get("att_context_size") or [-1, -1]
    contexts = context if isinstance(context[0], list) else [context]
    target = str(encoder.get("_target_", "ConformerEncoder"))
    require("ConformerEncoder" in target, source, f"the encoder {target}")
    require([-1, -1] in contexts, source, f"limited attention context {context}")
    for name, default, known in (
        ("self_attention_model", "rel_pos", ("rel_pos",)),
        ("subsampling_factor", 4, (2, 4, 8, 16)),
        ("subsampling", "striding", ("striding", "dw_striding")),
        ("conv_norm_type", "batch_norm", ("batch_norm", "layer_norm")),
        ("causal_downsampling", False, (False,)),
        ("conv_context_size", None, (None,)),
        ("reduction", None, (None,)),
        ("untie_biases", True, (True,)),
        ("use_pytorch_sdpa", False, (False, True)),
    ):
        value = encoder.get(name, default)
        require(value in known, source, f"encoder.{name} = {value!r}")


def _head_specs(config: Mapping[str, Any], state: StateDict) -> tuple[HeadSpec, ...]:
    """The heads that the weights hold: a transducer, a CTC decoder, or both (hybrid)."""
    heads = []
    if "joint.enc.weight" in state:
        heads.append(_transducer_spec(config, state))
    for prefix in CTC_PREFIXES:
        if f"{prefix}.weight" in state:
            num_classes = state.shape(f"{prefix}.weight")[0]
            heads.append(HeadSpec("ctc", num_classes, blank=num_classes - 1))
    require(bool(heads), state.source, f"no transducer or CTC head (target {config.get('target')})")
    return tuple(heads)


def _transducer_spec(config: Mapping[str, Any], state: StateDict) -> HeadSpec:
    num_classes = state.shape("decoder.prediction.embed.weight")[0]
    num_durations = state.shape(f"{joint_output(state, 'joint')}.weight")[0] - num_classes
    durations = _durations(config, state.source) if num_durations else (0,)
    if num_durations and len(durations) != num_durations:
        raise CheckpointError(
            f"{state.source}: the joint has {num_durations} duration outputs, "
            f"the config lists {list(durations)}"
        )
    jointnet = (config.get("joint") or {}).get("jointnet") or {}
    activation = jointnet.get("activation", "relu")
    require(activation in ("relu", "tanh"), state.source, f"joint activation {activation!r}")
    return HeadSpec(
        kind="tdt" if num_durations else "rnnt",
        num_classes=num_classes,
        blank=num_classes - 1,
        durations=durations,
        max_symbols=_max_symbols(config, state.source),
        activation=activation,
    )


def _durations(config: Mapping[str, Any], source: str) -> tuple[int, ...]:
    """TDT's table, from the first of the three places where configs hold it."""
    loss = config.get("loss") or {}
    for place in (
        (config.get("decoding") or {}).get("durations"),
        (config.get("model_defaults") or {}).get("tdt_durations"),
        (loss.get("tdt_kwargs") or {}).get("durations"),
    ):
        if place:
            return tuple(whole(value, "durations", source, least=0, most=MOST_DURATION) for value in place)
    return ()


def _max_symbols(config: Mapping[str, Any], source: str) -> int:
    greedy = (config.get("decoding") or {}).get("greedy") or {}
    limit = greedy.get("max_symbols", greedy.get("max_symbols_per_step"))
    return whole(limit or DEFAULT_MAX_SYMBOLS, "max_symbols", source, most=MOST_SYMBOLS)


def _head_weights(heads: Sequence[HeadSpec], state: StateDict, width: int) -> dict[str, FloatArray]:
    weights: dict[str, FloatArray] = {}
    for head in heads:
        if head.kind == "ctc":
            prefix = next(prefix for prefix in CTC_PREFIXES if f"{prefix}.weight" in state)
            weights |= ctc_weights(state, head, width, prefix)
        else:
            names = TransducerNames("decoder.prediction.embed", "decoder.prediction.dec_rnn.lstm", "joint")
            weights |= transducer_weights(state, head, width, names)
    return weights


def _tokenizer(config: Mapping[str, Any], archive: NemoArchive) -> Tokenizer:
    """SentencePiece from the archive, or the characters that the config lists."""
    settings = config.get("tokenizer")
    if settings is None:
        labels = config.get("labels") or (config.get("decoder") or {}).get("vocabulary")
        if not labels:
            raise UnsupportedModelError(
                f"{archive.source}: the config has no tokenizer and no list of labels"
            )
        return character_tokenizer(labels, archive.source)
    kind = settings.get("type", "bpe")
    require(kind == "bpe", archive.source, f"tokenizer.type = {kind!r}")
    name = str(settings.get("model_path") or "tokenizer.model").removeprefix("nemo:")
    return Tokenizer.from_sentencepiece(
        archive.read(PurePosixPath(name).name, MAX_TOKENIZER_BYTES), archive.source
    )
