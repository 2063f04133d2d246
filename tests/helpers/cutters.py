"""Tiny tokenizers of all kinds, trained on a text of many scripts, and what their tokens stand for."""

import json
import re
import unicodedata
from functools import cache

from tokenizers import Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as cutting

TEXT = (
    "def run(x):\n    return  x + 1\t# the cat  sat on the mat\r\n\n\n   the cats ran, and the mats are there \n"
    "Déjà vu, naïve café; cafe\u0301 Ångström a\u0308b x\u0323 ﬁne oﬃce ½ ｶﾞ 漢字とかな 中文字 한국어 "
    "\u1112\u1161\u11ab Привет, мир! 👩\u200d👩\u200d👧 👍🏽 🇩🇪 e\u0301\u0301 the\u00a0end\u3000of it… "
)
LETTERS = sorted({*TEXT, *unicodedata.normalize("NFKC", TEXT), *map(chr, range(33, 127))})
END = "</s>"


def _fast(tokenizer):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def _trained(tokenizer, trainer):
    tokenizer.train_from_iterator([TEXT, TEXT[::-1], TEXT[40:]] * 2, trainer)
    return _fast(tokenizer)


def _bytes(size, normalizer=None, prefix=False, trim=True):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cutting.ByteLevel(add_prefix_space=prefix)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = cutting.ByteLevel.alphabet()
    size += len(alphabet)
    options = {"initial_alphabet": alphabet, "special_tokens": [END], "show_progress": False}
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=size, **options))


def _fallback(normalizer=None, cut=None):
    """Letters of the first part of the text, and bytes for all others."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if cut:
        tokenizer.pre_tokenizer = cut
    marks = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=marks, limit_alphabet=40, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines() * 2, trainer)
    whole = json.loads(tokenizer.to_str())  # bytes are no special tokens
    whole["added_tokens"] = [each for each in whole["added_tokens"] if not each["content"].startswith("<0x")]
    return _fast(Tokenizer.from_str(json.dumps(whole)))


def _unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), cutting.Metaspace()
    options = {"special_tokens": ["<unk>", END], "unk_token": "<unk>", "show_progress": False}
    return _trained(tokenizer, trainers.UnigramTrainer(vocab_size=150, initial_alphabet=LETTERS, **options))


def _wordpiece():
    pieces = ["[UNK]", END, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    pieces += ["the", "cat", "##ts", "##at", "mat", "##he", "an", "##nd", "Пр", "##ив", "##ет", "naï", "##oﬃ"]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = cutting.BertPreTokenizer()
    return _fast(tokenizer)


MAKERS = {
    "bytes": lambda: _bytes(60),
    "more bytes": lambda: _bytes(180, trim=False),
    "bytes after a space": lambda: _bytes(90, prefix=True),
    "composed bytes": lambda: _bytes(100, normalizers.NFC()),
    "pieces": lambda: _fallback(cut=cutting.Metaspace()),
    "pieces with spaces in front": lambda: _fallback(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "compatible pieces": lambda: _fallback(normalizers.NFKC(), cutting.Metaspace()),
    "unigram": _unigram,
    "words": _wordpiece,
}
LOSSLESS = ["bytes", "more bytes", "bytes after a space"]  # their tokens are the bytes of the text


@cache
def cutter(kind: str):
    """The tokenizer of a kind, as transformers has it."""
    return MAKERS[kind]()


@cache
def _letter_of_byte() -> dict[str, int]:
    """How the library itself writes each byte, found out by asking it."""
    found = {}
    for code in [*range(0x800), *range(0x800, 0x10000, 64), *range(0x10000, 0x110000, 4096)]:
        if not 0xD800 <= code < 0xE000:
            raw = chr(code).encode()
            pieces = cutting.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(code))
            found |= dict(zip("".join(piece for piece, _ in pieces), raw, strict=True))
    return found


def stands_for(kind: str, tokens: list[str], text: str) -> bytes:
    """The bytes that tokens stand for; ▁ is a space, and a space that was put in front is none."""
    if "bytes" in kind:
        raw = bytes(_letter_of_byte()[letter] for token in tokens for letter in token)
        return raw[1:] if kind == "bytes after a space" and not text.startswith(" ") else raw
    parts = (re.fullmatch(r"<0x(..)>", token) for token in tokens)
    plain = (token.removeprefix("##").replace("▁", " ").encode() for token in tokens)
    return b"".join(bytes([int(part[1], 16)]) if part else letters for part, letters in zip(parts, plain, strict=True))


def precedes(first: bytes, second: bytes) -> bool:
    """Whether the text of one is the beginning of the other's, whatever normalisers and spaces have made of either."""
    forms = (None, "NFC", "NFKC", "NFKD")
    return any(_written(second, form).startswith(_written(first, form)) for form in forms)


def _written(raw: bytes, form: str | None) -> bytes:
    """Bytes in a normal form without spaces and marks; a letter that is not whole stays as it is."""
    whole = raw.decode("utf-8", "ignore")
    rest = raw[len(whole.encode()) :]
    letters = unicodedata.normalize(form, whole) if form else whole
    return "".join(each for each in letters if unicodedata.category(each)[0] not in "ZC").encode() + rest
