"""Recordings on their way: what overlaps, what is bounded, what is left when something ends early.

A recogniser of clicks (`fakes`) stands for the engine, and loudness for speech, except where speech matters.
"""

import sys
import threading
import tracemalloc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import LOUD, RATE, ClickBackend, click_model, clicks, spec_at, write_wav
from support import read_wav, utterances
from wer import word_errors

import transduce
from transduce.errors import AudioError, MissingExtraError, ResourceError, UnsupportedModelError
from transduce.onnx.session import Session
from transduce.onnx.vad import shared_detector
from transduce.pipeline import Cut, Limits
from transduce.types import FloatArray, Segment

LONG_SECONDS = 100
PLACES = {0.5 + 0.9 * number: number % 8 for number in range(110)}


def long_clicks(num_seconds: float = LONG_SECONDS) -> FloatArray:
    return clicks(num_seconds, {place: label for place, label in PLACES.items() if place < num_seconds})


@contextmanager
def no_thread_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def taken(segments: Generator[Segment, None, Any]) -> tuple[list[Segment], Any]:
    """All segments of a stream, and the transcript that it returns."""
    found: list[Segment] = []
    while True:
        try:
            found.append(next(segments))
        except StopIteration as end:
            return found, end.value


# Segments while the file is read


def test_a_stream_gives_the_segments_of_the_transcript() -> None:
    whole = click_model().transcribe(long_clicks(), limits=LOUD)
    with no_thread_left():
        found, transcript = taken(click_model().stream(long_clicks(), limits=LOUD))
    assert len(found) > 3
    assert found == list(whole.segments)
    assert transcript == whole


def test_segments_come_before_the_file_is_read(tmp_path: Path) -> None:
    """The first ones, when hardly more than a batch of audio was taken from a file of an hour."""
    path = write_wav(tmp_path / "hour.wav", np.tile(long_clicks(), 36))
    with path.open("rb") as file, no_thread_left():
        segments = click_model().stream(file, limits=replace(LOUD, batch_seconds=60))
        assert next(segments).text.startswith("one two")
        assert file.tell() < path.stat().st_size / 10
        segments.close()


def test_a_stream_that_is_closed_leaves_no_thread_and_recognises_no_more() -> None:
    backend = ClickBackend()
    with no_thread_left():
        segments = click_model(backend).stream(
            np.tile(long_clicks(), 20), limits=replace(LOUD, batch_seconds=30)
        )
        next(segments)
        segments.close()
    assert len(backend.batches) < 10


def test_a_stream_of_what_cannot_be_read_raises(tmp_path: Path) -> None:
    broken = long_clicks()
    broken[-5] = np.nan
    for source in (tmp_path / "missing.wav", broken):
        with no_thread_left(), pytest.raises(AudioError):
            taken(click_model().stream(source, limits=LOUD))


def test_a_stream_is_of_one_channel() -> None:
    with pytest.raises(ValueError, match="one channel"):
        next(click_model().stream(long_clicks(), Cut(channel="each")))
    with pytest.raises(ValueError, match="transcribe_each"):
        next(click_model().transcribe_many([long_clicks()], Cut(channel="each")))


# Many recordings


def test_recordings_share_batches() -> None:
    backend = ClickBackend()
    click_model(backend).transcribe_batch([long_clicks(7)] * 20)
    assert [len(batch) for batch in backend.batches] == [20]


def test_the_first_batches_are_small_so_that_results_begin_soon() -> None:
    """20 s, 40 s, 80 s, 160 s of recordings of 5 s; each result comes once its batch is done."""
    backend = ClickBackend()
    num_batches = [len(backend.batches) for _ in click_model(backend).transcribe_many([long_clicks(5)] * 100)]
    assert [len(batch) for batch in backend.batches] == [4, 8, 16, 32, 32, 8]
    assert num_batches == [1] * 4 + [2] * 8 + [3] * 16 + [4] * 32 + [5] * 32 + [6] * 8


