"""OpenVINO as the encoder's runtime: upstream's answers, the rule behind `auto`, memory, errors."""

import errno
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as runtime
import pytest
from models import GIGAAM, NEMO, checkpoint, expected, model_params
from onnx_cases import labels, small_spec, small_weights, speech
from support import DEMO, data, golden, num_cases, param, read_wav, utterances
from test_goldens import MAX_TIES, TIE, golden_triples, smallest_margin, triples
from test_onnx_backend import resident_bytes
from test_onnx_layouts import LAYOUTS
from wer import word_errors

from transduce.checkpoints import onnx_layouts
from transduce.choice import Choice
from transduce.errors import CheckpointError, DeviceError, MissingExtraError, ResourceError
from transduce.nn.backend import TorchBackend
from transduce.onnx import export, graph, openvino, pick
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.builder import FLOAT, Graph
from transduce.onnx.emissions import OUTPUTS
from transduce.onnx.precision import precision_named
from transduce.onnx.session import Session
from transduce.onnx.split import ENCODED, FEATURES, split
from transduce.onnx.staged import StagedSession
from transduce.transcriber import load_model
from transduce.types import Hypothesis

KINDS = ("rnnt", "tdt", "ctc")
CLIPS = speech(1, 5.0, 1.0, 3.0, 3.0, 8.0, 0.5, 2.0)
CASES = model_params(*NEMO, *GIGAAM)


def small(kind: str = "rnnt", **settings: Any) -> OnnxBackend:
    spec = small_spec(kind)
    settings = {"threads": 1, "engine": "openvino"} | settings
    return OnnxBackend.of_weights(spec, small_weights(spec), **settings)


@cache
def waveforms() -> list[Any]:
    return [read_wav(utterance["file"]) for utterance in utterances()]


def in_batches(backend: OnnxBackend, size: int = 8) -> list[Hypothesis]:
    clips = waveforms()
    groups = (clips[first : first + size] for first in range(0, len(clips), size))
    return [hypothesis for group in groups for hypothesis in backend.recognize(group)]


# Upstream's answers


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 8])
def test_fp32_is_exact(name: str, size: int) -> None:
    """As the torch engine: a difference passes only as a tie, and the ties are the known ones."""
    loaded = checkpoint(name)
    backend = OnnxBackend.of_weights(loaded.spec, loaded.weights, engine="openvino", threads=1)
    steps = set()
    for index, (found, answer) in enumerate(zip(in_batches(backend, size), expected(name), strict=True)):
        pairs = list(zip(triples(found), golden_triples(answer, found), strict=False))
        if triples(found) != golden_triples(answer, found):
            steps.add((index, next(ours[1] for ours, theirs in pairs if ours != theirs)))
    assert all(smallest_margin(name, *step) < TIE for step in steps)
    assert len(steps) <= MAX_TIES.get(name, 0), steps


EVERY = [param(name, f"models/onnx/{name}", f"golden/{of}.json") for name, of in LAYOUTS.items()]


@pytest.mark.parametrize("name", EVERY)
def test_other_tools_exports_too(name: str) -> None:
    backend, _ = onnx_layouts.load(data(f"models/onnx/{name}"), threads=1, engine="openvino")
    answers = golden(LAYOUTS[name])["utterances"]
    for found, answer in zip(in_batches(backend), answers, strict=True):
        assert triples(found) == golden_triples(answer, found)


@pytest.mark.parametrize("kind", KINDS)
def test_order_batches_and_engine_change_nothing(kind: str) -> None:
    """The clips are encoded a few at once, decoded all together."""
    backend = small(kind)
    expected_labels = [labels(found) for found in small(kind, engine="onnx").recognize(CLIPS)]
    assert [labels(found) for found in small(kind, engine="staged").recognize(CLIPS)] == expected_labels
    assert [labels(backend.recognize([clip])[0]) for clip in CLIPS] == expected_labels
    order = [3, 0, 6, 5, 1, 4, 2]
    found = backend.recognize([CLIPS[i] for i in order])
    assert [labels(f) for f in found] == [expected_labels[i] for i in order]


@pytest.mark.parametrize("engine", ["openvino", "staged", "onnx"])
def test_stages_are_timed(engine: str) -> None:
    backend = small(engine=engine)
    started = time.perf_counter()
    spent = backend.stage_seconds(CLIPS)
    total = time.perf_counter() - started
    assert list(spent) == (["one graph"] if engine == "onnx" else ["features", "encoder", "decoder"])
    assert 0 < sum(spent.values()) <= total
    assert all(spent.values())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_next_to_nothing(kind: str) -> None:
    backend = small(kind)
    assert backend.recognize([]) == []
    for size in (0, 1, 159, 320):
        beside = backend.recognize([np.zeros(size, np.float32), CLIPS[1]])
        assert labels(beside[1]) == labels(backend.recognize([CLIPS[1]])[0])
        assert labels(beside[0]) == labels(backend.recognize([np.zeros(size, np.float32)])[0])


