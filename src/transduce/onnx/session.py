"""An onnxruntime session: providers, threads, and its errors in our words.

In: a model file, a serialized model or a Graph. Out: a Session whose `run` any number of threads may
call. It knows tensors by name, and nothing of audio or decoding.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.errors import CheckpointError, DeviceError, ResourceError, import_extra
from transduce.onnx.builder import Graph
from transduce.onnx.threads import num_threads

__all__ = ["Arrays", "Session"]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

LARGEST_INLINE_BYTES = 256_000_000
"""Of weights inside a model in memory; larger ones are handed over one by one."""

_OUT_OF_MEMORY = ("Failed to allocate memory", "bad_alloc", "bad allocation", "out of memory")

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Session:
    """A model that is ready to run."""

    source: str
    """What messages call it."""
    notes: Mapping[str, str]
    """Engine, device, and why not a better device."""
    native: Any

    @classmethod
    def open(
        cls,
        model: Path | bytes,
        source: str,
        *,
        device: str = "cpu",
        threads: int | None = None,
        weights: Arrays | None = None,
        spins: bool = True,
        lasts: bool = True,
    ) -> "Session":
        """Load a model; `weights` are tensors that it names but does not hold.

        `spins`: whether idle threads keep asking for work, quicker where nobody else wants the CPU.
        `lasts`: whether it will run more than for a minute of audio, so that getting ready for it pays.

        Raises CheckpointError for a model that cannot run, DeviceError for a device that is not there.
        """
        runtime = import_extra("onnxruntime", "cpu")
        providers, why = _providers(runtime, device)
        count = num_threads() if threads is None else threads
        with _translated(source, "cannot load it: it is damaged, cut short or newer than this onnxruntime"):
            # onnxruntime copies these while it loads, out of arrays that it needs in C order and alive.
            held = {name: np.ascontiguousarray(array) for name, array in (weights or {}).items()}
            options = _options(runtime, count, held, spins=spins, lasts=lasts)
            given = str(model) if isinstance(model, Path) else model
            # Its own fallback prints to standard output.
            native = runtime.InferenceSession(given, options, providers=providers, enable_fallback=0)
        on_cuda = native.get_providers()[0] == CUDA
        if len(providers) > 1 and not on_cuda:
            why = "onnxruntime could not start its CUDA provider"
            if device != "auto":
                raise DeviceError(
                    f"device {device!r} was asked for, but {why}; use --device cpu, or install the CUDA and "
                    "cuDNN libraries that this onnxruntime-gpu needs"
                )
        name = "cuda (never tried by the authors)" if on_cuda else f"cpu, {count} thread{'s' * (count > 1)}"
        notes = {"engine": f"onnxruntime {runtime.__version__}", "device": name}
        return cls(source, notes | ({"why not cuda": why} if why else {}), native)

    @classmethod
    def of_graph(
        cls,
        graph: Graph,
        source: str,
        *,
        device: str = "cpu",
        threads: int | None = None,
        spins: bool = True,
        lasts: bool = True,
    ) -> "Session":
        """Load a graph that was just built; the rest as `open`."""
        if graph.num_bytes <= LARGEST_INLINE_BYTES:
            model = graph.model(source).SerializeToString()
            return cls.open(model, source, device=device, threads=threads, spins=spins, lasts=lasts)
        apart = {name: array for name, array in graph.weights.items() if array.nbytes >= 1024}
        tensors = [
            graph.tensor_apart(name, array) if name in apart else graph.tensor(name, array)
            for name, array in graph.weights.items()
        ]
        model = graph.model(source, tensors).SerializeToString()
        return cls.open(
            model, source, device=device, threads=threads, weights=apart, spins=spins, lasts=lasts
        )

    def run(self, outputs: Sequence[str], feeds: Arrays) -> list[npt.NDArray[Any]]:
        """Raises ResourceError out of memory."""
        with _translated(self.source, "failed while running it"):
            results: list[npt.NDArray[Any]] = self.native.run(list(outputs), dict(feeds))
        return results


def _options(runtime: ModuleType, threads: int, weights: Arrays, *, spins: bool, lasts: bool) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Patterns are kept for every shape ever seen, and speech has a new one in each batch.
    options.enable_mem_pattern = False
    if not spins:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not lasts:
        # Packed weights are a second copy of all of them, and fusing takes as long as some runs.
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4  # fatal: errors reach us as exceptions
    if weights:
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    return options


def _providers(runtime: ModuleType, device: str) -> tuple[list[Any], str]:
    """Providers in order of preference, and why the best is not among them."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdigit())):
        raise DeviceError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:N")
    has_cuda = CUDA in runtime.get_available_providers()
    if kind == "cuda" and not has_cuda:
        raise DeviceError(
            f"device {device!r} was asked for, but onnxruntime {runtime.__version__} has no CUDA provider "
            'here; use --device cpu, or pip install "transduce[gpu]" in place of onnxruntime'
        )
    if kind == "cpu" or not has_cuda:
        return [CPU], "" if kind == "cpu" else "onnxruntime has no CUDA provider here"
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # finds the libraries of the nvidia-* packages
    # TF32 keeps 10 bits of a factor, so logits would tie; a search for algorithms runs at every new shape.
    settings = {"device_id": index or "0", "use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
    return [(CUDA, settings), CPU], ""


@contextmanager
def _translated(source: str, what: str) -> Iterator[None]:
    """onnxruntime's exceptions as ours; `what` says what it could not do."""
    try:
        yield
    except Exception as error:
        # It raises UnicodeDecodeError where its own message quotes broken names.
        if not type(error).__module__.startswith("onnxruntime") and not isinstance(error, UnicodeDecodeError):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if any(text in reason for text in _OUT_OF_MEMORY):
            raise ResourceError(
                f"{source}: out of memory ({reason}); use smaller batches or shorter segments"
            ) from error
        raise CheckpointError(f"{source}: onnxruntime {what} ({reason})") from error
