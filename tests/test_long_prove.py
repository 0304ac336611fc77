"""Hours of audio in processes of their own: what memory, time and exactness do as a recording grows.

A recording is repeated many times in one file; every repetition must say the same words at the same
places, in no more memory than one takes. The quick tests use the bundled utterances, `scripts/prove` three
hours of the five-minute recording in three containers.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from support import data, num_cases, read_wav, utterances
from wer import equal_words

from transduce import audio
from transduce.onnx.vad import SpeechDetector
from transduce.types import FloatArray

resource = pytest.importorskip("resource", reason="this system does not measure a process's memory")

RATE = 16000
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""So that times mean something, and several tests may run at once."""

Record = Callable[[str, object], None]

MEASURE = """
import json, resource, sys, time
import transduce

def peak_bytes():
    try:
        fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
        return int(fields["VmHWM"].split()[0]) * 1024  # ru_maxrss counts what the parent held before exec
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

path, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with transduce.load_model("demo") as model:
    model.transcribe(path, end=40.0)
    start, cpu_start = time.perf_counter(), time.process_time()
    transcript = model.transcribe(path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
print(json.dumps({
    "peak_bytes": peak_bytes(),
    "seconds": seconds,
    "cpu_seconds": cpu_seconds,
    "duration": transcript.duration,
    "words": [(word.word, word.start) for word in transcript.words],
    "warnings": transcript.warnings,
}))
"""


@dataclass(frozen=True)
class Run:
    """What one process made of a file."""

    peak_bytes: int
    seconds: float
    cpu_seconds: float
    duration: float
    words: list[tuple[str, float]]
    warnings: list[str]

    @property
    def speed(self) -> float:
        """Seconds of audio a second of processor time."""
        return self.duration / self.cpu_seconds


def measure(path: Path, limit_bytes: int = 0) -> Run:
    """Transcribe a file with the demo model."""
    command = [sys.executable, "-c", MEASURE, str(path), str(limit_bytes)]
    run = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD)
    assert run.returncode == 0, run.stderr
    return Run(**json.loads(run.stdout))


def write(path: Path, samples: FloatArray, count: int, codec: str, *, pictures: bool = False) -> Path:
    """Samples `[n]` at 16 kHz, `count` times, in the container that the path's ending names.

    With `pictures`, a video track of one small picture a second.
    """
    with av.open(str(path), "w") as container:
        sound = container.add_stream(codec, rate=RATE, layout="mono")
        video: Any = container.add_stream("mpeg4", rate=1) if pictures else None
        if video is not None:
            video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        position = 0
        for number, block in enumerate(blocks(samples, count)):
            frame = av.AudioFrame.from_ndarray(block.reshape(1, -1), format="flt", layout="mono")
            frame.sample_rate, frame.time_base, frame.pts = RATE, Fraction(1, RATE), position
            container.mux(sound.encode(frame))  # type: ignore[union-attr]
            position += len(block)
            if video is not None:
                container.mux(video.encode(picture(number)))
        for stream in (sound, video):
            if stream is not None:
                container.mux(stream.encode(None))  # type: ignore[union-attr]
    return path


def blocks(samples: FloatArray, count: int) -> Iterator[FloatArray]:
    """A second each, but for the last one of each repetition."""
    for _ in range(count):
        for start in range(0, len(samples), RATE):
            yield np.ascontiguousarray(samples[start : start + RATE])


def picture(number: int) -> Any:
    frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), number % 256, np.uint8), format="rgb24")
    frame.pts, frame.time_base = number, Fraction(1, 1)
    return frame


@cache
def minutes() -> FloatArray:
    """Five minutes: the bundled utterances twice, with pauses of 0.3 to 2.2 s."""
    random = np.random.default_rng(5)
    parts = []
    for utterance in utterances() * 2:
        pause = random.uniform(0.3, 2.2)
        parts += [read_wav(utterance["file"]), np.zeros(round(pause * RATE), np.float32)]
    return np.concatenate(parts)


