"""The minis: small models that this project trained; folders of config.json, half-precision weights and tokenizer.

A mini of a Hugging Face family is a checkpoint as `save_pretrained` writes it, and loads like any other.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from thinkalike.errors import ConfigError
from thinkalike.models.families import family_named
from thinkalike.models.readers import without_hooks
from thinkalike.models.tokenizers import END
from thinkalike.models.weights import UNWRAPPED, check_fit, fit_of, wrapper_of

log = logging.getLogger(__name__)


def build_mini(architecture: dict[str, Any], vocabulary: int, seed: int, family: str = "native") -> nn.Module:
    """Build a randomly initialised model; the same seed gives the same weights whatever the activation.

    Args:
        architecture: sizes, in the names of the family's own configuration class.
        vocabulary: the number of rows of the embedding.
        family: a name in the table of families.

    Raises:
        ConfigError: there is no such family.
    """
    known = family_named(family)
    if known.reader == "transformers":
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        torch.manual_seed(seed)
        kind = AutoModelForMaskedLM if known.predicts == "hidden" else AutoModelForCausalLM
        return kind.from_config(AutoConfig.for_model(known.in_config_json, vocab_size=vocabulary, **architecture))
    from transformer_lens.model_bridge import TransformerBridge

    config = {**architecture, "d_vocab": vocabulary, "seed": seed}
    bridge = TransformerBridge.boot_native(config, device="cpu", dtype=torch.float32)
    return without_hooks(bridge.original_model).train().requires_grad_(True)


def unknown_sizes(architecture: dict[str, Any], family: str) -> list[str]:
    """Return the sizes that a family's own configuration class does not have; it would keep them and not use them.

    Raises:
        ConfigError: there is no such family, or minis are not made of it.
    """
    known = family_named(family)
    if known.reader == "transformers":
        from transformers import AutoConfig

        default, kind = AutoConfig.for_model(known.in_config_json), known.in_config_json
        new = [key for key in architecture if not hasattr(default, key)]  # an older name is taken, and not kept
        return [key for key in new if hasattr(AutoConfig.for_model(kind, **{key: architecture[key]}), key)]
    if known.reader != "native":
        raise ConfigError(f"model.family={family} is not one that task=pretrain makes")
    from transformer_lens.config import TransformerBridgeConfig

    there = {name for kind in TransformerBridgeConfig.__mro__[:-1] for name in inspect.signature(kind).parameters}
    return [key for key in architecture if key not in there]


def save_mini(folder: Path, module: nn.Module, tokenizer: Any, config: dict[str, Any], card: str) -> None:
    """Write a mini in half precision.

    Args:
        config: `architecture`, `seed`, and the numbers that the card states.
        card: the text of its README.md.
    """
    from safetensors.torch import save_file
    from transformers import PreTrainedModel

    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(module).half()
    if isinstance(half, PreTrainedModel):
        half.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shape = json.loads((folder / "config.json").read_text())  # says the architecture in its own way
        config = shape | {key: value for key, value in config.items() if key != "architecture"}
    else:
        weights = {name: weight.detach().contiguous() for name, weight in half.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "README.md").write_text(card)


def card_text(name: str, what: str, rows: Mapping[str, object]) -> str:
    """Return the README.md of a mini: its name, what it is, and a table of facts."""
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"# {name}\n\n{what}\n\n| | |\n|---|---|\n{table}\n"


def read_mini(folder: Path) -> tuple[Any, Any]:
    """Read a folder that `save_mini` wrote for `native`: the module, float32 in training mode, and the tokenizer.

    Raises:
        ModelError: the weights are not those of the architecture in config.json.
    """
    from safetensors.torch import load_file
    from transformers import PreTrainedTokenizerFast

    config = json.loads((folder / "config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token=END, eos_token=END, pad_token=END
    )
    module = build_mini(config["architecture"], len(tokenizer), config["seed"])
    weights = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    if prefix := wrapper_of(weights, module.state_dict()):
        log.info(UNWRAPPED, folder.name, prefix)
        weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    check_fit(fit_of(weights, module), folder.name, str(folder))
    module.load_state_dict(weights)
    return module, tokenizer
