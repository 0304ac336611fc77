"""One step of the lanes: their tensors, and the rule of greedy decoding written on them.

In: `Lanes`, changed in place. A step never looks at a value from the host and has no shape that depends
on data, so that a CUDA graph can hold it. It knows neither what repeats it nor where frames come from.
The rule is `greedy.transducer`'s, for windows of frames: docs/decoding.md draws it.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from transduce.types import HeadSpec

__all__ = [
    "LOG_STEPS",
    "Found",
    "Head",
    "Lanes",
    "Queue",
    "State",
    "advance",
    "look",
    "refill",
    "step",
    "unfinished",
]

State = tuple[Tensor, ...]
"""Tensors with one row a lane: what the predictor gives the joint, then what it remembers."""

LOG_STEPS = 512
"""Steps between two copies to the host: bounds the memory, not the length of an utterance."""


class Head(Protocol):
    """What a step needs of a model; `transducer.TransducerHead` is the one that ships."""

    @property
    def spec(self) -> HeadSpec: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def joint_size(self) -> int: ...

    @property
    def start(self) -> State:
        """The state before any label, one row."""
        ...

    def project(self, encoded: Tensor, out: Tensor) -> None:
        """Write what the joint needs of encoder frames `[N, D]` to `out` `[N, J]`."""
        ...

    def joint(self, windows: Tensor, predicted: Tensor) -> Tensor:
        """Token logits, then duration logits, `[N * W, C]`, of windows `[N, W, J]` (may be changed)."""
        ...

    def predict(self, labels: Tensor, state: State) -> State:
        """The state after one more label `[N]` each."""
        ...


# Data


@dataclass(frozen=True, eq=False)
class Queue:
    """Utterances that wait for a lane, as rows of the frames; the cursor moves on the device."""

    row: Tensor  # int64 [Q], first row
    end: Tensor  # int64 [Q], row past the last
    size: Tensor  # int64 [1], how many of the Q places are taken
    cursor: Tensor  # int64 [1], the next one


@dataclass(frozen=True, eq=False)
class Lanes:
    """All tensors that a step reads and changes, allocated once: N lanes, windows of W frames.

    Time is counted in rows of `frames`: a lane decodes the frame at its `row`.
    """

    head: Head
    window: int
    frames: Tensor  # [R, J], projected frames of all utterances, one after another
    windows: Tensor  # [R - W + 1, W, J], overlapping view of `frames`: W frames from every row on
    queue: Queue
    row: Tensor  # int64 [N]; at or past `end`: nothing to do
    end: Tensor  # int64 [N], row past the utterance
    count: Tensor  # int64 [N], labels since time last moved
    seat: Tensor  # int64 [N], 0 .. N - 1: which lane this was before drivers moved lanes about
    state: State  # [N, ...] each
    log: Tensor  # float64 [4, LOG_STEPS + 1, N]: label, row, duration, log-probability of every step
    num_steps: Tensor  # int64 [1], rows of the log that are written
    place: Tensor  # int64 [W]: 0, 1, 2, .., the frames of a window
    landing: Tensor  # int64 [N, W + reach]: 0, 1, 2, ..; its first W columns are rewritten in a step
    first: Tensor  # int64 [N], n * W: where the logits of lane n begin
    jumps: Tensor  # int64 [num_durations]

    @classmethod
    def allocate(cls, head: Head, num_lanes: int, window: int, num_rows: int, num_queued: int) -> "Lanes":
        """Idle lanes with room for `num_rows` frames of up to `num_queued` utterances."""
        device, size = head.device, head.joint_size
        reach = max(1, *head.spec.durations)
        num_rows += window + reach  # a window or a jump may end past the last frame

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        frames = zeros(num_rows, size, dtype=head.dtype)
        return cls(
            head=head,
            window=window,
            frames=frames,
            windows=frames.as_strided((num_rows - window + 1, window, size), (size, size, 1)),
            queue=Queue(zeros(num_queued), zeros(num_queued), zeros(1), zeros(1)),
            row=zeros(num_lanes),
            end=zeros(num_lanes),
            count=zeros(num_lanes),
            seat=torch.arange(num_lanes, device=device),
            state=tuple(start.repeat_interleave(num_lanes, dim=0) for start in head.start),
            log=zeros(4, LOG_STEPS + 1, num_lanes, dtype=torch.float64),
            num_steps=zeros(1),
            place=torch.arange(window, device=device),
            landing=torch.arange(window + reach, device=device).repeat(num_lanes, 1),
            first=torch.arange(num_lanes, device=device) * window,
            jumps=torch.tensor(head.spec.durations, device=device),
        )

    @property
    def log_steps(self) -> int:
        """How many steps the log holds; its last row is the status that goes to the host with it."""
        return self.log.shape[1] - 1

    @property
    def per_lane(self) -> tuple[Tensor, ...]:
        """What belongs to a lane and moves with it."""
        return (self.row, self.end, self.count, self.seat, *self.state)

    def narrow(self, num_lanes: int) -> "Lanes":
        """The first lanes alone, as views."""
        n = num_lanes
        return replace(
            self,
            row=self.row[:n],
            end=self.end[:n],
            count=self.count[:n],
            seat=self.seat[:n],
            state=tuple(values[:n] for values in self.state),
            log=self.log[:, :, :n],
            landing=self.landing[:n],
            first=self.first[:n],
        )


@dataclass(frozen=True, eq=False)
class Found:
    """What the windows of all lanes hold; all tensors `[N]`."""

    landing: Tensor  # frames from the lane's row to its first label, or past the window
    emitted: Tensor  # bool: a label is there
    label: Tensor  # anything where nothing is emitted, as the next two
    duration: Tensor
    log_prob: Tensor


# One step


def step(lanes: Lanes) -> None:
    """Move every lane past its first label, or past its window; idle lanes take from the queue."""
    found = look(lanes)
    advance(lanes, found)
    state = lanes.head.predict(found.label, lanes.state)
    for values, new in zip(lanes.state, state, strict=True):
        _assign(values, found.emitted, new)
    if len(lanes.queue.row):
        refill(lanes)


def look(lanes: Lanes) -> Found:
    """Score the next W frames of every lane and follow its blanks to the first label."""
    head, spec, window = lanes.head, lanes.head.spec, lanes.window
    logits = head.joint(lanes.windows.index_select(0, lanes.row), lanes.state[0])  # [N * W, C]
    tokens = logits[:, : spec.num_classes]
    durations = _durations(lanes, logits[:, spec.num_classes :])  # [N * W]
    jumps = durations.clamp(min=1) * _is_blank(tokens, spec.blank)
    left = lanes.end - lanes.row
    landing = _land(lanes, jumps, left)
    chosen = lanes.first + landing.clamp(max=window - 1)
    scores = tokens.index_select(0, chosen)  # [N, num_classes]
    label = scores.argmax(1)
    return Found(
        landing=landing,
        emitted=landing < left.clamp(max=window),
        label=label,
        duration=durations.index_select(0, chosen),
        log_prob=scores.log_softmax(1).gather(1, label.unsqueeze(1)).squeeze(1),
    )


def _durations(lanes: Lanes, logits: Tensor) -> Tensor:
    """The duration `[M]` that wins among duration logits `[M, num_durations]`; RNN-T has none."""
    if len(lanes.jumps) == 1:
        return lanes.jumps.expand(len(logits))
    return lanes.jumps.index_select(0, logits.argmax(1))


def _is_blank(tokens: Tensor, blank: int) -> Tensor:
    """Whether blank is the argmax `[M]` of token logits `[M, num_classes]`; the first of equal ones wins.

    An argmax over the classes would say the same at several times the cost: only maxima vectorise.
    """
    score, before, after = tokens[:, blank], tokens[:, :blank], tokens[:, blank + 1 :]
    if not after.shape[1]:
        return score > before.amax(1)
    if not before.shape[1]:
        return score >= after.amax(1)
    return (score > before.amax(1)) & (score >= after.amax(1))


def _land(lanes: Lanes, jumps: Tensor, left: Tensor) -> Tensor:
    """How far each lane gets `[N]` by the jumps `[N * W]` of its blanks; a 0 holds it.

    Past the window or the utterance every place holds. A table of where each place leads is composed
    with itself until it reaches W jumps: a handful of gathers instead of W dependent ones.
    """
    window = lanes.window
    inside = lanes.place < left.unsqueeze(1)
    torch.add(lanes.place, jumps.view(-1, window) * inside, out=lanes.landing[:, :window])
    landing = lanes.landing
    for _ in range(1, window.bit_length() if window & (window - 1) else window.bit_length() - 1):
        landing = landing.gather(1, landing)
    return landing.gather(1, landing[:, :1]).squeeze(1)


def advance(lanes: Lanes, found: Found) -> None:
    """Write the labels to the log and move time and counts: all of the rule but the predictor.

    A count belongs to one frame: it ends when blanks moved the lane there, when the label has a
    duration, and when `max_symbols` labels without one force a frame of advance.
    """
    lanes.row.add_(found.landing)
    lanes.count.mul_(found.landing == 0).add_(found.emitted)
    label = torch.where(found.emitted, found.label, -1)
    entry = [values.double() for values in (label, lanes.row, found.duration, found.log_prob)]
    lanes.log.index_copy_(1, lanes.num_steps, torch.stack(entry).unsqueeze(1))
    lanes.num_steps.add_(1)
    move = found.duration.maximum(lanes.count >= lanes.head.spec.max_symbols) * found.emitted
    lanes.row.add_(move)
    lanes.count.mul_(move == 0)


def refill(lanes: Lanes) -> None:
    """Give every idle lane the next utterance of the queue, in order, while there are any."""
    queue = lanes.queue
    idle = lanes.row >= lanes.end
    turn = queue.cursor - 1 + idle.cumsum(0)
    taken = idle & (turn < queue.size)
    turn = turn.clamp(0, len(queue.row) - 1)
    _assign(lanes.row, taken, queue.row.index_select(0, turn))
    _assign(lanes.end, taken, queue.end.index_select(0, turn))
    for values, start in zip(lanes.state, lanes.head.start, strict=True):
        _assign(values, taken, start)
    queue.cursor.add_(taken.sum())


def unfinished(lanes: Lanes, spare_steps: int = 1) -> Tensor:
    """Whether a lane is busy, and the log has room for `spare_steps` more: a bool `[]`.

    After a step no lane is idle while others wait, so the queue need not be asked.
    """
    return (lanes.row < lanes.end).any() & (lanes.num_steps <= lanes.log_steps - spare_steps).all()


def _assign(values: Tensor, where: Tensor, new: Tensor) -> None:
    """Set the rows of `values` `[N, ...]` that `where` `[N]` marks; `new` broadcasts."""
    torch.where(where.view(-1, *(1,) * (values.dim() - 1)), new, values, out=values)
