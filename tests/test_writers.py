"""Formats: valid for any text and any times, exact in their arithmetic, whole on disk.

Subtitles are read back by the two small strict parsers below, which share nothing with the writers.
"""

import errno
import html
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import ROOT, num_cases

from transduce.errors import ResourceError
from transduce.transcript import Transcript
from transduce.types import Segment, Word
from transduce.writers import FORMATS, encode_json, milliseconds, printable, write_atomic

Timed = tuple[str, float, float]


def segment_of(words: Sequence[Timed], number: int = 0) -> Segment:
    made = tuple(Word(text, start, end, 0.5) for text, start, end in words)
    return Segment(number, words[0][1], words[-1][2], " ".join(w.word for w in made), 0.5, made)


def transcript_of(*segments: Sequence[Timed], duration: float = 600.0) -> Transcript:
    made = tuple(segment_of(words, number) for number, words in enumerate(segments))
    return Transcript(
        text=" ".join(segment.text for segment in made),
        segments=made,
        words=tuple(word for segment in made for word in segment.words),
        tokens=(),
        duration=duration,
        source="talks/my talk.wav",
    )


def spoken(text: str, start: float = 0.0, word_seconds: float = 0.3) -> list[Timed]:
    """A text at a steady pace."""
    words = text.split(" ")
    return [(w, start + i * word_seconds, start + (i + 1) * word_seconds) for i, w in enumerate(words)]


SILENCE = Transcript(text="", segments=(), words=(), tokens=(), duration=4.0, source="silence_4s.wav")


# Reading subtitles back


@dataclass(frozen=True)
class Cue:
    start_ms: int
    end_ms: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.lines)


def time_of(stamp: str, point: str) -> int:
    match = re.fullmatch(rf"(\d\d+):([0-5]\d):([0-5]\d){re.escape(point)}(\d\d\d)", stamp)
    assert match, f"{stamp!r} is no time"
    hours, minutes, seconds, ms = map(int, match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms


def cue_of(time_line: str, lines: Sequence[str], point: str) -> Cue:
    start, arrow, end = time_line.split(" ")
    assert arrow == "-->"
    assert lines, "a cue without text"
    assert all(line.strip() == line != "" and "-->" not in line for line in lines)
    return Cue(time_of(start, point), time_of(end, point), tuple(lines))


def blocks_of(content: str) -> Iterator[list[str]]:
    assert content.endswith("\n")
    assert "\r" not in content
    assert "\n\n\n" not in content
    for block in content[:-1].split("\n\n"):
        yield block.split("\n")


def parse_srt(content: str) -> list[Cue]:
    cues = []
    for number, (label, time_line, *lines) in enumerate(blocks_of(content) if content else (), start=1):
        assert label == str(number)
        assert not any(re.search("</?[a-zA-Z]", line) for line in lines), "a player would see a tag"
        cues.append(cue_of(time_line, lines, ","))
    return cues


def parse_vtt(content: str) -> list[Cue]:
    header, *blocks = blocks_of(content)
    assert header == ["WEBVTT"]
    cues = []
    for time_line, *lines in blocks:
        assert not any(re.search(r"[<>]|&(?!amp;|lt;|gt;)", line) for line in lines)
        cue = cue_of(time_line, lines, ".")
        cues.append(replace(cue, lines=tuple(html.unescape(line) for line in lines)))
    return cues


PARSERS = {"srt": parse_srt, "vtt": parse_vtt}


def squeezed(text: str) -> str:
    return "".join(text.split())


# Times

STAMPS = {
    0.9995: "00:00:01,000",
    2.3: "00:00:02,300",
    59.9996: "00:01:00,000",
    59.99999999999999: "00:01:00,000",
    3599.9999: "01:00:00,000",
    360000.5: "100:00:00,500",
    -0.001: "00:00:00,000",
    0.0005: "00:00:00,001",
}


@pytest.mark.parametrize("seconds", STAMPS)
def test_stamps_round_and_carry(seconds: float) -> None:
    transcript = transcript_of([("a", seconds, seconds + 2)], duration=1e6)
    assert transcript.render("srt").split("\n")[1].split(" ")[0] == STAMPS[seconds]
    assert transcript.render("vtt").split("\n")[2].split(" ")[0] == STAMPS[seconds].replace(",", ".")


@given(st.integers(0, 10**9))
def test_whole_milliseconds_are_kept(ms: int) -> None:
    assert milliseconds(ms / 1000) == ms


# Cues

words = st.lists(
    st.tuples(
        st.text(st.sampled_from(list("abя<>&-{/\u200f\u0301🙂語ש\t\u0000\n\ud800")), min_size=1, max_size=20),
        st.one_of(st.sampled_from([0.0, 0.08, 0.3]), st.floats(0, 9)),
        st.one_of(st.just(0.0), st.floats(0, 9)),
    ),
    min_size=1,
    max_size=25,
)


def laid_out(rows: Sequence[Sequence[tuple[str, float, float]]]) -> Transcript:
    """Segments from (text, how long, pause after), one after the other."""
    flat = [row for segment in rows for row in segment]
    ends = list(accumulate(length + pause for _, length, pause in flat))
    timed = iter(
        (text, end - pause - length, end - pause)
        for (text, length, pause), end in zip(flat, ends, strict=True)
    )
    segments = [[next(timed) for _ in segment] for segment in rows]
    return transcript_of(*segments, duration=ends[-1] if ends else 1.0)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=num_cases(200, 5000), deadline=None)
