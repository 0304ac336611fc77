"""Every checkpoint on every utterance gives upstream's own answer: ids, frames, durations, text.

The same alone, in batches sorted and shuffled, with noise in the padding, from arrays that cannot be
written to, and a second time. A difference passes only as a tie: a top-2 margin under 1e-3 at the step
where the two answers part. Ties are recorded with the result, and there are at most two steps in all
the goldens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from models import GIGAAM, NEMO, backend, checkpoint, expected, model_params
from support import read_wav, utterances

from transduce import greedy
from transduce.nn.backend import TorchBackend
from transduce.types import Hypothesis, TransducerWeights

TIE = 1e-3
MAX_TIES = {"nemo-rnnt_char": 1}
"""Steps that tie, by checkpoint; none elsewhere. In float64 the margin of this one is 3e-4."""

CASES = model_params(*NEMO, *GIGAAM)


def waveforms() -> list[npt.NDArray[np.float32]]:
    """The 40 utterances, as arrays that nothing may write to."""
    loaded = [read_wav(utterance["file"]) for utterance in utterances()]
    for waveform in loaded:
        waveform.flags.writeable = False
    return loaded


def in_batches(model: TorchBackend, order: Sequence[int], size: int = 8) -> dict[int, Hypothesis]:
    loaded = waveforms()
    results: dict[int, Hypothesis] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        results.update(zip(batch, model.recognize([loaded[i] for i in batch]), strict=True))
    return results


def noisy(model: TorchBackend, size: int = 8) -> dict[int, Hypothesis]:
    """Batches of 8 whose padding holds loud noise instead of zeros."""
    loaded, rng = waveforms(), np.random.default_rng(0)
    results: dict[int, Hypothesis] = {}
    for start in range(0, len(loaded), size):
        batch = range(start, min(start + size, len(loaded)))
        lengths = [len(loaded[i]) for i in batch]
        padded = rng.standard_normal((len(lengths), max(lengths))).astype(np.float32)
        for row, i in enumerate(batch):
            padded[row, : lengths[row]] = loaded[i]
        results.update(zip(batch, model.decode(*model.encode(padded, lengths)), strict=True))
    return results


def runs(model: TorchBackend) -> Iterator[tuple[str, dict[int, Hypothesis]]]:
    loaded = waveforms()
    by_length = sorted(range(len(loaded)), key=lambda i: len(loaded[i]))
    shuffled = np.random.default_rng(1).permutation(len(loaded)).tolist()
    yield "alone", in_batches(model, range(len(loaded)), size=1)
    yield "sorted", in_batches(model, by_length)
    yield "shuffled", in_batches(model, shuffled)
    yield "noisy", noisy(model)
    yield "again", in_batches(model, shuffled)


def triples(found: Hypothesis) -> list[tuple[int, int, int]]:
    return list(zip(found.ids.tolist(), found.frames.tolist(), found.durations.tolist(), strict=True))


def golden_triples(answer: dict[str, Any], found: Hypothesis) -> list[tuple[int, int, int]]:
    """Goldens of RNN-T and CTC hold no durations; there ours are not compared."""
    durations = answer.get("durations", found.durations.tolist())
    durations = durations if len(durations) == len(answer["ids"]) else [-1] * len(answer["ids"])
    return list(zip(answer["ids"], answer["frames"], durations, strict=True))


def smallest_margin(name: str, index: int, frame: int) -> float:
    """The smallest top-2 margin of the reference decoder's steps at one frame of an utterance."""
    model, weights = backend(name), checkpoint(name).weights
    head = model.spec.head
    reference = greedy.LstmHead(TransducerWeights.of(weights, head), head)
    margins = []

    class Recording(greedy.LstmHead):
        def joint(self, encoded: Any, predicted: Any) -> Any:
            logits = reference.joint(encoded, predicted)
            if encoded is rows[frame]:
                second, first = np.partition(logits, -2)[-2:]
                margins.append(float(first - second))
            return logits

    waveform = waveforms()[index]
    encoded, _ = model.encode(waveform[None].copy(), [len(waveform)])
    rows = list(encoded[0].numpy())
    greedy.transducer(rows, Recording(reference.weights, head), head.durations, head.max_symbols)  # type: ignore[arg-type]
    return min(margins)


