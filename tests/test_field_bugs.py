"""Faults that users of other recognisers met, as texts; tests have the numbers of `facts/field-bugs.md`.

The files hold one utterance of known text, told in sixty odd ways (`field_inputs`). Each is transcribed once
by the API and once by the command line, and the tests ask what came out. "Same" is the text that was spoken;
"near" allows one wrong word. What the samples must be is in `test_audio`, tokens and times of made-up
hypotheses in `test_words`, terminals in `test_terminal`, model files in `test_checkpoints_safety`.
"""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import field_inputs
import numpy as np
import numpy.typing as npt
import pytest
from models import GIGAAM, NEMO, expected, path_of
from support import data, golden, param, read_wav, utterances
from wer import word_errors

import transduce
from transduce import AudioError, Model, Transcript, TransduceError, cli
from transduce.writers import FORMATS

RATE = 16000
REF_FILE = "u35.wav"
REF = "three eight zero zero five three"
SECONDS = 5.04
"""Length of the reference, cut to whole 20 ms."""

GIGAAM_MODEL = "models/gigaam/v3_e2e_rnnt.ckpt"
GIGAAM_REF = "Три, восемь, ноль, ноль, пять, три."

Outcome = Transcript | TransduceError


@dataclass(frozen=True)
class Field:
    """The odd files, and what became of each."""

    folder: Path
    model: Model
    by_api: Mapping[str, Outcome]

    def transcript(self, name: str) -> Transcript:
        outcome = self.by_api[name]
        assert isinstance(outcome, Transcript), outcome
        return outcome

    def error(self, name: str) -> TransduceError:
        outcome = self.by_api[name]
        assert isinstance(outcome, TransduceError), outcome.text
        return outcome

    @property
    def samples(self) -> npt.NDArray[np.float32]:
        """The reference `[n]`."""
        return read_wav(self.folder / "ref_s16.wav")

    @property
    def samples_int16(self) -> npt.NDArray[np.int16]:
        return (self.samples * 32768).astype(np.int16)


def build(folder: Path) -> list[str]:
    field_inputs.build(folder, read_wav(REF_FILE))
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("field")
    names = build(folder)
    with transduce.load_model("demo") as model:
        outcomes = model.transcribe_batch([folder / name for name in names])
        yield Field(folder, model, dict(zip(names, outcomes, strict=True)))


@pytest.fixture(scope="session")
def gigaam(field: Field) -> Iterator[Field]:
    """The same files, read by a model of the other family."""
    with transduce.load_model(data(GIGAAM_MODEL)) as model:
        outcomes = model.transcribe_batch([field.folder / name for name in field.by_api])
        yield Field(field.folder, model, dict(zip(field.by_api, outcomes, strict=True)))


