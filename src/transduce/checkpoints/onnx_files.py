"""Which files of a folder are a model in ONNX of another tool.

In: a folder, or one `.onnx` file in it. Out: OnnxFiles, with the settings that lie beside the graphs. Files
are told apart by their names alone; no graph is opened.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.checkpoints.config import parse_yaml
from transduce.errors import CheckpointError, UnsupportedModelError

__all__ = ["OnnxFiles", "find", "read_text"]

MAX_TEXT_BYTES = 16 << 20


@dataclass(frozen=True)
class OnnxFiles:
    """The files of one model of another tool."""

    name: str
    encoder: Path
    """Of a CTC model: the whole."""
    decoder: Path | None
    joint: Path | None
    """None with a decoder: the decoder file holds both."""
    settings: Mapping[str, Any]
    """GigaAM's yaml or onnx-asr's config.json; empty where there is none."""

    @property
    def folder(self) -> Path:
        return self.encoder.parent

    @property
    def is_known(self) -> bool:
        """Whether the names say that this is a model; a lone graph may be anything, a VAD say."""
        stem = _stem(self.encoder)
        return bool(self.decoder) or stem == "model" or "ctc" in stem or "model_class" in self.settings


def find(path: Path, precision: str = "fp32") -> OnnxFiles:
    """The model at a folder or `.onnx` file; of twins the one in int8 if that is the precision.

    Raises CheckpointError if a part is missing, UnsupportedModelError if there is no model, or several.
    """
    folder = path if path.is_dir() else path.parent
    by_stem = _by_stem(folder, "int8" if ".int8" in path.name else precision)
    models = list(_models(by_stem, folder))
    if path.is_dir():
        chosen = [model for model in models if model.is_known]
    else:
        wanted = by_stem.get(_stem(path))
        chosen = [model for model in models if wanted in (model.encoder, model.decoder, model.joint)]
    if not chosen:
        raise UnsupportedModelError(
            f"{path}: no ONNX model of a layout that is read; docs/onnx.md lists them"
        )
    if len(chosen) > 1:
        names = ", ".join(sorted(model.encoder.name for model in chosen))
        raise UnsupportedModelError(f"{folder}: holds several models; give the path of one of: {names}")
    return chosen[0]


def _by_stem(folder: Path, precision: str) -> dict[str, Path]:
    """Graphs by name without `.onnx` or `.int8.onnx`; of twins the one that fits the precision."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.onnx")):
        if _stem(path) not in found or (".int8" in path.name) == (precision == "int8"):
            found[_stem(path)] = path
    return found


def _stem(path: Path) -> str:
    return path.name.removesuffix(".onnx").removesuffix(".int8")


_DECODERS = (
    # (encoder, decoder, joint), by the ends of the stems
    ("encoder-model", "decoder_joint-model", None),
    ("encoder", "decoder", "joiner"),
    ("encoder", "decoder", "joint"),
)


def _models(by_stem: Mapping[str, Path], folder: Path) -> Iterator[OnnxFiles]:
    for stem, path in by_stem.items():
        if stem.endswith(("decoder", "joint", "joiner", "decoder_joint-model")):
            continue
        if not stem.endswith(("encoder", "encoder-model")):
            yield OnnxFiles(_model_name(stem, folder), path, None, None, _settings(stem, folder))
            continue
        for encoder, decoder, joint in _DECODERS:
            prefix = stem.removesuffix(encoder)
            parts = [by_stem.get(prefix + end) for end in (decoder, joint) if end]
            if stem.endswith(encoder) and all(parts):
                name = prefix.rstrip("_-")
                yield OnnxFiles(
                    _model_name(name, folder),
                    path,
                    parts[0],
                    parts[1] if joint else None,
                    _settings(name, folder),
                )
                break
        else:
            raise CheckpointError(f"{path}: its decoder or joint is missing; copy the whole folder")


def _model_name(stem: str, folder: Path) -> str:
    """Files that are called just `model` or `encoder` bear their folder's name."""
    return stem if stem not in ("", "model") else folder.resolve().name


def _settings(stem: str, folder: Path) -> Mapping[str, Any]:
    for path in (folder / f"{stem}.yaml", folder / "config.json"):
        if path.is_file():
            text = read_text(path)
            if path.suffix == ".yaml":
                return parse_yaml(text.encode(), str(path))
            try:
                content = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise CheckpointError(f"{path}: cannot be read ({error})") from error
            return content if isinstance(content, dict) else {}
    return {}


def read_text(path: Path) -> str:
    """A text file, whose faults are a CheckpointError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
