"""Which source state a target token gets: one that has seen nothing of what the target token does not hold."""

import random
import unicodedata

import numpy as np
import pytest

import cutters
from thinkalike.data.alignment import Cut, align
from thinkalike.data.paired import cuts_of, untrimmed
from thinkalike.digests import BYTE_OF

KINDS = list(cutters.MAKERS)


def cut(kind: str, text: str) -> tuple[Cut, list[bytes]]:
    """The tokens of a text, and for each of them what it and those before it stand for."""
    tokenizer = untrimmed(cutters.cutter(kind))
    (found,) = cuts_of(tokenizer, [text])
    tokens = tokenizer.encode(text, add_special_tokens=False).tokens
    return found, [cutters.stands_for(kind, tokens[: number + 1], text) for number in range(len(tokens))]


def aligned(target: str, source: str, text: str):
    """The alignment of a text without its end, and what tokens of both stand for."""
    (mine, held), (theirs, seen) = cut(target, text), cut(source, text)
    found = align(text, mine, theirs)
    assert (found.last[-1], found.exact[-1]) == (len(seen), True), "the end of a document is that of the other"
    return found, held, seen


def check_causal(target: str, source: str, text: str) -> None:
    found, held, seen = aligned(target, source, text)
    for number, last in enumerate(found.last[:-1]):
        if last >= 0:
            assert cutters.precedes(seen[last], held[number]), (text, number, held[number], seen[last])
        if {target, source} <= set(cutters.LOSSLESS):
            following = seen[last + 1] if last + 1 < len(seen) else held[number] + b"!"
            assert last < 0 or held[number].startswith(seen[last])
            assert not held[number].startswith(following), (text, number, "a later state could be used")
            assert found.exact[number] == (last >= 0 and seen[last] == held[number])


WRITTEN = [
    "the cat sat on the mats",
    "  two   spaces,\n\n\ta tab\t \r\n and    runs   \n   of them  ",
    "naïve café, cafe\u0301s and x\u0323 y\u0308\u0323z",  # composed, to be composed, and not to be
    "a\u0308\u0323b and a\u0323\u0308b",  # accents in two orders
    "ﬁne oﬃces ½ … ｶﾞ",  # one character becomes several, or two become one
    "\u1112\u1161\u11ab 한국어",  # letters of one syllable
    "漢字とかな, 中文字",
    "👩\u200d👩\u200d👧 👍🏽🇩🇪!",
    " 漢 é the\u00a0end\u3000of",
    "x",
    "\n",
]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_no_state_has_seen_what_its_token_does_not_hold(target, source):
    for text in WRITTEN:
        check_causal(target, source, text)


@pytest.mark.slow
def test_nor_in_random_text():
    chance = random.Random(0)
    letters = [each for each in cutters.TEXT if unicodedata.normalize("NFKC", each) == each]  # parts can be compared
    for _ in range(300):
        text = "".join(chance.choices([*letters, *"     aaatttheee"], k=chance.randint(1, 30)))
        for _ in range(3):
            check_causal(chance.choice(KINDS), chance.choice(KINDS), text)


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        ("bytes", "composed bytes", "cafe\u0301s"),  # the offsets of é leave its accent out
        ("bytes after a space", "bytes", "Привет"),  # the space in front has those of П
        ("bytes", "bytes", "🇩🇪"),  # the first byte has those of the whole
    ],
)
def test_a_later_character_would_be_found(target, source, text):
    """The control: with the offsets as they are given, states see what comes later."""
    (mine, held), (theirs, seen) = cut(target, text), cut(source, text)
    ends = np.maximum.accumulate(theirs.offsets[:, 1])
    last = np.searchsorted(ends, np.maximum.accumulate(mine.offsets[:, 1]), "right") - 1
    assert not all(cutters.precedes(seen[place], held[number]) for number, place in enumerate(last))


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_that_cut_alike_are_aligned_token_by_token(kind):
    texts = ["the cat sat on the mats", " a  b\n\n\tc ", "naïve café", "漢字とかな", "Привет, 👍🏽!"]
    for text in [*texts, *(["👩\u200d👩\u200d👧"] if kind != "words" else [])]:  # which drops what joins them
        found, held, _ = aligned(kind, kind, text)
        assert found.exact.all(), (text, held)
        assert found.last.tolist() == list(range(len(held) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_that_packing_gives(kind):
    tokenizer = cutters.cutter(kind)
    texts = [*WRITTEN, cutters.TEXT, f"a{cutters.END} b"]
    usual = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert [list(each.ids) for each in cuts_of(untrimmed(tokenizer), texts)] == usual


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_add_up_to_those_of_the_text(kind):
    for text in ["the cat", "漢字とかな, x", "naïve  café ok"]:
        found, *_ = aligned(kind, "bytes", text)
        assert found.target_bytes.sum() == found.source_bytes.sum() == len(text.encode())
        assert (found.target_bytes >= 0).all()


def test_what_is_known_by_hand():
    text = "the cats"
    parts = {"t": 1, "he": 3, " cat": 7, "s": 8}, {"the": 3, " ca": 6, "ts": 8}
    both = []
    for part in parts:
        ends = list(part.values())
        offsets = np.array([*zip([0, *ends], ends, strict=False)])
        both.append(Cut(range(len(part)), offsets, list(part).__getitem__, composes=False))
    there, back = align(text, *both), align(text, *reversed(both))
    assert there.last.tolist() == [-1, 0, 1, 2, 3]
    assert there.exact.tolist() == [False, True, False, True, True]
    assert there.target_bytes.tolist() == [1, 2, 4, 1, 0]
    assert back.last.tolist() == [1, 1, 3, 4]
    assert back.exact.tolist() == [True, False, True, True]


def test_bytes_are_written_as_the_library_writes_them():
    assert cutters._letter_of_byte().items() <= BYTE_OF.items()
    assert sorted(BYTE_OF.values()) == list(range(256))
