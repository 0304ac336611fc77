"""What a Hugging Face repository holds at a revision, and where its files are.

In: owner/name and a revision. Out: a Listing: the commit, the licence, and each file with its size and
hash. The hub's answer is checked like any foreign data. It downloads no model files.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from transduce.errors import DownloadError
from transduce.hub.digests import Digest
from transduce.hub.http import Client
from transduce.hub.paths import is_safe_path
from transduce.hub.transfer import RemoteFile

__all__ = ["Listing", "list_repository"]

LICENCES = {"mit": "MIT", "apache-2.0": "Apache-2.0", "other": "a licence of its own"}
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    licence: str | None
    files: Mapping[str, RemoteFile]
    """By path; those whose names lead out of a folder are left out."""


def list_repository(client: Client, endpoint: str, repo: str, revision: str) -> Listing:
    """Ask the hub; DownloadError where it refuses or answers nonsense."""
    answer = client.json(f"{endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true")
    try:
        commit = str(answer["sha"])
        if not COMMIT.fullmatch(commit):
            raise ValueError(f"the commit is {commit!r}")
        base = f"{endpoint}/{repo}/resolve/{commit}"
        named = [sibling for sibling in answer["siblings"] if is_safe_path(str(sibling["rfilename"]))]
        files = [_remote_file(base, sibling) for sibling in named]
        licence = _licence(answer)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DownloadError(f"{repo}: the hub's list of files makes no sense ({error!r})") from error
    return Listing(repo, commit, licence, {file.path: file for file in files})


def _remote_file(base: str, sibling: Mapping[str, Any]) -> RemoteFile:
    """A file in LFS has a sha256, any other git's own hash."""
    path = str(sibling["rfilename"])
    size = sibling.get("size")
    num_bytes = size if type(size) is int and size >= 0 else None
    return RemoteFile(path, f"{base}/{quote(path)}", num_bytes, _digest(sibling, num_bytes))


def _digest(sibling: Mapping[str, Any], num_bytes: int | None) -> Digest | None:
    stored = sibling.get("lfs")
    if stored:
        return Digest("sha256", str(stored["sha256"]))
    if sibling.get("blobId") and num_bytes is not None:
        return Digest("git-sha1", str(sibling["blobId"]))
    return None


def _licence(answer: Mapping[str, Any]) -> str | None:
    """The licence of the model card, spelled as people do."""
    card = answer.get("cardData") or {}
    stated = card.get("license")
    if not isinstance(stated, str) or not re.fullmatch(r"[\w.+-]{1,40}", stated):
        return None
    return LICENCES.get(stated, stated.upper() if stated.startswith("cc") else stated)