@given(rows=st.lists(words, max_size=8), without_words=st.booleans())
@example(rows=[[("a" * 10, 0.0, 0.0)] * 60], without_words=False)
@example(rows=[[("語" * 300, 40.0, 0.0)]], without_words=False)
@example(
    rows=[[("<b>", 0.3, 0.0), ("a-->b", 0.3, 0.0), ("&amp;", 0.3, 0.0), ("\n\n", 0.3, 0.0)]],
    without_words=True,
)
def test_subtitles_are_valid_for_any_text_and_times(
    name: str, rows: list[list[tuple[str, float, float]]], without_words: bool
) -> None:
    transcript = laid_out(rows)
    if without_words:
        segments = tuple(replace(segment, words=()) for segment in transcript.segments)
        transcript = replace(transcript, segments=segments, words=())
    cues = PARSERS[name](transcript.render(name))

    assert all(cue.start_ms < cue.end_ms for cue in cues)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(cues))
    assert all(len(cue.lines) <= 2 and max(map(len, cue.lines)) <= 42 for cue in cues)
    assert all(cue.end_ms - cue.start_ms <= 7000 for cue in cues)
    limit = max(milliseconds(transcript.duration), len(cues))
    assert not cues or cues[-1].end_ms <= limit
    for cue, room in zip(cues, [*(cue.start_ms for cue in cues[1:]), limit], strict=False):
        assert cue.end_ms - cue.start_ms >= 1000 or cue.end_ms == room

    shown = squeezed("".join(cue.text for cue in cues)).replace("→", "-->").replace("‹", "<")
    assert shown == squeezed(transcript.text.replace("\0", "").replace("\ud800", "\ufffd"))


def cues_of(transcript: Transcript) -> list[Cue]:
    cues = parse_vtt(transcript.render("vtt"))
    assert [replace(c, lines=()) for c in parse_srt(transcript.render("srt"))] == [
        replace(c, lines=()) for c in cues
    ]
    return cues


def test_a_short_segment_is_one_cue_that_stays_a_second() -> None:
    assert cues_of(transcript_of([("Да.", 2.0, 2.2)])) == [Cue(2000, 3000, ("Да.",))]
    assert cues_of(transcript_of([("Да.", 2.0, 2.2)], duration=2.5)) == [Cue(2000, 2500, ("Да.",))]
    assert cues_of(transcript_of([("Да.", 2.0, 3.5)])) == [Cue(2000, 3500, ("Да.",))]


def test_a_cue_stays_seven_seconds_at_most() -> None:
    assert cues_of(transcript_of([("so", 1.0, 30.0)])) == [Cue(1000, 8000, ("so",))]
    cues = cues_of(transcript_of(spoken("a b c d e f g h", word_seconds=2.0)))
    assert [cue.text for cue in cues] == ["a b", "c d e", "f g h"]
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [(0, 4000), (4000, 10000), (10000, 16000)]


