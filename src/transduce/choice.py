"""How a model is to be run: a few words and a number.

In: what a caller or a command line asks for. Out: a Choice, or an error for a word that is none. Whether the
model and the machine can do it is not known here.
"""

import re
from dataclasses import dataclass

from transduce import hub
from transduce.errors import DeviceError, UnsupportedModelError
from transduce.onnx.threads import MOST_THREADS

__all__ = ["BACKENDS", "DECODERS", "HEADS", "PRECISIONS", "Choice"]

BACKENDS = ("auto", "onnx", "openvino", "torch")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
HEADS = ("auto", "rnnt", "tdt", "ctc")
DECODERS = ("auto", "reference", "eager", "graph", "while", "unrolled", "native")


@dataclass(frozen=True, slots=True)
class Choice:
    """How a model is run; nothing but `precision` changes a result.

    Raises DeviceError (of a head: UnsupportedModelError) for an unknown word, ValueError for `threads` beyond
    1 to 256.
    """

    backend: str = "auto"
    """auto, onnx, openvino or torch; auto: what the model's files and the installed engines fit."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: str = "fp32"
    """Of the encoder: fp32 (exact), bf16 (torch, openvino), fp16, int8 (onnx), or auto."""
    head: str = "auto"
    """auto, rnnt, tdt or ctc, for checkpoints that hold two."""
    decoder: str = "auto"
    """torch's: auto, reference, eager, graph, while, unrolled or native."""
    threads: int | None = None
    """Of the engine; None: the CPUs that this process may use."""
    staged: bool = False
    """Whether an ONNX graph runs stage by stage, so that each can be timed; somewhat slower."""

    def __post_init__(self) -> None:
        for name, known in (("backend", BACKENDS), ("precision", PRECISIONS), ("decoder", DECODERS)):
            if getattr(self, name) not in known:
                raise DeviceError(f"unknown {name} {getattr(self, name)!r}: use {_listed(known)}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(self.device), re.ASCII):
            raise DeviceError(f"unknown device {self.device!r}: use auto, cpu, cuda or cuda:N")
        if self.head not in HEADS:
            raise UnsupportedModelError(f"unknown head {self.head!r}: use {_listed(HEADS)}")
        if self.threads is not None and self.threads not in range(1, MOST_THREADS + 1):
            raise ValueError(f"threads is a number from 1 to {MOST_THREADS}, not {self.threads!r}")

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines to look for files of, the preferred one first; OpenVINO runs those of both."""
        return (self.backend,) if self.backend in ("onnx", "torch") else hub.installed_engines()


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
