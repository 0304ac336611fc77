"""`transduce models | download | cache | verify`, against a fake hub that serves the small checkpoints.

What `verify` expects are upstream's own answers (the goldens); the recordings are the bundled utterances.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from hub_server import FakeHub, Fault, HubServer, no_proxies, running
from support import DEMO, data, golden
from typer.testing import CliRunner

from transduce import cli_models, hub
from transduce.checkpoints import onnx_layouts
from transduce.cli_models import Verification
from transduce.errors import CheckpointError
from transduce.hub import progress
from transduce.hub.cache import Cache
from transduce.hub.catalogue import Artefact, Catalogue, Entry, RepoFiles, Sample, WebFile
from transduce.hub.http import Policy
from transduce.hub.selection import CheckpointFile
from transduce.hub.settings import Settings
from transduce.transcriber import Model

UTTERANCE = 0


@dataclass
class Shell:
    """The commands with the settings of a test, and what they said."""

    hub: HubServer
    storage: HubServer
    settings: Settings

    def run(self, *arguments: str, answer: str = "") -> Any:
        app = typer.Typer(pretty_exceptions_enable=False)
        cli_models.register(app)
        return CliRunner().invoke(app, arguments, input=answer, obj=self.settings)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        return json.loads(result.stdout)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    no_proxies(monkeypatch)
    for name in ("TRANSDUCE_BACKEND", "TRANSDUCE_PRECISION", "TRANSDUCE_OFFLINE", "TRANSDUCE_JSON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    with running(HubServer()) as front, running(HubServer()) as storage:
        fake = FakeHub(front, storage)
        fake.add("nvidia/digits", {"digits.nemo": DEMO.read_bytes()})
        settings = Settings(
            cache=Cache(tmp_path / "cache"),
            catalogue=digits_catalogue(storage),
            endpoint=front.url,
            policy=Policy(timeout_seconds=5, sleep=lambda _: None),
            announce=lambda line: typer.echo(line, err=True),
            progress=progress.silent,
        )
        yield Shell(front, storage, settings)


def digits_catalogue(storage: HubServer) -> Catalogue:
    """NeMo's checkpoint from a repository and GigaAM's from a server, with upstream's texts for a sample."""
    name = f"u{UTTERANCE:02d}.wav"
    recording = WebFile(name, storage.put(f"/{name}", data(f"audio/{name}").read_bytes()))
    checkpoint = tuple(
        WebFile(path, storage.put(f"/{path}", data(f"models/gigaam/{path}").read_bytes()))
        for path in ("v3_e2e_rnnt.ckpt", "v3_e2e_rnnt_tokenizer.model")
    )
    nemo = Artefact("nemo", ("torch",), RepoFiles("nvidia/digits", CheckpointFile()), main=("*.nemo",))
    return Catalogue(
        (
            Entry("digits", (nemo,), sample=Sample(recording, text("nemo-hybrid"), "NeMo")),
            Entry(
                "v3-e2e-rnnt",
                (Artefact("checkpoint", ("torch",), checkpoint, main=("*.ckpt",)),),
                aliases=("rnnt",),
                sample=Sample(recording, text("gigaam-v3_e2e_rnnt"), "GigaAM"),
            ),
        )
    )


def text(name: str) -> str:
    answer: str = golden(name)["utterances"][UTTERANCE]["text"]
    return answer


# models


def test_models_lists_every_name(shell: Shell) -> None:
    shell.settings = replace(shell.settings, catalogue=hub.catalogue())
    result = shell.run("models")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "LANGUAGES", "SIZE", "LICENCE", "READS", "CACHED"]
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in hub.catalogue().entries]
    assert shell.hub.requests == []


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        (("--backend", "onnx"), "onnx"),
        (("--backend", "torch"), "nemo"),
        (("--backend", "onnx", "--precision", "int8"), "onnx-int8"),
    ],
)
def test_models_says_what_an_engine_would_read(shell: Shell, options: tuple[str, ...], reads: str) -> None:
    shell.settings = replace(shell.settings, catalogue=hub.catalogue())
    first = shell.json("models", *options)[0]
    assert (first["name"], first["reads"], first["cached"]) == ("parakeet-tdt-0.6b-v3", reads, False)
    assert first["licence"] == "CC-BY-4.0"


