"""Tokenizers: ids <-> pieces <-> text.

In: a SentencePiece model, a list of character labels or a vocabulary listing, as checkpoints carry
them. Out: one `Tokenizer`, which says what characters each id of a list adds to the text. One rule
serves all three; for SentencePiece models it gives what sentencepiece's own decode gives, and the
library is needed only while a model is being read. Words, spaces between them and times are not
known here (`words` makes those).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from transduce.errors import CheckpointError

__all__ = ["MAX_MODEL_BYTES", "Tokenizer"]

MAX_MODEL_BYTES = 64 << 20
"""Largest SentencePiece model that is read; the released ones are under 1 MB."""

_SPACE = "\u2581"  # SentencePiece's mark for a space: "▁"
_UNKNOWN_TEXT = " \u2047 "  # what sentencepiece shows for <unk>: " ⁇ "
_SILENT = frozenset({"<blk>", "<blank>", "<eps>", "<s>", "</s>", "<pad>", "<sos/eos>"})
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NUMBERED = re.compile(r"(.*)[ \t](\d+)")

_Prefix = Literal["every", "first", "kept"]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The labels of a model, in the order of their ids, and the text that they stand for."""

    name: str
    """What messages call it: the file or the checkpoint it came from."""
    pieces: tuple[str, ...]
    """The labels as the file spells them; the blank is among them only where the file lists it."""
    inner_texts: tuple[str, ...]
    """The characters that each piece adds inside a sentence; none for bytes and silent pieces."""
    byte_values: Mapping[int, int] = field(default_factory=dict)
    """Byte-fallback pieces: id to byte. A run of them is a piece of UTF-8."""
    prefix: _Prefix = "kept"
    """Which leading "▁" of a text is dropped: of every piece before the first character, of the
    first piece that has one, or none."""
    model_bytes: bytes | None = None
    """The SentencePiece model, as read; None for the other kinds."""

    @classmethod
    def from_sentencepiece(cls, model_bytes: bytes, name: str) -> "Tokenizer":
        """Read a SentencePiece model.

        A denormalizer inside the model is not applied (no speech checkpoint is known to have one).
        Raises CheckpointError where the model is damaged or oversized.
        """
        processor = _load_sentencepiece(model_bytes, name)
        ids = range(processor.GetPieceSize())
        return cls(
            name=name,
            pieces=tuple(processor.IdToPiece(i) for i in ids),
            inner_texts=tuple(_inner_text(processor, i) for i in ids),
            byte_values={i: _byte_value(processor.IdToPiece(i)) for i in ids if processor.IsByte(i)},
            prefix=_prefix_rule(processor),
            model_bytes=model_bytes,
        )

    @classmethod
    def from_characters(cls, labels: Sequence[str], name: str) -> "Tokenizer":
        """Labels that are their own text, " " among them (NeMo's `labels`, GigaAM's `vocabulary`)."""
        _require_pieces(labels, name)
        return cls(name=name, pieces=tuple(labels), inner_texts=tuple(labels))

    @classmethod
    def from_pieces(cls, pieces: Sequence[str], name: str) -> "Tokenizer":
        """Pieces in SentencePiece's spelling without their model: "▁" for a space, `<0x..>` bytes.

        `<unk>` shows as sentencepiece shows it; blank, start, end and padding add nothing.
        """
        _require_pieces(pieces, name)
        return cls(
            name=name,
            pieces=tuple(pieces),
            inner_texts=tuple(_spelled_text(piece) for piece in pieces),
            byte_values={i: _byte_value(piece) for i, piece in enumerate(pieces) if _BYTE.fullmatch(piece)},
            prefix="every",
        )

    @classmethod
    def from_vocab(cls, text: str, name: str) -> "Tokenizer":
        """Read a listing: `piece id` lines (onnx-asr's vocab.txt, sherpa's tokens.txt), or bare pieces.

        The lines may come in any order; the ids must be 0, 1, 2, ... without gaps, else
        CheckpointError.
        """
        # Not splitlines: some pieces are line separators to Unicode.
        lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
        lines = [line for line in lines if line]
        numbered = [_NUMBERED.fullmatch(line) for line in lines]
        if not any(numbered):
            return cls.from_pieces(lines, name)
        # A space may be written as itself, or as nothing.
        by_id = {int(match[2]): match[1].strip(" ") or _SPACE for match in numbered if match}
        if sorted(by_id) != list(range(len(lines))):
            raise CheckpointError(
                f"{name}: the vocabulary is damaged: {len(lines)} lines do not hold the ids "
                f"0 to {len(lines) - 1} once each. Fetch the file again"
            )
        return cls.from_pieces([by_id[i] for i in range(len(lines))], name)

    @property
    def size(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    @property
    def space_opens_word(self) -> bool:
        """Whether a lone "▁" is the first piece of a word, or a separator as in character sets."""
        return any(piece.startswith(_SPACE) and len(piece) > 1 for piece in self.pieces)

    def adds_nothing(self, piece_id: int) -> bool:
        """Whether the piece never adds a character: a control symbol or a listed blank."""
        return not self.inner_texts[piece_id] and piece_id not in self.byte_values

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The characters that each id of the list adds; joined, they are `decode(ids)`.

        A character spelled in bytes comes with its first byte, the other bytes add "". Bytes that
        are no UTF-8 are U+FFFD each. Raises CheckpointError for an id that is no piece.
        """
        ids = self._known(ids)
        texts: list[str] = []
        for is_bytes, run in groupby(ids, key=self.byte_values.__contains__):
            if is_bytes:
                texts += _byte_texts(bytes(self.byte_values[i] for i in run))
            else:
                texts += [self.inner_texts[i] for i in run]
        return texts if self.prefix == "kept" else self._without_prefix(ids, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole list of ids."""
        return "".join(self.texts(ids))

    def _known(self, ids: Iterable[int]) -> list[int]:
        known = [int(i) for i in ids]
        strangers = [i for i in known if not 0 <= i < self.size]
        if strangers:
            raise CheckpointError(
                f"{self.name}: the model emitted label {strangers[0]}, but its tokenizer has only "
                f"{self.size} pieces: weights and tokenizer do not belong together"
            )
        return known

    def _without_prefix(self, ids: list[int], texts: list[str]) -> list[str]:
        """Drop the leading "▁" that stands for no space, as `prefix` says; `texts` is changed."""
        for index, piece_id in enumerate(ids):
            marked = self.pieces[piece_id].startswith(_SPACE)
            if marked:
                texts[index] = texts[index].removeprefix(" ")
            if texts[index] or (marked and self.prefix == "first"):
                break
        return texts


def _require_pieces(pieces: Sequence[str], name: str) -> None:
    if not pieces:
        raise CheckpointError(f"{name}: the vocabulary is empty. Fetch the file again")


def _load_sentencepiece(model_bytes: bytes, name: str) -> Any:
    """A sentencepiece processor (the package has no types) for a serialized model."""
    import sentencepiece

    if len(model_bytes) > MAX_MODEL_BYTES:
        raise CheckpointError(
            f"{name}: a SentencePiece model of {len(model_bytes):,} bytes is larger than any real one "
            f"(at most {MAX_MODEL_BYTES:,} are read). Check that it is the right file"
        )
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model_bytes)
    except (RuntimeError, OSError) as error:
        raise CheckpointError(
            f"{name}: this is not a SentencePiece model, or it is damaged. Fetch the file again"
        ) from error
    return processor


