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


def equal_words(
    reference: Sequence[str],
    found: Sequence[str],
    seconds: tuple[Sequence[float], Sequence[float]] | None = None,
) -> list[tuple[int, int]]:
    """The places of the words that a least number of changes leaves as they are.

    Where several ways change as little, the one whose words are nearest in time, if `seconds` gives the
    times of both.
    """
    change = 10**9
    """Is worse than any distance of all words in milliseconds."""

    def pair_cost(i: int, j: int) -> int:
        if reference[i] != found[j]:
            return change
        return round(1000 * min(1.0, abs(seconds[0][i] - seconds[1][j]))) if seconds else 0

    cost = np.zeros((len(reference) + 1, len(found) + 1), int)
    cost[:, 0], cost[0] = change * np.arange(len(reference) + 1), change * np.arange(len(found) + 1)
    for i in range(len(reference)):
        for j in range(len(found)):
            left_out = min(cost[i, j + 1], cost[i + 1, j]) + change
            cost[i + 1, j + 1] = min(cost[i, j] + pair_cost(i, j), left_out)
    pairs = []
    i, j = len(reference), len(found)
    while i and j:
        if cost[i, j] == cost[i - 1, j - 1] + pair_cost(i - 1, j - 1):
            i, j = i - 1, j - 1
            pairs += [(i, j)] if reference[i] == found[j] else []
        else:
            i, j = (i - 1, j) if cost[i, j] == cost[i - 1, j] + change else (i, j - 1)
    return pairs[::-1]
