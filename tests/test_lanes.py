"""Lanes: for any batch, number of lanes, window and driver, what the scalar rule finds alone.

Expected values come from `greedy.transducer` (which test_greedy holds to upstream's vectors and to a
textbook decoder) and from upstream's vectors. Ids, frames and durations must be identical: half of the
random models compute with small integers, full of exact ties, half in float64.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fake_cuda import is_forbidden
from heads import Model, decode_watched, random_model, rarities, vectors
from support import num_cases
from torch.utils._python_dispatch import TorchDispatchMode

from transduce import greedy
from transduce.nn import step as step_module
from transduce.nn.labels import ctc_decode
from transduce.nn.lanes import Driver, Stream, decode, eager, load, stepwise
from transduce.nn.reference import audit, decode_reference
from transduce.nn.step import Lanes, step
from transduce.nn.transducer import TransducerHead
from transduce.types import Hypothesis

DRIVERS = [pytest.param(eager, id="eager"), pytest.param(stepwise, id="stepwise")]


def assert_same(got: Hypothesis, expected: Hypothesis, case: object) -> None:
    for name in ("ids", "frames", "durations"):
        assert getattr(got, name).tolist() == getattr(expected, name).tolist(), (name, case)
    np.testing.assert_allclose(got.log_probs, expected.log_probs, atol=2e-5, err_msg=str(case))


# Random cases


@dataclass(frozen=True, eq=False)
class Case:
    """One batch, how to decode it, and what the scalar rule says about each utterance."""

    number: int
    model: Model
    encoded: npt.NDArray[Any]  # [B, T, D]
    lengths: npt.NDArray[np.int64]  # [B]
    lanes: int
    window: int
    expected: list[Hypothesis]
    rarities: Counter[str]

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.encoded), torch.from_numpy(self.lengths)

    def __str__(self) -> str:
        return f"case {self.number}: {self.model.spec}, {self.lanes} lanes, window {self.window}"


def cases(num: int, seed: int) -> Iterator[Case]:
    for number in range(num):
        rng = np.random.default_rng((seed, number))
        model = random_model(rng, integers=number % 2 == 0)
        num_utterances, num_frames = int(rng.integers(1, 10)), int(rng.integers(0, 15))
        encoded = model.frames(rng, num_utterances, num_frames)
        lengths = rng.integers(0, num_frames + 1, num_utterances)
        watched = [
            decode_watched(model.scalar, row[:length]) for row, length in zip(encoded, lengths, strict=True)
        ]
        window, lanes = int(rng.choice([1, 2, 4, 8])), int(rng.integers(1, 10))
        found: Counter[str] = Counter()
        for (_, evaluations), length in zip(watched, lengths, strict=True):
            found += rarities(model.spec, int(length), evaluations)
            found += window_edges(model, window, evaluations)
        found["lane swaps"] += max(0, int((lengths > 0).sum()) - lanes)
        expected = [hypothesis for hypothesis, _ in watched]
        yield Case(number, model, encoded, lengths, lanes, window, expected, found)


def window_edges(model: Model, window: int, evaluations: list[tuple[int, Any]]) -> Counter[str]:
    """How often a label lies on the last frame of a window, and a blank leads out of it by more than one."""
    spec, found, first = model.spec, Counter[str](), 0
    for number, (frame, logits) in enumerate(evaluations):
        if frame >= first + window:
            found["windows left by a jump"] += frame > first + window
            first = frame
        if int(np.argmax(logits[: spec.num_classes])) != spec.blank:
            found["labels on a window's last frame"] += window > 1 and frame == first + window - 1
            first = evaluations[number + 1][0] if number + 1 < len(evaluations) else frame
    return found


@pytest.mark.parametrize("driver", DRIVERS)
def test_random_batches_decode_as_the_scalar_rule_does(driver: Driver) -> None:
    num = num_cases(500, 5000)
    met: Counter[str] = Counter()
    for case in cases(num, seed=1):
        got = decode(*case.tensors, case.model.batched, lanes=case.lanes, window=case.window, driver=driver)
        assert len(got) == len(case.expected)
        for hypothesis, expected in zip(got, case.expected, strict=True):
            assert_same(hypothesis, expected, case)
        met += case.rarities
    assert_common(met, num)


def assert_common(met: Counter[str], num: int) -> None:
    """None of these may pass by never having come up."""
    least = {
        "token ties": 3,
        "duration ties": 0.8,
        "blanks of duration 0": 1,
        "labels past the end": 0.4,
        "blanks past the end": 0.2,
        "forced advances": 4,
        "lane swaps": 0.5,
        "labels on a window's last frame": 0.2,
        "windows left by a jump": 0.1,
    }
    for name, per_case in least.items():
        assert met[name] >= per_case * num, (name, met[name], num)


@pytest.mark.parametrize("driver", DRIVERS)
def test_chunks_decode_as_one_pass_does(driver: Driver) -> None:
    num, num_overshoots = num_cases(150, 1500), 0
    for case in cases(num, seed=2):
        rng = np.random.default_rng(case.number)
        stream = Stream(case.model.batched, len(case.lengths), 5, window=case.window, driver=driver)
        parts: list[list[Hypothesis]] = []
        start = 0
        while start < case.encoded.shape[1]:
            size = int(rng.integers(0, 6))
            chunk = case.encoded[:, start : start + size]
            lengths = np.clip(case.lengths - start, 0, chunk.shape[1])
            parts.append(stream.push(torch.from_numpy(chunk), torch.from_numpy(lengths)))
            ends = [part.frames + part.durations for part in parts[-1]]
            num_overshoots += sum(bool((end > start + size).any()) for end in ends)
            start += size
        for utterance, expected in enumerate(case.expected):
            assert_same(joined([part[utterance] for part in parts]), expected, case)
    assert num_overshoots >= num / 10  # labels that jumped past their chunk


def joined(parts: list[Hypothesis]) -> Hypothesis:
    names = ("ids", "frames", "durations", "log_probs")
    if not parts:
        return greedy.hypothesis([])
    return Hypothesis(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def test_a_stream_that_restarts_begins_anew_and_leaves_the_others_alone() -> None:
    rng = np.random.default_rng(3)
    model = random_model(rng, integers=True)
    chunks = model.frames(rng, 2, 3, 8)  # [chunks, B, T, D]
    stream = Stream(model.batched, 3, 8)
    full = torch.full((3,), 8)
    stream.push(torch.from_numpy(chunks[0]), full)
    stream.restart(1)
    got = stream.push(torch.from_numpy(chunks[1]), full)
    assert_same(got[1], decode_watched(model.scalar, chunks[1, 1])[0], "restarted")
    whole = decode_watched(model.scalar, np.concatenate((chunks[0, 2], chunks[1, 2])))[0]
    assert got[2].ids.tolist() == whole.ids[whole.frames >= 8].tolist()


def test_a_chunk_that_does_not_fit_is_refused() -> None:
    model = random_model(np.random.default_rng(0), integers=True)
    stream = Stream(model.batched, 2, 4)
    with pytest.raises(ValueError, match="2 streams of at most 4 frames"):
        stream.push(torch.zeros(2, 5, model.width), torch.tensor([5, 5]))
    with pytest.raises(ValueError, match="2 streams of at most 4 frames"):
        stream.push(torch.zeros(3, 4, model.width), torch.tensor([4, 4, 4]))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_full_log_is_copied_out_and_decoding_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_module, "LOG_STEPS", 3)
    num_long = 0
    for case in cases(100, seed=4):
        got = decode(*case.tensors, case.model.batched, lanes=case.lanes, window=case.window, driver=driver)
        for hypothesis, expected in zip(got, case.expected, strict=True):
            assert_same(hypothesis, expected, case)
            num_long += len(expected) > 6
    assert num_long > 50


def test_order_neighbours_and_padding_do_not_matter() -> None:
    for case in cases(60, seed=5):
        order = np.random.default_rng(case.number).permutation(len(case.lengths))
        padding = case.model.frames(np.random.default_rng(9), len(order), 3)
        encoded = torch.from_numpy(np.concatenate((case.encoded[order], padding), axis=1))
        got = decode(encoded, torch.from_numpy(case.lengths[order]), case.model.batched, lanes=case.lanes)
        for place, hypothesis in zip(order, got, strict=True):
            assert_same(hypothesis, case.expected[place], case)


def test_padding_is_never_looked_at() -> None:
    for case in cases(60, seed=6):
        encoded = torch.from_numpy(case.encoded.copy())
        for row, length in zip(encoded, case.lengths, strict=True):
            row[length:] = float("nan")
        got = decode(encoded, case.tensors[1], case.model.batched, lanes=case.lanes, window=8)
        for hypothesis, expected in zip(got, case.expected, strict=True):
            assert_same(hypothesis, expected, case)


# Upstream's answers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("window", [1, 4, 8])
def test_upstream_vectors(driver: Driver, window: int) -> None:
    for vector in vectors():
        head = TransducerHead.from_weights(vector.weights, vector.spec)
        encoded, lengths = torch.from_numpy(vector.encoded), torch.from_numpy(vector.lengths)
        got = decode(encoded, lengths, head, lanes=2, window=window, driver=driver)
        for hypothesis, answer in zip(got, vector.answers, strict=True):
            assert {name: getattr(hypothesis, name).tolist() for name in answer} == answer


def test_upstream_vectors_by_the_scalar_rule_on_a_torch_head_and_their_audit() -> None:
    num_ties = 0
    for vector in vectors():
        head = TransducerHead.from_weights(vector.weights, vector.spec)
        encoded, lengths = torch.from_numpy(vector.encoded), torch.from_numpy(vector.lengths)
        for hypothesis, answer in zip(decode_reference(encoded, lengths, head), vector.answers, strict=True):
            assert {name: getattr(hypothesis, name).tolist() for name in answer} == answer
        report = audit(decode(encoded, lengths, head), encoded, lengths, head)
        assert report.different == report.unexplained == ()
        assert report.num_evaluations >= sum(len(answer["ids"]) for answer in vector.answers)
        num_ties += len(report.near_ties)
    assert num_ties < 20  # of some 10,000 evaluations


# Audit


def test_an_audit_finds_near_ties_and_tells_them_from_faults() -> None:
    rng = np.random.default_rng(7)
    case = next(case for case in cases(50, seed=8) if case.model.integers and case.rarities["token ties"])
    report = audit(case.expected, *case.tensors, case.model.batched)
    assert len(report.near_ties) >= case.rarities["token ties"]
    assert {tie.margin for tie in report.near_ties} == {0.0}
    assert report.different == ()

    model = random_model(rng, integers=False)
    encoded = torch.from_numpy(model.frames(rng, 2, 12))
    lengths = torch.tensor([12, 12])
    hypotheses = decode(encoded, lengths, model.batched)
    assert audit(hypotheses, encoded, lengths, model.batched).unexplained == ()
    wrong = [hypotheses[0], hypotheses[0]]
    assert audit(wrong, encoded, lengths, model.batched).unexplained == (1,)


# Results and arguments


def test_results_own_their_memory() -> None:
    for case in cases(20, seed=10):
        for hypothesis in decode(*case.tensors, case.model.batched):
            for name in ("ids", "frames", "durations", "log_probs"):
                assert getattr(hypothesis, name).base is None
                assert getattr(hypothesis, name).flags.writeable


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((2, 3), [1, 1], "encoded must be floats"),
        ((2, 3, 4), [1], "lengths must be"),
        ((2, 3, 4), [1, 4], "lengths must be within 0 and 3 frames"),
        ((2, 3, 4), [-1, 3], "lengths must be within 0 and 3 frames"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    shape: tuple[int, ...], lengths: list[int], message: str
) -> None:
    model = random_model(np.random.default_rng(0), integers=True)
    with pytest.raises(ValueError, match=message):
        decode(torch.zeros(shape), torch.tensor(lengths), model.batched)
    with pytest.raises(ValueError, match="encoded must be floats"):
        decode(torch.zeros(1, 2, 3, dtype=torch.int64), torch.tensor([1]), model.batched)


def test_empty_batches() -> None:
    model = random_model(np.random.default_rng(0), integers=True)
    assert decode(torch.zeros(0, 5, model.width), torch.zeros(0, dtype=torch.int64), model.batched) == []
    (nothing,) = decode(torch.zeros(1, 0, model.width), torch.tensor([0]), model.batched)
    assert len(nothing) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_encoder_frames_of_any_float_type_are_decoded_in_fp32(dtype: torch.dtype) -> None:
    vector = vectors()[0]
    head = TransducerHead.from_weights(vector.weights, vector.spec)
    encoded = torch.from_numpy(vector.encoded).to(dtype)
    lengths = torch.from_numpy(vector.lengths)
    with torch.autocast("cpu", torch.bfloat16):
        got = decode(encoded, lengths, head)
    for hypothesis, row, length in zip(got, encoded.float().numpy(), vector.lengths, strict=True):
        expected, _ = decode_watched(greedy.LstmHead(vector.weights, vector.spec), row[:length])
        assert_same(hypothesis, expected, dtype)


def test_threads_do_not_disturb_each_other() -> None:
    batches = list(cases(40, seed=11))
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda case: decode(*case.tensors, case.model.batched, lanes=2), batches)
    for case, got in zip(batches, results, strict=True):
        for hypothesis, expected in zip(got, case.expected, strict=True):
            assert_same(hypothesis, expected, case)


# What a CUDA graph needs of a step


class Capture(TorchDispatchMode):
    """Refuses what a capture would, and counts the rest; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not is_forbidden(func), f"{func} in a step"
        self.num_operations += not func.is_view
        return func(*args, **(kwargs or {}))


