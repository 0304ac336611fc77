"""The ONNX loop against the scalar rule and against NeMo's own answers: schedule and arithmetic."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from onnx_cases import (
    Case,
    LoopTables,
    Tables,
    by_the_rule,
    cases,
    decode,
    labels,
    random_case,
    rarities,
    session,
    smallest_margin,
    vectors,
)
from support import num_cases

from transduce import greedy
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.ctc import collapse
from transduce.onnx.heads import WeightsHead
from transduce.onnx.session import Session
from transduce.types import HeadSpec

MARGIN = 1e-4
"""fp32 rounding of these models' logits stays far below it."""


def run(case: Case) -> list[list[tuple[int, int, int]]]:
    runner = session(case.looped, case.spec, case.encoded.shape[2], case.window, case.opset)
    return [labels(found) for found in decode(runner, case.encoded, case.lengths)]


def test_the_schedule_on_integer_tables(record_property: Callable[[str, object], None]) -> None:
    """Exact arithmetic, ties everywhere: any deviation from the rule shows."""
    met: Counter[str] = Counter()
    num = num_cases(100, 1000)
    for case in cases(np.random.default_rng(1), num, integers=True):
        answers = run(case)
        for lane, answer in enumerate(answers):
            found, evaluations = by_the_rule(case, lane)
            assert answer == labels(found), (case.spec, case.window, lane)
            met += rarities(case.spec, int(case.lengths[lane]), evaluations)
    record_property("heads", num)
    for name, count in met.items():
        record_property(name, count)
    wanted = {"token ties", "duration ties", "blanks of duration 0", "jumps past the end", "forced advances"}
    assert {name for name in wanted if met[name] >= 50} == wanted, met


def test_lstm_heads_with_log_probabilities(record_property: Callable[[str, object], None]) -> None:
    compared = near_ties = 0
    num = num_cases(100, 1000)
    for case in cases(np.random.default_rng(2), num, integers=False):
        runner = session(case.looped, case.spec, case.encoded.shape[2], case.window, case.opset)
        for lane, ours in enumerate(decode(runner, case.encoded, case.lengths)):
            found, evaluations = by_the_rule(case, lane)
            if smallest_margin(case.spec, evaluations) < MARGIN:
                near_ties += 1
                continue
            compared += 1
            assert labels(ours) == labels(found), (case.spec, case.window, lane)
            np.testing.assert_allclose(ours.log_probs, found.log_probs, atol=1e-4)
    record_property("heads", num)
    record_property("lanes compared", compared)
    record_property(f"lanes with a margin below {MARGIN}", near_ties)
    assert near_ties < compared / 50


@pytest.mark.parametrize(("window", "opset"), [(1, 17), (4, 18), (8, 17)])
def test_nemos_decode_vectors(window: int, opset: int) -> None:
    for number, vector in enumerate(vectors()):
        head = WeightsHead(vector.weights, vector.spec)
        runner = session(head, vector.spec, vector.encoded.shape[2], window, opset)
        found = decode(runner, vector.encoded, vector.lengths)
        for ours, answer in zip(found, vector.answers, strict=True):
            theirs = list(zip(answer["ids"], answer["frames"], answer["durations"], strict=True))
            assert labels(ours) == theirs, number


def test_a_lane_does_not_depend_on_its_neighbours() -> None:
    """The same lane alone, and among others in every place."""
    rng = np.random.default_rng(3)
    case = random_case(rng, integers=True)
    runner = session(case.looped, case.spec, case.encoded.shape[2], case.window)
    together = [labels(found) for found in decode(runner, case.encoded, case.lengths)]
    for lane, length in enumerate(case.lengths):
        alone = decode(runner, case.encoded[lane : lane + 1, : max(length, 1)], case.lengths[lane : lane + 1])
        assert labels(alone[0]) == together[lane]
    order = rng.permutation(len(together))
    moved = decode(runner, case.encoded[order], case.lengths[order])
    assert [labels(found) for found in moved] == [together[lane] for lane in order]


def constant_joint(spec: HeadSpec, best: list[int]) -> LoopTables:
    """A head whose logits are always the same: 1 at the places `best`."""
    given = np.zeros((1, spec.num_classes + (len(spec.durations) if spec.kind == "tdt" else 0)), np.float32)
    given[0, best] = 1
    return LoopTables(Tables(spec, given, np.zeros((1, spec.num_classes), np.int64)))


@pytest.mark.parametrize("window", [1, 8])
def test_endless_emission_stops_at_the_limit(window: int) -> None:
    """Field bug 33: a label on every step, a label of duration 0, a blank of duration 0."""
    rnnt = HeadSpec("rnnt", 8, 7, max_symbols=10)
    tdt = HeadSpec("tdt", 8, 7, (0, 1, 2), max_symbols=10)
    for spec, best, expected in ((rnnt, [5], 500), (tdt, [5, 8], 500), (tdt, [7, 8], 0)):
        head = constant_joint(spec, best)
        width = head.tables.given.shape[1]
        runner = session(head, spec, width, window)
        (found,) = decode(runner, np.zeros((1, 50, width)), np.array([50]))
        assert labels(found) == [(5, frame, 0) for frame in range(50) for _ in range(10)][:expected]


def test_no_frames_at_all() -> None:
    spec = HeadSpec("rnnt", 3, 2)
    runner = session(constant_joint(spec, [0]), spec, 3, 4)
    assert [len(found) for found in decode(runner, np.zeros((2, 5, 3)), np.array([0, 0]))] == [0, 0]


def collapsed(
    logits: list[list[float]] | np.ndarray, lengths: list[int], blank: int
) -> list[greedy.Hypothesis]:
    graph = Graph(17)
    values = graph.add_input("logits", FLOAT, None)
    sizes = graph.add_input("lengths", INT64, None)
    collapse(graph, blank, values, sizes).declare(graph)
    names = ("ids", "frames", "durations", "log_probs", "counts")
    feeds = {"logits": np.asarray(logits, np.float32), "lengths": np.array(lengths)}
    *columns, counts = Session.of_graph(graph, "ctc", threads=1).run(names, feeds)
    return [greedy.Hypothesis(*(c[row, :n] for c in columns)) for row, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("AA_AA", [("A", 0, 2), ("A", 3, 2)]),
        ("A_A", [("A", 0, 1), ("A", 2, 1)]),
        ("AAB", [("A", 0, 2), ("B", 2, 1)]),
        ("____", []),
        ("A", [("A", 0, 1)]),
        ("_BBB", [("B", 1, 3)]),
    ],
)
def test_ctc_paths(path: str, expected: list[tuple[str, int, int]]) -> None:
    """Field bug 42, as long as the path and inside a longer row that goes on with the same label."""
    logits = np.eye(3)[["AB_".index(letter) for letter in path + path[-1] * 3]]
    for frames in (len(path), len(path) + 3):
        (found,) = collapsed(logits[None, :frames], [len(path)], blank=2)
        assert [("AB"[i], f, d) for i, f, d in labels(found)] == expected


def test_ctc_on_random_logits_with_ties() -> None:
    rng = np.random.default_rng(4)
    for _ in range(num_cases(50, 500)):
        size = int(rng.integers(2, 6))
        blank = int(rng.integers(size))
        logits = rng.integers(0, 3, (3, 12, size)).astype(np.float32)
        lengths = rng.integers(0, 13, 3).tolist()
        for row, ours in enumerate(collapsed(logits, lengths, blank)):
            theirs = greedy.ctc(logits[row, : lengths[row]], blank)
            assert labels(ours) == labels(theirs)
            np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-5)
