"""Sparse autoencoders in the files of SAELens 6: `cfg.json` and `sae_weights.safetensors`.

SAELens opens such a folder with `SAE.load_from_disk`, and encodes a state to the same latents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
from thinkalike.digests import read_json, regular
from thinkalike.errors import ModelError, one_line

CONFIG = "cfg.json"
WEIGHTS = "sae_weights.safetensors"
FORMAT = "6.0.0"  # the first version of SAELens with this cfg.json

Settings: TypeAlias = Mapping[str, object]
"""The content of cfg.json."""

# Settings of SAELens, also of older versions, and the values that can be read here.
SUPPORTED: dict[str, tuple[object, ...]] = {
    "architecture": (None, "standard", "topk"),
    "normalize_activations": (None, "none", False),
    "reshape_activations": (None, "none"),
    "activation_fn": (None, "relu"),
    "activation_fn_str": (None, "relu"),
    "finetuning_scaling_factor": (None, False),
}


def save_sae(sae: SparseAutoencoder, folder: str | os.PathLike[str], **metadata: object) -> None:
    """Write an autoencoder (ReLU, or TopK) in the format of SAELens.

    Args:
        sae: A single autoencoder.
        folder: Where its two files are written; it is made if needed.
        metadata: Facts such as model_name="gpt2".
    """
    settings: dict[str, object] = {"architecture": "standard"}
    if sae.k is not None:
        settings = {"architecture": "topk", "k": sae.k, "rescale_acts_by_decoder_norm": False}
    settings |= {
        "d_in": sae.d,
        "d_sae": sae.f,
        "dtype": str(sae.W_enc.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": FORMAT, **metadata},
    }
    directory = Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(settings, indent=1) + "\n")
    weights = {}
    for name, weight in sae.named_parameters():
        weights[name] = weight.detach().cpu().contiguous()
    save_file(weights, directory / WEIGHTS)


def load_sae(folder: str | os.PathLike[str]) -> SparseAutoencoder:
    """Read an autoencoder with ReLU ("standard") or TopK that `save_sae` or SAELens wrote.

    Raises:
        ModelError: A file is missing or damaged, has other tensors, or describes an autoencoder
            that is not supported.
    """
    directory = Path(folder)
    try:
        settings = read_json(directory / CONFIG)
        weights = load_file(regular(directory / WEIGHTS))
        k = _active_latents(settings)  # None for ReLU
        _check_shapes(settings, weights)
        return SparseAutoencoder(**_with_options_applied(settings, weights), k=k)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"{directory} holds no autoencoder that can be read: {one_line(error)}"
        ) from error


def _with_options_applied(
    settings: Settings, stored_weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights that give the same latents, with two options of SAELens built into them.

    `apply_b_dec_to_input`, which is on if it is not stated, subtracts b_dec from the states before
    they are encoded. `rescale_acts_by_decoder_norm` multiplies each latent by the norm of its
    direction, which then has norm 1.

    Args:
        settings: The content of cfg.json.
        stored_weights: W_enc (d, f), b_enc (f), W_dec (f, d) and b_dec (d).

    Raises:
        ValueError: A weight is not finite, or a direction that must be rescaled is 0.
    """
    weights = dict(stored_weights)
    if settings.get("apply_b_dec_to_input", True):
        # (h - b_dec) W_enc + b_enc = h W_enc + (b_enc - b_dec W_enc)
        weights["b_enc"] = weights["b_enc"] - weights["b_dec"] @ weights["W_enc"]
    if settings.get("rescale_acts_by_decoder_norm"):
        norms = weights["W_dec"].norm(dim=-1)
        weights["W_enc"] = weights["W_enc"] * norms
        weights["b_enc"] = weights["b_enc"] * norms
        weights["W_dec"] = weights["W_dec"] / norms[:, None]
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(
                f"{name} has entries that are not finite, or a direction of zeros to rescale"
            )
    return weights


def _check_shapes(settings: Settings, weights: Mapping[str, Tensor]) -> None:
    """Check that the weights have one floating dtype, and the shapes that the settings state.

    Args:
        settings: The content of cfg.json, with the width d of states (`d_in`) and the number f of
            latents (`d_sae`).
        weights: The tensors of the file of weights, by name.

    Raises:
        ValueError: A weight is missing, unknown or of another shape, or dtypes differ.
    """
    d = settings.get("d_in")
    f = settings.get("d_sae")
    expected = {"W_dec": (f, d), "W_enc": (d, f), "b_dec": (d,), "b_enc": (f,)}
    shapes = {name: tuple(weights[name].shape) for name in sorted(weights)}
    if shapes != expected:
        raise ValueError(f"{WEIGHTS} has the shapes {shapes}, and {CONFIG} says {expected}")
    dtypes = {weight.dtype for weight in weights.values()}
    if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
        listed = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"{WEIGHTS} has tensors of {listed}, not of one floating dtype")


def _active_latents(settings: Settings) -> int | None:
    """Return k, how many latents of a TopK autoencoder are active at once; None for a ReLU.

    Settings of SAELens that this project cannot read are refused here, too. A missing setting
    is accepted, unless it is one of the sizes of a TopK.

    Args:
        settings: The content of cfg.json, the file of settings of SAELens.

    Raises:
        ValueError: k is not from 1 to the number of latents, or a setting has a value that is not
            supported.
    """
    for key, supported in SUPPORTED.items():
        if settings.get(key) not in supported:
            raise ValueError(f"{key}={settings[key]} in {CONFIG} is not supported")
    for key in ("apply_b_dec_to_input", "rescale_acts_by_decoder_norm"):
        if not isinstance(settings.get(key), bool | None):
            raise ValueError(f"{key}={settings[key]!r} in {CONFIG} is neither true nor false")
    if settings.get("architecture") != "topk":
        return None
    k = settings.get("k")
    f = settings.get("d_sae")  # the number of latents
    if type(k) is not int or type(f) is not int or not 1 <= k <= f:
        raise ValueError(f"k={k} in {CONFIG} is not in 1..{f}, the number of latents")
    return k
