"""What a command line of `transduce transcribe` asks for, as far as it takes several options to tell.

In: options as they were typed. Out: formats, a channel, a sink, inputs, and so on; a usage error for what
makes no sense.
"""

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import typer

from transduce import outputs, writers
from transduce.cli_work import complain_of
from transduce.cluster import Pool
from transduce.errors import MissingExtraError
from transduce.ledger import Ledger
from transduce.manifest import read_manifest
from transduce.pipeline import Cut

__all__ = [
    "channel_of",
    "check_engine",
    "check_names",
    "check_times",
    "formats_of",
    "inputs_of",
    "is_typed",
    "ledger_of",
    "pool_of",
    "sink_of",
]

UNUSABLE = 3
"""Exit code."""


def check_names(files: Sequence[str] | None, manifest: str | None, output: str) -> None:
    """An empty name, which a shell makes of a variable that is not set, would mean this very folder."""
    if not files and manifest is None:
        raise typer.BadParameter("Missing argument 'FILE': name recordings, or list them in a --manifest")
    if not output:
        raise typer.BadParameter("-o is empty; `-o .` is this folder")
    if not all(files or ()) or manifest == "":
        raise typer.BadParameter("the name of a file is empty; `.` is this folder")


def inputs_of(files: Sequence[str], manifest: str | None) -> list[outputs.Input]:
    """The recordings that are named, in order: files, then those of a manifest."""
    if manifest is None:
        return outputs.expand(files)
    try:
        listed = read_manifest(manifest)
    except MissingExtraError as error:
        complain_of(error)
        raise typer.Exit(UNUSABLE) from None
    except OSError as error:
        raise typer.BadParameter(f"--manifest {manifest} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"--manifest: {error}") from error
    return [*outputs.expand(files), *listed]


def check_times(start: float, end: float | None, max_segment: float | None, batch_seconds: float) -> None:
    """Seconds are numbers, and a part has a length."""
    for option, seconds in (("--start", start), ("--end", end)):
        if seconds is not None and not math.isfinite(seconds):
            raise typer.BadParameter(f"{option} is a number of seconds, not {seconds:g}")
    for option, seconds in (("--max-segment", max_segment), ("--batch-seconds", batch_seconds)):
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise typer.BadParameter(f"{option} is a number of seconds above 0, not {seconds:g}")
    if end is not None and end <= start:
        raise typer.BadParameter(f"--end {end:g} is not after --start {start:g}")


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, and not of the environment, which serves all commands."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def formats_of(wanted: Sequence[str] | None, output: str) -> list[str]:
    """The formats asked for, in order and once each."""
    names = [name.strip().lower() for text in wanted or ["txt"] for name in text.split(",") if name.strip()]
    names = [known for name in names for known in (writers.FORMATS if name == "all" else [name])]
    unknown = [name for name in names if name not in writers.FORMATS]
    if unknown or not names:
        known = ", ".join(writers.FORMATS)
        raise typer.BadParameter(
            f"unknown format {', '.join(unknown) or '(none)'}; known are {known} and all"
        )
    if len(set(names)) > 1 and output == "-":
        raise typer.BadParameter("several formats need a folder for their files: add -o DIR")
    return list(dict.fromkeys(names))


def channel_of(text: str) -> int | Literal["mix", "each"]:
    """mix, split or a number, as `Cut` has it."""
    if text == "mix":
        return "mix"
    if text == "split":
        return "each"
    if not text.isdecimal():
        raise typer.BadParameter(f"--channel {text!r} is neither mix, split nor a number from 0")
    return int(text)


def sink_of(
    output: str,
    formats: Sequence[str],
    cut: Cut,
    engine: str,
    *,
    tokens: bool,
    overwrite: bool,
    resume: bool,
) -> outputs.Sink:
    """Where results go. A cluster's go into files, and what is there already is left as it is."""
    if resume and (output == "-" or overwrite):
        raise typer.BadParameter("--resume goes with -o DIR, and not with --overwrite")
    if output == "-" and engine != "local":
        raise typer.BadParameter(f"--engine {engine} needs a folder for the results: add -o DIR")
    if output == "-":
        return outputs.StreamSink(sys.stdout, formats[0], tokens=tokens)
    folder = Path(output)
    if obstacle := outputs.obstacle(folder):
        raise typer.BadParameter(f"no results can be written to -o {output}: {obstacle}")
    number = 0 if cut.channel == "each" else None if cut.channel == "mix" else cut.channel
    resume = resume or (engine != "local" and not overwrite)
    return outputs.FileSink(
        folder, formats, tokens=tokens, overwrite=overwrite, resume=resume, channel=number
    )


def ledger_of(output: str, engine: str, manifest: str | None, entries: Sequence[outputs.Input]) -> Ledger:
    """The record of the run: in the output folder, for manifests and clusters."""
    is_kept = output != "-" and (manifest is not None or engine != "local")
    num_done = sum(entry.is_done for entry in entries)
    return Ledger(Path(output) if is_kept else None, engine, len(entries), num_done)


def pool_of(address: str | None, actors: str, cpus: float, gpus: float, device: str) -> Pool:
    """The actors of a cluster: N, MIN:MAX, or MIN: for as many as there is room for."""
    found = re.fullmatch(r"(\d+)(?:(:)(\d*))?", actors)
    least = int(found[1]) if found else 0
    most = None if found is None or (found[2] and not found[3]) else int(found[3] or least)
    if least < 1 or (most is not None and most < least):
        raise typer.BadParameter(f"--actors {actors}: say N, MIN:MAX or MIN:, from 1")
    if not (cpus or gpus):
        raise typer.BadParameter(
            "--cpus-per-actor 0 and no --gpus-per-actor: an actor needs something to run on"
        )
    if gpus > 1 and gpus % 1:
        raise typer.BadParameter(f"--gpus-per-actor {gpus:g}: beyond one GPU, whole ones only")
    if device.startswith("cuda") and not gpus:
        raise typer.BadParameter(
            f"--device {device} on a cluster needs --gpus-per-actor 1, or a share of one"
        )
    return Pool(address, least, most, cpus, gpus)


def check_engine(context: typer.Context, engine: str) -> None:
    """Options of a cluster on the command line ask for one."""
    for name in ("address", "actors", "cpus_per_actor", "gpus_per_actor"):
        if engine == "local" and is_typed(context, name):
            raise typer.BadParameter(f"--{name.replace('_', '-')} goes with --engine ray")
