"""From a name to files on this machine: look in the cache, else plan, announce, download.

In: a name, the engines that are installed, the precision that is wanted. Out: the path of the file or folder
that the engine loads. What is whole in the cache is used as it is, without any connection.
"""

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

from transduce.errors import DownloadError, MissingExtraError
from transduce.hub import disk
from transduce.hub.cache import Cached, FileList, ListedFile
from transduce.hub.catalogue import Artefact, Bundled, Entry, Sample
from transduce.hub.http import Client
from transduce.hub.names import find_model
from transduce.hub.planning import Plan, contents, make_plan
from transduce.hub.progress import Show
from transduce.hub.settings import Settings
from transduce.hub.transfer import fetch, part_path

__all__ = ["candidates", "installed_engines", "is_cached", "resolve", "sample_path"]

ENGINE_LIBRARIES = {"onnx": "onnxruntime", "torch": "torch"}
"""Engine -> the library whose presence means that it is installed; the preferred one first."""
EXTRAS = {"onnx": "cpu", "torch": "torch"}


def installed_engines() -> tuple[str, ...]:
    """The engines of this machine, the preferred one first; no library is imported to find out."""
    return tuple(name for name, library in ENGINE_LIBRARIES.items() if importlib.util.find_spec(library))


def resolve(
    name: str,
    *,
    engines: Collection[str],
    precision: str = "fp32",
    offline: bool = False,
    settings: Settings | None = None,
) -> Path:
    """The file or folder of a model, downloaded where it is not here yet.

    `engines` in the order of preference; what any of them can read and is in the cache goes before a
    download. `precision` int8 asks for an int8 artefact, with the fp32 one where there is none; any other
    for the fp32 one.
    Raises DownloadError, ResourceError (no room), MissingExtraError (no engine here reads it) and what
    `names.find_model` raises.
    """
    settings = settings or Settings.from_environment()
    found = find_model(name, settings.catalogue)
    if isinstance(found, Path):
        return found
    choices = candidates(found, engines, precision)
    if not choices:
        raise MissingExtraError(_no_engine(found))
    return _obtain(settings, found, choices, offline)


def _obtain(settings: Settings, entry: Entry, choices: Sequence[Artefact], offline: bool) -> Path:
    """What is here of the best precision, else the download of the first that exists."""
    exact = (artefact for artefact in choices if artefact.precision == choices[0].precision)
    paths = (_local_path(settings, entry, artefact) for artefact in exact)
    if path := next(filter(None, paths), None):
        return path
    because = "offline was asked for" if offline else settings.offline_because
    if because:
        raise DownloadError(_what_is_missing(settings, entry, choices[0], because))
    return _download(settings, entry, choices)


def sample_path(sample: Sample, *, offline: bool = False, settings: Settings | None = None) -> Path:
    """A sample recording, downloaded where it is not here yet; DownloadError or ResourceError."""
    if isinstance(sample.source, Bundled):
        return _bundled(sample.source)
    settings = settings or Settings.from_environment()
    file = sample.source
    artefact = Artefact("sample", (), (file,), main=(file.path,))
    return _obtain(settings, Entry(file.path, (artefact,)), [artefact], offline)


def candidates(entry: Entry, engines: Collection[str], precision: str = "fp32") -> list[Artefact]:
    """The artefacts that one of the engines reads: those in the precision first, by the order of the engines.

    Where fp32, the exact one, is wanted and there, int8 is no substitute.
    """
    order = tuple(sorted(engines, key=entry.prefers.index)) if entry.prefers else tuple(engines)
    wanted = "int8" if precision == "int8" else "fp32"

    def rank(artefact: Artefact) -> tuple[bool, int]:
        places = (order.index(engine) for engine in artefact.engines if engine in order)
        return artefact.precision != wanted, min(places, default=0)

    readable = [a for a in entry.artefacts if not a.engines or not set(order).isdisjoint(a.engines)]
    ranked = sorted(readable, key=rank)
    is_exact = wanted == "fp32" and any(artefact.precision == wanted for artefact in ranked)
    return [a for a in ranked if a.precision == wanted] if is_exact else ranked


def is_cached(settings: Settings, entry: Entry, artefact: Artefact) -> bool:
    """Whether all of an artefact is here."""
    return _local_path(settings, entry, artefact) is not None


def _no_engine(entry: Entry) -> str:
    needed = dict.fromkeys(engine for artefact in entry.artefacts for engine in artefact.engines)
    lines = " or ".join(f'pip install "transduce[{EXTRAS[engine]}]"' for engine in needed)
    return f"{entry.name}: no installed engine reads it; {lines}"


