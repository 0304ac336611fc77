"""CUDA graphs on a device that runs on the CPU (fake_cuda): the real drivers, replayed step by step.

Expected results come from upstream's vectors and the scalar rule. What only a GPU can show is not
claimed here: that the driver accepts the graph, races, allocator behaviour, time.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda
from heads import Model, decode_watched, random_model, vectors
from support import num_cases

from transduce.errors import DeviceError
from transduce.nn import decoder as decoder_module
from transduce.nn import graphs
from transduce.nn import step as step_module
from transduce.nn.cuda import Bindings, CudaError, driver_version, load_bindings
from transduce.nn.decoder import Decoder
from transduce.nn.graphs import DriverChoice, choose
from transduce.nn.lanes import Stream, decode
from transduce.nn.step import Lanes
from transduce.nn.transducer import TransducerHead
from transduce.types import Hypothesis

CUDA = torch.device("cuda", 0)
"""Only ever compared and passed on: the fakes work on the CPU."""

EVERY_GRAPH = [
    pytest.param("while", 12080, id="while, bindings 12"),
    pytest.param("while", 13000, id="while, bindings 13"),
    pytest.param("unrolled", 13000, id="unrolled"),
    pytest.param("native", 13000, id="native (recording fake only)"),
]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def graph_decoder(head: Any, name: str, patch: pytest.MonkeyPatch) -> Decoder:
    """A decoder whose head is on the CPU, and whose choice is a graph nevertheless."""
    patch.setattr(decoder_module, "choose", lambda device, want: DriverChoice(want, "for the test"))
    return Decoder(head, name)  # type: ignore[arg-type]


def assert_same(got: Hypothesis, expected: Hypothesis) -> None:
    for name in ("ids", "frames", "durations"):
        assert getattr(got, name).tolist() == getattr(expected, name).tolist()
    np.testing.assert_allclose(got.log_probs, expected.log_probs, atol=2e-5)


def batch(
    model: Model, rng: np.random.Generator, num: int, num_frames: int
) -> tuple[torch.Tensor, torch.Tensor]:
    encoded = torch.from_numpy(model.frames(rng, num, num_frames))
    return encoded, torch.from_numpy(rng.integers(0, num_frames + 1, num))


def expected(model: Model, encoded: torch.Tensor, lengths: torch.Tensor) -> list[Hypothesis]:
    rows = zip(encoded.numpy(), lengths.tolist(), strict=True)
    return [decode_watched(model.scalar, row[:length])[0] for row, length in rows]


# Every driver decodes


@pytest.mark.parametrize(("name", "version"), EVERY_GRAPH)
def test_upstream_vectors(name: str, version: int, patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda(version).install(patch)
    chosen = vectors() if num_cases(0, 1) else vectors()[::8]
    for number, vector in enumerate(chosen):
        head = TransducerHead.from_weights(vector.weights, vector.spec)
        decoder = graph_decoder(head, name, patch)
        encoded, lengths = torch.from_numpy(vector.encoded), torch.from_numpy(vector.lengths)
        got = decoder.decode(encoded, lengths, lanes=2, window=(1, 4, 8)[number % 3])
        for hypothesis, answer in zip(got, vector.answers, strict=True):
            assert {field: getattr(hypothesis, field).tolist() for field in answer} == answer
        assert decoder.choice.name == name
    assert device.num_replays >= len(chosen)
    assert device.leaks() == []


@pytest.mark.parametrize(("name", "version"), EVERY_GRAPH)
def test_one_graph_decodes_batches_of_any_size_in_any_order(
    name: str, version: int, patch: pytest.MonkeyPatch
) -> None:
    """Utterances wait for lanes, logs fill up, shapes alternate: nothing is left of the batch before."""
    device = FakeCuda(version).install(patch)
    patch.setattr(step_module, "LOG_STEPS", 3 * graphs.STEPS_PER_REPLAY)
    num_swaps = 0
    for seed in range(num_cases(12, 200)):
        rng = np.random.default_rng((20, seed))
        model = random_model(rng, integers=seed % 2 == 0)
        decoder = graph_decoder(model.batched, name, patch)
        for _ in range(4):
            num, num_frames = int(rng.integers(1, 9)), int(rng.integers(1, 12))
            encoded, lengths = batch(model, rng, num, num_frames)
            got = decoder.decode(encoded, lengths, lanes=2, window=4)
            for hypothesis, wanted in zip(got, expected(model, encoded, lengths), strict=True):
                assert_same(hypothesis, wanted)
            num_swaps += max(0, num - 2)
        assert decoder.choice.name == name
    assert num_swaps > 50
    assert device.leaks() == []


@pytest.mark.parametrize(("name", "version"), EVERY_GRAPH)
def test_chunks_through_a_graph(name: str, version: int, patch: pytest.MonkeyPatch) -> None:
    FakeCuda(version).install(patch)
    for seed in range(8):
        rng = np.random.default_rng((21, seed))
        model = random_model(rng, integers=seed % 2 == 0)
        encoded = torch.from_numpy(model.frames(rng, 3, 12))
        captured: dict[Lanes, Any] = {}

        def driver(lanes: Lanes, captured: dict[Lanes, Any] = captured) -> None:
            captured[lanes](lanes)

        stream = Stream(model.batched, 3, 4, driver=driver)
        lanes = stream._lanes
        with torch.inference_mode():
            captured[lanes] = decoder_module.CAPTURES[name](lanes)
        parts = [stream.push(encoded[:, start : start + 4], torch.full((3,), 4)) for start in (0, 4, 8)]
        for utterance, wanted in enumerate(expected(model, encoded, torch.full((3,), 12))):
            got = [part[utterance] for part in parts]
            assert np.concatenate([part.ids for part in got]).tolist() == wanted.ids.tolist()
            assert np.concatenate([part.frames for part in got]).tolist() == wanted.frames.tolist()


def test_one_launch_decodes_a_batch(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    rng = np.random.default_rng(22)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    decoder.decode(*batch(model, rng, 4, 12))
    assert device.num_replays == 1
    assert device.num_iterations >= 3
    captures = device.calls.count("capture_begin")
    decoder.decode(*batch(model, rng, 4, 12))
    assert device.num_replays == 2
    assert device.calls.count("capture_begin") == captures == 1


def test_unrolled_stops_one_replay_after_the_flag(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    model = random_model(np.random.default_rng(23), integers=True)
    decoder = graph_decoder(model.batched, "unrolled", patch)
    (nothing,) = decoder.decode(torch.zeros(1, 3, model.width), torch.tensor([0]))
    assert len(nothing) == 0
    assert device.num_replays == 2


def test_a_batch_that_was_interrupted_leaves_nothing_behind(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    for seed in range(6):
        rng = np.random.default_rng((34, seed))
        model = random_model(rng, integers=True)
        decoder = graph_decoder(model.batched, "unrolled", patch)
        encoded, lengths = batch(model, rng, 6, 12)
        decoder.decode(encoded, lengths, lanes=2)
        with patch.context() as inner:
            inner.setattr(graphs, "_read", interrupt)
            with pytest.raises(KeyboardInterrupt):
                decoder.decode(torch.flip(encoded, [1]), torch.full((6,), 12), lanes=2)
        for got, wanted in zip(
            decoder.decode(encoded, lengths, lanes=2), expected(model, encoded, lengths), strict=True
        ):
            assert_same(got, wanted)
    assert device.leaks() == []


def interrupt(*_: object) -> bool:
    raise KeyboardInterrupt


# What is kept


def test_graphs_are_kept_when_shapes_alternate_and_grow_by_doubling(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    rng = np.random.default_rng(24)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    for _ in range(3):
        for num, num_frames in ((4, 10), (2, 20), (3, 16), (1, 9)):  # 4, 2, 4 and 1 lanes
            encoded, lengths = batch(model, rng, num, num_frames)
            for got, wanted in zip(
                decoder.decode(encoded, lengths), expected(model, encoded, lengths), strict=True
            ):
                assert_same(got, wanted)
    assert device.calls.count("capture_begin") == 3
    decoder.decode(*batch(model, rng, 4, 100))
    decoder.decode(*batch(model, rng, 4, 120))  # fits the 512 rows that 4 x 100 asked for
    decoder.decode(*batch(model, rng, 4, 10))
    assert device.calls.count("capture_begin") == 4


def test_the_oldest_graph_goes_first(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    patch.setattr(decoder_module, "MAX_GRAPHS", 2)
    rng = np.random.default_rng(25)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    for window in (1, 2, 1, 4):
        decoder.decode(*batch(model, rng, 1, 8), window=window)
    assert device.calls.count("capture_begin") == 3
    decoder.decode(*batch(model, rng, 1, 8), window=1)
    assert device.calls.count("capture_begin") == 3
    decoder.decode(*batch(model, rng, 1, 8), window=2)
    assert device.calls.count("capture_begin") == 4


def test_results_are_copies(patch: pytest.MonkeyPatch) -> None:
    FakeCuda().install(patch)
    rng = np.random.default_rng(26)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    encoded, lengths = batch(model, rng, 2, 12)
    first = decoder.decode(encoded, lengths)
    decoder.decode(*batch(model, rng, 2, 12))
    for got, wanted in zip(first, expected(model, encoded, lengths), strict=True):
        assert_same(got, wanted)
        assert got.ids.base is None


def test_threads_take_turns(patch: pytest.MonkeyPatch) -> None:
    FakeCuda().install(patch)
    rng = np.random.default_rng(27)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    batches = [batch(model, rng, int(rng.integers(1, 4)), 10) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda arguments: decoder.decode(*arguments), batches))
    for arguments, got in zip(batches, results, strict=True):
        for hypothesis, wanted in zip(got, expected(model, *arguments), strict=True):
            assert_same(hypothesis, wanted)


def test_autocast_of_the_caller_does_not_reach_inside(patch: pytest.MonkeyPatch) -> None:
    FakeCuda().install(patch)
    vector = vectors()[0]
    head = TransducerHead.from_weights(vector.weights, vector.spec)
    decoder = graph_decoder(head, "while", patch)
    with torch.autocast("cpu", torch.bfloat16):
        got = decoder.decode(torch.from_numpy(vector.encoded), torch.from_numpy(vector.lengths))
    assert [hypothesis.ids.tolist() for hypothesis in got] == [answer["ids"] for answer in vector.answers]


# The calls, and what happens when one fails


WHILE_CALLS = [
    "nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcDestroyProgram",
    "cuModuleLoadData", "cuModuleGetFunction",
    "capture_begin",
    "cuStreamGetCaptureInfo", "cuCtxGetCurrent", "cuGraphConditionalHandleCreate", "cuLaunchKernel",
    "cuStreamGetCaptureInfo", "cuGraphAddNode", "cuStreamUpdateCaptureDependencies",
    "cuStreamBeginCaptureToGraph", "cuLaunchKernel", "cuStreamEndCapture",
    "capture_end",
]  # fmt: skip


@pytest.mark.parametrize("version", [12080, 13000])
def test_the_calls_of_a_capture(version: int, patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda(version).install(patch)
    rng = np.random.default_rng(28)
    model = random_model(rng, integers=True)
    graph_decoder(model.batched, "while", patch).decode(*batch(model, rng, 2, 5))
    assert [call for call in device.calls if not call.endswith(":ok")] == WHILE_CALLS


@pytest.mark.parametrize("version", [12080, 13000])
@pytest.mark.parametrize("failing", sorted(set(WHILE_CALLS)))
def test_a_call_that_fails_costs_one_warning_and_nothing_else(
    failing: str, version: int, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = FakeCuda(version, fail=failing).install(patch)
    rng = np.random.default_rng(29)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    with caplog.at_level(logging.WARNING, "transduce"):
        for _ in range(3):
            encoded, lengths = batch(model, rng, 3, 9)
            for got, wanted in zip(
                decoder.decode(encoded, lengths), expected(model, encoded, lengths), strict=True
            ):
                assert_same(got, wanted)
    assert [record.getMessage().count(failing) for record in caplog.records] == [1]
    assert decoder.choice.name == "eager"
    assert failing in decoder.choice.reason
    assert device.num_replays == 0
    assert device.leaks() == []


@pytest.mark.parametrize(("name", "version"), EVERY_GRAPH)
def test_an_error_inside_the_body_is_the_one_reported(
    name: str, version: int, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = FakeCuda(version).install(patch)
    model = random_model(np.random.default_rng(30), integers=True)

    def looks(lanes: Lanes) -> None:
        if device.captures:
            bool(lanes.row.any())

    patch.setattr(graphs, "step", looks)
    decoder = graph_decoder(model.batched, name, patch)
    with caplog.at_level(logging.WARNING, "transduce"):
        decoder.decode(*batch(model, np.random.default_rng(0), 1, 4))
    assert "not permitted when a stream is capturing" in caplog.text
    assert device.leaks() == []


def test_running_out_of_memory_is_not_taken_for_a_missing_feature(patch: pytest.MonkeyPatch) -> None:
    FakeCuda().install(patch)
    model = random_model(np.random.default_rng(31), integers=True)

    def full(lanes: Lanes) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    patch.setitem(decoder_module.CAPTURES, "while", full)
    decoder = graph_decoder(model.batched, "while", patch)
    with pytest.raises(torch.OutOfMemoryError):
        decoder.decode(*batch(model, np.random.default_rng(0), 1, 4))
    assert decoder.choice.name == "while"


# The fake itself: it must notice what a device would not forgive


def test_the_fake_notices_tensors_that_move(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    rng = np.random.default_rng(32)
    model = random_model(rng, integers=True)
    decoder = graph_decoder(model.batched, "while", patch)
    encoded, lengths = batch(model, rng, 2, 8)
    decoder.decode(encoded, lengths)
    ((lanes, _),) = decoder._graphs.values()
    with torch.inference_mode():
        lanes.row.set_(torch.zeros_like(lanes.row))
    with pytest.raises(AssertionError, match="has moved since the capture"):
        decoder.decode(encoded, lengths)
    assert device.leaks() == []


def test_the_fake_does_not_keep_temporaries_for_us(patch: pytest.MonkeyPatch) -> None:
    """A value made outside the capture's own operations is garbage at replay."""
    device = FakeCuda().install(patch)
    made, seen = torch.zeros(2), torch.zeros(2)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(CUDA)
    with torch.cuda.stream(stream):
        made.add_(0)
    with torch.cuda.stream(stream):
        graph.capture_begin("thread_local")  # type: ignore[arg-type]
        seen.copy_(made + 1)
        graph.capture_end()
    made.fill_(5)
    seen.zero_()
    graph.replay()
    assert seen.tolist() == [6, 6]
    assert device.num_replays == 1


