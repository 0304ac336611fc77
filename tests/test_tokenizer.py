"""Ids to text: equal to sentencepiece's own decode, and to what upstream prints.

Expected texts come from sentencepiece itself (small models trained here, with every kind of piece),
from the goldens, and from the listings that upstream exporters write.
"""

import io
import pickle
import tarfile
from functools import cache
from typing import Any

import pytest
import sentencepiece
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support import data, golden, num_cases, param

from transduce.errors import CheckpointError
from transduce.tokenizer import MAX_MODEL_BYTES, Tokenizer

LINES = ["Hello, how much does it cost", "the quick brown fox jumps over", "привет сказал мир", "5 x 5"] * 20

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "prefix only": {"remove_extra_whitespaces": False},
    "no prefix": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "extra only": {"add_dummy_prefix": False},
    "suffix": {"treat_whitespace_as_suffix": True},
    "bpe": {"model_type": "bpe"},
    "char": {"model_type": "char"},
    "own unknown": {"unk_surface": "?!"},
    "padded": {"pad_id": 3, "bos_id": -1},
}


@cache
def model(kind: str) -> bytes:
    """A small SentencePiece model with bytes, control symbols and pieces of the user's own."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=writer,
        vocab_size=330,
        hard_vocab_limit=False,
        byte_fallback=True,
        character_coverage=1.0,
        control_symbols=["<ctl>"],
        user_defined_symbols=["$", "▁$", "▁▁z", "<en-US>", "▁H", "▁cost", "▁x", "ello", "?"],
        minloglevel=2,
        **KINDS[kind],
    )
    return writer.getvalue()


@cache
def pair(kind: str) -> tuple[Tokenizer, Any]:
    """Our tokenizer and sentencepiece's own for the same model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model(kind))
    return Tokenizer.from_sentencepiece(model(kind), kind), processor


def ids_of(tokenizer: Tokenizer, pieces: list[str]) -> list[int]:
    return [tokenizer.pieces.index(piece) for piece in pieces]


def archived_model(path: str) -> bytes:
    """The SentencePiece model inside a .nemo archive."""
    with tarfile.open(data(path)) as archive:
        (member,) = (m for m in archive.getmembers() if m.name.endswith("_tokenizer.model"))
        content = archive.extractfile(member)
        assert content is not None
        return content.read()


# SentencePiece models


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=num_cases(100, 2000), deadline=None)
@given(choices=st.data())
def test_any_list_of_ids_decodes_as_sentencepiece_does(kind: str, choices: st.DataObject) -> None:
    tokenizer, processor = pair(kind)
    any_id = st.integers(0, tokenizer.size - 1)
    spaced = st.sampled_from([i for i, piece in enumerate(tokenizer.pieces) if piece.startswith("▁")])
    byte = st.sampled_from(list(tokenizer.byte_values))
    character = st.sampled_from("Ж€é\u0000\ud7ff😀").map(
        lambda c: ids_of(tokenizer, [f"<0x{value:02X}>" for value in c.encode()])
    )
    parts = st.lists(st.one_of(character, *(s.map(lambda i: [i]) for s in (any_id, spaced, byte))))
    ids = [piece_id for part in choices.draw(parts) for piece_id in part]
    texts = tokenizer.texts(ids)
    assert tokenizer.decode(ids) == "".join(texts) == processor.DecodeIds(ids)
    assert len(texts) == len(ids)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["▁H", "ello", "?"], "Hello?"),
        (["▁cost", "▁$", "5"], "cost $5"),
        (["▁", "▁x"], "x"),
        (["▁", "<0xD0>", "<0x96>"], "Ж"),
        (["<0xD0>"], "\ufffd"),
        (["▁x", "<0xE2>", "<0x82>", "▁x"], "x\ufffd\ufffd x"),
        (["<ctl>", "▁x", "<ctl>", "▁x"], "x x"),
        (["▁x", "<unk>", "▁x"], "x ⁇  x"),
        ([], ""),
    ],
)
def test_known_traps(pieces: list[str], text: str) -> None:
    tokenizer, processor = pair("default")
    ids = ids_of(tokenizer, pieces)
    assert tokenizer.decode(ids) == text == processor.DecodeIds(ids)
    spelled = Tokenizer.from_pieces(tokenizer.pieces, "spelled")
    assert spelled.decode(ids) == (text if "<ctl>" not in pieces else "<ctl> x<ctl> x")


def test_texts_are_what_each_token_adds() -> None:
    tokenizer, _ = pair("default")
    pieces = ["▁x", "ello", "▁$", "▁", "<0xD0>", "<0x96>", "<ctl>"]
    assert tokenizer.texts(ids_of(tokenizer, pieces)) == ["x", "ello", " $", " ", "Ж", "", ""]
    silent = [piece for i, piece in enumerate(tokenizer.pieces) if tokenizer.adds_nothing(i)]
    assert silent == ["<s>", "</s>", "<ctl>"]


def test_a_tokenizer_is_plain_data() -> None:
    tokenizer, _ = pair("default")
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer
    assert tokenizer.model_bytes is not None
    assert Tokenizer.from_sentencepiece(tokenizer.model_bytes, tokenizer.name) == tokenizer


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "damaged"),
        (b"<html>not found</html>", "damaged"),
        (b"\0" * (MAX_MODEL_BYTES + 1), "larger than any real one"),
    ],
)
def test_a_wrong_model_file_is_a_clear_error(content: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"my.model: .*{reason}"):
        Tokenizer.from_sentencepiece(content, "my.model")


