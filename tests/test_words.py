"""Tokens to words to segments: times, confidences, marks, ends of sentences.

Expected values are worked out by hand from the frames, come from the goldens of GigaAM (which has
word times), or are invariants that hold for any hypothesis.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import data, golden, num_cases, param, utterances

from transduce.tokenizer import Tokenizer
from transduce.types import EncoderSpec, FeatureSpec, HeadSpec, Hypothesis, ModelSpec, Segment, Word
from transduce.words import Assembled, SegmentRules, assemble

FRAME = 0.08
"""Seconds of a frame of the made-up model: hop 160, subsampling 8, 16 kHz."""


def spec(subsampling_factor: int = 8) -> ModelSpec:
    features = FeatureSpec(
        sample_rate=16000,
        num_mels=80,
        window_samples=400,
        hop_samples=160,
        fft_size=512,
        padding="constant",
        num_frames_rule="floor",
        preemphasis=0.97,
        log="add",
        normalize="per_feature",
        mel_scale="slaney",
        periodic_window=False,
    )
    encoder = EncoderSpec(
        num_layers=1,
        width=8,
        num_heads=1,
        feed_forward_width=8,
        conv_kernel=3,
        conv_norm="batch_norm",
        subsampling="dw_striding",
        subsampling_factor=subsampling_factor,
        subsampling_channels=8,
        subsampling_kernel=3,
        attention="rel_pos",
        rotary_base=10000.0,
        bias=True,
        xscaling=False,
    )
    head = HeadSpec(kind="tdt", num_classes=9, blank=8, durations=(0, 1, 2))
    return ModelSpec(
        name="made up",
        family="nemo",
        features=features,
        encoder=encoder,
        heads=(head,),
        head=head,
        max_segment_seconds=30.0,
    )


def hypothesis_of(
    ids: Sequence[int],
    frames: Sequence[int] | None = None,
    durations: Sequence[int] | None = None,
    log_probs: Sequence[float] | None = None,
) -> Hypothesis:
    return Hypothesis(
        ids=np.asarray(ids, np.int64),
        frames=np.asarray(range(len(ids)) if frames is None else frames, np.int64),
        durations=np.asarray([0] * len(ids) if durations is None else durations, np.int64),
        log_probs=np.asarray([0.0] * len(ids) if log_probs is None else log_probs, np.float32),
    )


def heard(pieces: Sequence[str], frames: Sequence[int] | None = None, **options: Any) -> Assembled:
    """What the made-up model says when it emits these pieces, one a frame unless `frames` says more."""
    vocabulary = list(dict.fromkeys([*pieces, "<blk>", "▁spaced"]))
    own = {name: options.pop(name) for name in ("durations", "log_probs") if name in options}
    return assemble(
        hypothesis_of([vocabulary.index(piece) for piece in pieces], frames, **own),
        spec=spec(),
        tokenizer=Tokenizer.from_pieces(vocabulary, "made up"),
        **{"duration_seconds": 1000.0} | options,
    )


def pieces_of(text: str) -> list[str]:
    """One piece for each character, spaces as a lone "▁" before the character they precede."""
    return list("▁" + text.replace(" ", "▁"))


def words_of(result: Assembled) -> list[str]:
    return [word.word for word in result.words]


def segments_of(result: Assembled) -> list[str]:
    return [segment.text for segment in result.segments]


def frames_of(result: Assembled) -> list[tuple[float, float]]:
    """Start and end of each word in frames, where they are whole."""
    return [(round(w.start / FRAME, 6), round(w.end / FRAME, 6)) for w in result.words]


# Times


def test_seconds_are_frames_times_hop_times_subsampling_over_rate() -> None:
    result = heard(["▁a", "▁b"], [36, 125])
    assert [token.start for token in result.tokens] == [2.88, 10.0]
    assert [token.end for token in result.tokens] == [2.96, 10.08]
    assert [(token.frame, token.duration_frames) for token in result.tokens] == [(36, 0), (125, 0)]


def test_a_token_ends_after_its_duration_or_after_its_frame() -> None:
    result = heard(["▁a", "b", "c"], [0, 4, 4], durations=[4, 0, 3])
    assert [round(token.end / FRAME, 6) for token in result.tokens] == [4, 5, 7]
    assert frames_of(result) == [(0, 7)]


def test_a_word_is_cut_to_the_next_words_start_and_to_the_duration() -> None:
    result = heard(["▁a", "▁b"], [0, 2], durations=[4, 4], duration_seconds=0.3)
    assert [(w.start, w.end) for w in result.words] == [(0.0, 0.16), (0.16, 0.3)]
    assert [(t.start, t.end) for t in result.tokens] == [(0.0, 0.3), (0.16, 0.3)]


def test_a_pause_stays_between_the_words() -> None:
    result = heard(["▁a", "▁b"], [0, 20], durations=[2, 1])
    assert frames_of(result) == [(0, 2), (20, 21)]


@pytest.mark.parametrize("mark", [".", "▁.", "»", "?!"])
def test_punctuation_does_not_stretch_a_word(mark: str) -> None:
    result = heard(["▁a", "b", mark], [3, 4, 30])
    assert frames_of(result) == [(3, 5)]
    assert (result.segments[0].start, result.segments[0].end) == (result.words[0].start, result.words[0].end)


def test_opening_marks_do_not_stretch_a_word_and_punctuation_alone_is_measured() -> None:
    assert frames_of(heard(["▁", "¿", "a"], [0, 1, 9])) == [(9, 10)]
    assert frames_of(heard(["▁", ".", ".", "."], [2, 3, 4, 9])) == [(2, 10)]


def test_marks_that_are_spoken_count() -> None:
    assert frames_of(heard(["▁100", "%"], [0, 5])) == [(0, 6)]


def test_the_offset_moves_all_times() -> None:
    result = heard(["▁a", "b", "▁c"], [0, 1, 5], offset_seconds=7.5, duration_seconds=0.44)
    assert [(w.start, w.end) for w in result.words] == [(7.5, 7.66), (7.9, 7.94)]
    assert result.segments[0].start == 7.5
    assert result.tokens[-1].frame == 5


def test_a_lone_space_piece_opens_its_word() -> None:
    assert frames_of(heard(["▁a", "▁", "b"], [0, 4, 7])) == [(0, 1), (4, 8)]


def test_a_space_of_a_character_set_only_separates() -> None:
    tokenizer = Tokenizer.from_characters([" ", "a", "b"], "characters")
    result = assemble(
        hypothesis_of([0, 1, 0, 0, 2, 0], [0, 3, 5, 6, 9, 12]),
        spec=spec(),
        tokenizer=tokenizer,
        duration_seconds=9.0,
    )
    assert (result.text, frames_of(result)) == ("a b", [(3, 4), (9, 10)])


def test_the_bytes_of_a_character_belong_to_its_word_and_control_symbols_to_none() -> None:
    result = heard(["▁a", "<0xD0>", "<0x96>", "<s>", "▁b"], [0, 2, 4, 8, 9])
    assert words_of(result) == ["aЖ", "b"]
    assert frames_of(result) == [(0, 5), (9, 10)]
    assert [token.text for token in result.tokens] == ["a", "Ж", "", "", " b"]


def test_a_piece_with_a_space_inside_is_in_two_words() -> None:
    result = heard(["▁of▁the", "m"], [3, 4])
    assert words_of(result) == ["of", "them"]
    assert frames_of(result) == [(3, 3), (3, 5)]


def test_nothing_decoded_is_empty() -> None:
    assert heard([]) == Assembled(text="", tokens=(), words=(), segments=())


def test_only_spaces_decoded_is_empty_text() -> None:
    result = heard(["▁", "▁"])
    assert (result.text, result.words, result.segments, len(result.tokens)) == ("", (), (), 2)


# Confidence


def test_confidence_is_the_exponent_of_the_mean_log_probability() -> None:
    probabilities = [0.9, 0.5, 0.8]
    result = heard(["▁a", "b", "▁c"], log_probs=[math.log(p) for p in probabilities])
    assert [t.confidence for t in result.tokens] == pytest.approx(probabilities, rel=1e-6)
    assert [w.confidence for w in result.words] == pytest.approx([math.sqrt(0.45), 0.8], rel=1e-6)
    assert result.segments[0].confidence == pytest.approx(0.36 ** (1 / 3), rel=1e-6)


def test_rounding_does_not_lift_a_confidence_over_one() -> None:
    result = heard(["▁a"], log_probs=[1e-7])
    assert result.tokens[0].confidence == result.segments[0].confidence == 1.0


def test_a_probability_of_zero_stays_a_number() -> None:
    assert heard(["▁a"], log_probs=[-math.inf]).words[0].confidence == 0.0


# Words and marks


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("¡Hola!", ["¡Hola!"]),
        ("¡ Hola !", ["¡ Hola !"]),
        ("«Привет», — сказал он", ["«Привет», —", "сказал", "он"]),
        ("Кто там? — Я.", ["Кто", "там?", "— Я."]),
        ("— Да.", ["— Да."]),
        ("...", ["..."]),
        ("... и вот", ["... и", "вот"]),
        ("?", ["?"]),
        ("100 %", ["100", "%"]),
        ("-5", ["-5"]),
        ("'em", ["'em"]),
        ("cost $5", ["cost", "$5"]),
        ("a , b ; c", ["a ,", "b ;", "c"]),
        ("say ( this ) now", ["say", "( this )", "now"]),
        ("so „ Hallo “", ["so", "„ Hallo “"]),
        ("end (", ["end ("]),
        ("« ( a", ["« ( a"]),
        ("e.g. 2023.01 magazyn.blogspot.com", ["e.g.", "2023.01", "magazyn.blogspot.com"]),
        ("a  \u00a0 b", ["a", "b"]),
        ("🙂 да", ["🙂", "да"]),
        ("سلام ؟", ["سلام ؟"]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_marks_go_with_words_and_the_words_are_the_text(text: str, words: list[str], size: int) -> None:
    spelled = "▁" + text.replace(" ", "▁")
    result = heard([spelled[i : i + size] for i in range(0, len(spelled), size)])
    assert words_of(result) == words
    assert result.text == " ".join(words) == " ".join(text.split())


# Breaks


def test_no_word_reaches_over_a_break() -> None:
    tokenizer = Tokenizer.from_characters([" ", "a", "b"], "characters")
    arguments: dict[str, Any] = {"spec": spec(), "tokenizer": tokenizer, "duration_seconds": 99.0}
    ids, frames = [1, 2, 2, 1], [0, 1, 50, 51]
    assert assemble(hypothesis_of(ids, frames), **arguments).text == "abba"
    result = assemble(hypothesis_of(ids, frames), breaks_frames=[50], **arguments)
    assert result.text == "ab ba"
    assert [token.text for token in result.tokens] == ["a", "b", " b", "a"]
    assert frames_of(result) == [(0, 2), (50, 52)]


@pytest.mark.parametrize("breaks", [[], [0], [2], [3, 4, 5], [9]])
def test_a_break_adds_no_second_space(breaks: list[int]) -> None:
    assert heard(["▁a", "▁b", "▁", "c"], [0, 2, 4, 5], breaks_frames=breaks).text == "a b c"


# Segments


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("One two. Three four. Five", ["One two.", "Three four.", "Five"]),
        ("hello. how are you", ["hello.", "how are you"]),
        ("Да? Нет! Вот… так", ["Да?", "Нет!", "Вот…", "так"]),
        ("use it, e.g. here. Done", ["use it, e.g. here.", "Done"]),
        ("т.е. так и т.д. Потом", ["т.е. так и т.д.", "Потом"]),
        ("in 2023.01 at magazyn.blogspot.com we", ["in 2023.01 at magazyn.blogspot.com we"]),
        ("He said “go.” She went.", ["He said “go.”", "She went."]),
        ('(No.) "Yes!" So', ["(No.)", '"Yes!"', "So"]),
        ("Кто там? — Я. Да", ["Кто там?", "— Я.", "Да"]),
        ("word . Next", ["word .", "Next"]),
        ("no stop", ["no stop"]),
    ],
)
def test_a_stop_at_the_end_of_a_word_ends_a_segment(text: str, segments: list[str]) -> None:
    result = heard(pieces_of(text))
    assert segments_of(result) == segments
    assert [segment.id for segment in result.segments] == list(range(len(segments)))


@pytest.mark.parametrize(("gap_frames", "segments"), [(10, ["a b"]), (11, ["a", "b"])])
def test_a_pause_over_the_limit_ends_a_segment(gap_frames: int, segments: list[str]) -> None:
    for first in range(40):  # 10 frames are 0.8 s, wherever they begin
        assert segments_of(heard(["▁a", "▁b"], [first, first + 1 + gap_frames])) == segments


def test_a_segment_ends_at_thirty_seconds() -> None:
    frames = list(range(0, 1000, 5))  # a word each 0.4 s, no pause, no stop
    segments = heard(["▁a"] * len(frames), frames).segments
    assert all(segment.end - segment.start <= 30 for segment in segments)
    assert [len(segment.words) for segment in segments] == [75, 75, 50]


def test_the_rules_are_data() -> None:
    rules = SegmentRules(stops=";", pause_seconds=5.0, max_seconds=1.0)
    result = heard(["▁a.", "▁b;", "▁c", "▁d"], [0, 1, 20, 40], rules=rules)
    assert segments_of(result) == ["a. b;", "c", "d"]


# Any hypothesis

PIECES = [
    *("▁a", "▁B", "c", "▁", "▁.", ".", ",", "!", "…", "▁—", "»", "▁«", "¿", "%", "<unk>", "<blk>", "5"),
    *("a▁b", "▁▁", "<0xD0>", "<0x96>", "<0x20>", "<0xFF>", "\u00a0", "🙂", "▁e.g."),
]


@settings(max_examples=num_cases(300, 5000), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(range(len(PIECES))),
            st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 500)),
            st.integers(0, 8),
            st.floats(-50, 0, width=32),
        ),
        max_size=60,
    ),
    kind=st.sampled_from(["pieces", "characters"]),
    duration_seconds=st.floats(0, 2000),
    offset_seconds=st.one_of(st.just(0.0), st.floats(0, 1e6)),
    breaks_frames=st.lists(st.integers(0, 5000), max_size=5).map(sorted),
)
@example([(0, 0, 0, 0.0)] * 50, "pieces", 0.01, 0.0, [])
def test_invariants(
    steps: list[tuple[int, int, int, float]],
    kind: Literal["pieces", "characters"],
    duration_seconds: float,
    offset_seconds: float,
    breaks_frames: list[int],
) -> None:
    make = {"pieces": Tokenizer.from_pieces, "characters": Tokenizer.from_characters}[kind]
    tokenizer = make(PIECES, "made up")
    ids = [step[0] for step in steps]
    result = assemble(
        hypothesis_of(
            ids,
            list(accumulate(step[1] for step in steps)),
            [step[2] for step in steps],
            [step[3] for step in steps],
        ),
        spec=spec(),
        tokenizer=tokenizer,
        duration_seconds=duration_seconds,
        offset_seconds=offset_seconds,
        breaks_frames=breaks_frames,
    )
    end_seconds = offset_seconds + duration_seconds
    for rows in (list[Word | Segment](result.words), list[Word | Segment](result.segments)):
        for row in rows:
            assert offset_seconds <= row.start <= row.end <= end_seconds
            assert type(row.start) is type(row.end) is type(row.confidence) is float
            assert 0 <= row.confidence <= 1
        assert all(before.end <= after.start for before, after in pairwise(rows))

    assert result.text == " ".join(words_of(result)) == " ".join(segments_of(result))
    assert result.text == " ".join("".join(token.text for token in result.tokens).split())
    assert result.text.replace(" ", "") == "".join(tokenizer.decode(ids).split())
    if not breaks_frames:
        assert result.text == " ".join(tokenizer.decode(ids).split())

    assert [word for segment in result.segments for word in segment.words] == list(result.words)
    for segment in result.segments:
        assert segment.text == " ".join(word.word for word in segment.words)
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
    for token in result.tokens:
        assert offset_seconds <= token.start <= token.end <= end_seconds
        assert type(token.id) is type(token.frame) is type(token.duration_frames) is int


# What upstream says


def upstream(name: str) -> tuple[Tokenizer, list[tuple[dict[str, Any], Assembled]]]:
    """GigaAM's answers beside ours; its word times come from its ids and frames as they are."""
    if name.startswith("v3"):
        content = data(f"models/gigaam/{name}_tokenizer.model").read_bytes()
        tokenizer = Tokenizer.from_sentencepiece(content, name)
    else:
        tokenizer = Tokenizer.from_characters([" ", *map(chr, range(ord("а"), ord("я") + 1))], name)
    seconds = {utterance["file"]: utterance["seconds"] for utterance in utterances()}
    answers = golden(f"gigaam-{name}")["utterances"]
    ours = [
        assemble(
            hypothesis_of(answer["ids"], answer["frames"]),
            spec=spec(subsampling_factor=4),
            tokenizer=tokenizer,
            duration_seconds=seconds[answer["file"]],
        )
        for answer in answers
    ]
    return tokenizer, list(zip(answers, ours, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        param("v3_e2e_rnnt", "golden/gigaam-v3_e2e_rnnt.json", "models/gigaam/v3_e2e_rnnt_tokenizer.model"),
        param("v3_e2e_ctc", "golden/gigaam-v3_e2e_ctc.json", "models/gigaam/v3_e2e_ctc_tokenizer.model"),
        *(param(n, f"golden/gigaam-{n}.json") for n in ("v2_rnnt", "v2_ctc", "v1_ctc")),
    ],
)
def test_words_are_gigaams_within_a_frame(name: str) -> None:
    """Upstream's frame is the audio's length over its frames (0.0398 s); it counts final marks."""
    _, pairs = upstream(name)
    one_frame = 0.0405
    assert len(pairs) == 40
    for answer, ours in pairs:
        assert ours.text == " ".join(answer["text"].split())
        assert words_of(ours) == [word for word, _, _ in answer["words"]]
        for word, (text, start, end) in zip(ours.words, answer["words"], strict=True):
            assert abs(word.start - start) <= one_frame
            assert word.end <= end + one_frame
            if text[-1] not in ".,":
                assert abs(word.end - end) <= one_frame