def _local_path(settings: Settings, entry: Entry, artefact: Artefact) -> Path | None:
    """What is loaded of an artefact, if all of it is here."""
    if isinstance(artefact.source, Bundled):
        return _bundled(artefact.source)
    cached = settings.cache.look(entry.key(artefact))
    return _main(cached, artefact) if cached.is_whole else None


def _bundled(source: Bundled) -> Path:
    return Path(str(files("transduce") / "models" / source.path))


def _main(cached: Cached, artefact: Artefact) -> Path:
    assert cached.listed is not None, "only whole artefacts are loaded"
    paths = [file.path for file in cached.listed.files]
    main = next((path for path in paths for pattern in artefact.main if fnmatchcase(path, pattern)), None)
    return cached.folder / main if main else cached.folder


def _what_is_missing(settings: Settings, entry: Entry, artefact: Artefact, because: str) -> str:
    cached = settings.cache.look(entry.key(artefact))
    missing = ", ".join(cached.missing) or contents(artefact)
    return (
        f"{entry.name}: not in the cache, and no connection is made because {because}; missing: {missing}. "
        f"Run `transduce download {entry.name}` with a network, or copy {cached.folder} from a machine that "
        "has it"
    )


# Downloading


def _download(settings: Settings, entry: Entry, choices: Sequence[Artefact]) -> Path:
    """Fetch the first of the choices that exists; under its lock, so that one process does it."""
    client = settings.client()
    plan = make_plan(client, settings.endpoint, entry, choices)
    key = entry.key(plan.artefact)
    with settings.cache.lock(key, announce=settings.announce):
        path = _local_path(settings, entry, plan.artefact)
        if path is None:  # no other process was faster
            _fetch_missing(settings, client, entry, plan)
            path = _local_path(settings, entry, plan.artefact)
    assert path is not None, "everything on the list has come"
    return path


def _fetch_missing(settings: Settings, client: Client, entry: Entry, plan: Plan) -> None:
    """Announce, then fetch what is not there; the list is kept up to date file by file."""
    cache, key = settings.cache, entry.key(plan.artefact)
    listed = _start_list(cache.look(key), entry, plan)
    cache.write_list(key, listed)
    missing = cache.look(key).missing
    folder = cache.folder(key)
    todo = [file for file in plan.files if file.path in missing]
    num_here = sum(_size(part_path(file, folder)) for file in todo)
    num_whole = sum(file.num_bytes or 0 for file in listed.files if file.path not in missing)
    if plan.num_bytes is not None:
        disk.require_space(folder, max(0, plan.num_bytes - num_whole - num_here))
    settings.announce(_announcement(entry, plan, folder, num_whole + num_here))
    with settings.progress(entry.name, plan.num_bytes) as show:
        for file in todo:
            stored = fetch(file, folder, client, _shifted(show, num_whole))
            num_whole += stored.num_bytes
            listed = _with_file(listed, ListedFile(stored.path, stored.num_bytes, stored.digest))
            cache.write_list(key, listed)
    cache.tidy(key)


def _start_list(cached: Cached, entry: Entry, plan: Plan) -> FileList:
    """What belongs into the folder; what an earlier run completed stays, and older content goes."""
    before = {file.path: file for file in cached.listed.files} if cached.listed else {}
    files = []
    for file in plan.files:
        old = before.get(file.path)
        is_same = old is not None and file.digest in (None, old.digest)
        if not is_same:
            with disk.writing(cached.folder):
                (cached.folder / file.path).unlink(missing_ok=True)
        files.append(old if old and is_same else ListedFile(file.path, file.num_bytes, file.digest))
    return FileList(entry.name, plan.origin, plan.licence, tuple(files))


def _with_file(listed: FileList, file: ListedFile) -> FileList:
    return replace(listed, files=tuple(file if old.path == file.path else old for old in listed.files))


def _announcement(entry: Entry, plan: Plan, folder: Path, num_here: int) -> str:
    """The one line before a download: from where, how much, under which licence, to where."""
    size = "size unknown" if plan.num_bytes is None else disk.display_size(plan.num_bytes)
    here = f" ({disk.display_size(num_here)} of it already here)" if num_here else ""
    return f"downloading {entry.name}: {plan.origin}, {size}{here}, {plan.licence}, to {folder}"


def _shifted(show: Show, num_before: int) -> Show:
    return lambda num_bytes: show(num_before + num_bytes)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
