"""Which recordings a command line names, and where their results go.

In: paths, globs, folders and `-`, an output folder and formats. Out: inputs in order, and a sink that
puts each one's transcripts on standard output or into files, no two of them alike. It knows no model.
"""

import glob
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from transduce.errors import AudioError, TransduceError
from transduce.transcript import Transcript
from transduce.writers import write_atomic

__all__ = [
    "AUDIO_SUFFIXES",
    "STDIN",
    "FileSink",
    "Input",
    "Sink",
    "StreamSink",
    "display",
    "expand",
    "output_paths",
]

STDIN = "-"
AUDIO_SUFFIXES = frozenset(
    ".aac .ac3 .aif .aiff .amr .au .avi .caf .flac .flv .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 "
    ".mpeg .mpg .oga .ogg .opus .ts .wav .weba .webm .wma .wmv .wv .3gp".split()  # noqa: SIM905
)
"""What is taken from a folder; a file named by itself is tried whatever it is called."""


@dataclass(frozen=True, slots=True)
class Input:
    """One recording: its path, and its place below the folder that it was found in."""

    path: str
    relative: Path
    error: TransduceError | None = None
    """What is wrong with it before it is even opened."""


def expand(arguments: Iterable[str]) -> list[Input]:
    """The recordings that the arguments name; one that names nothing is kept with its error."""
    return [found for argument in arguments for found in _expand_one(argument)]


def _expand_one(argument: str) -> list[Input]:
    if argument == STDIN:
        return [Input(STDIN, Path("stdin"))]
    path = Path(argument)
    if path.exists() or not glob.has_magic(argument):
        return _existing(path)
    matches = sorted(glob.glob(argument, recursive=True))
    if not matches:
        error = AudioError(f"{display(argument)}: no file matches this pattern")
        return [Input(argument, Path(path.name), error)]
    return [found for match in matches for found in _existing(Path(match))]


def _existing(path: Path) -> list[Input]:
    return _folder(path) if path.is_dir() else [Input(str(path), Path(path.name))]


def _folder(folder: Path) -> list[Input]:
    files = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES and path.is_file()
    )
    if not files:
        error = AudioError(f"{display(str(folder))}: the folder holds no audio files")
        return [Input(str(folder), Path(folder.name), error)]
    return [Input(str(path), path.relative_to(folder)) for path in files]


def output_paths(inputs: Sequence[Input], folder: Path, formats: Sequence[str]) -> list[dict[str, Path]]:
    """For each input, format -> file: `<stem>.<format>`, or `<name>.<format>` where stems collide.

    Should names still collide (the same file twice, or `a.wav` of two folders), they are numbered.
    """
    stems = [entry.relative.with_suffix("") for entry in inputs]
    shared = {stem for stem, count in Counter(map(_key, stems)).items() if count > 1}
    names = [
        entry.relative if _key(stem) in shared else stem for entry, stem in zip(inputs, stems, strict=True)
    ]
    return [{f: folder / f"{name}.{f}" for f in formats} for name in _numbered(names)]


def _numbered(names: Sequence[Path]) -> list[Path]:
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


def display(path: str) -> str:
    """A path as text that any terminal and any UTF-8 file can hold."""
    return os.fsencode(path).decode("utf-8", "replace")


class Sink(Protocol):
    """Where transcripts go."""

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        """The inputs, those with an error whose results could not be put anywhere."""
        ...

    def put(self, index: int, transcripts: Sequence[Transcript]) -> None:
        """Take what became of the input at `index`: one transcript, or one a channel."""
        ...


class StreamSink:
    """Results one after the other on a text stream, as they come."""

    def __init__(self, stream: IO[str], format_name: str, *, tokens: bool) -> None:
        self.stream = stream
        self.format_name = format_name
        self.tokens = tokens
        self.is_single = True

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        self.is_single = len(inputs) == 1
        return list(inputs)

    def put(self, index: int, transcripts: Sequence[Transcript]) -> None:  # noqa: ARG002
        is_single = self.is_single and len(transcripts) == 1
        for transcript in transcripts:
            self.stream.write(self._single(transcript) if is_single else self._one_of_many(transcript))
        self.stream.flush()

    def _single(self, transcript: Transcript) -> str:
        return transcript.render(self.format_name, tokens=self.tokens)

    def _one_of_many(self, transcript: Transcript) -> str:
        """JSON: an object a line. Everything else: a heading, the text and an empty line."""
        if self.format_name == "json":
            return json.dumps(transcript.to_dict(tokens=self.tokens), ensure_ascii=False) + "\n"
        channel = "" if transcript.channel is None else f" channel {transcript.channel}"
        return f"== {display(str(transcript.source))}{channel} ==\n{self._single(transcript)}\n"


class FileSink:
    """Results as files below a folder; each appears whole or not at all."""

    def __init__(self, folder: Path, formats: Sequence[str], *, tokens: bool, overwrite: bool) -> None:
        self.folder = folder
        self.formats = formats
        self.tokens = tokens
        self.overwrite = overwrite
        self.paths: list[Mapping[str, Path]] = []

    def claim(self, inputs: Sequence[Input]) -> list[Input]:
        self.paths = list(output_paths(inputs, self.folder, self.formats))
        return [self._checked(entry, paths) for entry, paths in zip(inputs, self.paths, strict=True)]

    def _checked(self, entry: Input, paths: Mapping[str, Path]) -> Input:
        existing = next((path for path in paths.values() if path.exists()), None)
        if entry.error or self.overwrite or existing is None:
            return entry
        error = AudioError(f"{display(str(existing))} exists already; --overwrite replaces it")
        return Input(entry.path, entry.relative, error)

    def put(self, index: int, transcripts: Sequence[Transcript]) -> None:
        for format_name, path in self.paths[index].items():
            path.parent.mkdir(parents=True, exist_ok=True)
            for transcript in transcripts:
                write_atomic(
                    _channel_path(path, transcript), transcript.render(format_name, tokens=self.tokens)
                )


def _channel_path(path: Path, transcript: Transcript) -> Path:
    """`talk.srt`, or `talk.channel0.srt` where channels were split."""
    if transcript.channel is None:
        return path
    return path.with_name(f"{path.stem}.channel{transcript.channel}{path.suffix}")
