"""Greedy decoding of a batch: asynchronous lanes with a windowed joint (docs/decoding.md).

In: encoder frames `[B, T, D]`, their lengths `[B]` and a head. Out: a Hypothesis for every utterance,
equal to what `greedy.transducer` finds for it alone. Torch and numpy are all it knows: no CUDA graph,
no text, no seconds.

A lane decodes one utterance at its own pace. One `step` serves all lanes: score the next `window`
frames of each, follow blanks to its first label, emit it, move its predictor, go on. No lane waits
for another, and a lane that is done takes the next utterance of the queue. A step never looks at a
value from the host, has no shape that depends on data and changes its tensors in place (step.py): the
same functions run in a Python loop here and inside a CUDA graph (graphs.py). A driver repeats them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from transduce.nn.labels import Entries, checked, split
from transduce.nn.step import Found, Head, Lanes, advance, look, refill, step, unfinished
from transduce.types import Hypothesis, IntArray

__all__ = [
    "Driver",
    "Stream",
    "decode",
    "decode_in",
    "default_window",
    "eager",
    "exact",
    "load",
    "project",
    "run",
    "stepwise",
]

Driver = Callable[[Lanes], None]
"""Repeats `step` until no lane has work or the log is full."""


def decode(
    encoded: Tensor,
    lengths: Tensor,
    head: Head,
    *,
    lanes: int | None = None,
    window: int | None = None,
    driver: Driver | None = None,
) -> list[Hypothesis]:
    """Decode encoder frames `[B, T, D]` of any float type, `lengths` `[B]` (best on the CPU) of them valid.

    `lanes` is how many utterances are decoded at once (None: all), `window` how many frames a step
    scores, `driver` what repeats the steps (None: `eager`). None of them changes a result. Raises
    ValueError where shapes or lengths do not fit.
    """
    ends = checked(encoded, lengths)
    num, num_frames = encoded.shape[:2]
    num_lanes = max(1, min(lanes or num, num))
    window = window or default_window(head)
    with exact(head.device):
        buffers = Lanes.allocate(head, num_lanes, window, num * num_frames, max(0, num - num_lanes))
        return decode_in(buffers, driver or eager, encoded, ends)


def decode_in(lanes: Lanes, driver: Driver, encoded: Tensor, lengths: IntArray) -> list[Hypothesis]:
    """Decode a checked batch in lanes that have room for it."""
    load(lanes, encoded, lengths)
    return split(run(lanes, driver), len(encoded), encoded.shape[1])


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast of the caller's: it would round logits."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


def default_window(head: Head) -> int:
    """Frames of a window where none are asked for: docs/decoding.md has the measurements.

    A wide window costs products with the vocabulary, and saves steps where blanks move by one frame
    only. On a GPU steps are what costs; 8 is a model's choice there, not yet a measured one.
    """
    if head.device.type == "cuda":
        return 8
    if len(head.spec.durations) > 1:
        return 4
    return 8 if head.spec.num_classes < 4096 else 4


def load(lanes: Lanes, encoded: Tensor, lengths: IntArray) -> None:
    """Project a batch into the frames, seat the longest utterances and queue the others, longest first."""
    project(lanes, encoded)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    first = order * encoded.shape[1]
    places = torch.from_numpy(np.stack((first, first + lengths[order])))
    seated, waiting = places[:, : len(lanes.row)], places[:, len(lanes.row) :]
    _fill(lanes.row, lanes.end, seated)
    _fill(lanes.queue.row, lanes.queue.end, waiting)
    lanes.queue.size.fill_(waiting.shape[1])
    lanes.queue.cursor.zero_()
    lanes.count.zero_()
    for values, start in zip(lanes.state, lanes.head.start, strict=True):
        values.copy_(start)


def project(lanes: Lanes, encoded: Tensor) -> None:
    """Write the joint's share of all frames `[B, T, D]` to the first B * T rows."""
    num_rows = encoded.shape[0] * encoded.shape[1]
    lanes.head.project(encoded.reshape(num_rows, encoded.shape[2]), out=lanes.frames[:num_rows])


def _fill(row: Tensor, end: Tensor, places: Tensor) -> None:
    """Write first and past-the-last rows `[2, n]` to the front and leave the rest empty."""
    for values, given in zip((row, end), places, strict=True):
        values.zero_()
        values[: len(given)].copy_(given)


def run(lanes: Lanes, driver: Driver) -> Entries:
    """Drive loaded lanes to their end; the log entries `[4, U]` of all labels, in order of time."""
    entries = []
    more = True
    while more:
        lanes.num_steps.zero_()
        lanes.log[0].fill_(-1)  # a driver may leave lanes out of the log
        driver(lanes)
        part, more = _drain(lanes)
        entries.append(part)
    return np.concatenate(entries, axis=1)


