"""Word errors: counted by hand and by theory, from manifests of every form, and as pages.

Expected counts never come from jiwer: they are counted by hand, by the distance of `wer`, or upstream's own.
The recogniser is `clicks` where speech does not matter.
"""

import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer
from fakes import ClickBackend, click_model, clicks, write_wav
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support import CHROMEDRIVER, CHROMIUM, data, golden, num_cases, utterances
from wer import word_errors

from transduce import cli, cli_eval
from transduce.choice import Choice
from transduce.evaluate import NORMALIZERS, Counts, compare, marked, read_manifest
from transduce.transcriber import Model, load_model

DRAW = random.Random(11)

# Scoring


@pytest.mark.parametrize(
    ("reference", "hypothesis", "substitutions", "deletions", "insertions", "line"),
    [
        ("one two three", "one two three", 0, 0, 0, "one two three"),
        ("one two three", "one six three", 1, 0, 0, "one [two>six] three"),
        ("one two three", "one three", 0, 1, 0, "one [-two] three"),
        ("one three", "one two three", 0, 0, 1, "one [+two] three"),
        ("one two", "", 0, 2, 0, "[-one two]"),
        ("", "one two", 0, 0, 2, "[+one two]"),
        ("", "", 0, 0, 0, ""),
        ("a b c d", "b c d e", 0, 1, 1, "[-a] b c d [+e]"),
    ],
)
def test_words_are_counted_as_by_hand(
    reference: str, hypothesis: str, substitutions: int, deletions: int, insertions: int, line: str
) -> None:
    found = compare(reference, hypothesis)
    counts = (found.words.substitutions, found.words.deletions, found.words.insertions)
    assert counts == (substitutions, deletions, insertions)
    assert found.words.length == len(reference.split())
    assert marked(found.stretches) == line


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors", "length"),
    [
        ("abc", "abd", 1, 3),
        ("one two", "onetwo", 1, 7),  # the space is a character
        ("one", "", 3, 3),
        ("", "ab", 2, 0),
        ("kitten", "sitting", 3, 6),  # the example of every textbook
    ],
)
def test_characters_are_counted_as_by_hand(reference: str, hypothesis: str, errors: int, length: int) -> None:
    characters = compare(reference, hypothesis).characters
    assert (characters.errors, characters.length) == (errors, length)