def test_a_recording_comes_once_all_of_it_and_all_before_it_is_recognised() -> None:
    """Short ones come after the first batch, though hours of audio follow them."""
    backend = ClickBackend()
    hour = np.tile(long_clicks(), 36)
    found = click_model(backend).transcribe_many([long_clicks(3), long_clicks(4), hour], limits=LOUD)
    assert [len(next(found).words) for _ in range(2)] == [3, 4]
    assert len(backend.batches) == 1
    found.close()


def test_similar_lengths_of_all_recordings_share_batches_and_order_is_kept() -> None:
    """Short and long ones in turn: the oldest is in each batch, and yet nothing is padded."""
    backend = ClickBackend()
    sources = [long_clicks(1.5 if number % 2 else 24) for number in range(60)]
    found = list(click_model(backend).transcribe_many(sources))
    assert [outcome.duration for outcome in found] == [len(source) / RATE for source in sources]
    padded = sum(len(batch) * max(batch) for batch in backend.batches)
    assert padded == sum(map(len, sources))
    assert len(backend.batches) <= 12 + 60 / 6


def test_sources_that_are_slow_to_come_hold_up_none_before_them() -> None:
    """The third one comes when the results of the first two have been seen."""
    seen = threading.Event()

    def sources() -> Iterator[FloatArray]:
        yield from (long_clicks(3), long_clicks(4))
        assert seen.wait(10)
        yield long_clicks(5)

    found = click_model().transcribe_many(sources())
    assert [len(next(found).words) for _ in range(2)] == [3, 4]
    seen.set()
    assert [len(outcome.words) for outcome in found] == [5]


def test_silent_recordings_are_given_out_while_others_are_awaited() -> None:
    seen = threading.Event()

    def sources() -> Iterator[FloatArray]:
        yield np.zeros(RATE, np.float32)
        assert seen.wait(10)
        yield long_clicks(5)

    found = click_model().transcribe_many(sources())
    assert next(found).text == ""
    seen.set()
    assert len(list(found)) == 1


def test_a_stream_gives_its_first_segments_after_a_batch_of_one_piece() -> None:
    backend = ClickBackend()
    hour = np.tile(long_clicks(), 36)
    segments = click_model(backend).stream(hour, limits=LOUD)
    next(segments)
    assert sum(map(sum, backend.batches)) <= 60 * RATE
    segments.close()


def test_long_and_short_recordings_come_in_order() -> None:
    sources = [
        long_clicks(3),
        long_clicks(),
        long_clicks(5),
        np.zeros(50 * RATE, np.float32),
        long_clicks(70),
    ]
    outcomes = click_model().transcribe_batch(sources, limits=replace(LOUD, batch_seconds=20))
    alone = [click_model().transcribe(source, limits=LOUD) for source in sources]
    assert outcomes == alone
    assert [len(outcome.words) for outcome in alone] == [3, 110, 5, 0, 78]


def test_an_error_late_in_a_long_recording_costs_only_that_one() -> None:
    broken = long_clicks()
    broken[-5] = np.nan
    first, second, third = click_model().transcribe_batch(
        [long_clicks(3), broken, long_clicks(4)], limits=LOUD
    )
    assert isinstance(second, AudioError)
    assert "NaN" in str(second)
    assert [outcome.text for outcome in (first, third)] == ["one two three", "one two three four"]


def test_an_error_of_one_piece_is_the_recordings() -> None:
    def fault(batch: Sequence[FloatArray]) -> Exception | None:
        return MemoryError() if any(len(waveform) > 20 * RATE for waveform in batch) else None

    sources = [long_clicks(3), long_clicks(), long_clicks(10)]
    first, second, third = click_model(ClickBackend(fault=fault)).transcribe_batch(sources, limits=LOUD)
    assert isinstance(second, ResourceError)
    assert str(second).startswith("<array>: memory ran out on ")
    assert (len(first.words), len(third.words)) == (3, 11)


