"""One request's way through the model: the flow of `transcriber`, with the batcher for a backend.

In: a recording and the request's job. Out: its transcript, or its segments as they become final. To the
flow, a job is a `Backend` like any other; that its spans share batches with other requests' is not seen.
Nothing here knows HTTP.
"""

import io
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import BinaryIO

import numpy as np

from transduce import audio
from transduce.errors import AudioError
from transduce.longform import grid_of
from transduce.pipeline import Cut, Limits
from transduce.server.batcher import Batcher, CancelledJobError, Job
from transduce.sources import AudioSource, describe_source
from transduce.tokenizer import Tokenizer
from transduce.transcriber import Model
from transduce.transcript import Transcript
from transduce.types import Backend, FloatArray, Hypothesis, ModelSpec, Segment

__all__ = ["JobBackend", "Recognizer", "open_upload"]


class JobBackend:
    """A request's view of the batcher, as a backend."""

    def __init__(self, backend: Backend, job: Job) -> None:
        self._backend = backend
        self._job = job

    @property
    def spec(self) -> ModelSpec:
        return self._backend.spec

    def recognize(self, waveforms: Sequence[FloatArray]) -> list[Hypothesis]:
        """As `Backend.recognize`. Raises CancelledJobError once the job is cancelled."""
        futures = [self._job.submit(waveform) for waveform in waveforms]
        try:
            return [future.result() for future in futures]
        except CancelledError:
            raise CancelledJobError from None

    def describe(self) -> Mapping[str, str]:
        return self._backend.describe()

    def close(self) -> None:
        """Nothing: the backend is the batcher's."""


def open_upload(file: BinaryIO, name: str, job: Job) -> BinaryIO:
    """A client's file under a name for messages; it reads as ended once its job is cancelled.

    So whatever library reads it comes to an end by itself.
    """
    return io.BufferedReader(_Upload(file, name, job))


class _Upload(io.RawIOBase):
    def __init__(self, file: BinaryIO, name: str, job: Job) -> None:
        self.name = name
        self._file = file
        self._job = job

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = b"" if self._job.is_cancelled else self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence) or self._file.tell()

    def tell(self) -> int:
        return self._file.tell()


class Recognizer:
    """A model shared by many requests; each request calls it in a thread of its own."""

    def __init__(self, model: Model, batcher: Batcher, limits: Limits, max_audio_seconds: float) -> None:
        self._backend: Backend = model.backend
        self._tokenizer: Tokenizer = model.tokenizer
        self._batcher = batcher
        self._limits = limits
        self._max_audio_seconds = max_audio_seconds

    def transcribe(
        self, source: AudioSource, job: Job, sample_rate: int | None = None
    ) -> Generator[Segment, None, Transcript]:
        """Give each segment of a recording once it is final; the generator's return value is the transcript.

        `sample_rate` is that of samples. Raises AudioError, also for audio that is too long; ResourceError;
        CancelledJobError once the job is cancelled, whatever else went wrong after that.
        """
        model = Model(JobBackend(self._backend, job), self._tokenizer)
        most_seconds = self._max_audio_seconds
        try:
            cut = Cut(sample_rate, end_seconds=most_seconds + 1)
            transcript = yield from model.stream(source, cut, self._limits)
        finally:
            job.check()
        if transcript.duration > most_seconds:
            name = describe_source(source)
            raise AudioError(f"{name} is longer than the {most_seconds:g} s that this server takes")
        return transcript

    def warm_up(self) -> None:
        """Run what a first request would have to wait for: one span, a full batch of long ones, a recording
        that has to be cut; and load the libraries that read files."""
        grid = grid_of(self._backend.spec, self._limits.max_segment_seconds)
        longest = grid.limit_samples
        noise = np.random.default_rng(0).normal(scale=1e-3, size=longest).astype(np.float32)
        num_long = max(1, int(self._limits.batch_seconds * grid.sample_rate) // longest)
        with self._batcher.open() as job:
            backend = JobBackend(self._backend, job)
            backend.recognize([noise[: grid.sample_rate]])
            backend.recognize([noise] * num_long)
            audio.codecs()
            recording = np.concatenate([noise, noise[: grid.sample_rate]])
            for _ in Model(backend, self._tokenizer).stream(recording, Cut(grid.sample_rate), self._limits):
                pass
