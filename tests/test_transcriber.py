"""The flow: recordings of every kind to transcripts in order, errors in their places, one model for all.

A recogniser of clicks (`fakes`) stands for the engine where the flow itself is tested; the demo model where
speech matters.
"""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fakes import FRAME_SAMPLES, LOUD, RATE, WORDS, ClickBackend, click_model, clicks, write_wav
from support import DEMO, data, read_wav

import transduce
from transduce import (
    AudioError,
    DeviceError,
    Model,
    ResourceError,
    Transcript,
    TransduceError,
    UnsupportedModelError,
    pipeline,
    recognizing,
)
from transduce.pipeline import Cut, Limits
from transduce.transcriber import load_model

FRAME_SECONDS = FRAME_SAMPLES / RATE
FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def demo() -> Iterator[Model]:
    with load_model("demo") as model:
        yield model


def saying(label: int, num_seconds: float = 1.0) -> FloatArray:
    return clicks(num_seconds, {0.5: label})


def texts(outcomes: Sequence[Transcript | TransduceError]) -> list[str]:
    """The text of each transcript, or the name of its error."""
    return [o.text if isinstance(o, Transcript) else type(o).__name__ for o in outcomes]


# Loading


def test_the_demo_is_found_by_name_and_by_path() -> None:
    with load_model("demo") as named, load_model(DEMO) as located, load_model(str(DEMO)) as spelled:
        assert (named.spec.name, named.spec.family, named.spec.head.kind) == ("demo", "nemo", "tdt")
        assert located.spec.heads == spelled.spec.heads == named.spec.heads


