"""Which recordings a command line names, and where their results go.

In: paths, globs, folders and `-`, an output folder and formats. Out: inputs in order, and a sink that
puts each one's transcripts on standard output or into files, no two of them alike. It knows no model.
"""

import errno
import glob
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol

from transduce.errors import AudioError, TransduceError
from transduce.sources import error_of_address, is_address
from transduce.writers import shown, write_atomic

__all__ = [
    "AUDIO_SUFFIXES",
    "STDIN",
    "FileSink",
    "Input",
    "Result",
    "Sink",
    "StreamSink",
    "expand",
    "obstacle",
    "output_names",
    "output_paths",
]

STDIN = "-"
_SUFFIXES = (
    ".aac .ac3 .aif .aiff .amr .au .avi .caf .flac .flv .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 "
    ".mpeg .mpg .oga .ogg .opus .ts .wav .weba .webm .wma .wmv .wv .3gp"
)
AUDIO_SUFFIXES = frozenset(_SUFFIXES.split())
"""What is taken from a folder; a file named by itself is tried whatever it is called."""


@dataclass(frozen=True, slots=True)
class Input:
    """One recording: its path, and its place below the folder that it was found in."""

    path: str
    relative: Path
    error: TransduceError | OSError | None = None
    """What is wrong with it before it is even opened."""
    is_done: bool = False
    """Whether its results are there already, from a run before."""
    claimed_seconds: float | None = None
    """Its length, where a manifest says it."""

    @property
    def is_open(self) -> bool:
        """Whether it is to be transcribed."""
        return self.error is None and not self.is_done


def expand(arguments: Iterable[str]) -> list[Input]:
    """The recordings that the arguments name; one that names nothing is kept with its error."""
    return [found for argument in arguments for found in _expand_one(argument)]


def _expand_one(argument: str) -> list[Input]:
    if argument == STDIN:
        return [Input(STDIN, Path("stdin"), _error_of_stdin())]
    path = Path(argument)
    if is_address(argument):  # no Path, which would lose a slash
        return [Input(argument, Path(path.name), error_of_address(argument))]
    if os.path.exists(path) or not glob.has_magic(argument):
        return _named(path)
    matches = sorted(glob.glob(argument, recursive=True))
    if not matches:
        error = AudioError(f"{argument}: no file matches this pattern")
        return [Input(argument, Path(path.name), error)]
    return [found for match in matches for found in _named(Path(match))]


def _named(path: Path) -> list[Input]:
    # os.path, unlike Path, has an answer for a name that is too long to be one
    return _folder(path) if os.path.isdir(path) else [Input(str(path), Path(path.name))]


def _error_of_stdin() -> AudioError | None:
    return AudioError("standard input cannot be read: it is closed") if sys.stdin is None else None


def _folder(folder: Path) -> list[Input]:
    """The recordings below a folder, and an error for each that cannot be reached.

    Links to files are followed, links to folders are not: they could lead around in circles.
    """
    found: list[Input] = []

    def refuse(error: OSError) -> None:
        found.append(_unreadable(Path(error.filename), folder, error))

    for place, _, names in os.walk(folder, onerror=refuse):
        entries = (_found(Path(place, name), folder) for name in names if _is_audio(name))
        found += [entry for entry in entries if entry is not None]
    if not found:
        error = AudioError(f"{folder}: the folder holds no audio files")
        return [Input(str(folder), Path(folder.name), error)]
    return sorted(found, key=lambda entry: Path(entry.path))


def _is_audio(name: str) -> bool:
    # macOS keeps what other file systems have no place for in files of that name, beside the real one.
    return Path(name).suffix.lower() in AUDIO_SUFFIXES and not name.startswith("._")


def _found(path: Path, folder: Path) -> Input | None:
    """The file, or why it cannot be reached; None for devices and the like."""
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        return _unreadable(path, folder, error)
    return Input(str(path), path.relative_to(folder)) if is_file else None


def _unreadable(path: Path, folder: Path, error: OSError) -> Input:
    is_lost = error.errno == errno.ENOENT and path.is_symlink()
    reason = "it is a link to a file that is not there" if is_lost else error.strerror
    relative = path.relative_to(folder) if path != folder else Path(folder.name)
    return Input(str(path), relative, AudioError(f"{path} cannot be read: {reason}"))


def output_paths(inputs: Sequence[Input], folder: Path, formats: Sequence[str]) -> list[dict[str, Path]]:
    """For each input, format -> file: its name and the format's extension."""
    return [_files(folder, name, formats) for name in output_names(inputs)]


def _files(folder: Path, name: Path, formats: Sequence[str]) -> dict[str, Path]:
    return {f: folder / f"{name}.{f}" for f in formats}


def output_names(inputs: Sequence[Input]) -> list[Path]:
    """For each input the place of its results below the output folder: its stem, or name where stems collide.

    Should names still collide (the same file twice, or `a.wav` of two folders), they are numbered.
    """
    stems = [entry.relative.with_suffix("") for entry in inputs]
    shared = {stem for stem, count in Counter(map(_key, stems)).items() if count > 1}
    names = [
        entry.relative if _key(stem) in shared else stem for entry, stem in zip(inputs, stems, strict=True)
    ]
    return _distinct(names)


