"""How a model is to be run: words that are none, threads without end, a decoder of another engine."""

from typing import Any, get_args

import pytest
from support import DEMO

from transduce.choice import DECODERS, Choice
from transduce.errors import DeviceError, UnsupportedModelError
from transduce.nn.graphs import Want
from transduce.onnx.threads import num_threads
from transduce.transcriber import load_model


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"backend": "tf"}, DeviceError),
        ({"device": "cuda:x"}, DeviceError),
        ({"device": 0}, DeviceError),
        ({"precision": "fp64"}, DeviceError),
        ({"decoder": "beam"}, DeviceError),
        ({"head": "aed"}, UnsupportedModelError),
    ],
    ids=str,
)
def test_a_word_that_is_none_is_named(words: dict[str, Any], error: type[Exception]) -> None:
    ((name, word),) = words.items()
    with pytest.raises(error, match=f"unknown {name} {word!r}: use auto, "):
        Choice(**words)


@pytest.mark.parametrize("threads", [0, -1, 257, 10**20, 1.5])
def test_threads_have_a_limit(threads: Any) -> None:
    with pytest.raises(ValueError, match="threads is a number from 1 to 256"):
        Choice(threads=threads)


def test_so_have_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert num_threads() == 256
    assert Choice(threads=256).threads == 256


def test_the_decoders_are_those_of_torch() -> None:
    assert set(DECODERS) == set(get_args(Want))


@pytest.mark.parametrize("backend", ["auto", "onnx"])
def test_a_decoder_of_torch_is_not_ignored_by_a_graph(backend: str) -> None:
    with pytest.raises(DeviceError, match="decoder 'graph' is one of torch's"):
        load_model(DEMO.parent / "onnx", Choice(backend, decoder="graph"))


def test_nor_by_the_graph_of_a_checkpoint() -> None:
    with pytest.raises(DeviceError, match="decoder 'eager' is one of torch's"):
        load_model(DEMO, Choice("onnx", decoder="eager"))
