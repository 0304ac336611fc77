"""Models over utterances: what they write, how far it is from the truth, and how long they take.

In: a loaded model, utterances, a normaliser. Out: a `Measurement`. Files are read and recognised as
`transduce transcribe` does it. One that fails is an outcome of its own: it is counted, and left out of the
rates. Manifests and reports are not known here.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from transduce import audio
from transduce.errors import AudioError, TransduceError
from transduce.evaluate.manifest import Utterance
from transduce.evaluate.normalizers import Normalizer
from transduce.evaluate.scoring import Comparison, Counts, compare
from transduce.pipeline import WHOLE, Limits
from transduce.sources import AudioSource, describe_source, error_of_pipe
from transduce.transcriber import Model
from transduce.transcript import Transcript

__all__ = ["Measurement", "Outcome", "measure"]

NOTHING = np.zeros(0, np.float32)

ANY_RATE = 16000
"""Asking for a length, nothing is read."""

LONGER_SECONDS = 1.0
"""A file that goes on for longer than this after its claimed end is cut there, as NeMo cuts it.

Claims are often rounded to whole seconds: what goes on for less is the end of the recording.
"""

WARM_UP_UTTERANCES = 8
"""Recognised before the clock runs: the first batch of a process imports, compiles and allocates."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one utterance: a text and its comparison, or an error."""

    text: str = ""
    """As the model wrote it."""
    comparison: Comparison | None = None
    """None where there is an error."""
    error: TransduceError | None = None

    @property
    def words(self) -> Counts:
        return self.comparison.words if self.comparison else Counts()

    @property
    def characters(self) -> Counts:
        return self.comparison.characters if self.comparison else Counts()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model over all utterances."""

    label: str
    """What tells it from the other ones."""
    facts: Mapping[str, object]
    """`Model.describe()`: what ran."""
    outcomes: tuple[Outcome, ...]
    """One an utterance, in their order."""
    audio_seconds: float
    """Of what was recognised."""
    seconds: float
    """From the first file to the last text: reading and resampling too, loading and warming up not."""

    @property
    def words(self) -> Counts:
        return Counts.total(outcome.words for outcome in self.outcomes)

    @property
    def characters(self) -> Counts:
        return Counts.total(outcome.characters for outcome in self.outcomes)

    @property
    def num_failed(self) -> int:
        return sum(outcome.error is not None for outcome in self.outcomes)

    @property
    def rtfx(self) -> float:
        """How many times faster than real time."""
        return self.audio_seconds / max(self.seconds, 1e-9)


def _ignore(*_: object) -> None:
    """Nobody wants to know the progress."""


def measure(
    model: Model,
    utterances: Sequence[Utterance],
    normalize: Normalizer,
    *,
    label: str,
    limits: Limits,
    on_progress: Callable[[float], None] = _ignore,
    on_done: Callable[[], None] = _ignore,
) -> Measurement:
    """Recognise the utterances, after some of them as a warm-up; then compare what came out.

    `on_progress` is told seconds of audio as they are done, `on_done` of each utterance. Raises
    MissingExtraError without jiwer, and what `limits` cannot be.
    """
    for _ in _transcribed(model, utterances[:WARM_UP_UTTERANCES], limits, _ignore):
        pass
    start = time.perf_counter()
    found = []
    for transcript in _transcribed(model, utterances, limits, on_progress):
        found.append(transcript)
        on_done()
    seconds = time.perf_counter() - start
    return Measurement(
        label=label,
        facts=model.describe(),
        outcomes=tuple(
            _outcome(utterance, result, normalize)
            for utterance, result in zip(utterances, found, strict=True)
        ),
        audio_seconds=sum(result.duration for result in found if isinstance(result, Transcript)),
        seconds=seconds,
    )


def _outcome(utterance: Utterance, result: Transcript | TransduceError, normalize: Normalizer) -> Outcome:
    if isinstance(result, TransduceError):
        return Outcome(error=result)
    return Outcome(result.text, compare(normalize(utterance.text), normalize(result.text)))


def _transcribed(
    model: Model, utterances: Sequence[Utterance], limits: Limits, on_progress: Callable[[float], None]
) -> Iterator[Transcript | TransduceError]:
    """The transcript of each utterance, or its error, in order."""
    errors: dict[int, TransduceError] = {}
    sources = _sources(utterances, model.spec.features.sample_rate, errors)
    with closing(model.transcribe_each(sources, WHOLE, limits, on_progress)) as results:
        for index, result in enumerate(results):
            if index in errors:
                yield errors[index]
            else:
                yield result if isinstance(result, TransduceError) else result[0]


def _sources(
    utterances: Sequence[Utterance], rate: int, errors: dict[int, TransduceError]
) -> Iterator[AudioSource]:
    """Files whole, parts as samples; a part that cannot be read leaves its error and an empty place."""
    for index, utterance in enumerate(utterances):
        try:
            if error := error_of_pipe(utterance.path):
                raise error
            part = _part(utterance)
            yield utterance.path if part is None else _samples(part, rate)
        except TransduceError as error:
            errors[index] = error
            yield NOTHING


def _part(utterance: Utterance) -> Utterance | None:
    """The utterance with its start, where it is not its whole file.

    A first part may have a duration alone, so its file is asked for its length. Raises AudioError.
    """
    if utterance.is_part:
        return utterance
    if utterance.duration_seconds is None or utterance.start_seconds is not None:
        return None
    with audio.open_stream(utterance.path, rate=ANY_RATE) as stream:
        is_longer = (stream.expected_seconds or 0.0) - utterance.duration_seconds > LONGER_SECONDS
    return replace(utterance, start_seconds=0.0) if is_longer else None


def _samples(part: Utterance, rate: int) -> AudioSource:
    start, end = part.start_seconds or 0.0, part.end_seconds
    if part.duration_seconds == 0:
        name = describe_source(part.path)
        raise AudioError(f"{name} from {start:g} s: the manifest says that it lasts 0 s")
    return audio.load(part.path, rate=rate, start_seconds=start, end_seconds=end).samples
