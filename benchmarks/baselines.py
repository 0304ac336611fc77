"""How transducers are decoded elsewhere, in plain torch: what our times are compared with.

In: encoder frames `[B, T, D]` and lengths on any device. Out: the labels of every utterance.

- PlainLoop: one frame a step for every utterance, with embedding, whole LSTM and both projections each
  time: how decoders are first written;
- LabelLooping: NeMo's schedule (facts: gpu-decoding 1.2 and 1.3): all frames projected at once, for every
  label an inner loop over blanks that waits for the slowest utterance, then one predictor step. NeMo also
  captures it in CUDA graphs; this is its plain form.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from transduce.types import FloatArray, HeadSpec, TransducerWeights

__all__ = ["LabelLooping", "PlainLoop"]


class Modules:
    """A head as torch's own modules."""

    def __init__(self, weights: TransducerWeights, spec: HeadSpec, device: torch.device) -> None:
        def tensor(array: FloatArray) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.spec, self.device = spec, device
        self.relu = weights.activation == "relu"
        self.lstm = torch.nn.LSTM(weights.embedding.shape[1], weights.pred_weight.shape[1], len(weights.lstm))
        for number, layer in enumerate(weights.lstm):
            values = (layer.weight_ih, layer.weight_hh, layer.bias, np.zeros_like(layer.bias))
            for name, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), values, strict=True):
                getattr(self.lstm, f"{name}_l{number}").data = torch.from_numpy(value)
        self.lstm.to(device)
        self.embed = tensor(weights.embedding)
        self.enc = (tensor(weights.enc_weight), tensor(weights.enc_bias))
        self.pred = (tensor(weights.pred_weight), tensor(weights.pred_bias))
        self.out = (tensor(weights.out_weight), tensor(weights.out_bias))
        self.durations = torch.tensor(spec.durations, device=device)

    def start(self, num: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The label that stands for none `[B]`, and the state before it."""
        shape = (self.lstm.num_layers, num, self.lstm.hidden_size)
        states = tuple(torch.zeros(shape, device=self.device) for _ in "hc")
        return torch.full((num,), self.spec.blank, device=self.device), states

    def predict(self, labels: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The joint's share of the predictor `[B, J]`, and the new state."""
        output, new = self.lstm(self.embed[labels].unsqueeze(0), states)
        return linear(output[0], *self.pred), new

    def best(self, projected: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """Label and duration `[B]` of projected frames `[B, J]`."""
        hidden = projected + predicted
        logits = linear(torch.relu(hidden) if self.relu else torch.tanh(hidden), *self.out)
        tokens, jumps = logits[:, : self.spec.num_classes], logits[:, self.spec.num_classes :]
        index = jumps.argmax(1) if jumps.shape[1] else tokens.new_zeros(len(tokens), dtype=torch.int64)
        return tokens.argmax(1), self.durations[index]


def keep(mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """New states where `mask` `[B]` holds, old ones elsewhere."""
    return tuple(torch.where(mask.view(1, -1, 1), *pair) for pair in zip(new, old, strict=True))


class PlainLoop(Modules):
    @torch.inference_mode()
    def __call__(self, encoded: Tensor, lengths: Tensor) -> list[list[int]]:
        num, spec = len(encoded), self.spec
        rows = torch.arange(num, device=self.device)
        frame, count = torch.zeros_like(lengths), torch.zeros_like(lengths)
        last, states = self.start(num)
        labels: list[list[int]] = [[] for _ in range(num)]
        while bool((live := frame < lengths).any()):
            predicted, new_states = self.predict(last, states)
            here = encoded[rows, frame.clamp(max=encoded.shape[1] - 1)].float()
            label, duration = self.best(linear(here, *self.enc), predicted)
            emitted = live & (label != spec.blank)
            count += emitted
            forced = (duration == 0) & (count >= spec.max_symbols)
            move = torch.where(emitted, duration + forced, duration.clamp(min=1)) * live
            frame += move
            count *= move == 0
            for row, value in zip(*where(emitted, label), strict=True):
                labels[row].append(value)
            last, states = torch.where(emitted, label, last), keep(emitted, new_states, states)
        return labels


class LabelLooping(Modules):
    @torch.inference_mode()
    def __call__(self, encoded: Tensor, lengths: Tensor) -> list[list[int]]:
        num, spec = len(encoded), self.spec
        projected = linear(encoded.float(), *self.enc)
        rows, last_frame = torch.arange(num, device=self.device), (lengths - 1).clamp(min=0)
        frame, count = torch.zeros_like(lengths), torch.zeros_like(lengths)
        counted = torch.full_like(lengths, -1)
        last, states = self.start(num)
        predicted, states = self.predict(last, states)
        labels: list[list[int]] = [[] for _ in range(num)]
        while bool((active := frame < lengths).any()):
            label = torch.full_like(last, spec.blank)
            at = frame.clone()
            search = active
            while bool(search.any()):
                new_label, duration = self.best(projected[rows, torch.minimum(frame, last_frame)], predicted)
                is_blank = new_label == spec.blank
                at = torch.where(search, frame, at)
                label = torch.where(search, new_label, label)
                frame = frame + torch.where(is_blank, duration.clamp(min=1), duration) * search
                search = search & is_blank & (frame < lengths)
            found = active & (label != spec.blank)
            for row, value in zip(*where(found, label), strict=True):
                labels[row].append(value)
            count = torch.where(counted == at, count + 1, 1)
            counted = torch.where(found, at, counted)
            new_predicted, new_states = self.predict(label, states)
            predicted = torch.where(found.unsqueeze(1), new_predicted, predicted)
            states = keep(found, new_states, states)
            frame = frame + (found & (frame == at) & (count >= spec.max_symbols))
        return labels


def where(mask: Tensor, labels: Tensor) -> tuple[list[int], list[int]]:
    """Rows of the mask, and their labels."""
    rows = mask.nonzero().flatten()
    return rows.tolist(), labels[rows].tolist()
