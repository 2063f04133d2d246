"""The byte-level BPE of the minis, and the comparison of two tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thinkalike.errors import ModelError

END = "<|endoftext|>"
SENTENCE = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def train_tokenizer(texts: Iterable[str], vocabulary: int, cls_sep: bool = False) -> Any:
    """Train a byte-level BPE; the same texts give the same tokenizer.

    Args:
        texts: the documents to train on.
        vocabulary: the number of entries.
        cls_sep: whether a text becomes [CLS] text [SEP], as BERT wants it, and begins with a space, so that its first
            word is like any other; else one special token is BOS, EOS and padding.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=cls_sep)
    bpe.decoder = decoders.ByteLevel()
    special = SENTENCE if cls_sep else {"bos_token": END, "eos_token": END, "pad_token": END}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    if cls_sep:
        numbers = [(mark, bpe.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        bpe.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbers
        )
        special |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **special)


def same_vocabulary(source: Any, target: Any) -> None:
    """Check that the tokens of two models, or of anything with `name` and `tokenizer`, mean the same strings.

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
