"""The catalogue that the package ships: the demo, NVIDIA's, GigaAM's and sherpa-onnx's models.

In: the addresses of the servers that are not Hugging Face. Out: a Catalogue.
"""

from transduce.hub import gigaam, nvidia, sherpa
from transduce.hub.catalogue import Artefact, Bundled, Catalogue, Entry, Sample

__all__ = ["DEFAULT_MODEL", "catalogue"]

DEFAULT_MODEL = "parakeet-tdt-0.6b-v3"
"""What is used where nobody names a model."""

DEMO = Entry(
    name="demo",
    artefacts=(
        Artefact("nemo", ("torch",), Bundled("demo/hybrid.nemo"), num_bytes=6_871_040, main=("*.nemo",)),
        Artefact("onnx", ("onnx",), Bundled("demo/onnx"), num_bytes=7_540_358),
    ),
    prefers=("torch", "onnx"),  # the checkpoint has both heads, the graph one
    kind="tdt+ctc",
    languages="en (digits)",
    licence="CC-BY-SA-4.0",
    sample=Sample(Bundled("demo/sample.wav"), "two five", "what the speaker says"),
)


def catalogue(*, gigaam_server: str = gigaam.SERVER, nvidia_sample_url: str = nvidia.SAMPLE_URL) -> Catalogue:
    """All entries, those most asked for first."""
    listed = (*nvidia.entries(nvidia_sample_url), *gigaam.entries(gigaam_server), *sherpa.entries())
    return Catalogue((*listed, DEMO), gigaam.FOREIGN)
