"""What a user may write for a model, and the entry or path that it means.

    demo, parakeet-tdt-0.6b-v3, e2e_rnnt      a name of the catalogue
    hf:owner/repo, hf:owner/repo@revision     any Hugging Face repository
    https://server/model.nemo#sha256=...      one file on a web server, the hash if you know it
    ./model.nemo, exported/                   a file or a folder here, which goes before all others

In: the text. Out: a Path that exists, or an Entry. It opens no connection.
"""

import hashlib
import os
import re
import stat
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from transduce.errors import CheckpointError, DownloadError, UnsupportedModelError
from transduce.hub.catalogue import Artefact, Catalogue, Entry, RepoFiles, WebFile, normalize
from transduce.hub.digests import Digest
from transduce.hub.http import display
from transduce.hub.paths import is_safe_path
from transduce.hub.selection import CheckpointFile, OnnxFiles

__all__ = ["find_model"]

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
REVISION = re.compile(r"[\w+-][\w.+/-]{0,200}", re.ASCII)
ARCHIVES = (".tar.bz2", ".tar.gz", ".tgz", ".zip", ".tar")
MODEL_ENDINGS = (".nemo", ".ckpt", ".onnx", ".pt", ".bin", ".safetensors")


def find_model(text: str, catalogue: Catalogue) -> Path | Entry:
    """What the text means; an error that helps where it means nothing.

    Raises DownloadError (unknown name), CheckpointError (no such file) or UnsupportedModelError.
    """
    path = _existing(text)
    if path is not None:
        return path
    if text.startswith("hf:"):
        return _repository(text)
    if re.match(r"https?://", text):
        return _web_file(text)
    entry = catalogue.find(text)
    if entry is not None:
        return entry
    raise _unknown(text, catalogue)


def _existing(text: str) -> Path | None:
    """The path, if something is there; CheckpointError where that may not be read."""
    path = os.path.expanduser(text)
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError:
        if not os.path.dirname(path):  # a name of the catalogue, here where nothing may be looked at
            return None
    except (OSError, ValueError):  # nothing there, or no path at all
        return None
    else:
        wanted = os.R_OK | os.X_OK if is_folder else os.R_OK
        if os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids):
            return Path(path)
    raise CheckpointError(f"{path}: cannot be read (Permission denied); change its permissions")


def _repository(text: str) -> Entry:
    repo, _, revision = text.removeprefix("hf:").partition("@")
    revision = revision or "main"
    if not REPO.fullmatch(repo) or not REVISION.fullmatch(revision) or ".." in repo + revision:
        raise DownloadError(f"{text}: not of the form hf:owner/repository or hf:owner/repository@revision")
    folder = f"{repo.replace('/', '--')}@{revision.replace('/', '--')}"
    graphs = tuple(_graphs(repo, revision, precision) for precision in ("fp32", "int8"))
    checkpoint = RepoFiles(repo, CheckpointFile(), revision)
    return Entry(
        name=text,
        folder=folder,
        artefacts=(*graphs, Artefact("checkpoint", ("torch",), checkpoint, main=("*.nemo", "*.ckpt"))),
    )


def _graphs(repo: str, revision: str, precision: str) -> Artefact:
    label = "onnx" if precision == "fp32" else f"onnx-{precision}"
    return Artefact(label, ("onnx",), RepoFiles(repo, OnnxFiles(precision), revision), precision)


def _web_file(text: str) -> Entry:
    url, _, fragment = text.partition("#")
    shown = display(url)
    try:
        name = PurePosixPath(unquote(urlsplit(url).path)).name
    except ValueError as error:
        raise DownloadError(f"{shown}: not a usable address ({error})") from error
    if name.lower().endswith(ARCHIVES):
        raise DownloadError(f"{shown}: archives are not unpacked; do that by hand and give the folder")
    if not is_safe_path(name):
        raise DownloadError(f"{shown}: the address does not end with a file's name")
    try:
        digest = Digest.parse(fragment) if fragment else None
    except ValueError as error:
        raise DownloadError(f"{shown}: no hash stands behind # ({error}); write #sha256=...") from error
    place = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    artefact = Artefact("file", (), (WebFile(name, url, digest),), main=(name,))
    return Entry(name=shown, folder=place, artefacts=(artefact,))


def _unknown(text: str, catalogue: Catalogue) -> Exception:
    if what := catalogue.foreign.get(normalize(text)):
        return UnsupportedModelError(f"{text}: {what}; it recognises no speech")
    if text.lower().endswith(MODEL_ENDINGS) or text.startswith((".", "/", "~")) or "\\" in text:
        return CheckpointError(f"{text}: no such file or folder; `demo` names the bundled model")
    if REPO.fullmatch(text):
        return DownloadError(f"{text}: no such folder, and no model of that name; did you mean hf:{text}?")
    close = catalogue.close_names(text)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return DownloadError(
        f"{text or '(no name)'}: no such file, and no model of that name; {meant}`transduce models` lists "
        "the names, `demo` is the bundled one; hf:owner/repository and https:// addresses work too"
    )
