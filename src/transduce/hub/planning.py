"""What a download will fetch: the artefact that exists, its files, their sizes and hashes.

In: an entry and its artefacts in the order of preference. Out: a Plan, after asking the hub where one of
them is a repository. It downloads no model files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from transduce.errors import DownloadError
from transduce.hub.catalogue import Artefact, Bundled, Entry, RepoFiles, WebFile
from transduce.hub.digests import Digest
from transduce.hub.http import Client, display
from transduce.hub.huggingface import Listing, list_repository
from transduce.hub.transfer import RemoteFile

__all__ = ["Plan", "contents", "make_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be downloaded."""

    artefact: Artefact
    origin: str
    """Repository and commit, or the server."""
    licence: str
    files: tuple[RemoteFile, ...]

    @property
    def num_bytes(self) -> int | None:
        """All files together; the published size where a server does not list them."""
        sizes = [file.num_bytes for file in self.files]
        return self.artefact.num_bytes if None in sizes else sum(size or 0 for size in sizes)


def make_plan(client: Client, endpoint: str, entry: Entry, choices: Sequence[Artefact]) -> Plan:
    """The plan for the first choice that exists; DownloadError where none does."""
    listings: dict[tuple[str, str], Listing] = {}
    for artefact in choices:
        source = artefact.source
        if isinstance(source, RepoFiles):
            where = source.repo, source.revision
            if where not in listings:
                listings[where] = list_repository(client, endpoint, *where)
            if picked := source.selection.pick(listings[where].files):
                return _of_repository(endpoint, entry, artefact, source.digests, listings[where], picked)
        elif not isinstance(source, Bundled):
            return _of_server(entry, artefact, source)
    wanted = " or ".join(dict.fromkeys(contents(artefact) for artefact in choices))
    held = "; ".join(f"{listing.repo} holds {_some(listing.files)}" for listing in listings.values())
    raise DownloadError(f"{entry.name}: there is no {wanted}; {held}")


def contents(artefact: Artefact) -> str:
    """What an artefact consists of, as far as one knows without asking."""
    source = artefact.source
    if isinstance(source, RepoFiles):
        return f"{source.selection.describe()} in {source.repo}"
    if isinstance(source, Bundled):
        return source.path
    return ", ".join(f"{file.path} on {_server(file)}" for file in source)


def _of_repository(
    endpoint: str,
    entry: Entry,
    artefact: Artefact,
    digests: Mapping[str, Digest],
    listing: Listing,
    picked: Sequence[str],
) -> Plan:
    files = tuple(_proven(listing.files[path], digests.get(path), listing.repo) for path in picked)
    licence = entry.licence or listing.licence or "licence not stated"
    return Plan(artefact, f"{display(endpoint)}/{listing.repo}@{listing.commit[:8]}", licence, files)


def _proven(file: RemoteFile, ours: Digest | None, repo: str) -> RemoteFile:
    """The file with the hash that we know ourselves, which the hub must not contradict."""
    if ours is None:
        return file
    if file.digest is not None and file.digest.kind == ours.kind and file.digest != ours:
        raise DownloadError(
            f"{repo}: {file.path} is not the file that this version of transduce knows ({file.digest} where "
            f"{ours} belongs); nothing was downloaded: look for a newer transduce"
        )
    return replace(file, digest=ours)


def _of_server(entry: Entry, artefact: Artefact, source: Sequence[WebFile]) -> Plan:
    files = tuple(RemoteFile(file.path, file.url, None, file.digest) for file in source)
    return Plan(artefact, _server(source[0]), entry.licence or "licence not stated", files)


def _server(file: WebFile) -> str:
    return display(file.url).partition("/")[0]


def _some(names: Mapping[str, RemoteFile], most: int = 8) -> str:
    """The first few names, for a message."""
    listed = sorted(names)
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "nothing") + rest
