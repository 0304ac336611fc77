"""The commands about models: `transduce models | download | cache show | cache prune | verify`.

In: arguments, TRANSDUCE_* and HF_* variables. Out: facts on standard output, what happens on standard
error, and an exit code: 0 done, 1 a text that is not upstream's or nothing to remove, 2 usage, 3 a model
that cannot be had or run. `register` adds the commands to an application; its context object may be
hub.Settings to use in the place of the environment's.
"""

import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from transduce import hub, writers
from transduce.choice import Choice
from transduce.errors import CheckpointError, TransduceError
from transduce.hub import Cached, Entry, Sample, Settings, disk, progress
from transduce.hub.catalogue import normalize
from transduce.transcriber import load_model

__all__ = [
    "KnownModel",
    "Verification",
    "download",
    "known_models",
    "models",
    "prune",
    "register",
    "show",
    "verify",
]

FAILED, UNUSABLE = 1, 3
"""Exit codes."""

MOST_WORD_ERRORS = 1
"""Between our text and upstream's: a spelling variant costs a word, a fault costs more."""

Backend: TypeAlias = Annotated[
    Literal["auto", "onnx", "openvino", "torch"],
    typer.Option(envvar="TRANSDUCE_BACKEND", help="The engine to read it; auto: those that are installed."),
]
Precision: TypeAlias = Annotated[
    Literal["fp32", "bf16", "fp16", "int8", "auto"],
    typer.Option(envvar="TRANSDUCE_PRECISION", help="int8 takes the int8 artefact where there is one."),
]
Offline: TypeAlias = Annotated[
    bool, typer.Option("--offline", envvar="TRANSDUCE_OFFLINE", help="Never open a connection.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", envvar="TRANSDUCE_QUIET", help="No progress.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", envvar="TRANSDUCE_JSON", help="As JSON.")]


def models(
    context: typer.Context, backend: Backend = "auto", precision: Precision = "fp32", as_json: AsJson = False
) -> None:
    """List the models that have names, what an engine here would read of each, and whether it is cached."""
    with _usable():
        known = known_models(_settings(context), Choice(backend).engines, precision)
    if as_json:
        _print_json([asdict(model) for model in known])
        return
    header = ("NAME", "KIND", "LANGUAGES", "SIZE", "LICENCE", "READS", "CACHED")
    _print_table([header, *(model.row() for model in known)])


def download(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="A name, hf:owner/repo or an address.")],
    backend: Backend = "auto",
    precision: Precision = "fp32",
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Fetch models into the cache, so that they are there without a network; prints where they are."""
    settings = _settings(context, quiet=quiet)
    for name in names:
        with _usable():
            path = hub.resolve(
                name, engines=Choice(backend).engines, precision=precision, offline=offline, settings=settings
            )
        typer.echo(writers.printable(str(path)))


def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Show what the cache holds: names, sizes, folders, and what is only partly there."""
    cache = _settings(context).cache
    with _usable():
        found = cache.all()
    total = sum(cached.num_bytes for cached in found)
    if as_json:
        _print_json({"root": str(cache.root), "bytes": total, "models": [_cached_facts(c) for c in found]})
        return
    if found:
        header = ("NAME", "WHAT", "SIZE", "STATE", "FOLDER")
        _print_table([header, *(_cached_row(cached) for cached in found)])
    typer.echo(writers.printable(f"{cache.root}: {disk.display_size(total)}"))


def prune(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="As `transduce cache show` prints them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", envvar="TRANSDUCE_YES", help="Do not ask.")] = False,
) -> None:
    """Remove models from the cache, after a question."""
    if bool(names) == everything:
        raise typer.BadParameter("name what to remove, or give --all")
    settings = _settings(context)
    with _usable():
        chosen = settings.cache.all() if everything else _find_cached(settings, names or [])
    if not chosen:
        typer.echo("nothing is cached", err=True)
        return
    size = disk.display_size(sum(cached.num_bytes for cached in chosen))
    for cached in chosen:
        typer.echo(writers.printable(f"{cached.name}: {cached.folder}"), err=True)
    if not yes:
        _ask(f"Remove {len(chosen)} of them, {size}?")
    for cached in chosen:
        with _usable():
            settings.cache.remove(cached.key)
    typer.echo(f"{size} freed", err=True)


