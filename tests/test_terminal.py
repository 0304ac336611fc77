"""The command line in processes of its own: a terminal, signals, pipes that break, locales without UTF-8.

These are POSIX matters; `test_cli` holds all that is alike on every system.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fakes import clicks, write_wav
from support import data

from transduce.writers import FORMATS

pytestmark = pytest.mark.posix

COMMAND = [sys.executable, "-m", "transduce"]
DEMO = ["-m", "demo"]
NAMES = [os.fsencode("запись №1 – тест.wav"), *([b"a\xff.wav"] if sys.platform == "linux" else [])]
"""macOS has no file names that are not UTF-8."""

ASCII_LOCALE = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}


def environment(**extra: str) -> Mapping[str, str]:
    return {**os.environ, "TERM": "xterm", "COLUMNS": "80", **extra}


def on_terminal(folder: Path, *arguments: str, results_too: bool) -> tuple[str, str]:
    """What appears on a terminal that is standard error (and standard output), and on a pipe beside it."""
    master, slave = os.openpty()
    output = slave if results_too else subprocess.PIPE
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment(), stdout=output, stderr=slave, text=True
    )
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    os.close(master)
    piped = process.communicate()[0] or ""
    assert process.returncode == 0
    return shown.decode("utf-8"), piped


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says "input/output error" where the other end is closed
        return b""


def screen(shown: str) -> str:
    """What is left on a terminal: returns, line feeds, "up a line" and "erase the line" are followed."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", shown):
        if part in ("\n", "\x1b[1A"):
            row += 1 if part == "\n" else -1
            lines += [""] * (row + 1 - len(lines))
        elif part in ("\r", "\x1b[2K"):
            column = 0 if part == "\r" else column
            lines[row] = "" if part == "\x1b[2K" else lines[row]
        elif part[0] != "\x1b":
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return "\n".join(lines)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    for name in ("u03.wav", "u17.wav"):
        (tmp_path / name).write_bytes(data(f"audio/{name}").read_bytes())
    return tmp_path


def test_the_bar_is_on_the_terminal_and_the_text_in_the_pipe(recordings: Path) -> None:
    shown, piped = on_terminal(recordings, "transcribe", "u03.wav", *DEMO, results_too=False)
    assert piped == "one\n"
    assert "transcribing" in shown
    assert "0/1" in shown
    assert re.search(r"0:00:01/0:00:01 +\d+x", shown)  # audio done, audio in all, times real time
    assert "one" not in shown


def test_the_bar_makes_way_for_results_on_the_same_terminal(recordings: Path) -> None:
    arguments = ("transcribe", "u03.wav", "u17.wav", *DEMO)
    shown, _ = on_terminal(recordings, *arguments, results_too=True)
    assert shown.count("0/2") > 0
    assert shown.count("2/2") > 0
    assert screen(shown).rstrip("\n") == "== u03.wav ==\none\n\n== u17.wav ==\nseven"
    quiet, _ = on_terminal(recordings, *arguments, "-q", results_too=True)
    assert quiet == "== u03.wav ==\r\none\r\n\r\n== u17.wav ==\r\nseven\r\n\r\n"


def test_an_interrupt_ends_it_with_130_and_keeps_finished_files(tmp_path: Path) -> None:
    for number in range(64):  # a whole round
        write_wav(tmp_path / f"{number}.wav", clicks(0.5, {0.25: 0}))
    os.mkfifo(tmp_path / "never.wav")  # whoever reads it waits for a writer that does not come
    arguments = [
        *COMMAND,
        "transcribe",
        *(f"{number}.wav" for number in range(64)),
        "never.wav",
        *DEMO,
        "-o",
        "out",
    ]
    process = subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list((tmp_path / "out").glob("*.txt"))) == 64)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=30)
    assert (process.returncode, messages) == (130, "")
    assert len(list((tmp_path / "out").iterdir())) == 64


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_reader_that_leaves_is_no_traceback(recordings: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "transcribe", "u03.wav", *DEMO],
        cwd=recordings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize("name", NAMES, ids=["Russian", "not UTF-8"][: len(NAMES)])
def test_any_name_on_an_ascii_terminal(recordings: Path, name: bytes) -> None:
    """Field bug 75."""
    (recordings / os.fsdecode(name)).write_bytes((recordings / "u03.wav").read_bytes())
    shown = name.decode("utf-8", "replace")
    arguments = [*COMMAND, "transcribe", name, b"missing-" + name, name + b".*", *DEMO]
    piped = subprocess.run(arguments, cwd=recordings, env=environment(**ASCII_LOCALE), capture_output=True)
    assert piped.returncode == 1
    assert piped.stdout.decode("utf-8") == f"== {shown} ==\none\n\n"
    missing, no_match = piped.stderr.decode("utf-8").splitlines()
    assert missing.startswith(f"error: missing-{shown} cannot be read: ")
    assert no_match.startswith(f"error: {shown}.*: no file matches")
    to_files = [*COMMAND, "transcribe", name, *DEMO, "-o", "out", "-f", "all"]
    filed = subprocess.run(to_files, cwd=recordings, env=environment(**ASCII_LOCALE), capture_output=True)
    assert (filed.returncode, filed.stdout, filed.stderr) == (0, b"", b"")
    stem = os.fsdecode(name.removesuffix(b".wav"))
    assert (recordings / "out" / f"{stem}.txt").read_bytes() == b"one\n"
    content = json.loads((recordings / "out" / f"{stem}.json").read_bytes().decode("utf-8"))
    assert (content["source"], content["text"]) == (shown, "one")
    assert len(list((recordings / "out").iterdir())) == len(FORMATS)
