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

from transduce.nn.labels import Entries, checked, ctc_decode, split
from transduce.nn.step import LOG_STEPS, Found, Head, Lanes, advance, look, refill
from transduce.types import HeadSpec, Hypothesis, IntArray

__all__ = ["Driver", "ctc_decode", "decode", "default_window", "eager", "exact", "load", "run"]

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
    window = window or default_window(head.spec)
    with exact(head.device):
        buffers = Lanes.allocate(head, num_lanes, window, num * num_frames, max(0, num - num_lanes))
        load(buffers, encoded, ends)
        return split(run(buffers, driver or eager), num, num_frames)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast of the caller's: it would round logits."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


def default_window(spec: HeadSpec) -> int:
    """Frames of a window where none are asked for; measured, see docs/decoding.md."""
    return 4 if spec.num_classes < 4096 else 2


def load(lanes: Lanes, encoded: Tensor, lengths: IntArray) -> None:
    """Project a batch into the frames, seat the longest utterances and queue the others, longest first."""
    num, num_frames = encoded.shape[:2]
    lanes.head.project(encoded.reshape(num * num_frames, -1), out=lanes.frames[: num * num_frames])
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    places = torch.from_numpy(np.stack((order * num_frames, order * num_frames + lengths[order])))
    num_lanes = len(lanes.row)
    seated, waiting = places[:, :num_lanes], places[:, num_lanes:]
    _fill(lanes.row, lanes.end, seated)
    _fill(lanes.queue.row, lanes.queue.end, waiting)
    lanes.queue.size.fill_(waiting.shape[1])
    lanes.queue.cursor.zero_()
    lanes.count.zero_()
    for values, start in zip(lanes.state, lanes.head.start, strict=True):
        values.copy_(start)


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
    status = lanes.log[:, LOG_STEPS]
    status[0].copy_(lanes.row < lanes.end)
    status[1].copy_(lanes.queue.size - lanes.queue.cursor)
    status[2].copy_(lanes.num_steps)
    log = lanes.log.cpu().numpy()
    busy, waiting, num_steps, _ = log[:, LOG_STEPS]
    entries = log[:, : int(num_steps[0])].reshape(4, -1)
    return entries[:, entries[0] >= 0], bool(busy.any() or waiting[0] > 0)


# The driver of the CPU


def eager(lanes: Lanes) -> None:
    """Repeat the step where a look at a value is free: idle lanes and still predictors cost nothing."""
    active = lanes
    for _ in range(LOG_STEPS):
        active = _without_idle(active)
        if not len(active.row):
            return
        found = look(active)
        advance(active, found)
        _predict_emitted(active, found)


def _without_idle(lanes: Lanes) -> Lanes:
    """Refill idle lanes; where nothing waits, move the busy ones to the front and keep only those."""
    busy = lanes.row < lanes.end
    if bool(busy.all()):
        return lanes
    if len(lanes.queue.row) and bool(lanes.queue.cursor < lanes.queue.size):
        refill(lanes)
        return _without_idle(lanes)
    kept = busy.nonzero().squeeze(1)
    for values in (lanes.row, lanes.end, lanes.count, *lanes.state):
        values[: len(kept)] = values.index_select(0, kept)
    lanes.row[len(kept) :] = lanes.end[len(kept) :]
    return lanes.narrow(len(kept))


def _predict_emitted(lanes: Lanes, found: Found) -> None:
    """Move the predictors of the lanes that emitted, and compute no others."""
    emitted = found.emitted.nonzero().squeeze(1)
    if not len(emitted):
        return
    state = tuple(values.index_select(0, emitted) for values in lanes.state)
    new = lanes.head.predict(found.label.index_select(0, emitted), state)
    for values, rows in zip(lanes.state, new, strict=True):
        values.index_copy_(0, emitted, rows)
