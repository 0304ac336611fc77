"""What tests share: where reference material lies, how to read it, how many cases to run.

In: the bundled set (`tests/data`, the demo model) and, where it is there, the full set (`../shared`,
or the folder that TRANSDUCE_SHARED names). Out: paths, goldens, utterances and waveforms. Nothing here
uses the package under test.

A test that reads what is not bundled carries the marker `shared`; `param` sets it where it is due.
`data` refuses to give anything else to a test without it, so that what passes here passes in a clone.
"""

import json
import os
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "tests" / "data"
MANIFEST = BUNDLED / "MANIFEST.sha256"
DEMO = ROOT / "src" / "transduce" / "models" / "demo" / "hybrid.nemo"
SHARED = Path(os.environ.get("TRANSDUCE_SHARED") or ROOT.parent / "shared")

PROVE = os.environ.get("TRANSDUCE_PROVE") == "1"
"""Whether `scripts/prove` runs the full counts."""

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
"""The browser of the page's tests; None where it is not installed."""

TRITON_ENV = ROOT / ".ci" / ".venv-triton"
TRITON_NUMPY2_ENV = ROOT / ".ci" / ".venv-triton-numpy2"
"""What `scripts/make_triton_env` makes: a tritonserver with our package beside it; `made` comes last."""

_ELSEWHERE = {"models/nemo/hybrid.nemo": DEMO}
"""Bundled files whose only copy ships in the package, by their name in `../shared`."""

_shared_allowed = False


def allow_shared(allowed: bool) -> None:
    """Say whether the test about to run may read `../shared` (conftest calls it for every test)."""
    global _shared_allowed
    _shared_allowed = allowed


def _bundled(path: str) -> Path:
    return _ELSEWHERE.get(path, BUNDLED / path)


def data(path: str) -> Path:
    """The file or folder of that name in `../shared`: its bundled copy, or else the original."""
    bundled = _bundled(path)
    if bundled.exists():
        return bundled
    if not _shared_allowed:
        raise LookupError(f"{path} is not bundled: mark the test with pytest.mark.shared (see support.param)")
    if not (SHARED / path).exists():
        raise LookupError(f"{path} is neither bundled nor in {SHARED}")
    return SHARED / path


def param(name: str, *paths: str) -> Any:
    """A pytest parameter `name`, marked `shared` unless each of `paths` (or `name`) is bundled."""
    bundled = all(_bundled(path).exists() for path in paths or (name,))
    return pytest.param(name, id=name, marks=() if bundled else pytest.mark.shared)


def golden(name: str) -> dict[str, Any]:
    """What upstream answers: `golden/<name>.json`, with one entry an utterance under "utterances"."""
    content: dict[str, Any] = json.loads(data(f"golden/{name}.json").read_text(encoding="utf-8"))
    return content


def utterances() -> list[dict[str, Any]]:
    """The 40 bundled utterances in order: "file", "text_en", "text_ru", "word_spans" (seconds), ..."""
    content: list[dict[str, Any]] = json.loads(data("audio/utterances.json").read_text(encoding="utf-8"))
    return content


def read_wav(path: str | Path) -> npt.NDArray[np.float32]:
    """A 16-bit mono wav file as float32 `[n]` in [-1, 1); a name is looked up under `audio/`."""
    location = path if isinstance(path, Path) else data(f"audio/{path}")
    with wave.open(str(location), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2), f"{path} is not 16-bit mono"
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    waveform: npt.NDArray[np.float32] = samples.astype(np.float32) / np.float32(32768)
    return waveform


def num_cases(quick: int, full: int) -> int:
    """How many random cases a test runs: `quick` in CI, `full` under `scripts/prove`."""
    return full if PROVE else quick
