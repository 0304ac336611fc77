"""The encoder as operators against the torch one, and every checkpoint against upstream's answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from models import GIGAAM, NEMO, checkpoint, expected, model_params
from onnx_cases import labels
from support import read_wav, utterances
from test_encoder import randomized, small_spec
from test_goldens import MAX_TIES, TIE, golden_triples, smallest_margin

from transduce.errors import DeviceError
from transduce.nn.encoder import Encoder, relative_positions, rotary_angles
from transduce.onnx import encoder
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.builder import FLOAT, INT64, Graph
from transduce.onnx.precision import precision_named
from transduce.onnx.session import Session
from transduce.types import EncoderSpec

NUM_MELS = 20

VARIANTS: dict[str, dict[str, Any]] = {
    "rel_pos": {},
    "xscaling, no biases": {"xscaling": True, "bias": False, "conv_norm": "batch_norm"},
    "dw_striding": {"subsampling": "dw_striding", "subsampling_factor": 8},
    "rotary": {"attention": "rotary", "conv_kernel": 7},
    "conv1d": {
        "attention": "rotary",
        "subsampling": "conv1d",
        "subsampling_kernel": 5,
        "subsampling_channels": 24,
    },
}
every_variant = pytest.mark.parametrize("spec", [small_spec(**v) for v in VARIANTS.values()], ids=VARIANTS)

MODELS = model_params(*NEMO, *GIGAAM)
TRAINED = model_params(*(name for name in (*NEMO, *GIGAAM) if name != "nemo-rnnt_char"))


def exported(module: torch.nn.Module, spec: EncoderSpec, precision: str = "fp32", opset: int = 17) -> Session:
    weights = {f"encoder.{name}": value.numpy() for name, value in module.state_dict().items()}
    graph = Graph(opset)
    features = graph.add_input("features", FLOAT, ["batch", "frames", NUM_MELS])
    lengths = graph.add_input("lengths", INT64, ["batch"])
    outputs = encoder.encode(graph, spec, weights, precision_named(precision), features, lengths)
    for name, value, element in zip(("encoded", "counts"), outputs, (FLOAT, INT64), strict=True):
        graph.add_output(value, element, None, name)
    return Session.of_graph(graph, "encoder", threads=1)


def run(runner: Session, features: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    encoded, counts = runner.run(["encoded", "counts"], {"features": features, "lengths": np.array(lengths)})
    return encoded, counts


@every_variant
@pytest.mark.parametrize("opset", [17, 18])
def test_the_torch_encoder(spec: EncoderSpec, opset: int) -> None:
    """Rows of many lengths, 0 and 1 among them, with noise behind their ends."""
    module = randomized(Encoder(spec, NUM_MELS))
    lengths = [61, 40, 17, 8, 1, 0]
    features = np.random.default_rng(0).standard_normal((len(lengths), 61, NUM_MELS)).astype(np.float32)
    theirs, their_counts = module(torch.from_numpy(features), torch.tensor(lengths))
    ours, counts = run(exported(module, spec, opset=opset), features, lengths)
    assert counts.tolist() == their_counts.tolist() == [spec.num_frames(length) for length in lengths]
    assert np.isfinite(ours).all()
    for row, count in enumerate(counts):
        np.testing.assert_allclose(ours[row, :count], theirs[row, :count].numpy(), atol=1e-4)


@every_variant
@pytest.mark.parametrize(("precision", "mean_error"), [("fp16", 0.01), ("int8", 0.06)])
def test_coarser_precisions_are_near_and_independent_of_the_batch(
    spec: EncoderSpec, precision: str, mean_error: float
) -> None:
    """A loud neighbour must not coarsen the scale of a quiet row."""
    module = randomized(Encoder(spec, NUM_MELS))
    features = np.random.default_rng(0).standard_normal((2, 40, NUM_MELS)).astype(np.float32)
    features[1] *= 50
    exact, _ = run(exported(module, spec), features, [40, 40])
    runner = exported(module, spec, precision)
    coarse, _ = run(runner, features, [40, 40])
    alone, _ = run(runner, features[:1], [40])
    assert np.abs(coarse[0] - exact[0]).mean() < mean_error
    assert np.abs(coarse[0] - exact[0]).max() > 0
    np.testing.assert_allclose(alone[0], coarse[0], atol=0.02 if precision == "fp16" else 1e-4)


@pytest.mark.parametrize("num_frames", [1, 2, 6000])
def test_positions_have_no_limit(num_frames: int) -> None:
    graph = Graph(17)
    frames = graph.add_input("frames", FLOAT, None)
    spec = small_spec()
    net = encoder.Net(graph, {}, precision_named("fp32"))
    tables = [encoder.relative(net, spec, frames), *encoder.rotary(net, spec, frames)]
    for name, value in zip(("relative", "cosine", "sine"), tables, strict=True):
        graph.add_output(value, FLOAT, None, name)
    feeds = {"frames": np.zeros((1, num_frames, 1), np.float32)}
    relative, cosine, sine = Session.of_graph(graph, "positions", threads=1).run(
        ["relative", "cosine", "sine"], feeds
    )
    device = torch.device("cpu")
    expected_relative = relative_positions(num_frames, spec.width, device).numpy()
    np.testing.assert_allclose(relative[0], expected_relative, atol=1e-3)  # sin of 6,000 in fp32
    half = spec.width // spec.num_heads // 2
    angles = (
        rotary_angles(num_frames, 2 * half, spec.rotary_base, device).numpy()[:, :half].astype(np.float64)
    )
    np.testing.assert_allclose(cosine[:, 0], np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sine[:, 0], np.sin(angles), atol=1e-3)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(DeviceError, match="bf16"):
        precision_named("bf16")


# Whole models


def model(name: str, head: str | None = None, **settings: Any) -> OnnxBackend:
    loaded = checkpoint(name)
    kinds = [spec for spec in loaded.spec.heads if spec.kind == head]
    spec = replace(loaded.spec, head=kinds[0]) if kinds else loaded.spec
    return OnnxBackend.of_weights(spec, loaded.weights, device="cpu", threads=1, **settings)


def differences(backend: OnnxBackend, answers: Sequence[dict[str, Any]], size: int) -> list[tuple[int, int]]:
    """(utterance, frame) where our answer parts from upstream's, in batches of a size."""
    waveforms = [read_wav(utterance["file"]) for utterance in utterances()]
    batches = [waveforms[start : start + size] for start in range(0, len(waveforms), size)]
    found = [hypothesis for batch in batches for hypothesis in backend.recognize(batch)]
    parted = []
    for index, (ours, answer) in enumerate(zip(map(labels, found), answers, strict=True)):
        theirs = golden_triples(answer, found[index])
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            parted.append((index, next((a[1] for a, b in pairs if a != b), min(len(ours), len(theirs)))))
    return parted


