"""The command `transduce export`: a checkpoint as one ONNX graph that needs no torch to run.

In: arguments and TRANSDUCE_* variables. Out: a folder, and an exit code: 0 written, 2 usage, 3 a model
that cannot be read or a disk that is full. torch reads the checkpoint; onnx writes the graph.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from transduce.cli_options import Head, Offline
from transduce.errors import TransduceError
from transduce.transcriber import read_checkpoint

__all__ = ["export", "register"]

UNUSABLE = 3
"""Exit code."""

ExportPrecision: TypeAlias = Annotated[
    Literal["fp32", "fp16", "int8"],
    typer.Option(envvar="TRANSDUCE_PRECISION", help="Of the encoder; fp32 is exact."),
]


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A .nemo or .ckpt file, a name, or `demo`.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the graph goes; made where missing.")],
    precision: ExportPrecision = "fp32",
    head: Head = "auto",
    offline: Offline = False,
) -> None:
    """Write a checkpoint as one ONNX graph, from samples to labels.

    \\b
    transduce export model.nemo exported && transduce transcribe talk.mp4 -m exported
    """
    from transduce.onnx.export import export as write

    try:
        checkpoint = read_checkpoint(model, head=head, offline=offline)
        written = write(
            checkpoint.spec, checkpoint.weights, checkpoint.tokenizer, folder, precision=precision
        )
    except TransduceError as error:
        typer.echo(" ".join(f"error: {error} [{error.code}]".splitlines()), err=True)
        raise typer.Exit(UNUSABLE) from None
    size = sum(path.stat().st_size for path in folder.iterdir())
    typer.echo(
        f"{written.model}: {written.spec.head.kind}, {precision}, {size / 1e6:.1f} MB in {folder}", err=True
    )


def register(app: typer.Typer) -> None:
    """Add the command `export` to an application."""
    app.command()(export)
