"""What lies beside an exported graph: `spec.json` and the tokenizer, written and read.

    DIR/model.onnx          the graph; its weights too, where they fit
    DIR/model.onnx.data     the weights of larger models
    DIR/spec.json           this format's version, the ModelSpec, precision, window, file sizes
    DIR/tokenizer.model     the SentencePiece model; other vocabularies are in spec.json

In: the same data as objects. Out: an Exported. It opens no graph and needs no onnx.
"""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from transduce.errors import CheckpointError, UnsupportedModelError
from transduce.tokenizer import MAX_MODEL_BYTES, Tokenizer
from transduce.types import ModelSpec

__all__ = ["MODEL", "SPEC", "Exported", "is_exported", "parse", "read", "write"]

MODEL, DATA, SPEC, SENTENCEPIECE = "model.onnx", "model.onnx.data", "spec.json", "tokenizer.model"
FORMAT, VERSION = "transduce-onnx", 1
MAX_SPEC_BYTES = 16 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """An exported model, all but its graph."""

    folder: Path
    spec: ModelSpec
    tokenizer: Tokenizer
    precision: str
    window: int

    @property
    def model(self) -> Path:
        return self.folder / MODEL


def is_exported(folder: Path) -> bool:
    """Whether a folder is one that we exported."""
    return (folder / SPEC).is_file()


def write(exported: Exported) -> None:
    """Write all but the graph, which must be there: its files' sizes are noted."""
    folder, tokenizer = exported.folder, exported.tokenizer
    if tokenizer.model_bytes is not None:
        (folder / SENTENCEPIECE).write_bytes(tokenizer.model_bytes)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "precision": exported.precision,
        "window": exported.window,
        "files": {name: (folder / name).stat().st_size for name in (MODEL, DATA) if (folder / name).exists()},
        "spec": asdict(exported.spec),
        "tokenizer": _tokenizer_content(tokenizer),
    }
    (folder / SPEC).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def read(folder: Path) -> Exported:
    """Read an exported folder; CheckpointError if a part is missing, cut short or malformed."""
    path = folder / SPEC
    content = _json(path)
    if content.get("format") != FORMAT:
        raise UnsupportedModelError(f"{path}: not a spec that `transduce export` wrote")
    if content.get("version") != VERSION:
        raise UnsupportedModelError(
            f"{path}: written by another version of transduce (format {content.get('version')!r}, "
            f"this one reads {VERSION}); export the model again"
        )
    _check_files(folder, parse(dict[str, int], content.get("files"), f"{path}: files"))
    spec = parse(ModelSpec, content.get("spec"), f"{path}: spec")
    return Exported(
        folder=folder,
        spec=replace(spec, heads=(spec.head,)),  # the graph has one; early exports listed all of the model
        tokenizer=_tokenizer(folder, content.get("tokenizer")),
        precision=parse(str, content.get("precision"), f"{path}: precision"),
        window=parse(int, content.get("window"), f"{path}: window"),
    )


def parse(kind: Any, value: Any, where: str) -> Any:
    """A value of JSON as the dataclass, tuple, Literal or plain type it must be; else CheckpointError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _parse_dataclass(kind, value, where)
    if origin in (types.UnionType, typing.Union):  # only T | None occurs
        return None if value is None else parse(arguments[0], value, where)
    if origin is typing.Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(parse(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {str(key): parse(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise CheckpointError(
        f"{where}: {value!r} is not what belongs here; the file is damaged, export it again"
    )


def _parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        raise CheckpointError(
            f"{where}: needs exactly the entries {', '.join(names)}; export the model again"
        )
    return kind(**{name: parse(hints[name], value[name], f"{where}.{name}") for name in names})


def _json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SPEC_BYTES + 1)
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); export the model again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object; export the model again")
    return content


def _check_files(folder: Path, sizes: Mapping[str, int]) -> None:
    for name in {MODEL: 0, **sizes}:
        path = folder / name
        if name not in (MODEL, DATA) or not path.is_file():
            raise CheckpointError(f"{path}: this part of the model is missing; copy the whole folder")
        if name in sizes and path.stat().st_size != sizes[name]:
            raise CheckpointError(
                f"{path}: {path.stat().st_size:,} bytes where {sizes[name]:,} belong; the copy is cut short "
                "or damaged, fetch it again"
            )


def _tokenizer_content(tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.model_bytes is not None:
        return {"kind": "sentencepiece"}
    kind = "characters" if tokenizer.prefix == "kept" else "pieces"
    return {"kind": kind, "pieces": list(tokenizer.pieces)}


def _tokenizer(folder: Path, content: Any) -> Tokenizer:
    where = f"{folder / SPEC}: tokenizer"
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "sentencepiece":
        path = folder / SENTENCEPIECE
        try:
            with path.open("rb") as file:
                return Tokenizer.from_sentencepiece(file.read(MAX_MODEL_BYTES + 1), str(path))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); copy the whole folder") from error
    pieces = parse(tuple[str, ...], content.get("pieces") if isinstance(content, dict) else None, where)
    if kind == "characters":
        return Tokenizer.from_characters(pieces, where)
    return Tokenizer.from_pieces(pieces, where)
