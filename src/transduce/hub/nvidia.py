"""NVIDIA's Parakeet and FastConformer models: `.nemo` files and their ONNX exports, all on Hugging Face.

In: the address of NVIDIA's sample recording. Out: entries. Repositories, licences and languages are those of
the model cards; sizes are rounded. Models that our readers are known to refuse have no entry.
"""

from dataclasses import dataclass

from transduce.hub.catalogue import Artefact, Entry, RepoFiles, Sample, WebFile
from transduce.hub.digests import Digest
from transduce.hub.selection import CheckpointFile, Named

__all__ = ["EUROPEAN", "SAMPLE_URL", "entries"]

SAMPLE_URL = "https://dldata-public.s3.us-east-2.amazonaws.com/2086-149220-0033.wav"
SAMPLE_SHA256 = "5fceacff0315d49cb59fcc505bcecf1ed5f2f35c2897b1e65a59f30e5d922150"
SAMPLE_TEXT = (
    "Well, I don't wish to see it any more, observed Phoebe, turning away her eyes. "
    "It is certainly very like the old portrait."
)
"""What NeMo writes for parakeet-tdt-0.6b-v3; others spell Phebe, or leave out marks and capitals."""

LICENCE = "CC-BY-4.0"
EUROPEAN = "bg cs da de el en es et fi fr hr hu it lt lv mt nl pl pt ro ru sk sl sv uk"
"""The 25 languages of parakeet-tdt-0.6b-v3."""
V3_COMMIT = "8f23f0c03c8761650bdb5b40aaf3e40d2c15f1ce"
V3_SHA256 = {
    "encoder-model.onnx": "98a74b21b4cc0017c1e7030319a4a96f4a9506e50f0708f3a516d02a77c96bb1",
    "encoder-model.onnx.data": "9a22d372c51455c34f13405da2520baefb7125bd16981397561423ed32d24f36",
    "decoder_joint-model.onnx": "e978ddf6688527182c10fde2eb4b83068421648985ef23f7a86be732be8706c1",
    "encoder-model.int8.onnx": "6139d2fa7e1b086097b277c7149725edbab89cc7c7ae64b23c741be4055aff09",
    "decoder_joint-model.int8.onnx": "eea7483ee3d1a30375daedc8ed83e3960c91b098812127a0d99d1c8977667a70",
    "vocab.txt": "d58544679ea4bc6ac563d1f545eb7d474bd6cfa467f0a6e2c1dc1c7d37e3c35d",
}


@dataclass(frozen=True, slots=True)
class _Model:
    """A line of the table below."""

    name: str
    kind: str
    num_bytes: int
    """Of the .nemo file."""
    languages: str = "en"
    export: str = ""
    """The repository of its ONNX export."""
    export_kind: str = ""
    """What the export decodes, where the checkpoint is a hybrid; empty: the same."""
    export_bytes: tuple[int, int] = (2_500_000_000, 660_000_000)
    """fp32 and int8."""
    revision: str = "main"
    """Of the export."""
    aliases: tuple[str, ...] = ()


MODELS = (
    _Model(
        "parakeet-tdt-0.6b-v3",
        "tdt",
        2_500_000_000,
        EUROPEAN,
        export="istupakov/parakeet-tdt-0.6b-v3-onnx",
        export_bytes=(2_550_000_000, 670_000_000),
        revision=V3_COMMIT,
    ),
    _Model("parakeet-tdt-0.6b-v2", "tdt", 2_500_000_000, export="istupakov/parakeet-tdt-0.6b-v2-onnx"),
    _Model("parakeet-rnnt-0.6b", "rnnt", 2_500_000_000, export="istupakov/parakeet-rnnt-0.6b-onnx"),
    _Model("parakeet-ctc-0.6b", "ctc", 2_500_000_000, export="istupakov/parakeet-ctc-0.6b-onnx"),
    _Model("parakeet-tdt-1.1b", "tdt", 4_400_000_000),
    _Model("parakeet-rnnt-1.1b", "rnnt", 4_400_000_000),
    _Model("parakeet-ctc-1.1b", "ctc", 4_400_000_000),
    _Model("parakeet-tdt_ctc-110m", "tdt+ctc", 500_000_000),
    _Model("parakeet-tdt_ctc-0.6b-ja", "tdt+ctc", 2_500_000_000, "ja"),
    _Model("stt_en_fastconformer_hybrid_large_pc", "rnnt+ctc", 500_000_000),
    _Model(
        "stt_ru_fastconformer_hybrid_large_pc",
        "rnnt+ctc",
        500_000_000,
        "ru",
        export="istupakov/stt_ru_fastconformer_hybrid_large_pc_onnx",
        export_kind="rnnt",
        export_bytes=(460_000_000, 137_000_000),
        aliases=("nemo-fastconformer-ru-rnnt",),
    ),
)


def entries(sample_url: str = SAMPLE_URL) -> tuple[Entry, ...]:
    """All models of the table, and the CTC half of the Russian export, which is a model of its own there."""
    recording = WebFile("2086-149220-0033.wav", sample_url, Digest("sha256", SAMPLE_SHA256))
    sample = Sample(recording, SAMPLE_TEXT, "NeMo's answer to the sample of NVIDIA's model cards")
    return (*(_entry(model, sample) for model in MODELS), _russian_ctc())


def _entry(model: _Model, sample: Sample) -> Entry:
    checkpoint = RepoFiles(f"nvidia/{model.name}", CheckpointFile())
    onnx_asr_name = (f"nemo-{model.name}",) if model.export and model.name.startswith("parakeet") else ()
    return Entry(
        name=model.name,
        aliases=(f"nvidia/{model.name}", *onnx_asr_name, *model.aliases),
        kind=model.kind,
        languages=model.languages,
        licence=LICENCE,
        artefacts=(
            *_exports(model),
            Artefact("nemo", ("torch",), checkpoint, num_bytes=model.num_bytes, main=("*.nemo",)),
        ),
        sample=sample if "en" in model.languages.split() else None,
    )


def _exports(model: _Model) -> tuple[Artefact, ...]:
    if not model.export:
        return ()
    kind = model.export_kind or model.kind
    known = V3_SHA256 if model.revision == V3_COMMIT else {}
    sizes = dict(zip(("", ".int8"), model.export_bytes, strict=True))
    return tuple(
        Artefact(
            f"onnx{mark.replace('.', '-')}",
            ("onnx",),
            _export(model.export, kind, mark, model.revision, known),
            mark.removeprefix(".") or "fp32",
            num_bytes,
        )
        for mark, num_bytes in sizes.items()
    )


def _export(repo: str, kind: str, mark: str, revision: str, known: dict[str, str]) -> RepoFiles:
    stems = ("model",) if kind == "ctc" else ("encoder-model", "decoder_joint-model")
    graphs = tuple(f"{stem}{mark}.onnx" for stem in stems)
    files = Named((*graphs, "vocab.txt"), (*(f"{graph}.data" for graph in graphs), "config.json"))
    names = (*files.required, *files.optional)
    return RepoFiles(
        repo, files, revision, {name: Digest("sha256", known[name]) for name in names if name in known}
    )


def _russian_ctc() -> Entry:
    export = _Model(
        "stt_ru_fastconformer_hybrid_large_pc-ctc",
        "ctc",
        0,
        export="istupakov/stt_ru_fastconformer_hybrid_large_pc_onnx",
        export_bytes=(440_000_000, 132_000_000),
    )
    return Entry(
        name="nemo-fastconformer-ru-ctc",
        kind="ctc",
        languages="ru",
        licence=LICENCE,
        artefacts=_exports(export),
    )
