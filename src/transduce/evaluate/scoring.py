"""How far a text is from the true one: jiwer's alignment of words and of characters.

In: two texts, normalised. Out: a `Comparison`, with counts and every difference. A rate is errors (words or
characters to change, leave out or add) over the length of the true text; characters include the spaces
between words. jiwer is the extra `eval`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from transduce.errors import import_extra

__all__ = ["Comparison", "Counts", "Kind", "Stretch", "compare"]

Kind: TypeAlias = Literal["equal", "substitute", "delete", "insert"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Words or characters that are right, and what it takes to make the rest right."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def length(self) -> int:
        """Of the true text."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float | None:
        """Errors over length; None where nothing was said, so that no rate exists."""
        return self.errors / self.length if self.length else None

    @classmethod
    def total(cls, parts: Iterable["Counts"]) -> "Counts":
        """All of them together: long texts weigh more than short ones."""
        parts = list(parts)
        return cls(
            hits=sum(part.hits for part in parts),
            substitutions=sum(part.substitutions for part in parts),
            deletions=sum(part.deletions for part in parts),
            insertions=sum(part.insertions for part in parts),
        )


@dataclass(frozen=True, slots=True)
class Stretch:
    """Words one after the other that are all right, or wrong in one way."""

    kind: Kind
    reference: str
    """The true words; empty for `insert`."""
    hypothesis: str
    """The words in their place; empty for `delete`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text against the true one, both normalised."""

    reference: str
    hypothesis: str
    words: Counts
    characters: Counts
    stretches: tuple[Stretch, ...]
    """Both texts from beginning to end."""


def compare(reference: str, hypothesis: str) -> Comparison:
    """Align two normalised texts by the fewest errors.

    Raises MissingExtraError without jiwer.
    """
    jiwer = import_extra("jiwer", "eval")
    words = jiwer.process_words(reference, hypothesis)
    characters = jiwer.process_characters(reference, hypothesis)
    true, found = reference.split(), hypothesis.split()
    return Comparison(
        reference=reference,
        hypothesis=hypothesis,
        words=_counts(words),
        characters=_counts(characters),
        stretches=tuple(
            Stretch(
                kind=chunk.type,
                reference=" ".join(true[chunk.ref_start_idx : chunk.ref_end_idx]),
                hypothesis=" ".join(found[chunk.hyp_start_idx : chunk.hyp_end_idx]),
            )
            for chunk in words.alignments[0]
        ),
    )


def _counts(output: Any) -> Counts:
    """Of jiwer's result for words or characters."""
    return Counts(output.hits, output.substitutions, output.deletions, output.insertions)
