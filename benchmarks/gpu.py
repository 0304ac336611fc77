"""One prepared run on a GPU machine: are all drivers equal there, and what do they cost?

    PYTHONPATH=src python benchmarks/gpu.py --out gpu.json [--limit-seconds 480]
    PYTHONPATH=src python benchmarks/gpu.py --dry          # on a CPU, small: does the script itself work?

Needs torch (2.11 with CUDA 13 is what it was prepared for) and numpy; cuda-bindings for WHILE nodes.
Sections, in this order; one that would pass the limit is left out and says so:

- choice: which driver is chosen, and why not a better one;
- equality: every driver against the scalar rule, three heads, encoder frames in fp32, fp16 and bf16;
- nodes: microseconds a graph node, and an iteration of a WHILE node with one kernel;
- decode: milliseconds a batch of 15 s utterances, beside NeMo-style label looping and a plain loop;
- end to end: encoder and decoding, RNN-T against CTC on the same encoder, at 0.6B and 1.1B parameters.

Time is wall time between two synchronisations, the median of several rounds after a warm-up. It ends with a
table for people, and JSON for programs in `--out`.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from baselines import LabelLooping, PlainLoop
from heads import SIZES, Size, speaking_frames, speaking_head
from torch import Tensor

from transduce.errors import DeviceError
from transduce.nn import graphs
from transduce.nn.cuda import capturing, load_bindings, side_stream
from transduce.nn.decoder import Decoder
from transduce.nn.encoder import Encoder
from transduce.nn.labels import ctc_decode
from transduce.nn.reference import audit
from transduce.nn.transducer import TransducerHead
from transduce.types import EncoderSpec

SECONDS = 15.0
FRAMES_PER_SECOND = {768: 25.0, 1024: 12.5}
"""By encoder width: GigaAM halves time twice from 10 ms, Parakeet three times."""

ENCODERS = {"0.6B": 24, "1.1B": 42}
"""Parameters of FastConformer encoders, and their number of layers."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is run: everything on a GPU, a little of everything with --dry."""

    device: torch.device
    drivers: tuple[str, ...]
    heads: tuple[str, ...]
    batches: tuple[int, ...]
    seconds: float
    rounds: int
    num_nodes: int
    encoder_layers: dict[str, int]
    encoder_width: int
    deadline: float

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"


def full_plan(limit_seconds: float) -> Plan:
    native = ("native",) if hasattr(torch.cuda.CUDAGraph, "begin_capture_to_while_node") else ()
    return Plan(
        device=torch.device("cuda", 0),
        drivers=("while", "unrolled", *native, "eager"),
        heads=("gigaam-34", "parakeet-rnnt-1025", "parakeet-tdt-8193"),
        batches=(1, 8, 32, 128),
        seconds=SECONDS,
        rounds=5,
        num_nodes=1000,
        encoder_layers=ENCODERS,
        encoder_width=1024,
        deadline=time.monotonic() + limit_seconds,
    )


