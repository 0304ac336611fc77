"""How many words of a transcript are wrong, and which are right."""

from collections.abc import Sequence

import numpy as np

__all__ = ["equal_words", "word_errors"]


def word_errors(reference: str, found: str) -> int:
    """The least number of words to change, add or leave out (Levenshtein's distance over words)."""
    theirs = found.split()
    row = list(range(len(theirs) + 1))
    for number, word in enumerate(reference.split(), start=1):
        diagonal, row[0] = row[0], number
        for index, other in enumerate(theirs, start=1):
            diagonal, row[index] = (
                row[index],
                min(diagonal + (word != other), row[index] + 1, row[index - 1] + 1),
            )
    return row[-1]


def equal_words(reference: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    """The places of the words that a least number of changes leaves as they are."""
    cost = np.zeros((len(reference) + 1, len(found) + 1), int)
    cost[:, 0], cost[0] = np.arange(len(reference) + 1), np.arange(len(found) + 1)
    for i, word in enumerate(reference):
        for j, other in enumerate(found):
            cost[i + 1, j + 1] = min(cost[i, j] + (word != other), cost[i, j + 1] + 1, cost[i + 1, j] + 1)
    pairs = []
    i, j = len(reference), len(found)
    while i and j:
        is_equal = reference[i - 1] == found[j - 1]
        if cost[i, j] == cost[i - 1, j - 1] + (not is_equal):
            i, j = i - 1, j - 1
            pairs += [(i, j)] if is_equal else []
        else:
            i, j = (i - 1, j) if cost[i, j] == cost[i - 1, j] + 1 else (i, j - 1)
    return pairs[::-1]