def test_lines_and_cues_are_even() -> None:
    text = "the quick brown fox jumps over the lazy dog and runs away"
    (cue,) = cues_of(transcript_of(spoken(text)))
    assert cue.lines == ("the quick brown fox jumps over", "the lazy dog and runs away")
    twice = cues_of(transcript_of(spoken(f"{text} {text}")))
    assert [cue.text for cue in twice] == [text, text]


@settings(max_examples=num_cases(100, 2000), deadline=None)
@given(st.lists(st.integers(1, 42), min_size=1, max_size=40))
def test_cues_are_the_fewest_there_can_be(lengths: list[int]) -> None:
    """Filling line after line to the brim gives the fewest lines, and pairs of them the fewest cues."""
    cues = cues_of(transcript_of(spoken(" ".join("x" * n for n in lengths), word_seconds=0.01)))
    fewest, room = 1, -1
    for length in lengths:
        if room + 1 + length > 42:
            fewest, room = fewest + 1, -1
        room += 1 + length
    assert len(cues) == -(-fewest // 2)


def test_hurried_segments_share_a_cue_and_slow_ones_do_not() -> None:
    quick = transcript_of([("Да.", 0.0, 0.3)], [("Нет.", 0.3, 0.6)], [("Да?", 0.6, 0.9)], [("Ну", 1.0, 1.2)])
    assert cues_of(quick) == [Cue(0, 1000, ("Да. Нет. Да?",)), Cue(1000, 2000, ("Ну",))]
    slow = transcript_of([("Да.", 0.0, 0.3)], [("Нет.", 1.0, 1.3)])
    assert [cue.text for cue in cues_of(slow)] == ["Да.", "Нет."]


def test_hurried_segments_that_do_not_fit_together_stay_apart() -> None:
    long = "x" * 40 + " " + "y" * 40
    cues = cues_of(transcript_of([("Да.", 0.0, 0.3)], spoken(long, start=0.4, word_seconds=2)))
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [(0, 400), (400, 4400)]


def test_words_of_one_frame_still_give_rising_cues() -> None:
    cues = cues_of(transcript_of([("x" * 40, 1.0, 1.0)] * 5, duration=1.0))
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [(997, 998), (998, 999), (999, 1000)]


def test_a_long_word_is_cut_and_shares_its_time() -> None:
    cues = cues_of(transcript_of([("語" * 168, 0.0, 8.0)]))
    assert cues == [Cue(0, 4000, ("語" * 42,) * 2), Cue(4000, 8000, ("語" * 42,) * 2)]


def test_what_players_would_misread_is_written_otherwise() -> None:
    rows = [("a-->b", 0.0, 1.0), ("<b>x</b>", 1.0, 2.0), ("R&D", 2.0, 3.0), ("1<2", 3.0, 4.0)]
    srt, vtt = (transcript_of(rows).render(name) for name in ("srt", "vtt"))
    assert "a→b ‹b>x‹/b> R&D 1<2\n" in srt
    assert "a--&gt;b &lt;b&gt;x&lt;/b&gt; R&amp;D 1&lt;2\n" in vtt


# Silence


@pytest.mark.parametrize(
    ("name", "content"),
    [("txt", ""), ("srt", ""), ("vtt", "WEBVTT\n"), ("tsv", "start\tend\ttext\n"), ("ctm", "")],
)
def test_silence_is_a_valid_file(name: str, content: str, tmp_path: Path) -> None:
    assert SILENCE.render(name) == content
    SILENCE.save(tmp_path / f"silence.{name}")
    assert (tmp_path / f"silence.{name}").read_bytes() == content.encode()


def test_the_formats_are_the_documented_ones() -> None:
    assert list(FORMATS) == ["txt", "json", "srt", "vtt", "tsv", "ctm"]


@pytest.mark.parametrize("name", ["srt", "vtt", "ctm", "tsv", "txt"])
def test_a_segment_without_words_is_written_with_its_text(name: str) -> None:
    segment = Segment(0, 1.0, 3.0, "ab cd", 0.5, ())
    transcript = replace(SILENCE, text="ab cd", segments=(segment,))
    expected = {
        "txt": "ab cd\n",
        "tsv": "start\tend\ttext\n1000\t3000\tab cd\n",
        "srt": "1\n00:00:01,000 --> 00:00:03,000\nab cd\n",
        "vtt": "WEBVTT\n\n00:00:01.000 --> 00:00:03.000\nab cd\n",
        "ctm": "silence_4s 1 1.000 1.000 ab 0.500\nsilence_4s 1 2.000 1.000 cd 0.500\n",
    }
    assert transcript.render(name) == expected[name]


# Tables and text


def test_txt_is_the_text_on_one_line() -> None:
    assert transcript_of(spoken("Да."), spoken("Нет.", start=5)).render("txt") == "Да. Нет.\n"


def test_tsv_is_whispers() -> None:
    transcript = transcript_of([("One", 0.0, 0.4), ("two.\t\n", 0.4, 0.9996)], [("Три", 61.5, 62.0)])
    assert transcript.render("tsv") == "start\tend\ttext\n0\t1000\tOne two.\n61500\t62000\tТри\n"


def test_ctm_is_one_word_a_row() -> None:
    transcript = transcript_of([("One", 0.08, 0.4), ("two —", 0.4, 0.88)])
    assert transcript.render("ctm") == "my_talk 1 0.080 0.320 One 0.500\nmy_talk 1 0.400 0.480 two— 0.500\n"
    second = replace(transcript, channel=1, source=None)
    assert second.render("ctm").startswith("audio 2 0.080 ")


def test_ctm_rows_have_six_columns_whatever_the_name_and_the_words() -> None:
    rows = [("\u00a0", 0.0, 1.0), ("a\u00a0b\nc", 1.0, 2.0), ("\u2028", 2.0, 3.0)]
    transcript = replace(transcript_of(rows), source="о\tпыт №1 – x\udcff.tar.wav")
    assert transcript.render("ctm") == "о_пыт_№1_–_x\ufffd.tar 1 1.000 1.000 abc 0.500\n"


def test_json_is_one_line_and_has_no_nan() -> None:
    assert encode_json({"text": "я 🙂\n", "x": [0.08]}) == '{"text": "я 🙂\\n", "x": [0.08]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_json({"x": float("nan")})


def test_names_with_broken_bytes_become_text() -> None:
    assert printable(os.fsdecode("запись №1.wav".encode())) == "запись №1.wav"
    assert printable("a\udcff.wav") == "a\ufffd.wav"
    assert printable("\udcd0\udc96\ud800") == "Ж\ufffd"


# Files


def test_files_are_utf8_without_a_mark_in_every_locale(tmp_path: Path) -> None:
    text = r"'\u042f \U0001f642\n\u00ab\n'"  # ASCII, so that this very program passes the locale
    program = f"from transduce.writers import write_atomic; write_atomic('out.txt', {text})"
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "ascii",
        "PYTHONPATH": str(ROOT / "src"),
    }
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "out.txt").read_bytes() == "Я 🙂\n«\n".encode()


