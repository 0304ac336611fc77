"""What a model's name stands for: entries, their artefacts, and the search by name.

In: names as people type them. Out: an Entry (licence, languages, size, artefacts by engine), or the
names that come close. It knows no network and no disk; `gigaam`, `nvidia` and `sherpa` hold the data.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from transduce.hub.digests import Digest
from transduce.hub.selection import Selection

__all__ = ["Artefact", "Bundled", "Catalogue", "Entry", "RepoFiles", "Sample", "WebFile", "normalize"]


@dataclass(frozen=True, slots=True)
class Bundled:
    """A file that ships with the package."""

    path: str
    """Below `transduce/models`."""


@dataclass(frozen=True, slots=True)
class RepoFiles:
    """Files of a Hugging Face repository at one revision."""

    repo: str
    """owner/name"""
    selection: Selection
    revision: str = "main"
    """A branch, a tag or a commit; only a commit fixes the content."""
    digests: Mapping[str, Digest] = field(default_factory=dict)
    """What we know of files by ourselves; the hub's own hashes must agree."""


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file on a plain web server."""

    path: str
    """Its name in the cache."""
    url: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True)
class Artefact:
    """One form in which a model can be had."""

    label: str
    """What it is, in a word; its folder in the cache."""
    engines: tuple[str, ...]
    """Which engines read it; empty: it is for none in particular."""
    source: Bundled | RepoFiles | tuple[WebFile, ...]
    precision: str = "fp32"
    num_bytes: int | None = None
    """Size of the download as published, rounded."""
    main: tuple[str, ...] = ()
    """Patterns of the file that is loaded; empty: the folder is."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A recording and what upstream says that a model writes for it."""

    source: Bundled | WebFile
    text: str
    origin: str
    """Where the text was published."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by its name."""

    name: str
    artefacts: tuple[Artefact, ...]
    folder: str = ""
    """Its own folder in the cache, below each label; empty: its name. Readers see it as the model's name."""
    aliases: tuple[str, ...] = ()
    kind: str = ""
    """rnnt, tdt, ctc, or tdt+ctc for hybrids."""
    languages: str = ""
    licence: str = ""
    """Empty: as its repository says."""
    sample: Sample | None = None
    prefers: tuple[str, ...] = ()
    """Engines whose artefacts go first where several could be read; empty: the caller's order."""

    def key(self, artefact: Artefact) -> str:
        """The artefact's folder below the cache, LABEL/NAME."""
        return f"{artefact.label}/{self.folder or self.name}"


def normalize(name: str) -> str:
    """A name as it is compared: lower case, hyphens for underscores."""
    return name.strip().lower().replace("_", "-")


@dataclass(frozen=True)
class Catalogue:
    """All entries, in the order in which they are listed."""

    entries: tuple[Entry, ...]
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Names of models that recognise no speech, and what they are."""

    def find(self, name: str) -> Entry | None:
        """The entry of that name or alias."""
        return self._by_name().get(normalize(name))

    def close_names(self, name: str, most: int = 3) -> list[str]:
        """Names that a mistyped or cut one may have meant, the likeliest first."""
        names = self._by_name()
        wanted = normalize(name)
        near = [known for known in names if len(wanted) > 1 and wanted in known]
        near += difflib.get_close_matches(wanted, names, n=4 * most, cutoff=0.6)
        return list(dict.fromkeys(names[found].name for found in near))[:most]

    def _by_name(self) -> Mapping[str, Entry]:
        return {normalize(name): entry for entry in self.entries for name in _names(entry)}


def _names(entry: Entry) -> Iterable[str]:
    return (entry.name, *entry.aliases)
