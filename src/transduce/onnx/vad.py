"""Voice activity: how likely each window of a recording holds speech.

In: mono samples at 16 kHz, in blocks of any size. Out: one probability for each 32 ms. The model is
Silero VAD (`models/vad`, made by `scripts/make_vad`), which reads any number of windows of one stream in
a single run, so there is no loop over windows here. A detector is one session for any number of streams
and threads; what is remembered between blocks belongs to the stream. It knows no spans and no thresholds.
"""

from functools import cache
from importlib.resources import as_file, files

import numpy as np

from transduce.onnx.session import Session
from transduce.types import FloatArray

__all__ = ["SAMPLE_RATE", "WINDOW_SAMPLES", "SpeechDetector", "SpeechStream", "shared_detector"]

SAMPLE_RATE = 16000
WINDOW_SAMPLES = 512

CONTEXT_SAMPLES = 64
"""The model is given the end of the window before with each window."""
STATE_SIZE = 128
MOST_WINDOWS = 512
"""Of one run: 16 s, so that what a run holds stays small however long a block is."""

MODEL = "silero_vad_16k.onnx"


class SpeechDetector:
    """The model, loaded once."""

    def __init__(self) -> None:
        """Raises MissingExtraError where onnxruntime is not installed."""
        with as_file(files("transduce") / "models" / "vad" / MODEL) as path:
            # One thread: the runs are short, and they go on beside recognition, which has the others.
            self._session = Session.open(path, "voice activity detection", device="cpu", threads=1)

    def stream(self) -> "SpeechStream":
        """A new recording."""
        return SpeechStream(self._session)


@cache
def shared_detector() -> SpeechDetector:
    """The detector of this process, loaded when it is first asked for; errors as of `SpeechDetector`."""
    return SpeechDetector()


class SpeechStream:
    """One recording on its way through the model."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hidden = np.zeros((1, 1, STATE_SIZE), np.float32)
        self._cell = np.zeros((1, 1, STATE_SIZE), np.float32)
        self._tail: FloatArray = np.zeros(CONTEXT_SAMPLES, np.float32)
        """The context of the next window, then its samples as far as they are known."""

    def feed(self, samples: FloatArray) -> FloatArray:
        """Take the next samples `[n]`; the probabilities of the windows that they complete, `[k]`."""
        samples = np.concatenate([self._tail, samples])
        num_windows = (len(samples) - CONTEXT_SAMPLES) // WINDOW_SAMPLES
        self._tail = samples[num_windows * WINDOW_SAMPLES :].copy()
        windows = _windows(samples, num_windows)
        runs = [self._run(windows[i : i + MOST_WINDOWS]) for i in range(0, num_windows, MOST_WINDOWS)]
        return np.concatenate([np.empty(0, np.float32), *runs])

    def finish(self) -> FloatArray:
        """The probability of the last window, filled up with silence: `[1]`, or `[0]` if none is open."""
        num_samples = len(self._tail) - CONTEXT_SAMPLES
        return self.feed(np.zeros(-num_samples % WINDOW_SAMPLES, np.float32))

    def _run(self, windows: FloatArray) -> FloatArray:
        feeds = {"windows": windows, "hidden": self._hidden, "cell": self._cell}
        outputs = ("probabilities", "next_hidden", "next_cell")
        probabilities, self._hidden, self._cell = self._session.run(outputs, feeds)
        return probabilities


def _windows(samples: FloatArray, num_windows: int) -> FloatArray:
    """Rows of context and window `[num_windows, 64 + 512]`, each 512 samples behind the one before."""
    if num_windows == 0:
        return np.empty((0, CONTEXT_SAMPLES + WINDOW_SAMPLES), np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(samples, CONTEXT_SAMPLES + WINDOW_SAMPLES)
    return np.ascontiguousarray(rows[::WINDOW_SAMPLES][:num_windows])
