"""Reading language models: checkpoints of transformers, and the legacy layout of TransformerLens."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.checkpoints.placement import placed, placement
from thinkalike.models.checkpoints.sides import one_side
from thinkalike.models.checkpoints.tokenizers import read_tokenizer
from thinkalike.models.checkpoints.unhooked import without_hooks
from thinkalike.models.checkpoints.weights import check_finite, check_fit, read_weights
from thinkalike.models.families import AUTO_CLASSES, Family
from thinkalike.models.proof import TOLERANCE, relative_error
from thinkalike.models.samples import sample_tokens
from thinkalike.models.surgery import first_tensor

# what configurations call the longest row
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


class Checkpoint(NamedTuple):
    """What a reader makes of a checkpoint: the module on its device, and the longest row, which may be unknown."""

    module: Any
    tokenizer: Any
    context: int | None


class Where(NamedTuple):
    """Where a checkpoint is read from and to: a folder or a repository of the hub, and a device and a dtype."""

    place: str
    device: torch.device
    dtype: torch.dtype


def read_transformers(config: ModelConfig, family: Family, where: Where) -> Checkpoint:
    """Read a language model that `save_pretrained` wrote, with its own tokenizer.

    It runs as transformers runs it. Through TransformerLens's bridge goes only what asks for its processing: a bridge
    computes every attention pattern, and its tokenizer puts BOS before every text, which GPT-2 and Pythia were not
    trained with.

    Raises:
        ModelError: weights or the tokenizer are missing, or an encoder-decoder is to be read and no side of it.
    """
    import transformers

    kind = getattr(transformers, AUTO_CLASSES[family.predicts])
    folded = config.processing == "compat"
    if folded and (config.device_map is not None or config.quantization):
        raise ModelError(
            f"{config.name}: model.processing=compat changes whole weights on one device; leave out model.device_map "
            "and model.quantization"
        )
    options: dict[str, Any] = {"attn_implementation": "eager"} if folded else placement(config, where.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a head that nothing reads may be missing: equal checkpoints give equal modules
        module, fit = read_weights(kind, config, where.place, dtype=where.dtype, **options)
    needed = module.base_model_prefix if family.predicts == "hidden" else ""
    check_fit(fit, config.name, where.place, [needed])
    tokenizer, longest = read_tokenizer(config, where.place), longest_row(module)
    if folded:
        from transformer_lens.model_bridge import TransformerBridge

        bridge = TransformerBridge.boot_transformers(
            where.place, hf_model=module, tokenizer=copy.deepcopy(tokenizer), device="cpu", dtype=where.dtype
        )
        module = _folded(bridge)
    elif family.predicts == "states":
        module = one_side(module, config)
    return Checkpoint(placed(module, options, where.device, where.dtype), tokenizer, longest)


def read_legacy(config: ModelConfig, family: Family, where: Where) -> Checkpoint:
    """Read a language model in the layout of TransformerLens 1, with the tokenizer that it names.

    Raises:
        ModelError: the logits change when TransformerLens's hooks are taken off.
    """
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_tl_legacy(where.place, device="cpu", dtype=where.dtype)
    module = _folded(bridge) if config.processing == "compat" else _without_hooks(bridge, config.name)
    return Checkpoint(module.to(device=where.device, dtype=where.dtype), bridge.tokenizer, bridge.cfg.n_ctx)


def longest_row(module: Any) -> int | None:
    """Return how many tokens a row can have, as the configuration says; None where nothing limits it.

    RoBERTa counts positions from one past the number of its padding token, so that the first ones are never used.
    """
    shape = module.config.get_text_config()
    longest = next((size for name in LENGTHS if isinstance(size := getattr(shape, name, None), int) and size > 0), None)
    unused = [
        part.padding_idx + 1
        for path, part in module.named_modules()
        if path.endswith("embeddings.position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    return longest - unused[0] if longest and unused else longest


def _folded(bridge: Any) -> Any:
    """Return the bridge's module with LayerNorms folded and weights centred, hooks and all."""
    bridge.enable_compatibility_mode()
    return bridge.original_model


def _without_hooks(bridge: Any, name: str) -> Any:
    """Return the bridge's module without hooks and with fused attention, proved to agree."""
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module: Any = without_hooks(bridge.original_model.eval())
        bare = first_tensor(module(tokens))
    error = relative_error(bare, hooked)
    if not error <= TOLERANCE[bare.dtype]:  # NaN fails as well
        check_finite(module, name)
        raise ModelError(f"{name}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return module
