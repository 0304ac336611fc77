"""The command line: `transduce transcribe | info | doctor`, and the commands of the modules beside it.

In: arguments and TRANSDUCE_* variables. Out: results on standard output or in files, messages and
progress on standard error, and an exit code: 0 all done, 1 a file failed, 2 usage, 3 the model, an
extra or the device is not usable, 130 interrupted. It formats and reports; all work is done elsewhere.
"""

import errno
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version as package_version
from typing import Annotated, Any

import typer

from transduce import cli_bench, cli_cluster, cli_eval, cli_export, cli_models, cli_serve, cli_triton
from transduce import cli_request as request
from transduce import doctor as checks
from transduce.batching import BATCH_SECONDS
from transduce.choice import Choice
from transduce.cli_cluster import Order, located
from transduce.cli_options import (
    Actors,
    Address,
    AsJson,
    Backend,
    CpusPerActor,
    Decoder,
    Device,
    Engine,
    GpusPerActor,
    Head,
    Manifest,
    MaxSegment,
    ModelName,
    Offline,
    Precision,
    Quiet,
    Threads,
    Verbose,
    VoiceActivity,
    choice_of,
)
from transduce.cli_work import Work, complain, complain_of, transcribe_all
from transduce.cluster import Job
from transduce.errors import MissingExtraError, TransduceError, UnsupportedModelError
from transduce.hub import DEFAULT_MODEL, Settings
from transduce.hub.progress import silent
from transduce.pipeline import Cut, Limits
from transduce.transcriber import Model, load_model

__all__ = ["app", "doctor", "info", "main", "transcribe"]

FAILED, UNUSABLE = 1, 3
"""Exit codes; 2, a usage error, and 130, an interrupt, are typer's."""

STDOUT = "standard output"
"""What errors call it."""

logger = logging.getLogger("transduce")

app = typer.Typer(
    name="transduce",
    help="Speech to text with RNN-T, TDT and CTC models.",
    epilog="Try it: transduce transcribe examples/digits.wav -m demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"transduce {package_version('transduce')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    _set_up()


@app.command()
def transcribe(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Audio or video files, globs, folders (searched for audio), or - for standard input.",
        ),
    ] = None,
    manifest: Manifest = None,
    model: ModelName = DEFAULT_MODEL,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", envvar="TRANSDUCE_OUTPUT", help="Folder for the results; - is standard output."
        ),
    ] = "-",
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            envvar="TRANSDUCE_FORMAT",
            help="txt, json, srt, vtt, tsv, ctm or all; repeat it or use commas.  [default: txt]",
        ),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", envvar="TRANSDUCE_TOKENS", help="Add the tokens to JSON.")
    ] = False,
    head: Head = "auto",
    channel: Annotated[
        str,
        typer.Option(envvar="TRANSDUCE_CHANNEL", help="mix, a number from 0, or split (each by itself)."),
    ] = "mix",
    track: Annotated[
        int | None, typer.Option(envvar="TRANSDUCE_TRACK", min=0, help="Audio track of a container, from 0.")
    ] = None,
    start: Annotated[
        float, typer.Option(envvar="TRANSDUCE_START", min=0, help="Begin at this second.")
    ] = 0.0,
    end: Annotated[
        float | None, typer.Option(envvar="TRANSDUCE_END", min=0, help="Stop at this second.")
    ] = None,
    vad: VoiceActivity = "auto",
    max_segment: MaxSegment = None,
    batch_seconds: Annotated[
        float,
        typer.Option(
            envvar="TRANSDUCE_BATCH_SECONDS", min=1, help="Audio recognised at once, of all recordings."
        ),
    ] = BATCH_SECONDS,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", envvar="TRANSDUCE_OVERWRITE", help="Replace existing results.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", envvar="TRANSDUCE_RESUME", help="Leave out recordings that have results."),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", envvar="TRANSDUCE_FAIL_FAST", help="Stop at the first bad file.")
    ] = False,
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    decoder: Decoder = "auto",
    threads: Threads = None,
    engine: Engine = "local",
    address: Address = None,
    actors: Actors = "1:",
    cpus_per_actor: CpusPerActor = 1.0,
    gpus_per_actor: GpusPerActor = 0.0,
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Transcribe recordings.

    \b
    transduce transcribe talk.mp4 -m model.nemo                     text on standard output
    transduce transcribe talks/ -m model.nemo -f srt,json -o out    a folder, two formats
    ffmpeg -i URL -f wav - | transduce transcribe - -m model.nemo   a pipe
    """
    if verbose:
        logger.setLevel(logging.INFO)
    request.check_names(files, manifest, output)
    request.check_times(start, end, max_segment, batch_seconds)
    request.check_engine(context, engine)
    choice = choice_of(backend, device, precision, head, decoder, threads)
    names = request.formats_of(formats, output)
    if tokens and "json" not in names and request.is_typed(context, "tokens"):
        raise typer.BadParameter("--tokens adds to JSON, which is not among the formats: add -f json")
    cut = Cut(None, request.channel_of(channel), track, start, end)
    limits = Limits(vad, max_segment, batch_seconds)
    sink = request.sink_of(output, names, cut, engine, tokens=tokens, overwrite=overwrite, resume=resume)
    entries = sink.claim(request.inputs_of(files or (), manifest))
    ledger = request.ledger_of(output, engine, manifest, entries)
    if engine == "ray":
        pool = request.pool_of(address, actors, cpus_per_actor, gpus_per_actor, device)
        job = Job(located(model), pool.settled(choice), offline, cut, limits, tuple(names), tokens)
        cli_cluster.transcribe_all(Order(job, pool, fail_fast, quiet), entries, sink, ledger)
    else:
        with _open(model, choice, offline=offline, is_quiet=quiet) as opened:
            _check(opened, limits)
            if precision == "auto" and not quiet:
                complain(_picked(opened.backend.describe()))
            with ledger:
                transcribe_all(Work(opened, cut, limits, quiet), entries, sink, ledger, fail_fast=fail_fast)
    if ledger.folder is not None and not quiet:
        complain(str(ledger))
    if ledger.num_failed:
        raise typer.Exit(FAILED)


@app.command()
def info(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As for -m: a file, a folder, a name, `demo`.")
    ],
    head: Head = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    decoder: Decoder = "auto",
    threads: Threads = None,
    offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model is, and what would run it here.

    \b
    transduce info model.nemo --json
    """
    choice = choice_of(backend, device, precision, head, decoder, threads)
    with _open(model, choice, offline=offline) as opened:
        _print_facts(opened.describe(), as_json)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this installation: versions, extras, codecs, engines, and a run of the demo.

    \b
    transduce doctor          exit code 0: the demo was transcribed right
    """
    findings = checks.examine()
    _print_facts(findings.to_dict(), as_json)
    if not findings.is_healthy:
        raise typer.Exit(UNUSABLE)


cli_bench.register(app)
cli_eval.register(app)
cli_export.register(app)
cli_models.register(app)
cli_serve.register(app)
cli_triton.register(app)


def main() -> None:
    """The entry point of `transduce` and `python -m transduce`."""
    _open_streams()
    code: int | str | None = 0
    try:
        try:
            app(prog_name="transduce")
        except SystemExit as ended:
            code = ended.code
        with _named_stdout():
            sys.stdout.flush()
    except OSError as error:
        if error.filename != STDOUT:
            raise
        _abandon_stdout()
        is_said = bool(code) or isinstance(error, BrokenPipeError)  # whoever read it has had enough
        if not is_said:
            complain_of(error)
        code = code or FAILED
    sys.exit(code)


class _Output(io.FileIO):
    """Standard output, whose errors bear its name."""

    def write(self, content: Any) -> int:
        with _named_stdout():
            num_bytes: int | None = super().write(content)
            if num_bytes is None:  # it does not block, and is full
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return num_bytes


@contextmanager
def _named_stdout() -> Iterator[None]:
    """Give an error of standard output the name that an error of a file has."""
    try:
        yield
    except OSError as error:
        error.filename = STDOUT
        raise


def _open_streams() -> None:
    """Something in the place of standard streams that are closed, so that no other file gets their numbers.

    Standard input is not replaced: it is an error of whoever asks for it. Writing to standard output is an
    error of the system, as if it were there, and has its name; what goes to standard error is dropped.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = _output(os.open(os.devnull, os.O_RDONLY))
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    buffer = getattr(sys.stdout, "buffer", None)
    if isinstance(getattr(buffer, "raw", buffer), io.FileIO):  # a console of Windows is none
        # It has no buffer where PYTHONUNBUFFERED is set.
        sys.stdout = _output(sys.stdout.fileno(), is_buffered=isinstance(buffer, io.BufferedWriter))


