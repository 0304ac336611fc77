"""The result and its JSON: the contract that files, HTTP and Triton share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import num_cases

from transduce.transcript import SCHEMA, Transcript
from transduce.types import Segment, Token, Word
from transduce.writers import FORMATS

WORDS = (Word("Пять,", 0.16, 0.36, 0.91237), Word("семь.", 2.8800000000000003, 3.04, 1.0))
TOKENS = (
    Token(62, "Пять", 2, 3, 0.16, 0.4, 0.91237),
    Token(35, ",", 4, 0, 0.32, 0.4, 0.5),
    Token(5, " семь.", 36, 2, 2.8800000000000003, 3.04, 0.99999),
)
TRANSCRIPT = Transcript(
    text="Пять, семь.",
    segments=(
        Segment(0, 0.16, 0.36, "Пять,", 0.91237, WORDS[:1]),
        Segment(1, 2.8800000000000003, 3.04, "семь.", 1.0, WORDS[1:]),
    ),
    words=WORDS,
    tokens=TOKENS,
    duration=4.00006,
    source="запись №1.wav",
    model="v3_e2e_rnnt",
    head="rnnt",
    warnings=("a damaged packet at 1.5 s was skipped",),
)

JSON: dict[str, Any] = {
    "schema": 1,
    "source": "запись №1.wav",
    "model": "v3_e2e_rnnt",
    "head": "rnnt",
    "language": None,
    "duration": 4.0,
    "text": "Пять, семь.",
    "segments": [
        {
            "id": 0,
            "start": 0.16,
            "end": 0.36,
            "text": "Пять,",
            "confidence": 0.912,
            "words": [{"word": "Пять,", "start": 0.16, "end": 0.36, "confidence": 0.912}],
        },
        {
            "id": 1,
            "start": 2.88,
            "end": 3.04,
            "text": "семь.",
            "confidence": 1.0,
            "words": [{"word": "семь.", "start": 2.88, "end": 3.04, "confidence": 1.0}],
        },
    ],
    "warnings": ["a damaged packet at 1.5 s was skipped"],
}


def keys(content: Any) -> Any:
    """The structure of JSON with its keys in order (dict equality does not look at order)."""
    if isinstance(content, dict):
        return [(key, keys(value)) for key, value in content.items()]
    return [keys(value) for value in content] if isinstance(content, list) else None


def test_json_is_the_contract_to_the_letter_and_in_order() -> None:
    assert TRANSCRIPT.to_dict() == JSON
    assert keys(TRANSCRIPT.to_dict()) == keys(JSON)
    assert json.loads(TRANSCRIPT.render("json")) == JSON
    assert TRANSCRIPT.render("json").startswith('{"schema": 1, "source": "запись №1.wav", ')
    assert TRANSCRIPT.render("json").count("\n") == 1


def test_the_channel_is_there_only_where_channels_were_parted() -> None:
    assert replace(TRANSCRIPT, channel=0).to_dict() == JSON | {"channel": 0}


def test_tokens_are_added_when_asked_for() -> None:
    content = json.loads(TRANSCRIPT.render("json", tokens=True))
    assert {key: value for key, value in content.items() if key != "tokens"} == JSON
    assert [list(token) for token in content["tokens"]] == [
        ["id", "text", "frame", "duration_frames", "start", "end", "confidence"]
    ] * 3
    assert [list(token.values()) for token in content["tokens"]] == [
        [62, "Пять", 2, 3, 0.16, 0.4, 0.912],
        [35, ",", 4, 0, 0.32, 0.4, 0.5],
        [5, " семь.", 36, 2, 2.88, 3.04, 1.0],
    ]
    assert TRANSCRIPT.render("txt", tokens=True) == "Пять, семь.\n"


def test_silence_is_a_transcript() -> None:
    silence = Transcript(text="", segments=(), words=(), tokens=(), duration=4.0)
    assert silence.to_dict() == {
        "schema": 1,
        "source": None,
        "model": None,
        "head": None,
        "language": None,
        "duration": 4.0,
        "text": "",
        "segments": [],
        "warnings": [],
    }
    assert Transcript.from_dict(silence.to_dict(tokens=True)) == silence


seconds = st.integers(0, 10**7).map(lambda ms: ms / 1000)
share = st.integers(0, 1000).map(lambda thousandth: thousandth / 1000)
made_words = st.builds(Word, st.text(), seconds, seconds, share)


@settings(max_examples=num_cases(50, 2000), deadline=None)
@given(
    segments=st.lists(
        st.builds(
            Segment, st.integers(0), seconds, seconds, st.text(), share, st.lists(made_words).map(tuple)
        ),
        max_size=4,
    ).map(tuple),
    tokens=st.lists(
        st.builds(Token, st.integers(0), st.text(), st.integers(0), st.integers(0), seconds, seconds, share)
    ).map(tuple),
    duration=seconds,
    source=st.none() | st.text(),
    channel=st.none() | st.integers(0, 7),
    warnings=st.lists(st.text()).map(tuple),
)
def test_what_has_three_decimals_comes_back_from_json(
    segments: tuple[Segment, ...],
    tokens: tuple[Token, ...],
    duration: float,
    source: str | None,
    channel: int | None,
    warnings: tuple[str, ...],
) -> None:
    words = tuple(word for segment in segments for word in segment.words)
    transcript = Transcript(
        "text", segments, words, tokens, duration, source, "m", "tdt", "en", channel, warnings
    )
    assert Transcript.from_dict(json.loads(transcript.render("json", tokens=True))) == transcript


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(ValueError, match=f"not a transcript of schema {SCHEMA} but of schema {schema!r}"):
        Transcript.from_dict(JSON | {"schema": schema})


@pytest.mark.parametrize("key", [key for key in JSON if key != "schema"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=rf"not a whole transcript: KeyError\('{key}'\)"):
        Transcript.from_dict({name: value for name, value in JSON.items() if name != key})


def test_what_is_no_transcript_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="not a whole transcript"):
        Transcript.from_dict(JSON | {"segments": 5})
    with pytest.raises(ValueError, match=r"not a whole transcript: KeyError\('end'\)"):
        Transcript.from_dict(JSON | {"segments": [{"id": 0, "start": 0.0}]})


def test_keys_of_a_later_version_are_passed_over() -> None:
    segment = JSON["segments"][0]
    word = segment["words"][0] | {"speaker": "A"}
    later = JSON | {"mood": "calm", "segments": [segment | {"words": [word]}]}
    assert Transcript.from_dict(later).words == (Word("Пять,", 0.16, 0.36, 0.912),)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_what_render_gives_in_the_format_of_its_extension(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / f"a.b.{name}", tmp_path / f"loud.{name.upper()}"):
        TRANSCRIPT.save(path)
        assert path.read_bytes() == TRANSCRIPT.render(name).encode()
        TRANSCRIPT.save(str(path), tokens=True)
        assert path.read_bytes() == TRANSCRIPT.render(name, tokens=True).encode()


def test_unknown_formats_are_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no format 'docx': choose one of txt, json, srt, vtt, tsv, ctm"):
        TRANSCRIPT.render("docx")
    for name in ("a.docx", "a", ".srt"):
        with pytest.raises(ValueError, match=r"names no format: use one of \.txt, \.json"):
            TRANSCRIPT.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
