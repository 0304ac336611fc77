"""int8 by ranges seen in speech: the arithmetic, the gate, and the words of the trained checkpoints."""

from pathlib import Path

import numpy as np
import pytest
from models import GIGAAM, NEMO, checkpoint, expected, model_params
from onnx_cases import labels, small_spec, small_weights, speech
from support import ROOT
from test_openvino import errors_of, in_batches, waveforms
from typer.testing import CliRunner

from transduce.checkpoints import onnx_layouts
from transduce.choice import Choice
from transduce.cli import app
from transduce.errors import DeviceError, UnsupportedModelError
from transduce.onnx import calibration, graph
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.builder import FLOAT, Graph
from transduce.onnx.calibration import calibrated, relative_error
from transduce.onnx.export import export
from transduce.onnx.precision import Precision, int8_saturates, precision_named
from transduce.onnx.session import Session
from transduce.tokenizer import Tokenizer
from transduce.transcriber import load_model
from transduce.types import ModelSpec, Weights

DIGITS = ROOT / "examples" / "digits.wav"
CLIPS = speech(1, 5.0, 1.0, 3.0)


def product(x: np.ndarray, weight: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    g = Graph(17)
    value = g.add_input("x", FLOAT, [None, x.shape[1]])
    precision = Precision("int8", FLOAT, np.float32, ranges={"w": ends})
    g.add_output(precision.matmul(g, value, weight, "w"), FLOAT, None, "y")
    found: np.ndarray = Session.of_graph(g, "product", threads=1).run(["y"], {"x": x})[0]
    return found


@pytest.mark.parametrize("ends", [(-2.0, 3.0), (0.0, 4.0), (0.5, 4.0), (-4.0, -1.0), (0.0, 0.0)])
def test_products_are_those_of_rounded_numbers(ends: tuple[float, float]) -> None:
    """Worked out in float64: 256 steps over the range and zero, 255 over each row of the weight."""
    rng = np.random.default_rng(0)
    x = rng.uniform(*ends, (5, 32)).astype(np.float32)
    weight = rng.standard_normal((7, 32)).astype(np.float32)
    low, high = min(ends[0], 0), max(ends[1], 0)
    step = max((high - low) / 255, 1e-20)
    zero = np.round(-low / step)
    rounded = (np.clip(np.round(x.astype(float) / step) + zero, 0, 255) - zero) * step
    scales = np.abs(weight).max(axis=1, keepdims=True) / 127
    exact = rounded @ (np.round(weight / scales) * scales).astype(float).T
    tolerance = 1e-4 if not int8_saturates() else 1.0
    np.testing.assert_allclose(product(x, weight, ends), exact, atol=tolerance * (1 + np.abs(exact).max()))


def test_what_is_beyond_the_range_is_cut_to_it() -> None:
    weight = np.eye(4, dtype=np.float32)
    found = product(np.array([[-9.0, 0.0, 1.0, 9.0]], np.float32), weight, (-1.0, 1.0))
    np.testing.assert_allclose(found, [[-1, 0, 1, 1]], atol=0.01)


def test_the_ranges_are_of_all_recordings_together() -> None:
    spec = small_spec()
    weights = small_weights(spec)
    alone = [calibrated(spec, weights, [clip], 1).ranges for clip in CLIPS]
    together = calibrated(spec, weights, CLIPS, 1).ranges
    assert together is not None
    assert len(together) > 5
    for name, (low, high) in together.items():
        each = [ranges[name] for ranges in alone if ranges is not None]
        assert low == min(ends[0] for ends in each)
        assert high == max(ends[1] for ends in each)
        assert low <= high


def test_a_row_does_not_depend_on_its_batch() -> None:
    """The very same numbers: its products are of integers, and its scales those of the whole model."""
    spec = small_spec()
    weights = small_weights(spec)
    chosen = calibrated(spec, weights, CLIPS, 1)
    session = Session.of_graph(graph.build(spec, weights, chosen), "small", threads=1)
    backend = OnnxBackend(spec, session, {})
    alone = [labels(backend.recognize([clip])[0]) for clip in CLIPS]
    assert [labels(found) for found in backend.recognize(CLIPS)] == alone
    assert any(alone)


def session_of(spec: ModelSpec, weights: Weights, precision: Precision) -> Session:
    return Session.of_graph(calibration._encoder(spec, weights, precision), "encoder", threads=1)


def test_too_much_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec()
    weights = small_weights(spec)
    exact, coarse = (
        [
            session_of(spec, weights, precision).run(["encoded"], calibration._feeds(clip))[0][0]
            for clip in CLIPS
        ]
        for precision in (precision_named("fp32"), calibrated(spec, weights, CLIPS, 1))
    )
    assert 0 < relative_error(coarse, exact) < 0.1
    monkeypatch.setattr(calibration, "MOST_ERROR", 1e-6)
    with pytest.raises(UnsupportedModelError, match=r"small: int8.*calibrate with other speech"):
        calibrated(spec, weights, CLIPS, 1)


@pytest.mark.parametrize("name", model_params(*NEMO, *GIGAAM))
def test_int8_adds_at_most_a_point_of_word_errors(name: str, tmp_path: Path) -> None:
    """Calibrated on 8 utterances, on all 40, in both engines."""
    loaded = checkpoint(name)
    heard = waveforms()[::5]
    export(loaded.spec, loaded.weights, loaded.tokenizer, tmp_path, precision="int8", calibration=heard)
    theirs = errors_of(name, (answer["text"] for answer in expected(name)))
    for engine in ("onnx", "openvino"):
        backend, tokenizer = onnx_layouts.load(tmp_path, threads=1, engine=engine)  # type: ignore[arg-type]
        assert backend.describe()["precision"] == "int8"
        ours = errors_of(name, (tokenizer.decode(found.ids.tolist()) for found in in_batches(backend)))
        print(f"{name}, {engine}: {ours} of 197, fp32 {theirs}")  # noqa: T201
        assert ours - theirs <= 1.97


def test_auto_takes_an_int8_export_as_it_is(tmp_path: Path) -> None:
    spec = small_spec()
    tokenizer = Tokenizer.from_pieces(["<unk>", "▁a", "b", "▁", "c"], "pieces")
    export(spec, small_weights(spec), tokenizer, tmp_path, precision="int8", calibration=CLIPS)
    with load_model(tmp_path, Choice(precision="auto", threads=1)) as model:
        assert model.backend.describe()["precision"] == "int8"
        assert model.backend.describe()["engine"].startswith("OpenVINO")


def test_openvino_says_how_to_have_int8() -> None:
    spec = small_spec()
    with pytest.raises(DeviceError, match=r"--precision int8 --calibrate"):
        OnnxBackend.of_weights(spec, small_weights(spec), precision="int8", engine="openvino")


def test_the_command_calibrates(tmp_path: Path) -> None:
    def run(*arguments: str) -> int:
        return CliRunner().invoke(app, ["export", "demo", str(tmp_path / "int8"), *arguments]).exit_code

    assert run("--calibrate", str(DIGITS)) == 2
    assert run("--precision", "int8", "--calibrate", "none.wav") == 1
    assert run("--precision", "int8", "--calibrate", str(DIGITS)) == 0
    with load_model(tmp_path / "int8", backend="onnx") as model:
        assert model.transcribe(DIGITS).text == "three seven five three six six three one six"
