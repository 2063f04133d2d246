"""What a tokenizer is: everything that decides which ids a text becomes, so that two of them can be compared."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

# the stages of a tokenizer of the `tokenizers` library; its decoder, padding and truncation leave the ids of text alone
STAGES = {"normalizer": "normaliser", "pre_tokenizer": "pre-tokeniser", "post_processor": "post-processor"}

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
# how byte-level tokenizers write the bytes of a text: printable ones as themselves, the others as letters from 256 on
BYTE_OF = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}

MARKS = ("bos", "eos", "unk", "cls", "sep", "mask")  # padding is masked, so it may be any id


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the SHA-256 of what decides which ids a text becomes, as 16 hexadecimal digits.

    Args:
        tokenizer: a tokenizer of transformers, fast or slow.
    """
    return _digest(tokenizer_parts(tokenizer))


def tokenizer_parts(tokenizer: Any) -> dict[str, str]:
    """Return the SHA-256 of each part of a tokenizer by its name, such as "vocabulary", "merges" or "normaliser"."""
    shared = {
        "vocabulary": tokenizer.get_vocab(),
        "special tokens": {mark: getattr(tokenizer, f"{mark}_token_id", None) for mark in MARKS},
        "treatment of special tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    own = _of_python(tokenizer) if backend is None else _of_backend(json.loads(backend.to_str()))
    return {name: _digest(part) for name, part in {**shared, **own}.items()}


def _of_backend(whole: dict[str, Any]) -> dict[str, Any]:
    model = {name: value for name, value in whole["model"].items() if name not in ("vocab", "merges")}
    stages = {word: whole.get(stage) for stage, word in STAGES.items()}
    scores = whole["model"].get("vocab") if isinstance(whole["model"].get("vocab"), list) else None  # of Unigram
    parts = {"merges": whole["model"].get("merges"), "scores": scores, "model": model}
    return {**parts, **stages, "added tokens": whole.get("added_tokens")}


def _of_python(tokenizer: Any) -> dict[str, Any]:
    """Return what can be known of a tokenizer whose rules are Python code: its class, its settings and its files."""
    names = getattr(tokenizer, "vocab_files_names", {})
    paths = [Path(path) for name in sorted(names) if isinstance(path := getattr(tokenizer, name, None), str)]
    files = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()]
    settings = {name: repr(value) for name, value in getattr(tokenizer, "init_kwargs", {}).items() if name not in names}
    for name in ("name_or_path", "padding_side", "truncation_side", "model_max_length", "pad_token"):
        settings.pop(name, None)
    return {"class": type(tokenizer).__name__, "settings": settings, "files": files}


def _digest(part: Any) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