@pytest.mark.parametrize("window", [1, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_ids_frames_and_durations_are_upstreams(
    name: str, window: int, record_property: Callable[[str, object], None]
) -> None:
    backend = model(name, window=window)
    steps = {step for size in (1, 8) for step in differences(backend, expected(name), size)}
    for index, frame in steps:
        margin = smallest_margin(name, index, frame)
        record_property("tie", f"{name}, utterance {index}, frame {frame}: top-2 margin {margin:.1e}")
        assert margin < TIE
    assert len(steps) <= MAX_TIES.get(name, 0), steps


def test_the_ctc_head_of_a_hybrid() -> None:
    backend = model("nemo-hybrid", "ctc")
    assert [differences(backend, expected("nemo-hybrid", "ctc"), size) for size in (1, 8)] == [[], []]


def normalized(text: str) -> list[str]:
    return re.sub(r"[^\w ]", "", text.lower().replace("ё", "е")).split()


def word_errors(name: str, texts: Sequence[str]) -> int:
    """Against what was spoken; GigaAM answers in Russian."""
    spoken = [utterance["text_ru" if name.startswith("gigaam") else "text_en"] for utterance in utterances()]
    return sum(edits(normalized(text), normalized(said)) for text, said in zip(texts, spoken, strict=True))


def edits(ours: list[str], theirs: list[str]) -> int:
    row = list(range(len(ours) + 1))
    for index, word in enumerate(theirs, 1):
        diagonal, row[0] = row[0], index
        for column, own in enumerate(ours, 1):
            diagonal, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, diagonal + (own != word)),
            )
    return row[-1]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", TRAINED)
def test_coarser_precisions_keep_the_words(
    name: str, precision: str, record_property: Callable[[str, object], None]
) -> None:
    """At most 1 point of word error above fp32, whose answers are upstream's: 1 of 197 words."""
    backend, tokenizer = model(name, precision=precision), checkpoint(name).tokenizer
    waveforms = [read_wav(utterance["file"]) for utterance in utterances()]
    found = [h for start in range(0, 40, 8) for h in backend.recognize(waveforms[start : start + 8])]
    texts = [tokenizer.decode(hypothesis.ids.tolist()) for hypothesis in found]
    exact = [answer["text"] for answer in expected(name)]
    errors, exact_errors = word_errors(name, texts), word_errors(name, exact)
    record_property("word errors of 197", f"{errors}, upstream's fp32 {exact_errors}")
    assert errors <= exact_errors + 1