def test_a_head_can_be_chosen() -> None:
    with load_model("demo", head="ctc") as model:
        assert model.spec.head.kind == "ctc"
        assert model.transcribe(data("audio/u35.wav")).head == "ctc"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"head": "rnnt"}, UnsupportedModelError, "has no rnnt head; it has: tdt, ctc"),
        ({"backend": "tensorflow"}, transduce.DeviceError, "tensorflow"),
        ({"device": "tpu"}, transduce.DeviceError, "use auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:99"}, transduce.DeviceError, "cuda:99"),
        ({"precision": "fp8"}, transduce.DeviceError, "fp8"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_a_model_cannot_be_asked_for(options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        load_model("demo", **options)


@pytest.mark.parametrize("name", ["nothing.nemo", "x" * 300, "demo.nemo"])
def test_a_model_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(TransduceError, match=name) as caught:
        load_model(name)
    assert "demo" in str(caught.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=tmp_path.name):
        load_model(tmp_path)


# One model


def test_a_model_closes_once() -> None:
    backend = ClickBackend()
    with click_model(backend) as model:
        assert backend.num_closed == 0
    model.close()
    assert backend.num_closed == 1


def test_a_closed_model_says_so() -> None:
    model = click_model()
    model.close()
    for use in (
        lambda: model.transcribe(saying(0)),
        lambda: model.transcribe_batch([saying(0)]),
        lambda: next(model.transcribe_many([saying(0)])),
        lambda: model.transcribe_channels(saying(0)),
        lambda: model.transcribe("no such file.wav"),
    ):
        with pytest.raises(DeviceError, match="clicks was closed; load the model again"):
            use()


def test_closing_waits_for_the_batch_that_runs_and_ends_the_calls() -> None:
    runs, may_end = threading.Event(), threading.Event()

    def wait(batch: object) -> None:
        assert backend.num_closed == 0
        runs.set()
        assert may_end.wait(10)

    backend = ClickBackend(fault=wait)
    model = click_model(backend)
    calls: tuple[Callable[[], object], ...] = (
        lambda: model.transcribe(saying(0)),
        lambda: model.transcribe_batch([saying(0)] * 100, limits=Limits(batch_seconds=2)),
        lambda: list(model.transcribe_many([saying(0)] * 100)),
        lambda: list(model.stream(saying(0))),
    )
    with ThreadPoolExecutor(len(calls) + 1) as threads:
        running = [threads.submit(call) for call in calls]
        assert runs.wait(10)
        closing = threads.submit(model.close)
        with pytest.raises(FutureTimeoutError):
            closing.result(0.1)
        may_end.set()
        closing.result(10)
        for call in running:
            with pytest.raises(DeviceError, match="clicks was closed"):
                call.result(10)
    assert backend.num_closed == 1
    assert len(backend.batches) <= len(calls)


def test_a_generator_that_waits_does_not_hold_up_the_end_of_its_model() -> None:
    model = click_model()
    found = model.transcribe_many([saying(0)] * 100)
    assert texts([next(found)]) == ["one"]
    model.close()
    with pytest.raises(DeviceError, match="clicks was closed"):
        next(found)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_an_engine_may_be_closed_while_others_use_it(engine: str) -> None:
    """At some moment of some calls; each gives the right text before it, and that error after it."""
    model = load_model("demo", backend=engine)
    speech = [read_wav("u35.wav")] * 4
    done = threading.Semaphore(0)

    def repeat() -> str:
        while True:
            try:
                found = texts(model.transcribe_batch(speech, raise_errors=True))
            except DeviceError as error:
                return str(error)
            assert found == ["three eight zero zero five three"] * 4
            done.release()

    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(repeat) for _ in range(3)]
        for _ in calls:
            assert done.acquire(timeout=60)
        model.close()
        for call in calls:
            assert call.result(60) == f"{model.spec.name} was closed; load the model again"


def test_what_was_decoded_is_kept_when_the_model_is_closed(demo: Model) -> None:
    with load_model("demo") as model:
        transcript = model.transcribe(data("audio/u35.wav"))
    assert transcript == demo.transcribe(data("audio/u35.wav"))


def test_eight_threads_share_a_model(demo: Model) -> None:
    names = ["u03.wav", "u24.wav", "u17.wav", "u32.wav"]
    waveforms = [read_wav(name) for name in names]
    alone = [demo.transcribe(waveform) for waveform in waveforms]
    assert len({transcript.text for transcript in alone}) == 4
    spec = demo.spec
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            order = np.random.default_rng((number, turn)).permutation(4)[: 1 if turn % 2 else 2]
            found = demo.transcribe_batch([waveforms[i] for i in order])
            wrong.extend((f, i) for f, i in zip(found, order, strict=True) if not same(f, alone[i]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert demo.spec is spec


def same(found: object, expected: Transcript) -> bool:
    """Text and times are equal, confidences to 1e-5."""
    if not isinstance(found, Transcript):
        return False
    rows = [[(w.word, w.start, w.end) for w in transcript.words] for transcript in (found, expected)]
    confidences = [[w.confidence for w in transcript.words] for transcript in (found, expected)]
    return found.text == expected.text and rows[0] == rows[1] and np.allclose(*confidences, rtol=0, atol=1e-5)


# Many recordings


def test_results_come_in_the_order_of_the_sources() -> None:
    seconds = (5, 1, 3, 3, 8, 2, 4)
    sources = [saying(label, num_seconds) for label, num_seconds in enumerate(seconds)]
    expected = ["one", "two", "three", "four", "five", "six", "seven"]
    assert texts(click_model().transcribe_batch(sources)) == expected
    assert texts(click_model().transcribe_batch(iter(sources))) == expected
    assert texts(list(click_model().transcribe_many(sources))) == expected


def test_a_failed_recording_is_its_error_in_its_place(tmp_path: Path) -> None:
    broken = saying(1)
    broken[3] = np.nan
    sources: list[Any] = [saying(0), broken, tmp_path / "missing.wav", b"", saying(4)]
    outcomes = click_model().transcribe_batch(sources)
    assert texts(outcomes) == ["one", "AudioError", "AudioError", "AudioError", "five"]
    assert "missing.wav" in str(outcomes[2])
    with pytest.raises(AudioError, match="NaN"):
        click_model().transcribe_batch(sources, raise_errors=True)


def test_an_error_of_the_engine_names_the_recording(tmp_path: Path) -> None:
    def fault(batch: Sequence[FloatArray]) -> Exception | None:
        return ResourceError("no room") if max(map(len, batch)) > 5 * RATE else None

    path = write_wav(tmp_path / "long.wav", saying(0, 6))
    first, second = click_model(ClickBackend(fault=fault)).transcribe_batch([path, saying(1)])
    assert texts([first, second]) == ["ResourceError", "two"]
    assert str(first) == f"{path}: no room"
    assert isinstance(first, ResourceError)
    assert str(first.__cause__) == "no room"


def test_a_recording_larger_than_memory_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    open_stream = pipeline.open_stream

    def open_short(source: Any, **options: Any) -> Any:
        if len(source) > 5 * RATE:
            raise MemoryError
        return open_stream(source, **options)

    monkeypatch.setattr(pipeline, "open_stream", open_short)
    outcomes = click_model().transcribe_batch([saying(0), saying(1, 6), saying(2)])
    assert texts(outcomes) == ["one", "ResourceError", "three"]
    assert str(outcomes[1]).startswith("<array> ")


def test_sources_may_never_end() -> None:
    taken = []

    def endless() -> Iterator[FloatArray]:
        for number in count():
            taken.append(number)
            yield saying(number % 8)

    found = list(islice(click_model().transcribe_many(endless()), 200))
    assert texts(found[:8]) == list(WORDS)
    assert len(taken) <= 200 + 2 * recognizing.MOST_ENDED + pipeline.READ_AHEAD_SECONDS


def test_results_come_once_there_is_audio_for_some_batches() -> None:
    taken = []

    def long_ones() -> Iterator[FloatArray]:
        for number in range(100):
            taken.append(number)
            yield hum + saying(number % 8, 100)

    hum = np.resize(np.float32([0.03, -0.03]), 100 * RATE)
    found = click_model().transcribe_many(long_ones(), limits=LOUD)
    next(found)
    found.close()
    pool_seconds = Limits().pool_batches * Limits().batch_seconds
    assert len(taken) * 100 <= 2 * (pool_seconds + 100) + pipeline.READ_AHEAD_SECONDS + 100


def test_nothing_gives_nothing() -> None:
    assert click_model().transcribe_batch([]) == []


# Sources


def test_every_kind_of_source_gives_the_same(demo: Model) -> None:
    path = data("audio/u35.wav")
    samples = read_wav("u35.wav")
    expected = demo.transcribe(samples)
    assert expected.text == "three eight zero zero five three"
    with path.open("rb") as file:
        sources: list[Any] = [
            str(path),
            path,
            path.read_bytes(),
            io.BytesIO(path.read_bytes()),
            file,
            samples,
        ]
        found = [demo.transcribe(source) for source in sources]
    assert all(same(transcript, expected) for transcript in found)
    assert [f.source for f in found[:3]] == [str(path), str(path), "<bytes>"]
    assert found[-1].source == "<array>"
    assert {f.duration for f in found} == {len(samples) / RATE}


def test_an_array_may_have_another_rate() -> None:
    samples = np.zeros(3 * 48000, np.float32)
    samples[48000 : 48000 + 400] = 0.6  # 8 ms, which stay one run of loud samples
    backend = ClickBackend()
    transcript = click_model(backend).transcribe(samples, sample_rate=48000)
    assert backend.batches == [[3 * RATE]]
    assert transcript.duration == 3.0
    assert transcript.tokens[0].start == pytest.approx(1.0, abs=FRAME_SECONDS)


def test_channels_are_transcribed_apart() -> None:
    stereo = np.stack([saying(0), saying(5)], axis=1)
    left, right = click_model().transcribe_channels(stereo)
    assert (left.text, left.channel, right.text, right.channel) == ("one", 0, "six", 1)
    assert click_model().transcribe(stereo, channel=1).text == "six"
    with pytest.raises(AudioError, match="no channel 2"):
        click_model().transcribe(stereo, channel=2)


def test_errors_of_channels_are_raised() -> None:
    with pytest.raises(AudioError, match="no_such_file"):
        click_model().transcribe_channels("no_such_file.wav")


# What is cut out of a recording


@pytest.mark.parametrize(("start", "end"), [(0.0, None), (1.6, None), (2.0, 4.5), (0.0, 3.3)])
def test_times_of_a_part_are_those_of_the_whole(start: float, end: float | None) -> None:
    places = {0.31 + 0.7 * number: number % 8 for number in range(8)}
    samples = clicks(6, places)
    inside = [place for place in places if start <= place < (end or 6)]
    transcript = click_model().transcribe(samples, start=start, end=end)
    assert len(transcript.words) == len(inside)
    for word, place in zip(transcript.words, inside, strict=True):
        assert -1e-9 < place - word.start < FRAME_SECONDS
    assert transcript.duration == pytest.approx(end or 6)
    assert transcript.text == " ".join(word.word for word in transcript.words)


def test_many_recordings_may_be_cut_alike() -> None:
    first, second = click_model().transcribe_many([saying(0), saying(1)], Cut(start_seconds=0.6))
    assert texts([first, second]) == ["", ""]


def test_a_part_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AudioError, match="no audio between 7"):
        click_model().transcribe(saying(0), start=7)


# What comes out


def test_a_transcript_says_where_it_is_from(demo: Model) -> None:
    transcript = demo.transcribe(data("audio/u35.wav"))
    assert transcript.source == str(data("audio/u35.wav"))
    assert (transcript.model, transcript.head, transcript.language) == ("demo", "tdt", None)
    assert (transcript.channel, transcript.warnings) == (None, ())
    assert transcript.words == tuple(word for segment in transcript.segments for word in segment.words)


@pytest.mark.parametrize("num_seconds", [0.001, 4.0, 70.0])
def test_silence_is_an_empty_transcript_of_its_length(num_seconds: float) -> None:
    backend = ClickBackend()
    transcript = click_model(backend).transcribe(np.zeros(round(num_seconds * RATE), np.float32))
    assert (transcript.text, transcript.words, transcript.segments, transcript.tokens) == ("", (), (), ())
    assert transcript.duration == pytest.approx(num_seconds)
    assert transcript.warnings == ()
    assert backend.batches == []


def test_audio_too_quiet_to_be_speech_says_so(demo: Model) -> None:
    hiss = np.random.default_rng(0).normal(0, 1e-3, 4 * RATE).astype(np.float32)
    transcript = demo.transcribe(hiss)
    assert (transcript.text, transcript.duration) == ("", 4.0)
    (warning,) = transcript.warnings
    assert "taken for silence" in warning
    assert demo.transcribe(hiss * 10).warnings == ()


def test_no_word_crosses_a_joint() -> None:
    # "teen" has no space of its own: behind a click of its own span it goes on with the word before it.
    together = clicks(20, {5.0: 3, 5.2: 8})
    assert click_model().transcribe(together).text == "fourteen"
    apart = clicks(50, {5.0: 3, 45.0: 8})
    transcript = click_model().transcribe(apart, limits=LOUD)
    assert transcript.text == "four teen"
    assert [round(word.start) for word in transcript.words] == [5, 45]


def test_words_of_long_audio_are_in_order() -> None:
    samples = clicks(200, {0.05 + 0.9 * number: number % 9 for number in range(220)})
    transcript = click_model().transcribe(samples, limits=LOUD)
    assert len(transcript.tokens) == 220
    assert all(before.end <= after.start for before, after in pairwise(transcript.words))
    assert transcript.text == " ".join(word.word for word in transcript.words)
    assert transcript.text == " ".join(segment.text for segment in transcript.segments)


def test_an_input_array_is_not_changed(demo: Model) -> None:
    samples = read_wav("u03.wav")
    before = samples.copy()
    samples.flags.writeable = False
    demo.transcribe(samples)
    assert np.array_equal(samples, before)
