"""One request's way through the model: the flow of `transcriber`, with the batcher for a backend.

In: an upload and the request's job. Out: its transcript, or its segments as they become final. To the
flow, a job is a `Backend` like any other; that its spans share batches with other requests' is not seen.
Nothing here knows HTTP.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import BinaryIO

import numpy as np

from transduce.errors import AudioError
from transduce.server.batcher import Batcher, CancelledJobError, Job
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
    """A model shared by many requests. Threads call it, one a request."""

    def __init__(self, model: Model, batcher: Batcher, max_audio_seconds: float) -> None:
        self._tokenizer: Tokenizer = model.tokenizer
        self._backend: Backend = model.backend
        self._batcher = batcher
        self._max_audio_seconds = max_audio_seconds

    def transcribe(
        self, upload: BinaryIO, job: Job, on_segment: Callable[[Segment], None] | None = None
    ) -> Transcript:
        """The transcript of an upload; `on_segment` is called with each segment once it is final.

        Raises AudioError, also for audio that is too long; ResourceError; CancelledJobError once the job
        is cancelled, whatever else went wrong after that.
        """
        model = Model(JobBackend(self._backend, job), self._tokenizer)
        limit = self._max_audio_seconds
        try:
            transcript = model.transcribe(upload, end=limit + 1)
        finally:
            job.check()
        if transcript.duration > limit:
            raise AudioError(f"{upload.name} is longer than the {limit:g} s that this server takes")
        if on_segment is not None:
            for segment in transcript.segments:
                on_segment(segment)
        return transcript

    def warm_up(self) -> None:
        """Run what a first request would have to wait for: one span, then a full batch of long ones."""
        spec = self._backend.spec
        rate = spec.features.sample_rate
        longest = int(spec.max_segment_seconds * rate)
        noise = np.random.default_rng(0).normal(scale=1e-3, size=longest).astype(np.float32)
        num_long = max(1, int(self._batcher.rules.batch_seconds * rate) // longest)
        with self._batcher.open() as job:
            backend = JobBackend(self._backend, job)
            backend.recognize([noise[:rate]])
            backend.recognize([noise] * num_long)