def test_a_fault_of_sources_or_of_the_engine_leaves_no_thread() -> None:
    def sources() -> Iterator[FloatArray]:
        yield long_clicks(3)
        raise ZeroDivisionError

    broken = ClickBackend(fault=lambda batch: ZeroDivisionError())
    for model, given in ((click_model(), sources()), (click_model(broken), [long_clicks()] * 20)):
        with no_thread_left(), pytest.raises(ZeroDivisionError):
            list(model.transcribe_many(given, limits=LOUD))


def test_an_interrupt_leaves_no_thread() -> None:
    interrupted = ClickBackend(fault=lambda batch: KeyboardInterrupt())  # type: ignore[arg-type, return-value]
    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        click_model(interrupted).transcribe(long_clicks(), limits=LOUD)


def test_channels_of_a_long_recording_are_transcribed_apart() -> None:
    left, right = long_clicks(), np.roll(long_clicks(), 40 * RATE)
    found = click_model().transcribe_channels(np.stack([left, right], axis=1), limits=LOUD)
    for channel, (transcript, samples) in enumerate(zip(found, (left, right), strict=True)):
        alone = click_model().transcribe(samples, limits=LOUD)
        assert (transcript.words, transcript.channel) == (alone.words, channel)


@pytest.mark.parametrize("channel", ["mix", "each"])
def test_progress_adds_up_to_the_audio(channel: Any) -> None:
    stereo = np.stack([long_clicks(), np.zeros(LONG_SECONDS * RATE, np.float32)], axis=1)
    sources = [stereo, long_clicks(3), np.zeros(40 * RATE, np.float32), b"", long_clicks(70)]
    told: list[float] = []
    list(
        click_model().transcribe_each(
            sources, Cut(channel=channel), replace(LOUD, batch_seconds=10), told.append
        )
    )
    assert sum(told) == pytest.approx(LONG_SECONDS + 3 + 40 + 70)
    assert min(told) >= 0
    assert len(told) > 10


# Limits


def test_batches_keep_their_limit() -> None:
    backend = ClickBackend()
    hum = np.resize(np.float32([0.03, -0.03]), 600 * RATE)
    click_model(backend).transcribe(hum, limits=Limits("off", max_segment_seconds=5, batch_seconds=20))
    lengths = [length for batch in backend.batches for length in batch]
    assert max(lengths) <= 5 * RATE
    assert sum(lengths) >= 600 * RATE
    assert max(len(batch) * max(batch) for batch in backend.batches) <= 20 * RATE


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(vad="maybe"), "vad is one of auto, on, off, not 'maybe'"),  # type: ignore[arg-type]
        (Limits(max_segment_seconds=0.1), "allow at least 0.64 s"),
        (Limits(max_segment_seconds=0), "allow at least 0.64 s"),
        (Limits(max_segment_seconds=-1), "allow at least 0.64 s"),
        (Limits(batch_seconds=0), "batch_seconds is more than 0"),
        (Limits(first_batch_seconds=-1), "first_batch_seconds is more than 0"),
        (Limits(pool_batches=0), "pool_batches is more than 0"),
    ],
)
def test_limits_that_make_no_sense(limits: Limits, words: str) -> None:
    with no_thread_left(), pytest.raises(ValueError, match=words):
        list(click_model().transcribe_many([long_clicks(3)], limits=limits))


def peak_bytes(samples: FloatArray) -> int:
    """What a run allocates besides its source."""
    tracemalloc.start()
    click_model().transcribe(samples, limits=replace(LOUD, batch_seconds=30))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.alone
def test_memory_does_not_grow_with_the_recording() -> None:
    hum = np.resize(np.float32([0.03, -0.03]), 1500 * RATE)
    assert peak_bytes(hum) < peak_bytes(hum[: 500 * RATE]) + 3e6 < 40e6


# Voice activity


def spoken(num_utterances: int, pause_seconds: float = 1.5) -> tuple[FloatArray, str]:
    """Some utterances with pauses between, and what is said."""
    chosen = utterances()[:num_utterances]
    pause = np.random.default_rng(0).normal(0, 1e-3, round(pause_seconds * RATE)).astype(np.float32)
    parts = [part for u in chosen for part in (read_wav(u["file"]), pause)]
    return np.concatenate(parts), " ".join(u["text_en"] for u in chosen)


