"""The tokenizers of checkpoints, and comparisons of two."""

from __future__ import annotations

import logging
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from thinkalike.config import ModelConfig
from thinkalike.digests import BYTE_OF, tokenizer_parts
from thinkalike.errors import ModelError
from thinkalike.models.formats import is_gguf, located
from thinkalike.models.survey import TEXT

log = logging.getLogger(__name__)

END = "<|endoftext|>"
PROBES = ("Case", "É", "e\u0301", "Straße", "ñ", "Ω", "й", "ﬁ", "ａ", "漢字", "ガ", "한", "1½")  # for normalisers
CODE = "if x[0] >= 12345.6:\n\n\t\treturn  'don't'\r\n"
OTHERWISE = "or use task=stitch or words (measure=cka measure.level=word)"


def read_tokenizer(config: ModelConfig, place: str) -> Any:
    """Read the tokenizer of a checkpoint.

    Args:
        place: a folder, a GGUF file, or a repository of the hub.

    Raises:
        ModelError: the checkpoint has none; transformers would make up one without words.
    """
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    if is_gguf(place):
        return _from_gguf(config, place)
    revision = config.revision or "main"
    names = {"tokenizer.json"}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, revision=revision)
    except ValueError as error:
        if "backend tokenizer" not in str(error):
            raise
    else:
        names |= {*getattr(tokenizer, "vocab_files_names", {}).values()}
        if any(cached_file(place, name, revision=revision, _raise_exceptions_for_missing_entries=False)
               for name in sorted(names, reverse=True)):  # fmt: skip
            return tokenizer
    if config.revision and Path(place).is_dir():  # a run may keep its tokenizer beside its checkpoints
        return read_tokenizer(replace(config, revision=None), str(Path(place).parent))
    raise ModelError(f"{config.called}: {place} has no tokenizer (none of {', '.join(sorted(names))})")


def _from_gguf(config: ModelConfig, place: str) -> Any:
    """Return the tokenizer of a GGUF file, and warn if a tokenizer.json beside the file cuts texts otherwise."""
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as aside:  # beside a tokenizer.json, transformers reads that instead
        alone, source = Path(aside, Path(place).name), Path(place).with_name("tokenizer.json")
        alone.symlink_to(Path(place).absolute())
        own = PreTrainedTokenizerFast.from_pretrained(**located(str(alone)))
    other = PreTrainedTokenizerFast(tokenizer_file=str(source)) if source.is_file() else own
    for text in (*PROBES, TEXT, CODE):
        mine, theirs = (each(text, add_special_tokens=False)["input_ids"] for each in (own, other))
        if mine != theirs:
            log.warning("%s cuts %r into %s, and %s into %s", config.called, text, mine, source, theirs)
            break
    return own


def puts_bos(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts BOS before a text by itself, as Llama's and Gemma's do, and GPT-2's does not."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"][:1]) == [bos]


def check_tokenizer(tokenizer: Any, rows: int, name: str) -> None:
    """Check that every id of a tokenizer has a row in the embedding.

    Raises:
        ModelError: the tokenizer has larger ids.
    """
    largest = max(len(tokenizer) - 1, *tokenizer.get_vocab().values())
    if largest >= rows:
        raise ModelError(f"{name}: its tokenizer has ids up to {largest}, but its embedding only {rows} rows")


def same_vocabulary(source: Any, target: Any) -> None:
    """Check that two models, or anything with `name` and `tokenizer`, cut every text into the same tokens.

    Raises:
        ModelError: the tokenizers differ; the message names the parts.
    """
    first, second = tokenizer_parts(source.tokenizer), tokenizer_parts(target.tokenizer)
    if others := sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name)):
        raise ModelError(
            f"{source.name} and {target.name} have different tokenizers ({', '.join(others)}), so they cut a text into "
            f"other tokens; choose models of one tokenizer, {OTHERWISE}"
        )


def check_cuts(source: Any, target: Any, texts: Sequence[str]) -> None:
    """Check that two models, or anything with `name` and `tokenizer`, cut these texts into the same tokens.

    Raises:
        ModelError: one is cut differently; the message names the place.
    """
    if tokenizer_parts(source.tokenizer) == tokenizer_parts(target.tokenizer):
        return
    for text in texts:
        mine, theirs = (model.tokenizer(text, add_special_tokens=False)["input_ids"] for model in (source, target))
        if mine != theirs:
            place = next(place for place, (own, other) in enumerate(zip_longest(mine, theirs)) if own != other)
            pieces = [repr(model.tokenizer.decode(ids[place : place + 3]))
                      for model, ids in ((source, mine), (target, theirs))]  # fmt: skip
            raise ModelError(
                f"{source.name} and {target.name} cut a text into different tokens: where one has {pieces[0]}, the "
                f"other has {pieces[1]}; choose models that cut texts alike, {OTHERWISE}"
            )


def check_alignable(source: Any, target: Any) -> None:
    """Check that two models, or anything with `name` and `tokenizer`, read the same text, however they cut it.

    Raises:
        ModelError: a tokenizer knows no character offsets, or one changes letters that the other keeps.
    """
    for model in (source, target):
        if not getattr(model.tokenizer, "is_fast", False):
            raise ModelError(f"the tokenizer of {model.name} is not a fast one (tokenizer.json): it knows no offsets")
    for word in PROBES:
        mine, theirs = (_as_read(model.tokenizer, word) for model in (source, target))
        if mine != theirs:
            raise ModelError(
                f"{source.name} reads {word!r} as {mine!r} and {target.name} as {theirs!r}, so their texts cannot be "
                "aligned; choose models that treat case and accents alike"
            )


def _as_read(tokenizer: Any, word: str) -> str:
    """Return a word as a tokenizer's normaliser writes it, without added spaces."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    read = word if normalizer is None else _letters(normalizer.normalize_str(word))
    return "".join(unicodedata.normalize("NFKC", read).replace("▁", " ").split())


def _letters(text: str) -> str:
    """Return the letters of a text in which bytes may be written as a byte-level tokenizer writes them."""
    try:
        return bytes(BYTE_OF[character] for character in text).decode()
    except (KeyError, UnicodeDecodeError):
        return text