def _inner_text(processor: Any, piece_id: int) -> str:
    if processor.IsControl(piece_id) or processor.IsByte(piece_id):
        return ""
    if processor.IsUnknown(piece_id):  # the model chooses how it is shown
        return str(processor.DecodeIds([piece_id]))
    return str(processor.IdToPiece(piece_id)).replace(_SPACE, " ")


def _prefix_rule(processor: Any) -> _Prefix:
    """The model's rule for leading "▁", found by asking: the settings themselves are not exposed."""
    ids = range(processor.GetPieceSize())
    plain = (i for i in ids if processor.IdToPiece(i).startswith(_SPACE) and not processor.IsControl(i))
    piece_id = min(plain, key=lambda i: len(processor.IdToPiece(i)), default=None)
    if piece_id is None or processor.DecodeIds([piece_id]).startswith(" "):
        return "kept"
    # Only a lone "▁" leaves the text empty, so only there do the two rules differ.
    return "first" if processor.DecodeIds([piece_id, piece_id]) == " " else "every"


def _spelled_text(piece: str) -> str:
    if piece in _SILENT or _BYTE.fullmatch(piece):
        return ""
    return _UNKNOWN_TEXT if piece == "<unk>" else piece.replace(_SPACE, " ")


def _byte_value(piece: str) -> int:
    return int(piece[3:5], 16)  # "<0xD0>"


def _byte_texts(run: bytes) -> list[str]:
    """The text of each byte of a run: a character at its first byte, U+FFFD for a broken byte."""
    texts: list[str] = []
    while len(texts) < len(run):
        character, num_bytes = _first_character(run[len(texts) : len(texts) + 4])
        texts += [character] + [""] * (num_bytes - 1)
    return texts


def _first_character(run: bytes) -> tuple[str, int]:
    """The character that opens `run` and its length in bytes."""
    for num_bytes in range(1, len(run) + 1):
        try:
            return run[:num_bytes].decode("utf-8"), num_bytes
        except UnicodeDecodeError:
            continue
    return "\ufffd", 1
