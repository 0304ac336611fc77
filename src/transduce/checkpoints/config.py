"""What readers ask of an upstream config (a tree of plain dicts and lists), and its reading as YAML.

A config is a stranger's data: any value may be missing, of another type or absurd. `translated` makes
one clear error of whatever a reader trips over, so that readers themselves need not look twice.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from transduce.errors import CheckpointError, ResourceError, TransduceError, UnsupportedModelError

__all__ = ["MAX_NODES", "number", "one_line", "parse_yaml", "require", "section", "translated", "whole"]

MAX_NODES = 1_000_000
"""Values in a config, aliases written out; a vocabulary of 13,000 pieces in four places has 52,000."""
MAX_MESSAGE = 200

STUMBLES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What an expectation that does not hold ends in: a missing part, another type, another shape."""


@contextmanager
def translated(source: str) -> Iterator[None]:
    """While a file is being understood: its faults as CheckpointError, short memory as ResourceError."""
    try:
        yield
    except TransduceError:
        raise
    except MemoryError as error:
        raise ResourceError(f"{source}: there is not enough memory to load it") from error
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({error.strerror or one_line(error)})") from error
    except STUMBLES as error:
        raise CheckpointError(
            f"{source}: its settings or weights make no sense ({type(error).__name__}: {one_line(error)}); "
            "the file is damaged or of a kind this version does not know"
        ) from error


def one_line(value: object) -> str:
    """A text or an error's message, fit for one line."""
    return " ".join(str(value).split())[:MAX_MESSAGE]


def section(config: Mapping[str, Any], name: str, source: str) -> Mapping[str, Any]:
    """A part of the config that must be there and hold settings."""
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"{source}: the config has no section {name!r}")
    return part


def require(known: bool, source: str, what: str) -> None:
    """Raise UnsupportedModelError unless the option is one whose arithmetic we have."""
    if not known:
        raise UnsupportedModelError(
            f"{source}: {one_line(what)} is not supported; docs/models.md lists what is"
        )


def whole(value: Any, name: str, source: str, *, least: int = 1, most: int) -> int:
    """A setting that must be a whole number in a plausible range."""
    result = number(value, name, source, least=least, most=most)
    if result != int(result):
        raise CheckpointError(f"{source}: {name} = {result} is not a whole number; the config is damaged")
    return int(result)


def number(value: Any, name: str, source: str, *, least: float, most: float) -> float:
    """A setting that must be a number in a plausible range."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise CheckpointError(
            f"{source}: {name} = {one_line(repr(value))} is not a number from {least} to {most}; "
            "the config is damaged"
        )
    return float(value)


def parse_yaml(content: bytes, source: str) -> Mapping[str, Any]:
    """The settings of a YAML document, by the safe loader; one that unfolds without end is refused."""
    loader = yaml.CSafeLoader(content)
    try:
        node = loader.get_single_node()
        if _num_nodes(node, {}) > MAX_NODES:
            raise CheckpointError(f"{source}: unfolds to over {MAX_NODES} values; it was not loaded")
        config = loader.construct_document(node) if node else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{source}: is not valid YAML ({one_line(error)})") from error
    finally:
        loader.dispose()
    if not isinstance(config, dict):
        raise CheckpointError(f"{source}: holds no settings")
    return config


def _num_nodes(node: Any, known: dict[int, float]) -> float:
    """How many values a node stands for, every alias counted as what it repeats; a loop is infinite."""
    if id(node) not in known:
        known[id(node)] = float("inf")  # as long as its own size is being found
        known[id(node)] = 1 + sum(_num_nodes(child, known) for child in _children(node))
    return known[id(node)]


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []
