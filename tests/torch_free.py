"""What holds where torch is not installed. `scripts/test-torch-free` runs it, in an environment without.

Not named like a test, so that other runs leave it alone.
"""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import DEMO, ROOT, read_wav

import transduce
from transduce.errors import MissingExtraError

DIGITS = "examples/digits.wav"
NEED_MORE = ("transduce.nn.", "transduce.server.", "transduce.triton.model")
"""Modules that import torch, the extra `server` or Triton's own library."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transduce", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_torch_cannot_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError, match="torch"):
        importlib.import_module("torch")
    assert "torch" not in sys.modules


def test_the_first_command_of_the_readme() -> None:
    done = run("transcribe", DIGITS, "-m", "demo")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "three seven five three six six three one six\n",
        "",
    )


def test_the_doctor_is_content_and_says_what_is_not_there() -> None:
    done = run("doctor", "--json")
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["healthy"]) == (0, True)
    assert facts["demo"].startswith("right: 'two five' (onnxruntime ")
    assert facts["extra torch"] == 'torch is not installed: pip install "transduce[torch]"'


@pytest.mark.parametrize(
    "arguments",
    [
        ("transcribe", DIGITS, "-m", str(DEMO)),
        ("transcribe", DIGITS, "-m", "demo", "--backend", "torch"),
        ("export", "demo", "exported"),
        ("info", str(DEMO)),
    ],
    ids=["a checkpoint", "the torch engine", "export", "info"],
)
def test_what_needs_torch_names_the_extra_in_one_line(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (3, "")
    assert 'pip install "transduce[torch]"' in line
    assert line.endswith("[missing_extra]")
    assert not (ROOT / "exported").exists()


def test_a_checkpoint_from_python() -> None:
    with pytest.raises(MissingExtraError, match=r"transduce\[torch\]"):
        transduce.load_model(DEMO)


def test_files_arrays_and_subtitles(tmp_path: Path) -> None:
    with transduce.load_model("demo") as model:
        of_file, of_array = model.transcribe(ROOT / DIGITS), model.transcribe(read_wav(ROOT / DIGITS))
    assert of_file.text == of_array.text
    of_file.save(tmp_path / "digits.srt")
    assert (tmp_path / "digits.srt").read_text(encoding="utf-8").startswith("1\n00:00:00,000 --> ")


def test_every_module_but_those_of_extras_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(transduce.__path__, "transduce.")]
    plain = [name for name in names if not name.startswith(NEED_MORE) and not name.endswith("__main__")]
    assert len(plain) > 60
    for name in plain:
        importlib.import_module(name)
    assert "torch" not in sys.modules
