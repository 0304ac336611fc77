"""How often does a trained transducer emit a label on speech, and how often blank?

    python benchmarks/emission.py ../shared/models/nemo/tdt.nemo --audio ../shared/audio/long_5min.flac
        [--save benchmarks/talk.json]

The scalar rule of `transduce.greedy` on a checkpoint's own frames; recordings are cut into pieces of 20 s.
Out: labels a frame and a second, evaluations of the joint that gave blank for each label; saved, every
evaluation as [frame, duration], which `heads.py` plays back without trained weights.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transduce import audio, greedy
from transduce.nn.backend import TorchBackend
from transduce.transcriber import read_checkpoint
from transduce.types import FloatArray, HeadSpec, TransducerWeights

Array = npt.NDArray[Any]

PIECE_SECONDS = 20


class WatchedHead:
    """A head of `greedy` that notes what every evaluation of its joint chose: whether blank, and how far."""

    def __init__(self, weights: TransducerWeights, spec: HeadSpec) -> None:
        self.head = greedy.LstmHead(weights, spec)
        self.blank, self.num_classes, self.spec = spec.blank, spec.num_classes, spec
        self.start, self.predict = self.head.start, self.head.predict
        self.chosen: list[tuple[bool, int]] = []

    def joint(self, frame: Array, predicted: Array) -> Array:
        logits = self.head.joint(frame, predicted)
        tokens, jumps = logits[: self.num_classes], logits[self.num_classes :]
        duration = self.spec.durations[int(jumps.argmax())] if len(jumps) else 0
        self.chosen.append((bool(tokens.argmax() == self.blank), duration))
        return logits

    def places(self, first: int) -> Iterator[tuple[bool, int, int]]:
        """Whether blank, the frame and the duration of each, counted from `first`; and forgets them."""
        frame = first
        for is_blank, duration in self.chosen:
            yield is_blank, frame, duration
            frame += max(duration, 1) if is_blank else duration
        self.chosen.clear()


def pieces(paths: Sequence[Path], rate: int) -> Iterator[FloatArray]:
    """Recordings in pieces of at most 20 s."""
    for path in paths:
        samples = audio.load(path, rate=rate).samples
        yield from np.split(samples, range(PIECE_SECONDS * rate, len(samples), PIECE_SECONDS * rate))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a checkpoint with an RNN-T or TDT head")
    parser.add_argument("--audio", type=Path, nargs="+", required=True)
    parser.add_argument("--save", type=Path, help="where to write the evaluations")
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = read_checkpoint(options.model)
    spec = checkpoint.spec
    backend = TorchBackend(spec, checkpoint.weights, device="cpu")
    head = WatchedHead(TransducerWeights.of(checkpoint.weights, spec.head), spec.head)
    num_frames, seconds = 0, 0.0
    found: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for samples in pieces(options.audio, spec.features.sample_rate):
        encoded, (length, *_) = backend.encode(samples[None], [len(samples)])
        frames = encoded[0, : int(length)].numpy()
        said = greedy.transducer(frames, head, spec.head.durations, spec.head.max_symbols)
        for is_blank, frame, duration in head.places(num_frames):
            found[is_blank].append((frame, duration))
        if [frame for frame, _ in found[False][-len(said.ids) :]] != (said.frames + num_frames).tolist():
            raise SystemExit("a frame was forced to advance: what was noted does not tell where")
        num_frames += int(length)
        seconds += len(samples) / spec.features.sample_rate
    blanks, labels = found[True], found[False]
    print(f"{len(labels) / seconds:.2f} labels a second, {len(labels) / num_frames:.2f} a frame")
    print(f"{len(blanks) / len(labels):.2f} blanks a label")
    if options.save:
        content = {"model": Path(options.model).name, "audio": [path.name for path in options.audio]}
        content |= {"num_frames": num_frames, "labels": labels, "blanks": blanks}
        options.save.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
