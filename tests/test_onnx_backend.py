"""The ONNX backend as a neighbour: threads, devices, memory, order, errors."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx_cases import labels, small_spec, small_weights, speech
from support import data

from transduce.checkpoints import onnx_layouts
from transduce.errors import AudioError, DeviceError, ResourceError
from transduce.onnx import precision, session, threads
from transduce.onnx.backend import OnnxBackend, bucketed
from transduce.onnx.session import CPU, CUDA, Session
from transduce.types import Hypothesis, ModelSpec

KINDS = ("rnnt", "tdt", "ctc")
CLIPS = speech(1, 5.0, 1.0, 3.0, 3.0, 8.0, 0.5, 2.0)


def small(kind: str = "rnnt", **settings: Any) -> OnnxBackend:
    spec = small_spec(kind)
    return OnnxBackend.of_weights(spec, small_weights(spec), threads=1, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_order_and_batches_change_nothing(kind: str) -> None:
    """Field bugs 27 and 30: result i belongs to input i, whatever is beside it."""
    backend = small(kind)
    alone = [labels(backend.recognize([clip])[0]) for clip in CLIPS]
    assert len({tuple(each) for each in alone}) > 3
    assert [labels(found) for found in backend.recognize(CLIPS)] == alone
    order = [3, 0, 6, 5, 1, 4, 2]
    assert [labels(f) for f in backend.recognize([CLIPS[i] for i in order])] == [alone[i] for i in order]


@pytest.mark.parametrize("kind", KINDS)
def test_results_own_their_memory(kind: str) -> None:
    found = small(kind).recognize(CLIPS[:3])
    for array in (a for h in found for a in (h.ids, h.frames, h.durations, h.log_probs)):
        assert array.base is None
        assert array.flags.writeable
    assert {h.ids.dtype.name for h in found} | {h.frames.dtype.name for h in found} == {"int64"}
    assert {h.log_probs.dtype.name for h in found} == {"float32"}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_next_to_nothing(kind: str) -> None:
    backend = small(kind)
    assert backend.recognize([]) == []
    for size in (0, 1, 159, 320):
        beside = backend.recognize([np.zeros(size, np.float32), CLIPS[1]])
        assert len(beside[0]) <= 10 * backend.spec.num_frames(size)
        assert labels(beside[1]) == labels(backend.recognize([CLIPS[1]])[0])
        assert labels(beside[0]) == labels(backend.recognize([np.zeros(size, np.float32)])[0])


def test_input_is_not_written_to() -> None:
    clip = CLIPS[1].copy()
    clip.flags.writeable = False
    before = clip.copy()
    small().recognize([clip, clip])
    np.testing.assert_array_equal(clip, before)


def test_many_threads_share_one_session() -> None:
    """Field bug 55: 8 threads, 20 calls each, every answer the serial one."""
    backend = small("tdt")
    serial = [labels(found) for found in backend.recognize(CLIPS)]

    def calls(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            chosen = rng.integers(0, len(CLIPS), rng.integers(1, 5)).tolist()
            found = backend.recognize([CLIPS[i] for i in chosen])
            if [labels(hypothesis) for hypothesis in found] != [serial[i] for i in chosen]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(calls, range(8)))


def test_one_batch_runs_at_a_time() -> None:
    """So that memory has one ceiling; callers wait for their turn, and a failed run gives it up."""
    backend = small()
    real, running, most = backend._session, [], []
    assert real is not None

    def run(*arguments: Any) -> Any:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        if len(most) == 3:
            raise onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException("bad_alloc")
        return real.native.run(*arguments)

    backend._session = replace(real, native=SimpleNamespace(run=run))
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(backend.recognize, CLIPS[5:6]) for _ in range(12)]
    assert sum(isinstance(call.exception(), ResourceError) for call in calls) == 1
    assert max(most) == 1
    assert len(most) == 12


def test_weights_too_large_for_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are handed to the session one by one, whatever their order in memory."""
    expected = [labels(found) for found in small("tdt").recognize(CLIPS)]
    monkeypatch.setattr(session, "LARGEST_INLINE_BYTES", 0)
    assert [labels(found) for found in small("tdt").recognize(CLIPS)] == expected