def test_random_texts_have_the_distance_of_the_definition(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("random pairs", num_cases(200, 5000))
    for _ in range(num_cases(200, 5000)):
        true, other = (" ".join(DRAW.choices("abcde", k=DRAW.randrange(9))) for _ in range(2))
        found = compare(true, other)
        assert found.words.errors == word_errors(true, other)
        assert found.characters.errors == word_errors(*(" ".join(t.replace(" ", "_")) for t in (true, other)))
        assert " ".join(filter(None, (part.reference for part in found.stretches))) == true
        assert " ".join(filter(None, (part.hypothesis for part in found.stretches))) == other


def test_a_rate_is_that_of_all_words_together() -> None:
    total = Counts.total([Counts(hits=8, substitutions=2), Counts(deletions=1), Counts(insertions=1)])
    assert (total.errors, total.length, total.rate) == (4, 11, 4 / 11)
    assert Counts(insertions=3).rate is None


@pytest.mark.parametrize(
    ("text", "plain", "basic", "whisper"),
    [
        ("  One,\ttwo.\n", "One, two.", "one two", "one two"),
        ("Её ёлка", "Её ёлка", "ее елка", "её ёлка"),
        ("е\u0308ж", "е\u0308ж", "еж", "ёж"),
        ("Don\u2019t 'quote'", "Don\u2019t 'quote'", "don't quote", "don t quote"),
        ("кое-что", "кое-что", "кое что", "кое что"),
        ("[noise] yes (laughs)", "[noise] yes (laughs)", "noise yes laughs", "yes"),
        ("№1 — 50 %", "№1 — 50 %", "no1 50", "no1 50"),
        ("हिन्दी", "हिन्दी", "हिन्दी", "ह न द"),
        ("", "", "", ""),
    ],
)
def test_normalisers(text: str, plain: str, basic: str, whisper: str) -> None:
    expected = {"none": plain, "basic": basic, "whisper": whisper}
    assert {name: normalize(text) for name, normalize in NORMALIZERS.items()} == expected


def test_normalising_twice_changes_nothing() -> None:
    alphabet = "aЁё'’`-—.,!?()[]<> \t№ß½İ"
    for _ in range(num_cases(300, 5000)):
        text = "".join(DRAW.choices(alphabet, k=DRAW.randrange(20)))
        for name in ("basic", "none"):
            once = NORMALIZERS[name](text)
            assert NORMALIZERS[name](once) == once
            assert once == " ".join(once.split())


# Manifests


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_json_lines_as_nemo_writes_them(here: Path) -> None:
    manifest = write_lines(
        here / "test.json",
        '{"audio_filepath": "a.wav", "duration": 1.5, "text": "один"}',
        "",
        '{"audio_filepath": "/data/b.wav", "duration": 2.0, "text": "", "offset": 10.5, "lang": "ru"}',
    )
    first, second = read_manifest(manifest)
    assert (first.name, first.path, first.text) == ("a.wav", here / "a.wav", "один")
    assert (first.duration_seconds, first.is_part, first.end_seconds) == (1.5, False, None)
    assert (second.path, second.text) == (Path("/data/b.wav"), "")
    assert (second.start_seconds, second.end_seconds) == (10.5, 12.5)
    assert second.name == "/data/b.wav from 10.5 s"


@pytest.mark.parametrize(
    "lines",
    [
        ["a.wav\tone two", "b.wav\tthree"],
        ["path\tsentence", "a.wav\tone two", "b.wav\tthree"],
        ["client_id\tPath\tsentence\tduration", "x\ta.wav\tone two\t1.0", "y\tb.wav\tthree\t"],
    ],
    ids=["no header", "header", "more columns"],
)
def test_tables(here: Path, lines: list[str]) -> None:
    found = read_manifest(write_lines(here / "test.tsv", *lines))
    assert [(u.path.name, u.text) for u in found] == [("a.wav", "one two"), ("b.wav", "three")]


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(here: Path) -> None:
    (here / "test.tsv").write_bytes("\ufeffpath\ttext\r\na.wav\tone\r\n".encode())
    (found,) = read_manifest(here / "test.tsv")
    assert (found.path, found.text) == (here / "a.wav", "one")


def test_a_folder_of_pairs(here: Path) -> None:
    for name in ("a.wav", "deep/b.flac", "alone.wav"):
        (here / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "set" / name).touch()
    write_lines(here / "set" / "a.txt", "one")
    write_lines(here / "set" / "deep" / "b.txt", "two")
    write_lines(here / "set" / "notes.txt", "of no recording")
    assert [(u.name, u.text.strip()) for u in read_manifest(here / "set")] == [
        ("a.wav", "one"),
        ("deep/b.flac", "two"),
    ]


# The command


class Run:
    """What a command gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.out)
        return content


Runner = Callable[..., Run]


@pytest.fixture
def backend() -> ClickBackend:
    return ClickBackend()


@pytest.fixture
def run(
    here: Path, backend: ClickBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    """`transduce eval` with arguments; models that begin with `clicks` are the recogniser of clicks."""

    def load(name: str, choice: Choice, **options: Any) -> Model:
        return click_model(backend) if name.startswith("clicks") else load_model(name, choice, **options)

    monkeypatch.setattr(cli_eval, "load_model", load)
    monkeypatch.setattr(cli.logger, "handlers", [])

    def call(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["transduce", "eval", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return Run(int(exited.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def manifest(here: Path) -> Path:
    """Three recordings of one second: "one two" and "three", said to be "one two", "four" and a Russian ё."""
    write_wav(here / "a.wav", clicks(1, {0.3: 0, 0.6: 1}))
    write_wav(here / "b.wav", clicks(1, {0.5: 2}))
    return write_lines(
        here / "test.jsonl",
        '{"audio_filepath": "a.wav", "text": "One, two!"}',
        '{"audio_filepath": "b.wav", "text": "four"}',
        '{"audio_filepath": "a.wav", "text": "one two ёж"}',
    )


def test_a_table_and_the_worst(run: Runner, manifest: Path) -> None:
    found = run(manifest, "-m", "clicks")
    assert (found.code, found.err) == (0, "")
    row = next(line.split() for line in found.out.splitlines() if line.strip().startswith("clicks"))
    # 6 true words: "four" is wrong, "ёж" lost. Of 7 + 4 + 10 characters "four" to "three" is 5, " ёж" 3.
    assert row[:8] == ["clicks", "33.33", "38.10", "6", "1", "1", "0", "0"]
    assert "normaliser basic" in found.out
    tail = found.out[found.out.index("b.wav") :]
    assert tail == "b.wav\n  [four>three]\n\na.wav\n  one two [-еж]\n"


def test_the_same_as_json(run: Runner, manifest: Path, backend: ClickBackend) -> None:
    backend.fault = lambda batch: time.sleep(0.1)
    content = run(manifest, "-m", "clicks", "--json", "--normalizer", "none").json
    (system,) = content["systems"]
    assert (content["schema"], content["normalizer"], system["utterances"]) == (1, "none", 3)
    words = {"reference": 6, "substitutions": 3, "deletions": 1, "insertions": 0}
    assert (system["words"], system["wer"]) == (words, pytest.approx(4 / 6, abs=1e-6))
    assert system["audio_seconds"] == 3.0
    assert system["rtfx"] == pytest.approx(3 / system["seconds"], rel=0.02)
    assert 0.1 <= system["seconds"] < 5
    assert {"cpu", "cpus", "python", "jiwer"} <= content["machine"].keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", content["date"])
    (result,) = content["utterances"][2]["results"]
    assert result["text"] == "one two"
    assert result["differences"] == [{"kind": "delete", "word": 2, "reference": "ёж", "hypothesis": ""}]


def test_upstreams_errors_are_counted_on_real_speech(
    run: Runner, here: Path, record_property: Callable[[str, object], None]
) -> None:
    """NeMo itself has 3 wrong words of 197 on these recordings, and so have we."""
    truth = golden("nemo-hybrid")
    lines = (
        json.dumps({"audio_filepath": str(data(f"audio/{u['file']}")), "text": u["text_en"]})
        for u in utterances()
    )
    write_lines(here / "digits.jsonl", *lines)
    content = run("digits.jsonl", "-m", "demo", "--json").json
    (system,) = content["systems"]
    errors = sum(system["words"][kind] for kind in ("substitutions", "deletions", "insertions"))
    assert (errors, system["words"]["reference"]) == (truth["word_errors"], truth["words"]) == (3, 197)
    record_property("wrong words, ours and NeMo's", f"{errors} of {system['words']['reference']}")
    by_hand = [
        word_errors(u["text_en"], t["text"]) for u, t in zip(utterances(), truth["utterances"], strict=True)
    ]
    assert [
        sum(utterance["results"][0]["words"][kind] for kind in ("substitutions", "deletions", "insertions"))
        for utterance in content["utterances"]
    ] == by_hand


def test_models_and_ways_to_run_them_stand_side_by_side(run: Runner, manifest: Path) -> None:
    content = run(manifest, "-m", "clicks", "-m", "clicks2", "--precision", "fp32,int8", "--json").json
    labels = ["clicks fp32", "clicks int8", "clicks2 fp32", "clicks2 int8"]
    assert [system["label"] for system in content["systems"]] == labels
    assert all(len(utterance["results"]) == 4 for utterance in content["utterances"])


def test_heads_stand_side_by_side(run: Runner, here: Path) -> None:
    """Upstream's two heads agree on the first recording and not on the second."""
    numbers = (3, 9)
    truth = [golden("nemo-hybrid")["utterances"][number] for number in numbers]
    lines = (f"{data(f'audio/u{n:02}.wav')}\t{utterances()[n]['text_en']}" for n in numbers)
    write_lines(here / "m.tsv", *lines)
    arguments = ("m.tsv", "-m", "demo", "--head", "tdt", "--head", "ctc", "--json", "--html", "r.html")
    content = run(*arguments).json
    heads = [(system["label"], system["model"]["head"]) for system in content["systems"]]
    assert heads == [("demo tdt", "tdt"), ("demo ctc", "ctc")]
    texts = [[result["text"] for result in row["results"]] for row in content["utterances"]]
    assert texts == [[upstream["text"], upstream["ctc"]["text"]] for upstream in truth]
    assert [tdt == ctc for tdt, ctc in texts] == [True, False]
    page = (here / "r.html").read_text(encoding="utf-8")
    assert re.findall('<tr class="(.*?)">', page) == ["wrong different", ""]  # the worst first


def test_a_part_of_a_recording(run: Runner, here: Path) -> None:
    write_wav(here / "long.wav", clicks(9, {1.5: 0, 4.5: 1, 7.5: 2}))
    row = {"audio_filepath": "long.wav", "text": "two", "offset": 3.0, "duration": 3.0}
    write_lines(here / "m.jsonl", json.dumps(row))
    content = run("m.jsonl", "-m", "clicks", "--json").json
    assert content["utterances"][0]["results"][0]["text"] == "two"
    assert content["systems"][0]["audio_seconds"] == 3.0


@pytest.mark.parametrize(
    ("claim", "text", "seconds"),
    [
        ({"offset": 0, "duration": 3}, "one", 3.0),
        ({"duration": 3}, "one", 3.0),
        ({"duration": 8.5}, "one two three", 9.0),
        ({"offset": 0, "duration": 8.5}, "one two three", 8.5),
        ({"offset": 0}, "one two three", 9.0),
        ({"duration": 60}, "one two three", 9.0),
    ],
    ids=str,
)
def test_a_first_part_is_cut_where_it_ends(
    run: Runner, here: Path, claim: dict[str, float], text: str, seconds: float
) -> None:
    """Every first segment of a manifest by NeMo begins at 0; a claim that is rounded cuts nothing."""
    write_wav(here / "long.wav", clicks(9, {1.5: 0, 4.5: 1, 7.5: 2}))
    write_lines(here / "m.jsonl", json.dumps({"audio_filepath": "long.wav", "text": text} | claim))
    content = run("m.jsonl", "-m", "clicks", "--json").json
    assert content["utterances"][0]["results"][0]["text"] == text
    assert content["systems"][0]["audio_seconds"] == seconds


def test_a_bad_recording_is_counted_and_listed(run: Runner, here: Path, manifest: Path) -> None:
    (here / "text.wav").write_text("no audio")
    bad = (
        '{"audio_filepath": "text.wav", "text": "one"}',
        '{"audio_filepath": "lost.wav", "text": "two", "offset": 1}',
    )
    write_lines(here / "bad.jsonl", bad[0], *manifest.read_text(encoding="utf-8").splitlines(), bad[1])
    found = run("bad.jsonl", "-m", "clicks", "-m", "clicks2", "--json")
    assert found.code == 1
    first, second, summary = found.err.splitlines()
    assert re.fullmatch(r"error: .*text\.wav .+ \[audio\]", first)
    assert re.fullmatch(r"error: .*lost\.wav .+ \[audio\]", second)
    assert summary == "2 of 5 utterances failed and are not counted"
    for system in found.json["systems"]:
        assert (system["failed"], system["words"]["reference"]) == (2, 6)
    assert found.json["utterances"][0]["results"][0]["error"]["code"] == "audio"


def test_a_part_of_no_length_is_named(run: Runner, here: Path) -> None:
    write_wav(here / "a.wav", clicks(1, {0.3: 0}))
    row = {"audio_filepath": "a.wav", "text": "one", "offset": 0.5, "duration": 0}
    write_lines(here / "m.jsonl", json.dumps(row))
    found = run("m.jsonl", "-m", "clicks")
    assert found.code == 1
    assert found.err.splitlines() == [
        "error: a.wav from 0.5 s: the manifest says that it lasts 0 s [audio]",
        "1 of 1 utterance failed and is not counted",
    ]
    assert "\n1 utterance, normaliser basic; " in found.out


def test_a_long_text_is_no_flood(run: Runner, here: Path) -> None:
    """The line is cut on a terminal; JSON has all of it."""
    write_wav(here / "a.wav", clicks(1, {0.3: 0}))
    write_lines(here / "m.tsv", "a.wav\tone" + " two" * 200_000)
    line = run("m.tsv", "-m", "clicks").out.splitlines()[-1]
    whole = len("one [-" + " ".join(["two"] * 200_000) + "]")
    kept = ("one [-two" + " two" * 1000)[:4000]
    assert line == f"  {kept} … ({whole - 4000} characters more; --html and --json have them)"
    (row,) = run("m.tsv", "-m", "clicks", "--json").json["utterances"]
    assert row["reference"].count("two") == 200_000


def test_models_whose_paths_are_long_are_told_apart(run: Runner, manifest: Path) -> None:
    names = [f"clicks/{'folder/' * 20}{name}" for name in ("first", "second")]
    found = run(manifest, "-m", names[0], "-m", names[1])
    table = found.out[: found.out.index("\n3 utterances")]
    cells = "".join(re.match(r"\S*", line.strip())[0] for line in table.splitlines()[2:])
    assert cells == re.sub(r"\s", "", "".join(names))


def test_a_pipe_that_nobody_writes_into_is_not_waited_for(run: Runner, here: Path) -> None:
    write_wav(here / "a.wav", clicks(1, {0.3: 0}))
    os.mkfifo(here / "pipe.wav")
    write_lines(here / "m.tsv", "a.wav\tone", "pipe.wav\ttwo")
    found = run("m.tsv", "-m", "clicks", "--json")
    assert (found.code, found.json["systems"][0]["failed"]) == (1, 1)
    assert "error: pipe.wav is a pipe" in found.err


def test_where_nothing_was_said_there_is_no_rate(run: Runner, here: Path) -> None:
    write_wav(here / "a.wav", clicks(1, {0.3: 0}))
    write_lines(here / "m.tsv", "a.wav\t")
    found = run("m.tsv", "-m", "clicks", "--json").json
    assert (found["systems"][0]["wer"], found["systems"][0]["words"]["insertions"]) == (None, 1)
    assert "–" in run("m.tsv", "-m", "clicks").out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "holds no utterances"),
        ("a.wav", "line 1: is neither a JSON object nor a path and a text parted by a tab"),
        ('{"audio_filepath": "a.wav"}', 'line 1: "text" is missing'),
        ('{"audio_filepath": "a.wav", "text": "x"}\n{"text": "x"}', 'line 2: "audio_filepath" is missing'),
        ('{"audio_filepath": "a.wav", "text": "x"}\n[]', "line 2: is no JSON object"),
        ('{"audio_filepath": "a.wav",', "line 1: is not JSON"),
        (
            '{"audio_filepath": "a.wav", "text": "x", "offset": -1}',
            '"offset" is no number of seconds from 0 up: -1',
        ),
        ('{"audio_filepath": "a.wav", "text": "x", "offset": true}', '"offset" is no number of seconds'),
        ('{"audio_filepath": "a.wav", "text": 5}', 'line 1: "text" is no string: 5'),
        ('{"audio_filepath": "\\ud800.wav", "text": "x"}', 'line 1: "audio_filepath" is missing or no path'),
        ('{"audio_filepath": "s3://b/a.wav", "text": "x"}', "line 1: s3://b/a.wav is an address, not a file"),
        ('{"text": ' + "[" * 100_000, "line 1: is no JSON that can be read: it is nested too deep"),
        ('{"duration": ' + "1" * 5000 + "}", "line 1: is no JSON that can be read: a number has too many"),
        (
            '{"audio_filepath": "a.wav", "text": "x", "duration": "long"}',
            '"duration" is no number of seconds',
        ),
    ],
)
def test_what_is_no_manifest_is_a_usage_error(run: Runner, here: Path, content: str, reason: str) -> None:
    write_lines(here / "m.jsonl", content)
    found = run("m.jsonl", "-m", "clicks")
    assert (found.code, found.out) == (2, "")
    assert reason in found.err


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["missing.jsonl", "-m", "clicks"], 2, "missing.jsonl cannot be read: No such file or directory"),
        ([".", "-m", "clicks"], 2, "holds no recording with a .txt"),
        (["test.jsonl", "-m", "clicks", "--normalizer", "english"], 2, "'english' is not one of"),
        (["test.jsonl", "-m", "clicks", "--html", "no/r.html"], 2, "name a file in a folder that exists"),
        (["test.jsonl", "-m", "clicks", "--html", "-"], 2, "--html -: a page is a file"),
        (["test.jsonl", "-m", "clicks", "--precision", ","], 2, "--precision , names nothing"),
        (["test.jsonl", "-m", "clicks", "--head", " ", "--head", ","], 2, "--head  ,, names nothing"),
        (["test.jsonl", "-m", "clicks", "--html", "a.wav"], 2, "exists already; --overwrite replaces it"),
        (["test.jsonl", "-m", "clicks", "--max-segment", "0.1"], 2, "--max-segment: segments of 0.10 s"),
        (["test.jsonl", "-m", "clicks", "-m", "lost.nemo"], 3, "lost.nemo: no such file"),
        (["test.jsonl", "-m", "demo", "--head", "rnnt"], 3, "has no rnnt head"),
    ],
    ids=str,
)
def test_nothing_is_tried_where_it_cannot_work(
    run: Runner, manifest: Path, backend: ClickBackend, arguments: list[str], code: int, reason: str
) -> None:
    found = run(*arguments)
    assert (found.code, found.out) == (code, "")
    assert reason in found.err
    assert backend.batches == []