def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text("a longer text than the new one")
    write_atomic(tmp_path / "a.srt", "new\n")
    write_atomic(str(tmp_path / "b.srt"), "")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.srt": b"new\n", "b.srt": b""}


def test_what_is_no_plain_file_is_written_to_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    pipe.touch()
    identity = pipe.stat().st_ino
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    write_atomic(pipe, "text\n")
    assert (pipe.stat().st_ino, pipe.read_text()) == (identity, "text\n")


def failing(code: int) -> Callable[[Path, Path], NoReturn]:
    def replace(self: Path, target: Path) -> NoReturn:
        raise OSError(code, os.strerror(code), str(self))

    return replace


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_resource_error_and_leaves_the_old_file(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.srt").write_text("old")
    monkeypatch.setattr(Path, "replace", failing(code))
    with pytest.raises(ResourceError, match=r"a\.srt: the disk is full"):
        write_atomic(tmp_path / "a.srt", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.srt", "old")]


def test_an_interrupt_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a.srt", "new")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        write_atomic(tmp_path / "no folder" / "a.srt", "x")
    assert missing.value.filename == str(tmp_path / "no folder" / "a.srt")
    monkeypatch.setattr(Path, "replace", failing(errno.EACCES))
    with pytest.raises(PermissionError) as denied:
        write_atomic(tmp_path / "a.srt", "x")
    assert denied.value.filename == str(tmp_path / "a.srt")
