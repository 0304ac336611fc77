"""Writes a model into a Triton model repository.

In: a model by path or name, a folder, a `Deployment`. Out: `DIR/NAME/config.pbtxt` and `DIR/NAME/1/` with
`model.py` and the model's own files, which appear whole or not at all. A checkpoint becomes an ONNX graph, so
that no torch is needed where it runs, unless the torch engine is asked for. The repository needs nothing but
`transduce` in the environment of Triton's Python backend.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version as package_version
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from transduce import hub
from transduce.errors import ResourceError, TransduceError
from transduce.onnx.export import export
from transduce.transcriber import read_checkpoint
from transduce.triton.loading import load
from transduce.triton.outputs import OUTPUTS
from transduce.triton.settings import Settings
from transduce.types import ModelSpec

__all__ = ["Deployment", "check_target", "configuration", "write"]

MODEL = "model"
VERSION = "1"
DEPLOYED = "model.py"
CONFIGURATION = "config.pbtxt"
TOKENIZERS = "*_tokenizer.model"
"""Of GigaAM's checkpoints, which may need one beside them."""
MAX_ROWS = 64
"""Recordings in one request of a client that batches them itself, and in one batch of Triton's."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to write, and what it runs on."""

    name: str = "transduce"
    """Of the model in Triton."""
    is_streamed: bool = False
    """Whether segments are answers of their own (a decoupled model), for gRPC streams."""
    device: Literal["cpu", "cuda"] = "cpu"
    num_instances: int = 1
    """On a GPU, on each one."""
    settings: Settings = Settings(MODEL)  # noqa: RUF009 - frozen
    """Its `model` is set by `write`."""


def write(
    model: str,
    folder: Path,
    deployment: Deployment,
    *,
    offline: bool = False,
    overwrite: bool = False,
    hub_settings: hub.Settings | None = None,
) -> ModelSpec:
    """Write a model below `folder`, load it once to see that it works, and tell what it is.

    Raises what `check_target` raises, ResourceError when the disk is full, and what `load_model` raises.
    """
    target = check_target(folder, deployment.name, overwrite=overwrite)
    with _disk_errors(target), _made(folder), TemporaryDirectory(prefix=".transduce-", dir=folder) as made:
        new = Path(made, deployment.name)
        version = new / VERSION
        version.mkdir(parents=True)
        path = _put_model(model, version, deployment.settings, offline, hub_settings)
        deployment = replace(deployment, settings=replace(deployment.settings, model=path))
        spec = _checked(version, deployment.settings, model)
        deployed = files("transduce.triton").joinpath(DEPLOYED)
        (version / DEPLOYED).write_bytes(deployed.read_bytes())
        (new / CONFIGURATION).write_text(configuration(deployment), encoding="utf-8")
        if target.exists():
            os.replace(target, Path(made, "old"))
        os.replace(new, target)
    return spec


def check_target(folder: Path, name: str, *, overwrite: bool) -> Path:
    """Where a model goes. ValueError where something is that may not be replaced."""
    target = folder / name
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    if os.path.lexists(target) and (target.is_symlink() or not (target / CONFIGURATION).is_file()):
        raise ValueError(
            f"{target} is there and is no model of Triton's ({CONFIGURATION}): choose another name"
        )
    if target.exists() and not overwrite:
        raise ValueError(f"{target} is there: choose another --name, or replace it with --overwrite")
    return target


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; one that was not there before and holds nothing after an error is taken away again."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
        raise


def _put_model(
    model: str, version: Path, settings: Settings, offline: bool, hub_settings: hub.Settings | None
) -> str:
    """Put the model's files into the folder of the version; what is to be loaded there.

    A folder keeps its name, since models of other tools may be called by it, unless Triton needs the name.
    """
    engines = ("torch",) if settings.backend == "torch" else hub.installed_engines()
    path = hub.resolve(
        model, engines=engines, precision=settings.precision, offline=offline, settings=hub_settings
    )
    if path.is_dir():
        return _copied(path.iterdir(), version / _folder_name(path)).name
    if path.suffix == ".onnx":
        return f"{_copied(path.parent.iterdir(), version / _folder_name(path.parent)).name}/{path.name}"
    if settings.backend == "torch":
        return f"{_copied([path, *path.parent.glob(TOKENIZERS)], version / MODEL).name}/{path.name}"
    checkpoint = read_checkpoint(model, head=settings.head, offline=offline)
    spec, tokenizer = checkpoint.spec, checkpoint.tokenizer
    precision = "fp32" if settings.backend == "openvino" else settings.precision  # it rounds by itself
    export(spec, checkpoint.weights, tokenizer, version / MODEL, precision=precision)
    return MODEL


def _folder_name(source: Path) -> str:
    name = source.resolve().name
    return MODEL if name == DEPLOYED else name


def _copied(paths: Iterable[Path], folder: Path) -> Path:
    """A folder with copies of the files among the paths, whose permissions are not kept."""
    folder.mkdir()
    for path in paths:
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    return folder


def _checked(version: Path, settings: Settings, source: str) -> ModelSpec:
    """The spec of what was put there; it must load, if only on a CPU. Errors name the source of the copy."""
    try:
        with load(version, settings, "cpu", 1) as model:
            return model.spec
    except TransduceError as error:
        raise type(error)(str(error).replace(str(version / settings.model), source)) from error


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, TransduceError):
            raise
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{target} could not be written ({reason}): free space or choose another folder"
        ) from error


# config.pbtxt


def configuration(deployment: Deployment) -> str:
    """The content of `config.pbtxt`."""
    kind = "KIND_GPU" if deployment.device == "cuda" else "KIND_CPU"
    parameters = deployment.settings.to_parameters()
    return "\n".join(
        [
            f"# Written by transduce {package_version('transduce')}; docs/triton.md explains it.",
            f"name: {json.dumps(deployment.name)}",
            'backend: "python"',
            f"max_batch_size: {MAX_ROWS}",
            "",
            "# AUDIO: the bytes of a file of any kind. Or SAMPLES at SAMPLE_RATE (left out: the model's), of",
            "# which the first NUM_SAMPLES are audio (left out: all). Requests of any length share batches.",
            _tensor("input", "AUDIO", "TYPE_STRING", 1, "optional: true"),
            _tensor("input", "SAMPLES", "TYPE_FP32", -1, "optional: true allow_ragged_batch: true"),
            _tensor("input", "SAMPLE_RATE", "TYPE_INT32", 1, "optional: true"),
            _tensor("input", "NUM_SAMPLES", "TYPE_INT32", 1, "optional: true"),
            "",
            *(_tensor("output", name, "TYPE_STRING", 1) for name in OUTPUTS),
            "",
            f"instance_group {{ kind: {kind} count: {deployment.num_instances} }}",
            "dynamic_batching {}",
            *(["model_transaction_policy { decoupled: true }"] if deployment.is_streamed else []),
            "",
            *(
                f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(text)} }} }}"
                for key, text in parameters.items()
            ),
            "",
        ]
    )


def _tensor(kind: str, name: str, data_type: str, size: int, more: str = "") -> str:
    return f'{kind} {{ name: "{name}" data_type: {data_type} dims: [ {size} ] {more}'.rstrip() + " }"
