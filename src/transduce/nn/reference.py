"""The scalar rule on a torch head: `--decoder reference`, and the audit of what fast decoders gave.

In: the same as `lanes.decode`. Out: hypotheses by `greedy.transducer`, one evaluation at a time; for an
audit also the near ties on the way. Slow, and meant to be: nothing of lanes, windows or graphs is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transduce import greedy
from transduce.nn.labels import checked
from transduce.nn.step import Head, State
from transduce.types import Hypothesis

__all__ = ["NEAR_TIE", "Audit", "NearTie", "ScalarHead", "audit", "decode_reference"]

NEAR_TIE = 1e-3
"""Top-2 logit margin under which fp32 rounding may decide: results may differ there, and only there."""

Array = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class NearTie:
    """An evaluation whose best two labels, or durations, were almost equal."""

    utterance: int
    frame: int
    margin: float


@dataclass(frozen=True, slots=True)
class Audit:
    """What following the rule again found. Warnings and reports are made from it."""

    num_evaluations: int
    near_ties: tuple[NearTie, ...]
    different: tuple[int, ...]
    """Utterances whose ids, frames or durations are not the reference's."""

    @property
    def unexplained(self) -> tuple[int, ...]:
        """Different utterances without a near tie: a fault of the decoder, not of rounding."""
        tied = {tie.utterance for tie in self.near_ties}
        return tuple(utterance for utterance in self.different if utterance not in tied)


@dataclass(frozen=True, eq=False)
class ScalarHead:
    """A torch head and the projected frames `[T, J]` of one utterance; a frame is given as its number."""

    head: Head
    frames: Tensor
    margins: list[tuple[int, float]] = field(default_factory=list)
    """Frame and top-2 margin of every evaluation."""

    @property
    def blank(self) -> int:
        return self.head.spec.blank

    @property
    def num_classes(self) -> int:
        return self.head.spec.num_classes

    def start(self) -> tuple[Array, State]:
        return _row(self.head.start[0]), self.head.start

    def predict(self, label: int, state: State) -> tuple[Array, State]:
        new = self.head.predict(torch.tensor([label], device=self.head.device), state)
        return _row(new[0]), new

    def joint(self, frame: Array, predicted: Array) -> Array:
        windows = self.frames[int(frame)].clone().view(1, 1, -1)
        state = torch.from_numpy(predicted).to(self.head.device).unsqueeze(0)
        logits = _row(self.head.joint(windows, state))
        parts = (logits[: self.num_classes], logits[self.num_classes :])
        self.margins.append((int(frame), min(_margin(part) for part in parts)))
        return logits


def _row(values: Tensor) -> Array:
    row: Array = values[0].cpu().numpy()
    return row


def _margin(logits: Array) -> float:
    """Best minus second best; infinite where there is no second."""
    if len(logits) < 2:
        return float("inf")
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)


@torch.inference_mode()
def decode_reference(encoded: Tensor, lengths: Tensor, head: Head) -> list[Hypothesis]:
    """Decode encoder frames `[B, T, D]`, `lengths` `[B]`, by the rule as it is written."""
    return [_decoded(scalar) for scalar in _scalar_heads(encoded, lengths, head)]


@torch.inference_mode()
def audit(hypotheses: Sequence[Hypothesis], encoded: Tensor, lengths: Tensor, head: Head) -> Audit:
    """Decode again by the rule: count near ties, and find utterances that came out differently."""
    scalars = _scalar_heads(encoded, lengths, head)
    pairs = zip(hypotheses, [_decoded(scalar) for scalar in scalars], strict=True)
    return Audit(
        num_evaluations=sum(len(scalar.margins) for scalar in scalars),
        near_ties=tuple(
            NearTie(utterance, frame, margin)
            for utterance, scalar in enumerate(scalars)
            for frame, margin in scalar.margins
            if margin < NEAR_TIE
        ),
        different=tuple(number for number, pair in enumerate(pairs) if not _same(*pair)),
    )


def _decoded(scalar: ScalarHead) -> Hypothesis:
    spec = scalar.head.spec
    frames = np.arange(len(scalar.frames), dtype=np.float64)
    return greedy.transducer(frames, scalar, spec.durations, spec.max_symbols)


def _scalar_heads(encoded: Tensor, lengths: Tensor, head: Head) -> list[ScalarHead]:
    ends = checked(encoded, lengths)
    num, num_frames = encoded.shape[:2]
    rows = torch.empty(num * num_frames, head.joint_size, dtype=head.dtype, device=head.device)
    head.project(encoded.reshape(num * num_frames, -1), out=rows)
    frames = rows.view(num, num_frames, -1)
    return [ScalarHead(head, frames[number, :end]) for number, end in enumerate(ends)]


def _same(one: Hypothesis, other: Hypothesis) -> bool:
    names = ("ids", "frames", "durations")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