def _distinct(names: Sequence[Path]) -> list[Path]:
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 1
        while _key(candidate) in taken:
            number += 1
            candidate = name.with_name(f"{name.name}-{number}")
        taken.add(_key(candidate))
        unique.append(candidate)
    return unique


def _key(name: object) -> str:
    return str(name).casefold()  # file systems of macOS and Windows do not tell case apart


def obstacle(folder: Path) -> str | None:
    """Why no files can be written below `folder`, which need not exist; None if nothing is in the way."""
    try:
        parents = folder.absolute().parents
    except FileNotFoundError:  # of the current folder
        return "the current folder is not there any more"
    nearest = next(path for path in (folder, *parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    if not os.access(nearest, os.W_OK):
        return f"{nearest} may not be written to"
    return None


class Result(Protocol):
    """What was said in a recording, or in a channel of it, as far as its files are concerned."""

    @property
    def source(self) -> str | None: ...

    @property
    def channel(self) -> int | None: ...

    def render(self, format: str, tokens: bool = False) -> str:  # noqa: A002
        """The content of a file of a format."""
        ...


class Sink(Protocol):
    """Where transcripts go."""

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        """The inputs: with an error where results could not be put, done where nothing is left to put."""
        ...

    def name_of(self, index: int) -> str | None:
        """What the results of the input at `index` are called in a manifest; None where they are no files."""
        ...

    def put(self, index: int, transcripts: Sequence[Result]) -> None:
        """Take what became of the input at `index`: one transcript, or one a channel."""
        ...


class StreamSink:
    """Results one after the other on a text stream, as they come.

    Those of several recordings have headings; JSON needs none, as each is one line with its source.
    """

    def __init__(self, stream: IO[str], format_name: str, *, tokens: bool) -> None:
        self.stream = stream
        self.format_name = format_name
        self.tokens = tokens
        self.is_single = True

    @property
    def takes_segments(self) -> bool:
        """Whether the text of each segment may be written as it comes."""
        return self.is_single and self.format_name == "txt"

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        self.is_single = len(inputs) == 1
        return list(inputs)

    def name_of(self, index: int) -> str | None:  # noqa: ARG002
        return None

    def put(self, index: int, transcripts: Sequence[Result]) -> None:  # noqa: ARG002
        has_heading = self.format_name != "json" and not (self.is_single and len(transcripts) == 1)
        for transcript in transcripts:
            text = transcript.render(self.format_name, tokens=self.tokens)
            self.stream.write(f"{_heading(transcript)}\n{text}\n" if has_heading else text)
        self.stream.flush()


def _heading(transcript: Result) -> str:
    channel = "" if transcript.channel is None else f" channel {transcript.channel}"
    return f"== {shown(str(transcript.source))}{channel} =="


class FileSink:
    """Results as files below a folder; each appears whole or not at all.

    What is there already is an error of its input; or replaced, with `overwrite`; or left as it is, with
    `resume`, which does only what is missing.
    """

    def __init__(
        self,
        folder: Path,
        formats: Sequence[str],
        *,
        tokens: bool,
        overwrite: bool = False,
        resume: bool = False,
        channel: int | None = None,
    ) -> None:
        """`channel` is the number that results will bear, the first one where channels are split."""
        self.folder = folder
        self.formats = formats
        self.tokens = tokens
        self.overwrite = overwrite
        self.resume = resume
        self.channel = channel
        self.names: list[Path] = []
        self.paths: list[Mapping[str, Path]] = []

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        self.names = output_names(inputs)
        self.paths = [_files(self.folder, name, self.formats) for name in self.names]
        return [self._checked(entry, paths) for entry, paths in zip(inputs, self.paths, strict=True)]

    def _checked(self, entry: Input, paths: Mapping[str, Path]) -> Input:
        # Of split channels the first one is written last, so that it stands for the others.
        last = [_numbered(path, self.channel) for path in paths.values()]
        if error := entry.error or self._in_the_way(last):
            return replace(entry, error=error)
        return replace(entry, is_done=self.resume and all(map(os.path.isfile, last)))

    def _in_the_way(self, paths: Sequence[Path]) -> OSError | None:
        """The error of folders that have a result's name, and of results that are there and may not be."""
        folder = next((path for path in paths if os.path.isdir(path)), None)
        if folder is not None:
            return IsADirectoryError(errno.EISDIR, "is a folder with the name of a result", str(folder))
        path = next((path for path in paths if os.path.lexists(path)), None)
        if self.overwrite or self.resume or path is None:
            return None
        return FileExistsError(errno.EEXIST, "exists already; --overwrite replaces it", str(path))

    def name_of(self, index: int) -> str | None:
        return self.names[index].as_posix()

    def put(self, index: int, transcripts: Sequence[Result]) -> None:
        files = {
            _numbered(path, transcript.channel): transcript.render(name, tokens=self.tokens)
            for transcript in reversed(transcripts)
            for name, path in self.paths[index].items()
        }
        # Once more: the names of split channels, and files that have come since, were not seen before.
        if error := self._in_the_way(list(files)):
            raise error
        for path, text in files.items():
            if self.resume and os.path.isfile(path):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)


def _numbered(path: Path, channel: int | None) -> Path:
    """`talk.srt`, or `talk.channel0.srt` for one channel of several."""
    return path if channel is None else path.with_name(f"{path.stem}.channel{channel}{path.suffix}")
