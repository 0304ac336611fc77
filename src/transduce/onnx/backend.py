"""The ONNX backend: waveforms to hypotheses in one `session.run`, without torch.

In: a model as weights, as a folder that `export` wrote, or as another tool's files. Out: a Backend. It
pads and copies; everything between samples and labels is in the graph. It knows no text, and no
seconds but those of its limit.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock

import numpy as np

from transduce.errors import AudioError, CheckpointError, DeviceError
from transduce.onnx import graph, inline, loop, self_calibration
from transduce.onnx.builder import Graph
from transduce.onnx.calibration import MOST_ERROR
from transduce.onnx.emissions import OUTPUTS
from transduce.onnx.foreign import ForeignModel
from transduce.onnx.layout import Exported
from transduce.onnx.pick import Engine, Pick, pick
from transduce.onnx.precision import int8_saturates, precision_named
from transduce.onnx.session import Session
from transduce.onnx.staged import Runner, StagedSession, check_device
from transduce.types import FloatArray, Hypothesis, ModelSpec, Weights

__all__ = ["OnnxBackend", "bucketed"]

_BUCKETS_AN_OCTAVE = 16


class OnnxBackend:
    """A model in one session; any number of threads may call `recognize`."""

    def __init__(
        self, spec: ModelSpec, session: Runner, notes: Mapping[str, str], lanes: int | None = None
    ) -> None:
        """`notes` are what `describe` adds to the session's; `lanes` the most rows of one run."""
        self.spec = spec
        self._session: Runner | None = session
        self._notes = {**session.notes, **notes}
        self._lanes = lanes
        self._turn = Lock()
        self._buffer = np.empty(0, np.float32)

    @classmethod
    def of_weights(
        cls,
        spec: ModelSpec,
        weights: Weights,
        *,
        device: str = "auto",
        precision: str = "fp32",
        threads: int | None = None,
        window: int | None = None,
        engine: Engine = "onnx",
    ) -> "OnnxBackend":
        """A checkpoint's weights, as a graph in memory. Raises DeviceError for what is not there.

        Where `auto` is int8 in OpenVINO, it is calibrated here and now, which takes seconds.
        """
        window = window or loop.default_window(spec.head)
        picked = pick(precision, engine, can_calibrate=True)
        if engine == "openvino" and precision == "auto" and picked.name == "int8":
            check_device(device)
            small, error = self_calibration.open_int8(spec, weights, window, device=device, threads=threads)
            if error <= MOST_ERROR:
                return cls(spec, small, _notes(spec, picked, window) | _calibrated(error))
            del small
            picked = _instead(error)
        if engine == "openvino" and picked.name == "int8":
            raise DeviceError(
                "precision 'int8': OpenVINO multiplies bytes in models that were exported so; run "
                "`transduce export MODEL DIR --precision int8 --calibrate SPEECH`, then use DIR"
            )
        # OpenVINO takes fp32 weights and multiplies as it is told.
        stored = precision_named("fp32" if engine == "openvino" else picked.name)
        built = graph.build(spec, weights, stored, window)
        session = _session(built, spec, spec.name, picked, engine, device, threads)
        return cls(spec, session, _notes(spec, picked, window))

    @classmethod
    def of_exported(
        cls,
        exported: Exported,
        *,
        device: str = "auto",
        precision: str = "fp32",
        threads: int | None = None,
        engine: Engine = "onnx",
    ) -> "OnnxBackend":
        """A folder that `export` wrote; onnxruntime alone runs it. Raises CheckpointError, DeviceError.

        `precision` is what OpenVINO computes an fp32 export in.
        """
        path, spec = exported.model, exported.spec
        picked = _of_files(precision, exported.precision, engine)
        if engine == "onnx":
            session: Runner = Session.open(path, str(path), device=device, threads=threads)
        else:
            opened = ForeignModel.open(path)
            session = _session(opened, spec, str(path), picked, engine, device, threads)
        return cls(spec, session, _notes(spec, picked, exported.window))

    @classmethod
    def of_parts(
        cls,
        spec: ModelSpec,
        weights: Weights,
        parts: inline.Parts,
        *,
        device: str = "auto",
        precision: str = "fp32",
        threads: int | None = None,
        window: int | None = None,
        engine: Engine = "onnx",
    ) -> "OnnxBackend":
        """Another tool's files; `weights` are the front end's. Raises CheckpointError, DeviceError."""
        fit = inline.fit(spec, parts, window or loop.default_window(spec.head))
        built = inline.build(spec, weights, parts, fit.window)
        picked = _of_files(precision, _stored_in(parts, engine), engine)
        session = _session(built, spec, str(parts.encoder.path), picked, engine, device, threads)
        backend = cls(spec, session, _notes(spec, picked, fit.window), fit.lanes)
        backend._try_lanes()
        return backend

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """Decode waveforms `[n]` as one batch, in order.

        Raises AudioError for audio beyond the positions that the model file holds, ResourceError
        out of memory.
        """
        session = self._session
        if session is None:
            raise RuntimeError("this backend is closed")
        size = self._lanes or max(1, len(waveforms))
        groups = [waveforms[start : start + size] for start in range(0, len(waveforms), size)]
        return [hypothesis for group in groups for hypothesis in self._run(session, group)]

    def _run(self, session: Runner, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """One batch at a time: it has all the session's threads, and two would only need twice the memory,
        more of it whenever their largest moments meet."""
        lengths = np.array([len(waveform) for waveform in waveforms], np.int64)
        shape = (len(waveforms), self._padded_size(int(lengths.max())))
        with self._turn:
            padded = self._input(shape)
            for row, waveform in zip(padded, waveforms, strict=True):
                row[: len(waveform)] = waveform
                row[len(waveform) :] = 0
            *columns, counts = session.run(OUTPUTS, {"waveforms": padded, "lengths": lengths})
        return [
            # Copies: a view would keep the arrays of the whole batch alive.
            Hypothesis(*(column[row, :count].copy() for column in columns))
            for row, count in enumerate(counts.tolist())
        ]

    def stage_seconds(self, waveforms: Sequence[FloatArray]) -> Mapping[str, float]:
        """What one batch takes, stage by stage; of a model that runs as one graph, the whole."""
        session, started = self._session, time.perf_counter()
        before = dict(session.spent) if isinstance(session, StagedSession) else {}
        self.recognize(waveforms)
        if not isinstance(session, StagedSession):
            return {"one graph": time.perf_counter() - started}
        return {stage: seconds - before[stage] for stage, seconds in session.spent.items()}

    def _input(self, shape: tuple[int, int]) -> FloatArray:
        """The one input array, which is kept: fresh ones of every size would scatter over malloc's arenas."""
        size = shape[0] * shape[1]
        if self._buffer.size < size:
            self._buffer = np.empty(size, np.float32)
        return self._buffer[:size].reshape(shape)

    def _try_lanes(self) -> None:
        """Run two rows of silence; files that were exported for one get one at a time from here on."""
        silence = np.zeros(self.spec.features.sample_rate // 4, np.float32)
        try:
            self.recognize([silence, silence])
        except CheckpointError:
            if self._lanes == 1:
                raise
            self._lanes = 1
            self.recognize([silence])

    def describe(self) -> Mapping[str, str]:
        return self._notes

    def close(self) -> None:
        """Drop the session; its memory is free once no call runs any more."""
        self._session = None

    def _padded_size(self, num_samples: int) -> int:
        """The bucket of a length, unless the padding itself would run out of positions."""
        spec, limit = self.spec, self.spec.position_limit_frames
        size = bucketed(num_samples)
        if limit is None or spec.num_frames(size) <= limit:
            return size
        if spec.num_frames(num_samples) <= limit:
            return num_samples
        rate = spec.features.sample_rate
        raise AudioError(
            f"{spec.name}: the audio is {num_samples / rate:.1f} s long, and the positions in this model "
            f"file end at {limit * spec.frame_samples / rate:.1f} s; cut it into shorter segments"
        )


def bucketed(num_samples: int) -> int:
    """A length rounded up by at most a sixteenth, so that few shapes occur and memory stays flat."""
    octave = 1 << max(0, num_samples - 1).bit_length()
    step = max(1, octave // (2 * _BUCKETS_AN_OCTAVE))
    return max(1, -(-num_samples // step)) * step


def _session(
    model: Graph | ForeignModel,
    spec: ModelSpec,
    source: str,
    picked: Pick,
    engine: Engine,
    device: str,
    threads: int | None,
) -> Runner:
    if engine != "onnx":
        return StagedSession.of_graph(
            model,
            source,
            num_mels=spec.features.num_mels,
            precision=picked.name,
            device=device,
            threads=threads,
            in_openvino=engine == "openvino",
        )
    assert isinstance(model, Graph), "files are opened by onnxruntime itself"
    return Session.of_graph(model, source, device=device, threads=threads)


def _stored_in(parts: inline.Parts, engine: Engine) -> str:
    """The precision of another tool's files; only OpenVINO need know it."""
    if engine != "openvino":
        return "as exported"
    return "int8" if ".int8" in parts.encoder.path.name else "fp32"


def _of_files(wanted: str, stored: str, engine: Engine) -> Pick:
    """What files are computed in: OpenVINO does fp32 ones as it is told, all else stays as it is stored."""
    if engine == "openvino" and stored == "fp32":
        return pick(wanted, engine)
    return Pick(stored, "these files hold it, and no other" if wanted == "auto" else "")


def _instead(error: float) -> Pick:
    """The next best precision where int8 changes too much."""
    second = pick("auto", "openvino")
    found = f"int8 by bundled speech changed frames by {error:.0%}, more than {MOST_ERROR:.0%}"
    return replace(second, reason=f"{found}; {second.reason}")


def _calibrated(error: float) -> dict[str, str]:
    return {
        "calibrated": "while loading, by bundled speech; on other speech frames differ from fp32's by "
        f"{error:.1%}, {MOST_ERROR:.0%} at most"
    }


def _notes(spec: ModelSpec, picked: Pick, window: int) -> dict[str, str]:
    decoder = "CTC in the graph" if spec.head.kind == "ctc" else f"lanes in an ONNX Loop, window of {window}"
    notes = {"precision": picked.name, "decoder": decoder}
    if picked.reason:
        notes["why this precision"] = picked.reason
    if picked.name == "int8" and int8_saturates():
        notes["warning"] = "int8 products overflow on this CPU, which has no VNNI: fp32 makes fewer errors"
    return notes
