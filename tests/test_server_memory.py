"""Memory of a serving process: group F of `facts/field-bugs.md`. Hours are in `test_server_prove`.

Each test runs a process of its own, as `transduce serve` prepares it, and reads what the system says of it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from support import ROOT, num_cases, read_wav, utterances

from transduce.server import memory

Record = Callable[[str, object], None]

PROLOGUE = """
import json, re, sys
from pathlib import Path
from transduce.server import memory
memory.prepare()
import numpy as np
from transduce.transcriber import load_model
from transduce.server.batcher import Batcher
from transduce.server.recognition import Recognizer, open_upload
from transduce.pipeline import Limits

def megabytes(name="VmRSS"):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\\s+(\\d+) kB$", status, re.MULTILINE)[1]) / 1024

rng = np.random.default_rng(0)
"""

NEW_LENGTHS = """
model = load_model("demo", backend=sys.argv[1])
batcher = Batcher(model.backend)

def rss_after(num_clips):
    for _ in range(num_clips):
        num_samples = int(16000 * rng.uniform(1, 30))
        with batcher.open() as job:
            job.submit(rng.normal(0, 0.02, num_samples).astype(np.float32)).result()
    memory.give_back()
    return megabytes()

num_clips = int(sys.argv[2])
print(json.dumps([rss_after(num_clips), rss_after(num_clips)]))
batcher.close()
"""

LONG_FILE = """
import tempfile, wave
model = load_model("demo")
batcher = Batcher(model.backend)
recognizer = Recognizer(model, batcher, Limits(vad="off"), 3600.0)
speech = np.frombuffer(Path(sys.argv[1]).read_bytes()[44:], "<i2")

def peak_of(work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    work()
    return megabytes("VmHWM")

def transcribe(seconds):
    content = tempfile.TemporaryFile()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        for second in range(seconds):
            file.writeframes(np.roll(speech, -16000 * second)[:16000].tobytes())
    with batcher.open() as job:
        segments = list(recognizer.transcribe(open_upload(content, "a.wav", job), job))
    assert len(segments) > seconds / 60

def batches():
    for _ in range(3):
        recognizer.warm_up()

print(json.dumps([peak_of(batches), peak_of(lambda: transcribe(660))]))
batcher.close()
"""


FIRST_REQUEST = """
model = load_model("demo")
batcher = Batcher(model.backend)
recognizer = Recognizer(model, batcher, Limits(), 3600.0)
recognizer.warm_up()
before = set(sys.modules)
with batcher.open() as job, open(sys.argv[1], "rb") as file:
    num_segments = len(list(recognizer.transcribe(open_upload(file, "a.flac", job), job)))
print(json.dumps([num_segments, [name for name in set(sys.modules) - before if "." not in name]]))
batcher.close()
"""


def run(program: str, *arguments: str) -> Any:
    """What a program prints as JSON."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROLOGUE + program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_51_new_lengths_do_not_make_it_grow(engine: str, record_property: Record) -> None:
    """Clips of random length, then as many again."""
    half, whole = run(NEW_LENGTHS, engine, str(num_cases(50, 300)))
    record_property("memory", f"{half:.1f} -> {whole:.1f} MiB")
    assert whole <= 1.05 * half


def test_53_memory_follows_the_batch_and_not_the_file(record_property: Record) -> None:
    """Eleven minutes need at most 1.3 times what the full batches of the warm-up do."""
    batch, long = run(LONG_FILE, str(ROOT / "tests" / "data" / "audio" / "u01.wav"))
    record_property("peak", f"{batch:.1f} -> {long:.1f} MiB")
    assert long <= 1.3 * batch


def test_a_first_request_waits_for_no_library(tmp_path: Path) -> None:
    """Loading one holds up every thread, and with them /health."""
    samples = np.concatenate([read_wav(entry["file"]) for entry in utterances()])[: 60 * 16000]
    soundfile.write(tmp_path / "a.flac", samples, 16000)
    num_segments, loaded = run(FIRST_REQUEST, str(tmp_path / "a.flac"))
    assert num_segments > 1
    assert {"av", "soundfile", "soxr", "onnxruntime", "torch"}.isdisjoint(loaded)


def test_limits_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")  # so that this process keeps its arenas
    memory.prepare()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "32"
    memory.give_back()
