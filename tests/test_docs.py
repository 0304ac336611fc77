"""The documentation holds: its commands and snippets run, in order, and give what it shows.

Each page runs in a folder of its own, with stand-ins for the files that pages talk about: recordings of
digits under other names, and the demo for every checkpoint. `transduce serve` starts a real server, on a free
port in the place of 8000, which stays until the next one or the end of the page. What a page shows must come
out, letter by letter; a … in it is what differs from run to run. `pages` knows what runs.
"""

import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_support import until
from pages import MARKS, PAGES, Block, blocks, summary
from support import BUNDLED, DEMO, ROOT, data, utterances

from transduce import cli

DIGITS = ROOT / "examples" / "digits.wav"
PYTHON = shlex.quote(Path(sys.executable).as_posix())
SHELL = f'set -e; transduce() {{ {PYTHON} -m transduce "$@"; }}; python() {{ {PYTHON} "$@"; }}\n'
OPERATORS = re.compile(r"[|&;<>$]|=\S* transduce")
"""What only a shell understands."""


def stand_ins(folder: Path) -> None:
    """The files that the documentation talks about."""
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "digits.tsv", folder / "examples")
    shutil.copytree(BUNDLED / "audio", folder / "tests" / "data" / "audio")
    (folder / "talks").mkdir()
    for name in ("examples/digits.wav", "talk.mp4", "talk.wav", "meeting.mkv", "call.wav"):
        shutil.copy(DIGITS, folder / name)
    truth = {u["file"]: u["text_en"] for u in utterances()}
    for name, day in (("u03.wav", "monday"), ("u17.wav", "tuesday")):
        shutil.copy(data(f"audio/{name}"), folder / "talks" / f"{day}.wav")
        (folder / "talks" / f"{day}.txt").write_text(truth[name], encoding="utf-8")
    rows = ({"audio_filepath": f"talks/{day}.wav", "text": "seven"} for day in ("monday", "tuesday"))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name in ("model.nemo", "parakeet.nemo"):
        shutil.copy(DEMO, folder / name)
    for name in ("v3_e2e_rnnt.ckpt", "v3_e2e_rnnt_tokenizer.model"):
        shutil.copy(BUNDLED / "models" / "gigaam" / name, folder / name)