def differences(name: str, head: str | None) -> Iterator[tuple[str, int, int]]:
    """(run, utterance, frame where it parts from the golden)."""
    answers = expected(name, head)
    for run, results in runs(backend(name, head)):
        for index, answer in enumerate(answers):
            ours, theirs = triples(results[index]), golden_triples(answer, results[index])
            if ours != theirs:
                parted = next(
                    (a[1] for a, b in zip(ours, theirs, strict=False) if a != b), min(len(ours), len(theirs))
                )
                yield run, index, parted


@pytest.mark.parametrize("name", CASES)
def test_ids_frames_and_durations_are_upstreams(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    found = list(differences(name, None))
    steps = {(index, frame) for _, index, frame in found}
    for index, frame in steps:
        margin = smallest_margin(name, index, frame)
        record_property("tie", f"{name}, utterance {index}, frame {frame}: top-2 margin {margin:.1e}")
        assert margin < TIE, found
    assert len(steps) <= MAX_TIES.get(name, 0), found


def wrong_texts(name: str, head: str | None) -> list[tuple[str, str]]:
    """(ours, upstream's) where they differ."""
    results, tokenizer = in_batches(backend(name, head), range(40)), checkpoint(name).tokenizer
    ours = [tokenizer.decode(results[index].ids.tolist()) for index in range(40)]
    pairs = zip(ours, (answer["text"] for answer in expected(name, head)), strict=True)
    return [(text, theirs) for text, theirs in pairs if text != theirs]


@pytest.mark.parametrize("name", CASES)
def test_text_is_upstreams(name: str) -> None:
    assert len(wrong_texts(name, None)) <= MAX_TIES.get(name, 0), wrong_texts(name, None)


def test_the_ctc_head_of_a_hybrid() -> None:
    assert list(differences("nemo-hybrid", "ctc")) == []
    assert wrong_texts("nemo-hybrid", "ctc") == []


@pytest.mark.parametrize("name", CASES)
def test_encoder_checksums(name: str) -> None:
    """Upstream notes the mean magnitude of the encoder's output and six values of its frame 1."""
    model = backend(name)
    for waveform, answer in zip(waveforms(), expected(name), strict=True):
        encoded, lengths = model.encode(waveform[None].copy(), [len(waveform)])
        assert lengths.tolist() == [answer["encoder_frames"]]
        assert float(encoded.abs().mean()) == pytest.approx(answer["encoder_mean_abs"], abs=1e-3)
        if "encoder_first" in answer:
            assert encoded[0, 1, :6].tolist() == pytest.approx(answer["encoder_first"], abs=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """Valid encoder frames of a clip alone and beside longer ones differ by rounding only."""
    model = backend(name)
    clips = [waveforms()[i] for i in (3, 0, 20)]  # about 1, 2 and 7 seconds
    lengths = [len(clip) for clip in clips]
    padded = np.zeros((3, max(lengths)), np.float32)
    for row, clip in zip(padded, clips, strict=True):
        row[: len(clip)] = clip
    together, frames = model.encode(padded, lengths)
    for row, clip in enumerate(clips):
        alone, _ = model.encode(clip[None].copy(), [len(clip)])
        assert float((together[row, : frames[row]] - alone[0]).abs().max()) < 1e-4
        assert float(together[row, frames[row] :].abs().sum()) == 0.0


@pytest.mark.parametrize("name", CASES)
def test_results_own_their_memory(name: str) -> None:
    found = backend(name).recognize(waveforms()[:3])
    for array in (a for h in found for a in (h.ids, h.frames, h.durations, h.log_probs)):
        assert array.base is None
        assert array.flags.writeable
