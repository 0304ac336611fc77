"""OpenAI's own client against the server: the golden texts and word times in every response format.

Expected words come from upstream's ids, frames and durations, by the pieces of the checkpoint's own
SentencePiece model: a piece with a leading "▁" begins a word; a frame is 0.08 s.
"""

import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import sentencepiece
from http_support import Site, serving
from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI
from support import DEMO, data, golden, utterances

from transduce.server.settings import Settings
from transduce.transcriber import load_model

FRAME_SECONDS = 0.08
UTTERANCES = range(40)
GOLDENS: list[dict[str, Any]] = golden("nemo-hybrid")["utterances"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with load_model("demo") as model, serving(model, Settings(drain_seconds=2.0)) as site:
        yield site


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[OpenAI]:
    with site.openai() as client:
        yield client


def recording(index: int) -> tuple[str, bytes]:
    name = utterances()[index]["file"]
    return name, data(f"audio/{name}").read_bytes()


def pieces() -> sentencepiece.SentencePieceProcessor:
    with tarfile.open(DEMO) as archive:
        (member,) = [m for m in archive.getmembers() if m.name.endswith("tokenizer.model")]
        file = archive.extractfile(member)
        assert file is not None
        return sentencepiece.SentencePieceProcessor(model_proto=file.read())


def expected_words(index: int) -> list[tuple[str, float, float]]:
    """(word, start, end) of an utterance, in seconds."""
    answer, model = GOLDENS[index], pieces()
    words: list[list[Any]] = []
    for piece_id, frame, duration in zip(answer["ids"], answer["frames"], answer["durations"], strict=True):
        piece = model.id_to_piece(piece_id)
        if piece.startswith("▁") or not words:
            words.append(["", frame, frame])
        words[-1][0] += piece.removeprefix("▁")
        words[-1][2] = frame + max(duration, 1)
    limits = [after[1] for _, after in pairwise(words)] + [utterances()[index]["seconds"] / FRAME_SECONDS]
    return [
        (text, round(start * FRAME_SECONDS, 3), round(min(end, limit) * FRAME_SECONDS, 3))
        for (text, start, end), limit in zip(words, limits, strict=True)
    ]


def cue_texts(subtitles: str) -> str:
    """The words of a subtitle file, whatever cues and lines they are in."""
    lines = (line for line in subtitles.splitlines() if line and "-->" not in line and not line.isdigit())
    return " ".join(line for line in lines if line != "WEBVTT")


def test_json_is_the_golden_text(client: OpenAI) -> None:
    for index in UTTERANCES:
        found = client.audio.transcriptions.create(model="whisper-1", file=recording(index))
        assert found.text == GOLDENS[index]["text"]


def test_verbose_json_has_the_golden_words_and_times(client: OpenAI) -> None:
    for index in UTTERANCES:
        found = client.audio.transcriptions.create(
            model="demo",
            file=recording(index),
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
        assert found.text == GOLDENS[index]["text"]
        assert found.words is not None
        assert [(w.word, w.start, w.end) for w in found.words] == expected_words(index)
        assert found.duration == pytest.approx(utterances()[index]["seconds"], abs=0.001)
        assert found.segments is not None
        assert " ".join(segment.text for segment in found.segments) == found.text
        assert [token for segment in found.segments for token in segment.tokens] == GOLDENS[index]["ids"]


def test_segments_are_whole(client: OpenAI) -> None:
    found = client.audio.transcriptions.create(
        model="whisper-1", file=recording(1), response_format="verbose_json"
    )
    assert found.words is None
    assert found.language == "unknown"
    (segment,) = found.segments or []
    words = expected_words(1)
    assert (segment.id, segment.start, segment.end) == (0, words[0][1], words[-1][2])
    assert (segment.seek, segment.temperature, segment.no_speech_prob) == (0, 0.0, 0.0)
    assert -0.1 < segment.avg_logprob < 0.0
    assert 0.5 < segment.compression_ratio < 3.0


def test_text_is_the_golden_text(client: OpenAI) -> None:
    for index in UTTERANCES:
        found = client.audio.transcriptions.create(
            model="whisper-1", file=recording(index), response_format="text"
        )
        assert found == GOLDENS[index]["text"] + "\n"


@pytest.mark.parametrize(
    ("name", "head", "point"), [("srt", "1\n00:00:0", ","), ("vtt", "WEBVTT\n\n00:00:0", ".")]
)
def test_subtitles_are_the_golden_text(client: OpenAI, name: str, head: str, point: str) -> None:
    for index in UTTERANCES:
        found = client.audio.transcriptions.create(
            model="whisper-1",
            file=recording(index),
            response_format=name,  # type: ignore[call-overload]
        )
        assert cue_texts(found) == GOLDENS[index]["text"]
        first = expected_words(index)[0][1]
        assert found.startswith(head)
        assert f"00:00:0{first:.3f} -->".replace(".", point) in found


def test_a_stream_gives_the_golden_text_piece_by_piece(client: OpenAI) -> None:
    for index in UTTERANCES:
        events = list(
            client.audio.transcriptions.create(model="whisper-1", file=recording(index), stream=True)
        )
        *deltas, done = events
        assert {event.type for event in deltas} == {"transcript.text.delta"}
        assert done.type == "transcript.text.done"
        assert done.text == "".join(event.delta for event in deltas) == GOLDENS[index]["text"]


def test_logprobs(client: OpenAI) -> None:
    found = client.audio.transcriptions.create(model="whisper-1", file=recording(1), include=["logprobs"])
    assert found.logprobs is not None
    assert "".join(entry.token or "" for entry in found.logprobs).strip() == found.text
    assert all(-5.0 < (entry.logprob or 0.0) <= 0.0 for entry in found.logprobs)
    assert bytes(int(b) for e in found.logprobs for b in e.bytes or []).decode().strip() == found.text


def test_many_clients_at_once_get_what_is_theirs(client: OpenAI) -> None:
    def work(index: int) -> str:
        return client.audio.transcriptions.create(model="whisper-1", file=recording(index)).text

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(work, UTTERANCES))
    assert found == [entry["text"] for entry in GOLDENS]


def test_any_kind_of_file_object_and_field(client: OpenAI) -> None:
    stream = io.BytesIO(recording(1)[1])
    stream.name = "speech.mp3"
    found = client.audio.transcriptions.create(
        model="whisper-1",
        file=stream,
        language="en",
        prompt="Digits.",
        temperature=0.2,
        chunking_strategy="auto",
    )
    assert found.text == GOLDENS[1]["text"]


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("whisper-1").id == "demo"
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found"


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.audio.transcriptions.create(model="gpt-5", file=recording(1))
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(BadRequestError) as bad:
        client.audio.transcriptions.create(model="whisper-1", file=("notes.txt", b"not audio at all"))
    assert (bad.value.code, bad.value.param) == ("audio", "file")
    assert "notes.txt" in str(bad.value)
    assert bad.value.request_id


def test_an_error_in_a_stream_that_had_not_begun(client: OpenAI) -> None:
    with pytest.raises(BadRequestError):
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"RIFF"), stream=True)


def test_keys() -> None:
    settings = Settings(api_keys=("secret-1", "secret-2"), drain_seconds=2.0)
    with load_model("demo") as model, serving(model, settings) as site:
        with site.openai("secret-2") as client:
            assert client.audio.transcriptions.create(model="demo", file=recording(3)).text == "one"
        with site.openai("secret-3") as client, pytest.raises(AuthenticationError) as caught:
            client.models.list()
    assert caught.value.code == "invalid_api_key"
