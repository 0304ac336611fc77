"""An evaluation as data, as JSON and as lines of text.

In: measurements of the same utterances. Out: an `Evaluation`, its JSON, and utterances in order of what
they cost. Rates are fractions in JSON (0.015) and per cent for people (1.5 %).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from transduce.evaluate.manifest import Utterance
from transduce.evaluate.running import Measurement, Outcome
from transduce.evaluate.scoring import Counts, Stretch

__all__ = ["Evaluation", "Row", "count_of", "marked", "per_cent", "shortened"]

MOST_LETTERS = 4000
"""In one line for a terminal: some minutes of speech."""


@dataclass(frozen=True, slots=True)
class Row:
    """One utterance, and what became of it with each model."""

    utterance: Utterance
    outcomes: tuple[Outcome, ...]

    @property
    def num_errors(self) -> int:
        """Wrong words, of all models together."""
        return sum(outcome.words.errors for outcome in self.outcomes)

    @property
    def is_failed(self) -> bool:
        return any(outcome.error is not None for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Models over the same utterances, and where and when that was."""

    manifest: str
    normalizer: str
    date: str
    """ISO 8601, UTC."""
    machine: dict[str, str]
    utterances: tuple[Utterance, ...]
    measurements: tuple[Measurement, ...]

    def rows(self) -> list[Row]:
        """The utterances in the manifest's order."""
        outcomes = zip(*(measurement.outcomes for measurement in self.measurements), strict=True)
        return [Row(*pair) for pair in zip(self.utterances, outcomes, strict=True)]

    def worst_first(self) -> list[Row]:
        """Those that failed, then the most wrong words; the manifest's order where they are alike."""
        return sorted(self.rows(), key=lambda row: (not row.is_failed, -row.num_errors))

    @property
    def num_failed(self) -> int:
        """Utterances that at least one model has no text for."""
        return sum(row.is_failed for row in self.rows())

    def to_dict(self) -> dict[str, Any]:
        """The content of its JSON."""
        return {
            "schema": 1,
            "manifest": self.manifest,
            "normalizer": self.normalizer,
            "date": self.date,
            "machine": self.machine,
            "systems": [_system(measurement) for measurement in self.measurements],
            "utterances": [_utterance(row) for row in self.rows()],
        }


def count_of(num_utterances: int) -> str:
    """`1 utterance`, `2 utterances`."""
    return f"{num_utterances} utterance{'' if num_utterances == 1 else 's'}"


def shortened(line: str) -> str:
    """The beginning of a line that no terminal has room for, and how much more there is."""
    num_more = len(line) - MOST_LETTERS
    if num_more <= 0:
        return line
    return f"{line[:MOST_LETTERS]} … ({num_more} characters more; --html and --json have them)"


def per_cent(rate: float | None, digits: int = 2) -> str:
    """`0.0152` -> `1.52`; a dash where there is no rate."""
    return "–" if rate is None else f"{100 * rate:.{digits}f}"


def marked(stretches: Iterable[Stretch]) -> str:
    """Both texts in one line: `right [true>found] [-left out] [+added]`."""
    return " ".join(map(_marked_one, stretches))


def _marked_one(stretch: Stretch) -> str:
    if stretch.kind == "equal":
        return stretch.reference
    if stretch.kind == "substitute":
        return f"[{stretch.reference}>{stretch.hypothesis}]"
    return f"[-{stretch.reference}]" if stretch.kind == "delete" else f"[+{stretch.hypothesis}]"


# JSON


def _system(measurement: Measurement) -> dict[str, Any]:
    return {
        "label": measurement.label,
        "model": measurement.facts,
        "wer": _rounded(measurement.words.rate, 6),
        "cer": _rounded(measurement.characters.rate, 6),
        "words": _counts(measurement.words),
        "characters": _counts(measurement.characters),
        "utterances": len(measurement.outcomes),
        "failed": measurement.num_failed,
        "audio_seconds": round(measurement.audio_seconds, 3),
        "seconds": round(measurement.seconds, 3),
        "rtfx": round(measurement.rtfx, 2),
    }


def _counts(counts: Counts) -> dict[str, int]:
    return {
        "reference": counts.length,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
    }


def _utterance(row: Row) -> dict[str, Any]:
    return {
        "audio": row.utterance.name,
        "reference": row.utterance.text,
        "results": [_result(outcome) for outcome in row.outcomes],
    }


def _result(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is not None:
        return {"error": {"code": outcome.error.code, "message": str(outcome.error)}}
    return {
        "text": outcome.text,
        "wer": _rounded(outcome.words.rate, 6),
        "cer": _rounded(outcome.characters.rate, 6),
        "words": _counts(outcome.words),
        "differences": _differences(outcome.comparison.stretches if outcome.comparison else ()),
    }


def _differences(stretches: Sequence[Stretch]) -> list[dict[str, object]]:
    """What is wrong, each at the number of the true word before which it stands or begins, from 0."""
    found: list[dict[str, object]] = []
    place = 0
    for stretch in stretches:
        if stretch.kind != "equal":
            true, other = stretch.reference, stretch.hypothesis
            found.append({"kind": stretch.kind, "word": place, "reference": true, "hypothesis": other})
        place += len(stretch.reference.split())
    return found


def _rounded(rate: float | None, digits: int) -> float | None:
    return None if rate is None else round(rate, digits)