def repetitions(run: Run, seconds: float) -> list[list[tuple[str, float]]]:
    """The words of each repetition, with times from its own start."""
    count = round(run.duration / seconds)
    found: list[list[tuple[str, float]]] = [[] for _ in range(count)]
    for word, start in run.words:
        number = min(int((start + 0.3) / seconds), count - 1)  # words are heard a little early
        found[number].append((word, start - number * seconds))
    return found


def assert_alike(run: Run, seconds: float, record: Record) -> None:
    """Every repetition says the same words, and the last one at the same places as the first."""
    found = repetitions(run, seconds)
    counts = [len(words) for words in found]
    assert max(counts) - min(counts) <= 0.02 * counts[0]
    drifts = [float(np.mean(moved(found[0], words))) for words in found[1:]]
    record("words a repetition", f"{min(counts)} to {max(counts)}")
    record("drift of the last repetition", f"{drifts[-1]:+.3f} s")
    assert max(map(abs, drifts)) < 0.08


def moved(first: list[tuple[str, float]], other: list[tuple[str, float]]) -> list[float]:
    """How much later each word starts than the same word of the first repetition."""
    pairs = equal_words([word for word, _ in first], [word for word, _ in other])
    assert len(pairs) >= 0.97 * len(first)
    return [other[j][1] - first[i][1] for i, j in pairs]


@pytest.mark.linux
def test_twenty_minutes_take_the_memory_of_six(tmp_path: Path, record_property: Record) -> None:
    seconds = len(minutes()) / RATE
    short = measure(write(tmp_path / "short.flac", minutes(), 1, "flac"))
    long = measure(write(tmp_path / "long.flac", minutes(), 3, "flac"))
    assert long.warnings == short.warnings == []
    assert long.duration == pytest.approx(3 * seconds)
    grown_bytes = long.peak_bytes - short.peak_bytes
    record_property("growth", f"{grown_bytes / 1e6:.0f} MB over {short.peak_bytes / 1e6:.0f} MB")
    record_property(
        "seconds of audio a second of CPU", f"{long.speed:.0f}, and {short.speed:.0f} of 6 minutes"
    )
    assert grown_bytes < 120e6
    assert_alike(long, seconds, record_property)


@pytest.fixture(scope="module")
def five_minutes() -> FloatArray:
    return audio.load(data("audio/long_5min.flac"), rate=RATE).samples


@pytest.mark.linux
@pytest.mark.prove
@pytest.mark.shared
@pytest.mark.parametrize(
    ("ending", "codec", "pictures"),
    [("flac", "flac", False), ("mp3", "libmp3lame", False), ("mp4", "aac", True)],
)
def test_three_hours(
    tmp_path: Path, five_minutes: FloatArray, ending: str, codec: str, pictures: bool, record_property: Record
) -> None:
    count = round(3 * 3600 / (len(five_minutes) / RATE))
    short_path = write(tmp_path / f"short.{ending}", five_minutes, 1, codec, pictures=pictures)
    long_path = write(tmp_path / f"long.{ending}", five_minutes, count, codec, pictures=pictures)
    shorts = [measure(short_path) for _ in range(3)]
    long = measure(long_path)
    assert long.duration == pytest.approx(count * len(five_minutes) / RATE, abs=0.2)
    assert long.warnings == []
    grown_bytes = long.peak_bytes - max(run.peak_bytes for run in shorts)
    speed = float(np.median([run.speed for run in shorts]))
    record_property("length", f"{long.duration / 3600:.2f} h")
    record_property(
        "peak memory", f"{long.peak_bytes / 1e6:.0f} MB, {grown_bytes / 1e6:+.0f} MB over 5 minutes"
    )
    record_property("seconds of audio a second of CPU", f"{long.speed:.0f}, and {speed:.0f} of 5 minutes")
    record_property("times real time", f"{long.duration / long.seconds:.0f} on one thread")
    assert grown_bytes < 150e6
    assert abs(long.speed / speed - 1) < 0.1
    assert_alike(long, len(five_minutes) / RATE, record_property)


