"""Loading: the hub, a local folder or an embedded mini, through TransformerLens, with errors that say how to go on."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.checkpoints import checkpoint, explained, hub
from thinkalike.models.classifiers import ARCHITECTURE, CLASSIFIER, class_names, read_classifier
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import TOLERANCE, FrozenModel
from thinkalike.models.minis import ASSETS, folder_of, read_mini
from thinkalike.models.plain import plain
from thinkalike.models.samples import sample_tokens

log = logging.getLogger(__name__)


def load_model(config: ModelConfig) -> FrozenModel:
    """Load what `config` names, onto its device and in its dtype, and prove that it can be cut at its blocks.

    Raises:
        ModelError: weights cannot be had or read, are of another architecture, or fail the proof.
    """
    with explained(config):
        return _load(config)


def head_dimensions(config: ModelConfig) -> dict[str, int]:
    """Sizes of a Hugging Face model from its configuration alone: layers, d_model, heads, d_head, rotary.

    Raises:
        ModelError: the configuration cannot be had.
    """
    from transformers import AutoConfig

    folder = folder_of(config) if config.mini else config.path
    with explained(config), contextlib.nullcontext() if folder else hub(str(config.hub_id), config.revision):
        shape = AutoConfig.from_pretrained(folder or config.hub_id, revision=config.revision)
    d_head = shape.hidden_size // shape.num_attention_heads
    rotary = int(d_head * (getattr(shape, "rope_parameters", None) or {}).get("partial_rotary_factor", 0))
    sizes = {"layers": shape.num_hidden_layers, "d_model": shape.hidden_size, "heads": shape.num_attention_heads}
    return {**sizes, "d_head": d_head, "rotary": rotary}


def _load(config: ModelConfig) -> FrozenModel:
    device, dtype = torch.device(pick_device(config.device)), getattr(torch, config.dtype)
    family = config.family
    if config.mini:
        config = replace(config, path=str(folder_of(config)))
    if config.mini and family == "native":
        module, tokenizer = read_mini(Path(str(config.path)))
        context, revision = module.cfg.n_ctx, "embedded"
    else:
        family = _family_of(config) if family == "auto" else family
        read = read_classifier if family == CLASSIFIER else _read_language_model
        with checkpoint(config) as (place, revision):
            module, tokenizer, context = read(config, place, dtype)
    if config.classes and family != CLASSIFIER:
        raise ModelError(f"{config.name}: model.classes={config.classes} is for classifiers, and this is a {family}")
    return FrozenModel(
        module.to(device=device, dtype=dtype),
        FAMILIES[family],
        tokenizer,
        name=config.name if config.name != "local" else Path(str(config.path)).name,
        context=min(context or 1024, config.context or 1024),
        bos_each_row=config.bos,
        revision=revision,
        kernels=kernels_of(family),
        classes=class_names(config, module) if family == CLASSIFIER else (),
    )


def content(config: ModelConfig) -> str:
    """A digest of the files of a local checkpoint or mini, which may change under the same name; "" for a hub model.

    Raises:
        ModelError: there are no files.
    """
    if not (config.path or config.mini):
        return ""
    folder = Path(config.path) if config.path else ASSETS / config.name
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".json", ".safetensors", ".bin"})
    if not files:
        raise ModelError(f"model={config.name}: {folder} holds no checkpoint")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def pick_device(name: str) -> str:
    """The device that `auto` stands for here, or the name as it is."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def kernels_of(family: str) -> str:
    """Which code runs the blocks; Mamba has fused kernels where its extra is installed."""
    if family != "mamba":
        return "torch"
    fused = all(importlib.util.find_spec(name) for name in ("mamba_ssm", "causal_conv1d"))
    return "mamba-ssm" if fused and torch.cuda.is_available() else "transformers (mamba-ssm is not installed)"


def _family_of(config: ModelConfig) -> str:
    """The family that a local checkpoint's config.json names."""
    path = Path(str(config.path)) / "config.json"
    if not path.exists():
        raise ModelError(f"model.path={config.path} has no config.json; give a folder written by save_pretrained")
    shape = json.loads(path.read_text())
    if ARCHITECTURE in (shape.get("architectures") or []):
        return CLASSIFIER
    kind = shape.get("model_type", "none")
    if kind not in FAMILIES:
        raise ModelError(f"{path} says model_type={kind}, which is not among {', '.join(FAMILIES)}")
    return kind


def _read_language_model(config: ModelConfig, place: str, dtype: torch.dtype) -> tuple[Any, Any, int | None]:
    """The module, on the CPU, the checkpoint's own tokenizer and the longest row, through TransformerLens.

    The bridge's tokenizer puts BOS before every text, which GPT-2 and Pythia were not trained with.
    """
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    if config.family == "legacy":
        bridge = TransformerBridge.boot_tl_legacy(place, device="cpu", dtype=dtype)
        tokenizer = bridge.tokenizer
    else:
        bridge = TransformerBridge.boot_transformers(place, device="cpu", dtype=dtype, revision=config.revision)
        tokenizer = AutoTokenizer.from_pretrained(place, revision=config.revision or "main")
    return _unwrap(bridge, config), tokenizer, bridge.cfg.n_ctx


def _unwrap(bridge: Any, config: ModelConfig) -> Any:
    """The bridge's module; raw weights run without the hooks and with the fused attention, proved to agree."""
    if config.processing == "compat":
        bridge.enable_compatibility_mode()
        return bridge.original_model
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module: Any = plain(bridge.original_model.eval())
        bare = module(tokens)
    bare = bare if isinstance(bare, torch.Tensor) else bare[0]
    error = ((bare - hooked).abs().max() / hooked.abs().max()).item()
    if not error <= TOLERANCE[bare.dtype]:
        raise ModelError(f"{config.name}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return module