def _output(descriptor: int, *, is_buffered: bool = True) -> io.TextIOWrapper:
    raw = _Output(descriptor, "w", closefd=False)
    buffer = io.BufferedWriter(raw) if is_buffered else raw
    return io.TextIOWrapper(
        buffer, "utf-8", "replace", line_buffering=raw.isatty(), write_through=not is_buffered
    )


def _abandon_stdout() -> None:
    """Let the interpreter's last flush succeed, whatever could not be written."""
    with suppress(OSError, ValueError):  # no file, in a test
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


@contextmanager
def _open(name: str, choice: Choice, *, offline: bool, is_quiet: bool = False) -> Iterator[Model]:
    """The model; what makes it unusable ends the command with exit code 3."""
    settings = Settings.from_environment()
    settings = replace(settings, announce=complain, progress=silent if is_quiet else settings.progress)
    try:
        model = load_model(name, choice, offline=offline, settings=settings)
    except TransduceError as error:
        complain_of(error)
        raise typer.Exit(UNUSABLE) from None
    with model:
        logger.info("%s", ", ".join(f"{key}: {value}" for key, value in model.backend.describe().items()))
        yield model


def _picked(notes: Mapping[str, str]) -> str:
    """What `--precision auto` came to, and why."""
    reason = notes.get("why this precision")
    return f"precision: {notes['precision']}" + (f" ({reason})" if reason else "")


def _check(model: Model, limits: Limits) -> None:
    """Limits that this model or this installation cannot keep end the command."""
    try:
        model.check(limits)
    except (MissingExtraError, UnsupportedModelError) as error:
        complain_of(error)
        raise typer.Exit(UNUSABLE) from None
    except ValueError as error:
        raise typer.BadParameter(f"--max-segment: {error}") from error


def _print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<{width}}  {value}")


def _set_up() -> None:
    """UTF-8 out in every locale, and the log on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
