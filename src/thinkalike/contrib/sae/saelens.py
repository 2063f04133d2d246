"""Sparse autoencoders in the files of SAELens 6: `cfg.json` and `sae_weights.safetensors`.

SAELens opens such a folder with `SAE.load_from_disk`, and encodes a state to the same latents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from thinkalike.contrib.sae.measures import SparseAutoencoder
from thinkalike.errors import ModelError, first_line

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
FORMAT = "6.0.0"  # the first version of SAELens with this cfg.json
TENSORS = ("W_enc", "b_enc", "W_dec", "b_dec")
PLAIN: dict[str, tuple[Any, ...]] = {  # settings of SAELens, also of older versions, and the values that are read here
    "architecture": (None, "standard", "topk"),
    "normalize_activations": (None, "none", False),
    "reshape_activations": (None, "none"),
    "activation_fn": (None, "relu"),
    "activation_fn_str": (None, "relu"),
    "finetuning_scaling_factor": (None, False),
}


class SavedSAE(NamedTuple):
    """An autoencoder from a file, and its metadata: `model_name`, `hook_name` and more."""

    sae: SparseAutoencoder
    metadata: dict[str, Any]


def save_sae(sae: SparseAutoencoder, folder: str | os.PathLike[str], **metadata: Any) -> None:
    """Write an autoencoder in the format of SAELens, with facts such as model_name="gpt2" as metadata."""
    topk = {"architecture": "topk", "k": sae.k, "rescale_acts_by_decoder_norm": False}
    own = {"architecture": "standard"} if sae.k is None else topk
    shared = {
        "d_in": sae.d,
        "d_sae": sae.f,
        "dtype": str(sae.W_enc.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": FORMAT, **metadata},
    }
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / CONFIG).write_text(json.dumps(own | shared, indent=1) + "\n")
    save_file({name: weight.detach().cpu().contiguous() for name, weight in sae.named_parameters()}, place / WEIGHTS)


def load_sae(folder: str | os.PathLike[str]) -> SavedSAE:
    """Read an autoencoder that `save_sae` or SAELens wrote, of the architectures standard (ReLU) and topk.

    What SAELens computes in another order is folded into the weights: b_dec that is subtracted from the states first
    (apply_b_dec_to_input), and latents that are scaled by the norms of their directions (rescale_acts_by_decoder_norm).

    A file that is missing or damaged, has other tensors, or describes another kind of autoencoder is a ModelError.
    """
    place = Path(folder)
    try:
        config, weights = json.loads((place / CONFIG).read_text()), load_file(place / WEIGHTS)
        k = _latents_at_once(config)
        if set(weights) != set(TENSORS):
            raise ValueError(f"{WEIGHTS} has the tensors {', '.join(sorted(weights))}, not {', '.join(TENSORS)}")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{place} holds no autoencoder that can be read: {first_line(error)}") from error
    if config.get("apply_b_dec_to_input", True):
        weights["b_enc"] = weights["b_enc"] - weights["b_dec"] @ weights["W_enc"]
    if config.get("rescale_acts_by_decoder_norm"):
        norms = weights["W_dec"].norm(dim=-1)
        weights["W_enc"], weights["b_enc"] = weights["W_enc"] * norms, weights["b_enc"] * norms
        weights["W_dec"] = weights["W_dec"] / norms[:, None]
    return SavedSAE(SparseAutoencoder(**weights, k=k), dict(config.get("metadata") or {}))


def _latents_at_once(config: Mapping[str, Any]) -> int | None:
    """Return k, or None for a ReLU; raise a ValueError if a setting changes what the weights mean."""
    for key, allowed in PLAIN.items():
        if config.get(key) not in allowed:
            raise ValueError(f"{key}={config[key]} in {CONFIG} is not supported")
    k, f = config.get("k"), config.get("d_sae")
    if config.get("architecture") != "topk":
        return None
    if not (isinstance(k, int) and isinstance(f, int) and 1 <= k <= f):
        raise ValueError(f"k={k} in {CONFIG} is not in 1..{f}, the number of latents")
    return k
