"""The minis' own byte-level BPE, and the comparison of two tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thinkalike.errors import ModelError

END = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE whose one special token is BOS, EOS and padding; the same texts give the same tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=END)


def same_vocabulary(source: Any, target: Any) -> None:
    """Refuse two models (anything with `name` and `tokenizer`) whose tokens mean different strings.

    Raises:
        ModelError: the vocabularies differ.
    """
    mine, theirs = source.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if mine != theirs:
        differing = len(set(mine.items()) ^ set(theirs.items()))
        raise ModelError(
            f"{source.name} and {target.name} have different tokenizers ({len(mine)} and {len(theirs)} entries, "
            f"{differing} of them differ), so they share no tokens to stitch on; choose models of one tokenizer"
        )
