"""`transduce bench`: what it measures adds up; synthetic models have their size and speak as they should."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import write_wav
from support import DEMO, ROOT
from typer.testing import CliRunner

from transduce import bench, synthetic
from transduce.bench import Plan, clips_of, measure
from transduce.checkpoints import Checkpoint
from transduce.choice import Choice
from transduce.cli import app
from transduce.errors import AudioError, MissingExtraError, UnsupportedModelError
from transduce.synthetic import SIZES, Size

DIGITS = ROOT / "examples" / "digits.wav"
PLAN = Plan(batch=2, seconds=2.0, rounds=1)
INSIDE = ["features", "encoder", "decoder"]


def measured(choice: Choice, plan: Plan = PLAN) -> bench.Measurement:
    return measure("demo", choice, clips_of(DIGITS, plan, 16000), plan)


# Measurements


def test_stages_are_those_of_the_model_when_auto_has_no_choice() -> None:
    """An fp32 folder in onnxruntime stays so on any CPU; its parts are timed, the reason is said."""
    found = measure(
        str(DEMO.parent / "onnx"),
        Choice("onnx", precision="auto", threads=1),
        clips_of(DIGITS, PLAN, 16000),
        PLAN,
    )
    assert [name for name in found.stages if name in (*INSIDE, "one graph")] == INSIDE
    assert found.decoder_share is not None
    assert found.precision == "fp32"
    assert "no other" in found.notes["why this precision"]


@pytest.mark.parametrize(
    ("choice", "engine"),
    [
        (Choice("torch", threads=1), "torch"),
        (Choice("onnx", threads=1), "onnxruntime"),
        (Choice("openvino", threads=1), "OpenVINO"),
    ],
    ids=["torch", "onnx", "openvino"],
)
def test_every_engine_says_where_the_time_goes(choice: Choice, engine: str) -> None:
    found = measured(choice)
    assert found.engine.startswith(engine)
    assert list(found.stages) == ["read", "voice activity", *INSIDE, "words"]
    assert all(seconds > 0 for name, seconds in found.stages.items() if name != "encoder"), found.stages
    assert found.decoder_share == pytest.approx(
        found.stages["decoder"] / sum(found.stages[name] for name in INSIDE)
    )
    assert found.rtfx == pytest.approx(4.0 / found.recognition_seconds)
    assert found.total_rtfx < found.rtfx
    latency = found.latency_seconds
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"]
    assert found.labels > 0
    assert found.labels_per_frame == pytest.approx(found.labels / (2 * 25), rel=0.05)
    assert found.peak_memory_bytes is not None
    assert found.peak_memory_bytes > 50e6
    assert json.loads(json.dumps(found.to_dict()))["machine"]["numpy"] == np.__version__


def test_a_hybrids_heads_are_compared() -> None:
    """The bundled export has one head; the checkpoint has two."""
    assert measured(Choice("torch")).ctc_ratio is not None
    assert measured(Choice("onnx")).ctc_ratio is None
    assert measured(Choice("torch", head="ctc")).ctc_ratio is None


@pytest.mark.parametrize(
    ("frames", "num_frames", "window", "max_symbols", "steps"),
    [
        ([], 0, 4, 10, 0),
        ([], 9, 4, 10, 3),  # 0-3, 4-7, 8
        ([2], 9, 4, 10, 3),  # label at 2; 2-5, 6-8
        ([2, 2], 9, 4, 10, 4),
        ([2, 2], 9, 4, 2, 4),  # ... and on from 3: 3-6, 7-8
        ([2], 9, 4, 1, 3),
        ([7], 8, 4, 1, 2),  # empty window, label, and no frame is left
        ([0, 1, 2], 3, 1, 1, 3),
    ],
)
def test_steps_of_a_lane(
    frames: list[int], num_frames: int, window: int, max_symbols: int, steps: int
) -> None:
    """By hand, from docs/decoding.md: a step looks at a window and ends at its first label."""
    assert bench._lane_steps(frames, num_frames, window, max_symbols) == steps


# Clips


def test_clips_are_of_the_recording_and_all_different() -> None:
    clips = clips_of(DIGITS, Plan(batch=3, seconds=30.0), 16000)
    assert [len(clip) for clip in clips] == [480_000] * 3
    assert len({clip.tobytes() for clip in clips}) == 3


def test_without_a_recording_clips_are_noise() -> None:
    clips = clips_of(None, Plan(batch=2, seconds=1.0), 16000)
    assert [len(clip) for clip in clips] == [16000] * 2
    assert 0.01 < float(np.abs(clips[0]).mean()) < 0.5


def test_silence_is_nothing_to_measure(tmp_path: Path) -> None:
    silent = write_wav(tmp_path / "silence.wav", np.zeros(16000, np.float32))
    with pytest.raises(AudioError, match=r"silence\.wav: nothing in it is louder"):
        clips_of(silent, PLAN, 16000)


def test_what_is_no_recording_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AudioError):
        clips_of(tmp_path / "none.wav", PLAN, 16000)


# Synthetic models


def shrunk(size: Size) -> Size:
    """The same with one layer of few channels."""
    small = {"num_layers": 1, "width": 32, "num_heads": 2, "feed_forward_width": 64}
    channels = 32 if size.spec.encoder.subsampling == "conv1d" else 16
    encoder = replace(size.spec.encoder, **small, subsampling_channels=channels)  # type: ignore[arg-type]
    return replace(size, spec=replace(size.spec, encoder=encoder), hidden=24)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("engine", ["torch", "onnx", "openvino"])
def test_synthetic_models_run_and_speak(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """About four labels a second, and never two on one frame."""
    monkeypatch.setitem(SIZES, name, shrunk(SIZES[name]))
    made = bench.synthetic_checkpoint(name)
    plan = Plan(batch=2, seconds=4.0, rounds=1)
    found = measure(made, Choice(engine, threads=1), clips_of(None, plan, 16000), plan)
    assert found.model == name
    assert 1 < found.labels / 8.0 < 10
    assert (found.ctc_ratio is None) == name.endswith("ctc")
    assert (found.steps is None) == (found.head != "rnnt" or engine == "torch")
    assert made.spec.heads[0].max_symbols == 1


@pytest.mark.parametrize(
    ("name", "millions"),
    # GigaAM v3: 240 M (its model card); Parakeet: 0.6 B and 1.1 B by their names
    [("gigaam-v3-rnnt", (200, 260)), ("parakeet-tdt-0.6b", (570, 640)), ("parakeet-rnnt-1.1b", (1000, 1150))],
)
def test_sizes_are_the_released_ones(name: str, millions: tuple[int, int]) -> None:
    size = SIZES[name]
    one, two = (
        sum(array.size for array in synthetic.checkpoint(
            replace(size, spec=replace(size.spec, encoder=replace(size.spec.encoder, num_layers=layers)))
        ).weights.values())
        for layers in (1, 2)
    )  # fmt: skip
    total = one + (size.spec.encoder.num_layers - 1) * (two - one)
    assert millions[0] < total / 1e6 < millions[1]


def test_frames_come_from_onnxruntime_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = synthetic.checkpoint(shrunk(SIZES["parakeet-tdt-0.6b"]))
    waveform = synthetic.noise(32000)
    by_torch = bench._encoder_frames(made, waveform)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    np.testing.assert_allclose(bench._encoder_frames(made, waveform), by_torch, atol=1e-4)
    opened = bench.open_model(made, Choice())
    assert "onnxruntime" in opened.backend.describe()["engine"]


# The command


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_command_shows_a_table() -> None:
    found = run("demo", "--backend", "onnx", "--audio", str(DIGITS), "--seconds", "1", "--batch", "2")
    assert found.exit_code == 0, found.output
    for text in ("encoder", "decoder", "recognition", "RTFx", "p50", "p99", "peak memory", "onnxruntime"):
        assert text in found.stdout


def test_the_command_writes_json_and_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "gigaam-v3-rnnt", shrunk(SIZES["gigaam-v3-rnnt"]))
    picture = tmp_path / "stages.png"
    options = ("--seconds", "1", "--batch", "1", "--rounds", "1", "--backend", "onnx", "--threads", "1")
    found = run("--synthetic", "gigaam-v3-rnnt", *options, "--json", "--plot", str(picture))
    assert found.exit_code == 0, found.output
    content = json.loads(found.stdout)
    assert (content["model"], content["head"], content["batch"]) == ("gigaam-v3-rnnt", "rnnt", 1)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments", [(), ("demo", "--synthetic", "gigaam-v3-rnnt")])
def test_a_model_or_a_size_is_needed(arguments: tuple[str, ...]) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert "gigaam-v3-ctc" in found.output


def test_an_unknown_size_is_usage() -> None:
    with pytest.raises(UnsupportedModelError, match="use one of gigaam-v3-rnnt"):
        bench.synthetic_checkpoint("whisper")
    found = run("--synthetic", "whisper")
    assert found.exit_code == 2
    assert "gigaam-v3-rnnt" in found.output


def test_a_missing_model_ends_with_3_and_a_missing_recording_with_1() -> None:
    """By the table of exit codes in docs/cli.md."""
    assert run("none.nemo").exit_code == 3
    assert run("demo", "--audio", "none.wav").exit_code == 1


def test_the_plot_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"transduce\[plot\]"):
        bench.plot([], tmp_path / "x.png")


def test_made_models_are_checkpoints() -> None:
    made = synthetic.checkpoint(shrunk(SIZES["gigaam-v3-ctc"]))
    assert isinstance(made, Checkpoint)
    assert made.spec.head.kind == "ctc"
    assert made.tokenizer.size == made.spec.head.blank
