"""Hashes of files: which one a file must have, and the hasher that computes it while it streams.

In: the name of a hash and its hexadecimal value. Out: a Digest. It reads no files.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast

__all__ = ["Digest", "Hasher", "Kind"]

Kind: TypeAlias = Literal["sha256", "md5", "git-sha1"]
"""git-sha1 is the id that git, and so Hugging Face, gives to a file that is not in LFS."""

NUM_HEX_DIGITS: dict[str, int] = {"sha256": 64, "md5": 32, "git-sha1": 40}


class Hasher(Protocol):
    """What hashlib's objects can do."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """A hash and its value in lower-case hexadecimal."""

    kind: Kind
    value: str

    def __post_init__(self) -> None:
        num_digits = NUM_HEX_DIGITS[self.kind]
        if not re.fullmatch(rf"[0-9a-f]{{{num_digits}}}", self.value):
            raise ValueError(f"{self.value!r} is no {self.kind}, which has {num_digits} hexadecimal digits")

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"

    @classmethod
    def parse(cls, text: str) -> "Digest":
        """`sha256:0123...` or `sha256=0123...`; ValueError for anything else."""
        kind, _, value = text.replace("=", ":", 1).partition(":")
        if kind not in NUM_HEX_DIGITS:
            raise ValueError(f"{kind!r} is no known hash; use one of {', '.join(NUM_HEX_DIGITS)}")
        return cls(cast(Kind, kind), value.lower())

    def hasher(self, num_bytes: int | None) -> Hasher:
        """A fresh hasher for a file of `num_bytes`, which only git's hash must know beforehand."""
        if self.kind == "sha256":
            return hashlib.sha256()
        if self.kind == "md5":
            return hashlib.md5(usedforsecurity=False)
        assert num_bytes is not None, "whoever knows git's hash of a file knows its size"
        return hashlib.sha1(b"blob %d\0" % num_bytes, usedforsecurity=False)
