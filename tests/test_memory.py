"""How often free memory goes back to the system while there is work."""

from types import SimpleNamespace

import pytest

from transduce import memory


def test_memory_goes_back_at_once_and_then_not_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(memory, "give_back", lambda: times.append(now.seconds))
    memory._rest.cache_clear()
    for tick in range(100, 200):
        now.seconds = tick / 10
        memory.give_back_at_times()
    memory._rest.cache_clear()
    assert times == [10.0, 14.0, 18.0]