def _ask(question: str) -> None:
    """End the command unless the answer is yes; an interrupt is none."""
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise abort.__context__ from None
        raise


def verify(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name, hf:owner/repo, an address or a path.")],
    backend: Backend = "auto",
    precision: Precision = "fp32",
    offline: Offline = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a model, hash it anew, and compare what it writes for upstream's sample with upstream's text."""
    settings = _settings(context, quiet=quiet)
    with _usable():
        result = _verify(name, settings, backend, precision, offline)
    facts = {**asdict(result), "word_errors": result.num_word_errors, "verdict": result.verdict}
    if as_json:
        _print_json(facts)
    else:
        _print_table([(key, str(value)) for key, value in facts.items() if value not in (None, "")])
    if not result.is_good:
        raise typer.Exit(FAILED)


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command()(models)
    app.command()(download)
    cache = typer.Typer(name="cache", help="Show or empty the cache of models.", no_args_is_help=True)
    cache.command()(show)
    cache.command()(prune)
    app.add_typer(cache)
    app.command()(verify)


# What there is


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A line of `transduce models`."""

    name: str
    aliases: tuple[str, ...]
    kind: str
    languages: str
    licence: str
    reads: str | None
    """What the engines here would read; None: nothing of it."""
    bytes: int | None
    cached: bool

    def row(self) -> tuple[str, ...]:
        """Its cells, languages shortened."""
        languages = self.languages.split()
        shown = self.languages if len(languages) <= 5 else f"{len(languages)} languages"
        size = disk.display_size(self.bytes) if self.bytes else "-"
        cached = "yes" if self.cached else "no"
        return self.name, self.kind, shown, size, self.licence, self.reads or "-", cached


def known_models(settings: Settings, engines: Collection[str], precision: str = "fp32") -> list[KnownModel]:
    """The catalogue as it looks from here: with these engines and this cache. Opens no connection."""
    return [_known(settings, entry, engines, precision) for entry in settings.catalogue.entries]


def _known(settings: Settings, entry: Entry, engines: Collection[str], precision: str) -> KnownModel:
    choices = hub.candidates(entry, engines, precision)
    here = [artefact for artefact in choices if hub.is_cached(settings, entry, artefact)]
    chosen = next(iter(here or choices), None)
    return KnownModel(
        name=entry.name,
        aliases=entry.aliases,
        kind=entry.kind,
        languages=entry.languages,
        licence=entry.licence,
        reads=chosen.label if chosen else None,
        bytes=chosen.num_bytes if chosen else None,
        cached=bool(here),
    )


def _cached_facts(cached: Cached) -> dict[str, Any]:
    return {
        "name": cached.name,
        "what": cached.key.partition("/")[0],
        "bytes": cached.num_bytes,
        "whole": cached.is_whole,
        "missing": list(cached.missing),
        "origin": cached.listed.origin if cached.listed else None,
        "folder": str(cached.folder),
    }


def _cached_row(cached: Cached) -> tuple[str, ...]:
    state = "whole" if cached.is_whole else "partly there"
    size = disk.display_size(cached.num_bytes)
    return cached.name, cached.key.partition("/")[0], size, state, str(cached.folder)


def _find_cached(settings: Settings, names: Sequence[str]) -> list[Cached]:
    """What the names mean in the cache, each once; a name that means nothing there ends the command."""
    found = settings.cache.all()
    chosen: dict[str, Cached] = {}
    for name in names:
        entry = settings.catalogue.find(name)
        wanted = normalize(entry.name if entry else name)
        meant = {cached.key: cached for cached in found if normalize(cached.name) == wanted}
        if not meant:
            held = ", ".join(sorted({cached.name for cached in found})) or "nothing"
            _complain(f"error: {name} is not in the cache, which holds {held}")
            raise typer.Exit(FAILED)
        chosen |= meant
    return list(chosen.values())


# Whether it is right


@dataclass(frozen=True, slots=True)
class Verification:
    """What a model wrote for a sample, and what upstream says that it writes."""

    name: str
    path: str
    runs_on: str
    sample: str
    origin: str
    """Where upstream's text is from; empty: none is known."""
    expected: str
    found: str

    @property
    def num_word_errors(self) -> int | None:
        """Words to change, add or drop, marks and capitals left out; None where no text is known."""
        return _edit_distance(_words(self.expected), _words(self.found)) if self.origin else None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.num_word_errors is None:
            return "runs; no text is published to compare with" if self.found else "wrote nothing"
        if self.found == self.expected:
            return "the same text"
        if self.num_word_errors == 0:
            return "the same words"
        count = f"{self.num_word_errors} word{'s' if self.num_word_errors > 1 else ''}"
        return f"{count} of {len(_words(self.expected))} differ"

    @property
    def is_good(self) -> bool:
        """Whether it is close enough to be the model that upstream published."""
        return bool(self.found) and (self.num_word_errors or 0) <= MOST_WORD_ERRORS


def _verify(name: str, settings: Settings, backend: str, precision: str, offline: bool) -> Verification:
    found = hub.find_model(name, settings.catalogue)
    path = hub.resolve(
        name, engines=Choice(backend).engines, precision=precision, offline=offline, settings=settings
    )
    _check_hashes(settings, found, path)
    sample = _sample_of(found)
    recording = hub.sample_path(sample, offline=offline, settings=settings)
    with load_model(path, backend=backend, precision=precision) as model:
        text = model.transcribe(recording).text
        runs_on = ", ".join(model.backend.describe().values())
    return Verification(
        found.name if isinstance(found, Entry) else name,
        str(path),
        runs_on,
        str(recording),
        sample.origin,
        sample.text,
        text,
    )


def _sample_of(found: Entry | Path) -> Sample:
    """The model's own sample, or the clip that ships with the package, to which no text belongs then."""
    if isinstance(found, Entry) and found.sample is not None:
        return found.sample
    demo = hub.catalogue().find("demo")
    assert demo is not None, "the demo ships with the package"
    assert demo.sample is not None, "and so does its clip"
    return replace(demo.sample, text="", origin="")


def _check_hashes(settings: Settings, found: Entry | Path, path: Path) -> None:
    """Read all files of the cached artefact at `path` again; CheckpointError where one has changed."""
    if isinstance(found, Path):
        return
    for artefact in found.artefacts:
        cached = settings.cache.look(found.key(artefact))
        if cached.folder in (path, path.parent) and (damaged := settings.cache.damaged(cached)):
            raise CheckpointError(
                f"{cached.folder}: changed since it was downloaded: {', '.join(damaged)}; remove it with "
                f"`transduce cache prune {cached.name}` and run this again"
            )


def _words(text: str) -> list[str]:
    """Lower-case words without marks, ё as е."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("ё", "е")
    return re.findall(r"[\w'’]+", plain)


def _edit_distance(expected: Sequence[str], found: Sequence[str]) -> int:
    row = list(range(len(found) + 1))
    for index, word in enumerate(expected, 1):
        previous, row[0] = row[0], index
        for column, other in enumerate(found, 1):
            previous, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, previous + (word != other)),
            )
    return row[-1]


# What the commands share


def _settings(context: typer.Context, *, quiet: bool = False) -> Settings:
    """The context's settings or the environment's, whose line goes to standard error."""
    if isinstance(context.obj, Settings):
        return context.obj
    settings = replace(Settings.from_environment(), announce=_complain)
    return replace(settings, progress=progress.silent) if quiet else settings


@contextmanager
def _usable() -> Iterator[None]:
    """What cannot be had or run is one line that says why, and exit code 3."""
    try:
        yield
    except TransduceError as error:
        _complain(f"error: {error} [{error.code}]")
        raise typer.Exit(UNUSABLE) from None


def _complain(message: str) -> None:
    """One line on standard error."""
    typer.echo(writers.printable(" ".join(message.splitlines())), err=True)


def _print_json(content: object) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=2))


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need to be, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo(writers.printable("  ".join(cells).rstrip()))
