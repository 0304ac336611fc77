"""What works on this machine: versions, extras, codecs, engines, and a run of the demo.

In: nothing. Out: Findings, one line a fact, and whether the demo was transcribed right. Nothing is
installed, fetched or changed, and a broken part is a finding, never an exception.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from transduce import audio
from transduce.errors import TransduceError
from transduce.transcriber import load_model

__all__ = ["EXTRAS", "Findings", "examine"]

EXTRAS = {
    "cpu": ("onnxruntime",),
    "gpu": ("onnxruntime-gpu",),
    "openvino": ("openvino", "onnxruntime"),
    "torch": ("torch", "safetensors", "omegaconf"),
    "cuda": ("cuda-bindings",),
    "eval": ("jiwer",),
    "plot": ("matplotlib",),
    "ray": ("ray", "fsspec"),
    "server": ("fastapi", "uvicorn", "python-multipart", "prometheus-client"),
}
"""Extra -> the distributions that it adds."""

BROKEN = (TransduceError, ImportError, OSError, RuntimeError)
"""What using an engine raises that is not there, or that does not fit this machine."""

DEMO_CLIP, DEMO_TEXT = "demo/sample.wav", "two five"


@dataclass(frozen=True, slots=True)
class Findings:
    """Facts by name, and the demo's verdict."""

    facts: Mapping[str, str]
    demo: str
    is_healthy: bool
    """Whether the demo was transcribed as it should be."""

    def to_dict(self) -> dict[str, str | bool]:
        return {**self.facts, "demo": self.demo, "healthy": self.is_healthy}


def examine() -> Findings:
    """Look at everything; the demo takes about a second."""
    facts = {
        "transduce": version("transduce"),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cpus": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "numpy": version("numpy"),
        **audio.codecs(),
        **{f"extra {name}": _extra(name, parts) for name, parts in EXTRAS.items()},
        "cuda": _cuda(),
    }
    demo, is_healthy = _demo()
    return Findings(facts, demo, is_healthy)


def _extra(name: str, distributions: tuple[str, ...]) -> str:
    try:
        return ", ".join(f"{distribution} {version(distribution)}" for distribution in distributions)
    except PackageNotFoundError as error:
        return f'{error.name} is not installed: pip install "transduce[{name}]"'


def _cuda() -> str:
    """What torch sees of a GPU; asked only where torch is there."""
    try:
        from transduce.nn.backend import cuda_devices

        return cuda_devices()
    except BROKEN as error:
        return f"not looked for: torch cannot be used ({error})"


def _demo() -> tuple[str, bool]:
    clip = Path(str(files("transduce") / "models" / DEMO_CLIP))
    try:
        with load_model("demo") as model:
            text = model.transcribe(clip).text
            engine = ", ".join(model.backend.describe().values())
    except BROKEN as error:
        return f"failed: {error}", False
    if text != DEMO_TEXT:
        return f"wrong: {text!r} where {DEMO_TEXT!r} was said ({engine})", False
    return f"right: {text!r} ({engine})", True
