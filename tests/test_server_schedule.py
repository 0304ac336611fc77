"""Which spans share a batch: everyone gets a turn, lengths are alike, and the budget holds."""

import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.server.schedule import Entry, Schedule, ScheduleRules

RULES = ScheduleRules(batch_seconds=160.0)


def filled(lines: dict[str, Sequence[float]], rules: ScheduleRules = RULES) -> Schedule[str, int]:
    """A schedule in which each owner has spans of these lengths waiting; their contents count from 0."""
    schedule: Schedule[str, int] = Schedule(rules)
    for owner, lengths in lines.items():
        for number, seconds in enumerate(lengths):
            schedule.add(Entry(owner, seconds, number))
    return schedule


def owners(batch: Sequence[Entry[str, int]]) -> str:
    return "".join(entry.owner for entry in batch)


def drained(schedule: Schedule[str, int]) -> list[list[Entry[str, int]]]:
    batches = []
    while batch := schedule.take():
        batches.append(batch)
    return batches


def test_nothing_waits() -> None:
    assert filled({}).take() == []


def test_requests_take_turns_within_a_batch() -> None:
    schedule = filled({"a": [20.0] * 9, "b": [20.0] * 2, "c": [20.0]})
    assert owners(schedule.take()) == "abcabaaa"
    assert owners(schedule.take()) == "aaaa"


def test_a_request_keeps_its_order() -> None:
    batch = filled({"a": [20.0] * 5}).take()
    assert [entry.content for entry in batch] == [0, 1, 2, 3, 4]


def test_a_short_request_does_not_wait_for_the_end_of_a_long_file() -> None:
    schedule = filled({"long": [28.0] * 40, "longer": [28.0] * 80})
    schedule.take()
    schedule.add(Entry("short", 1.0, 0))
    later = [owners(schedule.take()) for _ in range(2)]
    assert "short" in later


def test_a_flood_of_short_requests_does_not_starve_a_long_file() -> None:
    schedule = filled({"long": [28.0] * 4})
    for number in range(40):
        schedule.add(Entry(f"short{number}", 1.0, 0))
        schedule.add(Entry(f"short{number}", 1.0, 1))
    served = [entry.owner for batch in (schedule.take(), schedule.take()) for entry in batch]
    assert served.count("long") == 4


def test_lengths_of_a_batch_are_alike() -> None:
    batches = drained(filled({"a": [30.0, 12.0, 29.0, 13.0, 21.0]}))
    assert [[entry.num_seconds for entry in batch] for batch in batches] == [[30.0, 29.0, 21.0], [12.0, 13.0]]


def test_very_short_spans_all_count_as_alike() -> None:
    (batch,) = drained(filled({"a": [0.1, 2.9, 0.5, 1.9]}))
    assert len(batch) == 4


def test_a_span_longer_than_the_budget_goes_alone() -> None:
    batches = drained(filled({"a": [200.0, 190.0]}))
    assert [len(batch) for batch in batches] == [1, 1]


def test_what_is_removed_is_not_served() -> None:
    schedule = filled({"a": [20.0] * 3, "b": [20.0]})
    assert [entry.content for entry in schedule.remove("a")] == [0, 1, 2]
    assert schedule.remove("a") == []
    assert len(schedule) == 1
    assert [owners(batch) for batch in drained(schedule)] == ["b"]


lengths = st.lists(st.floats(0.01, 40.0), min_size=1, max_size=30)


def test_every_span_is_served_once_under_the_budget() -> None:
    @settings(max_examples=num_cases(100, 5000), derandomize=True, deadline=None)
    @given(st.dictionaries(st.sampled_from("abcdef"), lengths))
    def holds(lines: dict[str, list[float]]) -> None:
        batches = drained(filled(lines))
        served = [(entry.owner, entry.content) for batch in batches for entry in batch]
        assert sorted(served) == sorted((owner, n) for owner in lines for n in range(len(lines[owner])))
        for batch in batches:
            times = [entry.num_seconds for entry in batch]
            assert len(batch) == 1 or max(times) * len(batch) <= 160.0
            first = max(times[0], 2.0)
            assert all(first / 1.5 <= max(seconds, 2.0) <= first * 1.5 for seconds in times)

    holds()


def test_everyone_is_served_before_anyone_begins_a_batch_twice() -> None:
    @settings(max_examples=num_cases(100, 5000), derandomize=True, deadline=None)
    @given(st.dictionaries(st.sampled_from("abcdef"), lengths, min_size=1))
    def holds(lines: dict[str, list[float]]) -> None:
        schedule = filled(lines)
        waiting = list(lines)  # in the order in which they have to be served
        while batch := schedule.take():
            assert batch[0].owner == waiting[0]
            served = list(dict.fromkeys(entry.owner for entry in batch))
            left = {entry.owner for entry in schedule}
            waiting = [owner for owner in waiting if owner not in served]
            waiting += [owner for owner in served if owner in left]
        assert waiting == []

    holds()


def test_policy_is_cheap() -> None:
    """2,000 spans of 50 requests are scheduled in a fraction of the time that one batch takes."""
    schedule = filled({str(owner): [1.0] * 40 for owner in range(50)})
    started = time.process_time()
    drained(schedule)
    assert time.process_time() - started < 0.5
