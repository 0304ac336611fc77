"""Which files of a repository make up a model, by their names alone.

In: the names in a repository. Out: those to fetch, or an empty tuple where the repository does not hold
such a model. Only names at the top of the repository count, and hidden ones do not.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

__all__ = ["CheckpointFile", "Named", "OnnxFiles", "Selection"]

COMPANIONS = ("*.onnx.data", "*.onnx_data", "*.weights", "*.txt", "*.json", "*.yaml", "*.model")
"""What lies beside ONNX graphs: external weights, vocabularies, configs, SentencePiece models."""

MARK = re.compile(r"[._-](int8|uint8|int4|fp16|q4|q4f16|quantized)(?=[._-])")
"""How exporters mark a graph's precision; a graph without a mark is fp32."""


class Selection(Protocol):
    """A rule that picks a model's files."""

    def pick(self, names: Iterable[str]) -> tuple[str, ...]:
        """The files to fetch, in order; empty where a needed one is missing."""
        ...

    def describe(self) -> str:
        """What is looked for, in a few words."""
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """Files by name; the optional ones are taken where they exist."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def pick(self, names: Iterable[str]) -> tuple[str, ...]:
        held = set(names)
        if not held.issuperset(self.required):
            return ()
        return self.required + tuple(name for name in self.optional if name in held)

    def describe(self) -> str:
        return ", ".join(self.required)


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """The one checkpoint of a repository, with the tokenizer that lies beside a .ckpt."""

    def pick(self, names: Iterable[str]) -> tuple[str, ...]:
        top = _top(names)
        archives = [name for name in top if name.endswith(".nemo")]
        if len(archives) == 1:
            return (archives[0],)
        checkpoints = [name for name in top if name.endswith(".ckpt")]
        if archives or len(checkpoints) != 1:
            return ()
        return (checkpoints[0], *(name for name in top if name.endswith("tokenizer.model")))

    def describe(self) -> str:
        return "one .nemo or .ckpt file"


@dataclass(frozen=True, slots=True)
class OnnxFiles:
    """All ONNX graphs in one precision, or in what there is of each, and what lies beside them."""

    precision: str = "fp32"

    def pick(self, names: Iterable[str]) -> tuple[str, ...]:
        top = _top(names)
        graphs = _in_precision([name for name in top if name.endswith(".onnx")], self.precision)
        if not graphs:
            return ()
        dropped = {name for name in top if name.endswith(".onnx")} - set(graphs)
        beside = [name for name in top if _is_companion(name) and not _belongs(name, dropped, graphs)]
        return (*graphs, *beside)

    def describe(self) -> str:
        return "ONNX graphs (.onnx)"


def _top(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if "/" not in name and not name.startswith("."))


def _in_precision(graphs: Sequence[str], precision: str) -> list[str]:
    """Of each graph the variant in that precision, else the fp32 one, else the first."""
    variants: dict[str, dict[str, str]] = {}
    for name in graphs:
        variants.setdefault(MARK.sub("", name), {})[_precision(name)] = name
    preferred = (precision, "fp32")
    return [
        next((of[wanted] for wanted in preferred if wanted in of), of[min(of)]) for of in variants.values()
    ]


def _precision(name: str) -> str:
    match = MARK.search(name)
    return match[1] if match else "fp32"


def _is_companion(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in COMPANIONS)


def _belongs(name: str, dropped: Iterable[str], kept: Iterable[str]) -> bool:
    """Whether a file holds weights of a graph that was not picked (`a.onnx.data` of `a.onnx`)."""
    owners = [graph for graph in (*dropped, *kept) if _is_weights_of(name, graph)]
    return bool(owners) and all(owner in set(dropped) for owner in owners)


def _is_weights_of(name: str, graph: str) -> bool:
    return name in (f"{graph}.data", f"{graph}_data", f"{graph.removesuffix('.onnx')}.weights")