def test_a_closed_backend_says_so() -> None:
    backend = small()
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        backend.recognize(CLIPS[:1])


# Lengths


def test_buckets() -> None:
    sizes = [bucketed(n) for n in range(200_000)]
    assert all(n <= size <= max(1, n + n / 16) for n, size in enumerate(sizes))
    assert len({bucketed(n) for n in range(1600, 480_001)}) < 140
    assert sizes == sorted(sizes)


def limited(frames: int) -> OnnxBackend:
    backend = small()
    spec: ModelSpec = replace(backend.spec, position_limit_frames=frames)
    backend.spec = spec
    return backend


def test_audio_beyond_the_positions_is_refused_with_the_limit_in_seconds() -> None:
    """Field bug 20; the limit is 40 ms a frame here."""
    backend = limited(50)
    with pytest.raises(AudioError, match=r"2\.5 s long.* end at 2\.0 s"):
        backend.recognize(speech(0, 2.5))
    assert len(backend.recognize(speech(0, 2.0))) == 1


def test_padding_does_not_reach_beyond_the_positions() -> None:
    """A bucket would need frame 51; the clip itself does not."""
    backend, shapes = limited(50), []
    clip = speech(0, 2.0)[0]
    assert backend.spec.num_frames(bucketed(len(clip))) > 50
    real = backend._session
    assert real is not None

    def run(names: Any, feeds: Any) -> Any:
        shapes.append(feeds["waveforms"].shape)
        return real.run(names, feeds)

    backend._session = SimpleNamespace(run=run)  # type: ignore[assignment]
    backend.recognize([clip])
    assert shapes == [(1, len(clip))]


# Devices


@pytest.mark.parametrize("device", ["cuda", "cuda:7"])
def test_a_missing_gpu_is_an_error(device: str) -> None:
    """Field bug 84."""
    with pytest.raises(DeviceError, match=f"'{device}'.*--device cpu"):
        small(device=device)


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "cuda:x", ""])
def test_an_unknown_device_is_an_error(device: str) -> None:
    with pytest.raises(DeviceError, match="auto, cpu, cuda or cuda:N"):
        small(device=device)


def test_what_runs_is_said() -> None:
    described = small(device="auto").describe()
    assert described["device"] == "cpu, 1 thread"
    assert described["engine"] == f"onnxruntime {onnxruntime.__version__}"
    assert "CUDA" in described["why not cuda"]
    assert "why not cuda" not in small(device="cpu").describe()


class FakeRuntime(SimpleNamespace):
    """An onnxruntime-gpu whose CUDA provider starts, or does not."""

    def __init__(self, starts: bool) -> None:
        super().__init__(
            __version__="9", SessionOptions=SimpleNamespace, get_available_providers=lambda: [CUDA, CPU]
        )
        self.starts, self.asked = starts, []

    def InferenceSession(self, model: Any, options: Any, providers: Any, enable_fallback: int) -> Any:  # noqa: N802
        self.asked.append((options, providers))
        used = [CUDA, CPU] if self.starts and providers[0] != CPU else [CPU]
        return SimpleNamespace(get_providers=lambda: used)


def test_cuda_is_asked_for_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRuntime(starts=True)
    monkeypatch.setattr(session, "import_extra", lambda *_: fake)
    opened = Session.open(b"", "x", device="cuda:1", threads=1)
    options, providers = fake.asked[0]
    assert providers[0][0] == CUDA
    assert providers[0][1]["device_id"] == "1"
    assert providers[0][1]["use_tf32"] == "0"
    assert options.enable_mem_pattern is False
    assert "never tried" in opened.notes["device"]


