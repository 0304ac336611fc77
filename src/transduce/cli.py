"""The command line: `transduce transcribe | info | doctor`.

In: arguments and TRANSDUCE_* variables. Out: results on standard output or in files, messages and
progress on standard error, and an exit code: 0 all done, 1 a file failed, 2 usage, 3 the model, an
extra or the device is not usable, 130 interrupted. It formats and reports; all work is done elsewhere.
"""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from transduce import doctor as checks
from transduce import outputs, writers
from transduce.errors import TransduceError
from transduce.pipeline import Cut
from transduce.sources import AudioSource
from transduce.transcriber import Model, load_model
from transduce.transcript import Transcript

__all__ = ["app", "doctor", "info", "main", "transcribe"]

FAILED, UNUSABLE = 1, 3
"""Exit codes; 2, a usage error, and 130, an interrupt, are typer's."""

logger = logging.getLogger("transduce")

app = typer.Typer(
    name="transduce",
    help="Speech to text with RNN-T, TDT and CTC models.",
    epilog="Try it: transduce transcribe examples/digits.wav -m demo",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ModelName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model", "-m", envvar="TRANSDUCE_MODEL", help="A .nemo or .ckpt file, or `demo`, the bundled one."
    ),
]
Head: TypeAlias = Annotated[
    str,
    typer.Option(envvar="TRANSDUCE_HEAD", help="For checkpoints with two heads: auto, rnnt, tdt or ctc."),
]
Device: TypeAlias = Annotated[str, typer.Option(envvar="TRANSDUCE_DEVICE", help="auto, cpu, cuda or cuda:N.")]
Precision: TypeAlias = Annotated[
    str,
    typer.Option(
        envvar="TRANSDUCE_PRECISION",
        help="Of the encoder: fp32 (exact), bf16, fp16, or auto (may change numbers; says what it picked).",
    ),
]
Backend: TypeAlias = Annotated[str, typer.Option(envvar="TRANSDUCE_BACKEND", help="auto or torch.")]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", envvar="TRANSDUCE_QUIET", help="No progress and no warnings.")
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", envvar="TRANSDUCE_VERBOSE", help="Say what is being done.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", envvar="TRANSDUCE_JSON", help="As one JSON object.")
]


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
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Audio or video files, globs, folders (searched for audio), or - for standard input.",
        ),
    ],
    model: ModelName = "",
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", envvar="TRANSDUCE_OVERWRITE", help="Replace existing results.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", envvar="TRANSDUCE_FAIL_FAST", help="Stop at the first bad file.")
    ] = False,
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
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
    if end is not None and end <= start:
        raise typer.BadParameter(f"--end {end:g} is not after --start {start:g}")
    names = _formats(formats, output)
    cut = Cut(None, _channel(channel), track, start, end)
    sink = _sink(output, names, tokens=tokens, overwrite=overwrite)
    entries = sink.claim(outputs.expand(files))
    with _open(model, backend, device, precision, head) as opened:
        work = _Work(opened, cut, is_split=channel == "split", is_quiet=quiet)
        num_failed = _transcribe_all(work, entries, sink, fail_fast=fail_fast)
    if num_failed:
        raise typer.Exit(FAILED)


@app.command()
def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or `demo`.")],
    head: Head = "auto",
    backend: Backend = "auto",
    device: Device = "auto",
    precision: Precision = "fp32",
    as_json: AsJson = False,
) -> None:
    """Show what a model is, and what would run it here.

    \b
    transduce info model.nemo --json
    """
    with _open(model, backend, device, precision, head) as opened:
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


def main() -> None:
    """The entry point of `transduce` and `python -m transduce`."""
    app(prog_name="transduce")


Failure: TypeAlias = TransduceError | OSError
"""Why one recording has no result; an OSError is that of its output file."""


@dataclass(frozen=True)
class _Work:
    """One model and what it is asked to do with every recording."""

    model: Model
    cut: Cut
    is_split: bool
    is_quiet: bool

    def run(self, entries: Sequence[outputs.Input]) -> Iterator[Sequence[Transcript] | Failure]:
        """The transcripts of each entry (one, or one a channel), or its error; lazily, in order."""
        sound = [entry for entry in entries if entry.error is None]
        sources = (sys.stdin.buffer if entry.path == outputs.STDIN else entry.path for entry in sound)
        found = self._channels(sources) if self.is_split else self._mixed(sources)
        for entry in entries:
            yield entry.error if entry.error is not None else next(found)

    def _mixed(self, sources: Iterator[AudioSource]) -> Iterator[Sequence[Transcript] | TransduceError]:
        for outcome in self.model.transcribe_many(sources, self.cut):
            yield outcome if isinstance(outcome, TransduceError) else [outcome]

    def _channels(self, sources: Iterator[AudioSource]) -> Iterator[Sequence[Transcript] | TransduceError]:
        for source in sources:
            try:
                yield self.model.transcribe_channels(source, self.cut)
            except TransduceError as error:
                yield error


