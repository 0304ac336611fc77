"""int8 that a checkpoint gets while it is loaded: the rule, the speech, the gate, what stays behind."""

import json
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import checkpoint, model_params, path_of
from onnx_cases import labels
from support import data, utterances
from test_openvino import CASES, waveforms
from typer.testing import CliRunner

from transduce.audio import load
from transduce.choice import Choice
from transduce.cli import app
from transduce.onnx import graph, pick, self_calibration
from transduce.onnx.backend import OnnxBackend
from transduce.onnx.calibration import MOST_ERROR, Seen, calibrated, int8_by, relative_error
from transduce.onnx.pick import Pick
from transduce.onnx.precision import Precision
from transduce.onnx.self_calibration import encoded, speech
from transduce.onnx.session import Session
from transduce.onnx.staged import StagedSession
from transduce.transcriber import load_model
from transduce.types import FloatArray

BUNDLED = ("nemo-hybrid", "gigaam-v3_e2e_rnnt")
"""The checkpoints that every clone has, one that normalises its features and one that does not."""


@pytest.fixture
def vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that multiplies bytes, and nothing else in less than 32 bits."""
    machine(monkeypatch, frozenset({"int8"}))


def machine(
    monkeypatch: pytest.MonkeyPatch,
    types: frozenset[str],
    *,
    kind: str = "x86_64",
    saturates: bool = False,
    flags: str = "avx512f avx512_vnni",
    folder: Path | None = None,
) -> None:
    """Let the rule see another CPU."""
    monkeypatch.setattr(pick, "native_types", lambda: types)
    monkeypatch.setattr(pick.platform, "machine", lambda: kind)
    monkeypatch.setattr(pick, "int8_saturates", lambda: saturates)
    if folder is None:
        monkeypatch.setattr(pick, "CPU_INFO", Path("/none"))
    else:
        (folder / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
        monkeypatch.setattr(pick, "CPU_INFO", folder / "cpuinfo")


def opened(name: str, precision: str = "auto") -> OnnxBackend:
    loaded = checkpoint(name)
    return OnnxBackend.of_weights(
        loaded.spec, loaded.weights, engine="openvino", precision=precision, threads=1
    )


def staged(backend: OnnxBackend) -> StagedSession:
    session = backend._session
    assert isinstance(session, StagedSession)
    return session


# The rule

ZEN5 = frozenset({"bf16", "int8"})
AMX = "avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8"


@pytest.mark.parametrize(
    ("types", "cpu", "can_calibrate", "expected", "because"),
    [
        (ZEN5, {}, True, "int8", "VNNI"),
        (ZEN5, {}, False, "bf16", "half the time"),  # files cannot be calibrated
        (ZEN5, {"flags": AMX}, True, "bf16", "AMX"),
        (ZEN5, {"flags": AMX}, False, "bf16", "AMX"),
        (ZEN5, {"saturates": True}, True, "bf16", "half the time"),
        (ZEN5, {"kind": "aarch64"}, True, "bf16", "half the time"),
        (frozenset({"int8"}), {}, True, "int8", "VNNI"),
        (frozenset({"int8"}), {"saturates": True}, True, "fp32", "does not multiply bf16"),
        (frozenset({"bf16"}), {}, True, "bf16", "half the time"),
        (frozenset(), {}, True, "fp32", "does not multiply bf16"),
    ],
)
def test_the_rule(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    types: frozenset[str],
    cpu: dict[str, Any],
    can_calibrate: bool,
    expected: str,
    because: str,
) -> None:
    machine(monkeypatch, types, **cpu, folder=tmp_path)
    picked = pick.pick("auto", "openvino", can_calibrate=can_calibrate)
    assert picked.name == expected
    assert because in picked.reason


def test_without_a_list_of_the_cpus_features_amx_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, ZEN5)
    assert pick.pick("auto", "openvino", can_calibrate=True).name == "int8"


@pytest.mark.parametrize("wanted", ["fp32", "bf16"])
def test_nothing_is_calibrated_unasked(vnni: None, monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setattr(self_calibration, "open_int8", None)
    assert pick.pick(wanted, "openvino", can_calibrate=True) == Pick(wanted)
    assert opened("nemo-hybrid", "fp32").describe()["precision"] == "fp32"


# The speech


def test_the_speech_is_the_same_every_time_and_of_every_kind() -> None:
    one, other = speech(16000), speech(16000)
    for mine, theirs in zip(one.shown + one.held_out, other.shown + other.held_out, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == np.float32
    loudness = [float(np.sqrt(np.mean(clip**2))) for clip in one.shown]
    assert min(loudness) == 0
    assert sorted(loudness)[1] < 0.01
    assert max(loudness) > 0.2
    assert 25 < sum(map(len, one.shown)) / 16000 < 32
    assert 8 < sum(map(len, one.held_out)) / 16000 < 10


def test_the_file_is_small_and_credited() -> None:
    folder = Path(self_calibration.__file__).parent.parent / "models" / "calibration"
    assert (folder / "speech.flac").stat().st_size < 300_000
    assert "CC-BY-SA-4.0" in (folder / "LICENSE").read_text(encoding="utf-8")


def test_no_word_that_errors_are_counted_on_is_in_it() -> None:
    """Every digit of the test recordings, slid along the speech: the same recording of it would correlate
    with 1 somewhere."""
    folder = Path(self_calibration.__file__).parent.parent / "models" / "calibration"
    whole = load(folder / "speech.flac", rate=8000).samples.astype(np.float64)
    size = 1 << (len(whole) + 16000).bit_length()
    spectrum = np.fft.rfft(whole, size)
    energy = np.concatenate([[0.0], np.cumsum(whole**2)])
    most = 0.0
    for utterance, samples in zip(utterances(), waveforms(), strict=True):
        for start, end in utterance["word_spans"]:
            word = samples[round(start * 16000) : round(end * 16000)][::2].astype(np.float64)
            products = np.fft.irfft(spectrum * np.conj(np.fft.rfft(word, size)), size)
            places = len(whole) - len(word)
            norms = np.sqrt((energy[len(word) :][:places] - energy[:places]) * (word @ word)) + 1e-3
            most = max(most, float((products[:places] / norms).max()))
    assert 0.3 < most < 0.9


# What comes of it


@pytest.mark.parametrize("name", model_params(*BUNDLED))
def test_a_checkpoint_is_calibrated_while_it_is_loaded(vnni: None, name: str) -> None:
    """By file, as a user does: bytes are multiplied, it is said, and words are those of fp32."""
    path = data(path_of(name))
    with load_model(path, Choice(precision="auto", threads=1)) as model:
        facts = model.describe()
        assert facts["precision"] == "int8"
        assert "VNNI" in facts["why this precision"]
        assert facts["engine"].startswith("OpenVINO")
        assert "bundled speech" in facts["calibrated"]
        assert 0 < float(facts["calibrated"].split(" by ")[-1].partition("%")[0]) < 5
        assert num_byte_products(model.backend) >= 8 * model.spec.encoder.num_layers
        texts = [model.transcribe(clip).text for clip in waveforms()[:4]]
    with load_model(path, Choice("openvino", threads=1)) as exact:
        assert num_byte_products(exact.backend) == 0
        assert texts == [exact.transcribe(clip).text for clip in waveforms()[:4]]


def test_info_shows_the_choice_and_how_it_was_made(vnni: None) -> None:
    found = CliRunner().invoke(app, ["info", "demo", "--precision", "auto", "--json"])
    assert found.exit_code == 0, found.output
    facts = json.loads(found.stdout)
    assert facts["precision"] == "int8"
    assert {"why this precision", "calibrated"} <= facts.keys()


def num_byte_products(backend: Any) -> int:
    """Products whose inputs OpenVINO has as bytes, by the graph that it runs."""
    compiled = staged(backend).encoder.native.get_compiled_model()  # type: ignore[attr-defined]
    notes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    kinds = [(str(note["layerType"].value), str(note["runtimePrecision"].value)) for note in notes]
    return sum(kind == "FullyConnected" and type_ in ("u8", "i8") for kind, type_ in kinds)


@pytest.mark.parametrize("name", model_params(*BUNDLED))
def test_it_is_what_export_makes_of_that_speech(
    vnni: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    built: list[Precision] = []
    real = graph.build

    def build(spec: Any, weights: Any, precision: Precision, window: Any = None) -> Any:
        built.append(precision)
        return real(spec, weights, precision, window)

    monkeypatch.setattr(self_calibration.graph, "build", build)
    first, second = opened(name), opened(name)
    loaded = checkpoint(name)
    exported = calibrated(loaded.spec, loaded.weights, speech(16000).shown, 1)
    assert [dict(each.ranges or {}) for each in built] == [dict(exported.ranges or {})] * 2
    found = [[labels(each) for each in backend.recognize(waveforms()[:8])] for backend in (first, second)]
    assert found[0] == found[1]
    assert all(found[0])


SPEECH = ("-40 dB", "+15 dB", "clipped", "white noise", "pink noise")
UNLIKE_SPEECH = (*SPEECH, "white noise alone", "tone", "silence")


def unlike(kind: str) -> FloatArray:
    """10 s that the ranges were not taken from."""
    clean = np.concatenate(waveforms()[1:4])[:160_000]
    rng = np.random.default_rng(5)
    white = rng.standard_normal(len(clean)).astype(np.float32)
    made = {
        "-40 dB": clean * 0.01,
        "+15 dB": clean * 5.6,
        "clipped": np.clip(clean * 5.6, -1, 1),
        "white noise": clean + white * clean.std() * 0.5,
        "pink noise": clean + self_calibration._pink(rng, len(clean)) * clean.std(),
        "white noise alone": white * 0.5,
        "tone": 0.5 * np.sin(np.arange(len(clean)) * (2 * np.pi / 16)),
        "silence": np.zeros(len(clean)),
    }
    return made[kind].astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_frames_hold_on_audio_unlike_the_speech(vnni: None, name: str) -> None:
    """Calibrated on clean speech alone the worst of these models had 0.16."""
    clips = [unlike(kind) for kind in UNLIKE_SPEECH]
    exact, session = staged(opened(name, "fp32")), staged(opened(name))
    errors = {
        kind: relative_error([encoded(session, clip)], [encoded(exact, clip)])
        for kind, clip in zip(UNLIKE_SPEECH, clips, strict=True)
    }
    print(name, {kind: round(error, 3) for kind, error in errors.items()})  # noqa: T201
    assert max(errors.values()) < MOST_ERROR
    assert max(error for kind, error in errors.items() if kind in SPEECH) < MOST_ERROR / 2
    assert min(errors.values()) > 0.001


# The gate


def narrow(seen: Iterable[Seen]) -> Precision:
    """Ranges a fifth as wide as they are, so that most of what the encoder does is cut off."""
    found = int8_by(seen)
    assert found.ranges is not None
    return replace(found, ranges={name: (low / 5, high / 5) for name, (low, high) in found.ranges.items()})


@pytest.mark.parametrize(("types", "expected"), [(ZEN5, "bf16"), (frozenset({"int8"}), "fp32")])
def test_int8_that_changes_too_much_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, types: frozenset[str], expected: str
) -> None:
    machine(monkeypatch, types)
    monkeypatch.setattr(self_calibration, "int8_by", narrow)
    monkeypatch.setattr("transduce.onnx.openvino.native_types", lambda: types | {"bf16"})
    backend = opened("gigaam-v3_e2e_rnnt")
    facts = backend.describe()
    assert facts["precision"] == expected
    assert "calibrated" not in facts
    assert "int8 by bundled speech changed frames by" in facts["why this precision"]
    assert "more than 10%" in facts["why this precision"]
    assert expected in facts["why this precision"]
    assert num_byte_products(backend) == 0
    assert labels(backend.recognize(waveforms()[:1])[0])


@pytest.mark.parametrize("errors", [(0.01, 0.2), (0.2, 0.01), (0.01, float("nan")), (float("nan"), 0.01)])
def test_the_worst_clip_decides(
    vnni: None, monkeypatch: pytest.MonkeyPatch, errors: tuple[float, float]
) -> None:
    given = iter(errors)
    monkeypatch.setattr(self_calibration, "relative_error", lambda *_: next(given))
    assert opened("nemo-hybrid").describe()["precision"] == "fp32"


def test_what_judges_is_not_what_was_shown(vnni: None, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[FloatArray] = []
    real = self_calibration.encoded

    def noted(session: StagedSession, clip: FloatArray) -> FloatArray:
        judged.append(clip)
        return real(session, clip)

    monkeypatch.setattr(self_calibration, "encoded", noted)
    assert opened("nemo-hybrid").describe()["precision"] == "int8"
    heard = speech(16000)
    assert len(judged) == len(heard.held_out)
    assert not any(np.array_equal(clip[:8000], shown[:8000]) for clip in judged for shown in heard.shown)


# What stays behind


@pytest.mark.parametrize("is_fit", [True, False])
def test_nothing_stays_behind(
    vnni: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_fit: bool
) -> None:
    """No file, and of the sessions only those that run: the fp32 encoder, and int8 that failed, are gone."""
    made: list[Any] = []
    for owner, method in ((Session, "of_graph"), (StagedSession, "of_graph")):
        real = getattr(owner, method).__func__

        def of_graph(cls: Any, *arguments: Any, real: Any = real, **named: Any) -> Any:
            session = real(cls, *arguments, **named)
            made.append(weakref.ref(session))
            return session

        monkeypatch.setattr(owner, method, classmethod(of_graph))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not is_fit:
        monkeypatch.setattr(self_calibration, "int8_by", narrow)
    backend = opened("gigaam-v3_e2e_rnnt")
    session = staged(backend)
    running: Sequence[Any] = [session, session.frontend, session.decoder]
    alive = [found for reference in made if (found := reference()) is not None]
    assert len(made) == 4 + 3 * (not is_fit)
    assert {id(each) for each in alive} == {id(each) for each in running}
    assert list(tmp_path.iterdir()) == []
    assert backend.describe()["precision"] == ("int8" if is_fit else "fp32")
