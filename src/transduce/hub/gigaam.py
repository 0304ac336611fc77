"""GigaAM's models (Sber): the checkpoints on its own server and their ONNX exports on Hugging Face.

In: the server's address. Out: entries. The names, md5 sums and file names are upstream's
(`gigaam/__init__.py` of GigaAM at 8555893, the repositories of onnx-asr's author); sizes are rounded.
"""

from collections.abc import Mapping
from typing import Literal

from transduce.hub.catalogue import Artefact, Entry, RepoFiles, Sample, WebFile
from transduce.hub.digests import Digest
from transduce.hub.selection import Named

__all__ = ["FOREIGN", "SERVER", "entries"]

SERVER = "https://cdn.chatwm.opensmodel.sberdevices.ru/GigaAM"
V3_COMMIT = "322c3b29492673eb7d0b434bfa9dfb8653e34d02"
MULTILINGUAL = "ru en kk ky uz"

CHECKPOINTS: Mapping[str, str] = {
    "v1_ctc": "f027f199e590a391d015aeede2e66174",
    "v1_rnnt": "02c758999bcdc6afcb2087ef256d47ef",
    "v2_ctc": "e00f59cb5d39624fb30d1786044795bf",
    "v2_rnnt": "547460139acfebd842323f59ed54ab54",
    "v3_ctc": "73413e7be9c6a5935827bfab5c0dd678",
    "v3_rnnt": "0fd2c9a1ff66abd8d32a3a07f7592815",
    "v3_e2e_ctc": "367074d6498f426d960b25f49531cf68",
    "v3_e2e_rnnt": "2730de7545ac43ad256485a462b0a27a",
}
"""md5 of each `.ckpt`."""

TOKENIZERS: Mapping[str, str | None] = {
    "v1_rnnt": None,
    "v3_e2e_ctc": "2a9cd0c246db42d076e92abb31055deb",
    "v3_e2e_rnnt": "3b3bf8370e882885d79731592fc99f98",
}
"""md5 of each SentencePiece model that lies beside a checkpoint; upstream gives none for v1."""

GRAPH_SHA256: Mapping[str, str] = {
    "v3_e2e_rnnt_encoder.onnx": "cd60b3764a832e8560ae6d3ad0b10adc1a42ffae412b9476f25620aae4f4a508",
    "v3_e2e_rnnt_decoder.onnx": "7b0a16d67fd2cb37061decc93c69e364a9ab27afee3c57495d55b1c974cf7231",
    "v3_e2e_rnnt_joint.onnx": "602ff7017a93311aad34df1437c8d7f49911353c13d6eae7a6ee7b041339465c",
    "v3_e2e_rnnt_vocab.txt": "39abae20e692998290c574e606f11a9edef2902a1995463fcff63d1490cf22b7",
}

FOREIGN: Mapping[str, str] = {
    "emo": "GigaAM's emotion model",
    **dict.fromkeys(("ssl", "v1-ssl", "v2-ssl", "v3-ssl"), "GigaAM's encoder without a head, for training"),
}
"""Upstream's names that are no speech recognisers."""

SAMPLE_TEXT = (
    "Ничьих не требуя похвал, Счастлив уж я надеждой сладкой, Что дева с трепетом любви Посмотрит, "
    "может быть, украдкой На песни грешные мои. У лукоморья дуб зелёный."
)
SAMPLE_SHA256 = "d8aaaa18a5098d7c6de0595ae7ac1e64cacd0d4022af3595213bdaf23be77e69"


def entries(server: str = SERVER) -> tuple[Entry, ...]:
    """The speech recognisers, the newest first."""
    names = sorted(CHECKPOINTS, key=_rank)
    return (*(_entry(name, server) for name in names), _multilingual(""), _multilingual("large_"))


def _rank(name: str) -> tuple[int, bool, bool]:
    return -int(name[1]), "e2e" not in name, "rnnt" not in name


def _entry(name: str, server: str) -> Entry:
    short = (name.removeprefix("v3_"),) if name.startswith("v3_") else ()
    return Entry(
        name=f"gigaam-{name.replace('_', '-')}",
        aliases=(name, *short),
        kind=name.rpartition("_")[2],
        languages="ru",
        licence="MIT",
        artefacts=(*_graphs(name), _checkpoint(name, server)),
        sample=Sample(
            WebFile("example.wav", f"{server}/example.wav", Digest("sha256", SAMPLE_SHA256)),
            SAMPLE_TEXT,
            "GigaAM's colab_example.ipynb (v3_e2e_rnnt; the others without marks)",
        ),
    )


def _checkpoint(name: str, server: str) -> Artefact:
    files = [WebFile(f"{name}.ckpt", f"{server}/{name}.ckpt", Digest("md5", CHECKPOINTS[name]))]
    if name in TOKENIZERS:
        md5 = TOKENIZERS[name]
        tokenizer = f"{name}_tokenizer.model"
        files.append(WebFile(tokenizer, f"{server}/{tokenizer}", Digest("md5", md5) if md5 else None))
    return Artefact("checkpoint", ("torch",), tuple(files), num_bytes=450_000_000, main=("*.ckpt",))


def _graphs(name: str) -> tuple[Artefact, ...]:
    """The ONNX exports in fp32 and int8; there are none of v1."""
    version = name[:2]
    if version == "v1":
        return ()
    parts = ("_encoder", "_decoder", "_joint") if name.endswith("rnnt") else ("",)
    return _exports(
        repo=f"istupakov/gigaam-{version}-onnx",
        revision=V3_COMMIT if version == "v3" else "main",
        stems=tuple(f"{name}{part}" for part in parts),
        vocabulary=f"{name}_vocab.txt" if "e2e" in name else f"{version}_vocab.txt",
        beside=("config.json", f"{name}.yaml"),
        num_bytes=(890_000_000, 226_000_000),
    )


def _multilingual(size: Literal["", "large_"]) -> Entry:
    num_bytes = (2_340_000_000, 592_000_000) if size else (885_000_000, 225_000_000)
    name = f"multilingual_{size}ctc"
    hyphenated = name.replace("_", "-")
    return Entry(
        name=f"gigaam-{hyphenated}",
        aliases=(name,),
        kind="ctc",
        languages=MULTILINGUAL,
        licence="MIT",
        artefacts=_exports(
            repo=f"istupakov/gigaam-{hyphenated}-onnx",
            revision="main",
            stems=(name,),
            vocabulary="multilingual_vocab.txt",
            beside=("config.json",),
            num_bytes=num_bytes,
        ),
    )


def _exports(
    *,
    repo: str,
    revision: str,
    stems: tuple[str, ...],
    vocabulary: str,
    beside: tuple[str, ...],
    num_bytes: tuple[int, int],
) -> tuple[Artefact, ...]:
    """One artefact in fp32, one in int8; where a graph keeps its weights apart, they come along."""

    def source(mark: str) -> RepoFiles:
        graphs = tuple(f"{stem}{mark}.onnx" for stem in stems)
        files = Named((*graphs, vocabulary), (*(f"{graph}.data" for graph in graphs), *beside))
        known = [(path, GRAPH_SHA256[path]) for path in files.required if path in GRAPH_SHA256]
        return RepoFiles(repo, files, revision, {path: Digest("sha256", value) for path, value in known})

    return (
        Artefact("onnx", ("onnx",), source(""), "fp32", num_bytes[0]),
        Artefact("onnx-int8", ("onnx",), source(".int8"), "int8", num_bytes[1]),
    )