def test_models_knows_what_no_engine_here_reads_and_what_is_cached(shell: Shell) -> None:
    assert {model["name"]: model["reads"] for model in shell.json("models", "--backend", "onnx")} == {
        "digits": None,
        "v3-e2e-rnnt": None,
    }
    assert shell.run("download", "digits", "--backend", "torch").exit_code == 0
    cached = {model["name"]: model["cached"] for model in shell.json("models", "--backend", "torch")}
    assert cached == {"digits": True, "v3-e2e-rnnt": False}


# download


def test_download_prints_the_path_and_says_one_line(shell: Shell) -> None:
    result = shell.run("download", "rnnt", "digits", "--backend", "torch")
    assert result.exit_code == 0
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in paths] == ["v3_e2e_rnnt.ckpt", "digits.nemo"]
    assert paths[1].read_bytes() == DEMO.read_bytes()
    assert [line.split()[:2] for line in result.stderr.splitlines()] == [
        ["downloading", "v3-e2e-rnnt:"],
        ["downloading", "digits:"],
    ]
    again = shell.run("download", "digits", "--backend", "torch", "--offline")
    assert (again.exit_code, again.stdout, again.stderr) == (0, f"{paths[1]}\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nobody",), "[download]"),
        (("digits", "--offline"), "missing: one .nemo"),
        (("digits", "--backend", "onnx"), "[missing_extra]"),
        (("missing.nemo",), "[checkpoint]"),
    ],
)
def test_what_cannot_be_had_ends_with_3(shell: Shell, arguments: tuple[str, ...], words: str) -> None:
    result = shell.run("download", *arguments)
    assert result.exit_code == 3
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert words in line


# cache


def test_the_cache_is_shown(shell: Shell) -> None:
    empty = shell.run("cache", "show")
    assert empty.stdout == f"{shell.settings.cache.root}: 0 bytes\n"
    shell.run("download", "digits", "--backend", "torch")
    shell.storage.faults["/v3_e2e_rnnt_tokenizer.model"].append(Fault(404))
    shell.run("download", "rnnt", "--backend", "torch")
    shown = shell.json("cache", "show")
    assert {m["name"]: (m["whole"], m["missing"]) for m in shown["models"]} == {
        "digits": (True, []),
        "v3-e2e-rnnt": (False, ["v3_e2e_rnnt_tokenizer.model"]),
    }
    sizes = [model["bytes"] for model in shown["models"]]
    assert shown["bytes"] == sum(sizes)
    assert shown["bytes"] > DEMO.stat().st_size + data("models/gigaam/v3_e2e_rnnt.ckpt").stat().st_size
    lines = shell.run("cache", "show").stdout.splitlines()
    assert lines[2].split()[:5] == ["digits", "nemo", "6.9", "MB", "whole"]
    assert "partly there" in lines[1]


@contextmanager
def anybody() -> Iterator[None]:
    """As a user who may not read everything."""
    user = os.geteuid()
    try:
        os.seteuid(65534 if user == 0 else user)
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that anybody may enter; pytest's own are only for who runs it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.posix
@pytest.mark.parametrize("locked", [".", "nemo", "nemo/digits"])
def test_a_cache_that_may_not_be_read_is_not_called_empty(shell: Shell, reachable: Path, locked: str) -> None:
    shell.settings = replace(shell.settings, cache=Cache(reachable))
    shell.run("download", "digits", "--backend", "torch")
    (reachable / locked).chmod(0)
    with anybody():
        for command in ("models", "cache show", "cache prune --all", "download digits --backend torch"):
            result = shell.run(*command.split())
            assert (result.exit_code, result.stdout) == (3, "")
            reason = "cannot be read (Permission denied); change its permissions, or set TRANSDUCE_CACHE"
            assert result.stderr.startswith(f"error: {reachable}")
            assert reason in result.stderr
    (reachable / locked).chmod(0o755)


