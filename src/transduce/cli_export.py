"""The command `transduce export`: a checkpoint as one ONNX graph that needs no torch to run.

In: arguments and TRANSDUCE_* variables. Out: a folder, and an exit code: 0 written, 1 a recording to
calibrate by that cannot be read, 2 usage, 3 a model that cannot be, or a disk that is full. torch reads
the checkpoint; onnx writes the graph.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from transduce import audio
from transduce.cli_options import Head, Offline, choice_of
from transduce.errors import AudioError, TransduceError
from transduce.outputs import obstacle
from transduce.transcriber import read_checkpoint

__all__ = ["export", "register"]

FAILED, UNUSABLE = 1, 3
"""Exit codes: for a recording, for everything else."""

ExportPrecision: TypeAlias = Annotated[
    Literal["fp32", "fp16", "int8"],
    typer.Option(envvar="TRANSDUCE_PRECISION", help="Of the encoder; fp32 is exact."),
]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .nemo or .ckpt file, a name, or `demo`.")],
    target: Annotated[str, typer.Argument(metavar="DIR", help="Where the graph goes; made where missing.")],
    precision: ExportPrecision = "fp32",
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            envvar="TRANSDUCE_CALIBRATE",
            help="For int8: a recording of speech like yours, some minutes if you can; repeat it.",
        ),
    ] = None,
    head: Head = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", envvar="TRANSDUCE_OVERWRITE", help="Replace an earlier export.")
    ] = False,
    offline: Offline = False,
) -> None:
    """Write a checkpoint as one ONNX graph, from samples to labels.

    \b
    transduce export model.nemo exported && transduce transcribe talk.mp4 -m exported
    transduce export model.nemo small --precision int8 --calibrate talk.wav    fast on a CPU
    """
    from transduce.onnx.export import FILES
    from transduce.onnx.export import export as write

    if calibrate and precision != "int8":
        raise typer.BadParameter("--calibrate is for int8: add --precision int8")
    choice_of(head=head)
    if not target:
        raise typer.BadParameter("DIR is empty; `.` is this folder")
    folder = Path(target)
    if reason := obstacle(folder):
        raise typer.BadParameter(f"no graph can be written to {target}: {reason}")
    if not overwrite and (there := _existing(folder, FILES)):
        raise typer.BadParameter(f"{there[0]} exists already; --overwrite replaces it")
    try:
        checkpoint = read_checkpoint(model, head=head, offline=offline)
        rate = checkpoint.spec.features.sample_rate
        speech = [audio.load(path, rate=rate).samples for path in calibrate or ()]
        written = write(
            checkpoint.spec,
            checkpoint.weights,
            checkpoint.tokenizer,
            folder,
            precision=precision,
            calibration=speech,
        )
    except TransduceError as error:
        typer.echo(" ".join(f"error: {error} [{error.code}]".splitlines()), err=True)
        raise typer.Exit(FAILED if isinstance(error, AudioError) else UNUSABLE) from None
    size = sum(path.stat().st_size for path in _existing(folder, FILES))
    typer.echo(
        f"{written.model}: {written.spec.head.kind}, {precision}, {size / 1e6:.1f} MB in {folder}", err=True
    )


def _existing(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of those names that are in the folder."""
    return [path for path in (folder / name for name in names) if os.path.lexists(path)]


def register(app: typer.Typer) -> None:
    """Add the command `export` to an application."""
    app.command()(export)
