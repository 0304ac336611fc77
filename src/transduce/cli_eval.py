"""The command `transduce eval`: word errors and speed of models on recordings with known texts.

In: a manifest, models and ways to run them. Out: a table or JSON on standard output, a page of HTML where
one is asked for, and an exit code: 0 all recognised (however wrong), 1 a recording failed, 2 usage, 3 a
model, an extra or the device is not usable (nothing measured), 130 interrupted.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from transduce import hub, writers
from transduce.batching import BATCH_SECONDS
from transduce.choice import Choice
from transduce.cli_options import (
    AsJson,
    Decoder,
    Device,
    MaxSegment,
    Offline,
    Quiet,
    Threads,
    VoiceActivity,
    choice_of,
)
from transduce.cli_progress import Bar, audio_bar
from transduce.cli_work import complain, complain_of
from transduce.errors import TransduceError, import_extra
from transduce.evaluate import (
    NORMALIZERS,
    Evaluation,
    Measurement,
    Utterance,
    count_of,
    describe_machine,
    marked,
    measure,
    now,
    per_cent,
    read_manifest,
    render_page,
    shortened,
)
from transduce.hub.progress import silent
from transduce.pipeline import Limits
from transduce.transcriber import Model, load_model

__all__ = ["evaluate", "register"]

FAILED, UNUSABLE = 1, 3
"""Exit codes."""

TABLE_COLUMNS = 100
"""Where standard output is no terminal."""

Several: TypeAlias = list[str] | None


def evaluate(
    manifest: Annotated[
        Path,
        typer.Argument(
            metavar="MANIFEST", help="NeMo's JSON lines, a table parted by tabs, or a folder of pairs."
        ),
    ],
    models: Annotated[
        Several,
        typer.Option(
            "--model", "-m", envvar="TRANSDUCE_MODEL", help=f"Repeat it.  [default: {hub.DEFAULT_MODEL}]"
        ),
    ] = None,
    precisions: Annotated[
        Several,
        typer.Option(
            "--precision",
            envvar="TRANSDUCE_PRECISION",
            help="fp32, bf16, fp16, int8 or auto; repeat it or use commas.  [default: fp32]",
        ),
    ] = None,
    heads: Annotated[
        Several,
        typer.Option(
            "--head",
            envvar="TRANSDUCE_HEAD",
            help="auto, rnnt, tdt or ctc; repeat it or use commas.  [default: auto]",
        ),
    ] = None,
    backends: Annotated[
        Several,
        typer.Option(
            "--backend",
            envvar="TRANSDUCE_BACKEND",
            help="auto, onnx, openvino or torch; repeat it or use commas.  [default: auto]",
        ),
    ] = None,
    normalizer: Annotated[
        Literal["basic", "whisper", "none"],
        typer.Option(envvar="TRANSDUCE_NORMALIZER", help="What counts as the same text."),
    ] = "basic",
    html: Annotated[
        Path | None, typer.Option(envvar="TRANSDUCE_HTML", help="Write a page with every difference there.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", envvar="TRANSDUCE_OVERWRITE", help="Replace an existing page.")
    ] = False,
    worst: Annotated[
        int, typer.Option(envvar="TRANSDUCE_WORST", min=0, help="So many utterances below the table.")
    ] = 5,
    vad: VoiceActivity = "auto",
    max_segment: MaxSegment = None,
    batch_seconds: Annotated[
        float, typer.Option(envvar="TRANSDUCE_BATCH_SECONDS", min=1, help="Audio recognised at once.")
    ] = BATCH_SECONDS,
    device: Device = "auto",
    decoder: Decoder = "auto",
    threads: Threads = None,
    offline: Offline = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure word errors and speed on recordings with known texts.

    \b
    transduce eval test.jsonl -m model.nemo
    transduce eval test.tsv -m a.nemo -m b.ckpt --html report.html     side by side
    transduce eval folder/ -m exported --precision fp32,int8 --json
    """
    utterances = _utterances(manifest)
    _check_page(html, overwrite=overwrite)
    parts = (
        _several("--backend", backends, "auto"),
        _several("--precision", precisions, "fp32"),
        _several("--head", heads, "auto"),
    )
    systems = [
        _System(model, choice_of(backend, device, precision, head, decoder, threads))
        for model, backend, precision, head in itertools.product(models or [hub.DEFAULT_MODEL], *parts)
    ]
    run = _Run(utterances, normalizer, Limits(vad, max_segment, batch_seconds), offline, quiet)
    evaluation = Evaluation(
        manifest=writers.shown(str(manifest)),
        normalizer=normalizer,
        date=now(),
        machine=describe_machine(),
        utterances=tuple(utterances),
        measurements=tuple(run.measure(systems)),
    )
    _report(evaluation, worst=worst, as_json=as_json)
    _say_failures(evaluation)
    if html is not None:
        _write_page(html, evaluation)
    if evaluation.num_failed:
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Add the command `eval` to an application."""
    app.command("eval")(evaluate)


# Usage


def _utterances(manifest: Path) -> list[Utterance]:
    try:
        return read_manifest(manifest)
    except OSError as error:
        raise typer.BadParameter(f"{manifest} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _check_page(page: Path | None, *, overwrite: bool) -> None:
    """What would keep the page from being written is said before the work."""
    if page is None:
        return
    if str(page) == "-":
        raise typer.BadParameter("--html -: a page is a file, not standard output: name it")
    if page.is_dir() or not page.parent.is_dir():
        raise typer.BadParameter(f"--html {page}: name a file in a folder that exists")
    if os.path.lexists(page) and not overwrite:
        raise typer.BadParameter(f"--html {page}: exists already; --overwrite replaces it")


def _several(option: str, given: Several, default: str) -> list[str]:
    """The values of an option that repeats and takes commas, once each."""
    names = [name.strip() for text in given or [] for name in text.split(",") if name.strip()]
    if given and not names:
        raise typer.BadParameter(f"{option} {','.join(given)} names nothing")
    return list(dict.fromkeys(names)) or [default]


# Measuring


@dataclass(frozen=True, slots=True)
class _System:
    """A model and one way to run it."""

    model: str
    choice: Choice


def _labels(systems: Sequence[_System]) -> list[str]:
    """For each system its model, and what else tells it from the others."""
    names = ("backend", "precision", "head")
    varying = [name for name in names if len({getattr(system.choice, name) for system in systems}) > 1]
    return [
        " ".join([writers.shown(system.model), *(getattr(system.choice, name) for name in varying)])
        for system in systems
    ]


@dataclass(frozen=True, slots=True)
class _Run:
    """What all systems are asked to do."""

    utterances: Sequence[Utterance]
    normalizer: str
    limits: Limits
    is_offline: bool
    is_quiet: bool

    def measure(self, systems: Sequence[_System]) -> list[Measurement]:
        """One measurement a system; what makes any of them unusable ends the command before the first."""
        with _usable():
            import_extra("jiwer", "eval")
            for system in systems if len(systems) > 1 else ():
                self._load(system).close()
        with self._bar(len(systems)) as bar:
            return [
                self._measured(system, label, bar)
                for system, label in zip(systems, _labels(systems), strict=True)
            ]

    def _measured(self, system: _System, label: str, bar: Bar) -> Measurement:
        with _usable():
            model = self._load(system)

        def count() -> None:
            with bar.pause():
                pass

        with model:
            return measure(
                model,
                self.utterances,
                NORMALIZERS[self.normalizer],
                label=label,
                limits=self.limits,
                on_progress=bar.advance,
                on_done=count,
            )

    def _load(self, system: _System) -> Model:
        settings = hub.Settings.from_environment()
        progress = silent if self.is_quiet else settings.progress
        settings = replace(settings, announce=complain, progress=progress)
        model = load_model(system.model, system.choice, offline=self.is_offline, settings=settings)
        try:
            model.check(self.limits)
        except TransduceError:
            raise
        except ValueError as error:
            raise typer.BadParameter(f"--max-segment: {error}") from error
        return model

    def _bar(self, num_systems: int) -> AbstractContextManager[Bar]:
        if self.is_quiet or not sys.stderr.isatty():
            return nullcontext(Bar())
        lengths = [utterance.duration_seconds for utterance in self.utterances]
        known = [seconds for seconds in lengths if seconds is not None]
        whole_seconds = sum(known) * num_systems if len(known) == len(lengths) else None
        return audio_bar(len(lengths) * num_systems, whole_seconds)


@contextmanager
def _usable() -> Iterator[None]:
    """What is not usable here is one line that says why, and exit code 3."""
    try:
        yield
    except TransduceError as error:
        complain_of(error)
        raise typer.Exit(UNUSABLE) from None


# Reporting


def _report(evaluation: Evaluation, *, worst: int, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(evaluation.to_dict(), ensure_ascii=False, allow_nan=False))
        return
    _print_table(evaluation)
    rows = [row for row in evaluation.worst_first() if row.num_errors][:worst]
    labels = [measurement.label for measurement in evaluation.measurements]
    width = max(map(len, labels)) if len(labels) > 1 else 0
    for row in rows:
        typer.echo(f"\n{writers.shown(row.utterance.name)}")
        for label, outcome in zip(labels, row.outcomes, strict=True):
            text = marked(outcome.comparison.stretches) if outcome.comparison else "failed"
            typer.echo(f"  {f'{label:<{width}}  ' if width else ''}{shortened(writers.shown(text))}")


def _print_table(evaluation: Evaluation) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")  # paths often differ at their ends
    for name in ("WER %", "CER %", "words", "sub", "del", "ins", "failed", "x real time"):
        table.add_column(name, justify="right")
    for measurement in evaluation.measurements:
        table.add_row(*_cells(measurement))
    console = Console(width=None if sys.stdout.isatty() else TABLE_COLUMNS, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().strip("\n").splitlines():
        if line.strip():
            typer.echo(line.rstrip())
    typer.echo(
        f"{count_of(len(evaluation.utterances))}, normaliser {evaluation.normalizer}; "
        f"{evaluation.machine['cpu']}, {evaluation.machine['cpus']} CPUs, {evaluation.date}"
    )


def _cells(measurement: Measurement) -> list[str]:
    words = measurement.words
    counts = (words.length, words.substitutions, words.deletions, words.insertions, measurement.num_failed)
    rates = (per_cent(words.rate), per_cent(measurement.characters.rate))
    return [measurement.label, *rates, *map(str, counts), f"{measurement.rtfx:.1f}"]


def _say_failures(evaluation: Evaluation) -> None:
    """Each failure once, however many models met it; then their number."""
    errors = [outcome.error for row in evaluation.rows() for outcome in row.outcomes if outcome.error]
    for error in {str(error): error for error in errors}.values():
        complain_of(error)
    if errors:
        verb = "is" if evaluation.num_failed == 1 else "are"
        whole = count_of(len(evaluation.utterances))
        complain(f"{evaluation.num_failed} of {whole} failed and {verb} not counted")


def _write_page(path: Path, evaluation: Evaluation) -> None:
    try:
        writers.write_atomic(path, render_page(evaluation))
    except (OSError, TransduceError) as error:
        complain_of(error)
        raise typer.Exit(FAILED) from None