class Server:
    """A `transduce serve` of a page, on a port of its own."""

    def __init__(self, command: str, port: int) -> None:
        arguments = shlex.split(command)[1:]
        if "--port" in arguments:
            arguments[arguments.index("--port") + 1] = str(port)
        else:
            arguments += ["--port", str(port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transduce", *arguments], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self._lines: list[str] = []
        for line in self._process.stderr:
            self._lines.append(line)
            if "listening on" in line:
                break
        else:
            raise AssertionError(f"{command}: {self._lines}")
        # Its log has to be read on, or it would wait for a reader.
        self._reader = threading.Thread(target=self._lines.extend, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        until(lambda: answers(f"http://127.0.0.1:{port}/ready"), seconds=60.0)

    def stop(self) -> None:
        """End it as a service manager would; it has nothing left to do, so the exit code is 0."""
        self._process.terminate()
        code = self._process.wait(timeout=60)
        self._reader.join(timeout=10)
        assert self._process.stderr is not None
        self._process.stderr.close()
        assert code == 0 or sys.platform == "win32", "".join(self._lines)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Reader:
    """Somebody who does what a page says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._server: Server | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]

    def follow(self, block: Block) -> None:
        if block.language == "sh":
            out = "".join(self._run(command) for command, mark in block.commands() if mark is None)
            has_run = all(mark is None or command.startswith("pip ") for command, mark in block.commands())
        else:
            out, has_run = self._execute(block), True
        if block.shown is not None and has_run:
            check_shown(block, out.replace(os.sep, "/"))

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _here(self, code: str) -> str:
        return code.replace("127.0.0.1:8000", f"127.0.0.1:{self._port}")

    def _execute(self, block: Block) -> str:
        self._capsys.readouterr()
        exec(compile(self._here(block.code), block.place, "exec"), self._names)
        return self._capsys.readouterr().out

    def _run(self, command: str) -> str:
        if command.startswith("transduce serve"):
            self.close()
            self._server = Server(command, self._port)
            return ""
        is_ours = command.startswith("transduce ") and not OPERATORS.search(command)
        return self._run_here(command) if is_ours else self._run_in_shell(command)

    def _run_here(self, command: str) -> str:
        self._monkeypatch.setattr(sys, "argv", shlex.split(command))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = self._capsys.readouterr()
        assert (exited.value.code or 0) == 0, f"{command}\n{err}"
        assert "error" not in err
        assert "warning" not in err
        return out

    def _run_in_shell(self, command: str) -> str:
        bash = shutil.which("bash")
        assert bash is not None
        found = subprocess.run(
            [bash, "-c", SHELL + self._here(command)], capture_output=True, text=True, timeout=300
        )
        assert found.returncode == 0, f"{command}\n{found.stdout}\n{found.stderr}"
        return found.stdout


def check_shown(block: Block, out: str) -> None:
    assert block.shown is not None
    if block.shown.language == "json":
        assert json.loads(out) == json.loads(block.shown.text), block.place
    else:
        pattern = re.escape(block.shown.text).replace("…", ".*")
        assert re.fullmatch(pattern, out), f"{block.place}: {out}"


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    stand_ins(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSDUCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cli.logger, "handlers", [])
    reader = Reader(monkeypatch, capsys)
    yield reader
    reader.close()


def page_of(path: Path) -> Any:
    """The parameter for a page, marked for what its commands need."""
    return pytest.param(path, id=path.name, marks=pytest.mark.ray if path.name == "ray.md" else ())


@pytest.mark.parametrize("page", [page_of(path) for path in PAGES])
def test_a_page_does_what_it_says(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        if block.language in ("sh", "python") and block.mark is None:
            reader.follow(block)
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "yaml":
            assert list(yaml.safe_load_all(block.code))
        else:
            assert block.language in ("sh", "python", "", "text"), f"{block.place}: what is {block.language}?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_is_overlooked(page: Path) -> None:
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    found = list(blocks(page))
    assert len(fences) == 2 * (len(found) + sum(block.shown is not None for block in found))


def test_what_runs_and_what_cannot_is_counted(record_property: Callable[[str, object], None]) -> None:
    record_property("counted", summary())
    found = re.findall(r"\d+", summary())
    assert len(found) == 2 + len(MARKS)
    commands, snippets, *marked = map(int, found)
    assert commands > 40
    assert snippets > 15
    assert sum(marked) < commands + snippets


def test_only_what_must_be_is_marked() -> None:
    """A command that is marked opens a connection, a container or a GPU by what it names."""
    why = {
        "needs-network": r"pip install|https:|parakeet-|gigaam-|download|^transduce transcribe (?!.* -m )",
        "needs-docker": r"docker|compose|kubectl|tritonserver|systemctl|helm",
        "needs-gpu": r"cuda|gpu|bf16|fp16",
    }
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                for command, mark in block.commands():
                    reason = block.code if block.mark else command
                    assert mark is None or re.search(why[mark], reason), f"{block.place}: {command}"


# Figures and the site


def test_the_drawing_shows_the_measured_figures() -> None:
    plot = runpy.run_path(str(ROOT / "scripts" / "plot_decoding"))
    record = json.loads((ROOT / "docs" / "decoding.json").read_text(encoding="utf-8"))
    drawing = (ROOT / "docs" / "decoding.svg").read_text(encoding="utf-8")
    assert drawing == plot["drawn"](record)
    assert {"cpu", "torch"} <= record["machine"].keys()
    for row in record["rows"]:
        assert f">{row['head']}</text>" in drawing


def navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from navigation(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once() -> None:
    """Also a page that mkdocs.yml does not place."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    hooks = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))
    config = hooks["on_config"]({"docs_dir": str(ROOT / "docs"), "nav": site["nav"]})
    pages = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(navigation(config["nav"])) == sorted(pages)


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    """`scripts/docs` checks those of docs/."""
    for page in PAGES[:2]:
        links = re.findall(
            r"\]\(([^)#]+)(?:#[^)]*)?\)|(?:src|href|srcset)=\"([^\"]+)\"", page.read_text("utf-8")
        )
        for link in filter(None, (a or b for a, b in links)):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"
