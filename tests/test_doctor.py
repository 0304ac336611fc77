"""`doctor` says what works here, and a broken part is a finding, never an exception."""

import importlib.metadata
import re
import sys
from importlib.metadata import PackageNotFoundError
from typing import NoReturn

import pytest
from support import ROOT

from transduce import Transcript, doctor, hub
from transduce.errors import DeviceError
from transduce.transcriber import Model


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch had never been installed or imported."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("transduce.nn.")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_sound_installation_is_healthy() -> None:
    findings = doctor.examine()
    assert findings.is_healthy
    assert findings.demo.startswith("right: 'two five' (torch ")
    assert findings.facts["transduce"] == importlib.metadata.version("transduce")
    assert findings.facts["numpy"] == importlib.metadata.version("numpy")
    assert findings.facts["extra torch"].startswith(
        f"torch {importlib.metadata.version('torch')}, safetensors "
    )
    for library in ("av", "soundfile", "soxr"):
        assert findings.facts[library].startswith(importlib.metadata.version(library))
    assert int(findings.facts["cpus"]) >= 1


def test_the_facts_are_plain_text_and_become_json() -> None:
    content = doctor.examine().to_dict()
    assert content.pop("healthy") is True
    assert all(isinstance(value, str) and value and "\n" not in value for value in content.values())


def test_every_extra_of_an_engine_is_listed_as_it_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, distributions in doctor.EXTRAS.items():
        (declared,) = re.findall(rf"^{name} = \[(.+?)\]$", project, re.MULTILINE | re.DOTALL)
        names = {re.split(r"[<>=\[]", text)[0] for text in re.findall('"(.+?)"', declared)}
        assert names >= set(distributions)


def test_a_missing_engine_is_a_finding_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo runs all the same: its graph needs onnxruntime alone."""
    without_torch(monkeypatch)
    findings = doctor.examine()
    assert findings.facts["extra torch"] == 'torch is not installed: pip install "transduce[torch]"'
    assert findings.facts["cuda"].startswith("not looked for")
    assert findings.is_healthy
    assert "onnxruntime" in findings.demo


def test_no_engine_at_all_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "installed_engines", tuple)
    findings = doctor.examine()
    assert not findings.is_healthy
    assert 'pip install "transduce[torch]"' in findings.demo
    assert 'pip install "transduce[cpu]"' in findings.demo


@pytest.mark.parametrize(
    "fault", [OSError("libtorch.so is missing"), RuntimeError("broken"), DeviceError("none")]
)
def test_a_broken_engine_is_a_finding(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def load(name: str) -> NoReturn:
        raise fault

    monkeypatch.setattr(doctor, "load_model", load)
    findings = doctor.examine()
    assert (findings.demo, findings.is_healthy) == (f"failed: {fault}", False)


def test_a_wrong_transcript_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Transcript("four", (), (), (), 1.0)
    monkeypatch.setattr(Model, "transcribe", lambda self, source: wrong)
    findings = doctor.examine()
    assert not findings.is_healthy
    assert "wrong: 'four' where 'two five' was said" in findings.demo