def test_a_cut_model_file_is_a_clear_error() -> None:
    whole = model("default")
    with pytest.raises(CheckpointError, match="damaged"):
        Tokenizer.from_sentencepiece(whole[: len(whole) // 2], "my.model")


@pytest.mark.parametrize("stranger", [330, -1])
def test_an_id_without_a_piece_is_a_clear_error(stranger: int) -> None:
    tokenizer = Tokenizer.from_pieces(["▁a", "b"], "my.nemo")
    with pytest.raises(CheckpointError, match=f"label {stranger}, .* only 2 pieces"):
        tokenizer.decode([0, stranger])


# The real checkpoints


@pytest.mark.parametrize(
    "name",
    [
        param("nemo-hybrid", "golden/nemo-hybrid.json", "models/nemo/hybrid.nemo"),
        *(
            param(f"nemo-{k}", f"golden/nemo-{k}.json", f"models/nemo/{k}.nemo")
            for k in ("tdt", "rnnt", "ctc")
        ),
    ],
)
def test_nemo_goldens(name: str) -> None:
    tokenizer = Tokenizer.from_sentencepiece(archived_model(f"models/{golden(name)['path']}"), name)
    for utterance in golden(name)["utterances"]:
        assert tokenizer.decode(utterance["ids"]) == utterance["text"]
        if "ctc" in utterance:
            assert tokenizer.decode(utterance["ctc"]["ids"]) == utterance["ctc"]["text"]


@pytest.mark.parametrize(
    "name",
    [
        param(n, f"golden/gigaam-{n}.json", f"models/gigaam/{n}_tokenizer.model")
        for n in ("v3_e2e_rnnt", "v3_e2e_ctc")
    ],
)
def test_gigaam_sentencepiece_goldens(name: str) -> None:
    content = data(f"models/gigaam/{name}_tokenizer.model").read_bytes()
    tokenizer = Tokenizer.from_sentencepiece(content, name)
    for utterance in golden(f"gigaam-{name}")["utterances"]:
        assert tokenizer.decode(utterance["ids"]) == utterance["text"]


RUSSIAN = [" ", *(chr(code) for code in range(ord("а"), ord("я") + 1))]
"""GigaAM's 33 characters, as its configs list them: no ё."""


@pytest.mark.parametrize(
    "name", [param(n, f"golden/gigaam-{n}.json") for n in ("v1_ctc", "v2_ctc", "v2_rnnt")]
)
def test_gigaam_character_goldens(name: str) -> None:
    tokenizer = Tokenizer.from_characters(RUSSIAN, name)
    for utterance in golden(f"gigaam-{name}")["utterances"]:
        assert tokenizer.decode(utterance["ids"]) == utterance["text"]


@pytest.mark.shared
def test_nemo_character_goldens() -> None:
    with tarfile.open(data("models/nemo/rnnt_char.nemo")) as archive:
        content = archive.extractfile("./model_config.yaml")
        assert content is not None
        labels = yaml.safe_load(content)["labels"]
    tokenizer = Tokenizer.from_characters(labels, "rnnt_char")
    for utterance in golden("nemo-rnnt_char")["utterances"]:
        assert tokenizer.decode(utterance["ids"]) == utterance["text"]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("listing", "checkpoint"),
    [
        ("nemo-hybrid-onnx-asr/vocab.txt", "hybrid"),
        ("nemo-hybrid-sherpa-onnx/tokens.txt", "hybrid"),
        ("nemo-rnnt-onnx-asr/vocab.txt", "rnnt"),
        ("nemo-ctc-onnx-asr/vocab.txt", "ctc"),
    ],
)
def test_exported_listings_give_the_checkpoints_texts(listing: str, checkpoint: str) -> None:
    text = data(f"models/onnx/{listing}").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_vocab(text, listing)
    assert (tokenizer.size, tokenizer.pieces[-1], tokenizer.adds_nothing(36)) == (37, "<blk>", True)
    for utterance in golden(f"nemo-{checkpoint}")["utterances"]:
        assert tokenizer.decode(utterance["ids"]) == utterance["text"]


# Listings


def test_a_listing_may_come_in_any_order_and_line_ending() -> None:
    expected = Tokenizer.from_pieces(["<unk>", "▁a", "b", "5", "<blk>"], "v")
    assert Tokenizer.from_vocab("\ufeff<blk> 4\r\n5 3\r\nb 2\r\n▁a 1\r\n<unk> 0\r\n", "v") == expected
    assert Tokenizer.from_vocab("<unk>\t0\n▁a\t1\nb\t2\n5\t3\n<blk>\t4", "v") == expected
    assert Tokenizer.from_vocab("<unk>\n▁a\nb\n5\n<blk>\n", "v") == expected


@pytest.mark.parametrize("space", ["▁ 0", "  0", " 0"])
def test_a_listed_space_may_be_written_in_three_ways(space: str) -> None:
    tokenizer = Tokenizer.from_vocab(f"{space}\nа 1\nб 2\n<blk> 3\n", "v2_vocab.txt")
    assert tokenizer.decode([0, 1, 2, 0, 2, 1]) == "аб ба"


@pytest.mark.parametrize(
    "text", ["▁a 0\nb 1\nc 3\n", "▁a 0\nb 1\nb 1\n", "▁a 0\nb 1\ncut", "▁a 1\nb 2\n"], ids=repr
)
def test_a_listing_with_gaps_is_a_clear_error(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.txt: the vocabulary is damaged"):
        Tokenizer.from_vocab(text, "vocab.txt")


def test_an_empty_vocabulary_is_a_clear_error() -> None:
    with pytest.raises(CheckpointError, match=r"vocab\.txt: the vocabulary is empty"):
        Tokenizer.from_vocab("\n", "vocab.txt")
    with pytest.raises(CheckpointError, match="labels: the vocabulary is empty"):
        Tokenizer.from_characters([], "labels")
