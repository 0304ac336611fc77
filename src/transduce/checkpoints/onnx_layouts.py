"""Models in ONNX: the folders that `transduce export` writes, and those of other tools.

In: a folder, or one `.onnx` file in it. Out: a backend and a tokenizer. Files are told apart by their
names (`onnx_files`), models by what lies beside them:

    GigaAM's own export     NAME.yaml, NAME_encoder|decoder|joint.onnx or NAME.onnx, NAME_tokenizer.model
    onnx-asr, GigaAM        vN_rnnt_encoder|decoder|joint.onnx or vN_ctc.onnx, ..._vocab.txt
    onnx-asr, NeMo          config.json, vocab.txt, encoder-model|decoder_joint-model.onnx or model.onnx
    sherpa-onnx             tokens.txt, encoder|decoder|joiner.onnx or model.onnx, notes inside the encoder

docs/onnx.md says what each leaves open and what is assumed then.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from transduce.checkpoints.bounds import check_spec
from transduce.checkpoints.config import translated
from transduce.checkpoints.onnx_files import OnnxFiles, find, read_text
from transduce.checkpoints.state import check_vocabulary
from transduce.errors import CheckpointError, DeviceError, UnsupportedModelError
from transduce.features import hann_window, mel_filterbank
from transduce.onnx import layout
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.inline import Facts, Parts, facts
from transduce.onnx.openvino import HINTS
from transduce.onnx.pick import Engine
from transduce.tokenizer import MAX_MODEL_BYTES, Tokenizer
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, ModelSpec, Weights

__all__ = ["describe", "load"]

BLANK = "<blk>"

DEFAULT_MAX_SYMBOLS = 10
"""As NeMo and GigaAM's torch path; GigaAM's ONNX path stops at 3 and so writes other text."""

NEMO = FeatureSpec(
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
GIGAAM_V2 = FeatureSpec(
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
GIGAAM_V3 = replace(
    GIGAAM_V2, window_samples=320, fft_size=320, padding="none", num_frames_rule="whole_windows"
)

MAX_SEGMENT_SECONDS = {"nemo": 30.0, "gigaam": 25.0}
SUBSAMPLING_FACTOR = {"nemo": 8, "gigaam": 4}


# What model


def describe(files: OnnxFiles, facts: Facts) -> tuple[ModelSpec, Tokenizer, Weights]:
    """Spec, tokenizer and the front end's weights, from the files and what the graphs tell."""
    family = _family(files, facts)
    tokenizer = _tokenizer(files)
    features = _features(files, facts, family)
    head = _head(files, facts, family, tokenizer)
    factor = int(facts.metadata.get("subsampling_factor") or files.settings.get("subsampling_factor") or 0)
    factor = factor or int(_part(files, "encoder").get("subsampling_factor") or SUBSAMPLING_FACTOR[family])
    limit = facts.position_limit_frames
    seconds = MAX_SEGMENT_SECONDS[family]
    if limit is not None:
        seconds = min(seconds, (limit - 1) * factor * features.hop_samples / features.sample_rate)
    spec = ModelSpec(
        name=files.name,
        family=family,
        features=features,
        encoder=_encoder(factor, facts.width or 0),
        heads=(head,),
        head=head,
        max_segment_seconds=seconds,
        position_limit_frames=limit,
    )
    check_spec(spec, str(files.encoder))
    weights = {
        "features.window": hann_window(features.window_samples, periodic=features.periodic_window),
        "features.filterbank": mel_filterbank(features),
    }
    return spec, tokenizer, weights


def _part(files: OnnxFiles, name: str) -> Mapping[str, Any]:
    part = files.settings.get(name)
    return part if isinstance(part, Mapping) else {}


def _family(files: OnnxFiles, facts: Facts) -> Literal["nemo", "gigaam"]:
    kind = str(files.settings.get("model_type", ""))
    if "model_class" in files.settings or kind.startswith("gigaam"):
        return "gigaam"
    if kind.startswith("nemo-conformer-"):
        return "nemo"
    notes = " ".join([*facts.metadata, *facts.metadata.values()]).lower()
    if "giga" in notes or re.match(r"v\d_|multilingual", files.name):
        return "gigaam"
    if "encdec" in notes or "nemo" in notes:
        return "nemo"
    raise UnsupportedModelError(
        f"{files.encoder}: neither the files beside it nor the notes inside say whether this is a NeMo or a "
        "GigaAM model; docs/onnx.md lists the layouts that are read"
    )


def _features(files: OnnxFiles, facts: Facts, family: str) -> FeatureSpec:
    if family == "nemo":
        normalize = facts.metadata.get("normalize_type", "per_feature")
        known: Literal["per_feature", "none"] = "per_feature" if normalize == "per_feature" else "none"
        return replace(NEMO, num_mels=facts.num_mels, normalize=known)
    front = _part(files, "preprocessor")
    if not front:
        names = " ".join([files.name, files.folder.resolve().name, *facts.metadata.values()])
        spec = GIGAAM_V3 if re.search(r"v3|multilingual", names) else GIGAAM_V2
        return replace(spec, num_mels=facts.num_mels)
    spec = GIGAAM_V2 if front.get("center", True) else GIGAAM_V3
    window = int(front.get("win_length", spec.window_samples))
    return replace(
        spec,
        num_mels=facts.num_mels,
        window_samples=window,
        hop_samples=int(front.get("hop_length", spec.hop_samples)),
        fft_size=int(front.get("n_fft", window)),
    )


