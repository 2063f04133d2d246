"""How weights are laid out as they are read: on one device, over several, or in fewer bits."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import weakref
from typing import Any

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError

PACKAGES = ("accelerate", "bitsandbytes")


def placement(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of transformers' `from_pretrained` by which weights come to where they are used.

    Raises:
        ModelError: a package that is needed is not installed.
    """
    options: dict[str, Any] = {}
    if config.quantization:
        options["quantization_config"] = _quantization(config)
    if config.device_map is not None:
        _check_installed(config, "accelerate", "model.device_map")
        options["device_map"] = {"": "disk"} if config.device_map == "disk" else config.device_map
        options["offload_folder"] = tempfile.mkdtemp(
            prefix="thinkalike-offload-"
        )  # `placed` removes it with the module
    elif device.type == "cuda":  # shard by shard, and never whole in the memory of the machine
        options["device_map"] = {"": device}
    return options


def placed(module: Any, options: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """Return a module on its device and in its dtype, unless its weights were laid out as they were read.

    Args:
        options: those of `placement`, with which it was read.
    """
    if folder := options.get("offload_folder"):
        weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    if folder or getattr(module, "hf_quantizer", None) is not None:
        return module
    return module.to(device=device, dtype=dtype)


def device_of(module: Any, device: torch.device) -> torch.device:
    """Return where the states and logits of a module are: where its first weights run, if they are on several devices.

    Weights that are kept in the memory of the machine or on disk run on the first accelerator, or on the CPU.
    """
    mapped = getattr(module, "hf_device_map", None)
    if mapped is None:
        return device
    running = [place for place in mapped.values() if place not in ("cpu", "disk")]
    return torch.device(running[0]) if running else torch.device("cpu")


def _quantization(config: ModelConfig) -> Any:
    from transformers import BitsAndBytesConfig

    for package in PACKAGES:
        _check_installed(config, package, f"model.quantization={config.quantization}")
    compute = getattr(torch, config.dtype)
    if config.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=compute)


def _check_installed(config: ModelConfig, package: str, setting: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ModelError(
            f"{config.name}: {setting} needs the package {package}; install it with: pip install thinkalike[large]"
        )