def dry_plan() -> Plan:
    return Plan(
        device=torch.device("cpu"),
        drivers=("eager",),
        heads=("gigaam-34",),
        batches=(1, 2),
        seconds=1.0,
        rounds=1,
        num_nodes=0,
        encoder_layers={"tiny": 1},
        encoder_width=1024,
        deadline=time.monotonic() + 600,
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """A head and frames on which it speaks."""

    head: TransducerHead
    encoded: Tensor
    lengths: Tensor
    baselines: dict[str, Callable[[Tensor, Tensor], list[list[int]]]] = field(default_factory=dict)


def batch(plan: Plan, name: str, num: int) -> Batch:
    size, weights = SIZES[name], speaking_head(SIZES[name])
    num_frames = round(plan.seconds * FRAMES_PER_SECOND[size.encoder_width])
    frames, _ = speaking_frames(size, num, num_frames)
    return Batch(
        head=TransducerHead.from_weights(weights, size.spec, plan.device),
        encoded=torch.from_numpy(frames).to(plan.device),
        lengths=torch.full((num,), num_frames),
        baselines={
            "label looping": LabelLooping(weights, size.spec, plan.device),
            "plain loop": PlainLoop(weights, size.spec, plan.device),
        },
    )


def milliseconds(plan: Plan, work: Callable[[], object], rounds: int | None = None) -> float:
    """The median of several rounds, after one that does not count."""
    times = []
    for number in range((rounds or plan.rounds) + 1):
        synchronize(plan)
        start = time.perf_counter()
        work()
        synchronize(plan)
        if number:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def synchronize(plan: Plan) -> None:
    if plan.is_cuda:
        torch.cuda.synchronize(plan.device)


# The sections: each yields rows


def choice(plan: Plan) -> Iterator[Row]:
    chosen = graphs.choose(plan.device)
    yield {"driver": chosen.name, "reason": chosen.reason}


def equality(plan: Plan) -> Iterator[Row]:
    """Six utterances in four lanes, so that two wait; the scalar rule runs on the same device's products."""
    for name in plan.heads:
        work = batch(plan, name, 6)
        lengths = work.lengths - torch.arange(6) * (work.lengths[0] // 7)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            encoded = work.encoded.to(dtype)
            for driver in plan.drivers:
                yield {"head": name, "frames": str(dtype)} | compared(work.head, driver, encoded, lengths)


def compared(head: TransducerHead, driver: str, encoded: Tensor, lengths: Tensor) -> Row:
    try:
        decoder = Decoder(head, driver)  # type: ignore[arg-type]
        hypotheses = decoder.decode(encoded, lengths, lanes=4)
    except DeviceError as error:
        return {"driver": driver, "equal": None, "note": str(error)}
    report = audit(hypotheses, encoded, lengths, head)
    return {
        "driver": driver,
        "ran": decoder.choice.name,
        "labels": sum(len(hypothesis) for hypothesis in hypotheses),
        "equal": not report.different,
        "unexplained": len(report.unexplained),
        "near ties": len(report.near_ties),
        "of": report.num_evaluations,
    }


def nodes(plan: Plan) -> Iterator[Row]:
    """A chain of kernels that each add 1 to one number; then a WHILE node that does so once an iteration."""
    if not plan.is_cuda:
        yield {"note": "needs a GPU"}
        return
    number = torch.zeros((), dtype=torch.int64, device=plan.device)
    stream, graph = side_stream(plan.device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        number.add_(1)  # loads the kernel, which a capture must not
    with capturing(graph, stream):
        for _ in range(plan.num_nodes):
            number.add_(1)
    chain = milliseconds(plan, graph.replay)
    yield {"node in a chain (us)": chain * 1e3 / plan.num_nodes}
    flag = torch.ones((), dtype=torch.bool, device=plan.device)

    def begin() -> None:
        number.zero_()
        flag.fill_(True)

    def body() -> None:
        number.add_(1)
        torch.lt(number, plan.num_nodes, out=flag)

    loop, *_keep = graphs.while_graph(load_bindings(), plan.device, flag, begin, body)
    whole = milliseconds(plan, loop.replay)
    yield {"WHILE iteration of 3 kernels (us)": whole * 1e3 / plan.num_nodes, "iterations": int(number)}


def decoding(plan: Plan) -> Iterator[Row]:
    for name in plan.heads:
        for num in plan.batches:
            work = batch(plan, name, num)
            row: Row = {"head": name, "B": num, "frames": int(work.lengths[0])}
            for driver in plan.drivers:
                row[driver] = decode_milliseconds(plan, work, driver)
            for baseline, decode in work.baselines.items():
                lengths = work.lengths.to(plan.device)
                row[baseline] = milliseconds(plan, partial(decode, work.encoded, lengths), rounds=1)
            yield row


def decode_milliseconds(plan: Plan, work: Batch, driver: str) -> float | None:
    try:
        decoder = Decoder(work.head, driver)  # type: ignore[arg-type]
    except DeviceError:
        return None
    took = milliseconds(plan, lambda: decoder.decode(work.encoded, work.lengths))
    return took if decoder.choice.name == driver else None


def end_to_end(plan: Plan) -> Iterator[Row]:
    """The encoder runs on noise, for its time; what is decoded are frames of the same shape that speak."""
    name = "parakeet-rnnt-1025"
    for size, num_layers in plan.encoder_layers.items():
        for dtype in (torch.bfloat16, torch.float32) if plan.is_cuda else (torch.float32,):
            encoder = random_encoder(plan, num_layers, dtype)
            for num in plan.batches[::2]:
                yield {"encoder": size, "dtype": str(dtype), "B": num} | rnnt_and_ctc(
                    plan, encoder, batch(plan, name, num), SIZES[name]
                )


def rnnt_and_ctc(plan: Plan, encoder: Encoder, work: Batch, size: Size) -> Row:
    num, num_frames, width = work.encoded.shape
    features = torch.randn(num, num_frames * 8, 80, device=plan.device)
    lengths = torch.full((num,), num_frames * 8, device=plan.device)
    weight = torch.randn(size.num_classes, width, device=plan.device)
    decoder = Decoder(work.head)

    def encode() -> None:
        encoder(features, lengths)

    def rnnt() -> None:
        encode()
        decoder.decode(work.encoded, work.lengths)

    def ctc() -> None:
        encode()
        ctc_decode(work.encoded @ weight.t(), work.lengths, size.num_classes - 1)

    with torch.inference_mode():
        times = {work.__name__: milliseconds(plan, work) for work in (encode, ctc, rnnt)}
    return {**times, "rnnt / ctc": times["rnnt"] / times["ctc"], "driver": decoder.choice.name}


def random_encoder(plan: Plan, num_layers: int, dtype: torch.dtype) -> Encoder:
    spec = EncoderSpec(
        num_layers=num_layers,
        width=plan.encoder_width,
        num_heads=8,
        feed_forward_width=4 * plan.encoder_width,
        conv_kernel=9,
        conv_norm="batch_norm",
        subsampling="dw_striding",
        subsampling_factor=8,
        subsampling_channels=256,
        subsampling_kernel=3,
        attention="rel_pos",
        rotary_base=10_000.0,
        bias=False,
        xscaling=False,
    )
    with torch.device(plan.device):
        return Encoder(spec, 80).to(dtype).eval().requires_grad_(False)


SECTIONS = {
    "choice": choice,
    "equality": equality,
    "nodes": nodes,
    "decode (ms)": decoding,
    "end to end (ms)": end_to_end,
}


# Running and printing


def run(plan: Plan) -> dict[str, list[Row]]:
    """Rows by section. A section that fails says so, and the next one runs."""
    results: dict[str, list[Row]] = {}
    for name, section in SECTIONS.items():
        rows = results.setdefault(name, [])
        print(f"\n## {name}\n", flush=True)
        try:
            for row in section(plan):
                rows.append(row)
                print(line(row), flush=True)
                if time.monotonic() > plan.deadline:
                    rows.append({"note": "the rest was left out: time is up"})
                    break
        except Exception as error:  # noqa: BLE001 - the sections are independent, and the machine is lent for minutes
            rows.append({"failed": f"{type(error).__name__}: {error}"})
            print(line(rows[-1]), flush=True)
    return results


def line(row: Row) -> str:
    return "| " + " | ".join(f"{key}: {shown(value)}" for key, value in row.items()) + " |"


def shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def machine(plan: Plan) -> Row:
    name = torch.cuda.get_device_name(plan.device) if plan.is_cuda else platform.processor() or "cpu"
    return {"device": name, "torch": torch.__version__, "cuda": torch.version.cuda, "numpy": np.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description="Drivers on a GPU: equality and time.")
    parser.add_argument("--dry", action="store_true", help="on a CPU, small: checks this script")
    parser.add_argument("--out", type=Path, help="write JSON here")
    parser.add_argument("--limit-seconds", type=float, default=480)
    options = parser.parse_args()
    plan = dry_plan() if options.dry else full_plan(options.limit_seconds)
    results = {"machine": [machine(plan)], **run(plan)}
    if options.out:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    wrong = [row for row in results["equality"] if not sound(row)]
    if wrong:
        raise SystemExit(f"drivers that fell back, failed, or differ where no near tie explains it: {wrong}")


def sound(row: Row) -> bool:
    if "driver" not in row:
        return "failed" not in row
    return row["equal"] is None or (row["ran"] == row["driver"] and row["unexplained"] == 0)


if __name__ == "__main__":
    main()