# The choice


def test_a_cpu_needs_no_graph() -> None:
    assert choose(torch.device("cpu")).name == "eager"
    assert choose(torch.device("cpu"), "reference") == DriverChoice("reference", "asked for")
    for want in ("graph", "while", "unrolled", "native"):
        with pytest.raises(DeviceError, match="needs a CUDA device"):
            choose(torch.device("cpu"), want)  # type: ignore[arg-type]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial graph of a CUDA device, on the fake one."""
    trial = graphs._try_while
    monkeypatch.setattr(graphs, "_try_while", lambda bindings, device: trial(bindings, torch.device("cpu")))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("want", ["auto", "graph", "while"])
def test_a_trial_graph_that_counts_right_chooses_while(want: Any, patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    assert choose(CUDA, want).name == "while"
    assert device.num_iterations == 3
    assert device.leaks() == []


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("failing", sorted({*WHILE_CALLS, "cuDriverGetVersion"}))
def test_a_trial_that_fails_chooses_unrolled_and_says_why(failing: str, patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda(fail=failing).install(patch)
    choice = choose(CUDA)
    assert choice.name == "unrolled"
    assert (failing if failing != "cuDriverGetVersion" else "supports CUDA 0.0") in choice.reason
    with pytest.raises(DeviceError, match="decoder 'while' cannot run on cuda:0"):
        choose(CUDA, "while")
    assert device.leaks() == []


@pytest.mark.usefixtures("on_cpu")
def test_a_trial_that_counts_wrong_chooses_unrolled(patch: pytest.MonkeyPatch) -> None:
    device = FakeCuda().install(patch)
    patch.setattr(device, "run", lambda graph: None)
    choice = choose(CUDA)
    assert choice.name == "unrolled"
    assert "counted from 3 to 0, and came to 3" in choice.reason


def test_old_drivers_and_missing_parts_choose_unrolled(patch: pytest.MonkeyPatch) -> None:
    FakeCuda(12020).install(patch)
    assert "the driver supports CUDA 12.2, 12.6 is needed" in choose(CUDA).reason
    patch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert "cuda.bindings cannot be imported" in choose(CUDA).reason
    patch.setattr(torch.version, "hip", "6.0")
    assert choose(CUDA) == DriverChoice("unrolled", "no WHILE node: ROCm has none")


def test_what_is_asked_for_is_taken(patch: pytest.MonkeyPatch) -> None:
    for want in ("reference", "eager", "unrolled", "native"):
        assert choose(CUDA, want) == DriverChoice(want, "asked for")  # type: ignore[arg-type]


def test_bindings_without_a_driver_have_version_0(patch: pytest.MonkeyPatch) -> None:
    """cuda.bindings raises where it cannot load libcuda, instead of returning a code."""
    FakeCuda().install(patch)
    bindings = load_bindings()

    def fails(*_: object) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    patch.setattr(bindings.driver, "cuDriverGetVersion", fails)
    assert driver_version(bindings) == 0


def test_codes_are_named(patch: pytest.MonkeyPatch) -> None:
    FakeCuda(fail="cuCtxGetCurrent").install(patch)
    bindings: Bindings = load_bindings()
    with pytest.raises(CudaError, match=r"cuCtxGetCurrent returned 1 \(INVALID_VALUE\)"):
        bindings.cuda("cuCtxGetCurrent")


# The decoder without graphs


@pytest.mark.parametrize("want", ["auto", "eager", "reference"])
def test_a_decoder_on_the_cpu(want: Any) -> None:
    rng = np.random.default_rng(33)
    model = random_model(rng, integers=True)
    encoded, lengths = batch(model, rng, 3, 9)
    got = Decoder(model.batched, want).decode(encoded, lengths, lanes=2, window=2)
    for one, other, wanted in zip(
        got, decode(encoded, lengths, model.batched), expected(model, encoded, lengths), strict=True
    ):
        assert_same(one, wanted)
        assert_same(other, wanted)
