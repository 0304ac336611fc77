"""Greedy decoding of one utterance, in numpy: the reference that every fast decoder must equal.

In: encoder frames `[T, D]` and a head (for CTC: logits `[T, C]`). Out: a Hypothesis. It knows no
batches, devices, text or seconds. The rule is NeMo's label looping (docs/decoding.md):
a blank advances by its duration but at least one frame, a label advances by its duration, and
`max_symbols` labels of duration 0 on one frame force one frame of advance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from transduce.types import HeadSpec, Hypothesis, TransducerWeights

__all__ = ["Head", "LstmHead", "ctc", "hypothesis", "log_softmax", "transducer"]

Array = npt.NDArray[np.floating]
State = TypeVar("State")


class Head(Protocol[State]):
    """A prediction network and a joint. The state may be anything; it is never changed in place."""

    @property
    def blank(self) -> int: ...

    @property
    def num_classes(self) -> int: ...

    def start(self) -> tuple[Array, State]:
        """Predictor output and state before any label: one step on a zero embedding."""
        ...

    def predict(self, label: int, state: State) -> tuple[Array, State]:
        """Predictor output and state after one more label."""
        ...

    def joint(self, frame: Array, predicted: Array) -> Array:
        """Token logits, then duration logits: `[num_classes + num_durations]`."""
        ...


def transducer(
    encoded: Array, head: Head[State], durations: Sequence[int] = (0,), max_symbols: int = 10
) -> Hypothesis:
    """Decode `[T, D]` encoder frames; RNN-T is `durations=(0,)`, which has no duration logits."""
    emitted: list[tuple[int, int, int, float]] = []
    predicted, state = head.start()
    frame = count = 0
    while frame < len(encoded):
        logits = head.joint(encoded[frame], predicted)
        tokens, jumps = logits[: head.num_classes], logits[head.num_classes :]
        label = int(np.argmax(tokens))  # the first of equal ones wins, here and below
        duration = durations[int(np.argmax(jumps))] if len(jumps) else 0
        if label == head.blank:
            frame, count = frame + max(duration, 1), 0
            continue
        emitted.append((label, frame, duration, log_softmax(tokens, label)))
        predicted, state = head.predict(label, state)
        count += 1
        if duration > 0:
            frame, count = frame + duration, 0
        elif count >= max_symbols:
            frame, count = frame + 1, 0
    return hypothesis(emitted)


def ctc(logits: Array, blank: int) -> Hypothesis:
    """Collapse the best path of `[T, C]` logits: a label stands for its whole run of frames."""
    best = np.argmax(logits, axis=1) if len(logits) else np.empty(0, np.int64)
    emitted: list[tuple[int, int, int, float]] = []
    start = 0
    for end in range(1, len(best) + 1):
        if end < len(best) and best[end] == best[start]:
            continue
        if best[start] != blank:
            label = int(best[start])
            emitted.append((label, start, end - start, log_softmax(logits[start], label)))
        start = end
    return hypothesis(emitted)


def log_softmax(logits: Array, index: int) -> float:
    """Log-probability of one class among `[C]` logits, in float64."""
    values = logits.astype(np.float64) - float(np.max(logits))
    return float(values[index] - np.log(np.sum(np.exp(values))))


def hypothesis(emitted: Sequence[tuple[int, int, int, float]]) -> Hypothesis:
    """Pack `(id, frame, duration, log_prob)` tuples into a Hypothesis."""
    ids, frames, durations, log_probs = zip(*emitted, strict=True) if emitted else ((), (), (), ())
    return Hypothesis(
        ids=np.array(ids, np.int64),
        frames=np.array(frames, np.int64),
        durations=np.array(durations, np.int64),
        log_probs=np.array(log_probs, np.float32),
    )


LstmState = tuple[tuple[Array, Array], ...]
"""(h, c), each `[H]`, for every layer."""


@dataclass(frozen=True)
class LstmHead:
    """The head of RNN-T and TDT checkpoints, computed plainly in `dtype`."""

    weights: TransducerWeights
    spec: HeadSpec
    dtype: type[np.floating] = np.float32

    @property
    def blank(self) -> int:
        return self.spec.blank

    @property
    def num_classes(self) -> int:
        return self.spec.num_classes

    def start(self) -> tuple[Array, LstmState]:
        zeros = [np.zeros(layer.weight_hh.shape[1], self.dtype) for layer in self.weights.lstm]
        no_label = np.zeros(self.weights.embedding.shape[1], self.dtype)
        return self._step(no_label, tuple((zero, zero) for zero in zeros))

    def predict(self, label: int, state: LstmState) -> tuple[Array, LstmState]:
        return self._step(self.weights.embedding[label].astype(self.dtype), state)

    def joint(self, frame: Array, predicted: Array) -> Array:
        w = self.weights
        hidden = self._linear(w.enc_weight, frame) + w.enc_bias
        hidden = hidden + (self._linear(w.pred_weight, predicted) + w.pred_bias)
        hidden = np.maximum(hidden, 0) if w.activation == "relu" else np.tanh(hidden)
        logits: Array = self._linear(w.out_weight, hidden) + w.out_bias
        return logits

    def _step(self, values: Array, state: LstmState) -> tuple[Array, LstmState]:
        """One step of every LSTM layer on an input `[D]`; gates in the order i, f, g, o."""
        new_state = []
        for layer, (h, c) in zip(self.weights.lstm, state, strict=True):
            gates = self._linear(layer.weight_ih, values) + self._linear(layer.weight_hh, h) + layer.bias
            i, f, g, o = np.split(gates, 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            values = h = _sigmoid(o) * np.tanh(c)
            new_state.append((h, c))
        return values, tuple(new_state)

    def _linear(self, weight: Array, values: Array) -> Array:
        product: Array = weight.astype(self.dtype, copy=False) @ values.astype(self.dtype, copy=False)
        return product


def _sigmoid(values: Array) -> Array:
    sigmoid: Array = 0.5 * (1 + np.tanh(0.5 * values))  # exp would overflow for large negative values
    return sigmoid
