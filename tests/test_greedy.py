"""The scalar rule: equal to upstream's decoders and to a textbook one, and free of reported faults.

Expected values come from NeMo (200 decode vectors), from decoders written here the way papers state them
(frame by frame, or label by label; plain Python, no state but the labels so far), and from the reports.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from heads import BatchedTables, ScalarTables, Tables, decode_watched, rarities, vectors
from support import num_cases

from transduce import greedy
from transduce.nn.labels import ctc_decode
from transduce.nn.lanes import decode, eager, stepwise
from transduce.types import HeadSpec, Hypothesis

Emitted = list[tuple[int, int, int]]
"""Label, frame and duration."""


def emitted(hypothesis: Hypothesis) -> Emitted:
    columns = (hypothesis.ids.tolist(), hypothesis.frames.tolist(), hypothesis.durations.tolist())
    return list(zip(*columns, strict=True))


def test_upstream_vectors() -> None:
    num_labels = 0
    for vector in vectors():
        head = greedy.LstmHead(vector.weights, vector.spec)
        for row, length, answer in zip(vector.encoded, vector.lengths, vector.answers, strict=True):
            got = greedy.transducer(row[:length], head, vector.spec.durations, vector.spec.max_symbols)
            assert {name: getattr(got, name).tolist() for name in answer} == answer
            num_labels += len(got)
    assert len(vectors()) == 200
    assert num_labels > 2000


# Textbook decoders


Logits = Callable[[int, tuple[int, ...]], list[Any]]
"""Token logits, then duration logits, for a frame and the labels so far."""


@dataclass(frozen=True)
class Textbook:
    """A model as a function, and how papers decode it."""

    spec: HeadSpec
    num_frames: int
    logits: Logits

    def best(self, frame: int, labels: tuple[int, ...]) -> tuple[int, int]:
        """Label and duration; a blank lasts at least one frame."""
        values = self.logits(frame, labels)
        label = first_of_best(values[: self.spec.num_classes])
        if len(values) == self.spec.num_classes:
            return label, int(label == self.spec.blank)
        duration = self.spec.durations[first_of_best(values[self.spec.num_classes :])]
        return label, max(duration, 1) if label == self.spec.blank else duration

    def by_frames(self) -> Emitted:
        """RNN-T: for every frame, labels until a blank, at most `max_symbols`."""
        found: Emitted = []
        labels: tuple[int, ...] = ()
        for frame in range(self.num_frames):
            for _ in range(self.spec.max_symbols):
                label, _ = self.best(frame, labels)
                if label == self.spec.blank:
                    break
                found.append((label, frame, 0))
                labels += (label,)
        return found

    def by_labels(self) -> Emitted:
        """RNN-T and TDT: for every label, search along blanks until it is found or time is over."""
        found: Emitted = []
        labels: tuple[int, ...] = ()
        time_ = num_here = 0
        last = -1
        while time_ < self.num_frames:
            label = self.spec.blank
            while time_ < self.num_frames and label == self.spec.blank:
                frame = time_
                label, duration = self.best(frame, labels)
                time_ += duration
            if label == self.spec.blank:
                break
            found.append((label, frame, duration))
            labels += (label,)
            num_here, last = (num_here + 1 if frame == last else 1), frame
            time_ += time_ == last and num_here >= self.spec.max_symbols
        return found


def first_of_best(values: Sequence[Any]) -> int:
    return values.index(max(values))


@dataclass(frozen=True)
class History:
    """`greedy.Head` on a model function: its state is the labels so far."""

    spec: HeadSpec
    logits: Logits

    @property
    def blank(self) -> int:
        return self.spec.blank

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    def start(self) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
        return np.array([]), ()

    def predict(self, label: int, state: tuple[int, ...]) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
        return np.array([*state, label]), (*state, label)

    def joint(self, frame: npt.NDArray[Any], predicted: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.array(self.logits(int(frame[0]), tuple(predicted.astype(int).tolist())))


def random_textbook(rng: np.random.Generator, *, integers: bool) -> Textbook:
    """Random logits by frame and by the last two labels; with `integers`, most decisions are ties."""
    num_classes, num_frames = int(rng.integers(2, 6)), int(rng.integers(0, 10))
    durations = [(0,), (0,), (0, 1, 2, 3, 4), (0, 1), (2, 0, 5), (1, 3)][rng.integers(6)]
    is_tdt = len(durations) > 1
    spec = HeadSpec(
        kind="tdt" if is_tdt else "rnnt",
        num_classes=num_classes,
        blank=int(rng.choice([0, num_classes // 2, num_classes - 1])),
        durations=durations,
        max_symbols=int(rng.choice([1, 2, 3, 10])),
    )
    num_outputs = num_classes + is_tdt * len(durations)

    def table(num: int) -> list[list[Any]]:
        shape = (num, num_outputs)
        return (rng.integers(-1, 2, shape) if integers else rng.standard_normal(shape)).tolist()

    by_frame, by_last, by_one_before = table(num_frames), table(num_classes + 1), table(num_classes + 1)

    def logits(frame: int, labels: tuple[int, ...]) -> list[Any]:
        one_before, last = (-1, -1, *labels)[-2:]
        rows = (by_frame[frame], by_last[last], by_one_before[one_before])
        return [sum(values) for values in zip(*rows, strict=True)]

    return Textbook(spec, num_frames, logits)


def test_textbook_decoders_agree() -> None:
    num = num_cases(2000, 20_000)
    met: Counter[str] = Counter()
    for number in range(num):
        book = random_textbook(np.random.default_rng((40, number)), integers=number % 2 == 0)
        head = History(book.spec, book.logits)
        frames = np.arange(book.num_frames, dtype=np.float64)[:, None]
        got, evaluations = decode_watched(head, frames)
        assert emitted(got) == book.by_labels(), (number, book.spec)
        if book.spec.kind == "rnnt":
            assert emitted(got) == book.by_frames(), (number, book.spec)
        met += rarities(book.spec, book.num_frames, evaluations)
        met["blank first"] += book.spec.blank == 0
        met["blank last"] += book.spec.blank == book.spec.num_classes - 1
        met["blank between"] += 0 < book.spec.blank < book.spec.num_classes - 1
    least = {
        "token ties": 0.7,
        "duration ties": 0.3,
        "blanks of duration 0": 0.1,
        "labels past the end": 0.05,
        "blanks past the end": 0.05,
        "forced advances": 0.5,
        "blank first": 0.2,
        "blank last": 0.2,
        "blank between": 0.15,
    }
    for name, per_model in least.items():
        assert met[name] >= per_model * num, (name, met[name])


def test_log_probabilities_are_those_of_the_labels_among_the_tokens() -> None:
    book = next(
        book
        for number in range(99)
        if (book := random_textbook(np.random.default_rng((41, number)), integers=False)).spec.kind == "tdt"
        and len(book.by_labels()) > 3
    )
    got, _ = decode_watched(
        History(book.spec, book.logits), np.arange(book.num_frames, dtype=np.float64)[:, None]
    )
    labels = tuple(got.ids.tolist())
    for place, (label, frame) in enumerate(zip(labels, got.frames.tolist(), strict=True)):
        weights = [np.exp(value) for value in book.logits(frame, labels[:place])[: book.spec.num_classes]]
        assert np.exp(got.log_probs[place]) == pytest.approx(weights[label] / sum(weights), rel=1e-6)


# Faults reported elsewhere (facts/field-bugs.md): the scalar rule and the lanes must both be free of them


def both(spec: HeadSpec, tables: Tables, frames: npt.NDArray[Any]) -> tuple[Hypothesis, list[int]]:
    """The scalar rule's hypothesis and the frames it visited; the lanes' must be the same, in any company."""
    hypothesis, evaluations = decode_watched(ScalarTables(tables, spec), frames)
    rows = torch.from_numpy(np.stack((frames, np.zeros_like(frames), frames)).astype(np.float32))
    lengths = torch.tensor([len(frames)] * 3)
    for driver in (eager, stepwise):
        for window in (1, 4):
            got = decode(rows, lengths, BatchedTables(tables, spec), lanes=2, window=window, driver=driver)
            assert emitted(got[0]) == emitted(got[2]) == emitted(hypothesis)
    return hypothesis, [frame for frame, _ in evaluations]


def one_hot(size: int, *places: int) -> npt.NDArray[np.float32]:
    values = np.zeros(size, np.float32)
    values[list(places)] = 9
    return values


RNNT_6 = HeadSpec("rnnt", 7, 6)
TDT_6 = HeadSpec("tdt", 7, 6, (0, 1, 2, 3, 4))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("spec", "places", "num_labels"),
    [(RNNT_6, (5,), 500), (TDT_6, (5, 7), 500), (TDT_6, (6, 7), 0)],
    ids=["a label for ever", "a label of duration 0 for ever", "a blank of duration 0 for ever"],
)
def test_field_bug_33_no_endless_emission(spec: HeadSpec, places: tuple[int, ...], num_labels: int) -> None:
    num_outputs = 7 if spec.kind == "rnnt" else 12
    tables = Tables(np.zeros((1, num_outputs), np.float32), np.zeros((1, 7), np.int64))
    frames = np.tile(one_hot(num_outputs, *places), (50, 1))
    start = time.perf_counter()
    hypothesis, _ = both(spec, tables, frames)
    assert time.perf_counter() - start < 5  # five decoders, one second each
    assert hypothesis.ids.tolist() == [5] * num_labels
    assert hypothesis.frames.tolist() == [frame for frame in range(50) for _ in range(num_labels // 50)]


def test_field_bug_33_a_larger_limit_is_applied_too() -> None:
    tables = Tables(np.zeros((1, 7), np.float32), np.zeros((1, 7), np.int64))
    frames = np.tile(one_hot(7, 5), (4, 1))
    for limit in (1, 3, 25):
        hypothesis, _ = both(replace(RNNT_6, max_symbols=limit), tables, frames)
        assert len(hypothesis) == 4 * limit


def test_field_bug_34_durations_are_followed() -> None:
    """t = 0: A for 3; t = 3: blank for 4; t = 7: B for 0, then C for 1; t = 8: blank."""
    a, b, c, blank = 0, 1, 2, 6
    frames = np.stack([one_hot(12, c, 7)] * 10)  # visiting a frame between would emit C
    frames[0], frames[3] = one_hot(12, a, 7 + 3), one_hot(12, blank, 7 + 4)
    frames[7], frames[8], frames[9] = (
        one_hot(12, b, 7 + 0),
        one_hot(12, blank, 7 + 1),
        one_hot(12, blank, 7 + 1),
    )
    given = np.zeros((2, 12), np.float32)
    given[1] = (
        2 * one_hot(12, c, 7 + 1) - 2 * one_hot(12, b) - one_hot(12, 7)
    )  # after B: C for 1, unless blank
    given[1, blank] = 18
    frames[7, blank] = -9
    after = np.zeros((2, 7), np.int64)
    after[:, b] = 1
    hypothesis, visited = both(TDT_6, Tables(given, after), frames)
    assert emitted(hypothesis) == [(a, 0, 3), (b, 7, 0), (c, 7, 1)]
    assert visited[:5] == [0, 3, 7, 7, 8]


def test_field_bug_36_the_predictor_moves_on_labels_only() -> None:
    """The state counts the predictor's steps and is the label that comes next."""
    num, blank = 8, 8
    given = np.stack([one_hot(num + 1, count) for count in range(num)])
    after = np.minimum(np.arange(num)[:, None] + 1, num - 1).repeat(num + 1, axis=1)
    spec = HeadSpec("rnnt", num + 1, blank, max_symbols=1)
    tables = Tables(given, after)
    nothing, label = 3 * one_hot(num + 1, blank), np.zeros(num + 1, np.float32)
    hypothesis, _ = both(
        spec, tables, np.stack([nothing] * 10 + [label] + [nothing] * 4 + [label, label, nothing])
    )
    assert emitted(hypothesis) == [(0, 10, 0), (1, 15, 0), (2, 16, 0)]

    rng = np.random.default_rng(36)
    speaks = rng.random((5, 12)) < 0.4
    encoded = np.where(speaks[..., None], label, nothing).astype(np.float32)
    got = decode(torch.from_numpy(encoded), torch.full((5,), 12), BatchedTables(tables, spec))
    for hypothesis, row in zip(got, speaks, strict=True):
        assert hypothesis.frames.tolist() == np.flatnonzero(row).tolist()
        assert hypothesis.ids.tolist() == [min(count, num - 1) for count in range(row.sum())]


