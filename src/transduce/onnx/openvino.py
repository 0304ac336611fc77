"""An encoder in OpenVINO, which multiplies matrices faster than onnxruntime.

In: a graph without loops, a precision. Out: a runner, and what this CPU can multiply. OpenVINO reads no
loop whose body has values of unknown rank, so the decoding rule is not for it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt

from transduce.errors import CheckpointError, DeviceError, ResourceError, import_extra
from transduce.onnx.builder import Graph
from transduce.onnx.export import write_graph
from transduce.onnx.session import Arrays

__all__ = ["HINTS", "OpenVino", "check_precision", "native_types"]

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of what it computes in."""

_CAPABILITIES = {"bf16": "BF16", "fp16": "FP16", "int8": "INT8"}

CACHED_SHAPES = 64
"""Compiled shapes that it keeps, of a thousand by default: every batch has new ones."""


@dataclass(frozen=True)
class OpenVino:
    """An encoder that is ready to run; one call at a time."""

    source: str
    """What messages call it."""
    notes: Mapping[str, str]
    native: Any
    """OpenVINO's request."""

    @classmethod
    def of_graph(cls, graph: Graph, source: str, precision: str, threads: int) -> "OpenVino":
        """Load a graph that has no loop, to compute it in a precision of `HINTS`.

        It goes by a file, whose weights are mapped, so that there is one copy of them.
        """
        runtime = import_extra("openvino", "openvino")
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
                native = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
        engine = f"OpenVINO {runtime.__version__.partition('-')[0]}"
        return cls(
            source, {"engine": engine, "device": f"cpu, {threads} thread{'s' * (threads > 1)}"}, native
        )

    def run(self, outputs: Sequence[str], feeds: Arrays) -> list[npt.NDArray[Any]]:
        """Raises ResourceError out of memory."""
        with _translated(self.source, "failed while running it"):
            self.native.infer(dict(feeds))
            # Copies: the request writes over its own arrays.
            return [self.native.get_tensor(name).data.copy() for name in outputs]


def native_types() -> frozenset[str]:
    """Which of bf16, fp16 and int8 this CPU multiplies in hardware."""
    core = import_extra("openvino", "openvino").Core()
    capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return frozenset(name for name, theirs in _CAPABILITIES.items() if theirs in capabilities)


def check_precision(precision: str) -> None:
    """Raise DeviceError for a precision that this CPU does not multiply in."""
    native = native_types()
    if precision in ("fp32", "int8"):  # files in int8 run as they are
        return
    if precision not in HINTS:
        raise DeviceError(f"precision {precision!r} is not one of OpenVINO's: use fp32, bf16, fp16 or auto")
    if precision not in native:
        raise DeviceError(f"precision {precision!r}: this CPU has no such products; use fp32 or auto")


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
