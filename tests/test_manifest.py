"""Manifests: what a line may say, where results go, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from transduce.manifest import read_manifest
from transduce.outputs import Input, output_paths


def written(folder: Path, *rows: Any) -> str:
    path = folder / "files.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def results(inputs: list[Input]) -> list[str]:
    return [paths["txt"].as_posix() for paths in output_paths(inputs, Path("out"), ["txt"])]


def test_paths_are_those_of_the_manifests_folder(tmp_path: Path) -> None:
    location = written(tmp_path, {"path": "a.wav"}, {"path": "/data/b.wav"}, {"path": "s3://store/c.wav"})
    assert [entry.path for entry in read_manifest(location)] == [
        str(tmp_path / "a.wav"),
        "/data/b.wav",
        "s3://store/c.wav",
    ]


def test_what_nemo_writes_is_read(tmp_path: Path) -> None:
    row = {"audio_filepath": "/data/b.wav", "duration": 2, "offset": 0.0, "text": "one", "lang": "en"}
    assert read_manifest(written(tmp_path, row)) == [Input("/data/b.wav", Path("b.wav"), claimed_seconds=2.0)]


def test_results_mirror_the_folders_below_the_one_that_all_share(tmp_path: Path) -> None:
    rows = [{"path": path} for path in ("/data/x/1.wav", "/data/y/1.wav", "/data/y/../z/deep/1.mp3")]
    assert results(read_manifest(written(tmp_path, *rows))) == [
        "out/x/1.txt",
        "out/y/1.txt",
        "out/z/deep/1.txt",
    ]
    one = read_manifest(written(tmp_path, rows[0]))
    assert results(one) == ["out/1.txt"]


def test_results_of_several_stores_are_kept_apart(tmp_path: Path) -> None:
    rows = [{"path": path} for path in ("s3://a/x/1.wav", "s3://b/1.wav", "gs://a/../1.wav")]
    names = results(read_manifest(written(tmp_path, *rows)))
    assert names == ["out/s3/a/x/1.txt", "out/s3/b/1.txt", "out/gs/a/1.txt"]


def test_a_name_is_where_the_result_goes(tmp_path: Path) -> None:
    rows = [
        {"path": "/data/x/1.wav", "name": "calls/2024.05"},
        {"path": "/data/y/2.wav"},
        {"path": "/data/noext", "name": "v1.2"},
    ]
    assert results(read_manifest(written(tmp_path, *rows))) == [
        "out/calls/2024.05.txt",
        "out/2.txt",
        "out/v1.2.txt",
    ]


def test_a_recording_that_is_listed_twice_has_two_results_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"path": "/data/1.wav"}, {"path": "/data/1.wav"}]
    assert results(read_manifest(written(tmp_path, *rows))) == ["out/1.wav.txt", "out/1.wav-2.txt"]
    location = tmp_path / "files.jsonl"
    (warning,) = caplog.messages
    assert warning == f"{location}, line 2: is the recording of {location}, line 1 again"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"path": "/data/1.wav", "name": "calls/v1.2"}, {"path": "/data/2.mp3", "name": "calls/v1.2"}),
        ({"path": "/data/1.wav", "name": "A"}, {"path": "/data/2.wav", "name": "a"}),
        ({"path": "/data/1.wav", "name": "2"}, {"path": "/data/2.wav"}),
        ({"path": "/data/2.wav"}, {"path": "/data/1.flac", "name": "./2"}),
    ],
    ids=str,
)
def test_a_name_is_one_results_alone(tmp_path: Path, first: dict[str, str], second: dict[str, str]) -> None:
    """Names that differ in case are one file to some systems."""
    location = written(tmp_path, {"path": "/data/0.wav"}, first, second)
    with pytest.raises(ValueError, match="result") as caught:
        read_manifest(location)
    message = str(caught.value)
    assert message.startswith(f'{location}, line 3: its result would be "')
    assert message.endswith(f"as that of {location}, line 2")


def test_marks_empty_lines_and_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "files.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"path": "a.wav"}\r\n\n  \n{"path": "b\\udcff.wav"}')
    first, second = read_manifest(str(path))
    assert first.path == str(tmp_path / "a.wav")
    assert os.fsencode(second.path).endswith(b"b\xff.wav")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"path": "a.wav"}\n{"path": ', "line 2: is not JSON"),
        ('{"path": "a.wav"}\n\n"b.wav"', "line 3: is no JSON object"),
        ('{"text": "one"}', 'line 1: "path" is missing'),
        ('{"path": 3}', '"path" is missing or no path'),
        ('{"path": ""}', '"path" is missing or no path'),
        ('{"path": "a\\u0000.wav"}', '"path" is missing or no path'),
        ('{"path": "a.wav", "offset": 1.5}', '"offset" asks for a part'),
        ('{"path": "a.wav", "duration": "long"}', '"duration" is no number'),
        ('{"path": "a.wav", "duration": -1}', '"duration" is no number'),
        ('{"path": "a.wav", "duration": NaN}', '"duration" is no number'),
        ('{"path": "a.wav", "duration": true}', '"duration" is no number'),
        ('{"path": "a.wav", "name": "../a"}', '"name" is no relative path'),
        ('{"path": "a.wav", "name": "/a"}', '"name" is no relative path'),
        ('{"path": "a.wav", "name": ""}', '"name" is no relative path'),
        ('{"path": "a.wav", "name": "\\ud800"}', 'line 1: "name" is no relative path'),
        ('{"path": "\\ud800.wav"}', 'line 1: "path" is missing or no path'),
        ('{"path": "a.wav", "duration": 1' + "0" * 400 + "}", 'line 1: "duration" is no number'),
        ('{"path": "a.wav", "duration": ' + "1" * 5000 + "}", "line 1: is no JSON that can be read"),
        ('{"path": "a.wav"}\n' + "[" * 100_000, "line 2: is no JSON that can be read: it is nested too deep"),
        ('{"path": "a.wav", "name": 1}', '"name" is no relative path'),
        ("\n\n", "lists no recordings"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_manifest_is_refused_with_its_line(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "files.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"files\.jsonl") as caught:
        read_manifest(str(path))
    assert reason in str(caught.value)


def test_a_manifest_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "files.jsonl").write_bytes(b'{"path": "\xff.wav"}')
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        read_manifest(str(tmp_path / "files.jsonl"))
    with pytest.raises(FileNotFoundError):
        read_manifest(str(tmp_path / "missing.jsonl"))
