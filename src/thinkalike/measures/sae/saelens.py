"""Sparse autoencoders in the files of SAELens 6: `cfg.json` and `sae_weights.safetensors`.

SAELens opens such a folder with `SAE.load_from_disk`, and encodes a state to the same latents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinkalike.errors import ModelError, first_line
from thinkalike.measures.sae.autoencoder import SparseAutoencoder

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
FORMAT = "6.0.0"  # since this version of SAELens cfg.json has looked so
TENSORS = ("W_enc", "b_enc", "W_dec", "b_dec")
ARCHITECTURES = ("standard", "topk")
PLAIN = {  # settings of SAELens, the older ones among them, and the values with which they change nothing
    "normalize_activations": (None, "none", False),
    "reshape_activations": (None, "none"),
    "activation_fn": (None, "relu"),
    "activation_fn_str": (None, "relu"),
    "finetuning_scaling_factor": (None, False),
}


class SavedSAE(NamedTuple):
    """An autoencoder that was read, and what its file says of it: `model_name`, `hook_name` and more."""

    sae: SparseAutoencoder
    metadata: dict[str, Any]


def save_sae(sae: SparseAutoencoder, folder: str | os.PathLike[str], **metadata: Any) -> None:
    """Write an autoencoder in the format of SAELens.

    Args:
        metadata: What SAELens keeps beside it, such as model_name="gpt2" and hook_name="blocks.2.hook_resid_post".
    """
    own = {"architecture": "standard"} if sae.k is None else {
        "architecture": "topk", "k": sae.k, "rescale_acts_by_decoder_norm": False,
    }  # fmt: skip
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

    Raises:
        ModelError: A file is missing or damaged, lacks tensors or has unknown ones, or the autoencoder does something
            that this class does not.
    """
    place = Path(folder)
    config, weights = _config(place / CONFIG), _weights(place / WEIGHTS)
    k = _latents_at_once(config, place)
    expected = {"W_enc": ("d_in", "d_sae"), "b_enc": ("d_sae",), "W_dec": ("d_sae", "d_in"), "b_dec": ("d_in",)}
    for name, sizes in expected.items():
        stated = tuple(config.get(size) for size in sizes)
        if tuple(weights[name].shape) != stated:
            raise ModelError(f"{place / WEIGHTS}: {name} is {tuple(weights[name].shape)}, and {CONFIG} says {stated}")
    if config.get("apply_b_dec_to_input", True):
        weights["b_enc"] = weights["b_enc"] - weights["b_dec"] @ weights["W_enc"]
    if config.get("rescale_acts_by_decoder_norm"):
        norms = weights["W_dec"].norm(dim=-1)
        weights["W_enc"], weights["b_enc"] = weights["W_enc"] * norms, weights["b_enc"] * norms
        weights["W_dec"] = weights["W_dec"] / norms[:, None]
    return SavedSAE(SparseAutoencoder(**weights, k=k), dict(config.get("metadata") or {}))


def _config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({first_line(error)[:100]}): give a folder that SAELens wrote"
        ) from error
    return config if isinstance(config, dict) else {}


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        weights: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} cannot be read ({first_line(error)[:100]}): give a folder that SAELens wrote"
        ) from error
    if missing := [name for name in TENSORS if name not in weights]:
        raise ModelError(f"{path} lacks {', '.join(missing)}: an autoencoder has {', '.join(TENSORS)}")
    if unknown := sorted(set(weights) - set(TENSORS)):
        raise ModelError(f"{path} also holds {', '.join(unknown)}, which this class does not use: fold it in first")
    if broken := [name for name, weight in weights.items() if not torch.isfinite(weight).all()]:
        raise ModelError(f"{path}: {', '.join(broken)} holds numbers that are not finite; train it anew")
    return weights


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} cannot be read ({first_line(error)[:100]}): give a folder that SAELens wrote")


def _latents_at_once(config: Mapping[str, Any], place: Path) -> int | None:
    """Return k, or None for a ReLU, after checking that the autoencoder is of a kind that is known here.

    Raises:
        ModelError: it is not.
    """
    kind = config.get("architecture", "standard")
    if kind not in ARCHITECTURES:
        raise ModelError(f"{place}: architecture={kind} is not known here; there is: {', '.join(ARCHITECTURES)}")
    for key, allowed in PLAIN.items():
        if config.get(key) not in allowed:
            raise ModelError(f"{place}: {key}={config[key]} is not known here; fold it into the weights first")
    if kind == "standard":
        return None
    k, f = config.get("k"), config.get("d_sae")
    if not (isinstance(k, int) and isinstance(f, int) and 1 <= k <= f):
        raise ModelError(f"{place}: k={k} is not in 1..{f}, the number of latents")
    return k
