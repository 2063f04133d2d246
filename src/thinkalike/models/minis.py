"""What a mini is made of: its tokenizer and its files."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from thinkalike.models.load import END

SENTENCE = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(texts: Iterable[str], vocabulary: int, cls_sep: bool = False) -> Any:
    """Train a byte-level BPE of `vocabulary` entries; the same texts give the same tokenizer.

    With `cls_sep` a text becomes [CLS] text [SEP], as BERT wants it, and begins with a space, so that its first word is
    like any other; else one special token is BOS, EOS and padding.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=cls_sep)
    bpe.decoder = decoders.ByteLevel()
    special = SENTENCE if cls_sep else {"bos_token": END, "eos_token": END, "pad_token": END}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own: dict[str, Any] = {
        "special_tokens": list(dict.fromkeys(special.values())),
        "initial_alphabet": alphabet,
    }
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, **own)
    bpe.train_from_iterator(texts, trainer)
    if cls_sep:
        numbers = [(mark, bpe.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        bpe.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbers
        )
        special |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **special)


def save_mini(folder: Path, module: nn.Module, tokenizer: Any, config: dict[str, Any]) -> None:
    """Write a mini in half precision, with `architecture`, `seed` and what is known of it in its configuration."""
    from safetensors.torch import save_file
    from transformers import PreTrainedModel

    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(module).half()
    if isinstance(half, PreTrainedModel):
        half.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shape = json.loads(
            (folder / "config.json").read_text()
        )  # says the architecture in its own way
        config = shape | {key: value for key, value in config.items() if key != "architecture"}
    else:
        weights = {
            name: weight.detach().contiguous() for name, weight in half.state_dict().items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
