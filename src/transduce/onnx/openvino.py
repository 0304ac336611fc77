"""The encoder in OpenVINO, which multiplies matrices faster than onnxruntime; all else in onnxruntime.

In: a graph of ours. Out: a SplitSession, which OnnxBackend runs like a session. OpenVINO reads no loop
whose body has values of unknown rank, so the decoding rule stays where it is, and so does the front end:
a spectrum in bf16 would be none. The encoder sees a batch a few rows at a time, as a CPU's caches like it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import CheckpointError, DeviceError, ResourceError, import_extra
from transduce.onnx.builder import Graph
from transduce.onnx.export import write_graph
from transduce.onnx.foreign import ForeignModel
from transduce.onnx.session import Arrays, Session
from transduce.onnx.split import ENCODED, FEATURES, split
from transduce.onnx.threads import num_threads

__all__ = ["HINTS", "SplitSession", "native_types"]

SLICE_SAMPLES = 320_000
"""Audio that is encoded at once, padding counted: 20 s at 16 kHz. More at once is no faster (docs/cpu.md)."""

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of what it computes in."""

_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16", "int8": "INT8"}

CACHED_SHAPES = 64
"""Compiled shapes that it keeps, of a thousand by default: every batch has new ones."""


@dataclass(frozen=True)
class SplitSession:
    """A model in three parts; one call at a time."""

    source: str
    notes: Mapping[str, str]
    frontend: Session
    encoder: Any
    """OpenVINO's request."""
    decoder: Session

    @classmethod
    def of_graph(
        cls,
        model: Graph | ForeignModel,
        source: str,
        *,
        num_mels: int,
        precision: str,
        device: str = "auto",
        threads: int | None = None,
    ) -> "SplitSession":
        """Split and load a model of ours.

        Raises DeviceError for a device or precision that this CPU has not, MissingExtraError,
        CheckpointError where it does not run.
        """
        runtime = import_extra("openvino", "openvino")
        if device not in ("auto", "cpu"):
            raise DeviceError(f"device {device!r}: OpenVINO runs the encoder on the CPU; use cpu or auto")
        _check_precision(runtime, precision)
        count = num_threads() if threads is None else threads
        parts = split(model, source, num_mels)
        frontend, decoder = (
            # Threads that spin while they wait would take the CPU from the encoder's.
            Session.of_graph(part, source, threads=count, spins=False)
            for part in (parts.frontend, parts.decoder)
        )
        encoder = _compiled(runtime, parts.encoder, source, precision, count)
        engine = f"OpenVINO {runtime.__version__.partition('-')[0]}, {frontend.notes['engine']}"
        notes = {"engine": engine, "device": f"cpu, {count} thread{'s' * (count > 1)}"}
        return cls(source, notes, frontend, encoder, decoder)

    def run(self, outputs: Sequence[str], feeds: Arrays) -> list[npt.NDArray[Any]]:
        """Raises ResourceError out of memory."""
        encoded = self.encode(feeds["waveforms"], feeds["lengths"])
        return self.decoder.run(outputs, dict(zip(ENCODED, encoded, strict=True)))

    def encode(
        self, waveforms: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Encoder frames `[B, T, ...]` and their numbers `[B]`; what lies behind a row's own is anything."""
        slices = list(_slices(*waveforms.shape))
        parts = [self._encode(waveforms[rows], lengths[rows]) for rows in slices]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([counts for _, counts in parts])

    def _encode(
        self, waveforms: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        features = self.features(waveforms, lengths)
        with _translated(self.source, "failed while running it"):
            self.encoder.infer(dict(zip(FEATURES, features, strict=True)))
            encoded, counts = (self.encoder.get_tensor(name).data.copy() for name in ENCODED)
        return encoded, counts

    def features(
        self, waveforms: npt.NDArray[Any], lengths: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Log-mel features `[B, T, M]` and their numbers of frames `[B]`."""
        values, counts = self.frontend.run(FEATURES, {"waveforms": waveforms, "lengths": lengths})
        return values, counts


def native_types() -> frozenset[str]:
    """Which of bf16, fp16 and int8 this CPU multiplies in hardware."""
    return _native_types(import_extra("openvino", "openvino"))


def _native_types(runtime: Any) -> frozenset[str]:
    capabilities = runtime.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return frozenset(name for name, theirs in _CAPABILITIES.items() if theirs in capabilities)


def _check_precision(runtime: Any, precision: str) -> None:
    if precision in ("fp32", "int8"):
        return
    if precision not in HINTS:
        raise DeviceError(f"precision {precision!r} is not one of OpenVINO's: use fp32, bf16, fp16 or auto")
    if precision not in _native_types(runtime):
        raise DeviceError(f"precision {precision!r}: this CPU has no such products; use fp32 or auto")


def _compiled(runtime: Any, graph: Graph, source: str, precision: str, threads: int) -> Any:
    """A request for the encoder. It goes by a file, whose weights are mapped, so that there is one copy."""
    settings = {
        "INFERENCE_PRECISION_HINT": HINTS.get(precision, "f32"),
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process may have fewer CPUs than the machine
        "CPU_RUNTIME_CACHE_CAPACITY": CACHED_SHAPES,
    }
    # Windows cannot remove a file that is mapped; its temporary folder outlives the process there.
    with TemporaryDirectory(prefix="transduce-", ignore_cleanup_errors=sys.platform == "win32") as folder:
        path = Path(folder) / "model.onnx"
        with _translated(source, "cannot load it"):
            write_graph(graph, path, "encoder", largest_inline_bytes=0)
            core = runtime.Core()
            return core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()


def _slices(num_rows: int, num_samples: int) -> Iterator[slice]:
    """As many rows at once as `SLICE_SAMPLES` hold, at least one."""
    size = max(1, SLICE_SAMPLES // num_samples)
    return (slice(first, first + size) for first in range(0, num_rows, size))


@contextmanager
def _translated(source: str, what: str) -> Iterator[None]:
    """OpenVINO's exceptions, which are RuntimeError all, and a full disk's as ours."""
    try:
        yield
    except MemoryError as error:
        raise ResourceError(f"{source}: out of memory; use smaller batches or shorter segments") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{source}: the encoder could not be written to {error.filename} for OpenVINO ({reason}); free "
            "space there, or name another folder in TMPDIR"
        ) from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-300:]
        if "alloc" in reason:
            raise ResourceError(
                f"{source}: out of memory ({reason}); use smaller batches or shorter segments"
            ) from error
        raise CheckpointError(f"{source}: OpenVINO {what} ({reason}); --backend onnx needs none") from error
