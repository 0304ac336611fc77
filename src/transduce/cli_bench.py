"""The command `transduce bench`: how fast a model is on this machine, stage by stage.

In: arguments and TRANSDUCE_* variables. Out: a table or JSON on standard output, perhaps a plot, and an exit
code: 0 measured, 1 the recording is not usable, 2 usage, 3 the model, an extra or the device is not.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from transduce import bench as benching
from transduce.bench import Measurement, Plan
from transduce.checkpoints import Checkpoint
from transduce.cli_options import (
    AsJson,
    Backend,
    Decoder,
    Device,
    Head,
    Precision,
    Threads,
    choice_of,
)
from transduce.errors import AudioError, TransduceError
from transduce.synthetic import SIZES

__all__ = ["bench", "register"]

FAILED, UNUSABLE = 1, 3
"""Exit codes: for a recording, for everything else."""

SAMPLE_RATE = 16000
"""Of all models that are read."""


def bench(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="As for -m: a file, a folder, a name, `demo`."),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            envvar="TRANSDUCE_SYNTHETIC",
            help=f"Instead of MODEL: random weights of a real size. One of: {', '.join(SIZES)}.",
        ),
    ] = None,
    audio: Annotated[
        str | None,
        typer.Option(envvar="TRANSDUCE_AUDIO", help="A recording to cut clips from.  [default: noise]"),
    ] = None,
    seconds: Annotated[
        float, typer.Option(envvar="TRANSDUCE_SECONDS", min=0.5, max=60, help="Length of a clip.")
    ] = 20.0,
    batch: Annotated[int, typer.Option(envvar="TRANSDUCE_BATCH", min=1, help="Clips at once.")] = 8,
    rounds: Annotated[
        int, typer.Option(envvar="TRANSDUCE_ROUNDS", min=1, help="How often; medians are shown.")
    ] = 3,
    head: Head = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    decoder: Decoder = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None,
        typer.Option(envvar="TRANSDUCE_PLOT", help="Draw the stages into this PNG (needs the extra `plot`)."),
    ] = None,
) -> None:
    """Measure a model here: every stage, real-time factor, latency, memory.

    \b
    transduce bench model.nemo --audio talk.wav                     your model on your speech
    transduce bench model.nemo --backend openvino --precision auto  the fastest that costs no words
    transduce bench --synthetic gigaam-v3-rnnt --batch 8            a real size, nothing to download

    \b
    RTFx         seconds of audio recognised in a second; higher is faster
    latency      what one clip alone takes: half of them at most p50, 99 % at most p99
    decoder      its share shows what the transducer costs beyond its encoder
    RNN-T / CTC  the same encoder with both heads of a hybrid: 1.00 is equally fast
    """
    if (model is None) == (synthetic is None):
        raise typer.BadParameter("give a MODEL, or --synthetic with one of: " + ", ".join(SIZES))
    if synthetic is not None and synthetic not in SIZES:
        raise typer.BadParameter(f"--synthetic {synthetic!r} is none of: " + ", ".join(SIZES))
    plan = Plan(batch, seconds, rounds)
    choice = choice_of(backend, device, precision, head, decoder, threads)
    try:
        chosen: str | Checkpoint = model or benching.synthetic_checkpoint(str(synthetic))
        measured = benching.measure(chosen, choice, benching.clips_of(audio, plan, SAMPLE_RATE), plan)
        if plot is not None:
            benching.plot([measured], plot)
    except TransduceError as error:
        typer.echo(" ".join(f"error: {error} [{error.code}]".splitlines()), err=True)
        raise typer.Exit(FAILED if isinstance(error, AudioError) else UNUSABLE) from None
    if as_json:
        typer.echo(json.dumps(measured.to_dict(), ensure_ascii=False, indent=2))
    else:
        _show(measured)


def register(app: typer.Typer) -> None:
    """Add the command `bench` to an application."""
    app.command()(bench)


def _show(measured: Measurement) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("stage")
    for column in ("seconds", "share", "x real time"):
        table.add_column(column, justify="right")
    total = sum(measured.stages.values())
    audio_seconds = measured.batch * measured.clip_seconds
    for stage, spent in measured.stages.items():
        speed = audio_seconds / spent if spent else 0.0
        table.add_row(stage, f"{spent:.3f}", f"{spent / total:.1%}", f"{speed:,.0f}")
    console = Console()
    console.print(_title(measured), highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    for name, value in _facts(measured):
        console.print(f"{name:<20}{value}", highlight=False, markup=False, soft_wrap=True)


def _title(measured: Measurement) -> str:
    return (
        f"{measured.model} ({measured.head}), {measured.precision}, {measured.engine}, {measured.device}: "
        f"{measured.batch} x {measured.clip_seconds:g} s"
    )


def _facts(measured: Measurement) -> Iterator[tuple[str, str]]:
    yield "recognition", f"{measured.recognition_seconds:.3f} s, RTFx {measured.rtfx:.1f}"
    yield "with all around it", f"RTFx {measured.total_rtfx:.1f}"
    latency = ", ".join(f"{name} {value:.3f} s" for name, value in measured.latency_seconds.items())
    yield "latency of one", latency
    steps = "" if measured.steps is None else f", {measured.steps} steps of the loop"
    yield "labels", f"{measured.labels}, {measured.labels_per_frame:.2f} a frame{steps}"
    if measured.decoder_share is not None:
        yield "decoder", f"{measured.decoder_share:.1%} of recognition"
    if measured.ctc_ratio is not None:
        yield f"{measured.head} / ctc", f"{measured.ctc_ratio:.3f}"
    if measured.peak_memory_bytes is not None:
        yield "peak memory", f"{measured.peak_memory_bytes / 1e6:,.0f} MB"
    yield from measured.notes.items()