def _encoder(factor: int, width: int) -> EncoderSpec:
    """What is known of an encoder that is only a graph; zeros stand for what it does not tell."""
    return EncoderSpec(
        num_layers=0,
        width=width,
        num_heads=0,
        feed_forward_width=0,
        conv_kernel=0,
        conv_norm="batch_norm",
        subsampling="striding",
        subsampling_factor=factor,
        subsampling_channels=0,
        subsampling_kernel=0,
        attention="rel_pos",
        rotary_base=0.0,
        bias=True,
        xscaling=False,
    )


def _head(files: OnnxFiles, facts: Facts, family: str, tokenizer: Tokenizer) -> HeadSpec:
    """A blank that the vocabulary does not list comes last; what is more than classes are durations."""
    blank = tokenizer.pieces.index(BLANK) if BLANK in tokenizer.pieces else tokenizer.size
    num_classes = tokenizer.size + (BLANK not in tokenizer.pieces)
    num_durations = facts.num_outputs - num_classes
    may_be_tdt = family == "nemo" and files.decoder and "rnnt" not in str(files.settings.get("model_type"))
    is_whole = family == "gigaam" or BLANK in tokenizer.pieces
    if num_durations < 0 or (num_durations and not may_be_tdt) or not is_whole:
        raise CheckpointError(
            f"{files.encoder}: the model has {facts.num_outputs} outputs a frame and its vocabulary "
            f"{num_classes} with blank; they do not belong together"
        )
    max_symbols = int(files.settings.get("max_tokens_per_step") or DEFAULT_MAX_SYMBOLS)
    if files.decoder is None:
        return HeadSpec("ctc", num_classes, blank)
    if num_durations:
        # No layout stores the table of durations; all released models have 0, 1, 2, ...
        return HeadSpec("tdt", num_classes, blank, tuple(range(num_durations)), max_symbols)
    return HeadSpec("rnnt", num_classes, blank, max_symbols=max_symbols)


def _tokenizer(files: OnnxFiles) -> Tokenizer:
    decoding = _part(files, "decoding")
    characters = decoding.get("vocabulary")
    if isinstance(characters, list) and characters:
        return Tokenizer.from_characters([str(character) for character in characters], str(files.encoder))
    models = [
        f"{files.name}_tokenizer.model",
        Path(str(decoding.get("model_path") or "tokenizer.model")).name,
    ]
    for path in (files.folder / name for name in models):
        if path.is_file():
            with path.open("rb") as file:
                return Tokenizer.from_sentencepiece(file.read(MAX_MODEL_BYTES + 1), str(path))
    version = files.name.partition("_")[0]
    lists = [f"{files.name}_vocab.txt", f"{version}_vocab.txt", "vocab.txt", "tokens.txt"]
    for path in (files.folder / name for name in lists):
        if path.is_file():
            return Tokenizer.from_vocab(read_text(path), str(path))
    raise CheckpointError(
        f"{files.encoder}: its vocabulary is missing; put {models[0]} or {lists[2]} beside it"
    )


# Loading


def load(
    path: Path,
    *,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
    window: int | None = None,
    engine: Engine = "onnx",
) -> tuple[OnnxBackend, Tokenizer]:
    """Open a model in ONNX. Its precision is the files'; fp32 and auto take any, others insist.

    OpenVINO computes fp32 files in any precision that this CPU has.

    Of int8 files beside fp32 ones, `precision` chooses. Raises CheckpointError, UnsupportedModelError,
    DeviceError or MissingExtraError.
    """
    folder = path.parent if path.name == layout.MODEL else path
    if layout.is_exported(folder):
        exported = _exported(folder)
        _insist(precision, exported.precision, folder, engine)
        backend = OnnxBackend.of_exported(
            exported, device=device, precision=precision, threads=threads, engine=engine
        )
        return backend, exported.tokenizer
    files = find(path, precision)
    _insist(precision, "int8" if ".int8" in files.encoder.name else "fp32", files.encoder, engine)
    opened = Parts.open(files.encoder, files.decoder, files.joint)
    with translated(str(files.encoder)):
        spec, tokenizer, weights = describe(files, facts(opened))
    backend = OnnxBackend.of_parts(
        spec,
        weights,
        opened,
        device=device,
        precision=precision,
        threads=threads,
        window=window,
        engine=engine,
    )
    return backend, tokenizer


def _exported(folder: Path) -> layout.Exported:
    """A folder of ours whose settings can be and whose tokenizer is the head's."""
    exported = layout.read(folder)
    check_spec(exported.spec, str(folder / layout.SPEC))
    check_vocabulary(exported.tokenizer, exported.spec.head, str(folder))
    return exported


def _insist(wanted: str, found: str, path: Path, engine: Engine) -> None:
    """Raise DeviceError where a coarser precision was asked for than the files have, or can be run in."""
    if engine == "openvino" and found == "fp32" and wanted in HINTS:
        return
    if wanted not in ("auto", "fp32", found):
        other = "export the checkpoint in that precision"
        if wanted == "bf16":  # no file is
            other = "run an fp32 export in OpenVINO (--backend openvino)"
        raise DeviceError(
            f"precision {wanted!r} was asked for, and {path} is {found}; leave --precision out, or {other}"
        )
