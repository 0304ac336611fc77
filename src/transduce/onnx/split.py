"""A model's graph in three: the front end, the encoder, the decoding rule.

In: a graph of ours, built here or exported. Out: Parts, which do one after the other what the whole did.
Front end and rule are what was added in the scopes `features` and `decoder`; two values cross over each
time: one of every frame, and the number of frames `[B]`. So a runtime that is good at matrix products can
have the encoder to itself, and a benchmark can take the time of each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.errors import CheckpointError
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.emissions import OUTPUTS
from transduce.onnx.foreign import ForeignModel, used

__all__ = ["ENCODED", "FEATURES", "Parts", "split"]

FEATURES = ("features", "feature_frames")
"""Between front end and encoder: fp32 `[B, T, M]`, int64 `[B]`."""
ENCODED = ("encoded", "encoded_frames")
"""Between encoder and decoder: fp32 `[B, T', ...]`, int64 `[B]`."""

_ELEMENTS = (FLOAT, INT64)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Three graphs; each takes what the one before gives."""

    frontend: Graph
    encoder: Graph
    decoder: Graph


def split(model: Graph | ForeignModel, source: str, num_mels: int) -> Parts:
    """The parts of a graph of ours; CheckpointError for one that is built otherwise."""
    whole = ForeignModel.of(model, Path(source)) if isinstance(model, Graph) else model
    features, encoded = (list(dict.fromkeys(_crossing(whole, stage))) for stage in (1, 2))
    if (len(features), len(encoded)) != (len(FEATURES), len(ENCODED)):
        raise CheckpointError(
            f"{source}: its encoder cannot be told from what is around it, so only onnxruntime runs it "
            "(--backend onnx); or export the checkpoint again"
        )
    return Parts(
        frontend=_part(whole, [], zip(FEATURES, features, strict=True)),
        encoder=_part(
            whole,
            zip(features, FEATURES, ([None, None, num_mels], [None]), strict=True),
            zip(ENCODED, encoded, strict=True),
        ),
        decoder=_part(
            whole, zip(encoded, ENCODED, (None, [None]), strict=True), ((name, name) for name in OUTPUTS)
        ),
    )


def _stage(node: Any) -> int:
    """By its output: what another tool's file brought in has no name of its own, but the scope it is in."""
    (name, *_) = node.output
    return 0 if name.startswith("features/") else 2 if name.startswith("decoder/") else 1


def _crossing(whole: ForeignModel, stage: int) -> Iterator[str]:
    """Values from earlier stages that this one or a later one uses, in the order of their use."""
    earlier = {name for node in whole.nodes if _stage(node) < stage for name in node.output}
    for node in whole.nodes:
        if _stage(node) >= stage:
            yield from (name for name in used(node) if name in earlier)


def _part(
    whole: ForeignModel,
    given: Iterable[tuple[str, str, Sequence[int | None] | None]],
    wanted: Iterable[tuple[str, str]],
) -> Graph:
    """What lies between values that are `given` (their name in the whole, here, shape) and `wanted` ones.

    Wanted are pairs of the name here and in the whole. Nothing given stands for the whole's own inputs.
    """
    graph = Graph(whole.opset)
    feeds = {
        value: graph.add_input(name, element, shape)
        for (value, name, shape), element in zip(given, _ELEMENTS, strict=False)
    }
    if not feeds:
        feeds = {port.name: graph.add_input(port.name, port.element, port.shape) for port in whole.inputs}
    names, values = zip(*wanted, strict=True)
    made = whole.inline(graph, feeds, values)
    for name, value, element in zip(names, made, _elements(whole, names), strict=True):
        graph.add_output(value, element, None, name)
    return graph


def _elements(whole: ForeignModel, names: Sequence[str]) -> Sequence[int]:
    own = {port.name: port.element for port in whole.outputs}
    return [own[name] for name in names] if tuple(names) == OUTPUTS else _ELEMENTS
