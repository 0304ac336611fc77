"""What counts as the same text: normalisers, by name.

In: a text. Out: words parted by single spaces, which are compared letter by letter. A report names its
normaliser, because an error rate means nothing without it. Numbers are not spelled out by any of them: `5`
for `five` is an error.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import TypeAlias

__all__ = ["NORMALIZERS", "Normalizer", "basic", "plain", "whisper"]

Normalizer: TypeAlias = Callable[[str], str]

APOSTROPHES = dict.fromkeys(map(ord, "\u2019\u02bc\u2018`\u00b4"), "'")
"""Typographic ones and accents that stand for one."""


def plain(text: str) -> str:
    """The text as it is; only whitespace is made single spaces."""
    return " ".join(text.split())


def basic(text: str) -> str:
    """Small letters without punctuation; ё is е; an apostrophe inside a word stays.

    Compatible forms are made one (NFKC), so that a letter with its accent in one character equals the two.
    Punctuation and symbols, hyphens too, part words. Combining marks stay: many scripts write vowels so.
    """
    text = unicodedata.normalize("NFKC", text).lower().replace("ё", "е").translate(APOSTROPHES)
    text = re.sub(r"(?<=\w)'(?=\w)", "\0", text)
    letters = (" " if unicodedata.category(c)[0] in "PS" else c for c in text)
    return plain("".join(letters).replace("\0", "'"))


def whisper(text: str) -> str:
    """As OpenAI's `BasicTextNormalizer`, for comparison with figures published with it.

    Small letters; what stands in brackets is left out; marks, symbols and punctuation become spaces. ё and
    е differ, `it's` is two words, and scripts that write vowels as marks are torn.
    """
    text = re.sub(r"[<\[][^>\]]*[>\]]", "", text.lower())
    text = re.sub(r"\([^)]+?\)", "", text)
    letters = unicodedata.normalize("NFKC", text)
    return plain("".join(" " if unicodedata.category(c)[0] in "MSP" else c for c in letters).lower())


NORMALIZERS: Mapping[str, Normalizer] = {"basic": basic, "whisper": whisper, "none": plain}
"""Every normaliser by its name, the default one first."""
