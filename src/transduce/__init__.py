"""transduce: speech to text with RNN-T, TDT and CTC models, exact and in flat memory.

    import transduce

    with transduce.load_model("demo") as model:
        print(model.transcribe("examples/digits.wav").text)

Importing this package imports the standard library and numpy, nothing else; the names below are
loaded when they are first used.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "AudioError",
    "CheckpointError",
    "Cut",
    "DeviceError",
    "DownloadError",
    "Hypothesis",
    "Limits",
    "MissingExtraError",
    "Model",
    "ModelSpec",
    "ResourceError",
    "Segment",
    "Token",
    "Transcript",
    "TransduceError",
    "UnsupportedModelError",
    "Word",
    "load_model",
]

_HOMES = {
    "transduce.errors": (
        "AudioError",
        "CheckpointError",
        "DeviceError",
        "DownloadError",
        "MissingExtraError",
        "ResourceError",
        "TransduceError",
        "UnsupportedModelError",
    ),
    "transduce.types": ("Hypothesis", "ModelSpec", "Segment", "Token", "Word"),
    "transduce.transcript": ("Transcript",),
    "transduce.pipeline": ("Cut", "Limits"),
    "transduce.transcriber": ("Model", "load_model"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # imported late: an interrupt in these first moments is met by nobody
        return import_module("importlib.metadata").version("transduce")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'transduce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
