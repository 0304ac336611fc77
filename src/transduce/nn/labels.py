"""Label entries of a batch, as decoders write them, to one Hypothesis an utterance; CTC besides.

In: entries `[4, U]` (label, row, duration, log-probability; float64 holds all four exactly), where
utterance b has the rows from b * T on. Out: hypotheses that own their memory.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transduce.types import Hypothesis, IntArray

__all__ = ["Entries", "checked", "ctc_decode", "split"]

Entries = npt.NDArray[np.float64]
"""`[4, U]`: label, row, duration and log-probability of every label, those of an utterance in order."""


def split(entries: Entries, num: int, num_frames: int, origin: IntArray | int = 0) -> list[Hypothesis]:
    """One Hypothesis for each of `num` utterances whose frames lie `num_frames` rows apart.

    Frames count from the utterance's row plus its `origin`. The arrays own their memory.
    """
    utterance, frame = np.divmod(entries[1].astype(np.int64), max(num_frames, 1))
    order = np.argsort(utterance, kind="stable")
    starts = np.searchsorted(utterance[order], np.arange(num + 1))
    origins = np.broadcast_to(origin, num)
    label, _, duration, log_prob = entries
    parts = [order[start:end] for start, end in pairwise(starts)]
    return [
        Hypothesis(
            ids=label[part].astype(np.int64),
            frames=frame[part] + offset,
            durations=duration[part].astype(np.int64),
            log_probs=log_prob[part].astype(np.float32),
        )
        for part, offset in zip(parts, origins, strict=True)
    ]


@torch.inference_mode()
def ctc_decode(logits: Tensor, lengths: Tensor, blank: int) -> list[Hypothesis]:
    """Collapse the best paths of CTC logits `[B, T, C]`; a label's duration is its run of frames."""
    ends = checked(logits, lengths)
    num, num_frames = logits.shape[:2]
    best, labels = logits.float().max(dim=2)
    log_probs = best - logits.float().logsumexp(dim=2)
    paths, scores = torch.stack((labels.double(), log_probs.double())).cpu().numpy()
    paths[np.arange(num_frames) >= ends[:, None]] = blank
    changes = np.diff(paths, axis=1, prepend=-1) != 0  # every utterance begins with a change
    row = np.flatnonzero(changes)
    label, duration = paths.ravel()[row], np.diff(row, append=paths.size)
    entries = np.stack((label, row, duration, scores.ravel()[row]))
    return split(entries[:, label != blank], num, num_frames)


def checked(encoded: Tensor, lengths: Tensor) -> npt.NDArray[np.int64]:
    """The lengths of sound arguments, on the host."""
    if encoded.dim() != 3 or not encoded.is_floating_point():
        raise ValueError(f"encoded must be floats [B, T, D], not {encoded.dtype} {tuple(encoded.shape)}")
    if lengths.shape != encoded.shape[:1]:
        raise ValueError(f"lengths must be [{len(encoded)}], not {tuple(lengths.shape)}")
    ends = lengths.cpu().numpy().astype(np.int64)
    if len(ends) and not 0 <= ends.min() <= ends.max() <= encoded.shape[1]:
        raise ValueError(f"lengths must be within 0 and {encoded.shape[1]} frames, not {ends.tolist()}")
    return ends