@pytest.mark.posix
def test_a_model_that_may_not_be_read_is_not_called_missing(reachable: Path) -> None:
    model = reachable / "model"
    model.mkdir()
    (model / "model.onnx").write_bytes(b"")
    (reachable / "model.nemo").write_bytes(b"")
    for locked, named in ((model, model), (model, model / "model.onnx"), (reachable / "model.nemo",) * 2):
        locked.chmod(0)
        with anybody(), pytest.raises(CheckpointError, match="cannot be read") as caught:
            hub.find_model(str(named), hub.catalogue())
        assert str(caught.value).startswith(str(named))
        locked.chmod(0o755)


def test_pruning_asks_before(shell: Shell) -> None:
    shell.run("download", "digits", "--backend", "torch")
    for answer in ("n\n", ""):
        refused = shell.run("cache", "prune", "DIGITS", answer=answer)
        assert refused.exit_code == 1
        assert "Remove 1 of them, 6.9 MB?" in refused.stderr
        assert len(shell.settings.cache.all()) == 1
    assert shell.run("cache", "prune", "digits", answer="y\n").exit_code == 0
    assert shell.settings.cache.all() == []


def test_pruning_by_alias_and_all(shell: Shell) -> None:
    for name in ("digits", "rnnt", "hf:nvidia/digits"):
        shell.run("download", name, "--backend", "torch")
    assert shell.run("cache", "prune", "rnnt", "--yes").exit_code == 0
    assert [cached.name for cached in shell.settings.cache.all()] == ["hf:nvidia/digits", "digits"]
    assert shell.run("cache", "prune", "hf:nvidia/digits", "--yes").exit_code == 0
    assert shell.run("cache", "prune", "--all", "--yes").exit_code == 0
    assert shell.settings.cache.all() == []
    nothing = shell.run("cache", "prune", "--all")
    assert (nothing.exit_code, nothing.stderr) == (0, "nothing is cached\n")


def test_pruning_what_is_not_there(shell: Shell) -> None:
    shell.run("download", "digits", "--backend", "torch")
    result = shell.run("cache", "prune", "digits", "rnnt", "--yes")
    assert result.exit_code == 1
    assert "rnnt is not in the cache, which holds digits" in result.stderr
    assert len(shell.settings.cache.all()) == 1


