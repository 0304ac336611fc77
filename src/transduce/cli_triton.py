"""The command `transduce triton`: a model repository for NVIDIA Triton's Python backend.

In: arguments and TRANSDUCE_* variables. Out: a model below a folder, and an exit code: 0 written, 2 usage, 3
the model cannot be read or run, or the disk is full. `register` adds the command to an application.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from transduce import hub
from transduce.batching import BATCH_SECONDS
from transduce.cli_options import Backend, Head, Offline, Precision, Threads, choice_of
from transduce.errors import TransduceError, import_extra
from transduce.hub.progress import silent
from transduce.triton.settings import MOST_BATCH_SECONDS, Settings

__all__ = ["register", "triton"]

UNUSABLE = 3
"""Exit code."""

MOST_INSTANCES = 256

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}"
"""A folder's name, with room below the 255 bytes that file systems take."""


def triton(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for -m: a file, a folder, a name, `demo`.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The model repository; made where missing.")],
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(envvar="TRANSDUCE_DEVICE", help="What the instances run on.")
    ] = "cpu",
    instances: Annotated[
        int,
        typer.Option(
            envvar="TRANSDUCE_INSTANCES",
            min=1,
            max=MOST_INSTANCES,
            help="Processes; with cuda, on each GPU.",
        ),
    ] = 1,
    max_batch_audio_seconds: Annotated[
        float,
        typer.Option(
            envvar="TRANSDUCE_MAX_BATCH_AUDIO_SECONDS",
            min=1,
            max=MOST_BATCH_SECONDS,
            help="Audio recognised at once, of all requests.",
        ),
    ] = BATCH_SECONDS,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", envvar="TRANSDUCE_STREAM", help="Answer with each segment once it is final (gRPC)."
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            envvar="TRANSDUCE_NAME", help="Of the model in Triton.  [default: transduce or transduce_stream]"
        ),
    ] = None,
    head: Head = "auto",
    backend: Backend = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", envvar="TRANSDUCE_OVERWRITE", help="Replace a model of that name.")
    ] = False,
    offline: Offline = False,
) -> None:
    """Write a model repository for Triton: text, words and segments of any audio.

    \b
    transduce triton demo repository && tritonserver --model-repository repository
    """
    choice_of(backend, precision=precision, head=head)
    name = _checked_name(name or ("transduce_stream" if stream else "transduce"))
    try:
        import_extra("onnx", "cpu")
        from transduce.triton.repository import Deployment, check_target, write

        with _usage():
            check_target(folder, name, overwrite=overwrite)
        settings = Settings("", backend, precision, head, threads or 0, max_batch_audio_seconds)
        deployment = Deployment(name, stream, device, instances, settings)
        messages = replace(hub.Settings.from_environment(), announce=_complain, progress=silent)
        spec = write(model, folder, deployment, offline=offline, overwrite=overwrite, hub_settings=messages)
    except TransduceError as error:
        _complain(" ".join(f"error: {error} [{error.code}]".splitlines()))
        raise typer.Exit(UNUSABLE) from None
    _complain(f"{folder / name}: {spec.name}, {spec.head.kind}, {instances} x {device}")


def register(app: typer.Typer) -> None:
    """Add the command `triton` to an application."""
    app.command()(triton)


def _checked_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise typer.BadParameter(f"--name {name!r} is not of letters, digits, _, - and ., at most 200")
    return name


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _complain(text: str) -> None:
    typer.echo(text, err=True)
