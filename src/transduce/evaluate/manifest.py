"""Recordings with their true texts: a NeMo manifest, a table, or a folder of pairs.

In: a path. Out: `Utterance`s in order. Three forms are told apart by what they are:

- a folder: every recording below it that has a `.txt` of the same name beside it;
- JSON lines (NeMo): `{"audio_filepath", "text", "duration", "offset"}`, the last two optional, and with
  both of them a part of the file;
- a table parted by tabs: a header with a column of paths (`audio_filepath`, `path`, ...) and one of texts
  (`text`, `sentence`, ...), or without a header path and text in the first two columns.

Relative paths are those of the manifest's folder. No recording is opened here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.json_lines import objects, seconds_of
from transduce.outputs import expand
from transduce.sources import error_of_address, is_address, is_path

__all__ = ["Utterance", "read_manifest"]

PATH_COLUMNS = ("audio_filepath", "audio_path", "path", "audio", "file", "filename", "wav")
TEXT_COLUMNS = ("text", "sentence", "transcript", "transcription", "reference")
"""What headers of tables call their columns, the first that is there."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One recording, or a part of it, and what is said there."""

    name: str
    """What reports call it."""
    path: Path
    text: str
    start_seconds: float | None = None
    """Where it begins in its file; None where the manifest does not say, which is at 0."""
    duration_seconds: float | None = None
    """What the manifest claims; with a start, be it 0, it also says where the part ends."""

    @property
    def is_part(self) -> bool:
        """Whether the manifest says that it begins or ends inside its file."""
        return self.start_seconds is not None and (self.start_seconds > 0 or self.end_seconds is not None)

    @property
    def end_seconds(self) -> float | None:
        """Where a part ends; None: with the file."""
        if self.start_seconds is None or self.duration_seconds is None:
            return None
        return self.start_seconds + self.duration_seconds


def read_manifest(path: Path) -> list[Utterance]:
    """The utterances of a manifest or a folder; at least one.

    Raises ValueError, with the file and the line, for what is no manifest, and OSError for what cannot be
    read.
    """
    if path.is_dir():
        found = list(_pairs(path))
        problem = "holds no recording with a .txt of the same name beside it"
    else:
        lines = _lines(path)
        found = list(_of_json(path, lines) if _is_json(lines) else _of_table(path, lines))
        problem = "holds no utterances"
    if not found:
        raise ValueError(f"{path} {problem}")
    return found


def _pairs(folder: Path) -> Iterator[Utterance]:
    for entry in expand([str(folder)]):
        text = Path(entry.path).with_suffix(".txt")
        if entry.error is None and text.is_file():
            yield Utterance(entry.relative.as_posix(), Path(entry.path), _text(text))


def _text(path: Path) -> str:
    """The content of a file in UTF-8, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that hold something, with their numbers from 1."""
    lines = enumerate(_text(path).split("\n"), start=1)
    return [(number, line.rstrip("\r")) for number, line in lines if line.strip()]


def _is_json(lines: Sequence[tuple[int, str]]) -> bool:
    return bool(lines) and lines[0][1].lstrip().startswith("{")


def _of_json(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[Utterance]:
    for place, row in objects(str(path), lines):
        yield _utterance(path, place, row)


def _of_table(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[Utterance]:
    header = _header(lines[0][1].split("\t")) if lines else {}
    columns = header or {"audio_filepath": 0, "text": 1}
    for number, line in lines[bool(header) :]:
        place = f"{path}, line {number}"
        row = line.split("\t")
        cells = {name: row[index] for name, index in columns.items() if index < len(row)}
        if len(cells) < len(columns):
            raise ValueError(f"{place}: is neither a JSON object nor a path and a text parted by a tab")
        yield _utterance(path, place, {name: cell for name, cell in cells.items() if cell or name == "text"})


def _header(cells: Sequence[str]) -> dict[str, int]:
    """Our names of the columns and their places; empty where the first row is no header."""
    places = {cell.strip().lower(): index for index, cell in enumerate(cells)}
    audio = next((places[name] for name in PATH_COLUMNS if name in places), None)
    text = next((places[name] for name in TEXT_COLUMNS if name in places), None)
    if audio is None or text is None:
        return {}
    columns = {"audio_filepath": audio, "text": text}
    return columns | {name: place for name, place in places.items() if name in ("duration", "offset")}


def _utterance(manifest: Path, place: str, row: Mapping[str, object]) -> Utterance:
    audio, text = row.get("audio_filepath"), row.get("text")
    if not isinstance(audio, str) or not is_path(audio):
        raise ValueError(f'{place}: "audio_filepath" is missing or no path')
    if is_address(audio):
        raise ValueError(f"{place}: {error_of_address(audio)}")
    if not isinstance(text, str):
        raise ValueError(f'{place}: "text" is {"missing" if text is None else f"no string: {text!r:.60}"}')
    start = seconds_of(place, row, "offset")
    return Utterance(
        name=audio if not start else f"{audio} from {start:g} s",
        path=manifest.parent / audio,
        text=text,
        start_seconds=start,
        duration_seconds=seconds_of(place, row, "duration"),
    )
