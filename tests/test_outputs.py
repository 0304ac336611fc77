"""Which recordings arguments name, and where results go: every input has a place, no two the same."""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce import ResourceError, Segment, Transcript, Word, outputs
from transduce.outputs import FileSink, Input, StreamSink, expand, output_paths


def tree(folder: Path, *names: str) -> Path:
    """Files with a byte in them."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def named(*names: str) -> list[Input]:
    return [Input(name, Path(name)) for name in names]


def transcript(text: str = "one two", source: str = "talk.wav", channel: int | None = None) -> Transcript:
    words = tuple(Word(word, float(i), i + 0.5, 1.0) for i, word in enumerate(text.split()))
    segments = (Segment(0, words[0].start, words[-1].end, text, 1.0, words),) if words else ()
    return Transcript(text, segments, words, (), 3.0, source, "demo", "tdt", None, channel)


# What is named


def test_a_file_is_itself_whatever_it_is_called(tmp_path: Path) -> None:
    tree(tmp_path, "notes", "a.wav")
    found = expand([str(tmp_path / "notes"), str(tmp_path / "a.wav"), "-"])
    assert [entry.path for entry in found] == [str(tmp_path / "notes"), str(tmp_path / "a.wav"), "-"]
    assert [entry.relative.name for entry in found] == ["notes", "a.wav", "stdin"]
    assert not any(entry.error for entry in found)


def test_a_folder_is_its_recordings_in_order(tmp_path: Path) -> None:
    tree(tmp_path, "b.WAV", "a.mp3", "sub/deep/c.opus", "notes.txt", "sub/.d.flac.part")
    (tmp_path / "e.wav").mkdir()
    found = expand([str(tmp_path)])
    assert [entry.relative.as_posix() for entry in found] == ["a.mp3", "b.WAV", "sub/deep/c.opus"]
    assert [Path(entry.path) for entry in found] == [tmp_path / entry.relative for entry in found]


def test_globs_are_expanded_also_through_folders(tmp_path: Path) -> None:
    tree(tmp_path, "1.wav", "2.wav", "3.txt", "sub/4.wav", "sub/5.mp3")
    names = [entry.relative.as_posix() for entry in expand([str(tmp_path / "?.wav")])]
    assert names == ["1.wav", "2.wav"]
    everything = [entry.relative.as_posix() for entry in expand([str(tmp_path / "**" / "*.wav")])]
    assert everything == ["1.wav", "2.wav", "4.wav"]
    assert [entry.relative.as_posix() for entry in expand([str(tmp_path / "s*")])] == ["4.wav", "5.mp3"]


def test_a_name_that_looks_like_a_glob_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    tree(tmp_path, "take [1].wav", "take 1.wav")
    (found,) = expand([str(tmp_path / "take [1].wav")])
    assert found.relative == Path("take [1].wav")


@pytest.mark.parametrize(("argument", "reason"), [("*.ogg", "no file matches"), ("empty", "holds no audio")])
def test_what_names_nothing_is_kept_with_its_error(tmp_path: Path, argument: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (found,) = expand([str(tmp_path / argument)])
    assert reason in str(found.error)
    assert argument in str(found.error)


def test_a_missing_file_is_left_to_the_reader(tmp_path: Path) -> None:
    missing, too_long = str(tmp_path / "missing.wav"), str(tmp_path / ("x" * 300))
    assert expand([missing, too_long]) == [
        Input(missing, Path("missing.wav")),
        Input(too_long, Path("x" * 300)),
    ]


# Where it goes


def places(entries: Sequence[Input], formats: Sequence[str] = ("txt",)) -> list[list[str]]:
    found = output_paths(entries, Path("out"), formats)
    return [[path.as_posix() for path in paths.values()] for paths in found]


def test_a_result_is_named_after_its_recording() -> None:
    entries = named("a.wav", "sub/b.mp3", "no_extension", "two.dots.flac")
    assert places(entries, ["txt", "srt"]) == [
        ["out/a.txt", "out/a.srt"],
        ["out/sub/b.txt", "out/sub/b.srt"],
        ["out/no_extension.txt", "out/no_extension.srt"],
        ["out/two.dots.txt", "out/two.dots.srt"],
    ]


def test_names_that_would_collide_keep_their_extension() -> None:
    entries = named("a.wav", "a.mp3", "b.wav", "sub/a.wav", "B.ogg")
    assert places(entries) == [
        ["out/a.wav.txt"],
        ["out/a.mp3.txt"],
        ["out/b.wav.txt"],
        ["out/sub/a.txt"],
        ["out/B.ogg.txt"],
    ]


def test_the_same_name_twice_is_numbered() -> None:
    assert places(named("a.wav", "a.wav", "A.wav")) == [
        ["out/a.wav.txt"],
        ["out/a.wav-2.txt"],
        ["out/A.wav-3.txt"],
    ]


@settings(max_examples=num_cases(200, 5000), deadline=None)
@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from(["", "s/", "S/"]),
            st.sampled_from(["a", "A", "a.wav", "b", "a-2"]),
            st.sampled_from(["", ".wav", ".mp3", ".WAV", "-2", ".wav-2"]),
        ),
        max_size=12,
    )
)
def test_no_two_results_share_a_file_even_where_case_does_not_count(names: list[str]) -> None:
    found = [path.lower() for paths in places(named(*names), ["txt", "json"]) for path in paths]
    assert len(found) == 2 * len(names) == len(set(found))


def test_a_folder_that_can_be_made_has_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "new" / "deep", Path("relative"), Path()):
        assert outputs.obstacle(folder) is None
    assert list(tmp_path.iterdir()) == []


def test_an_obstacle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "file")
    for folder in (tmp_path / "file", tmp_path / "file" / "deep"):
        assert outputs.obstacle(folder) == f"{tmp_path / 'file'} is not a folder"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert outputs.obstacle(tmp_path / "new") == f"{tmp_path} may not be written to"


# Standard output


def streamed(format_name: str, *results: Sequence[Transcript]) -> str:
    stream = io.StringIO()
    sink = StreamSink(stream, format_name, tokens=False)
    entries = named(*(f"{index}.wav" for index in range(len(results))))
    assert sink.claim(entries) == entries
    for index, transcripts in enumerate(results):
        sink.put(index, transcripts)
    return stream.getvalue()


def test_one_result_stands_alone() -> None:
    assert streamed("txt", [transcript()]) == "one two\n"
    assert json.loads(streamed("json", [transcript()]))["text"] == "one two"


def test_several_results_have_headings() -> None:
    found = streamed(
        "txt", [transcript(source="a.wav")], [transcript("", "b.wav")], [transcript("x", "c.wav")]
    )
    assert found == "== a.wav ==\none two\n\n== b.wav ==\n\n== c.wav ==\nx\n\n"


def test_channels_have_headings() -> None:
    found = streamed("txt", [transcript(channel=0), transcript("three", channel=1)])
    assert found == "== talk.wav channel 0 ==\none two\n\n== talk.wav channel 1 ==\nthree\n\n"


def test_several_json_results_are_a_line_each() -> None:
    lines = streamed(
        "json", [transcript("Привет")], [transcript(channel=0), transcript(channel=1)]
    ).splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["Привет", "one two", "one two"]
    assert [json.loads(line).get("channel") for line in lines] == [None, 0, 1]


# Files


def file_sink(folder: Path, *formats: str, overwrite: bool = False) -> FileSink:
    return FileSink(folder, formats or ("txt",), tokens=False, overwrite=overwrite)


def test_folders_are_mirrored(tmp_path: Path) -> None:
    sink = file_sink(tmp_path / "out", "txt", "vtt")
    sink.claim(named("a.wav", "sub/deep/b.wav"))
    for index in range(2):
        sink.put(index, [transcript()])
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert written == {"out/a.txt", "out/a.vtt", "out/sub/deep/b.txt", "out/sub/deep/b.vtt"}
    assert (tmp_path / "out/a.txt").read_bytes() == b"one two\n"


def test_what_exists_is_refused_before_any_work(tmp_path: Path) -> None:
    tree(tmp_path, "b.json")
    entries = file_sink(tmp_path, "txt", "json").claim(named("a.wav", "b.wav"))
    assert entries[0].error is None
    assert isinstance(entries[1].error, FileExistsError)
    assert entries[1].error.filename == str(tmp_path / "b.json")
    assert "--overwrite" in str(entries[1].error)


def test_what_exists_is_replaced_when_asked(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt")
    sink = file_sink(tmp_path, overwrite=True)
    assert sink.claim(named("a.wav")) == named("a.wav")
    sink.put(0, [transcript()])
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one two\n"


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}], ids=str)
def test_a_folder_with_the_name_of_a_result_is_no_result(tmp_path: Path, options: dict[str, bool]) -> None:
    sink = FileSink(tmp_path, ("txt",), tokens=False, **options)
    (tmp_path / "a.txt").mkdir()
    (entry,) = sink.claim(named("a.wav"))
    assert (type(entry.error), entry.is_done) == (IsADirectoryError, False)
    assert entry.error.filename == str(tmp_path / "a.txt")
    with pytest.raises(IsADirectoryError):
        sink.put(0, [transcript()])


def test_a_link_to_nothing_is_no_finished_result(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, ("txt",), tokens=False, resume=True)
    (tmp_path / "a.txt").symlink_to(tmp_path / "lost.txt")
    (entry,) = sink.claim(named("a.wav"))
    assert entry.is_open
    sink.put(0, [transcript()])
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "one two\n"


def test_what_has_come_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    sink = file_sink(tmp_path, "json", "txt")
    sink.claim(named("a.wav"))
    tree(tmp_path, "a.txt")
    with pytest.raises(FileExistsError):
        sink.put(0, [transcript()])
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == b"x"


def test_each_channel_has_a_file_that_is_not_replaced_either(tmp_path: Path) -> None:
    sink = file_sink(tmp_path, "srt")
    sink.claim(named("a.wav"))
    sink.put(0, [transcript(channel=0), transcript(channel=1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.channel0.srt", "a.channel1.srt"]
    with pytest.raises(FileExistsError):
        sink.put(0, [transcript(channel=0), transcript(channel=1)])


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    sink = file_sink(tmp_path)
    sink.claim(named("a.wav"))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ResourceError, match="disk is full"):
        sink.put(0, [transcript()])
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_an_input_is_not_replaced_by_one_of_its_output(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt")
    error = ResourceError("first")
    (entry,) = file_sink(tmp_path).claim([Input("a.wav", Path("a.wav"), error)])
    assert entry.error is error
