"""sherpa-onnx's exports of NeMo and GigaAM transducers, in their mirrors on Hugging Face.

In: nothing. Out: entries under sherpa-onnx's own names. Sizes are rounded.
"""

from dataclasses import dataclass

from transduce.hub.catalogue import Artefact, Entry, RepoFiles
from transduce.hub.nvidia import EUROPEAN
from transduce.hub.selection import OnnxFiles

__all__ = ["entries"]

OWNER = "csukuangfj"


@dataclass(frozen=True, slots=True)
class _Export:
    """A line of the table below; every encoder is int8."""

    name: str
    kind: str
    languages: str
    licence: str
    num_bytes: int
    revision: str = "main"


EXPORTS = (
    _Export(
        "sherpa-onnx-nemo-parakeet-tdt-0.6b-v3-int8",
        "tdt",
        EUROPEAN,
        "CC-BY-4.0",
        670_000_000,
        "2bda32ec70b097a55adaa07d9a7173915b43cc78",
    ),
    _Export("sherpa-onnx-nemo-parakeet-tdt-0.6b-v2-int8", "tdt", "en", "CC-BY-4.0", 661_000_000),
    _Export(
        "sherpa-onnx-nemo-transducer-punct-giga-am-v3-russian-2025-12-16",
        "rnnt",
        "ru",
        "MIT",
        232_000_000,
        "a6039be7cee829a9044a69ac0ebaf1c191217c97",
    ),
    _Export(
        "sherpa-onnx-nemo-transducer-giga-am-v3-russian-2025-12-16",
        "rnnt",
        "ru",
        "MIT",
        229_000_000,
        "0424d62637b37d8b7b1eb0f75a04d78dec55fdcc",
    ),
    _Export("sherpa-onnx-nemo-transducer-giga-am-v2-russian-2025-04-19", "rnnt", "ru", "MIT", 240_000_000),
    _Export(
        "sherpa-onnx-nemo-transducer-giga-am-russian-2024-10-24",
        "rnnt",
        "ru",
        "GigaAM's first licence (not for commerce)",
        240_000_000,
    ),
)


def entries() -> tuple[Entry, ...]:
    """All exports of the table."""
    return tuple(_entry(export) for export in EXPORTS)


def _entry(export: _Export) -> Entry:
    source = RepoFiles(f"{OWNER}/{export.name}", OnnxFiles("int8"), export.revision)
    return Entry(
        name=export.name,
        aliases=(f"{OWNER}/{export.name}",),
        kind=export.kind,
        languages=export.languages,
        licence=export.licence,
        artefacts=(Artefact("onnx-int8", ("onnx",), source, "int8", export.num_bytes),),
    )
