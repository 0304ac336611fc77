"""How many words of a transcript are wrong."""

__all__ = ["word_errors"]


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
