"""Fields of a request: every spelling of a list, what is refused and how, what has no effect."""

import pytest

from transduce.server.forms import Options, Served, read_options
from transduce.server.problems import ApiError

ANY = Served("demo", ("whisper-1", "gpt-4o-transcribe"), None)
RUSSIAN = Served("v3", ("whisper-1",), "ru")


def read(*fields: tuple[str, str], served: Served = ANY) -> Options:
    return read_options([("model", "whisper-1"), *fields], served)


def refusal(*fields: tuple[str, str], served: Served = ANY) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(*fields, served=served)
    return caught.value


def test_only_the_model_is_needed() -> None:
    assert read() == Options(
        format="json", has_words=False, has_logprobs=False, documents=(), is_streamed=False
    )


@pytest.mark.parametrize("name", ["demo", "whisper-1", "gpt-4o-transcribe"])
def test_the_model_has_all_its_names(name: str) -> None:
    read_options([("model", name)], ANY)


@pytest.mark.parametrize("fields", [[], [("model", "")], [("model", "  ")]])
def test_a_missing_model_is_400(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(ApiError) as caught:
        read_options(fields, ANY)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "missing_required_parameter")


@pytest.mark.parametrize("name", ["gpt-5", "Demo", "demo\nX: y", "a" * 5000])
def test_an_unknown_model_is_404(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_options([("model", name)], ANY)
    error = caught.value
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert len(error.message) < 200


def test_a_model_given_twice_is_400() -> None:
    assert refusal(("model", "demo")).status == 400


@pytest.mark.parametrize("name", ["json", "text", "srt", "verbose_json", "vtt"])
def test_formats(name: str) -> None:
    assert read(("response_format", name)).format == name


@pytest.mark.parametrize("name", ["diarized_json", "tsv", "JSON", "json,text", "<b>"])
def test_other_formats_are_400(name: str) -> None:
    error = refusal(("response_format", name))
    assert (error.status, error.param) == (400, "response_format")
    assert "verbose_json" in error.message


@pytest.mark.parametrize(
    "fields",
    [
        [("timestamp_granularities[]", "word")],
        [("timestamp_granularities", "word")],
        [("timestamp_granularities[0]", "word")],
        [("timestamp_granularities[]", "segment"), ("timestamp_granularities[]", "word")],
        [("timestamp_granularities[0]", "segment"), ("timestamp_granularities[1]", "word")],
        [("timestamp_granularities", "segment,word")],
        [("timestamp_granularities[]", "word, segment")],
        [("timestamp_granularities", '["word"]')],
        [("timestamp_granularities", "['segment', 'word']")],
    ],
)
def test_granularities_in_every_spelling(fields: list[tuple[str, str]]) -> None:
    assert read(*fields).has_words


@pytest.mark.parametrize("value", ["", "segment", "[]"])
def test_granularities_without_words(value: str) -> None:
    assert not read(("timestamp_granularities[]", value)).has_words


def test_an_unknown_granularity_is_400() -> None:
    error = refusal(("timestamp_granularities[]", "sentence"))
    assert (error.status, error.param) == (400, "timestamp_granularities")


def test_what_json_may_carry() -> None:
    options = read(
        ("include[]", "logprobs"), ("include[]", "srt"), ("include[]", "txt"), ("include[]", "srt")
    )
    assert options.has_logprobs
    assert options.documents == ("srt", "txt")
    assert refusal(("include[]", "usage")).param == "include"


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("True", True), ("1", True), ("false", False)]
)
def test_stream(value: str, expected: bool) -> None:
    assert read(("stream", value)).is_streamed is expected


def test_a_stream_of_subtitles_is_400() -> None:
    error = refusal(("stream", "true"), ("response_format", "srt"))
    assert (error.status, error.param) == (400, "response_format")


def test_stream_is_true_or_false() -> None:
    assert refusal(("stream", "maybe")).param == "stream"


@pytest.mark.parametrize("code", ["ru", "RU", "ru-RU", "ru_RU", ""])
def test_a_language_that_the_model_knows(code: str) -> None:
    read(("language", code), served=RUSSIAN)


@pytest.mark.parametrize("code", ["en", "en-US", "uk"])
def test_a_language_that_the_model_does_not_know_is_400(code: str) -> None:
    error = refusal(("language", code), served=RUSSIAN)
    assert (error.status, error.param, error.code) == (400, "language", "unsupported_language")
    assert "'ru'" in error.message


@pytest.mark.parametrize("code", ["english", "e", "12", "en us"])
def test_what_is_no_language_code_is_400(code: str) -> None:
    for served in (ANY, RUSSIAN):
        assert refusal(("language", code), served=served).code == "invalid_value"


def test_a_model_without_a_language_takes_any_code() -> None:
    read(("language", "en"))


def test_possible_languages_must_hold_the_models() -> None:
    read(("languages[]", "en"), ("languages[]", "ru"), served=RUSSIAN)
    assert refusal(("languages[]", "en"), ("languages[]", "de"), served=RUSSIAN).param == "languages"


@pytest.mark.parametrize("value", ["0", "0.0", "0.2", "1", ""])
def test_a_temperature_has_no_effect(value: str) -> None:
    assert read(("temperature", value)) == read()


@pytest.mark.parametrize("value", ["-0.1", "1.5", "nan", "inf", "hot"])
def test_what_is_no_temperature_is_400(value: str) -> None:
    assert refusal(("temperature", value)).param == "temperature"


@pytest.mark.parametrize(
    "field",
    [
        ("prompt", "Digits:"),
        ("chunking_strategy", "auto"),
        ("chunking_strategy[type]", "server_vad"),
        ("x", "y"),
    ],
)
def test_fields_without_effect(field: tuple[str, str]) -> None:
    assert read(field) == read()


@pytest.mark.parametrize("name", ["keywords[]", "known_speaker_names[]", "known_speaker_references[]"])
def test_what_cannot_be_honoured_is_refused(name: str) -> None:
    error = refusal((name, "anything"))
    assert (error.status, error.code) == (400, "unsupported_parameter")
