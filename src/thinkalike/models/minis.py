"""What a mini is made of: its module, its tokenizer and its files."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from thinkalike.errors import ModelError, listed, short
from thinkalike.models.families import FAMILIES
from thinkalike.models.module_facts import Checkpoint
from thinkalike.models.survey import without_hooks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)

# The only special token of a mini that predicts the next token.
END = "<|endoftext|>"

# The special tokens of a mini that predicts hidden tokens.
SENTENCE = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

# The entries of a config.json that are read, and those that tell how the mini was made.
READ_ENTRIES = ("architecture", "seed")
NOTES = ("training", "heldout", "step")


def build_mini(
    architecture: Mapping[str, object], vocabulary: int, seed: int, family: str = "native"
) -> nn.Module:
    """Build a small model with random weights, in float32 on the CPU and in training mode.

    The same seed gives the same weights, whatever the activation function.

    Args:
        architecture: The sizes, as arguments of the family's configuration class.
        vocabulary: The number of tokens.
        seed: The seed of the weights.
        family: The family: "native" for TransformerLens's own classes, or one of transformers.
    """
    known_family = FAMILIES[family]
    if known_family.reader == "transformers":
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        torch.manual_seed(seed)  # classes of transformers draw from the global generator
        auto_class = AutoModelForCausalLM
        if known_family.predicts == "hidden":  # masked tokens
            auto_class = AutoModelForMaskedLM
        model_type = known_family.in_config_json
        config = AutoConfig.for_model(model_type, vocab_size=vocabulary, **architecture)
        return cast(nn.Module, auto_class.from_config(config))
    from transformer_lens.model_bridge import TransformerBridge

    settings = {**architecture, "d_vocab": vocabulary, "seed": seed}
    bridge = TransformerBridge.boot_native(settings, device="cpu", dtype=torch.float32)
    return without_hooks(bridge.original_model).train().requires_grad_(True)


def read_mini(place: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a model of the family `native` (TransformerLens's own classes) from a folder.

    `save_mini` has written the folder. The model is built from its config.json, and the weights
    are then loaded in the place of the random ones.

    Raises:
        ModelError: The config.json states a quantisation, or settings that the built model does
            not have, or weights are stored as whole numbers.
    """
    from safetensors.torch import load_file

    from thinkalike.models.stored_weights import check_dtypes

    config_json = json.loads(Path(place, "config.json").read_text())
    _warn_of_unread_entries(config_json, place)
    tokenizer = mini_tokenizer(place)
    module = build_mini(config_json["architecture"], len(tokenizer), config_json["seed"])
    _check_built_as_stated(module, config_json["architecture"], place)
    weights = load_file(f"{place}/model.safetensors")
    last_names = {name.rpartition(".")[2] for name, _ in module.named_parameters()}
    check_dtypes(weights, place, last_names)
    module.load_state_dict({name: weight.float() for name, weight in weights.items()})
    longest = module.cfg.n_ctx  # type: ignore[union-attr]
    return Checkpoint(module.to(device=device, dtype=dtype), tokenizer, cast(int, longest))


def _warn_of_unread_entries(config_json: Mapping[str, object], place: str) -> None:
    """Warn if the config.json of a model of the family `native` has entries that nothing reads.

    Models of this family have the form of the small models that this package brings along.

    Args:
        config_json: The contents of config.json.
        place: The folder, for messages.

    Raises:
        ModelError: It states a quantisation, so that the weights would mean something else.
    """
    if config_json.get("quantization_config"):
        raise ModelError(
            f"{place}: config.json states a quantization_config, and a model of the family native "
            "is never quantised; remove it"
        )
    unread = [name for name in config_json if name not in (*READ_ENTRIES, *NOTES)]
    if unread:
        log.warning(
            "warning: %s: config.json says %s, which the family native does not read: its "
            "settings are those of architecture",
            place,
            listed(unread),
        )


def _check_built_as_stated(
    module: nn.Module, architecture: Mapping[str, object], place: str
) -> None:
    """Raise a ModelError if a built model does not have the settings that config.json states.

    TransformerLens ignores settings that it does not know, and replaces empty ones. A setting that
    is stated as None has the default of TransformerLens, and is not compared.

    Args:
        module: The model that TransformerLens has built.
        architecture: The settings by name, from the section "architecture" of config.json.
        place: The folder, for the message.
    """
    for name, stated in architecture.items():
        used = getattr(module.cfg, name, None)
        if stated is not None and used != stated:
            raise ModelError(
                f"{place}: config.json says architecture.{name}={short(repr(stated))}, and the "
                f"model is built with {short(repr(used))}; correct it, or leave it out"
            )


def mini_tokenizer(place: str) -> PreTrainedTokenizerFast:
    """Read tokenizer.json of a folder that `save_mini` wrote, with one special token for all uses.

    BOS, EOS and padding are the token <|endoftext|>.
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=f"{place}/tokenizer.json", bos_token=END, eos_token=END, pad_token=END
    )


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, cls_sep: bool = False
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts; the same texts give the same tokenizer.

    Args:
        texts: The texts.
        vocabulary: The number of tokens, special ones included.
        cls_sep: Whether a text becomes [CLS] text [SEP], as for BERT. A space is then put before
            the text, so that its first word has the same tokens as anywhere else. Otherwise there
            is one special token, <|endoftext|>, which is BOS, EOS and padding.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=cls_sep)
    bpe.decoder = decoders.ByteLevel()
    special_tokens = {"bos_token": END, "eos_token": END, "pad_token": END}
    if cls_sep:
        special_tokens = dict(SENTENCE)  # [PAD], [CLS], [SEP] and [MASK]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=list(dict.fromkeys(special_tokens.values())),  # each one once
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(texts, trainer)
    if cls_sep:
        cls_and_sep = [(token, bpe.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        bpe.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",  # ":1" is the token type id of the second text
            special_tokens=cls_and_sep,
        )
        special_tokens |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **special_tokens)


def save_mini(
    folder: Path,
    module: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    config: Mapping[str, object],
) -> None:
    """Write a small model in half precision, with its tokenizer and config.json, to a folder.

    Args:
        folder: The folder, which is made if it does not exist.
        module: The model, of transformers or of TransformerLens's own classes. It is not changed.
        tokenizer: The tokenizer of the model.
        config: The entries of config.json: `architecture`, `seed`, and notes on how the model was
            made. For a model of transformers, `architecture` is left out, since transformers
            writes the sizes itself.
    """
    from safetensors.torch import save_file
    from transformers import PreTrainedModel

    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(module).half()
    config_json = dict(config)
    if isinstance(half, PreTrainedModel):
        half.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        written_by_transformers = json.loads((folder / "config.json").read_text())
        config_json.pop("architecture", None)
        config_json = written_by_transformers | config_json
    else:
        weights = {
            name: weight.detach().contiguous() for name, weight in half.state_dict().items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
    (folder / "config.json").write_text(json.dumps(config_json, indent=1) + "\n")