@pytest.fixture(scope="module")
def demo() -> Iterator[transduce.Model]:
    with transduce.load_model("demo") as model:
        yield model


def lengths_of(model: transduce.Model, samples: FloatArray, limits: Limits) -> list[int]:
    """The lengths of the pieces that a model's backend is given."""
    backend = ClickBackend(spec=model.spec)
    click_model(backend).transcribe(samples, limits=limits)
    return [length for batch in backend.batches for length in batch]


def test_speech_is_found_in_long_recordings_or_in_all_or_in_none(demo: transduce.Model) -> None:
    short, _ = spoken(2, pause_seconds=3.0)
    assert len(short) < 30 * RATE
    assert lengths_of(demo, short, Limits()) == [len(short)]
    assert lengths_of(demo, short, Limits("off")) == [len(short)]
    found = lengths_of(demo, short, Limits("on"))
    assert len(found) > 1
    assert sum(found) < len(short) - 4 * RATE
    long, _ = spoken(20)
    assert sum(lengths_of(demo, long, Limits())) < len(long) - 15 * RATE


@pytest.mark.parametrize("vad", ["auto", "on", "off"])
def test_speech_is_read_through_every_cut(demo: transduce.Model, vad: Any) -> None:
    samples, text = spoken(20)
    transcript = demo.transcribe(samples, limits=Limits(vad))
    assert word_errors(text, transcript.text) <= 0.03 * len(text.split())
    assert all(0 <= word.start <= word.end <= transcript.duration for word in transcript.words)
    assert all(before.end <= after.start for before, after in pairwise(transcript.words))
    assert transcript.warnings == ()


def times(transcript: Any) -> list[tuple[str, float, float]]:
    return [(word.word, word.start, word.end) for word in transcript.words]


def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]
    shared_detector.cache_clear()


def test_without_onnxruntime_long_audio_is_cut_by_loudness_with_a_warning(
    demo: transduce.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_onnxruntime(monkeypatch)
    samples, _ = spoken(20)
    long, short = demo.transcribe_batch([samples, samples[: 5 * RATE]])
    (warning,) = long.warnings
    assert warning.startswith("long audio was cut at quiet places: onnxruntime is needed")
    assert 'pip install "transduce[cpu]"' in warning
    assert short.warnings == ()
    assert times(long) == times(demo.transcribe(samples, limits=Limits("off")))


def test_without_onnxruntime_voice_activity_cannot_be_had(
    demo: transduce.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_onnxruntime(monkeypatch)
    for run in (
        demo.transcribe,
        demo.transcribe_channels,
        lambda *args, **kw: next(demo.stream(*args, **kw)),
    ):
        with no_thread_left(), pytest.raises(MissingExtraError, match=r'pip install "transduce\[cpu\]"'):
            run(long_clicks(3), limits=Limits("on"))


def test_a_model_of_another_rate_is_cut_by_loudness() -> None:
    model = click_model(ClickBackend(spec_at(8000)))
    (warning,) = model.transcribe(clicks(70, {3.0: 1}, rate=8000)).warnings
    assert "clicks takes 8000 samples a second, voice activity detection 16000" in warning
    with pytest.raises(UnsupportedModelError, match="8000 samples"):
        model.transcribe(clicks(3, {1.0: 1}, rate=8000), limits=Limits("on"))


def test_one_session_serves_every_recording(demo: transduce.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_session = Session.open

    def remember(*args: Any, **options: Any) -> Session:
        opened.append(args)
        return open_session(*args, **options)

    monkeypatch.setattr(Session, "open", remember)
    shared_detector.cache_clear()
    samples, _ = spoken(12)
    demo.transcribe_batch([samples] * 3)
    demo.transcribe(samples)
    assert len(opened) == 1