def _transcribe_all(
    work: _Work, entries: Sequence[outputs.Input], sink: outputs.Sink, *, fail_fast: bool
) -> int:
    """Run everything, put what succeeds, report what does not; the number of failed recordings."""
    num_failed = 0
    with _progress(len(entries), is_shown=not work.is_quiet) as pause:
        for index, outcome in enumerate(work.run(entries)):
            with pause():
                failure = outcome if isinstance(outcome, Exception) else _put(sink, index, outcome, work)
                if failure is not None:
                    num_failed += 1
                    _complain_of(failure)
            if failure is not None and fail_fast:
                break
    return num_failed


def _put(sink: outputs.Sink, index: int, transcripts: Sequence[Transcript], work: _Work) -> Failure | None:
    """Write the results and say their warnings; an error of the disk is the recording's error."""
    for transcript in transcripts:
        logger.info("%s: %.2f s, %d words", transcript.source, transcript.duration, len(transcript.words))
        for warning in () if work.is_quiet else transcript.warnings:
            _complain(f"warning: {transcript.source}: {warning}")
    try:
        sink.put(index, transcripts)
    except BrokenPipeError:  # whoever read standard output has had enough
        raise
    except (OSError, TransduceError) as error:
        return error
    return None


@contextmanager
def _progress(total: int, *, is_shown: bool) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A bar on a terminal's standard error, nothing elsewhere.

    What it gives is entered for each recording that is done: while results and messages are written, the
    bar is out of their way.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield nullcontext
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("transcribing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task("", total=total)

    @contextmanager
    def pause() -> Iterator[None]:
        bar.stop()
        yield
        bar.advance(task)
        bar.start()

    with bar:
        yield pause


@contextmanager
def _open(name: str, backend: str, device: str, precision: str, head: str) -> Iterator[Model]:
    """The model; what makes it unusable ends the command with exit code 3."""
    if not name:
        raise typer.BadParameter(
            "no model was named; give one with -m (a .nemo or .ckpt file; -m demo is the bundled one, "
            "which reads spoken English digits) or in TRANSDUCE_MODEL"
        )
    try:
        model = load_model(name, backend=backend, device=device, precision=precision, head=head)
    except TransduceError as error:
        _complain_of(error)
        raise typer.Exit(UNUSABLE) from None
    with model:
        logger.info("%s", ", ".join(f"{key}: {value}" for key, value in model.backend.describe().items()))
        yield model


def _formats(wanted: Sequence[str] | None, output: str) -> list[str]:
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


def _channel(text: str) -> int | Literal["mix"]:
    if text in ("mix", "split"):
        return "mix"
    if not text.isdecimal():
        raise typer.BadParameter(f"--channel {text!r} is neither mix, split nor a number from 0")
    return int(text)


def _sink(output: str, formats: Sequence[str], *, tokens: bool, overwrite: bool) -> outputs.Sink:
    if output == "-":
        return outputs.StreamSink(sys.stdout, formats[0], tokens=tokens)
    folder = Path(output)
    if obstacle := outputs.obstacle(folder):
        raise typer.BadParameter(f"no results can be written to -o {output}: {obstacle}")
    return outputs.FileSink(folder, formats, tokens=tokens, overwrite=overwrite)


def _print_facts(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<{width}}  {value}")


def _complain_of(failure: Failure) -> None:
    """One line with the name, the reason and the code of an error."""
    if isinstance(failure, TransduceError):
        _complain(f"error: {failure} [{failure.code}]")
    else:
        _complain(f"error: {failure.filename or 'standard output'}: {failure.strerror} [output]")


def _complain(message: str) -> None:
    """One line on standard error, whatever characters a file's name has."""
    typer.echo(writers.printable(" ".join(message.splitlines())), err=True)


def _set_up() -> None:
    """UTF-8 out in every locale, and the log on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.WARNING)
