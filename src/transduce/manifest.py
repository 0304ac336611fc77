"""A list of recordings: JSON lines, one recording a line.

In: the path or address of a manifest. Out: `outputs.Input`s in order. A line is an object with `path` (or
NeMo's `audio_filepath`), and may have `duration` (seconds; it saves opening the file to ask) and `name` (of
the result below the output folder, without extension). Without names, results mirror the folders below the
deepest one that all recordings share. Relative paths are those of the manifest's folder. Other keys are
passed over. No recording is opened here.
"""

import logging
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from transduce.json_lines import objects, seconds_of
from transduce.outputs import Input
from transduce.remote import read_text
from transduce.sources import error_of_pipe, is_address, is_path

__all__ = ["read_manifest"]

logger = logging.getLogger("transduce")


def read_manifest(location: str) -> list[Input]:
    """The recordings of a manifest; at least one.

    Raises ValueError, with the line, for what is no manifest (AudioError for an address that gives nothing),
    and OSError for what cannot be read.
    """
    try:
        text = read_text(location)
    except UnicodeDecodeError as error:
        raise ValueError(f"{location} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    lines = enumerate(text.split("\n"), start=1)
    rows = list(objects(location, ((number, line) for number, line in lines if line.strip())))
    if not rows:
        raise ValueError(f"{location} lists no recordings")
    inputs = [_input(location, place, row) for place, row in rows]
    placed = _placed(inputs)
    _check_places([place for place, _ in rows], [bool(entry.relative.name) for entry in inputs], placed)
    return placed


def _input(location: str, place: str, row: Mapping[str, object]) -> Input:
    """One recording; its `relative` is empty where the line does not name its result."""
    path = row.get("path", row.get("audio_filepath"))
    if not isinstance(path, str) or not is_path(path):
        raise ValueError(f'{place}: "path" is missing or no path')
    if row.get("offset"):
        raise ValueError(f'{place}: "offset" asks for a part of a file; only whole recordings are taken')
    relative = _named(place, row.get("name"), PurePosixPath(path).suffix)
    path = _joined(location, path)
    error = None if is_address(path) else error_of_pipe(path)
    return Input(path, relative, error, claimed_seconds=seconds_of(place, row, "duration"))


def _joined(location: str, path: str) -> str:
    """A path as seen from here: a relative one is below the manifest's folder."""
    if is_address(path):
        return path
    if is_address(location):
        return posixpath.join(posixpath.dirname(location), path)
    return os.path.join(os.path.dirname(location), path)


def _named(place: str, name: object, extension: str) -> Path:
    """The place of a result that has a name; results take the place of the extension."""
    if name is None:
        return Path()
    parts = PurePosixPath(name).parts if isinstance(name, str) and is_path(name) else ()
    if not parts or ".." in parts or Path(*parts).is_absolute():
        raise ValueError(f'{place}: "name" is no relative path below the output folder: {name!r}')
    return Path(*parts[:-1], parts[-1] + (extension or ".audio"))


def _placed(inputs: Sequence[Input]) -> list[Input]:
    """The inputs, each with its place below the folder that those without a name share."""
    folders = [_parts(entry.path) for entry in inputs]
    shared = _shared(
        [parts[:-1] for parts, entry in zip(folders, inputs, strict=True) if not entry.relative.name]
    )
    return [
        entry if entry.relative.name else replace(entry, relative=Path(*parts[shared:]))
        for entry, parts in zip(inputs, folders, strict=True)
    ]


def _parts(path: str) -> tuple[str, ...]:
    """The folders of a path or an address, and its name: `s3://bucket/a/b.wav` -> s3, bucket, a, b.wav."""
    if is_address(path):
        scheme, _, rest = path.partition("://")
        return (scheme, *(part for part in rest.split("/") if part not in ("", ".", "..")))
    absolute = Path(os.path.abspath(path))
    return (absolute.drive.strip("\\/:").replace("\\", "-"), *absolute.parts[1:])


def _shared(folders: Sequence[tuple[str, ...]]) -> int:
    """How many folders all of them begin with."""
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    pairs = enumerate(zip(first, last, strict=False))
    return next((depth for depth, (a, b) in pairs if a != b), min(len(first), len(last)))


def _check_places(places: Sequence[str], are_named: Sequence[bool], inputs: Sequence[Input]) -> None:
    """Raise ValueError where a result that has a name would share its place; warn of a repeated recording."""
    lines_of: dict[str, int] = {}
    for index, entry in enumerate(inputs):
        before = lines_of.setdefault(str(entry.relative.with_suffix("")).casefold(), index)
        if before == index:
            continue
        if are_named[before] or are_named[index]:
            name = entry.relative.with_suffix("").as_posix()
            raise ValueError(f'{places[index]}: its result would be "{name}", as that of {places[before]}')
        if entry.path == inputs[before].path:
            logger.warning("%s: is the recording of %s again", places[index], places[before])