def _drain(lanes: Lanes) -> tuple[Entries, bool]:
    """The labels in the log `[4, U]`, and whether any lane has more to do: one copy to the host."""
    status = lanes.log[:, lanes.log_steps]
    status[0].copy_(lanes.row < lanes.end)
    status[1].copy_(lanes.queue.size - lanes.queue.cursor)
    status[2].copy_(lanes.num_steps)
    log = lanes.log.cpu().numpy()
    busy, waiting, num_steps, _ = log[:, lanes.log_steps]
    entries = log[:, : int(num_steps[0])].reshape(4, -1)
    return entries[:, entries[0] >= 0], bool(busy.any() or waiting[0] > 0)


# Drivers: how the step is repeated without a graph


def stepwise(lanes: Lanes) -> None:
    """The plainest driver: one look at the host a step. Graphs repeat the same step without it."""
    while bool(unfinished(lanes)):
        step(lanes)


def eager(lanes: Lanes) -> None:
    """The driver of the CPU, where looks are free: idle lanes and still predictors cost nothing."""
    active = lanes
    for _ in range(lanes.log_steps):
        active = _without_idle(active)
        if active.num_lanes == 0:
            return
        found = look(active)
        advance(active, found)
        _predict_emitted(active, found)


def _without_idle(lanes: Lanes) -> Lanes:
    """Refill idle lanes; where nothing waits, move them behind the busy ones and leave them out."""
    busy = lanes.row < lanes.end
    if bool(busy.all()):
        return lanes
    if lanes.queue.row.shape[0] and bool(lanes.queue.cursor < lanes.queue.size):
        refill(lanes)
        return _without_idle(lanes)
    _reorder(lanes, busy.logical_not().argsort(stable=True))
    return lanes.narrow(int(busy.sum()))


def _reorder(lanes: Lanes, order: Tensor) -> None:
    for values in lanes.per_lane:
        values.copy_(values.index_select(0, order))


def _predict_emitted(lanes: Lanes, found: Found) -> None:
    """Move the predictors of the lanes that emitted, and compute no others."""
    emitted = found.emitted.nonzero().squeeze(1)
    num_emitted = emitted.shape[0]
    if num_emitted == lanes.num_lanes:
        for values, new in zip(lanes.state, lanes.head.predict(found.label, lanes.state), strict=True):
            values.copy_(new)
    elif num_emitted:
        state = tuple(values.index_select(0, emitted) for values in lanes.state)
        state = lanes.head.predict(found.label.index_select(0, emitted), state)
        for values, new in zip(lanes.state, state, strict=True):
            values.index_copy_(0, emitted, new)


# Utterances that arrive in pieces


class Stream:
    """Decodes several utterances chunk by chunk, with the labels that one pass over each would give.

    Between chunks a lane keeps its predictor's state and, for TDT, how far its last jump went past the
    chunk. Frames count from the start of the utterance.
    """

    def __init__(
        self,
        head: Head,
        num_streams: int,
        chunk_frames: int,
        *,
        window: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        """Room for `num_streams` utterances and chunks of up to `chunk_frames`, whatever their sum."""
        self._driver = driver or eager
        self._chunk_frames = chunk_frames
        self._decoded_frames = np.zeros(num_streams, np.int64)
        with exact(head.device):
            window = window or default_window(head)
            self._lanes = Lanes.allocate(head, num_streams, window, num_streams * chunk_frames, 0)

    def push(self, encoded: Tensor, lengths: Tensor) -> list[Hypothesis]:
        """Decode the next chunk `[N, T, D]`, `lengths` `[N]` of it valid: the labels that it adds.

        Raises ValueError where shapes, lengths or the chunk's size do not fit.
        """
        ends = checked(encoded, lengths)
        num, num_frames = encoded.shape[:2]
        if num != len(self._decoded_frames) or num_frames > self._chunk_frames:
            limit = (len(self._decoded_frames), self._chunk_frames)
            raise ValueError(
                f"a chunk must be {limit[0]} streams of at most {limit[1]} frames, not {num} of {num_frames}"
            )
        with exact(self._lanes.head.device):
            self._begin(encoded, ends)
            entries = run(self._lanes, self._driver)
            _reorder(self._lanes, self._lanes.seat.argsort())
        hypotheses = split(entries, num, num_frames, self._decoded_frames)
        self._decoded_frames += ends
        return hypotheses

    def restart(self, stream: int) -> None:
        """Forget one stream: its next chunk begins a new utterance."""
        lanes = self._lanes
        self._decoded_frames[stream] = 0
        with exact(lanes.head.device):
            lanes.row[stream] = lanes.end[stream]
            for values, start in zip(lanes.state, lanes.head.start, strict=True):
                values[stream].copy_(start[0])

    def _begin(self, encoded: Tensor, lengths: IntArray) -> None:
        """Put the lanes on the chunk's frames, as far in as their last jump went past the one before."""
        lanes = self._lanes
        project(lanes, encoded)
        overshoot = lanes.row - lanes.end
        first = lanes.seat * encoded.shape[1]
        lanes.row.copy_(first + overshoot)
        lanes.end.copy_(first + torch.from_numpy(lengths).to(first.device))