@pytest.mark.parametrize(
    ("path", "labels", "frames", "durations"),
    [
        ("AA_AA", "AA", [0, 3], [2, 2]),
        ("A_A", "AA", [0, 2], [1, 1]),
        ("AAB", "AB", [0, 2], [2, 1]),
        ("____", "", [], []),
        ("", "", [], []),
        ("A", "A", [0], [1]),
        ("BBB", "B", [0], [3]),
    ],
)
def test_field_bug_42_ctc_merges_runs_and_nothing_else(
    path: str, labels: str, frames: list[int], durations: list[int]
) -> None:
    logits = np.array([one_hot(3, "_AB".index(letter)) for letter in path], np.float32).reshape(-1, 3)
    batch = np.stack((logits, logits))  # the run at the end of the first must not go on in the second
    lengths = torch.tensor([len(path)] * 2)
    for got in (greedy.ctc(logits, 0), *ctc_decode(torch.from_numpy(batch), lengths, 0)):
        assert "".join("_AB"[label] for label in got.ids) == labels
        assert got.frames.tolist() == frames
        assert got.durations.tolist() == durations


def test_field_bug_42_logits_past_the_end_are_not_read() -> None:
    logits = np.array([one_hot(3, place) for place in (1, 1, 1, 2)], np.float32)
    (got,) = ctc_decode(torch.from_numpy(logits[None]), torch.tensor([2]), 0)
    assert emitted(got) == [(1, 0, 2)]