def test_a_cuda_provider_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime falls back to the CPU without an error; asked for by name, that is one."""
    monkeypatch.setattr(session, "import_extra", lambda *_: FakeRuntime(starts=False))
    with pytest.raises(DeviceError, match="could not start"):
        Session.open(b"", "x", device="cuda", threads=1)
    assert "could not start" in Session.open(b"", "x", device="auto", threads=1).notes["why not cuda"]


def test_out_of_memory_is_a_resource_error() -> None:
    backend = small()

    def run(*_: Any) -> Any:
        raise onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException(
            "Failed to allocate memory for 9 bytes"
        )

    assert backend._session is not None
    backend._session = replace(backend._session, native=SimpleNamespace(run=run))
    with pytest.raises(ResourceError, match="smaller batches"):
        backend.recognize(CLIPS[:1])


def test_int8_warns_where_products_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("warning" in small(precision="int8").describe()) == precision.int8_saturates()

    def overflowing(*_: Any) -> list[Any]:
        return [np.full((1, 16), 32767 * 32)]

    monkeypatch.setattr(Session, "run", overflowing)
    assert precision.int8_saturates()


# Threads


def test_threads_follow_the_users_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    for wish, expected in (("3", 3), ("4,2", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", wish)
        assert threads.num_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.num_threads() == allowed_here(monkeypatch)


def allowed_here(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return threads.num_threads()


def test_threads_follow_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field bug 60: a process that may use one CPU of many."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert allowed_here(monkeypatch) == 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/cpu.max": "150000 100000"}, 2),
        ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "max 100000"}, 8),
        ({"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_threads_follow_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/a\n0::/a\n")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "_OWN_CGROUP", own)
    monkeypatch.setattr(threads, "_CPUS", tmp_path / "cpus")
    monkeypatch.setattr(threads, "_allowed_cpus", lambda: list(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads.num_threads() == expected


def test_two_hyper_threads_are_one_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    assert threads._cores([0, 1, 2, 3]) == 2
    assert threads._cores([0, 2]) == 1


# Memory


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no VmRSS")


def upstream() -> OnnxBackend:
    """GigaAM's own export, networks inside our loop."""
    return onnx_layouts.load(data("models/onnx/gigaam-v3_e2e_rnnt"), threads=1)[0]


@pytest.mark.linux
@pytest.mark.prove
@pytest.mark.parametrize("backend", [lambda: small("tdt"), upstream], ids=["ours", "upstream"])
def test_soak(backend: Callable[[], OnnxBackend], record_property: Callable[[str, object], None]) -> None:
    """400 batches of random lengths from 4 threads on one session: memory stays where it was.

    Grows by at most max(1 %, 8 MB) per 100 batches after the first 100, warmed up by the largest shape.
    """
    model, rng = backend(), np.random.default_rng(0)
    (noise,) = speech(0, 60.0)
    kept: list[Hypothesis] = []
    sizes = []

    def batch(lengths: list[float]) -> list[Hypothesis]:
        # Slices: arrays of our own would come and go in malloc and be measured too.
        starts = [round(length * 9999) for length in lengths]
        clips = [noise[start : start + round(16000 * n)] for start, n in zip(starts, lengths, strict=True)]
        return model.recognize(clips)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(batch, [[30.0] * 8] * 8))
        for _ in range(4):
            plans = [rng.uniform(0.1, 30, rng.integers(1, 9)).tolist() for _ in range(100)]
            kept += [hypothesis for found in pool.map(batch, plans) for hypothesis in found]
            sizes.append(resident_bytes())
    record_property("resident MB after each 100 batches", [round(size / 1e6, 1) for size in sizes])
    record_property("results kept", len(kept))
    for before, after in pairwise(sizes):
        assert after - before <= max(0.01 * before, 8_000_000), sizes
    assert all(array.base is None for h in kept for array in (h.ids, h.frames, h.durations, h.log_probs))