@pytest.mark.parametrize("arguments", [(), ("--all", "digits")])
def test_pruning_needs_names_or_all(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell.run("cache", "prune", *arguments).exit_code == 2


# verify


@pytest.mark.parametrize(("name", "expected"), [("digits", "nemo-hybrid"), ("rnnt", "gigaam-v3_e2e_rnnt")])
def test_a_right_model_writes_upstreams_text(shell: Shell, name: str, expected: str) -> None:
    facts = shell.json("verify", name, "--backend", "torch")
    assert facts["found"] == facts["expected"] == text(expected)
    assert (facts["word_errors"], facts["verdict"]) == (0, "the same text")
    assert facts["runs_on"].startswith("torch ")


def test_what_was_verified_once_can_be_verified_offline(shell: Shell) -> None:
    assert shell.run("verify", "digits", "--backend", "torch").exit_code == 0
    again = shell.run("verify", "digits", "--backend", "torch", "--offline")
    assert again.exit_code == 0
    assert again.stderr == ""
    assert text("nemo-hybrid") in again.stdout


@pytest.mark.parametrize(
    ("found", "num_errors", "verdict", "is_good"),
    [
        ("Дуб зелёный, мои. Don't", 0, "the same text", True),
        ("дуб зеленый мои don't", 0, "the same words", True),
        ("дуб зеленый мой don't", 1, "1 word of 4 differ", True),
        ("а дуб зеленый мои don't", 1, "1 word of 4 differ", True),
        ("дуб зеленый мои", 1, "1 word of 4 differ", True),
        ("дуб мои don't you", 2, "2 words of 4 differ", False),
        ("quite another text", 4, "4 words of 4 differ", False),
        ("", 4, "4 words of 4 differ", False),
    ],
)
def test_texts_are_compared_by_words(found: str, num_errors: int, verdict: str, is_good: bool) -> None:
    result = Verification("m", "/m", "torch", "/s.wav", "upstream", "Дуб зелёный, мои. Don't", found)
    assert (result.num_word_errors, result.verdict, result.is_good) == (num_errors, verdict, is_good)


def test_a_wrong_text_ends_with_1(shell: Shell) -> None:
    (digits, *_) = shell.settings.catalogue.entries
    assert digits.sample is not None
    changed = replace(digits, sample=replace(digits.sample, text="something else altogether was said here"))
    shell.settings = replace(shell.settings, catalogue=Catalogue((changed,)))
    result = shell.run("verify", "digits", "--backend", "torch")
    assert result.exit_code == 1
    assert "6 words of 6 differ" in result.stdout


def test_a_model_without_a_published_text_has_to_run(shell: Shell) -> None:
    facts = shell.json("verify", "hf:nvidia/digits", "--backend", "torch")
    assert facts["found"] == "two five"  # what is said in the bundled clip
    assert facts["word_errors"] is None
    assert facts["verdict"] == "runs; no text is published to compare with"


def test_the_demo_and_a_path_can_be_verified_without_a_network(shell: Shell) -> None:
    shell.settings = replace(shell.settings, catalogue=hub.catalogue())
    assert shell.json("verify", "demo", "--backend", "torch")["verdict"] == "the same text"
    assert shell.json("verify", str(DEMO), "--backend", "torch")["found"] == "two five"
    assert shell.hub.requests == []


def test_a_changed_file_is_found_before_the_model_runs(shell: Shell) -> None:
    path = Path(shell.run("download", "digits", "--backend", "torch").stdout.strip())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    result = shell.run("verify", "digits", "--backend", "torch")
    assert result.exit_code == 3
    assert "digits.nemo; remove it with `transduce cache prune digits`" in result.stderr
    assert shell.run("cache", "prune", "digits", "--yes").exit_code == 0
    assert shell.run("verify", "digits", "--backend", "torch").exit_code == 0


def test_a_sample_that_cannot_be_had_ends_with_3(shell: Shell) -> None:
    shell.storage.always[f"/u{UTTERANCE:02d}.wav"] = Fault(404)
    result = shell.run("verify", "digits", "--backend", "torch")
    assert result.exit_code == 3
    assert f"u{UTTERANCE:02d}.wav" in result.stderr


def test_without_settings_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSDUCE_CACHE", str(tmp_path / "elsewhere"))
    app = typer.Typer()
    cli_models.register(app)
    assert CliRunner().invoke(app, ["cache", "show"]).stdout == f"{tmp_path / 'elsewhere'}: 0 bytes\n"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = CliRunner().invoke(app, ["download", hub.DEFAULT_MODEL, "-q"])
    assert result.exit_code == 3
    assert "HF_HUB_OFFLINE is set" in result.stderr


def test_an_export_from_the_hub_is_one_that_the_onnx_reader_takes(shell: Shell) -> None:
    """GigaAM's own export; what lies beside the graphs has to come along."""
    folder = data("models/onnx/gigaam-v3_e2e_rnnt")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    fake = FakeHub(shell.hub, shell.storage)
    fake.add("o/gigaam-v3-export", files | {"README.md": b"read me"})
    result = shell.run("download", "hf:o/gigaam-v3-export", "--backend", "onnx")
    path = Path(result.stdout.strip())
    assert {found.name for found in path.iterdir()} == {*files, ".files.json"}
    backend, tokenizer = onnx_layouts.load(path)
    with Model(backend, tokenizer) as model:
        found = model.transcribe(data(f"audio/u{UTTERANCE:02d}.wav")).text
    assert found == text("gigaam-v3_e2e_rnnt")
