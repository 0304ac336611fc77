"""The decoder of one head on one device: a chosen driver, and the graphs captured so far.

In: encoder frames and lengths, from any thread. Out: hypotheses. It chooses a driver once, keeps graphs
when batch shapes alternate, and falls back to plain steps, with one warning, where a capture fails.

A decoder belongs to a head, whose tensors never change: device, dtype and weights are part of every
key by that. Time is not: lanes hold any batch whose frames fit, and grow by doubling.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from transduce.nn import graphs
from transduce.nn.graphs import DriverChoice, Want, choose
from transduce.nn.labels import checked
from transduce.nn.lanes import Driver, decode, decode_in, default_window, exact, stepwise
from transduce.nn.reference import decode_reference
from transduce.nn.step import Head, Lanes
from transduce.types import Hypothesis

__all__ = ["Decoder"]

MAX_LANES = 128
"""Lanes of a GPU where none are asked for; longer batches queue."""

MAX_GRAPHS = 8
"""Graphs kept a head; the one not used for longest goes first."""

CAPTURES: dict[str, Callable[[Lanes], Driver]] = {
    "while": graphs.capture_while,
    "native": graphs.capture_native,
    "unrolled": graphs.capture_unrolled,
}


@dataclass(frozen=True)
class _Key:
    """What is fixed in a graph besides the head."""

    num_lanes: int
    window: int
    queued: bool


class Decoder:
    """Decodes batches with one head; may be called from several threads."""

    def __init__(self, head: Head, want: Want = "auto") -> None:
        """Raises DeviceError where the driver asked for is not possible on the head's device."""
        self.choice = choose(head.device, want)
        self._head = head
        self._graphs: dict[_Key, tuple[Lanes, Driver]] = {}
        self._lock = Lock()

    def decode(
        self, encoded: Tensor, lengths: Tensor, *, lanes: int | None = None, window: int | None = None
    ) -> list[Hypothesis]:
        """As `lanes.decode`, by the chosen driver."""
        if self.choice.name == "reference":
            return decode_reference(encoded, lengths, self._head)
        if self.choice.name in CAPTURES:
            with self._lock, exact(self._head.device):
                lengths_on_host = checked(encoded, lengths)
                graph = self._graph(encoded, lanes, window or default_window(self._head))
                if graph is not None:
                    return decode_in(*graph, encoded, lengths_on_host)
        driver = stepwise if self._head.device.type == "cuda" else None
        return decode(encoded, lengths, self._head, lanes=lanes, window=window, driver=driver)

    def _graph(self, encoded: Tensor, lanes: int | None, window: int) -> tuple[Lanes, Driver] | None:
        """Lanes with room for the batch and a graph of them; None where the capture failed."""
        num, num_frames = encoded.shape[:2]
        num_lanes = _power_of_two(min(num, lanes or MAX_LANES))
        key = _Key(num_lanes, window, queued=num > num_lanes)
        found = self._graphs.pop(key, None)
        if found is None or not _fits(found[0], num, num * num_frames):
            found = self._capture(key, num, num * num_frames)
        if found is not None:
            self._graphs[key] = found
            for oldest in list(self._graphs)[:-MAX_GRAPHS]:
                del self._graphs[oldest]
        return found

    def _capture(self, key: _Key, num: int, num_rows: int) -> tuple[Lanes, Driver] | None:
        num_queued = _power_of_two(num - key.num_lanes) if key.queued else 0
        lanes = Lanes.allocate(self._head, key.num_lanes, key.window, _power_of_two(num_rows), num_queued)
        try:
            return lanes, CAPTURES[self.choice.name](lanes)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, plain steps decode the same
            reason = f"{self.choice.name} could not be captured ({type(error).__name__}: {error})"
            self.choice = DriverChoice("eager", reason)
            self._graphs.clear()
            logging.getLogger("transduce").warning("decoding without CUDA graphs, slower: %s", reason)
            return None


def _power_of_two(number: int) -> int:
    """The next power of two, at least 1."""
    return 1 << max(0, number - 1).bit_length()


def _fits(lanes: Lanes, num: int, num_rows: int) -> bool:
    spare_rows = lanes.window + max(1, *lanes.head.spec.durations)
    return len(lanes.frames) >= num_rows + spare_rows and len(lanes.queue.row) >= num - len(lanes.row)