@pytest.mark.linux
@pytest.mark.prove
def test_52_five_hours_of_little_speech_under_a_limit(tmp_path: Path, record_property: Record) -> None:
    """An utterance each ten minutes, in a process that may not have more than 3 GB of addresses."""
    ref = read_wav("u35.wav")
    ten_minutes = np.concatenate([ref, np.zeros(600 * RATE - len(ref), np.float32)])
    run = measure(write(tmp_path / "five.flac", ten_minutes, 30, "flac"), limit_bytes=3_000_000_000)
    record_property("peak memory", f"{run.peak_bytes / 1e6:.0f} MB")
    record_property("times real time", f"{run.duration / run.seconds:.0f}")
    assert run.duration == 5 * 3600
    for words in repetitions(run, 600.0):
        assert [word for word, _ in words] == ["three", "eight", "zero", "zero", "five", "three"]
        assert all(-0.3 <= start < len(ref) / RATE for _, start in words)


@pytest.mark.linux
@pytest.mark.prove
def test_vad_costs_little(tmp_path: Path, record_property: Record) -> None:
    """Processor time of recognition by the demo model, with voice activity detection and by loudness."""
    path = write(tmp_path / "short.flac", minutes(), 1, "flac")
    seconds = {}
    for vad in ("auto", "off"):
        command = [sys.executable, "-c", COST, str(path), vad]
        runs = [subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD) for _ in range(3)]
        seconds[vad] = min(float(run.stdout) for run in runs)
    detector = SpeechDetector()
    start = time.process_time()
    stream = detector.stream()
    for block in blocks(minutes(), 1):
        stream.feed(block)
    detection_seconds = time.process_time() - start
    whole_seconds = len(minutes()) / RATE
    record_property("all, with detection", f"{whole_seconds / seconds['auto']:.0f} times real time")
    record_property("all, by loudness", f"{whole_seconds / seconds['off']:.0f} times real time")
    record_property("detection alone", f"{whole_seconds / detection_seconds:.0f} times real time")
    assert seconds["auto"] < 1.25 * seconds["off"]


COST = """
import sys, time
import transduce
from transduce.pipeline import Limits

limits = Limits(sys.argv[2])
with transduce.load_model("demo") as model:
    model.transcribe(sys.argv[1], end=100.0, limits=limits)
    start = time.process_time()
    model.transcribe(sys.argv[1], limits=limits)
    print(time.process_time() - start)
"""


# Ends that nobody planned


def command(folder: Path, *options: str) -> list[str]:
    inputs = sorted(str(path) for path in folder.glob("in/*.wav"))
    output = ["-o", str(folder / "out"), "-f", "json,txt"]
    return [
        sys.executable,
        "-m",
        "transduce",
        "transcribe",
        *inputs,
        "-m",
        "demo",
        *output,
        "--batch-seconds",
        "5",
        *options,
    ]


def results(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").glob("[!.]*")}


@pytest.mark.posix
def test_killed_at_any_time_it_leaves_whole_files_and_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for utterance in utterances()[:20]:
        target = tmp_path / "in" / utterance["file"]
        target.write_bytes(data(f"audio/{utterance['file']}").read_bytes())
    reference = tmp_path / "reference"
    reference.mkdir()
    (reference / "in").symlink_to(tmp_path / "in")
    subprocess.run(command(reference), check=True, capture_output=True, env=ONE_THREAD)
    expected = {name: unnamed(content) for name, content in results(reference).items()}
    assert len(expected) == 40
    random = np.random.default_rng(0)
    for _ in range(num_cases(1, 20)):
        process = subprocess.Popen(command(tmp_path, "--resume"), stderr=subprocess.DEVNULL, env=ONE_THREAD)
        deadline = time.monotonic() + 60
        goal = len(results(tmp_path)) + random.integers(0, 8)
        while len(results(tmp_path)) < goal and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for name, content in results(tmp_path).items():
            assert unnamed(content) == expected[name]
    subprocess.run(command(tmp_path, "--resume"), check=True, capture_output=True, env=ONE_THREAD)
    assert {name: unnamed(content) for name, content in results(tmp_path).items()} == expected


def unnamed(content: bytes) -> bytes:
    """Without the folder that a recording lay in."""
    return re.sub(rb'"source": "[^"]*/', b'"source": "', content)
