"""Sparse autoencoders in the files of SAELens 6: `cfg.json` and `sae_weights.safetensors`.

SAELens opens such a folder with `SAE.load_from_disk`, and encodes a state to the same latents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinkalike.contrib.sae.measures import SparseAutoencoder
from thinkalike.digests import read_json, regular
from thinkalike.errors import ModelError, one_line

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
FORMAT = "6.0.0"  # the first version of SAELens with this cfg.json
PLAIN: dict[str, tuple[Any, ...]] = {  # settings of SAELens, also of older versions, and the values that are read here
    "architecture": (None, "standard", "topk"),
    "normalize_activations": (None, "none", False),
    "reshape_activations": (None, "none"),
    "activation_fn": (None, "relu"),
    "activation_fn_str": (None, "relu"),
    "finetuning_scaling_factor": (None, False),
}


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


def load_sae(folder: str | os.PathLike[str]) -> SparseAutoencoder:
    """Read an autoencoder that `save_sae` or SAELens wrote, of the architectures standard (ReLU) and topk.

    What SAELens computes in another order is folded into the weights: b_dec that is subtracted from the states first
    (apply_b_dec_to_input), and latents that are scaled by the norms of their directions (rescale_acts_by_decoder_norm).

    A file that is missing or damaged, has other tensors, or describes another kind of autoencoder is a ModelError.
    """
    place = Path(folder)
    try:
        config, weights = read_json(place / CONFIG), load_file(regular(place / WEIGHTS))
        k = _latents_at_once(config)
        _check_shapes(config, weights)
        if config.get("apply_b_dec_to_input", True):
            weights["b_enc"] = weights["b_enc"] - weights["b_dec"] @ weights["W_enc"]
        if config.get("rescale_acts_by_decoder_norm"):
            norms = weights["W_dec"].norm(dim=-1)
            weights["W_enc"], weights["b_enc"] = weights["W_enc"] * norms, weights["b_enc"] * norms
            weights["W_dec"] = weights["W_dec"] / norms[:, None]
        if infinite := [name for name, weight in weights.items() if not weight.isfinite().all()]:
            raise ValueError(f"{infinite[0]} has entries that are not finite, or a direction of zeros to rescale")
        return SparseAutoencoder(**weights, k=k)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{place} holds no autoencoder that can be read: {one_line(error)}") from error


def _check_shapes(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless the weights are of one floating dtype and of the widths that the settings say."""
    d, f = config.get("d_in"), config.get("d_sae")
    wanted = {"W_dec": (f, d), "W_enc": (d, f), "b_dec": (d,), "b_enc": (f,)}
    shapes = {name: tuple(weights[name].shape) for name in sorted(weights)}
    if shapes != wanted:
        raise ValueError(f"{WEIGHTS} has the shapes {shapes}, and {CONFIG} says {wanted}")
    dtypes = {weight.dtype for weight in weights.values()}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError(f"{WEIGHTS} has tensors of {', '.join(sorted(map(str, dtypes)))}, not of one floating dtype")


def _latents_at_once(config: Mapping[str, Any]) -> int | None:
    """Return k, or None for a ReLU; raise a ValueError if a setting changes what the weights mean."""
    for key, allowed in PLAIN.items():
        if config.get(key) not in allowed:
            raise ValueError(f"{key}={config[key]} in {CONFIG} is not supported")
    for key in ("apply_b_dec_to_input", "rescale_acts_by_decoder_norm"):
        if not isinstance(config.get(key), bool | None):
            raise ValueError(f"{key}={config[key]!r} in {CONFIG} is neither true nor false")
    k, f = config.get("k"), config.get("d_sae")
    if config.get("architecture") != "topk":
        return None
    if not (type(k) is int and type(f) is int and 1 <= k <= f):
        raise ValueError(f"k={k} in {CONFIG} is not in 1..{f}, the number of latents")
    return k
