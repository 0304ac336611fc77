"""One step of the lanes: their tensors, and the rule of greedy decoding written on them.

In: `Lanes`, changed in place. A step never looks at a value from the host and has no shape that depends
on data, so that a CUDA graph can hold it. It knows neither what repeats it nor where frames come from.
The rule is `greedy.transducer`'s, for windows of frames: docs/decoding.md draws it.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

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
    entry: Tensor  # float64 [4, 1, N], what the step at hand will write
    entry_rows: State  # [N] each, the four rows of `entry`
    num_steps: Tensor  # int64 [1], rows of the log that are written
    place: Tensor  # int64 [W]: 0, 1, 2, .., the frames of a window
    landing: Tensor  # int64 [N, W + reach]: where each place leads; past the window, to itself
    landing_inside: Tensor  # int64 [N, W], view of its first columns, which every step rewrites
    first: Tensor  # int64 [N], n * W: where the logits of lane n begin
    last: Tensor  # int64 [N], where they end, inclusive
    nothing: Tensor  # int64 [1]: -1, the label of a step that found none
    durations: Tensor  # int64 [num_durations], of the spec: how far a label moves time
    blank_moves: Tensor  # int64 [num_durations], likewise a blank: at least 1

    @classmethod
    def allocate(cls, head: Head, num_lanes: int, window: int, num_rows: int, num_queued: int) -> "Lanes":
        """Idle lanes with room for `num_rows` frames of up to `num_queued` utterances."""
        device, size = head.device, head.joint_size
        reach = max(1, *head.spec.durations)
        num_rows += window + reach  # a window or a jump may end past the last frame

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        frames = zeros(num_rows, size, dtype=head.dtype)
        durations = torch.tensor(head.spec.durations, device=device)
        entry = zeros(4, 1, num_lanes, dtype=torch.float64)
        landing = torch.arange(window + reach, device=device).repeat(num_lanes, 1)
        first = torch.arange(num_lanes, device=device) * window
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
            entry=entry,
            entry_rows=entry[:, 0].unbind(),
            num_steps=zeros(1),
            place=torch.arange(window, device=device),
            landing=landing,
            landing_inside=landing[:, :window],
            first=first,
            last=first + window - 1,
            nothing=torch.full((1,), -1, device=device),
            durations=durations,
            blank_moves=durations.clamp(min=1),
        )

    @property
    def num_lanes(self) -> int:
        return self.row.shape[0]

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
            entry=self.entry[:, :, :n],
            entry_rows=tuple(row[:n] for row in self.entry_rows),
            landing=self.landing[:n],
            landing_inside=self.landing_inside[:n],
            first=self.first[:n],
            last=self.last[:n],
        )


class Found(NamedTuple):
    """What the windows of all lanes hold; all tensors `[N]`."""

    landing: Tensor  # frames from the lane's row to its first label, or past the window
    emitted: Tensor  # bool: a label is there
    label: Tensor  # anything where nothing is emitted, as the next two
    duration: Tensor  # or [1], where there is but one
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
    head, spec = lanes.head, lanes.head.spec
    logits = head.joint(lanes.windows.index_select(0, lanes.row), lanes.state[0])  # [N * W, C]
    tokens = logits[:, : spec.num_classes]
    durations, blank_moves = _durations(lanes, logits)
    limit = (lanes.end - lanes.row).clamp_(max=lanes.window)
    landing = _land(lanes, _is_blank(tokens, spec.blank), blank_moves, limit)
    chosen = (lanes.first + landing).minimum(lanes.last)
    scores = tokens.index_select(0, chosen)  # [N, num_classes]
    label = scores.argmax(1, keepdim=True)
    return Found(
        landing=landing,
        emitted=landing < limit,
        label=label.squeeze(1),
        duration=durations.index_select(0, chosen) if len(spec.durations) > 1 else durations,
        log_prob=scores.log_softmax(1).gather(1, label).squeeze(1),
    )


def _durations(lanes: Lanes, logits: Tensor) -> tuple[Tensor, Tensor]:
    """By the duration logits, how far labels `[N * W]` and blanks `[N, W]` move; `[1]` if there are none."""
    spec = lanes.head.spec
    if len(spec.durations) == 1:
        return lanes.durations, lanes.blank_moves
    best = logits[:, spec.num_classes :].argmax(1)
    moves = lanes.blank_moves.index_select(0, best).view(-1, lanes.window)
    return lanes.durations.index_select(0, best), moves


def _is_blank(tokens: Tensor, blank: int) -> Tensor:
    """Whether blank is the argmax `[M]` of token logits `[M, num_classes]`; the first of equal ones wins.

    An argmax over the classes would say the same at several times the cost: only maxima vectorise.
    """
    score = tokens[:, blank]
    if blank == tokens.shape[1] - 1:
        return score > tokens[:, :blank].amax(1)
    beats_later = score >= tokens[:, blank + 1 :].amax(1)
    return beats_later if blank == 0 else beats_later & (score > tokens[:, :blank].amax(1))


def _land(lanes: Lanes, is_blank: Tensor, blank_moves: Tensor, limit: Tensor) -> Tensor:
    """How far each lane gets `[N]` along the blanks `[N * W]` of its window; a label holds it.

    So does every place from `limit` `[N]` on, the end of window or utterance. Blanks that move by one
    frame are counted up to the first label. Where they jump, the table of where each place leads is
    composed with itself until it covers W moves: a handful of gathers instead of W that wait for each
    other.
    """
    is_blank = is_blank.view(-1, lanes.window)
    if lanes.head.spec.durations == (0,):
        return is_blank.cumprod(1).sum(1).minimum(limit)
    leads_on = is_blank.logical_and_(lanes.place < limit.unsqueeze(1))
    torch.add(lanes.place, leads_on * blank_moves, out=lanes.landing_inside)
    landing = lanes.landing
    for _ in range((lanes.window - 1).bit_length() - 1):
        landing = landing.gather(1, landing)
    return landing.gather(1, landing[:, :1]).squeeze(1)


def advance(lanes: Lanes, found: Found) -> None:
    """Write the labels to the log and move time and counts: all of the rule but the predictor.

    A count belongs to one frame: it ends when blanks moved the lane there, when the label has a
    duration, and when `max_symbols` labels without one force a frame of advance.
    """
    lanes.row.add_(found.landing)
    lanes.count.masked_fill_(found.landing > 0, 0).add_(found.emitted)
    _write(lanes, found)
    move = found.duration.maximum(lanes.count >= lanes.head.spec.max_symbols).mul(found.emitted)
    lanes.row.add_(move)
    lanes.count.masked_fill_(move > 0, 0)


def _write(lanes: Lanes, found: Found) -> None:
    """Log what every lane found at its row; label -1: nothing."""
    label, row, duration, log_prob = lanes.entry_rows
    label.copy_(torch.where(found.emitted, found.label, lanes.nothing))
    row.copy_(lanes.row)
    duration.copy_(found.duration)
    log_prob.copy_(found.log_prob)
    lanes.log.index_copy_(1, lanes.num_steps, lanes.entry)
    lanes.num_steps.add_(1)


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