@dataclass(frozen=True)
class CommandRun:
    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandRun:
    """One run of `transduce transcribe -m demo`."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["transduce", "transcribe", "-m", "demo", *map(str, arguments)])
        patch.setattr(cli.logger, "handlers", [])
        with pytest.raises(SystemExit) as exited:
            cli.main()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return CommandRun(int(exited.value.code or 0), out, err)


def is_near(text: str) -> bool:
    return word_errors(REF, text) <= 1


# A. Audio input

SAME = (
    # 1: the extensible tag; speech in the centre channel alone
    *("ext_pcm24_stereo.wav", "ext_f32.wav", "six_ch.wav"),
    # 2: widths of samples; an odd-sized chunk
    *("pcm24.wav", "pcm32.wav", "f32.wav", "f64.wav", "list_chunk_first.wav"),
    # 3: channels that cancel, or carry nothing
    *("antiphase.wav", "left_only.wav"),
    # 8: lengths that were never filled in
    *("size_ffffffff.wav", "size_7fffffff.wav", "size_zero.wav"),
    # 75: a Russian name
    "запись №1 – тест.wav",
)
NEAR = (
    # 2, 15: eight bits; other rates
    *("pcm8.wav", "rate22050.wav", "rate44100.wav", "rate48000.wav", "rate96000.wav", "cd_stereo.wav"),
    # 5, 10: a broken cover picture; a browser's recording; codecs
    *("bad_cover.mp3", "pipe.webm", "a.mp3", "a.m4a", "a.opus", "a.flac", "frag.mp4"),
    # 6, 18: garbage between packets; an offset
    *("mid_garbage.mp3", "dc.wav"),
)


@pytest.mark.parametrize("name", SAME)
def test_1_2_3_8_75_same(field: Field, gigaam: Field, name: str) -> None:
    for found, text in ((field, REF), (gigaam, GIGAAM_REF)):
        transcript = found.transcript(name)
        assert transcript.text == text
        assert transcript.duration == SECONDS


@pytest.mark.parametrize("name", NEAR)
def test_2_5_6_10_15_18_near(field: Field, gigaam: Field, name: str) -> None:
    assert word_errors(REF, field.transcript(name).text) <= 1
    assert word_errors(GIGAAM_REF, gigaam.transcript(name).text) <= 1
    assert field.transcript(name).duration == pytest.approx(SECONDS, abs=0.09)  # codecs pad a little


def test_the_command_line_says_what_the_api_says(
    field: Field, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = command(capsys, field.folder, "-f", "json", "-o", tmp_path)
    assert (found.code, found.out) == (1, "")
    errors = {str(field.folder / n): e for n, e in field.by_api.items() if isinstance(e, TransduceError)}
    assert len(errors) == 6
    assert sorted(line for line in found.err.splitlines() if line.startswith("error: ")) == sorted(
        f"error: {error} [audio]" for error in errors.values()
    )
    written = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()]
    assert len(written) == len(field.by_api) - len(errors)
    for content in written:
        transcript = field.transcript(Path(content["source"]).name)
        assert (content["text"], content["warnings"]) == (transcript.text, list(transcript.warnings))
        for warning in transcript.warnings:
            assert f"warning: {content['source']}: {warning}\n" in found.err


@pytest.mark.parametrize(
    "name", ["ext_pcm24_stereo.wav", "ext_f32.wav", "six_ch.wav", "rate96000.wav", "pcm24.wav"]
)
def test_1_2_bytes_of_a_file_are_the_file(field: Field, name: str) -> None:
    assert field.model.transcribe((field.folder / name).read_bytes()).text == REF


def test_3_antiphase_says_which_channel_was_used(field: Field) -> None:
    (warning,) = field.transcript("antiphase.wav").warnings
    assert "channels 0, 1 cancel" in warning
    x = field.samples
    assert field.model.transcribe(np.stack([x, -x], axis=1)).text == REF
    assert field.model.transcribe(np.stack([x, 0 * x], axis=1)).text == REF


def test_4_layouts_of_arrays(field: Field) -> None:
    x = field.samples
    layouts = [x, x[:, None], x[None, :], np.stack([x, x], axis=1), np.stack([x, x])]
    assert [field.model.transcribe(layout).text for layout in layouts] == [REF] * 5
    for unclear in (x[:4].reshape(2, 2), x[:8].reshape(2, 2, 2)):
        with pytest.raises(ValueError, match=r"\(n, channels\)"):
            field.model.transcribe(unclear)


def test_5_a_broken_picture_while_nobody_reads_the_messages(field: Field) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "transduce", "transcribe", "bad_cover.mp3", "-m", "demo"]
    with os.fdopen(writer, "wb") as closed:
        found = subprocess.run(arguments, cwd=field.folder, stdout=subprocess.PIPE, stderr=closed, text=True)
    assert found.returncode == 0
    assert is_near(found.stdout)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("cut_60pct.wav", 3.0),
        ("cut_60pct.mp3", 3.0),
        ("cut_60pct.flac", 2.8),
        ("frag_cut.mp4", 3.0),
    ],
)
def test_6_the_readable_part_is_transcribed(field: Field, name: str, seconds: float) -> None:
    transcript = field.transcript(name)
    assert transcript.duration == pytest.approx(seconds, abs=0.1)
    (spans,) = [u["word_spans"] for u in utterances() if u["file"] == REF_FILE]
    whole = [word for word, (_, end) in zip(REF.split(), spans, strict=True) if end <= transcript.duration]
    assert 3 <= len(whole) <= 4
    assert word_errors(" ".join(whole), transcript.text) <= 1
    assert all(word.end <= transcript.duration for word in transcript.words)
    (warning,) = transcript.warnings
    assert re.search(rf"incomplete audio .+ decoded {transcript.duration:.2f} s", warning)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("moov_lost.m4a", "damaged, or no audio file"),  # 6
        ("header_only.wav", "contains no audio samples"),  # 8, 13
        ("zero_bytes.wav", "is empty"),  # 13
        ("text_as.wav", "damaged, or no audio file"),  # 72
        ("one_nan_f32.wav", "NaN"),  # 31
        ("picture_only.mp4", "no audio track"),
    ],
)
def test_6_8_13_31_72_clean_errors(
    field: Field, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    error = field.error(name)
    assert isinstance(error, AudioError)
    assert name in str(error)
    assert reason in str(error)
    found = command(capsys, field.folder / name)
    assert (found.code, found.out, found.err) == (1, "", f"error: {error} [audio]\n")


def test_10_a_stream_is_read_from_its_start_wherever_it_stands(field: Field) -> None:
    content = (field.folder / "pipe.webm").read_bytes()
    at_start, at_end = io.BytesIO(content), io.BytesIO(content)
    at_end.seek(0, io.SEEK_END)
    for stream in (at_start, at_end):
        transcript = field.model.transcribe(stream)
        assert is_near(transcript.text)
        assert transcript.duration == pytest.approx(5.0, abs=0.05)


SHORT = (1, 79, 159, 160, 161, 320, 399, 400, 401, 799, 1600)


@pytest.mark.parametrize("size", SHORT)
def test_13_clips_shorter_than_a_window(field: Field, gigaam: Field, size: int) -> None:
    name = f"n{size:04d}.wav"
    for found in (field, gigaam):
        alone = found.transcript(name)
        assert len(alone.text.split()) <= 1
        assert alone.duration == size / RATE
        for word in alone.words:
            assert 0 <= word.start <= word.end <= alone.duration
            assert 0 < word.confidence <= 1
        beside = found.model.transcribe_batch([found.folder / "ref_s16.wav", found.folder / name])
        assert [text_of(outcome) for outcome in beside] == [found.transcript("ref_s16.wav").text, alone.text]


def text_of(outcome: Outcome) -> str:
    return outcome.text if isinstance(outcome, Transcript) else type(outcome).__name__


def test_14_integers_and_floats_say_the_same(field: Field) -> None:
    x = field.samples_int16
    forms: list[npt.NDArray[Any]] = [
        x,
        x.astype(np.int32) << 16,
        field.samples,
        field.samples.astype(np.float64),
        (field.samples.astype(np.float64) * 2**31).astype(np.int64).astype(np.int32),
    ]
    assert [field.model.transcribe(form).text for form in forms] == [REF] * 5
    for rate in (16000, 44100):
        name = "ref_s16.wav" if rate == 16000 else f"rate{rate}.wav"
        assert field.transcript(name).text == REF
    with pytest.raises(ValueError, match="a list is not audio"):
        field.model.transcribe(x.tolist())


def test_15_rates(field: Field) -> None:
    assert word_errors(REF, field.transcript("rate8000.wav").text) <= 0.2 * len(REF.split())
    for rate in (8000, 22050, 44100, 48000, 96000):
        assert field.transcript(f"rate{rate}.wav").duration == SECONDS
    at_48k = np.repeat(field.samples, 3)
    assert field.model.transcribe(at_48k, sample_rate=48000).text == REF
    assert field.model.transcribe(field.samples, sample_rate=16000).duration == SECONDS
    assert field.model.transcribe(field.samples).duration == SECONDS  # left out: the model's
    for bad in (0, -1, 16000.5):
        with pytest.raises(ValueError, match="sample_rate"):
            field.model.transcribe(field.samples, sample_rate=bad)  # type: ignore[arg-type]


def test_18_silence_offset_clipping(field: Field, gigaam: Field) -> None:
    for found in (field, gigaam):
        for name in ("silence_4s.wav", "noise_-60dB_4s.wav"):
            transcript = found.transcript(name)
            assert (transcript.text, transcript.words, transcript.duration) == ("", (), 4.0)
    assert field.transcript("silence_4s.wav").warnings == ()
    (warning,) = field.transcript("noise_-60dB_4s.wav").warnings
    assert "taken for silence" in warning
    assert is_near(field.transcript("clipped.wav").text)
    ref, dc = (field.transcript(name).words for name in ("ref_s16.wav", "dc.wav"))
    assert all(abs(a.start - b.start) <= 0.1 for a, b in zip(ref, dc, strict=True))


# C. Batching


@pytest.mark.parametrize("name", ["demo", "demo ctc", "gigaam"])
def test_27_29_text_does_not_depend_on_the_batch(field: Field, gigaam: Field, name: str) -> None:
    x = np.concatenate([field.samples] * 3)
    clips = [x[: int(0.7 * RATE)], field.samples, x]  # 0.7, 5 and 15 s
    if name == "demo ctc":
        with transduce.load_model("demo", head="ctc") as model:
            assert_independent(model, clips)
    else:
        assert_independent((field if name == "demo" else gigaam).model, clips)


def assert_independent(model: Model, clips: Sequence[npt.NDArray[np.float32]]) -> None:
    alone = [model.transcribe(clip) for clip in clips]
    assert alone[1].words
    for size in (2, 3):
        for order in permutations(range(3), size):
            found = model.transcribe_batch([clips[i] for i in order])
            assert [times_of(outcome) for outcome in found] == [times_of(alone[i]) for i in order]


def times_of(outcome: Outcome) -> list[tuple[int, int, int, float, float]]:
    """The tokens without their confidences, which may differ in the last bits."""
    assert isinstance(outcome, Transcript), outcome
    return [(t.id, t.frame, t.duration_frames, t.start, t.end) for t in outcome.tokens]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_30_results_are_in_order(field: Field, is_lazy: bool) -> None:
    order = np.random.default_rng(3).permutation(len(utterances())).tolist()
    files = [data(f"audio/{utterances()[index]['file']}") for index in order]
    files.insert(5, Path("missing.wav"))
    found = [text_of(o) for o in field.model.transcribe_batch(iter(files) if is_lazy else files)]
    assert found.pop(5) == "AudioError"
    answers = [entry["text"] for entry in golden("nemo-hybrid")["utterances"]]
    assert found == [answers[index] for index in order]


def test_31_one_bad_clip_fails_alone(field: Field) -> None:
    names = ["ref_s16.wav", "n0399.wav", "one_nan_f32.wav", "missing.wav", "ref_s16.wav"]
    paths = [field.folder / name for name in names]
    found = field.model.transcribe_batch(paths)
    assert [text_of(outcome) for outcome in found] == [REF, "", "AudioError", "AudioError", REF]
    assert all(str(paths[index]) in str(found[index]) for index in (2, 3))
    with pytest.raises(AudioError, match="one_nan"):
        field.model.transcribe_batch(paths, raise_errors=True)


# D. Decoding


def test_39_every_run_is_alike(field: Field, capsys: pytest.CaptureFixture[str]) -> None:
    path = field.folder / "ref_s16.wav"
    first = field.model.transcribe(path)
    for _ in range(4):
        field.model.transcribe(field.folder / "rate8000.wav")
        again = field.model.transcribe(path)
        assert times_of(again) == times_of(first)
        assert np.allclose(
            [t.confidence for t in again.tokens], [t.confidence for t in first.tokens], atol=1e-5
        )
    program = f"""if True:
        import transduce
        print(transduce.load_model("demo").transcribe({str(path)!r}).to_dict(tokens=True))
    """
    fresh = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert fresh.stdout == f"{first.to_dict(tokens=True)}\n"


# E. Tokens, words, times


def transcripts_of(model: Model) -> list[Transcript]:
    outcomes = model.transcribe_batch([read_wav(u["file"]) for u in utterances()])
    return [outcome for outcome in outcomes if isinstance(outcome, Transcript)]


def test_43_44_47_words_and_segments_are_the_text(field: Field, gigaam: Field) -> None:
    for found in (field, gigaam):
        transcripts = transcripts_of(found.model)
        assert len(transcripts) == 40
        for transcript in transcripts:
            assert_consistent(transcript)
    assert sum(transcript.text.count(",") for transcript in transcripts) > 40  # GigaAM's punctuation


def assert_consistent(transcript: Transcript) -> None:
    assert transcript.text == transcript.text.strip()
    assert transcript.text == " ".join(word.word for word in transcript.words)
    assert transcript.text == " ".join(segment.text for segment in transcript.segments)
    assert "".join(token.text for token in transcript.tokens).strip() == transcript.text
    for segment in transcript.segments:
        assert segment.words
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        assert segment.text == " ".join(word.word for word in segment.words)


def test_47_48_a_minute_over_joints(field: Field) -> None:
    pause = np.zeros(int(1.5 * RATE), np.float32)
    once = np.concatenate([field.samples, pause])
    transcript = field.model.transcribe(np.concatenate([once] * 10))
    assert transcript.duration == pytest.approx(65.4)
    assert_consistent(transcript)
    assert word_errors(" ".join([REF] * 10), transcript.text) <= 3  # of 60
    assert all(0 <= word.start <= word.end <= transcript.duration for word in transcript.words)
    gaps = [after.start - before.end for before, after in pairwise(transcript.words)]
    assert min(gaps) >= 0
    assert sum(gap > 1 for gap in gaps) == 9  # a word's end is not the next one's start
    assert not re.search(r"\d\.\d{4}", transcript.render("json"))
    srt = transcript.render("srt").splitlines()
    assert all(line == line.strip() for line in srt)


HEADS = [("nemo-hybrid", "tdt"), ("nemo-hybrid", "ctc"), *((name, "auto") for name in (*NEMO[1:], *GIGAAM))]


@pytest.mark.parametrize(
    ("name", "head"),
    [
        pytest.param(
            name, head, id=f"{name} {head}", marks=param(name, path_of(name), f"golden/{name}.json").marks
        )
        for name, head in HEADS
    ],
)
def test_49_every_head_has_times_and_empty_texts(field: Field, name: str, head: str) -> None:
    with transduce.load_model(data(path_of(name)), head=head) as model:
        said, silent = (field.folder / file for file in ("ref_s16.wav", "silence_4s.wav"))
        alone = [model.transcribe(said), model.transcribe(silent), model.transcribe(said)]
        batched = model.transcribe_batch([said, silent, said])
    assert [times_of(outcome) for outcome in batched] == [times_of(outcome) for outcome in alone]
    assert (alone[1].text, alone[1].words, alone[1].segments) == ("", (), ())
    assert alone[0].words
    assert_consistent(alone[0])
    for token in alone[0].tokens:
        assert {type(token.id), type(token.frame), type(token.duration_frames)} == {int}
        assert {type(token.start), type(token.end), type(token.confidence)} == {float}
    utterance = [u["file"] for u in utterances()].index(REF_FILE)
    answer = expected(name, "ctc" if head == "ctc" else None)[utterance]
    assert word_errors(answer["text"], alone[0].text) <= 1


# I. The command line


def test_72_one_bad_file_does_not_stop_the_rest(
    field: Field, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_directory").mkdir()
    bad = [field.folder / "text_as.wav", tmp_path / "missing.wav", field.folder / "zero_bytes.wav"]
    inputs = [field.folder / "ref_s16.wav", *bad, tmp_path / "a_directory", field.folder / "a.mp3"]
    found = command(capsys, *inputs, "-o", tmp_path / "out")
    assert (found.code, found.out) == (1, "")
    lines = found.err.splitlines()
    assert len(lines) == 4
    for path, line in zip([*bad, tmp_path / "a_directory"], lines, strict=True):
        assert line.startswith(f"error: {path}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt", "ref_s16.txt"]
    nothing = command(capsys, *bad, "-o", tmp_path / "nothing")
    assert nothing.code == 1
    assert not (tmp_path / "nothing").exists()


def test_74_77_every_format_of_speech_and_of_silence(
    field: Field, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = [field.folder / "ref_s16.wav", field.folder / "silence_4s.wav"]
    assert command(capsys, *inputs, "-f", "all", "-o", tmp_path) == CommandRun(0, "", "")
    silent = {name: (tmp_path / f"silence_4s.{name}").read_text(encoding="utf-8") for name in FORMATS}
    assert json.loads(silent.pop("json"))["segments"] == []
    assert silent == {"txt": "", "srt": "", "vtt": "WEBVTT\n", "tsv": "start\tend\ttext\n", "ctm": ""}
    srt = (tmp_path / "ref_s16.srt").read_text(encoding="utf-8")
    number, times, *text = srt.splitlines()
    assert (number, " ".join(text)) == ("1", REF)
    assert re.fullmatch(r"00:00:0\d,\d{3} --> 00:00:0\d,\d{3}", times)


# J. Loading


def test_84_a_gpu_that_is_not_there(
    field: Field, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for device in ("cuda", "cuda:7"):
        with pytest.raises(transduce.DeviceError, match=f"'{device}'"):
            transduce.load_model("demo", device=device)
        found = command(capsys, field.folder / "ref_s16.wav", "--device", device)
        assert (found.code, found.out, found.err.count("\n")) == (3, "", 1)
    for device in ("auto", "cpu"):
        with transduce.load_model("demo", device=device) as model:
            assert model.backend.describe()["device"] == "cpu"
        found = command(capsys, field.folder / "ref_s16.wav", "--device", device, "-v")
        assert (found.code, found.out) == (0, f"{REF}\n")
        assert "device: cpu" in found.err


def test_88_decoders_that_are_missing_or_broken(
    field: Field, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("ref_s16.wav", "a.flac", "a.mp3", "a.m4a", "pipe.webm"):
        assert is_near(field.model.transcribe(field.folder / name).text)
    monkeypatch.setitem(sys.modules, "av", None)
    for name in ("ref_s16.wav", "a.flac", "a.mp3"):  # soundfile reads them too
        assert is_near(field.model.transcribe(field.folder / name).text)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert field.model.transcribe(field.folder / "ref_s16.wav").text == REF
    found = command(capsys, field.folder / "a.m4a", field.folder / "ref_s16.wav")
    assert found.code == 1
    assert "pip install av" in found.err
    assert REF in found.out
