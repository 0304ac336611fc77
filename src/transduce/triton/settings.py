"""What can be set about a deployed model, and how it is spelled in Triton's `config.pbtxt`.

Plain data. Triton's parameters are strings: `to_parameters` writes them, `from_parameters` reads them where
the model runs. Whoever edits the file by hand gets an error that names the parameter.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from transduce.batching import BATCH_SECONDS
from transduce.errors import UnsupportedModelError
from transduce.onnx.threads import MOST_THREADS

__all__ = ["MOST_BATCH_SECONDS", "Settings"]

MOST_BATCH_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How one model is loaded, and how much work it takes at once."""

    model: str
    """The model's file or folder, below the folder of the version."""
    backend: str = "auto"
    precision: str = "fp32"
    head: str = "auto"
    threads: int = 0
    """Of the engine, in each instance; 0: the CPUs here, shared by the instances."""
    batch_seconds: float = BATCH_SECONDS
    """Audio of one batch, padding counted."""
    max_audio_seconds: float = 4 * 3600.0
    """A longer recording is refused."""
    max_requests: int = 32
    """Recordings under way in an instance; what comes beyond them waits in Triton's queue."""

    def to_parameters(self) -> dict[str, str]:
        """Name -> text, in the order of the fields."""
        return {
            "model": self.model,
            "backend": self.backend,
            "precision": self.precision,
            "head": self.head,
            "threads": str(self.threads),
            "max_batch_audio_seconds": f"{self.batch_seconds:g}",
            "max_audio_seconds": f"{self.max_audio_seconds:g}",
            "max_requests": str(self.max_requests),
        }

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> "Settings":
        """Read the parameters back. Raises UnsupportedModelError for what is missing or no number."""
        return cls(
            model=_text(parameters, "model"),
            backend=_text(parameters, "backend"),
            precision=_text(parameters, "precision"),
            head=_text(parameters, "head"),
            threads=int(_number(parameters, "threads", 0, MOST_THREADS)),
            batch_seconds=_number(parameters, "max_batch_audio_seconds", 1, MOST_BATCH_SECONDS),
            max_audio_seconds=_number(parameters, "max_audio_seconds", 1),
            max_requests=int(_number(parameters, "max_requests", 1)),
        )


def _text(parameters: Mapping[str, str], name: str) -> str:
    try:
        return parameters[name]
    except KeyError:
        raise UnsupportedModelError(
            f"config.pbtxt has no parameter {name}: write the repository again with transduce triton"
        ) from None


def _number(
    parameters: Mapping[str, str], name: str, least: float, most: float = sys.float_info.max
) -> float:
    text = _text(parameters, name)
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        limit = f"to {most:g}" if most < sys.float_info.max else "on"
        raise UnsupportedModelError(
            f"config.pbtxt: the parameter {name} is a number from {least:g} {limit}, not {text!r}"
        )
    return number