def refuse(*_: object) -> None:
    raise AssertionError("a step looked at a value")


def num_operations(driver: Any, case: Case, num_lanes: int) -> int:
    num, num_frames = case.encoded.shape[:2]
    with torch.inference_mode():
        lanes = Lanes.allocate(case.model.batched, num_lanes, 4, num * num_frames, max(0, num - num_lanes))
        load(lanes, case.tensors[0], case.lengths)
        with Capture() as capture:
            driver(lanes)
    return capture.num_operations


def test_a_step_is_safe_to_capture_and_its_size_does_not_depend_on_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("tolist", "numpy", "cpu", "__bool__", "__int__", "__index__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)  # some of them bypass the dispatcher on a CPU
    sizes: dict[tuple[object, ...], set[int]] = {}
    for case in cases(200, seed=12):
        kind = (case.model.integers, case.model.spec.kind, len(case.model.batched.start))
        place = (case.model.spec.blank > 0, case.model.spec.blank < case.model.spec.num_classes - 1)
        sizes.setdefault((*kind, *place), set()).add(num_operations(step, case, 16))
    assert len(sizes) > 12
    assert all(len(counts) == 1 for counts in sizes.values())


def test_a_step_on_a_gpu_takes_few_kernels() -> None:
    """RNN-T with one LSTM layer, blank last, W = 4: every operation counted is about one kernel."""
    vector = next(v for v in vectors() if v.spec.kind == "rnnt" and len(v.weights.lstm) == 1)
    head = TransducerHead.from_weights(vector.weights, vector.spec)
    encoded = torch.from_numpy(vector.encoded)
    with torch.inference_mode():
        lanes = Lanes.allocate(head, 8, 4, encoded.shape[0] * encoded.shape[1], 0)
        load(lanes, encoded, vector.lengths)
        with Capture() as capture:
            step(lanes)
    assert capture.num_operations <= 60


def test_looks_at_the_host_are_noticed() -> None:
    """The guard itself: the eager driver, which looks, must not pass it."""
    case = next(case for case in cases(10, seed=13) if case.lengths.any())
    with pytest.raises(AssertionError, match="in a step"):
        num_operations(eager, case, 16)


# CTC


def test_ctc_collapses_as_the_scalar_rule_does() -> None:
    rng = np.random.default_rng(14)
    num_full_ends = 0
    for _ in range(num_cases(300, 3000)):
        num, num_frames, num_classes = (
            int(rng.integers(0, 5)),
            int(rng.integers(0, 12)),
            int(rng.integers(2, 5)),
        )
        logits = rng.integers(-2, 3, (num, num_frames, num_classes)).astype(np.float32)
        lengths, blank = rng.integers(0, num_frames + 1, num), int(rng.integers(num_classes))
        got = ctc_decode(torch.from_numpy(logits), torch.from_numpy(lengths), blank)
        for hypothesis, row, length in zip(got, logits, lengths, strict=True):
            assert_same(hypothesis, greedy.ctc(row[:length], blank), (logits, lengths, blank))
            num_full_ends += bool(length == num_frames and len(hypothesis))
    assert num_full_ends > 20  # labels that end with the row: the next row must not continue them