def test_without_jiwer_the_extra_is_named(
    run: Runner, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    found = run(manifest, "-m", "clicks")
    assert (found.code, found.out) == (3, "")
    assert re.fullmatch(r'error: jiwer .+ pip install "transduce\[eval\]" \[missing_extra\]\n', found.err)


def test_an_interrupt_ends_it(run: Runner, here: Path, manifest: Path, backend: ClickBackend) -> None:
    def interrupt(batch: object) -> None:
        raise KeyboardInterrupt

    backend.fault = interrupt
    found = run(manifest, "-m", "clicks", "--html", "r.html")
    assert (found.code, found.out, (here / "r.html").exists()) == (130, "", False)


def test_the_warm_up_is_not_in_the_time(run: Runner, manifest: Path, backend: ClickBackend) -> None:
    """The recogniser is slow at first, as a real one is."""

    def rest(batch: object) -> None:
        if len(backend.batches) == 1:
            time.sleep(0.5)

    backend.fault = rest
    (system,) = run(manifest, "-m", "clicks", "--json").json["systems"]
    assert len(backend.batches) == 2
    assert system["seconds"] < 0.5


def test_models_are_closed(run: Runner, manifest: Path, backend: ClickBackend) -> None:
    run(manifest, "-m", "clicks", "-m", "clicks2")
    assert backend.num_closed == 4  # each is tried before anything is measured


def test_every_option_also_reads_its_variable() -> None:
    command = typer.main.get_command(cli.app).commands["eval"]  # type: ignore[attr-defined]
    options = [p for p in command.params if p.opts[0].startswith("--")]
    assert len(options) > 15
    for option in options:
        assert option.envvar == f"TRANSDUCE_{option.opts[0].removeprefix('--').upper().replace('-', '_')}"
        assert option.help


# The page


class Cells(HTMLParser):
    """The text of each row of a page's tables, and all addresses that it names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "action")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("del", "ins") and self.rows:
            self.rows[-1][-1] += f"<{tag}>"

    def handle_data(self, text: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += text


def test_the_page_holds_every_difference_the_worst_first(run: Runner, here: Path, manifest: Path) -> None:
    assert run(manifest, "-m", "clicks", "--html", "r.html").code == 0
    page = (here / "r.html").read_text(encoding="utf-8")
    cells = Cells(page)
    assert cells.addresses == []
    assert not re.search("https?:|@import|url\\(", page)
    model, *rows = [row for row in cells.rows if "WER %" not in " ".join(row)]
    assert model[:8] == ["clicks", "33.33", "38.10", "6", "1", "1", "0", "0"]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("b.wav", "1", "1"),
        ("a.wav", "3", "1"),
        ("a.wav", "2", "0"),
    ]
    assert "<del>four<ins>three" in rows[0][4]
    assert "one two <del>еж" in rows[1][4]


def test_nothing_in_a_text_becomes_markup(run: Runner, here: Path) -> None:
    write_wav(here / "a.wav", clicks(1, {0.5: 2}))
    write_lines(here / "<b>.tsv", "a.wav\t<script>alert(1)</script> & </dd>", "<i>.wav\tx")
    run("<b>.tsv", "-m", "clicks", "--html", "r.html", "--normalizer", "none")
    page = (here / "r.html").read_text(encoding="utf-8")
    for text in (
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        "&amp;",
        "&lt;/dd&gt;",
        "&lt;i&gt;.wav",
        "&lt;b&gt;.tsv",
    ):
        assert text in page
    assert not re.search("<script>alert|<b>|<i>", page)


def test_an_existing_page_is_replaced_only_when_asked(run: Runner, here: Path, manifest: Path) -> None:
    write_lines(here / "r.html", "mine")
    assert run(manifest, "-m", "clicks", "--html", "r.html").code == 2
    assert (here / "r.html").read_text() == "mine\n"
    assert run(manifest, "-m", "clicks", "--html", "r.html", "--overwrite").code == 0
    assert "Word errors" in (here / "r.html").read_text(encoding="utf-8")


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for option in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(option)
    options.binary_location = str(CHROMIUM)
    driver = webdriver.Chrome(options, Service(str(CHROMEDRIVER)))
    yield driver
    driver.quit()


@pytest.mark.browser
def test_the_page_sorts_and_filters_by_keyboard(
    run: Runner, here: Path, manifest: Path, browser: webdriver.Chrome
) -> None:
    run(manifest, "-m", "clicks", "--html", "r.html")
    browser.get((here / "r.html").as_uri())

    def lengths() -> list[str]:
        rows = browser.find_elements(By.CSS_SELECTOR, "#rows tbody tr")
        return [row.find_element(By.TAG_NAME, "td").text for row in rows if row.is_displayed()]

    def press(*keys: str) -> None:
        for key in keys:
            browser.switch_to.active_element.send_keys(key)

    header = browser.find_elements(By.CSS_SELECTOR, "#rows thead button")[1]
    assert (header.text.split()[0], lengths()) == ("Words", ["1", "3", "2"])
    browser.execute_script("arguments[0].focus()", header)
    press(Keys.ENTER)
    assert lengths() == ["3", "2", "1"]
    assert header.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    press(Keys.SPACE)
    assert lengths() == ["1", "2", "3"]

    browser.execute_script("document.body.tabIndex = -1; document.body.focus()")
    while browser.switch_to.active_element.get_attribute("id") != "only-wrong":
        press(Keys.TAB)
    press(Keys.SPACE)
    assert lengths() == ["1", "3"]
    assert browser.find_element(By.ID, "count").text == "2 of 3 utterances"
    press(Keys.SHIFT + Keys.TAB)
    press("four")
    assert lengths() == ["1"]
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []  # type: ignore[no-untyped-call]