def test_many_threads_share_one_model() -> None:
    backend = small("tdt")
    serial = [labels(found) for found in backend.recognize(CLIPS)]

    def calls(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            chosen = rng.integers(0, len(CLIPS), rng.integers(1, 5)).tolist()
            found = backend.recognize([CLIPS[i] for i in chosen])
            if [labels(hypothesis) for hypothesis in found] != [serial[i] for i in chosen]:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(calls, range(8)))


def test_a_folder_that_export_wrote(tmp_path: Path) -> None:
    loaded = checkpoint("nemo-hybrid")
    export.export(loaded.spec, loaded.weights, loaded.tokenizer, tmp_path)
    with load_model(tmp_path, backend="openvino") as model, load_model(tmp_path, backend="onnx") as other:
        assert model.backend.describe()["engine"].startswith("OpenVINO 20")
        texts = [model.transcribe(clip).text for clip in waveforms()[:5]]
        assert texts == [other.transcribe(clip).text for clip in waveforms()[:5]]
    assert all(texts)


# The parts


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_do_what_the_whole_does(kind: str) -> None:
    spec = small_spec(kind)
    whole = graph.build(spec, small_weights(spec), precision_named("fp32"))
    parts = split(whole, "small", spec.features.num_mels)
    lengths = np.array([len(clip) for clip in CLIPS[:3]])
    padded = np.zeros((3, lengths.max()), np.float32)
    for row, clip in zip(padded, CLIPS, strict=False):
        row[: len(clip)] = clip
    values = {"waveforms": padded, "lengths": lengths}
    expected_values = Session.of_graph(whole, "whole", threads=1).run(OUTPUTS, values)
    for part, names in ((parts.frontend, FEATURES), (parts.encoder, ENCODED), (parts.decoder, OUTPUTS)):
        found = Session.of_graph(part, "part", threads=1).run(names, values)
        values = dict(zip(names, found, strict=True))
    for found_value, expected_value in zip(values.values(), expected_values, strict=True):
        np.testing.assert_array_equal(found_value, expected_value)


def test_a_graph_that_has_no_such_parts_is_an_error() -> None:
    other = Graph(17)
    other.add_output(other.op("Abs", other.add_input("x", FLOAT, [None])), FLOAT, [None], "y")
    with pytest.raises(CheckpointError, match="--backend onnx"):
        split(other, "other", 8)


# Precision


