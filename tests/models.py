"""The upstream-format checkpoints that tests run: their files, their goldens, loaded once a process."""

from dataclasses import replace
from functools import cache
from typing import Any

from support import data, golden, param

from transduce import checkpoints
from transduce.checkpoints import Checkpoint
from transduce.nn.backend import TorchBackend

NEMO = ("nemo-hybrid", "nemo-tdt", "nemo-rnnt", "nemo-ctc", "nemo-rnnt_char")
GIGAAM = ("gigaam-v1_ctc", "gigaam-v2_ctc", "gigaam-v2_rnnt", "gigaam-v3_e2e_ctc", "gigaam-v3_e2e_rnnt")


def path_of(name: str) -> str:
    """The checkpoint of a golden, by its place below `models/`: nemo-tdt is nemo/tdt.nemo."""
    family, _, kind = name.partition("-")
    return f"models/{family}/{kind}.{'nemo' if family == 'nemo' else 'ckpt'}"


def model_params(*names: str) -> list[Any]:
    """Pytest parameters for checkpoints, marked `shared` where the file or its golden is not bundled."""
    return [param(name, path_of(name), f"golden/{name}.json") for name in names]


@cache
def checkpoint(name: str) -> Checkpoint:
    return checkpoints.load(data(path_of(name)))


@cache
def backend(name: str, head: str | None = None) -> TorchBackend:
    """The torch backend of a checkpoint, on the CPU in fp32; `head` picks one of a hybrid's."""
    loaded = checkpoint(name)
    spec = loaded.spec
    if head is not None:
        spec = replace(spec, head=next(h for h in spec.heads if h.kind == head))
    return TorchBackend(spec, loaded.weights, device="cpu")


def expected(name: str, head: str | None = None) -> list[dict[str, Any]]:
    """Upstream's answers, one an utterance; those of a hybrid's CTC head stand beside the main ones."""
    entries = golden(name)["utterances"]
    return [entry["ctc"] if head == "ctc" and "ctc" in entry else entry for entry in entries]
