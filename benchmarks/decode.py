"""What does decoding alone cost on a CPU, and how far from the floor is it?

    OMP_NUM_THREADS=1 python benchmarks/decode.py [--heads NAME ...] [--batches 1 8 32] [--windows 1 2 4 8]

Heads of real sizes that speak on cue, about one label in three frames (heads.py). For each head and
batch size, in microseconds a frame of one utterance:

- lanes: `lanes.decode`, from encoder frames to hypotheses, for several windows; * marks the default;
- loop: a plain loop, one frame a step, with embedding, whole LSTM and both projections in every step;
- floor: the matrix products that any exact decoder needs and nothing else: all frames projected at once,
  then for every label one predictor step, and `frames + labels` joint evaluations in even portions;
- NeMo: its label looping as measured for issue 4 on the development machine; another machine's figures.

Time is CPU time of this process on one thread, the best of several alternating rounds, so that other work
on the machine does not count. Gate: every decoder must give the labels of the scalar rule. The last line
is JSON.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from baselines import PlainLoop
from heads import SIZES, speaking_frames, speaking_head
from torch import Tensor

from transduce.nn.lanes import decode, default_window
from transduce.nn.reference import audit
from transduce.nn.transducer import TransducerHead


@dataclass(frozen=True)
class Result:
    """Microseconds a frame of one utterance."""

    head: str
    batch: int
    labels_per_frame: float
    lanes: dict[int, float]
    default_window: int
    loop: float
    floor: float
    nemo: float | None


class Floor:
    """The matrix products of a decode, and no other work."""

    def __init__(self, head: TransducerHead, encoded: Tensor, labels: int) -> None:
        num, num_frames, _ = encoded.shape
        self.head, self.encoded = head, encoded.reshape(num * num_frames, -1)
        self.num_rounds = max(1, round(labels / num))  # labels one after another in each utterance
        num_evaluations = num * num_frames + labels
        self.hidden = torch.zeros(num, head.pred.num_inputs)
        self.joint = torch.zeros(max(1, round(num_evaluations / self.num_rounds)), head.joint_size)

    @torch.inference_mode()
    def __call__(self) -> None:
        head, hidden = self.head, self.hidden
        head.enc.addmm(head.enc_bias, self.encoded)
        for _ in range(self.num_rounds):
            for cell in head.cells:
                if cell.inputs is not None:
                    cell.inputs.addmm(cell.bias, hidden)
                cell.hidden.addmm(cell.bias, hidden)
            head.pred.addmm(head.pred_bias, hidden)
            head.out.addmm(head.out_bias, self.joint)


# Measuring


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def best_of(rounds: int, works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least CPU seconds of each work, taken in turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            best[name] = min(best[name], cpu_seconds(work))
    return best


def measure(name: str, batch: int, num_frames: int, windows: list[int], rounds: int) -> Result:
    size = SIZES[name]
    weights = speaking_head(size)
    head = TransducerHead.from_weights(weights, size.spec)
    frames, num_labels = speaking_frames(size, batch, num_frames)
    encoded, lengths = torch.from_numpy(frames), torch.full((batch,), num_frames)
    loop, floor = PlainLoop(weights, head.spec, head.device), Floor(head, encoded, num_labels)
    check(head, loop, encoded, num_labels, windows)
    works: dict[str, Callable[[], object]] = {
        f"lanes {window}": lambda window=window: decode(encoded, lengths, head, window=window)  # type: ignore[misc]
        for window in windows
    }
    seconds = best_of(rounds, {**works, "floor": floor})
    seconds |= best_of(1 + rounds // 4, {"loop": lambda: loop(encoded, lengths)})
    per_frame = {key: value / (batch * num_frames) * 1e6 for key, value in seconds.items()}
    published = dict(zip((1, 8, 32), size.nemo, strict=False))
    return Result(
        head=name,
        batch=batch,
        labels_per_frame=num_labels / (batch * num_frames),
        lanes={window: per_frame[f"lanes {window}"] for window in windows},
        default_window=default_window(head),
        loop=per_frame["loop"],
        floor=per_frame["floor"],
        nemo=published.get(batch),
    )


def check(
    head: TransducerHead, loop: PlainLoop, encoded: Tensor, num_labels: int, windows: list[int]
) -> None:
    """All decoders agree; the scalar rule is asked about one utterance. Raises SystemExit where not.

    The loop multiplies by another library: one label in a hundred may differ there, by near ties.
    """
    lengths = torch.full((len(encoded),), encoded.shape[1])
    expected = decode(encoded, lengths, head, window=windows[0])
    by_window = [decode(encoded, lengths, head, window=window) for window in windows]
    report = audit(expected[:1], encoded[:1], lengths[:1], head)
    same = [
        np.array_equal(a.frames, b.frames) for ours in by_window for a, b in zip(ours, expected, strict=True)
    ]
    pairs = list(zip(loop(encoded, lengths), expected, strict=True))
    same += [len(by_loop) == len(ours) for by_loop, ours in pairs]
    num_equal = sum(int((np.array(by_loop) == ours.ids).sum()) for by_loop, ours in pairs)
    if report.different or not all(same) or not 0.99 * num_labels < num_equal <= num_labels:
        raise SystemExit(f"decoders differ (near ties: {report.near_ties}): the times would mean nothing")


HEADINGS = (
    "head",
    "B",
    "labels",
    "lanes by window",
    "floor",
    "x floor",
    "loop",
    "loop / lanes",
    "NeMo",
    "of NeMo",
)


def row(result: Result) -> str:
    ours = result.lanes.get(result.default_window, min(result.lanes.values()))
    by_window = "  ".join(
        f"{window}{'*' if window == result.default_window else ''}: {value:.1f}"
        for window, value in result.lanes.items()
    )
    nemo = ("-", "-") if result.nemo is None else (f"{result.nemo:.0f}", f"{ours / result.nemo:.2f}")
    cells = (
        result.head, str(result.batch), f"{result.labels_per_frame:.2f}", by_window, f"{result.floor:.1f}",
        f"{ours / result.floor:.2f}", f"{result.loop:.0f}", f"{result.loop / ours:.1f}", *nemo,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding alone, on a CPU.")
    parser.add_argument("--heads", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--windows", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--frames", type=int, default=375, help="of each utterance; 375: 15 s of GigaAM's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    results = []
    for name in options.heads:
        for batch in options.batches:
            results.append(measure(name, batch, options.frames, options.windows, options.rounds))
            print(row(results[-1]), flush=True)
    machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(json.dumps(machine | {"results": [asdict(result) for result in results]}))


if __name__ == "__main__":
    main()