def test_auto_takes_bf16_for_files_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of checkpoints are in test_self_calibration.py."""
    for types, expected_name in ((frozenset({"bf16", "int8"}), "bf16"), (frozenset({"int8"}), "fp32")):
        monkeypatch.setattr(pick, "native_types", lambda types=types: types)
        picked = pick.pick("auto", "openvino")
        assert picked.name == expected_name
        assert "bf16" in picked.reason


def test_auto_of_onnxruntime_is_int8_where_bytes_multiply_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, saturates, expected_name in (
        ("x86_64", False, "int8"),
        ("AMD64", False, "int8"),
        ("x86_64", True, "fp32"),
        ("aarch64", False, "fp32"),
    ):
        monkeypatch.setattr(pick.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(pick, "int8_saturates", lambda saturates=saturates: saturates)
        assert pick.pick("auto", "onnx").name == expected_name


@pytest.mark.parametrize("wanted", ["fp32", "bf16", "int8"])
def test_a_precision_that_was_asked_for_is_not_changed(wanted: str) -> None:
    assert pick.pick(wanted, "onnx") == pick.pick(wanted, "openvino") == pick.Pick(wanted)


def test_what_auto_picked_is_said_with_its_reason() -> None:
    for engine in ("onnx", "openvino"):
        notes = small(precision="auto", engine=engine).describe()
        picked = pick.pick("auto", engine, can_calibrate=True)  # type: ignore[arg-type]
        assert (notes["precision"], notes["why this precision"]) == (picked.name, picked.reason)
        assert "why this precision" not in small(engine=engine).describe()


def test_auto_runs_in_openvino_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine_of(choice: Choice) -> str:
        with load_model("demo", choice) as model:
            return model.backend.describe()["engine"].partition(" ")[0]

    assert engine_of(Choice(precision="auto")) == "OpenVINO"
    assert engine_of(Choice("onnx", precision="auto")) == "onnxruntime"
    assert engine_of(Choice()) != "OpenVINO"
    monkeypatch.setattr("transduce.transcriber.find_spec", lambda name: None)
    assert engine_of(Choice(precision="auto")) != "OpenVINO"


def words_of(text: str) -> str:
    """Without punctuation and case, which the e2e models write."""
    kept = "".join(" " if unicodedata.category(c)[0] == "P" else c for c in text.casefold())
    return " ".join(kept.split())


def errors_of(name: str, texts: Iterable[str]) -> int:
    """Wrong words, of what was said."""
    said = [utterance["text_en" if name in NEMO else "text_ru"] for utterance in utterances()]
    return sum(word_errors(true, words_of(text)) for true, text in zip(said, texts, strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["onnx", "openvino", "torch"])
def test_auto_adds_at_most_a_point_of_word_errors(name: str, engine: str) -> None:
    """To those of upstream in fp32."""
    loaded = checkpoint(name)
    made: Any = partial(OnnxBackend.of_weights, engine=engine, threads=1)
    backend = (TorchBackend if engine == "torch" else made)(loaded.spec, loaded.weights, precision="auto")
    num_words = sum(len(utterance["text_en"].split()) for utterance in utterances())
    theirs = errors_of(name, (answer["text"] for answer in expected(name)))
    ours = errors_of(name, (loaded.tokenizer.decode(found.ids.tolist()) for found in in_batches(backend)))
    print(f"{name}, {engine}, {backend.describe()['precision']}: {ours} of {num_words}, fp32 {theirs}")  # noqa: T201
    assert ours - theirs <= num_words / 100


# Errors


def test_a_precision_that_files_are_not_in_says_what_would_run() -> None:
    """No export is in bf16."""
    for precision, advice in (("bf16", "OpenVINO (--backend openvino)"), ("int8", "export the checkpoint")):
        with pytest.raises(DeviceError, match=rf"{precision}.*onnx is fp32.*{re.escape(advice)}"):
            onnx_layouts.load(DEMO.parent / "onnx", threads=1, precision=precision)
    backend, _ = onnx_layouts.load(DEMO.parent / "onnx", threads=1, engine="openvino", precision="fp32")
    assert backend.describe()["precision"] == "fp32"


@pytest.mark.parametrize("device", ["cuda", "gpu"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(DeviceError, match=rf"{device}.*CPU"):
        small(device=device)


def test_precisions_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="int4"):
        small(precision="int4")
    monkeypatch.setattr(openvino, "native_types", frozenset)
    for precision in ("bf16", "fp16"):
        with pytest.raises(DeviceError, match=rf"'{precision}'.*this CPU"):
            small(precision=precision)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtraError, match=r'pip install "transduce\[openvino\]"'):
        load_model("demo", backend="openvino")


def failing(backend: OnnxBackend, error: Exception) -> OnnxBackend:
    def infer(*_: Any) -> None:
        raise error

    session = backend._session
    assert isinstance(session, StagedSession)
    encoder = replace(session.encoder, native=SimpleNamespace(infer=infer))  # type: ignore[type-var]
    backend._session = replace(session, encoder=encoder)
    return backend


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
def test_out_of_memory_is_a_resource_error(error: Exception) -> None:
    with pytest.raises(ResourceError, match="smaller batches"):
        failing(small(), error).recognize(CLIPS[:1])


def test_what_fails_names_the_model_and_another_engine() -> None:
    with pytest.raises(CheckpointError, match=r"small: OpenVINO failed.*shapes.*--backend onnx"):
        failing(small(), RuntimeError("shapes\ndo not match")).recognize(CLIPS[:1])


def test_a_full_disk_is_a_resource_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    monkeypatch.setattr(openvino, "write_graph", write)
    with pytest.raises(ResourceError, match=r"/tmp/x.*No space left.*TMPDIR"):
        small()


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = small()
    assert list(tmp_path.iterdir()) == []
    assert len(backend.recognize(CLIPS)) == len(CLIPS)


# Memory


def plans(rng: np.random.Generator, count: int) -> Iterator[Sequence[float]]:
    return (rng.uniform(0.1, 6, rng.integers(1, 9)).tolist() for _ in range(count))


def test_memory_has_a_ceiling() -> None:
    """Batches of ever new shapes: at most 8 MB more per hundred after the first two, the largest seen."""
    backend, rng = small("tdt"), np.random.default_rng(0)
    (noise,) = speech(0, 20.0)

    def run(lengths: Sequence[float]) -> None:
        backend.recognize([noise[: round(16000 * length)] for length in lengths])

    run([6.0] * 8)
    sizes = []
    for _ in range(num_cases(3, 10)):
        for lengths in plans(rng, 100):
            run(lengths)
        sizes.append(resident_bytes())
    for before, after in pairwise(sizes[1:]):
        assert after - before <= 8_000_000, sizes


def test_openvino_keeps_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = runtime.Core.compile_model

    def compile_model(self: Any, model: Any, device: str, settings: dict[str, Any]) -> Any:
        asked.append(settings)
        return real(self, model, device, settings)

    monkeypatch.setattr(runtime.Core, "compile_model", compile_model)
    small(threads=1)
    (settings,) = asked
    assert settings["CPU_RUNTIME_CACHE_CAPACITY"] == openvino.CACHED_SHAPES
    assert (settings["INFERENCE_PRECISION_HINT"], settings["INFERENCE_NUM_THREADS"]) == ("f32", 1)
