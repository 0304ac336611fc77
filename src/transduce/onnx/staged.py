"""A model that runs in three stages: front end, encoder, decoding rule.

In: a graph of ours and who multiplies the encoder's matrices. Out: a StagedSession, which OnnxBackend runs
like a session, and which knows how long each stage took. Front end and rule are onnxruntime's and fp32:
a spectrum in bf16 would be none. The encoder sees a batch a few rows at a time, as a CPU's caches like
it; the rule sees all rows at once.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from transduce.errors import DeviceError
from transduce.onnx import openvino
from transduce.onnx.builder import Graph
from transduce.onnx.foreign import ForeignModel
from transduce.onnx.session import Arrays, Session
from transduce.onnx.split import ENCODED, FEATURES, split
from transduce.onnx.threads import num_threads

__all__ = ["SLICE_SAMPLES", "Runner", "StagedSession", "check_device"]

SLICE_SAMPLES = 320_000
"""Audio that is encoded at once, padding counted: 20 s at 16 kHz. More at once is no faster (docs/cpu.md)."""

STAGES = ("features", "encoder", "decoder")


def check_device(device: str) -> None:
    """Raise DeviceError for one that a model in stages does not run on."""
    if device not in ("auto", "cpu"):
        raise DeviceError(f"device {device!r}: OpenVINO runs the encoder on the CPU; use cpu or auto")


class Runner(Protocol):
    """What runs a graph."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Engine, device, and why not a better one."""
        ...

    def run(self, outputs: Sequence[str], feeds: Arrays) -> list[npt.NDArray[Any]]:
        """The outputs of that name."""
        ...


@dataclass(frozen=True)
class StagedSession:
    """A model in three parts; one call at a time."""

    notes: Mapping[str, str]
    frontend: Runner
    encoder: Runner
    decoder: Runner
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    """Seconds of each stage, of all calls together."""

    @classmethod
    def of_graph(
        cls,
        model: Graph | ForeignModel,
        source: str,
        *,
        num_mels: int,
        precision: str = "fp32",
        device: str = "auto",
        threads: int | None = None,
        in_openvino: bool = True,
    ) -> "StagedSession":
        """Split and load a model of ours; `precision` is what OpenVINO computes in.

        Raises DeviceError for a device or precision that this CPU has not, MissingExtraError,
        CheckpointError where it does not run.
        """
        check_device(device)
        count = num_threads() if threads is None else threads
        if in_openvino:
            openvino.check_precision(precision)
        parts = split(model, source, num_mels)
        frontend, decoder = (
            # Threads that spin while they wait would take the CPU from the encoder's.
            Session.of_graph(part, source, threads=count, spins=not in_openvino)
            for part in (parts.frontend, parts.decoder)
        )
        encoder: Runner
        if in_openvino:
            encoder = openvino.OpenVino.of_graph(parts.encoder, source, precision, count)
            notes = {**encoder.notes, "engine": f"{encoder.notes['engine']}, {decoder.notes['engine']}"}
        else:
            encoder = Session.of_graph(parts.encoder, source, threads=count)
            notes = {**encoder.notes, "engine": f"{encoder.notes['engine']}, in three stages"}
        return cls(notes, frontend, encoder, decoder)

    def run(self, outputs: Sequence[str], feeds: Arrays) -> list[npt.NDArray[Any]]:
        """Raises ResourceError out of memory."""
        waveforms, lengths = feeds["waveforms"], feeds["lengths"]
        parts = [self.encode(waveforms[rows], lengths[rows]) for rows in _slices(*waveforms.shape)]
        encoded = [
            np.concatenate(arrays) if len(parts) > 1 else arrays[0] for arrays in zip(*parts, strict=True)
        ]
        return self._timed("decoder", self.decoder, outputs, dict(zip(ENCODED, encoded, strict=True)))

    def encode(self, waveforms: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Encoder frames `[B, T, ...]` and their numbers `[B]`; what lies behind a row's own is anything."""
        feeds = {"waveforms": waveforms, "lengths": lengths}
        features = self._timed("features", self.frontend, FEATURES, feeds)
        return self._timed("encoder", self.encoder, ENCODED, dict(zip(FEATURES, features, strict=True)))

    def _timed(
        self, stage: str, runner: Runner, outputs: Sequence[str], feeds: Arrays
    ) -> list[npt.NDArray[Any]]:
        started = time.perf_counter()
        results = runner.run(outputs, feeds)
        self.spent[stage] += time.perf_counter() - started
        return results


def _slices(num_rows: int, num_samples: int) -> Iterator[slice]:
    """As many rows at once as `SLICE_SAMPLES` hold, at least one."""
    size = max(1, SLICE_SAMPLES // num_samples)
    return (slice(first, first + size) for first in range(0, num_rows, size))
